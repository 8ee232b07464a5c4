"""The points to evaluate next so that the gradient at theta becomes as certain as possible, in
milliseconds.

`suggest_gradient_points` gives so many points, `fewest_gradient_points` as few as reach a given
trace (DP-GIBO's Algorithm 2). With no history a closed-form design is returned as it is. Otherwise
the search starts from the closed form turned and stretched along the gradient's posterior
covariance, and L-BFGS improves it by the analytic gradient of `GradientTrace`, in whitened
coordinates; nothing passes through autograd. A step costs one value and gradient, 15 MFLOP at N =
400, b = 34, d = 33, on some 1.5 MB that stay in cache: wherever theta lies, the search is on the
CPU. (On an H100 its many small operations took longer, and ended elsewhere: docs/measured.md.)
"""

import math

import numpy as np
import scipy
import torch
from torch import Tensor

from dpbo.acquisition import designs
from dpbo.errors import InputError
from dpbo.gibo.gradient_posterior import GradientPosterior, require_positive_definite
from dpbo.models.builders import require_constant
from dpbo.models.kernels import (
    KernelDerivatives,
    Pull,
    radial_part,
    require_finite,
    require_float64,
)
from dpbo.validation import Count, Positive, checked

_STEPS = 60
# costs about 0.5 % of the trace and saves up to half of the time against 1e-6
_CLOSE = 1e-4
# power of the covariance's eigenvalues; 0, 1/4 and 1/2 were tried, 1/4 needs the fewest steps
_STRETCH = 0.25
# of an eigenvalue: points stay distinct even where everything is known
_LEAST_SHARE = 1e-8


@checked
def suggest_gradient_points(
    posterior: GradientPosterior,
    theta: Tensor,
    b: Count,
    *,
    bounds: Tensor | None = None,
    start: Tensor | None = None,
    steps: Count = _STEPS,
    close: Positive = _CLOSE,
    generator: torch.Generator | None = None,
) -> Tensor:
    """b points that leave the gradient at theta as certain as can be, `b x d`.

    Args:
        posterior: kernel, noise and history, of one run.
        theta: where the gradient is wanted, `d`; the points lie on its device.
        b: how many points.

    Keyword args:
        bounds: lower and upper ends, `2 x d`; theta lies between them.
        start: a design to improve, `b x d`, e.g. the previous one moved by theta's last step; used
            if it beats the stretched design.
        steps: most L-BFGS steps.
        close: a step that gains less, as a share of the start's trace, is the last; 1e-6 for the
            last half per cent.
        generator: source of the start's rotation, on the CPU; without it there is none. Local
            optima differ by a few per cent.

    Raises:
        InputError: an argument out of range, of another shape, not float64, or theta or start not
            finite.
    """
    if start is not None:
        start = start.to(theta.device)
    _require(posterior, theta, b, start)
    box = _box(theta, bounds)
    here, at, box = _on_cpu(posterior, theta, box)
    Z = _suggested(here, at, b, box, start, steps=steps, close=close, generator=generator)
    return Z.to(theta.device)


def _on_cpu(
    posterior: GradientPosterior, theta: Tensor, box: Tensor
) -> tuple[GradientPosterior, Tensor, Tensor]:
    """The same where the search runs."""
    if theta.device.type != "cpu":
        # a copy of the kernel, which would cost a run on the CPU for nothing
        posterior = posterior.to("cpu")
    return posterior, theta.cpu(), box.cpu()


def _suggested(
    posterior: GradientPosterior,
    theta: Tensor,
    b: int,
    box: Tensor,
    start: Tensor | None = None,
    *,
    steps: int,
    close: float = _CLOSE,
    generator: torch.Generator | None,
) -> Tensor:
    trace = GradientTrace(posterior, theta)
    turned = starting_design(trace, b, generator)
    Z = _reflect(turned, box)
    if start is not None:
        Z = min(Z, _reflect(start.cpu(), box), key=lambda design: float(trace.value(design)))
    elif _is_closed_form(posterior, b, len(theta)) and torch.equal(Z, turned):
        return turned
    return _improve(trace, Z, box, steps, close)


@checked
def fewest_gradient_points(
    posterior: GradientPosterior,
    theta: Tensor,
    tolerance: Positive,
    most: Count | None = None,
    *,
    bounds: Tensor | None = None,
    steps: Count = _STEPS,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The fewest points that bring the trace down to `tolerance`, `b x d` (DP-GIBO, arXiv
    2502.06044, Algorithm 2).

    The least trace falls with b, so b is found by doubling and halving. It depends on points alone
    and leaks nothing. If the history already suffices, none (`0 x d`); if `most` points do not,
    `most` of them.

    Args:
        posterior, theta: as in `suggest_gradient_points`.
        tolerance: the trace to reach, above 0, in units of y^2 / x^2.
        most: at most so many; d + 1 by default, more are never needed without noise.

    Keyword args:
        bounds, steps, generator: as in `suggest_gradient_points`.

    Raises:
        InputError: as in `suggest_gradient_points`.
    """
    _require(posterior, theta, 1, None)
    box = _box(theta, bounds)
    if most is None:
        most = len(theta) + 1
    here, at, box = _on_cpu(posterior, theta, box)
    trace = GradientTrace(here, at)
    if float(trace.prior) <= tolerance:
        return theta.new_empty(0, len(theta))

    def attempt(b: int) -> tuple[Tensor, bool]:
        Z = _suggested(here, at, b, box, steps=steps, generator=generator)
        return Z, float(trace.value(Z)) <= tolerance

    short = 0
    b = 1
    best, reached = attempt(b)
    while not reached and b < most:
        short = b
        b = min(2 * b, most)
        best, reached = attempt(b)
    while reached and b - short > 1:
        middle = (short + b) // 2
        Z, enough = attempt(middle)
        if enough:
            b = middle
            best = Z
        else:
            short = middle
    return best.to(theta.device)


class GradientTrace:
    """alpha(Z), the trace of the gradient's posterior covariance after observing a design Z, and
    its derivative, without autograd.

    With history X (N points), factor L, A = L^-1 (dk(theta, X)/dtheta)^T and V = L^-1 k(X, Z):
        S = k(Z, Z) + D - V^T V,   R = (dk(theta, Z)/dtheta)^T - V^T A,   P = S^-1 R,
        alpha(Z) = alpha(nothing) - sum(P * R),
        d alpha = <2 L^-T (A - V P) P^T, dk(X, Z)> + <P P^T, d(k(Z, Z) + D)>
                  - 2 <P, d(dk(theta, Z)/dtheta)^T>
    (DP-GIBO, arXiv 2502.06044, Algorithm 1's alpha). Cost: N^2 (b + d) + 8 N b d + 2 N b^2 + b^3/3
    flops; bytes: 8 N^2 of L (1.3 MB at N = 400, stays in cache) and a few N x b temporaries, so
    arithmetic bounds it.

    Args:
        posterior: kernel, noise and history.
        theta: `d`, or `batch_shape x d`.

    Attributes:
        covariance: of the gradient, as the history leaves it, `batch_shape x d x d`.
        prior: its trace, alpha of an empty design, `batch_shape`.
    """

    def __init__(self, posterior: GradientPosterior, theta: Tensor) -> None:
        self.posterior = posterior
        self.theta = theta
        self.X = posterior.points(theta).contiguous()
        self.L = posterior.factor(theta).contiguous()
        self.A = posterior.whitened_cross(theta)
        before = posterior.derivatives.prior(theta)
        self.covariance = before - self.A.mT @ self.A
        self.prior = before.diagonal(dim1=-2, dim2=-1).sum(-1) - self.A.square().sum((-2, -1))

    def value(self, Z: Tensor) -> Tensor:
        """alpha(Z) for Z `... x b x d`. Raises UsageError where Z needs more noise or jitter."""
        alpha, info, *_ = self._parts(Z)
        require_positive_definite(info)
        return alpha

    def value_and_gradient(self, Z: Tensor) -> tuple[Tensor, Tensor]:
        """alpha(Z) and d alpha / dZ for Z `... x b x d`. Raises UsageError where Z needs more noise
        or jitter.
        """
        alpha, info, V, P, pull_values, pull_gradient = self._parts(Z)
        require_positive_definite(info)
        Q = P @ P.mT
        C = torch.linalg.solve_triangular(self.L.mT, (self.A - V @ P) @ P.mT, upper=True)
        # D moves with k(z, z)
        Q.diagonal(dim1=-2, dim2=-1).mul_(1.0 + self.posterior.jitter)
        return alpha, 2.0 * (pull_values(torch.cat([C, Q], dim=-2)) - pull_gradient(P.mT))

    def _parts(self, Z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Pull, Pull]:
        kernel = self.posterior.derivatives
        N = self.X.shape[-2]
        # k(X, Z) and k(Z, Z) in one go: k is symmetric, so moving both points of the second does
        # twice what the pull says
        rows = torch.cat([self.X.expand(*Z.shape[:-2], -1, -1), Z], dim=-2)
        K, pull_values = kernel.values(rows, Z)
        G, pull_gradient = kernel.gradients(self.theta, Z)
        V = torch.linalg.solve_triangular(self.L, K[..., :N, :], upper=False)
        R = G.mT - V.mT @ self.A
        factor, info = torch.linalg.cholesky_ex(self.posterior.noisy(Z, K[..., N:, :]) - V.mT @ V)
        P = torch.cholesky_solve(R, factor)
        return self.prior - (P * R).sum((-2, -1)), info, V, P, pull_values, pull_gradient


def starting_design(trace: GradientTrace, b: int, generator: torch.Generator | None) -> Tensor:
    """The closed form for b points, turned at random (by a generator) and stretched along what the
    history leaves unknown.

    A direction that is known well needs less room: the eigenvectors of the whitened covariance are
    shortened by a power of their eigenvalues. The radius is the closed form's; for a kernel without
    one, the best of a grid.
    """
    theta = trace.theta
    posterior = trace.posterior
    d = len(trace.theta)
    unit = designs.directions(b, d)
    if generator is not None:
        unit = unit @ designs.rotation(d, generator)
    lengths = lengths_at(posterior.derivatives, theta)
    if len(posterior):
        eigenvalues, vectors = torch.linalg.eigh(lengths.unsqueeze(-1) * trace.covariance * lengths)
        shares = (eigenvalues / eigenvalues[-1].clamp_min(1e-300)).clamp(_LEAST_SHARE, 1.0)
        unit = unit @ (shares.pow(_STRETCH).unsqueeze(-1) * vectors.mT)
    radial = radial_part(posterior.derivatives)
    if radial is not None:
        radius = designs.radius(
            radial[0], b, d, float(posterior.noise / radial[1]) + posterior.jitter
        )
    else:
        radii = torch.logspace(-3.0, 0.0, 25, dtype=unit.dtype, device="cpu")
        radius = float(radii[trace.value(theta + radii[:, None, None] * (unit * lengths)).argmin()])
    return theta + radius * unit * lengths


def _is_closed_form(posterior: GradientPosterior, b: int, d: int) -> bool:
    """Whether the starting design of b points in d dimensions leaves the least trace there is."""
    radial = radial_part(posterior.derivatives) is not None
    return radial and len(posterior) == 0 and b in (d + 1, 2 * d)


def lengths_at(kernel: KernelDerivatives, theta: Tensor) -> Tensor:
    """The scale on which the kernel changes in each coordinate, `d`: its length-scales, or
    sqrt(variance / gradient's variance).
    """
    radial = radial_part(kernel)
    if radial is not None:
        return radial[0].lengthscale.flatten().expand(len(theta))
    slopes = kernel.prior(theta).diagonal()
    return (kernel.variances(theta.unsqueeze(0)) / slopes.clamp_min(1e-12 * slopes.max())).sqrt()


def _improve(trace: GradientTrace, Z: Tensor, box: Tensor, steps: int, close: float) -> Tensor:
    """SciPy's L-BFGS-B from Z within the box, `b x d`."""
    theta = trace.theta
    lengths = lengths_at(trace.posterior.derivatives, theta)

    def flat(part: Tensor) -> np.ndarray:
        return ((part - theta) / lengths).expand_as(Z).flatten().numpy()

    # the search's many small operations cost a tenth less without autograd's records
    with torch.inference_mode():
        # makes `close` relative; where all is known, rounding may leave 0 or less
        unit = trace.value(Z).abs().clamp_min(1e-300)
        per_unit = lengths / unit

        def place(u: np.ndarray) -> Tensor:
            return torch.addcmul(theta, torch.from_numpy(u).view_as(Z), lengths)

        def objective(u: np.ndarray) -> tuple[float, np.ndarray]:
            alpha, slope = trace.value_and_gradient(place(u))
            return float(alpha / unit), (slope * per_unit).flatten().numpy()

        found = scipy.optimize.minimize(
            objective,
            flat(Z),
            jac=True,
            method="L-BFGS-B",
            bounds=scipy.optimize.Bounds(flat(box[0]), flat(box[1])),
            options={"maxiter": steps, "ftol": close, "gtol": 0.0},
        )
    return place(found.x).clamp(box[0], box[1])


def _reflect(Z: Tensor, box: Tensor) -> Tensor:
    """Z mirrored at the ends it crosses: clamping would lay points upon each other in a corner."""
    Z = torch.where(box[0] > Z, 2.0 * box[0] - Z, torch.where(box[1] < Z, 2.0 * box[1] - Z, Z))
    return Z.clamp(box[0], box[1])


def _require(posterior: GradientPosterior, theta: Tensor, b: int, start: Tensor | None) -> None:
    require_constant("theta", theta)
    d = len(theta) if theta.dim() == 1 else 0
    if d == 0 or require_finite("theta", theta).shape != posterior.points(theta).shape[1:]:
        allowed = "of shape d, the observed points' dimension, 1 or more"
        raise InputError("theta", tuple(theta.shape), allowed)
    if start is not None:
        require_constant("start", start)
        if require_finite("start", start).shape != (b, d):
            raise InputError("start", tuple(start.shape), f"of shape ({b}, {d})")


def _box(theta: Tensor, bounds: Tensor | None) -> Tensor:
    """The bounds, where theta lies; without any, infinite ones. Raises InputError for bounds that
    theta is not between.
    """
    if bounds is None:
        return torch.full_like(theta, math.inf) * theta.new_tensor([[-1.0], [1.0]])
    require_constant("bounds", bounds)
    box = require_float64("bounds", bounds).to(theta.device)
    d = len(theta)
    if box.shape != (2, d) or not bool(((box[0] <= theta) & (theta <= box[1])).all()):
        allowed = f"of shape (2, {d}), lower ends first, with theta between them"
        raise InputError("bounds", tuple(box.shape), allowed)
    return box
