"""What each kind of event costs, column by column, against its closed form in fifty digits: never below, and hardly above."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dpbo.accounting import profiles
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
from dpbo.laws import FixedRuns

ORDERS = [1.05, 1.5, 2.0, 8.0, 300.0]
SIZES = [1e-4, 0.004, 0.02, 0.7, 3.0, 40.0]  # epsilon, or mu
SLOTS = 3


def response(epsilon, order):
    """Renyi divergence of randomised response."""
    e, a = mpmath.mpf(epsilon), mpmath.mpf(order)
    return mpmath.log((mpmath.exp(a * e) + mpmath.exp((1 - a) * e)) / (1 + mpmath.exp(e))) / (a - 1)


def laplace(epsilon, order):
    """Renyi divergence of the Laplace mechanism."""
    e, a = mpmath.mpf(epsilon), mpmath.mpf(order)
    return mpmath.log(a / (2 * a - 1) * mpmath.exp((a - 1) * e) + (a - 1) / (2 * a - 1) * mpmath.exp(-a * e)) / (a - 1)


KINDS = {
    "gaussian": (lambda s: GaussianEvent(1 / s, SLOTS), lambda s, a: a * mpmath.mpf(s) ** 2 / 2),
    "laplace": (lambda s: LaplaceEvent(1 / s, SLOTS), laplace),
    "l2-laplace": (lambda s: L2LaplaceEvent(1 / s, SLOTS), response),
    "permute-and-flip": (lambda s: PermuteAndFlipEvent(2 / s, SLOTS), response),
    "exponential": (lambda s: ExponentialEvent(2 / s, SLOTS), lambda s, a: min(a * mpmath.mpf(s) ** 2 / 8, response(s, a))),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.attack("A15")
def test_renyi_divergences_are_the_closed_forms(kind, size):
    make, true = KINDS[kind]
    event = make(size)
    given = {"exponential": 2.0, "permute-and-flip": 2.0}.get(kind, 1.0) / event.noise_multiplier  # what the float multiplier stands for
    found = profiles.renyi_curve(event, np.array(ORDERS))
    assert found is not None
    with mpmath.workdps(50):
        for order, one in zip(ORDERS, found.tolist(), strict=True):
            exact = SLOTS * true(given, order)
            assert exact * (1 - mpmath.mpf(2) ** -50) <= one <= exact * (1 + 1e-9) + 1e-13 / (order - 1)
            alone = profiles.renyi(event, order)
            assert alone is not None
            assert float(alone) == pytest.approx(one, rel=1e-9, abs=1e-13)  # the allowance for rounding is no share


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.attack("A15")
def test_zero_concentrated_prices(size):
    with mpmath.workdps(50):
        e = 1 / mpmath.mpf(1 / size)
        true = {
            GaussianEvent(1 / size, SLOTS): e**2 / 2, LaplaceEvent(1 / size, SLOTS): e - 1 + mpmath.exp(-e),
            L2LaplaceEvent(1 / size, SLOTS): e**2 / 2, ExponentialEvent(2 / size, SLOTS): (2 / mpmath.mpf(2 / size)) ** 2 / 8,
            PermuteAndFlipEvent(2 / size, SLOTS): (2 / mpmath.mpf(2 / size)) ** 2 / 2,
        }  # fmt: skip
        for event, one in true.items():
            found = profiles.rho(event)
            assert found is not None
            assert SLOTS * one * (1 - mpmath.mpf(2) ** -150) <= mpmath.mpf(found.numerator) / found.denominator <= SLOTS * one * (1 + 1e-9)


@pytest.mark.parametrize("kind", ["laplace", "l2-laplace"])
@pytest.mark.attack("A15")
def test_renyi_divergences_are_never_rounded_below(kind):
    """Where digits cancel, near order 1, and where nothing but epsilon is left, at huge orders: of many epsilons none is too low."""
    make, true = KINDS[kind]
    orders = np.array([1 + 2.0**-20, 1 + 2.0**-10, 1.25, 64.0, 1e6, 1e17])
    with mpmath.workdps(60):
        for size in np.geomspace(1e-4, 60.0, 60).tolist():
            event = make(size).repeated(1)
            found = profiles.renyi_curve(event, orders)
            assert found is not None
            for order, one in zip(orders.tolist(), found.tolist(), strict=True):
                assert true(1 / mpmath.mpf(event.noise_multiplier), order) <= one


@pytest.mark.parametrize("epsilon", [1e-9, 0.003, 0.00999, 0.0101, 0.7])
@pytest.mark.attack("A15")
def test_the_price_of_laplace_noise_keeps_its_digits(epsilon):
    with mpmath.workdps(50):
        true = mpmath.mpf(epsilon) - 1 + mpmath.exp(-mpmath.mpf(epsilon))
        assert float(profiles._laplace_kl(epsilon) / true) == pytest.approx(1.0, rel=1e-13 if epsilon < 0.01 else 1e-11)


def test_pure_prices_and_the_largest_that_has_a_gaussian_one():
    assert profiles.pure(LaplaceEvent(4.0, 3)) == profiles.pure(L2LaplaceEvent(4.0, 3)) == 0.75
    assert profiles.pure(ExponentialEvent(4.0, 3)) == profiles.pure(PermuteAndFlipEvent(4.0, 3)) == 1.5
    assert profiles.pure(GaussianEvent(4.0)) is None
    assert profiles.mu_squared(LaplaceEvent(1 / 400)) is not None
    assert profiles.mu_squared(LaplaceEvent(1 / 400.5)) is None
    assert profiles.mu_squared(PoissonGaussianEvent(1.0, rate=0.1, relation="replace-one")) is None
    for cost in (profiles.pure, profiles.mu_squared, profiles.rho):
        assert cost(NotPrivateEvent()) is None
    assert profiles.renyi(NotPrivateEvent(), 2.0) is None


@pytest.mark.attack("A15")
def test_a_selection_of_runs_of_several_events_pays_for_all_of_them():
    """Two hidden runs, each of two Laplace releases: (1/4 + 1/5) twice; and never below it."""
    event = SelectionEvent(1.0, 2, base=(LaplaceEvent(4.0), LaplaceEvent(5.0)), law=FixedRuns(2))
    found = profiles.pure(event)
    assert found is not None
    assert 2 * 2 * 0.45 <= found <= 2 * 2 * 0.45 * (1 + 1e-9)


@pytest.mark.parametrize("size", [1e-8, 1e-6, 1e-5, 1e-3, 0.1])
@pytest.mark.attack("A15")
def test_a_selection_of_runs_that_cost_little_is_not_rounded_below(size):
    """Each of a fixed number of runs costs its epsilon; logarithms of numbers near 1 have lost its last digits, on the safe side."""
    for runs in (2, 3, 1000):
        event = SelectionEvent(1.0, 2, base=(LaplaceEvent(1 / size),), law=FixedRuns(runs))
        found, true = profiles.pure(event), 2 * runs / Fraction(1 / size)
        assert found is not None
        assert true <= found <= true * (1 + Fraction(1e-14 / size + 1e-9))


def test_a_run_without_a_renyi_bound_gives_its_selection_none():
    """Not even where the run's other events have one."""
    adaptive = SelectionEvent(base=(LaplaceEvent(2.0),), law=FixedRuns(2), spread=(0.5, 2.0))
    for base in ((LaplaceEvent(2.0), adaptive), (adaptive, LaplaceEvent(2.0)), (adaptive,)):
        assert profiles.renyi_curve(SelectionEvent(base=base, law=FixedRuns(2)), np.array(ORDERS)) is None
    with np.errstate(over="ignore"):  # nor where a bound passes all floats at one order alone
        assert profiles.renyi_curve(SelectionEvent(base=(GaussianEvent(1e-100),), law=FixedRuns(2)), np.array([1.5, 1e200])) is None


@pytest.mark.attack("A15")
def test_of_several_roles_the_dearest_counts():
    event = RolesEvent(costs=(("a", (GaussianEvent(2.0), LaplaceEvent(4.0))), ("b", (LaplaceEvent(2.0, 2),))))
    assert profiles.pure(event) is None
    pure = RolesEvent(costs=(("a", (LaplaceEvent(4.0),)), ("b", (LaplaceEvent(2.0, 2),))))
    assert profiles.pure(pure) == 1
    orders = np.array([2.0, 40.0])
    parts = {role: sum(np.asarray(profiles.renyi_curve(one, orders)) for one in event.of(role)) for role in ("a", "b")}
    found = profiles.renyi_curve(event, orders)
    assert found is not None
    assert found == pytest.approx(np.maximum(parts["a"], parts["b"]), rel=1e-9)
    assert (found >= np.maximum(parts["a"], parts["b"])).all()
    adaptive = SelectionEvent(base=(LaplaceEvent(2.0),), law=FixedRuns(2), spread=(0.5, 2.0))  # by its profile alone
    unpriced = RolesEvent(costs=(("a", (adaptive,)), ("b", (LaplaceEvent(2.0),))))
    assert profiles.renyi_curve(unpriced, orders) is None
    assert profiles.pure(unpriced) is None
    assert math.isfinite(float(profiles.renyi(event, 2.0) or math.inf))
