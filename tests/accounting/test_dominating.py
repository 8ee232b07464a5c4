"""From events to dominating pairs: what is merged, which direction is told, what a selection's pair says of itself."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from dpbo.accounting import compose, dominating, gdp, pld, selected
from dpbo.accounting.dominating import (
    SelectionPair,
    _both_signs,
    _composed,
    _joined,
    base_of,
    pairs_of,
    selection_delta,
    selection_epsilon,
    selection_side,
)
from dpbo.accounting.pairs import GaussianPair
from dpbo.accounting.sides import Base, Side
from dpbo.errors import InputError
from dpbo.events import (
    ExponentialEvent,
    GaussianEvent,
    L2LaplaceEvent,
    LaplaceEvent,
    NotPrivateEvent,
    PermuteAndFlipEvent,
    PoissonGaussianEvent,
    RolesEvent,
    SelectionEvent,
)
from dpbo.laws import FixedRuns, PoissonRuns, TruncatedNegativeBinomial

GEOMETRIC = TruncatedNegativeBinomial.of_mean(10.0)


def chosen(*run):
    return SelectionEvent(base=run, law=GEOMETRIC)


def sampled(sigma, slots, rate):
    return PoissonGaussianEvent(sigma, slots, rate=rate, relation="add-or-remove-one")


def test_gaussians_are_one_pair_and_choices_join_them_where_that_is_asked():
    events = (GaussianEvent(2.0, 3), GaussianEvent(4.0), ExponentialEvent(20.0, 5))
    merged, apart = pairs_of(events, True, False), pairs_of(events, False, False)
    assert merged is not None
    assert apart is not None
    assert list(merged.values()) == [1]
    assert list(apart.values()) == [5, 1]
    (gaussian,) = (pair for pair in apart if isinstance(pair, GaussianPair))
    assert gaussian.mu == pytest.approx(math.sqrt(3 / 4 + 1 / 16))
    assert pairs_of((*events, NotPrivateEvent()), True, False) is None


def test_many_choices_cost_what_their_gaussian_costs_and_few_large_ones_their_range():
    many = compose([ExponentialEvent(20.0, 150)], delta=1e-5)
    assert many.mu is not None
    assert many.pld == pytest.approx(gdp.epsilon_at(many.mu, 1e-5), rel=1e-3)
    assert compose([ExponentialEvent(2 / 1000)], delta=1e-5).pld == pytest.approx(1000.0, rel=1e-3)


@pytest.mark.attack("A15")
def test_each_direction_of_a_selection_among_sampled_runs_is_a_pair_of_its_own():
    """By slots; where the runs have one direction, so has the selection."""
    for run, directions in ((sampled(1.1, 30, 0.05), (False, True)), (GaussianEvent(4.0), (False, False))):
        event = chosen(run)
        for reverse, own in zip((False, True), directions, strict=True):
            assert pairs_of((event.repeated(3),), False, reverse) == {SelectionPair(event, own): 3}


@pytest.mark.parametrize("delta", [1e-2, 1e-6])
@pytest.mark.parametrize("run", [sampled(1.1, 30, 0.05), sampled(0.6, 1, 0.3)], ids=["thirty", "one"])
def test_the_worse_direction_of_a_selection_is_told(run, delta):
    event = chosen(run)
    epsilon = selection_epsilon(event, delta)
    assert selection_delta(event, np.array([epsilon]))[0] == pytest.approx(delta, rel=1e-3)
    assert selection_delta(event, np.array([0.9 * epsilon]))[0] > delta


@pytest.mark.attack("A15")
def test_both_directions_of_a_run_count_whichever_is_worse(monkeypatch):
    """Of two laws that differ by direction, and of the same exchanged: the bound is the same, and that of the worse one."""
    event, epsilons = SelectionEvent(base=(GaussianEvent(1.0),), law=FixedRuns(2)), np.linspace(0.0, 2.0, 9)
    base = Base.of_laws(np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5 - 1e-3]) + np.array([0.0, 0.0, 1e-3]))
    profiles = [selected.profile(event.law, side, epsilons) for side in (base, base.swapped())]
    lopsided = Base.of_laws(np.array([0.6, 0.4]), np.array([0.9, 0.1]))
    apart = [selected.profile(event.law, side, epsilons) for side in (lopsided, lopsided.swapped())]
    assert not np.allclose(apart[0], apart[1])
    for one, both in ((base, profiles), (lopsided, apart)):
        for side in (one, one.swapped()):
            monkeypatch.setattr(dominating, "base_of", lambda _, side=side: side)
            assert selection_delta(event, epsilons) == pytest.approx(np.max(both, axis=0), rel=1e-12)
            epsilon = selection_epsilon(event, 0.05)
            tried = [selected.profile(event.law, turned, np.array([epsilon, epsilon * (1 - 1e-4)])) for turned in (one, one.swapped())]
            assert max(now for now, _ in tried) <= 0.05 < max(before for _, before in tried)


@pytest.mark.attack("A15")
def test_below_zero_a_profile_is_that_of_the_other_direction():
    epsilons = np.linspace(0.0, 6.0, 25)
    up = gdp.curve(1.0, epsilons)
    signed, deltas = _both_signs(epsilons, up, up)
    assert (np.diff(signed) > 0).all()
    assert (signed[0], signed[-1], len(signed)) == (-6.0, 6.0, 49)
    true = norm.cdf(0.5 - signed) - np.exp(signed) * norm.cdf(-0.5 - signed)
    assert deltas == pytest.approx(true, rel=1e-9, abs=1e-12)


RUNS = {
    "gaussian": (GaussianEvent(1.5),),
    "two": (LaplaceEvent(2.0, 9), LaplaceEvent(3.0, 9)),
    "mixed": (sampled(0.9, 9, 0.2), LaplaceEvent(4.0)),
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
@pytest.mark.attack("A15")
def test_the_profile_of_one_run_is_that_of_its_composition(run):
    """From above, and hardly: where a fine composition has a delta, so has the profile read from it; and it ends with nothing left."""
    base = base_of(run)
    assert base is not None
    for reverse, side in ((False, base.forward), (True, base.reverse)):
        pairs = pairs_of(run, False, reverse)
        assert pairs is not None
        for delta in (0.05, 1e-4):
            epsilon = pld.epsilon(pairs, delta, inflation=1e-6)
            assert delta * (1 - 2e-3) <= side.delta(np.array([epsilon]))[0] <= delta * 1.02
        assert side.infinite <= 2e-17
        assert side.masses.sum() + side.infinite == pytest.approx(1.0, abs=1e-9)
    if len(run) == 1:
        own = base.forward.losses[base.forward.losses >= 0][:-1]
        assert base.forward.delta(own) == pytest.approx(gdp.curve(1 / 1.5, own), rel=1e-9, abs=1e-17)


@pytest.mark.parametrize("noise", [20.0, 2.0, 0.3])
@pytest.mark.parametrize("delta", [0.3, 1e-3, 1e-5])
@pytest.mark.attack("A15")
def test_an_epsilon_of_a_selection_is_the_least_at_its_delta(noise, delta):
    event = SelectionEvent(base=(GaussianEvent(noise),), law=FixedRuns(2))
    epsilon = selection_epsilon(event, delta)
    assert selection_delta(event, np.array([epsilon]))[0] <= delta
    if epsilon > 0:
        assert selection_delta(event, np.array([epsilon * (1 - 3e-6)]))[0] > delta
    else:
        assert selection_delta(event, np.zeros(1))[0] <= delta


@pytest.mark.parametrize(("law", "share"), [(FixedRuns(2), 0.01), (FixedRuns(2), 0.7), (FixedRuns(20), 1.5)])
@pytest.mark.attack("A15")
def test_the_least_epsilon_is_found_in_few_readings(monkeypatch, law, share):
    """Before the first point of the grid, among its points, and, of many runs, beyond where one run's losses end."""
    event = SelectionEvent(base=(LaplaceEvent(4.0),), law=law)
    base = base_of(event.run())
    assert base is not None
    end = float(base.forward.losses[-1])
    delta = selection_delta(event, np.array([share * end]))[0] * 0.999
    readings = []

    def counted(*terms, true=selected.profile, **more):
        readings.append(terms)
        assert len(readings) < 60
        return true(*terms, **more)

    monkeypatch.setattr(selected, "profile", counted)
    epsilon = selection_epsilon(event, delta)
    assert epsilon > share * end
    assert selection_delta(event, np.array([epsilon]))[0] <= delta < selection_delta(event, np.array([epsilon * (1 - 3e-6)]))[0]


def test_a_bounded_loss_ends_where_its_bound_is():
    """Without the record, one sampled step has loss at most -log(1 - q): beyond it nothing is left, whatever is selected."""
    base = base_of((sampled(0.6, 1, 0.3),))
    assert base is not None
    assert base.reverse.infinite <= 1e-17
    assert base.reverse.losses[-1] == pytest.approx(-math.log(0.7), rel=0.2)


def test_the_losses_of_several_events_end_where_their_sum_does():
    noises = (1.0, 1.1, 1.2, 1.3)
    base = base_of(tuple(LaplaceEvent(noise) for noise in noises))
    assert base is not None
    assert base.forward.infinite <= 2e-17
    assert base.forward.losses[-1] == pytest.approx(sum(1 / noise for noise in noises), rel=0.2)


def test_the_pair_of_a_selection_tells_its_mass_and_spread():
    pair = SelectionPair(chosen(GaussianEvent(4.0)), False)
    losses, masses = np.array(pair.atoms()).T
    assert pair.beyond(-math.inf) == pytest.approx(1.0, abs=1e-9)
    middle = losses[len(losses) // 2]
    assert pair.beyond(middle) == pytest.approx(masses[losses > middle].sum() + pair.side.infinite, rel=1e-12)
    assert pair.variance() == pytest.approx(np.cov(losses, aweights=masses, ddof=0), rel=1e-9)


def test_a_pairs_variance_is_that_of_its_finite_losses(monkeypatch):
    side = Side(np.array([-1.0, 0.5, 2.0]), np.array([0.1, 0.2, 0.1]), 0.6)
    monkeypatch.setattr(dominating, "selection_side", lambda event, reverse: side)
    pair = SelectionPair(chosen(GaussianEvent(4.0)), False)
    assert pair.variance() == pytest.approx(np.cov(side.losses, aweights=side.masses, ddof=0), rel=1e-12)


@pytest.mark.parametrize(
    ("run", "law", "spread"),
    [
        (LaplaceEvent(20.0), PoissonRuns(10.0), (1.0, 1.0)),
        (GaussianEvent(4.0), GEOMETRIC, (1.0, 1.0)),
        (GaussianEvent(4.0), GEOMETRIC, (0.9, 1.2)),
    ],
)
def test_a_selections_profile_is_read_to_where_hardly_anything_is_left(run, law, spread):
    side = selection_side(SelectionEvent(base=(run,), law=law, spread=spread), False)
    assert side is not None
    assert side.infinite < 1e-12


@pytest.mark.parametrize("run", [LaplaceEvent(2.0), LaplaceEvent(1 / 300)], ids=["losses below one half", "losses of 300"])
@pytest.mark.parametrize("level", [0.5, 1.0])
@pytest.mark.attack("A15")
def test_a_profile_that_never_falls_is_read_to_where_losses_end_and_no_longer(monkeypatch, run, level):
    """Losses end at twice their bound, as read, or where floats do; of a profile of 1 there is none."""
    readings = []

    def read(epsilons):
        readings.append(epsilons[-1])
        assert len(readings) < 30
        return np.full_like(epsilons, level)

    monkeypatch.setattr(dominating, "_reading", lambda pairs: read)
    found = _composed((run,), False)
    end = min(2 / run.noise_multiplier, 500.0)
    assert end <= max(readings) <= 1.01 * end
    if level == 1.0:
        assert found is None
    else:
        assert found is not None
        assert found[1][1].tolist() == [level] * len(found[1][0])


@pytest.mark.parametrize("lost", [False, True], ids=["forward", "reverse"])
@pytest.mark.attack("A15")
def test_a_run_of_which_one_direction_is_lost_has_no_profile(monkeypatch, lost):
    """Whether it is not composed, or what was composed cannot be told apart."""
    runs, whole, joined = (sampled(1.1, 30, 0.05),), dominating._composed, dominating._joined
    monkeypatch.setattr(dominating, "_composed", lambda events, reverse: None if reverse == lost else whole(events, reverse))
    assert base_of.__wrapped__(runs) is None
    monkeypatch.setattr(dominating, "_composed", whole)
    sides = iter([None, 1] if lost else [1, None])
    monkeypatch.setattr(dominating, "_joined", lambda *bounds: next(sides) and joined(*bounds))
    assert base_of.__wrapped__(runs) is None


def test_two_losses_are_a_pair_and_one_is_none():
    """Of a randomised response, at the ends of its losses; and of a profile that is 0 everywhere."""
    level = math.tanh(0.5)
    side = _joined(np.array([0.0, 1.0]), *[np.array([level * (1 + 1e-12), 0.0])] * 2)
    assert side is not None
    assert side.losses.tolist() == [-1.0, 1.0]
    assert side.masses == pytest.approx([(1 - level) / 2, (1 + level) / 2])
    assert _joined(np.array([0.0, 1.0]), np.zeros(2), np.zeros(2)) is None


@pytest.mark.parametrize(
    ("kind", "scale", "law", "slots", "delta"),
    [
        (LaplaceEvent, 1 / 40, PoissonRuns(10.0), 2, 1e-6),
        pytest.param(L2LaplaceEvent, 1 / 40, PoissonRuns(10.0), 1, 1e-6, marks=pytest.mark.deep),
        (L2LaplaceEvent, 1 / 20, PoissonRuns(10.0), 2, 1e-30),
        pytest.param(PermuteAndFlipEvent, 1 / 25, FixedRuns(3), 2, 1e-6, marks=pytest.mark.deep),
        (GaussianEvent, 1e20, PoissonRuns(10.0), 1, 1e-6),
        *((kind, 1 / 700, PoissonRuns(10.0), 2, 1e-6) for kind in (LaplaceEvent, L2LaplaceEvent, PermuteAndFlipEvent, GaussianEvent)),
        *((kind, 1e-50, FixedRuns(3), 1, 1e-6) for kind in (LaplaceEvent, L2LaplaceEvent, PermuteAndFlipEvent, GaussianEvent)),
    ],
)
@pytest.mark.attack("A15")
def test_selections_among_runs_of_any_noise_are_bounded(kind, scale, law, slots, delta):
    """No exception, no NaN, and no bound below what one run's typical loss says, where floats lose it or cannot hold it."""
    bound = compose([SelectionEvent(base=(kind(scale),), law=law, slots=slots)], delta=delta)
    assert not math.isnan(bound.epsilon)
    assert bound.pld >= (0.0 if scale > 1 else 0.9 / scale - 3.0)


def test_noise_that_no_run_could_have_is_refused_with_the_event():
    with pytest.raises(InputError, match="noise_multiplier"):
        SelectionEvent(1e60, base=(GaussianEvent(1e60),), law=GEOMETRIC)
    with pytest.raises(InputError, match="noise_multiplier"):
        RolesEvent(1e60, costs=(("training", (GaussianEvent(1e60),)),))


def test_a_run_without_a_profile_has_no_pair():
    event = chosen(LaplaceEvent(1e-4))
    assert selection_side(event, False) is None
    assert pairs_of((event,), False, False) is None
    with pytest.raises(ValueError, match="without a profile"):
        _ = SelectionPair(event, False).side
