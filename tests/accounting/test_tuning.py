"""How a number of runs or a noise is found: the searches alone, against thresholds that are known, and what they refuse."""

import math

import pytest

from dpbo import Budget
from dpbo.accounting import compose, tuning
from dpbo.accounting.tuning import _fitting, _largest, choose_law, scale_base
from dpbo.errors import InputError
from dpbo.events import GaussianEvent, LaplaceEvent, SelectionEvent
from dpbo.laws import FixedRuns, TruncatedNegativeBinomial, TruncatedPoisson

BUDGET = Budget(3.0, 1e-6)


def geometric(mean):
    return TruncatedNegativeBinomial.of_mean(mean)


@pytest.mark.parametrize("threshold", [1.05, 2.0, 7.3, 90.0])
def test_the_largest_mean_that_fits_is_found_to_one_per_cent_of_the_runs_beyond_the_first(threshold):
    def fits(law):
        return law.mean <= threshold

    law = _largest(geometric, 100.0, fits)
    assert law is not None
    assert fits(law)
    assert not fits(geometric(1 + (law.mean - 1) * 1.0101))


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


@pytest.mark.parametrize("budget", [Budget(3.0, 0.0), Budget.gdp(1.0)])
def test_a_budget_must_say_epsilon_and_delta(budget):
    for asked in (lambda: choose_law(budget, [GaussianEvent(9.0)], runs=5), lambda: scale_base(budget, [GaussianEvent(9.0)], FixedRuns(2))):
        with pytest.raises(InputError, match="budget"):
            asked()


@pytest.mark.parametrize("runs", [1.0, 1.009, 2e6, "five", True])
def test_a_number_of_runs_that_is_none_is_refused(runs):
    with pytest.raises(InputError, match="runs"):
        choose_law(BUDGET, [GaussianEvent(20.0)], runs=runs)


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
