"""A15: no negative epsilon, no spend swallowed, no more noise for a larger epsilon, and no search
that returns more than it was asked for.

Found in public accountants: negative epsilons, 0 from tiny orders, a calibrated sigma whose epsilon
exceeds the target, a spend below a float's last bit that left the total as it was.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from dpbo.accounting import compose
from dpbo.events import ExponentialEvent, GaussianEvent, LaplaceEvent, PermuteAndFlipEvent
from tests.attacks.marks import attack

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
