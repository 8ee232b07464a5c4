"""Renyi and zero-concentrated DP read at a delta: against the formula in fifty digits and against every order of a fine grid."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dpbo import Budget
from dpbo.accounting import ZCDPFilter, rdp

DELTAS = [0.2, 1e-5, 1e-40]


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.attack("A15")
def test_conversions_are_the_formula_and_never_below(delta):
    orders = np.array([1.0001, 1.5, 2.0, 60.0, 1e5])
    found = rdp.conversions(orders, delta)
    with mpmath.workdps(50):
        for order, one in zip(orders.tolist(), found.tolist(), strict=True):
            a, d = mpmath.mpf(order), mpmath.mpf(delta)
            true = mpmath.log((a - 1) / a) - (mpmath.log(d) + mpmath.log(a)) / (a - 1)
            assert true - abs(true) * mpmath.mpf(10) ** -15 <= one <= true + abs(true) * mpmath.mpf(10) ** -10
            assert rdp.conversion(order, delta) == one
    assert (rdp.conversions(orders, 0.0) == math.inf).all()


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("rho", [1e-8, 0.003, 0.5, 40.0])
@pytest.mark.attack("A15")
def test_rho_is_read_at_the_best_order_and_found_again(rho, delta):
    epsilon = rdp.epsilon_of_rho(rho, delta)
    orders = 1.0 + np.exp(np.linspace(-25.0, 25.0, 200_001))
    grid = max(float((orders * rho + rdp.conversions(orders, delta)).min()), 0.0)
    assert epsilon <= grid * (1 + 1e-9) + 1e-15
    assert epsilon >= grid * (1 - 1e-6)
    if epsilon > 0:
        back = rdp.rho_within(epsilon, delta)
        assert rdp.epsilon_of_rho(back, delta) <= epsilon
        assert rdp.epsilon_of_rho(back * (1 + 1e-7), delta) > epsilon


def least(rho, delta):
    """The best order's epsilon in fifty digits, by thirds of the orders' logarithm."""

    def at(log_excess):
        a = 1 + mpmath.exp(log_excess)
        return a * rho + mpmath.log((a - 1) / a) - (mpmath.log(delta) + mpmath.log(a)) / (a - 1)

    low, high = mpmath.mpf(-20), mpmath.mpf(25)
    while high - low > mpmath.mpf(10) ** -14:
        first, second = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, second) if at(first) < at(second) else (first, high)
    return at(low)


@pytest.mark.parametrize(("rho", "delta"), [(0.003, 1e-5), (0.5, 1e-5), (40.0, 1e-12), (0.1, 1e-40)])
@pytest.mark.attack("A15")
def test_rho_is_never_read_below_its_best_order(rho, delta):
    """To the last digits: what floats round away is added, not taken off; and the way back is rounded down."""
    with mpmath.workdps(50):
        true = least(mpmath.mpf(rho), mpmath.mpf(delta))
        assert true <= rdp.epsilon_of_rho(rho, delta) <= true * (1 + mpmath.mpf(10) ** -11)
        back = rdp.rho_within(float(true), delta)
        assert least(mpmath.mpf(back), mpmath.mpf(delta)) <= true
        assert back > rho * (1 - 1e-10)


def test_a_root_that_lies_above_is_stepped_down_from(monkeypatch):
    """However near the search stops, what it finds costs no more than epsilon."""
    epsilon, read = rdp.epsilon_of_rho(0.5, 1e-5), rdp.epsilon_of_rho
    monkeypatch.setattr(rdp, "brentq", lambda *_, **__: 0.5 * (1 + 5e-12))

    def no_further_up(rho, delta):
        assert rho == 1.0 or rho <= 0.5 * (1 + 1e-11), "1 is where the search begins"
        return read(rho, delta)

    monkeypatch.setattr(rdp, "epsilon_of_rho", no_further_up)
    found = rdp.rho_within(epsilon, 1e-5)
    assert read(found, 1e-5) <= epsilon
    assert 0.5 * (1 - 1e-11) < found <= 0.5 * (1 + 1e-11)


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-12, 1e-6), (1e-9, 1e-6), (1e-20, 0.5), (1e-6, 1e-20), (1e5, 1e-300)])
@pytest.mark.attack("A15")
def test_a_tiny_budget_has_a_rho_that_holds_and_is_the_largest(epsilon, delta):
    rho = rdp.rho_within(epsilon, delta)
    assert ZCDPFilter().cap(Budget(epsilon, delta)).parts[0] == Fraction(rho)
    assert rdp.epsilon_of_rho(rho, delta) <= epsilon < rdp.epsilon_of_rho(rho * (1 + 1e-7), delta)


def test_ends():
    assert rdp.epsilon_of_rho(0.0, 1e-5) == 0.0
    assert rdp.epsilon_of_rho(1.0, 0.0) == math.inf
    assert rdp.epsilon_of_rho(1e-9, 0.5) == 0.0
