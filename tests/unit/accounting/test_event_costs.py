"""What each kind of event costs, and how Renyi and zero-concentrated DP are read at a delta:
against closed forms in fifty digits.

Never below the truth, and hardly above it.
"""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dpbo import Budget, events
from dpbo.accounting import ZCDPFilter, event_costs, renyi
from dpbo.events import (
    DiscreteLaplaceEvent,
    Event,
    ExponentialEvent,
    GaussianEvent,
    L2LaplaceEvent,
    LaplaceEvent,
    NotPrivateEvent,
    OneOfEvent,
    PermuteAndFlipEvent,
    PoissonGaussianEvent,
    RolesEvent,
    SelectionEvent,
    ThresholdedExponentialEvent,
)
from dpbo.reporting import words
from dpbo.run_counts import FixedRuns
from examples import check_export
from tests.attacks.marks import attack
from tests.setups import subclasses

ORDERS = [1.05, 1.5, 2.0, 8.0, 300.0]
# epsilon, or mu
SIZES = [1e-4, 0.004, 0.02, 0.7, 3.0, 40.0]
DELTAS = [0.2, 1e-5, 1e-40]
SLOTS = 3


def response(epsilon, order):
    e = mpmath.mpf(epsilon)
    a = mpmath.mpf(order)
    return mpmath.log((mpmath.exp(a * e) + mpmath.exp((1 - a) * e)) / (1 + mpmath.exp(e))) / (a - 1)


def laplace(epsilon, order):
    e = mpmath.mpf(epsilon)
    a = mpmath.mpf(order)
    return mpmath.log(
        a / (2 * a - 1) * mpmath.exp((a - 1) * e) + (a - 1) / (2 * a - 1) * mpmath.exp(-a * e)
    ) / (a - 1)


def half_square(size):
    return size**2 / 2


# the event of this size; its true Renyi divergence and zero-concentrated price at that size
KINDS = {
    "gaussian": (
        lambda s: GaussianEvent(1 / s, SLOTS),
        lambda s, a: a * half_square(s),
        half_square,
    ),
    "laplace": (lambda s: LaplaceEvent(1 / s, SLOTS), laplace, lambda s: s - 1 + mpmath.exp(-s)),
    "discrete-laplace": (lambda s: DiscreteLaplaceEvent(1 / s, SLOTS), response, half_square),
    "l2-laplace": (lambda s: L2LaplaceEvent(1 / s, SLOTS), response, half_square),
    "permute-and-flip": (lambda s: PermuteAndFlipEvent(2 / s, SLOTS), response, half_square),
    "thresholded exponential": (
        lambda s: ThresholdedExponentialEvent(2 / s, SLOTS),
        response,
        half_square,
    ),
    "exponential": (
        lambda s: ExponentialEvent(2 / s, SLOTS),
        lambda s, a: min(a * s**2 / 8, response(s, a)),
        lambda s: s**2 / 8,
    ),
}


def test_every_event_is_read_again_priced_and_put_in_words():
    """A new law misses none of the places that know each event by name."""
    events_of_dpbo = {kind for kind in subclasses(Event) if kind.__module__.startswith("dpbo.")}
    kinds = {kind for kind in events_of_dpbo if "mechanism" in vars(kind)}
    assert set(events._KINDS.values()) == kinds, "a line in events._KINDS, or no ledger reads it"
    for kind in kinds - {RolesEvent, OneOfEvent, SelectionEvent, PoissonGaussianEvent}:
        name = kind.mechanism
        assert name in words._MECHANISMS, f"{name}: words in reporting/words.py"
        assert name in KINDS or kind.free, f"{name}: its Renyi and zero-concentrated prices here"
        assert (name in check_export.EXACT) == kind.free, f"{name}: examples/check_export.py"
        pure = None if kind.free else event_costs.pure(kind(2.0))
        if pure is not None:
            assert check_export.PURE.get(name) == 2 * pure, f"{name}: examples/check_export.py"


@pytest.mark.parametrize("kind", KINDS)
@attack("A15")
def test_renyi_and_zero_concentrated_prices_are_the_closed_forms(kind):
    make, divergence, concentrated = KINDS[kind]
    for size in SIZES:
        event = make(size)
        found = renyi.curve(event, np.array(ORDERS))
        rho = event_costs.rho(event)
        assert found is not None
        assert rho is not None
        with mpmath.workdps(50):
            given = (2 if "exponential" in kind or kind == "permute-and-flip" else 1) / mpmath.mpf(
                event.noise_multiplier
                # what the float stands for
            )
            one = SLOTS * concentrated(given)
            assert (
                one * (1 - mpmath.mpf(2) ** -150)
                <= mpmath.mpf(rho.numerator) / rho.denominator
                <= one * (1 + 1e-9)
            ), size
            for order, price in zip(ORDERS, found.tolist(), strict=True):
                exact = SLOTS * divergence(given, order)
                assert (
                    exact * (1 - mpmath.mpf(2) ** -50)
                    <= price
                    <= exact * (1 + 1e-9) + 1e-13 / (order - 1)
                ), (size, order)
                alone = renyi.cost(event, order)
                assert float(alone or 0) == pytest.approx(price, rel=1e-9, abs=1e-13)


@pytest.mark.parametrize("kind", ["laplace", "l2-laplace"])
@attack("A15")
def test_renyi_divergences_are_never_rounded_below(kind):
    """Near order 1, where digits cancel, and at huge orders, where nothing but epsilon is left:
    none of many epsilons is too low.
    """
    make, true, _ = KINDS[kind]
    orders = np.array([1 + 2.0**-20, 1 + 2.0**-10, 1.25, 64.0, 1e6, 1e17])
    with mpmath.workdps(60):
        for size in np.geomspace(1e-4, 60.0, 40).tolist():
            event = make(size).repeated(1)
            found = renyi.curve(event, orders)
            assert found is not None
            for order, one in zip(orders.tolist(), found.tolist(), strict=True):
                assert true(1 / mpmath.mpf(event.noise_multiplier), order) <= one


def test_pure_prices_and_the_largest_that_has_a_gaussian_one():
    assert (
        event_costs.pure(LaplaceEvent(4.0, 3)) == event_costs.pure(L2LaplaceEvent(4.0, 3)) == 0.75
    )
    assert (
        event_costs.pure(ExponentialEvent(4.0, 3))
        == event_costs.pure(PermuteAndFlipEvent(4.0, 3))
        == 1.5
    )
    assert event_costs.pure(GaussianEvent(4.0)) is None
    assert event_costs.mu_squared(LaplaceEvent(1 / 400)) is not None
    assert event_costs.mu_squared(LaplaceEvent(1 / 400.5)) is None
    assert (
        event_costs.mu_squared(PoissonGaussianEvent(1.0, rate=0.1, relation="replace-one")) is None
    )
    for cost in (event_costs.pure, event_costs.mu_squared, event_costs.rho):
        assert cost(NotPrivateEvent()) is None
    assert renyi.cost(NotPrivateEvent(), 2.0) is None


@attack("A15")
def test_a_selection_pays_for_all_events_of_all_runs():
    """A fixed number of runs costs each run's epsilon."""
    found = event_costs.pure(
        SelectionEvent(1.0, 2, base=(LaplaceEvent(4.0), LaplaceEvent(5.0)), run_count=FixedRuns(2))
    )
    assert found is not None
    assert 2 * 2 * 0.45 <= found <= 2 * 2 * 0.45 * (1 + 1e-9)


def test_a_run_without_a_renyi_bound_gives_its_selection_none():
    """Not even where the run's other events have one."""
    adaptive = SelectionEvent(base=(LaplaceEvent(2.0),), run_count=FixedRuns(2), spread=(0.5, 2.0))
    for base in ((LaplaceEvent(2.0), adaptive), (adaptive, LaplaceEvent(2.0)), (adaptive,)):
        assert (
            renyi.curve(SelectionEvent(base=base, run_count=FixedRuns(2)), np.array(ORDERS)) is None
        )
    # nor where a bound overflows at one order alone
    with np.errstate(over="ignore"):
        assert (
            renyi.curve(
                SelectionEvent(base=(GaussianEvent(1e-100),), run_count=FixedRuns(2)),
                np.array([1.5, 1e200]),
            )
            is None
        )


@attack("A15")
def test_the_most_expensive_of_several_roles_counts():
    mixed = RolesEvent(
        costs=(("a", (GaussianEvent(2.0), LaplaceEvent(4.0))), ("b", (LaplaceEvent(2.0, 2),)))
    )
    assert event_costs.pure(mixed) is None
    pure = RolesEvent(costs=(("a", (LaplaceEvent(4.0),)), ("b", (LaplaceEvent(2.0, 2),))))
    assert event_costs.pure(pure) == 1
    orders = np.array([2.0, 40.0])
    of_a, of_b = (
        sum(np.asarray(renyi.curve(one, orders)) for one in mixed.of(role)) for role in "ab"
    )
    worst = np.maximum(of_a, of_b)
    found = renyi.curve(mixed, orders)
    assert found is not None
    assert found == pytest.approx(worst, rel=1e-9)
    assert (found >= worst).all()
    assert math.isfinite(float(renyi.cost(mixed, 2.0) or math.inf))
    # bounded by its profile alone
    adaptive = SelectionEvent(base=(LaplaceEvent(2.0),), run_count=FixedRuns(2), spread=(0.5, 2.0))
    unpriced = RolesEvent(costs=(("a", (adaptive,)), ("b", (LaplaceEvent(2.0),))))
    assert renyi.curve(unpriced, orders) is None
    assert event_costs.pure(unpriced) is None


@attack("A15")
def test_conversions_are_the_formula_and_never_below():
    orders = np.array([1.0001, 1.5, 2.0, 60.0, 1e5])
    for delta in DELTAS:
        found = renyi.conversions(orders, delta)
        with mpmath.workdps(50):
            for order, one in zip(orders.tolist(), found.tolist(), strict=True):
                a = mpmath.mpf(order)
                d = mpmath.mpf(delta)
                true = mpmath.log((a - 1) / a) - (mpmath.log(d) + mpmath.log(a)) / (a - 1)
                assert (
                    true - abs(true) * mpmath.mpf(10) ** -15
                    <= one
                    <= true + abs(true) * mpmath.mpf(10) ** -10
                )
                assert renyi.conversion(order, delta) == one
    assert (renyi.conversions(orders, 0.0) == math.inf).all()


def least(rho, delta):
    """The best order's epsilon in fifty digits, by thirds of the orders' logarithm."""

    def at(log_excess):
        a = 1 + mpmath.exp(log_excess)
        return a * rho + mpmath.log((a - 1) / a) - (mpmath.log(delta) + mpmath.log(a)) / (a - 1)

    low = mpmath.mpf(-20)
    high = mpmath.mpf(25)
    while high - low > mpmath.mpf(10) ** -14:
        first = low + (high - low) / 3
        second = high - (high - low) / 3
        low, high = (low, second) if at(first) < at(second) else (first, high)
    return at(low)


@attack("A15")
def test_rho_is_never_read_below_its_best_order():
    """To the last digits: what floats round away is added, not taken off; and the way back is
    rounded down.
    """
    with mpmath.workdps(50):
        for rho, delta in ((1e-8, 1e-40), (0.003, 1e-5), (0.5, 1e-5), (40.0, 1e-12), (0.1, 1e-40)):
            true = least(mpmath.mpf(rho), mpmath.mpf(delta))
            assert true <= renyi.epsilon_of_rho(rho, delta) <= true * (1 + mpmath.mpf(10) ** -11)
            back = renyi.rho_within(float(true), delta)
            assert least(mpmath.mpf(back), mpmath.mpf(delta)) <= true
            assert back > rho * (1 - 1e-10)


@attack("A15")
def test_a_tiny_budget_has_a_rho_that_holds_and_is_the_largest():
    assert renyi.epsilon_of_rho(0.0, 1e-5) == renyi.epsilon_of_rho(1e-9, 0.5) == 0.0
    assert renyi.epsilon_of_rho(1.0, 0.0) == math.inf
    for epsilon, delta in ((1e-12, 1e-6), (1e-9, 1e-6), (1e-20, 0.5), (1e-6, 1e-20), (1e5, 1e-300)):
        rho = renyi.rho_within(epsilon, delta)
        assert ZCDPFilter().cap(Budget(epsilon, delta)).parts[0] == Fraction(rho)
        assert (
            renyi.epsilon_of_rho(rho, delta)
            <= epsilon
            < renyi.epsilon_of_rho(rho * (1 + 1e-7), delta)
        ), (epsilon, delta)
