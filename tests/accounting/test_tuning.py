"""How a number of runs or a noise is found: the searches alone, against thresholds that are known, and what they refuse."""

import math

import pytest

from dpbo import Budget
from dpbo.accounting import compose, profiles, selected, tuning
from dpbo.accounting.tuning import _fitting, _largest, choose_law, scale_base
from dpbo.errors import InputError
from dpbo.events import GaussianEvent, LaplaceEvent, SelectionEvent
from dpbo.laws import FixedRuns, TruncatedNegativeBinomial, TruncatedPoisson

BUDGET = Budget(3.0, 1e-6)


def geometric(mean):
    return TruncatedNegativeBinomial.of_mean(mean)


@pytest.mark.parametrize("threshold", [1.05, 2.0, 7.3, 99.9])
def test_the_largest_mean_that_fits_is_found_to_one_per_cent_of_the_runs_beyond_the_first(threshold):
    tried = []

    def fits(law):
        tried.append(law.mean)
        assert len(tried) < 50
        return law.mean <= threshold

    law = _largest(geometric, 100.0, fits)
    assert law is not None
    assert fits(law)
    assert not fits(geometric(1 + (law.mean - 1) * 1.0101))
    assert max(tried[:-1]) <= 100.0 * (1 + 1e-9), "no more runs than were asked for"


def test_a_mean_that_fits_at_once_is_taken_and_one_that_never_does_is_none():
    assert _largest(geometric, 12.0, lambda law: True) == geometric(12.0)
    assert _largest(geometric, 12.0, lambda law: False) is None
    assert _largest(geometric, 1.01, lambda law: False) is None


def test_a_selection_fits_alone_by_its_profile_and_beside_others_by_the_composition():
    event = SelectionEvent(base=(GaussianEvent(3.0),), law=FixedRuns(2))
    epsilon = compose([event], delta=1e-6).epsilon
    assert _fitting(Budget(epsilon * (1 + 1e-5), 1e-6), ())(event)
    assert not _fitting(Budget(epsilon * (1 - 1e-4), 1e-6), ())(event)
    beside = [GaussianEvent(4.0)]
    together = compose([event, *beside], delta=1e-6).epsilon
    assert _fitting(Budget(together, 1e-6), beside)(event)
    assert not _fitting(Budget(together * (1 - 1e-9), 1e-6), beside)(event)


def test_the_pure_epsilon_alone_is_enough_and_so_is_the_profile():
    event = SelectionEvent(base=(LaplaceEvent(20.0),), law=FixedRuns(2))
    pure, read = float(profiles.pure(event) or 0), compose([event], delta=1e-3).epsilon
    assert read < 0.98 * pure
    assert _fitting(Budget(pure * (1 + 1e-9), 1e-30), ())(event), "the profile has more than this delta everywhere"
    assert _fitting(Budget(0.99 * pure, 1e-3), ())(event), "the profile has less than this delta there"
    assert not _fitting(Budget(0.99 * pure, 1e-30), ())(event)


@pytest.mark.parametrize("noise", [1.0, 3.0, 9.0])
@pytest.mark.attack("A15")
def test_what_fits_is_never_read_above_the_budget(noise):
    event = SelectionEvent(base=(GaussianEvent(noise),), law=FixedRuns(2))
    epsilon = compose([event], delta=1e-6).epsilon
    assert not _fitting(Budget(math.nextafter(epsilon, 0), 1e-6), ())(event)


@pytest.mark.parametrize("budget", [Budget(3.0, 0.0), Budget.gdp(1.0)])
def test_a_budget_must_say_epsilon_and_delta(budget):
    for asked in (lambda: choose_law(budget, [GaussianEvent(9.0)], runs=5), lambda: scale_base(budget, [GaussianEvent(9.0)], FixedRuns(2))):
        with pytest.raises(InputError, match="given as epsilon and a delta"):
            asked()


@pytest.mark.parametrize("runs", [1.0, 1.009, 2e6, "five", True])
def test_a_number_of_runs_that_is_none_is_refused(runs):
    with pytest.raises(InputError, match="runs"):
        choose_law(BUDGET, [GaussianEvent(20.0)], runs=runs)


def fitting_from(least):
    """Instead of a budget's own: what fits has at least this scale, and a search that goes on and on is stopped."""
    tried = []

    def fits(event):
        tried.append(event)
        assert len(tried) < 100
        return event.noise_multiplier >= least

    return lambda budget, beside: fits


@pytest.mark.parametrize("least", [1e-4, 0.37, 1.0, 2.9, 5e4])
def test_the_least_scale_is_found_in_few_steps_wherever_it_lies(monkeypatch, least):
    monkeypatch.setattr(tuning, "_fitting", fitting_from(least))
    found = scale_base(BUDGET, [LaplaceEvent(2.0)], FixedRuns(2)).noise_multiplier
    assert least <= found <= least * (1 + 1e-4)


@pytest.mark.parametrize(("least", "refusal"), [(math.inf, "larger than what stands beside"), (0.0, "costs next to nothing")])
def test_a_search_without_end_is_given_up(monkeypatch, least, refusal):
    monkeypatch.setattr(tuning, "_fitting", fitting_from(least))
    with pytest.raises(InputError, match=refusal):
        scale_base(BUDGET, [LaplaceEvent(2.0)], FixedRuns(2))


def test_a_choice_tells_how_surely_some_run_is_among_the_best_of_as_many_as_were_asked_for():
    choice = choose_law(Budget(9.0, 1e-6), [GaussianEvent(40.0)], runs=5, shapes=[1.0])
    assert choice.reach == selected.reach(choice.law, 1 / 5)


def test_the_least_noise_is_found_to_four_digits():
    event = scale_base(BUDGET, [LaplaceEvent(2.0)], FixedRuns(2))
    scale = event.noise_multiplier
    assert compose([event], delta=1e-6).epsilon <= 3.0
    less = SelectionEvent(scale * (1 - 3e-4), base=event.base, law=event.law)
    assert compose([less], delta=1e-6).epsilon > 3.0
    for start in (1e-3, 1e4):
        same = scale_base(BUDGET, [LaplaceEvent(2.0 * start)], FixedRuns(2))
        assert same.noise_multiplier * start == pytest.approx(scale, rel=3e-4)


def test_noise_without_end_is_refused_and_so_is_a_base_that_costs_nothing():
    spent = compose([GaussianEvent(3.0)], delta=1e-6).epsilon
    with pytest.raises(InputError, match="larger than what stands beside"):
        scale_base(Budget(spent * (1 - 1e-6), 1e-6), [LaplaceEvent(2.0)], FixedRuns(2), beside=[GaussianEvent(3.0)])
    with pytest.raises(InputError, match="bounds"):
        scale_base(BUDGET, [LaplaceEvent(1e8)], FixedRuns(2))


def test_an_infinite_shape_is_the_poisson_law():
    assert isinstance(tuning._law(math.inf, 4.0), TruncatedPoisson)
    assert tuning._law(2.0, 4.0).mean == pytest.approx(4.0)
    assert tuning._law(2.0, 4.0) == TruncatedNegativeBinomial.of_mean(4.0, shape=2.0)
