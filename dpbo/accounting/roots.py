"""Where a curve passes a bound, on the safe side of it."""

import math
from collections.abc import Callable

import scipy


def least_scale(
    fits: Callable[[float], bool],
    *,
    precision: float = 0.0,
    least: float = 0.0,
    most: float = math.inf,
) -> float:
    """The least number above 0 that fits, where every larger one does too; rounded up by the share
    `precision` at most.

    Infinite if none up to `most` fits, 0 if all down to about `least` do. Precision 0 searches down
    to neighbouring floats.
    """
    high = 1.0
    while not fits(high):
        high *= 2.0
        if high > most:
            return math.inf
    low = high / 2.0
    while fits(low):
        high = low
        low /= 2.0
        if low < least:
            return 0.0
    while high / low > 1.0 + precision:
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        if fits(middle):
            high = middle
        else:
            low = middle
    return high


def rising_root(rising: Callable[[float], float]) -> float:
    """The x > 0 at which a rising function is 0, to nearly all digits of x, however small or large
    it is.
    """
    ceiling = 1.0
    while rising(ceiling) < 0.0:
        ceiling *= 2.0
    floor = ceiling
    while rising(floor) > 0.0:
        # a bracket of a factor of 2 ends the search soon
        ceiling = floor
        floor /= 2.0
    return float(scipy.optimize.brentq(rising, floor, ceiling, xtol=1e-300, rtol=1e-14))


def moved_until(value: float, holds: Callable[[float], bool], *, up: bool) -> float:
    """The value, moved away from 0 (`up`) or towards it until it holds: a root that floats found
    may be a few digits off.

    Steps double, from the last digit up to a factor of 2.
    """
    factor = 1.0 + 1e-15
    while not holds(value):
        value = value * factor if up else value / factor
        factor = min(2.0 * factor - 1.0, 2.0)
    return value
