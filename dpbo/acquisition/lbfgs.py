"""L-BFGS within a box, compact: a step costs one value and gradient and some 20 passes over x.

At an end of the box whose descent points outward, a coordinate is held; the rest moves along the two-loop direction (Nocedal & Wright,
Algorithm 7.4), is projected, and shortened until it decreases enough (Armijo). A step that shows no positive curvature teaches nothing
and is left out of the memory. Written here because the search, with values in half a millisecond, would spend a fifth of its time in
a general optimiser.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

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
