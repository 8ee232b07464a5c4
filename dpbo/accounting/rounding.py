"""Exact numbers as floats on the safe side."""

from __future__ import annotations

import math
from fractions import Fraction


def rounded_up(exact: Fraction) -> float:
    """The least float that is not below."""
    value = float(exact)
    return value if Fraction(value) >= exact else math.nextafter(value, math.inf)


def root_up(square: Fraction) -> float:
    """The square root, as a float that is not below it."""
    root = math.sqrt(square)
    while Fraction(root) ** 2 < square:
        root = math.nextafter(root, math.inf)
    return root
