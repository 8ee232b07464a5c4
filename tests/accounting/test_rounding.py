"""Exact numbers as floats: not below, and by no more than one step above."""

import math
from fractions import Fraction

import pytest

from dpbo.accounting.rounding import root_up, rounded_up


@pytest.mark.attack("A15")
def test_a_float_is_the_least_that_is_not_below():
    for exact in (Fraction(n, d) for n in range(1, 40) for d in (3, 7, 10**9, 2**60)):
        found = rounded_up(exact)
        assert Fraction(math.nextafter(found, 0.0)) < exact <= Fraction(found)


@pytest.mark.attack("A15")
def test_a_root_is_not_below_and_hardly_above():
    for square in (Fraction(n, d) for n in range(1, 40) for d in (1, 7, 10**9, 7 * 2**899, 10**300, 10**330, 10**600)):
        found = root_up(square)
        assert Fraction(math.nextafter(math.nextafter(found, 0.0), 0.0)) ** 2 < square <= Fraction(found) ** 2


def test_a_root_of_what_no_float_squares_to_is_found_soon():
    assert root_up(Fraction(1, 10**400)) == pytest.approx(1e-200, rel=1e-15)
    assert root_up(Fraction(1, 10**800)) == 5e-324
    assert root_up(Fraction(0)) == 0.0
