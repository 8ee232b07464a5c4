"""Choosing the points to evaluate next around theta, in milliseconds.

With no history a closed-form design is returned as it is. Otherwise the start (see starting.py) is improved by L-BFGS on the analytic
gradient, in whitened coordinates; nothing passes through autograd. Two instances: `choose_points` for a given number of points,
`adaptive_points` for a given trace (DP-GIBO's Algorithm 2).

A step costs one value and gradient (see trace.py, 15 MFLOP at N = 400, b = 34, d = 33) and moves about 1.5 MB, all of it in cache.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpbo.acquisition import designs
from dpbo.errors import InputError
from dpbo.models.builders import require_constant
from dpbo.models.gradient_posterior import GradientPosterior, cholesky
from dpbo.models.kernels import Derivatives, Pull, Radial, Scaled, require_finite, require_float64
from dpbo.privacy import require_count, require_positive
from dpbo.validation import checked

# ========== MERGED The trace of the gradient's posterior covariance after observing a design Z, and its derivative by Z, without autograd.
#
# With history X (N points), factor L, A = L^-1 (dk(theta, X)/dtheta)^T and V = L^-1 k(X, Z):
#     S = k(Z, Z) + D - V^T V,   R = (dk(theta, Z)/dtheta)^T - V^T A,   P = S^-1 R,   alpha(Z) = alpha(nothing) - sum(P * R),
#     d alpha = <2 L^-T (A - V P) P^T, dk(X, Z)> + <P P^T, d(k(Z, Z) + D)> - 2 <P, d(dk(theta, Z)/dtheta)^T>
# (DP-GIBO, arXiv 2502.06044, Algorithm 1's alpha). Cost: N^2 (b + d) + 8 N b d + 2 N b^2 + b^3/3 flops, 15 MFLOP at N = 400,
# b = 34, d = 33; bytes: 8 N^2 of L (1.3 MB, stays in cache) and a few N x b temporaries, so arithmetic bounds it.
#


class GradientTrace:
    """alpha(Z) at one theta (`d`, or `batch_shape x d`) for a fixed history.

    Attributes:
        prior: alpha of an empty design, the trace that the history leaves, `batch_shape`.
    """

    def __init__(self, posterior: GradientPosterior, theta: Tensor) -> None:
        self.posterior, self.theta = posterior, theta
        self.X, self.L = posterior.points(theta).contiguous(), posterior.factor(theta).contiguous()
        self.A = posterior.whitened_cross(theta)
        before = posterior.derivatives.prior(theta).diagonal(dim1=-2, dim2=-1).sum(-1)
        self.prior = before - self.A.square().sum((-2, -1))

    def value(self, Z: Tensor) -> Tensor:
        """alpha(Z) for Z `... x b x d`."""
        return self._parts(Z)[0]

    def value_and_gradient(self, Z: Tensor) -> tuple[Tensor, Tensor]:
        """alpha(Z) and d alpha / dZ for Z `... x b x d`."""
        alpha, V, P, pull_values, pull_gradient = self._parts(Z)
        Q = P @ P.mT
        C = torch.linalg.solve_triangular(self.L.mT, (self.A - V @ P) @ P.mT, upper=True)
        Q.diagonal(dim1=-2, dim2=-1).mul_(1.0 + self.posterior.jitter)  # D moves with k(z, z)
        return alpha, 2.0 * (pull_values(torch.cat([C, Q], dim=-2)) - pull_gradient(P.mT))

    def _parts(self, Z: Tensor) -> tuple[Tensor, Tensor, Tensor, Pull, Pull]:
        kernel, N = self.posterior.derivatives, self.X.shape[-2]
        # k(X, Z) and k(Z, Z) in one go: k is symmetric, so moving both points of the second does twice what the pull says
        rows = torch.cat([self.X.expand(*Z.shape[:-2], -1, -1), Z], dim=-2)
        K, pull_values = kernel.values(rows, Z)
        G, pull_gradient = kernel.gradients(self.theta, Z)
        V = torch.linalg.solve_triangular(self.L, K[..., :N, :], upper=False)
        R = G.mT - V.mT @ self.A
        P = torch.cholesky_solve(R, cholesky(self.posterior.noisy(Z, K[..., N:, :]) - V.mT @ V))
        return self.prior - (P * R).sum((-2, -1)), V, P, pull_values, pull_gradient


# ========== MERGED L-BFGS within a box, compact: a step costs one value and gradient and some 20 passes over x.
#
# At an end of the box whose descent points outward, a coordinate is held; the rest moves along the two-loop direction (Nocedal & Wright,
# Algorithm 7.4), is projected, and shortened until it decreases enough (Armijo). A step that shows no positive curvature teaches nothing
# and is left out of the memory. Written here because the search, with values in half a millisecond, would spend a fifth of its time in
# a general optimiser.
#

Vector = NDArray[np.float64]
Objective = Callable[[Vector], tuple[float, Vector]]

_MEMORY = 8
_DECREASE = 1e-4  # share of the promised decrease that is demanded
_FIRST = 0.1  # length of the first step, relative to x


def minimise(objective: Objective, x: Vector, lower: Vector, upper: Vector, *, steps: int, close: float) -> Vector:
    """A local minimiser in [lower, upper] from x, after at most `steps` steps, or when one gains less than `close`."""
    value, slope = objective(x)
    pairs: deque[tuple[Vector, Vector, float]] = deque(maxlen=_MEMORY)
    for _ in range(steps):
        free = ~(((x <= lower) & (slope > 0.0)) | ((x >= upper) & (slope < 0.0)))
        way = -_two_loops(slope * free, pairs) * free
        if not pairs:
            way *= _FIRST * max(float(np.linalg.norm(x)), 1e-3) / max(float(np.linalg.norm(way)), 1e-300)
        reached = _search(objective, x, value, slope, way, lower, upper)
        if reached is None:
            return x
        x_new, value_new, slope_new = reached
        _remember(pairs, x_new - x, slope_new - slope)
        gain, x, value, slope = value - value_new, x_new, value_new, slope_new
        if gain < close:
            break
    return x


def _two_loops(slope: Vector, pairs: deque[tuple[Vector, Vector, float]]) -> Vector:
    """The inverse Hessian that the pairs (s, y, 1/(s.y)) imply, times the slope."""
    way, shares = slope.copy(), []
    for s, y, rho in reversed(pairs):
        shares.append(rho * float(s @ way))
        way -= shares[-1] * y
    if pairs:
        _, y, rho = pairs[-1]
        way /= rho * float(y @ y)
    for (s, y, rho), share in zip(pairs, reversed(shares), strict=True):
        way += (share - rho * float(y @ way)) * s
    return way


def _search(
    objective: Objective, x: Vector, value: float, slope: Vector, way: Vector, lower: Vector, upper: Vector
) -> tuple[Vector, float, Vector] | None:
    """The first of ever shorter steps that decreases enough, with its value and slope; None if none does."""
    length = 1.0
    for _ in range(20):
        tried = np.clip(x + length * way, lower, upper)
        promised = float(slope @ (tried - x))
        if promised >= 0.0:
            return None
        value_there, slope_there = objective(tried)
        if value_there <= value + _DECREASE * promised:
            return tried, value_there, slope_there
        # the minimum of the parabola through both values, within reason
        length *= min(max(-0.5 * promised / (value_there - value - promised), 0.1), 0.5)
    return None


def _remember(pairs: deque[tuple[Vector, Vector, float]], s: Vector, y: Vector) -> None:
    curvature = float(s @ y)
    if curvature > 1e-10 * float(y @ y):
        pairs.append((s, y, 1.0 / curvature))


# ========== MERGED Where the search for a design begins.
#
# With no history that is the closed form. With one, it is the closed form turned and stretched along the gradient's posterior covariance:
# what is known well needs less room. Kernels without a closed form take the best of a grid of radii.
#

_STRETCH = 0.25  # power of the covariance's eigenvalues; 0, 1/4 and 1/2 were tried, 1/4 needs the fewest steps
_LEAST = 1e-8  # least share of an eigenvalue: points stay apart even where everything is known


def starting_design(trace: GradientTrace, b: int, generator: torch.Generator | None) -> Tensor:
    """The closed form for b points, turned, and stretched along what the history leaves unknown."""
    theta, posterior, d = trace.theta, trace.posterior, len(trace.theta)
    unit = designs.directions(b, d).to(theta.device)
    if generator is not None:
        unit = unit @ designs.rotation(d, generator).to(theta.device)
    lengths = lengths_at(posterior.derivatives, theta)
    if len(posterior):
        unit = unit @ _stretch(lengths.unsqueeze(-1) * posterior.covariance(theta) * lengths)
    return theta + _radius(trace, unit * lengths) * unit * lengths


def is_final(posterior: GradientPosterior, b: int, d: int) -> bool:
    """Whether the closed form needs no improvement."""
    return len(posterior) == 0 and _radial(posterior.derivatives) is not None and b in (d + 1, 2 * d)


def lengths_at(kernel: Derivatives, theta: Tensor) -> Tensor:
    """The scale on which the kernel changes in each coordinate, `d`: its length-scales, or sqrt(variance / gradient's variance)."""
    radial = _radial(kernel)
    if radial is not None:
        return radial[0].lengthscale.flatten().expand(len(theta))
    slopes = kernel.prior(theta).diagonal()
    return (kernel.variances(theta.unsqueeze(0)) / slopes.clamp_min(1e-12 * slopes.max())).sqrt()


def _radial(kernel: Derivatives) -> tuple[Radial, float] | None:
    """The radial kernel and its variance, if it is one."""
    if isinstance(kernel, Scaled) and isinstance(kernel.base, Radial):
        return kernel.base, float(kernel.scale)
    return (kernel, 1.0) if isinstance(kernel, Radial) else None


def _stretch(covariance: Tensor) -> Tensor:
    """The eigenvectors of the whitened covariance as rows, each shortened by a power of its eigenvalue, `d x d`."""
    eigenvalues, vectors = torch.linalg.eigh(covariance)
    shares = (eigenvalues / eigenvalues[-1].clamp_min(1e-300)).clamp(_LEAST, 1.0)
    return shares.pow(_STRETCH).unsqueeze(-1) * vectors.mT


def _radius(trace: GradientTrace, steps: Tensor) -> float:
    """The closed form's radius; for a kernel without one, the best of a grid, tried at once."""
    posterior, (b, d) = trace.posterior, steps.shape
    radial = _radial(posterior.derivatives)
    if radial is not None:
        return designs.radius(radial[0], b, d, posterior.noise / radial[1] + posterior.jitter)
    radii = torch.logspace(-3.0, 0.0, 25, dtype=steps.dtype, device=steps.device)
    return float(radii[trace.value(trace.theta + radii[:, None, None] * steps).argmin()])


_STEPS = 60
_CLOSE = 1e-4  # costs about 0.5 % of the trace and saves up to half of the time against 1e-6


@checked
def choose_points(
    posterior: GradientPosterior,
    theta: Tensor,
    b: int,
    *,
    bounds: Tensor | None = None,
    start: Tensor | None = None,
    steps: int = _STEPS,
    close: float = _CLOSE,
    restarts: int = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """b points that leave the gradient at theta as certain as can be, `b x d`.

    Args:
        posterior: kernel, noise and history, of one run.
        theta: where the gradient is wanted, `d`.
        b: how many points.

    Keyword args:
        bounds: lower and upper ends, `2 x d`; theta lies between them.
        start: a design to improve, `b x d`, e.g. the previous one moved by theta's last step; taken if it beats the stretched design.
        steps: most L-BFGS steps.
        close: a step that gains less, as a share of the start's trace, is the last; 1e-6 for the last half per cent.
        restarts: how many rotations to start from; the best end is returned. Local optima differ by a few per cent.
        generator: source of the rotations, on the CPU; needed for more than one, without it there is none.

    Raises:
        InputError: an argument out of range, of another shape, not float64, or theta or start not finite.
    """
    _require(posterior, theta, b, bounds, start)
    require_count("steps", steps)
    require_positive("close", close)
    if require_count("restarts", restarts) > 1 and generator is None:
        raise InputError("generator", None, "a torch.Generator when restarts > 1", "For example torch.Generator().manual_seed(0).")
    trace, box = GradientTrace(posterior, theta), _box(theta, bounds)
    starts = [starting_design(trace, b, generator) for _ in range(restarts)]
    inside = [_reflect(Z, box) for Z in starts]
    if start is None and is_final(posterior, b, len(theta)) and torch.equal(inside[0], starts[0]):
        return starts[0]
    if start is not None:
        inside[0] = _least(trace, [inside[0], _reflect(start, box)])
    return _least(trace, [_improve(trace, Z, box, steps, close) for Z in inside])


@checked
def adaptive_points(
    posterior: GradientPosterior,
    theta: Tensor,
    tolerance: float,
    most: int | None = None,
    *,
    bounds: Tensor | None = None,
    steps: int = _STEPS,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The fewest points that bring the trace down to `tolerance`, `b x d` (DP-GIBO, arXiv 2502.06044, Algorithm 2).

    The least trace falls with b, so b is found by doubling and halving. It depends on points alone and leaks nothing. If the history
    already suffices, none (`0 x d`); if `most` points do not, `most` of them.

    Args:
        posterior, theta: as in `choose_points`.
        tolerance: the trace aimed at, above 0, in units of y^2 / x^2.
        most: at most so many; d + 1 by default, more are never needed without noise.

    Keyword args:
        bounds, steps, generator: as in `choose_points`.

    Raises:
        InputError: as in `choose_points`.
    """
    _require(posterior, theta, 1, bounds, None)
    goal = require_positive("tolerance", tolerance)
    most = len(theta) + 1 if most is None else require_count("most", most)
    trace = GradientTrace(posterior, theta)
    if float(trace.prior) <= goal:
        return theta.new_empty(0, len(theta))

    def attempt(b: int) -> tuple[Tensor, bool]:
        Z = choose_points(posterior, theta, b, bounds=bounds, steps=steps, generator=generator)
        return Z, float(trace.value(Z)) <= goal

    short, b = 0, 1
    best, reached = attempt(b)
    while not reached and b < most:
        short, b = b, min(2 * b, most)
        best, reached = attempt(b)
    while reached and b - short > 1:
        middle = (short + b) // 2
        Z, enough = attempt(middle)
        short, b, best = (short, middle, Z) if enough else (middle, b, best)
    return best


def _improve(trace: GradientTrace, Z: Tensor, box: Tensor, steps: int, close: float) -> Tensor:
    """L-BFGS from Z within the box, `b x d`."""
    theta, lengths = trace.theta, lengths_at(trace.posterior.derivatives, trace.theta)
    unit = max(abs(float(trace.value(Z))), 1e-300)  # makes `close` relative; where all is known, rounding may leave 0 or less
    per_unit = lengths / unit

    def place(u: Vector) -> Tensor:
        return torch.addcmul(theta, torch.from_numpy(u).to(theta.device).view_as(Z), lengths)

    @torch.inference_mode()  # the search's many small operations cost a tenth less unwatched
    def objective(u: Vector) -> tuple[float, Vector]:
        alpha, slope = trace.value_and_gradient(place(u))
        return float(alpha) / unit, (slope * per_unit).cpu().numpy().ravel()

    lower, upper = ((end - theta) / lengths for end in box)
    u, lower, upper = (part.expand_as(Z).cpu().numpy().ravel() for part in ((Z - theta) / lengths, lower, upper))
    return place(minimise(objective, u, lower, upper, steps=steps, close=close)).clamp(box[0], box[1])


def _least(trace: GradientTrace, candidates: list[Tensor]) -> Tensor:
    return min(candidates, key=lambda Z: float(trace.value(Z)))


def _box(theta: Tensor, bounds: Tensor | None) -> Tensor:
    return theta.new_tensor([[-float("inf")], [float("inf")]]).expand(2, len(theta)) if bounds is None else bounds


def _reflect(Z: Tensor, box: Tensor) -> Tensor:
    """Z mirrored at the ends it crosses: clamping alone would lay points upon each other in a corner."""
    Z = torch.where(box[0] > Z, 2.0 * box[0] - Z, torch.where(box[1] < Z, 2.0 * box[1] - Z, Z))
    return Z.clamp(box[0], box[1])


def _require(posterior: GradientPosterior, theta: Tensor, b: int, bounds: Tensor | None, start: Tensor | None) -> None:
    require_count("b", b)
    for name, value in (("theta", theta), ("bounds", bounds), ("start", start)):
        if value is not None:
            require_constant(name, value)
    if posterior.batch_shape or require_finite("theta", theta).dim() != 1:
        raise InputError("theta", tuple(theta.shape), "of shape d, with the posterior of one run", "Choose for one run after the other.")
    if theta.shape != posterior.points(theta).shape[-1:] or len(theta) == 0:
        raise InputError("theta", tuple(theta.shape), "of the observed points' dimension, 1 or more")
    if start is not None and require_finite("start", start).shape != (b, len(theta)):
        raise InputError("start", tuple(start.shape), f"of shape ({b}, {len(theta)})")
    if bounds is None:
        return
    if require_float64("bounds", bounds).shape != (2, len(theta)) or not bool(((bounds[0] <= theta) & (theta <= bounds[1])).all()):
        raise InputError("bounds", tuple(bounds.shape), f"of shape (2, {len(theta)}), lower ends first, with theta between them")
