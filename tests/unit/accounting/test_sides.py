"""A loss with finitely many values: its profile, trade-off and crossings by their definitions, and
the hull from points to a pair.
"""

import math
from fractions import Fraction

import numpy as np
import pytest

from dpbo.accounting.selection_bounds import Profile, RunProfiles
from tests.attacks.marks import attack
from tests.unit.accounting.enumerated import profile_of_laws

P = np.array([0.5, 0.2, 0.2, 0.1])
Q = np.array([0.1, 0.3, 0.6, 0.0])
SIDE = profile_of_laws(P, Q)


@attack("A15")
def test_where_a_share_of_the_profile_meets_a_line():
    for a, b in ((1.0, 1.0), (0.2, 3.0), (5.0, 0.1), (1.0, 0.001)):
        t = SIDE.crossing(a, b)
        assert a * float(SIDE.delta(np.array([math.log1p(t)]))[0]) == pytest.approx(
            b * t, rel=1e-11
        )
    bounded = RunProfiles.response(1.0).forward
    assert bounded.crossing(1.0, 0.0) == pytest.approx(math.e - 1)
    assert SIDE.crossing(1.0, 0.0) == math.inf
    assert SIDE.crossing(0.0, 1.0) == 0.0
    # its profile is 1 - x / 2, from 1 at x = 0 on
    one_sided = profile_of_laws(np.array([1.0, 0.0]), np.array([0.5, 0.5]))
    assert one_sided.crossing(1.0, 1.0) == pytest.approx(1 / 3)
    far = 1.0 * 0.1 / 1e-6
    assert SIDE.crossing(1.0, 1e-6) == pytest.approx(far, rel=1e-3)
    assert Fraction(SIDE.crossing(1.0, 1e-6)) >= Fraction(SIDE.infinite) / Fraction(1e-6)


@attack("A15")
def test_a_bound_that_rises_or_falls_below_what_any_curve_has_is_mended():
    """No curve rises, none is above 1 or below 1 - e^epsilon: where bounds say so, the others
    count.
    """
    grid = np.array([-1.0, 0.0, 1.0, 2.0, 3.0])
    side = Profile.connected(grid, np.array([0.1, 1.7, 0.3, 0.4, 0.2]))
    assert side.delta(np.array([-1.0]))[0] == pytest.approx(1 - math.exp(-1))
    assert (np.diff(side.delta(grid)) <= 1e-15).all()
    assert side.delta(np.array([2.0]))[0] <= 0.3
    assert side.infinite == pytest.approx(0.2)
