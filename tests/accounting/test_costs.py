"""Costs add up exactly while they are short, and upward from there; the first part that passes its cap is named."""

from fractions import Fraction

from dpbo.accounting.costs import _GRAIN, _LONGEST, Cost


def test_a_long_denominator_is_rounded_up_and_a_short_one_is_not():
    short, long = Fraction(1, 1 << (_LONGEST - 1)), Fraction(1, 1 << _LONGEST)
    assert (Cost.of(short) + Cost.of(0)).parts == (short,)
    assert (Cost.of(long) + Cost.of(1)).parts == (1 + Fraction(1, _GRAIN),)


def test_the_first_part_beyond_is_named_and_one_at_its_cap_is_not():
    assert Cost.of(2, 3, 3).first_beyond(Cost.of(2, 2, 2)) == 1
    assert Cost.of(2, 3).nothing == Cost.of(0, 0)
