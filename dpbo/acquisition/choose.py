"""Choosing the points to evaluate next around theta, in milliseconds.

With no history a closed-form design is returned as it is. Otherwise the start (see starting.py) is improved by L-BFGS on the analytic
gradient, in whitened coordinates; nothing passes through autograd. Two instances: `choose_points` for a given number of points,
`adaptive_points` for a given trace (DP-GIBO's Algorithm 2).

A step costs one value and gradient (see trace.py, 15 MFLOP at N = 400, b = 34, d = 33) and moves about 1.5 MB, all of it in cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpbo.acquisition.lbfgs import Vector, minimise
from dpbo.acquisition.starting import is_final, lengths_at, starting_design
from dpbo.acquisition.trace import GradientTrace
from dpbo.checking import checked
from dpbo.errors import InputError
from dpbo.models.gradient_posterior import GradientPosterior
from dpbo.models.kernel_derivatives import require_finite, require_float64
from dpbo.models.observed import require_constant
from dpbo.privacy import require_count, require_positive

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
