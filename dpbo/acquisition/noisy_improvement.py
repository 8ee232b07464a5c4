"""Noisy expected improvement of one point, in closed form given the values at the points before it,
and the search for its maximum.

    gain = NoisyImprovement(gp, X, pending, seed=7)
    x = most_improving(gain, space, space.bounds, seed=7)          # 1 x d

BoTorch's qLogNEI samples the candidate's value too and takes 2 to 3 ms for a batch. Given the
values at the points, the candidate's is normal, so its expected improvement is known: a batch is
two matrix products, and a thousand points are looked at before a search.
"""

import math
import types
from collections.abc import Callable

import numpy as np
import scipy
import torch
from botorch.acquisition.analytic import _log_ei_helper
from botorch.models import MixedSingleTaskGP, SingleTaskGP
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.transforms import Standardize
from botorch.utils.sampling import draw_sobol_normal_samples
from gpytorch.kernels import Kernel
from torch import Tensor

from dpbo.models.kernels import Radial, Scaled, kernel_derivatives
from dpbo.space import Space

# of the prior variance; keeps the noiseless covariance of points that lie close together invertible
_JITTER = 1e-7
# starts in the whole box, and around each of the best three points so far
_RAW = 1024
_NEAR = 64
# starts from which L-BFGS climbs, and its steps
_CLIMBS = 4
_STEPS = 30
# a step that gains less, as a share of the rows' values together, is the last
_FLAT = 5e-3
# nats that a step or category must gain
_CLOSE = 1e-2
# of L-BFGS and of changing single steps or categories
_ROUNDS = 3


class NoisyImprovement:
    """log E[(f(x) - best)+] given the released values, where best is the unknown maximum of f over
    the points so far and those pending.

    With f_s a sample of f at these points P from the posterior, and f(x) | f_s normal of mean m_s(x) and variance v(x),
        value(x) = log mean_s  sqrt(v) h((m_s - max f_s) / sqrt(v)),   h(u) = phi(u) + u Phi(u),
        m_s = m + k(x, P) K^-1 (f_s - m),   v = k(x, x) - k(x, P) K^-1 k(P, x).
    Pending points enter as the others do: what x adds to E max(best, f(pending), f(x)). Costs (|P|
    + samples) |P| flops a point. Follows Letham et al. 2019 (arXiv 1706.07094), equation 6, and
    Ament et al. 2023 for the logarithm.

    Args:
        gp: one that `takes` is true for.
        X: the points of the released values, `t x d`.
        pending: points being evaluated, `k x d`, or None.

    Keyword args:
        seed, samples: of the quasi-random samples of f_s.
    """

    def __init__(
        self, gp: SingleTaskGP, X: Tensor, pending: Tensor | None, *, seed: int, samples: int = 64
    ) -> None:
        self.X = X
        self.points = X if pending is None else torch.cat([X, pending])
        self._mean = gp.mean_module
        self._covariance, self._variances = _functions(gp.covar_module)
        with torch.no_grad():
            n = len(X)
            prior = self._mean(self.points)
            K = self._covariance(self.points, self.points)
            eye = torch.eye(len(K), dtype=K.dtype, device=K.device) * (
                _JITTER * K.diagonal().mean()
            )
            whiten = torch.linalg.cholesky(
                K[:n, :n] + torch.diag(gp.likelihood.noise.expand(n)) + eye[:n, :n]
            )
            V = torch.linalg.solve_triangular(whiten, K[:n], upper=False)
            residual = torch.linalg.solve_triangular(
                whiten, (gp.train_targets - prior[:n]).unsqueeze(-1), upper=False
            )
            self.means = prior + (V.mT @ residual).squeeze(-1)
            normal = draw_sobol_normal_samples(
                len(K), samples, device=K.device, dtype=K.dtype, seed=seed
            )
            root = torch.linalg.cholesky(K - V.mT @ V + eye)
            f = self.means.unsqueeze(-1) + root @ normal.mT
            self._factor = torch.linalg.cholesky(K + eye)
            self._weights = torch.cholesky_solve(f - prior.unsqueeze(-1), self._factor)
            self._best = f.amax(0)

    @staticmethod
    def takes(gp: GPyTorchModel, X: Tensor) -> bool:
        """Whether the closed form holds for this model: a Gaussian process of one output on the
        rows of X themselves, in their order.
        """
        if (
            type(gp) not in (SingleTaskGP, MixedSingleTaskGP)
            or gp.num_outputs != 1
            or gp.batch_shape
        ):
            return False
        linear = isinstance(getattr(gp, "outcome_transform", None), (Standardize, types.NoneType))
        return (
            linear
            and getattr(gp, "input_transform", None) is None
            and torch.equal(gp.train_inputs[0], X)
        )

    def __call__(self, Z: Tensor) -> Tensor:
        """The values at Z, `m x d`: `m`."""
        k = self._covariance(self.points, Z)
        explained = torch.linalg.solve_triangular(self._factor, k, upper=False).square().sum(0)
        deviation = (self._variances(Z) - explained).clamp_min(1e-14).sqrt().unsqueeze(-1)
        u = (self._mean(Z).unsqueeze(-1) + k.mT @ self._weights - self._best) / deviation
        return (_log_ei_helper(u) + deviation.log()).logsumexp(-1) - math.log(u.shape[-1])


def most_improving(gain: NoisyImprovement, space: Space, bounds: Tensor, *, seed: int) -> Tensor:
    """The point of the space within bounds (`2 x d`) where the gain is largest, as far as a search
    finds it, `1 x d`.
    """
    steps = {
        i: bounds.new_tensor(grid) for i, grid in {**space.discrete_dims, **space.cat_dims}.items()
    }
    steps = {
        i: grid[(grid >= bounds[0, i] - 1e-9) & (grid <= bounds[1, i] + 1e-9)]
        for i, grid in steps.items()
    }
    with torch.no_grad():
        starts = _starts(gain, bounds, steps, seed)
        values = gain(starts)
    chosen = []
    # the best, then the best of those that lie apart from it
    for _ in range(_CLIMBS):
        chosen.append(starts[values.argmax()])
        apart = ((starts - chosen[-1]).abs() / (bounds[1] - bounds[0]).clamp_min(1e-9)).amax(
            1
        ) > 0.05
        starts = starts[apart]
        values = values[apart]
        if len(starts) == 0:
            break
    Z = torch.stack(chosen)
    for _ in range(_ROUNDS):
        if len(steps) < bounds.shape[1]:
            Z = _climb(gain, Z, bounds, steps)
        changed = _best_changes(gain, Z, steps)
        if changed is None:
            break
        Z = changed
    with torch.no_grad():
        return Z[gain(Z).argmax()].unsqueeze(0)


def _starts(gain: NoisyImprovement, bounds: Tensor, steps: dict[int, Tensor], seed: int) -> Tensor:
    """Sobol points of the box, and points at all distances around the three best so far."""
    d = bounds.shape[1]
    sobol = torch.quasirandom.SobolEngine(d + 1, scramble=True, seed=seed)  # type: ignore[no-untyped-call]
    unit = sobol.draw(_RAW + 3 * _NEAR, dtype=bounds.dtype).to(bounds.device)
    scale = 10.0 ** (-3.0 * unit[_RAW:, d:])
    unit = unit[:, :d]
    best = gain.X[gain.means[: len(gain.X)].topk(min(3, len(gain.X))).indices]
    width = bounds[1] - bounds[0]
    near = best.repeat(_NEAR, 1)
    near = near + (unit[_RAW : _RAW + len(near)] - 0.5) * scale[: len(near)] * width
    whole = bounds[0] + unit[:_RAW] * width
    for i, grid in steps.items():
        whole[:, i] = grid[(unit[:_RAW, i] * len(grid)).long().clamp_max(len(grid) - 1)]
        near[:, i] = grid[(near[:, i : i + 1] - grid).abs().argmin(1)]
    return torch.cat([whole, near.clamp(bounds[0], bounds[1])])


def _climb(gain: NoisyImprovement, Z: Tensor, bounds: Tensor, steps: dict[int, Tensor]) -> Tensor:
    """SciPy's L-BFGS-B over the continuous coordinates of all rows together."""
    lower, upper = (end.expand_as(Z).clone() for end in bounds)
    for i in steps:
        lower[:, i] = upper[:, i] = Z[:, i]

    def place(z: np.ndarray) -> Tensor:
        return torch.from_numpy(z).to(Z.device).view_as(Z)

    def objective(z: np.ndarray) -> tuple[float, np.ndarray]:
        at = place(z).requires_grad_()
        with torch.enable_grad():
            value = -gain(at).sum()
            (slope,) = torch.autograd.grad(value, at)
        return value.item(), slope.flatten().cpu().numpy()

    start, *ends = (part.flatten().cpu().numpy() for part in (Z, lower, upper))
    how = {"maxiter": _STEPS, "ftol": _FLAT, "gtol": 0.0}
    found = scipy.optimize.minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=scipy.optimize.Bounds(*ends),
        options=how,
    )
    return place(found.x)


def _best_changes(gain: NoisyImprovement, Z: Tensor, steps: dict[int, Tensor]) -> Tensor | None:
    """Each row with the one other step or category that gains most; None where none gains
    anything.
    """
    if not steps:
        return None
    values = torch.cat([*steps.values()])
    rows = torch.arange(len(Z), device=Z.device)
    places = torch.cat([torch.full_like(grid, i, dtype=torch.long) for i, grid in steps.items()])
    changed = Z.unsqueeze(1).repeat(1, len(values), 1)
    changed[:, torch.arange(len(values), device=Z.device), places] = values
    with torch.no_grad():
        gains = gain(changed.flatten(0, 1)).view(len(Z), -1)
        now = gain(Z)
    most, place = gains.max(1)
    better = most > now + _CLOSE
    return torch.where(better.unsqueeze(1), changed[rows, place], Z) if bool(better.any()) else None


def _functions(
    kernel: Kernel,
) -> tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """k(A, B) and k(a, a) as plain operations where the kernel is radial, else through GPyTorch, at
    twice the cost.
    """
    derivatives = kernel_derivatives(kernel)
    if isinstance(derivatives, Radial) or (
        isinstance(derivatives, Scaled) and isinstance(derivatives.base, Radial)
    ):
        return derivatives.value, derivatives.variances
    return lambda A, B: kernel(A, B).to_dense(), lambda A: kernel(A, diag=True)
