"""The exact curve of Gaussian DP: published figures, independent libraries, and rounding that never
goes below the truth.
"""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dpbo import Budget
from dpbo.accounting import GDPFilter, calibrate, gdp
from dpbo.events import GaussianEvent
from dpbo.statement import format_up
from tests.attacks.marks import attack

MUS = [1e-9, 1e-3, 0.3, 1.0, 7.0, 60.0]


def exact(mu, epsilon):
    with mpmath.workdps(100):
        m = mpmath.mpf(mu)
        e = mpmath.mpf(epsilon)
        return mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2)


@attack("A15")
def test_an_epsilon_is_finite_and_holds_where_mu_hardly_leaks_more_than_delta():
    """delta(0) = mu / sqrt(2 pi) for small mu: just above it floats see no difference of the two
    tails.
    """
    for delta in (1e-3, 1e-9, 1e-30, 1e-200):
        edge = delta * math.sqrt(2 * math.pi)
        for above in (1e-14, 1e-10, 1e-7, 1e-4, 0.1, 1.0, 1e3):
            epsilon = gdp.epsilon_at(edge * (1 + above), delta)
            assert 0.0 <= epsilon < math.inf
            assert gdp._exact_delta(edge * (1 + above), epsilon) <= delta


@attack("A15")
def test_ends_of_the_range_and_what_is_smaller_than_any_float():
    assert format_up(gdp.epsilon_at(1.0, 1e-5)) == "4.378", "the published figure"
    assert gdp.mu_within(gdp.epsilon_at(1e11, 1e-9), 1e-9) == pytest.approx(1e11, rel=1e-3), (
        "where floats overflow a little further on"
    )
    assert gdp.epsilon_at(1.0, 0.0) == math.inf
    assert gdp.epsilon_at(0.0, 1e-5) == gdp.epsilon_at(0.1, 0.5) == gdp.mu_within(3.0, 0.0) == 0.0
    assert gdp.curve(100.0, np.array([0.0])).tolist() == [1.0]


@attack("A15")
def test_the_curve_of_deltas_is_never_below():
    """Over epsilons whose tails are a few, or many, standard deviations away."""
    for mu, tail in itertools.product(MUS, [-2.0, -0.4, 0.0, 1.0, 5.0, 20.0]):
        epsilon = max(mu * (tail + mu / 2), 0.0)
        true = exact(mu, epsilon)
        curve = float(gdp.curve(mu, np.array([epsilon]))[0])
        assert true <= curve <= float(true) * (1 + 1e-8 + 1e-10 / mu) + 1e-300, (mu, tail)


@attack("A15")
def test_epsilon_is_the_least_and_mu_the_largest():
    """To nine digits; for mu below 1e-6, to as many as floats keep of the two tails' difference."""
    for mu, delta in itertools.product(MUS, [0.3, 1e-3, 1e-8, 1e-40, 1e-300]):
        epsilon = gdp.epsilon_at(mu, delta)
        off = max(1e-9, 1e-13 / mu)
        assert exact(mu, epsilon) <= delta, (mu, delta)
        if epsilon > 0.0:
            assert exact(mu, epsilon * (1 - off)) > delta, (mu, delta)
            most = gdp.mu_within(epsilon, delta)
            assert exact(most, epsilon) <= delta < exact(most * (1 + off), epsilon), (mu, delta)


@attack("A15")
def test_a_tiny_budget_has_a_mu_that_holds_and_is_at_least_half_of_the_largest():
    for epsilon, delta in (
        (1e-20, 1e-20),
        (1e-30, 1e-20),
        (1e-12, 1e-40),
        (1e-100, 1e-100),
        (1e-20, 1e-6),
        (1e-12, 0.5),
    ):
        most = gdp.mu_within(epsilon, delta)
        assert GDPFilter().cap(Budget(epsilon, delta)).parts[0] == Fraction(most) ** 2
        assert exact(most, epsilon) <= delta < exact(most * 2.01, epsilon), (epsilon, delta)


def test_shares_are_the_decimals_that_were_written():
    budget = Budget(3.0, 1e-5)
    accounting = GDPFilter()
    first, second = (
        accounting.cost(GaussianEvent(calibrate(budget, releases=k, share=s), k))
        for k, s in ((30, 0.9), (1, 0.1))
    )
    assert first + second <= accounting.cap(budget)
    assert calibrate(Budget.gdp(1.0), releases=25) == pytest.approx(5.0, rel=1e-12)
