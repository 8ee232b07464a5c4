"""The exact curve: published figures, independent libraries, and rounding that never flatters."""

import itertools
import math
from fractions import Fraction

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbo import Budget
from dpbo.accounting import GDPFilter, calibrate, gdp
from dpbo.accounting.calibrate import exact_share
from dpbo.errors import InputError
from dpbo.events import GaussianEvent
from dpbo.statement import format_up


def at_most(times, function):
    """The same function, which fails when it is asked more often."""
    asked = itertools.count(1)

    def counted(*terms):
        assert next(asked) <= times
        return function(*terms)

    return counted


@pytest.mark.parametrize(
    ("mu", "delta"),
    [(1.0, 1e-5), (0.3, 0.1), (7.0, 1e-40), (1e11, 1e-9), *((edge * math.sqrt(2 * math.pi) * (1 + 1e-10), edge) for edge in (1e-9, 1e-30))],
)
@pytest.mark.attack("A15")
def test_a_search_ends_after_few_readings_below_the_tails_own_bound(monkeypatch, mu, delta):
    """Of mu so small that floats see no difference of the tails, and so large that they lose where the search should end, as well."""
    for name in ("_log_delta", "_exact_delta"):
        monkeypatch.setattr(gdp, name, at_most(300, getattr(gdp, name)))
    epsilon = gdp.epsilon_at(mu, delta)
    assert epsilon <= mu * (mu / 2 + math.sqrt(2 * math.log(1 / delta))) * (1 + 1e-8) + 2e-12
    assert gdp.mu_within(epsilon, delta) == pytest.approx(mu, rel=1e-3)


def test_mu_one_is_4_378_at_1e_5():
    assert format_up(gdp.epsilon_at(1.0, 1e-5)) == "4.378"


@pytest.mark.parametrize("delta", [1e-3, 1e-9, 1e-30, 1e-200])
@pytest.mark.attack("A15")
def test_an_epsilon_is_a_number_that_holds_where_mu_hardly_leaks_more_than_delta_alone(delta):
    """delta(0) = mu / sqrt(2 pi) for small mu: just above it floats see no difference of the two tails."""
    edge = delta * math.sqrt(2 * math.pi)
    for above in (1e-14, 1e-10, 1e-7, 1e-4, 0.1, 1.0, 1e3):
        epsilon = gdp.epsilon_at(edge * (1 + above), delta)
        assert 0.0 <= epsilon < math.inf
        assert gdp.delta_at(edge * (1 + above), epsilon) <= delta


@pytest.mark.parametrize(("mu", "delta"), [(0.1, 1e-6), (0.72, 1e-5), (1.0, 1e-5), (3.0, 1e-10)])
@pytest.mark.attack("A15")
def test_agrees_with_the_privacy_loss_distribution(mu, delta):
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(dp_accounting.GaussianDpEvent(1 / mu))
    assert accountant.get_epsilon(delta) == pytest.approx(gdp.epsilon_at(mu, delta), rel=2e-4, abs=1e-4)


@settings(deadline=None, max_examples=200)
@given(st.floats(1e-3, 50.0), st.floats(1e-12, 0.5))
@pytest.mark.attack("A15")
def test_round_trip_never_flatters(mu, delta):
    epsilon = gdp.epsilon_at(mu, delta)
    assert gdp.delta_at(mu, epsilon) <= delta * (1 + 1e-15)
    if epsilon > 1e-9:
        back = gdp.mu_within(epsilon, delta)
        assert gdp.delta_at(back, epsilon) <= delta * (1 + 1e-15)
        assert back == pytest.approx(mu, rel=1e-6)


@pytest.mark.attack("A15")
def test_ends_of_the_range():
    assert gdp.epsilon_at(1.0, 0.0) == math.inf
    assert gdp.epsilon_at(0.0, 1e-5) == 0.0
    assert gdp.epsilon_at(0.1, 0.5) == 0.0
    assert gdp.mu_within(3.0, 0.0) == 0.0


def exact(mu, epsilon):
    """delta in 400 digits."""
    with mpmath.workdps(400):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2)


MUS = [1e-9, 1e-3, 0.3, 1.0, 7.0, 60.0]
TAILS = [-2.0, -0.4, 0.0, 1.0, 5.0, 20.0]


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.attack("A15")
def test_delta_is_exact_and_never_below(mu):
    """Over epsilons whose tails are a few, or many, standard deviations away."""
    for tail in TAILS:
        epsilon = max(mu * (tail + mu / 2), 0.0)
        found, true = gdp.delta_at(mu, epsilon), exact(mu, epsilon)
        assert true <= found <= max(float(true) * (1 + 1e-15), 5e-324)
        curve = float(gdp.curve(mu, np.array([epsilon]))[0])
        assert true <= curve <= float(true) * (1 + 1e-8 + 1e-10 / mu) + 1e-300


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("delta", [0.3, 1e-3, 1e-8, 1e-40, 1e-300])
@pytest.mark.attack("A15")
def test_epsilon_is_the_least_and_mu_the_largest(mu, delta):
    """To nine digits; of mu below 1e-6, to as many as floats keep of the two tails' difference."""
    epsilon, off = gdp.epsilon_at(mu, delta), max(1e-9, 1e-13 / mu)
    assert exact(mu, epsilon) <= delta
    if epsilon == 0.0:
        return
    assert exact(mu, epsilon * (1 - off)) > delta
    most = gdp.mu_within(epsilon, delta)
    assert exact(most, epsilon) <= delta < exact(most * (1 + off), epsilon)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(1e-20, 1e-20), (1e-30, 1e-20), (1e-12, 1e-40), (1e-100, 1e-100), (1e-20, 1e-6), (1e-12, 0.5)]
)
@pytest.mark.attack("A15")
def test_a_tiny_budget_has_a_mu_that_holds_and_is_at_least_half_of_the_largest(epsilon, delta):
    most = gdp.mu_within(epsilon, delta)
    assert GDPFilter().cap(Budget(epsilon, delta)).parts[0] == Fraction(most) ** 2
    assert exact(most, epsilon) <= delta < exact(most * 2.01, epsilon)


@pytest.mark.attack("A15")
def test_what_is_smaller_than_any_float_is_still_not_nothing():
    assert gdp.delta_at(1e-7, 1.0) == 5e-324
    assert gdp.delta_at(1e-300, 1.0) == 5e-324
    assert gdp.delta_at(0.0, 1.0) == 0.0
    assert gdp.delta_at(1e3, 0.0) == 1.0
    assert gdp.delta_at(1e7, 0.5e14) == pytest.approx(0.5, rel=1e-6)
    assert gdp.curve(100.0, np.array([0.0])).tolist() == [1.0]


@settings(deadline=None, max_examples=100)
@given(st.floats(0.05, 20.0), st.floats(1e-9, 1e-2), st.integers(1, 2000), st.sampled_from([1, 0.9, 0.1, 0.3]))
@pytest.mark.attack("A15")
def test_a_plan_fits_its_share_and_wastes_nothing(epsilon, delta, releases, share):
    budget, accounting = Budget(epsilon, delta), GDPFilter()
    multiplier = calibrate(budget, releases=releases, share=share)
    assert accounting.cost(GaussianEvent(multiplier, releases)) <= accounting.cap(budget) * exact_share(share)
    exact = math.sqrt(releases / share) / gdp.mu_within(epsilon, delta)
    assert multiplier == pytest.approx(exact, rel=1e-3)
    assert multiplier == pytest.approx(exact, rel=1e-12)


def test_shares_are_the_decimals_that_were_written():
    budget, accounting = Budget(3.0, 1e-5), GDPFilter()
    parts = [(30, 0.9), (1, 0.1)]
    costs = [accounting.cost(GaussianEvent(calibrate(budget, releases=k, share=share), k)) for k, share in parts]
    assert costs[0] + costs[1] <= accounting.cap(budget)


def test_twenty_five_releases_of_total_mu_one():
    multiplier = calibrate(Budget.gdp(1.0), releases=25)
    assert multiplier == pytest.approx(5.0, rel=1e-12)
    accounting = GDPFilter()
    total = accounting.cost(GaussianEvent(multiplier, 25))
    assert str(accounting.guarantee(total, 1e-5)).startswith("(4.378, 1e-05)-DP")


@pytest.mark.parametrize("share", [0, -0.1, 1.1, math.nan, "half"])
def test_a_share_outside_its_range_is_refused(share):
    with pytest.raises(InputError, match="share"):
        calibrate(Budget(1.0, 1e-5), releases=3, share=share)


def test_a_pure_budget_refuses_gaussians():
    with pytest.raises(InputError, match="delta"):
        calibrate(Budget(1.0, 0.0), releases=3)
