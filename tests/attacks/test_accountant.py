"""A15: no negative epsilon, no spend swallowed, no more noise for a larger epsilon, and no search
that returns more than it was asked for.

Found in public accountants: negative epsilons, 0 from tiny orders, a calibrated sigma whose epsilon
exceeds the target, a spend below a float's last bit that left the total as it was.
"""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbo import Budget
from dpbo.accounting import GDPFilter, PureFilter, RDPFilter, ZCDPFilter, calibrate, compose
from dpbo.errors import BudgetExceeded
from dpbo.events import ExponentialEvent, GaussianEvent, LaplaceEvent, PermuteAndFlipEvent
from dpbo.mechanisms import LaplaceMechanism
from dpbo.queries import ClippedSum
from tests.attacks.marks import attack
from tests.attacks.setups import first_column, owner
from tests.attacks.test_replays import POINTS

pytestmark = attack("A15")
KINDS = [GaussianEvent, LaplaceEvent, ExponentialEvent, PermuteAndFlipEvent]
SIZES = st.floats(0.3, 200.0)
DELTAS = st.sampled_from([1e-3, 1e-6, 1e-12])
# Each is an upper bound, rounded up on its own grid: of two nearly equal ones either may print the
# lesser.
GRID = 1 - 1e-3
QUICK = settings(deadline=None, max_examples=25)


@settings(QUICK, max_examples=12)
@given(st.sampled_from(KINDS), SIZES, st.integers(1, 300), DELTAS)
def test_epsilon_is_never_negative_and_grows_with_every_spend(kind, multiplier, slots, delta):
    one = kind(multiplier, slots)
    more = kind(multiplier, slots + 1)
    noisier = kind(1.1 * multiplier, slots)

    def stated(*events, delta=delta):
        return compose(events, delta=delta, refine=True).epsilon

    epsilon = stated(one)
    assert epsilon >= 0.0
    assert stated(more) >= epsilon * GRID
    assert stated(noisier) <= epsilon / GRID
    assert stated(one, delta=delta / 10) >= epsilon * GRID
    assert stated(one, LaplaceEvent(1e6)) >= epsilon * GRID


@QUICK
@given(
    st.floats(0.5, 10.0),
    DELTAS,
    st.integers(1, 200),
    st.sampled_from([GDPFilter(), ZCDPFilter(), RDPFilter(64.0)]),
)
def test_calibrated_noise_spends_no_more_than_it_was_given(epsilon, delta, releases, accounting):
    multiplier = calibrate(Budget(epsilon, delta), releases=releases, accounting=accounting)
    assert compose([GaussianEvent(multiplier, releases)], delta=delta).epsilon <= epsilon * (
        1 + 1e-12
    )


def test_a_spend_below_the_last_bit_of_the_total_is_counted():
    """A release of 2^-20 beside one of almost all: the total grows by no less, and the next one,
    which does not fit, is refused.
    """
    curator = owner(POINTS, budget=Budget(1.0, 0.0), accounting=PureFilter())
    query = ClippedSum(first_column, score_range=(0.0, 1.0))
    curator.release(query, LaplaceMechanism.of(1.0 - 1.5 * 2.0**-20))
    (before,) = curator.ledger.verify().total.parts
    small = LaplaceMechanism(2.0**20)
    curator.release(query, small)
    (after,) = curator.ledger.verify().total.parts
    assert after - before >= Fraction(1, 2**20)
    with pytest.raises(BudgetExceeded):
        curator.release(query, small)
    assert curator.ledger.verify().total.parts == (after,)
