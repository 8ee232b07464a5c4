"""Exact numbers as floats on the safe side."""

from __future__ import annotations

import math
from fractions import Fraction

_SMALL = Fraction(1, 2**900)


def rounded_up(exact: Fraction) -> float:
    """The least float that is not below."""
    value = float(exact)
    return value if Fraction(value) >= exact else math.nextafter(value, math.inf)


def root_up(square: Fraction) -> float:
    """The square root, as a float that is not below it."""
    root = math.sqrt(square) if square > _SMALL else math.ldexp(math.sqrt(square * 2**1200), -600)  # floats have no such square
    while Fraction(root) ** 2 < square:
        root = math.nextafter(root, math.inf)
    return root
