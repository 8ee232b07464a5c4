"""From events to dominating pairs: what is merged, which direction counts, and the pair of a
selection.
"""

import itertools
import math

import numpy as np
import pytest

from dpbo.accounting import compose, gdp, pld, selection_pairs
from dpbo.accounting.selection_bounds import winner_profile
from dpbo.accounting.selection_pairs import (
    ProfilePair,
    pairs_of,
    run_profiles,
    selection_epsilon,
    selection_profile,
)
from dpbo.events import (
    GaussianEvent,
    L2LaplaceEvent,
    LaplaceEvent,
    PermuteAndFlipEvent,
    PoissonGaussianEvent,
    SelectionEvent,
)
from dpbo.run_counts import FixedRuns, PoissonRuns, TruncatedNegativeBinomial
from tests.attacks.marks import attack
from tests.unit.accounting.enumerated import profiles_of_laws

GEOMETRIC = TruncatedNegativeBinomial.of_mean(10.0)


def chosen(*run):
    return SelectionEvent(base=run, run_count=GEOMETRIC)


def sampled(sigma, slots, rate):
    return PoissonGaussianEvent(sigma, slots, rate=rate, relation="add-or-remove-one")


def base(*run):
    """One run's profiles, which it must have."""
    found = run_profiles(run)
    assert found is not None
    return found


@attack("A15")
def test_each_direction_of_a_selection_among_sampled_runs_is_a_pair_of_its_own():
    """With its slots; where the runs have one direction, so has the selection."""
    for run, directions in (
        (sampled(1.1, 30, 0.05), (False, True)),
        (GaussianEvent(4.0), (False, False)),
    ):
        event = chosen(run)
        for reverse, direction in zip((False, True), directions, strict=True):
            assert pairs_of((event.repeated(3),), False, reverse) == {
                ProfilePair(event, direction): 3
            }
    event = chosen(sampled(1.1, 30, 0.05))
    epsilons = np.linspace(1.0, 3.0, 8)
    forward = base(*event.run())
    profiles = [
        winner_profile(event.run_count, side, epsilons) for side in (forward, forward.swapped())
    ]
    assert not np.allclose(profiles[0], profiles[1], rtol=0.1)
    for reverse, own in zip((False, True), profiles, strict=True):
        side = selection_profile(event, reverse)
        assert side is not None
        assert np.allclose(side.delta(epsilons), own, rtol=0.01)


@attack("A15")
def test_both_directions_of_a_run_count_whichever_is_worse(monkeypatch):
    """For two laws that differ by direction, and for the same exchanged: the bound is the same, and
    that of the worse one.
    """
    event = SelectionEvent(base=(GaussianEvent(1.0),), run_count=FixedRuns(2))
    epsilons = np.linspace(0.0, 2.0, 9)
    lopsided = profiles_of_laws(np.array([0.6, 0.4]), np.array([0.9, 0.1]))
    directions = lopsided, lopsided.swapped()
    both = [winner_profile(event.run_count, side, epsilons) for side in directions]
    assert not np.allclose(both[0], both[1])
    for side in directions:
        monkeypatch.setattr(selection_pairs, "run_profiles", lambda _, side=side: side)
        epsilon = selection_epsilon(event, 0.05)
        tried = [
            winner_profile(event.run_count, turned, np.array([epsilon, epsilon * (1 - 1e-4)]))
            for turned in directions
        ]
        assert max(now for now, _ in tried) <= 0.05 < max(before for _, before in tried)


@attack("A15")
def test_the_profile_of_one_run_is_that_of_its_composition():
    """From above, and hardly: where a fine composition has a delta, so has the profile read from
    it; and it ends with nothing left.
    """
    for run in (
        (GaussianEvent(1.5),),
        (LaplaceEvent(2.0, 9), LaplaceEvent(3.0, 9)),
        (sampled(0.9, 9, 0.2), LaplaceEvent(4.0)),
    ):
        found = base(*run)
        for reverse, side in ((False, found.forward), (True, found.reverse)):
            pairs = pairs_of(run, False, reverse)
            assert pairs is not None
            for delta in (0.05, 1e-4):
                epsilon = pld.epsilon(pairs, delta, inflation=1e-5)
                assert delta * (1 - 2e-3) <= side.delta(np.array([epsilon]))[0] <= delta * 1.02, run
            assert side.infinite <= 2e-17
            assert side.masses.sum() + side.infinite == pytest.approx(1.0, abs=1e-9)
        if len(run) == 1:
            own = found.forward.losses[found.forward.losses >= 0][:-1]
            assert found.forward.delta(own) == pytest.approx(
                gdp.curve(1 / 1.5, own), rel=1e-9, abs=1e-17
            )


@attack("A15")
def test_an_epsilon_of_a_selection_is_the_least_at_its_delta():
    for noise, delta in itertools.product([20.0, 2.0, 0.3], [0.3, 1e-5]):
        event = SelectionEvent(base=(GaussianEvent(noise),), run_count=FixedRuns(2))
        epsilon = selection_epsilon(event, delta)
        at, below = winner_profile(
            event.run_count, base(*event.run()), epsilon * np.array([1.0, 1 - 3e-6])
        )
        assert at <= delta, (noise, delta)
        assert epsilon == 0 or below > delta, (noise, delta)


KINDS = (LaplaceEvent, L2LaplaceEvent, PermuteAndFlipEvent, GaussianEvent)
LITTLE = [
    (LaplaceEvent, 1 / 20, PoissonRuns(10.0), 2, 1e-6),
    (L2LaplaceEvent, 1 / 8, PoissonRuns(10.0), 2, 1e-30),
    (GaussianEvent, 1e20, PoissonRuns(10.0), 1, 1e-6),
    *((kind, 1 / 700, PoissonRuns(10.0), 2, 1e-6) for kind in KINDS),
    *((kind, 1e-50, FixedRuns(3), 1, 1e-6) for kind in KINDS),
]
LEAST = [
    (LaplaceEvent, 1 / 40, PoissonRuns(10.0), 2, 1e-6),
    (L2LaplaceEvent, 1 / 40, PoissonRuns(10.0), 1, 1e-6),
    (L2LaplaceEvent, 1 / 20, PoissonRuns(10.0), 2, 1e-30),
    (PermuteAndFlipEvent, 1 / 25, FixedRuns(3), 2, 1e-6),
]


@pytest.mark.parametrize(
    "cases", [LITTLE, pytest.param(LEAST, marks=pytest.mark.deep)], ids=["quick", "slow"]
)
@attack("A15")
def test_selections_among_runs_of_any_noise_are_bounded(cases):
    """No exception, no NaN, and no bound below what one run's typical loss says, where floats lose
    it or cannot hold it.
    """
    for kind, scale, law, count, delta in cases:
        bound = compose(
            [SelectionEvent(base=(kind(scale),), run_count=law, count=count)], delta=delta
        )
        assert not math.isnan(bound.epsilon), (kind, scale)
        assert bound.pld >= (0.0 if scale > 1 else 0.9 / scale - 3.0), (kind, scale)


def test_a_run_without_a_profile_has_no_pair():
    event = chosen(LaplaceEvent(1e-4))
    assert selection_profile(event, False) is None
    assert pairs_of((event,), False, False) is None
    with pytest.raises(ValueError, match="without a profile"):
        _ = ProfilePair(event, False).profile


def test_selections_compose_with_everything_else():
    event = SelectionEvent(
        base=(GaussianEvent(8.0), GaussianEvent(6.0, 3)), run_count=PoissonRuns(5.0)
    )
    plain = GaussianEvent(4.0)
    alone, other, both = (
        compose(events, delta=1e-6) for events in ([event], [plain], [event, plain])
    )
    assert other.epsilon < both.pld < alone.pld + other.epsilon
    assert alone.mu is None
    assert alone.gdp == math.inf
    assert alone.pld < compose([event.repeated(2)], delta=1e-6).pld < 2 * alone.pld
    (found,) = winner_profile(event.run_count, base(*event.run()), np.array([alone.pld]))
    assert found == pytest.approx(1e-6, rel=1e-4)
