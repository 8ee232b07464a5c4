"""Noisy expected improvement of one point, in closed form given the values at the points before it.

    gain = NoisyImprovement(gp, X, pending, seed=7)
    x, _ = optimize_acqf(gain, bounds, q=1, num_restarts=4, raw_samples=64)

BoTorch's qLogNEI samples the candidate's value too and takes twice as long. Given the
values at the points, the candidate's is normal, so its expected improvement is known: a batch is
two matrix products.
"""

import math
import types
from collections.abc import Callable

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import _log_ei_helper
from botorch.models import MixedSingleTaskGP, SingleTaskGP
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.transforms import Standardize
from botorch.utils.sampling import draw_sobol_normal_samples
from botorch.utils.transforms import t_batch_mode_transform
from gpytorch.kernels import Kernel
from torch import Tensor

from dpbo.models.kernels import kernel_derivatives, radial_part
from dpbo.models.plain_covariance import PlainCovariance, is_plain

# of the prior variance; keeps the noiseless covariance of points that lie close together invertible
_JITTER = 1e-7


class NoisyImprovement(AcquisitionFunction):  # type: ignore[misc]
    """log E[(f(x) - best)+] given the released values, where best is the unknown maximum of f over
    the points so far and those pending.

    With f_s a sample of f at these points P from the posterior, and f(x) | f_s normal of mean
    m_s(x) and variance v(x),

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
        counted: `t` bools, which of the points so far best is the maximum over; omitted, all.
    """

    def __init__(
        self,
        gp: SingleTaskGP,
        X: Tensor,
        pending: Tensor | None,
        *,
        seed: int,
        samples: int = 64,
        counted: Tensor | None = None,
    ) -> None:
        super().__init__(gp)
        self.points = X if pending is None else torch.cat([X, pending])
        self._mean = gp.mean_module
        self._covariance, self._variances = _functions(gp.covar_module, X.shape[1])
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
            means = prior + (V.mT @ residual).squeeze(-1)
            normal = draw_sobol_normal_samples(
                len(K), samples, device=K.device, dtype=K.dtype, seed=seed
            )
            root = torch.linalg.cholesky(K - V.mT @ V + eye)
            f = means.unsqueeze(-1) + root @ normal.mT
            self._factor = torch.linalg.cholesky(K + eye)
            self._weights = torch.cholesky_solve(f - prior.unsqueeze(-1), self._factor)
            if counted is not None:
                f = torch.cat([f[:n][counted], f[n:]])
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

    @t_batch_mode_transform(expected_q=1)  # type: ignore[untyped-decorator]
    def forward(self, X: Tensor) -> Tensor:
        """The value for X, `batch_shape x 1 x d`, as `batch_shape`."""
        Z = X.squeeze(-2)
        k = self._covariance(self.points, Z)
        explained = torch.linalg.solve_triangular(self._factor, k, upper=False).square().sum(-2)
        deviation = (self._variances(Z) - explained).clamp_min(1e-14).sqrt().unsqueeze(-1)
        u = (self._mean(Z).unsqueeze(-1) + k.mT @ self._weights - self._best) / deviation
        return (_log_ei_helper(u) + deviation.log()).logsumexp(-1) - math.log(u.shape[-1])


def _functions(
    kernel: Kernel, d: int
) -> tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """k(A, B) and k(a, a) as plain operations where the kernel is radial, else through GPyTorch, at
    twice the cost.
    """
    derivatives = kernel_derivatives(kernel)
    if radial_part(derivatives) is not None:
        return derivatives.value, derivatives.variances
    if is_plain(kernel):
        plain = PlainCovariance(kernel, d)
        return plain, plain.variances
    return lambda A, B: kernel(A, B).to_dense(), lambda A: kernel(A, diag=True)
