"""Every filter against an independent accountant, and every price against a numerical supremum."""

import itertools
import math
from fractions import Fraction

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from dpbo import Budget
from dpbo.accounting import GDPFilter, PureFilter, RDPFilter, ZCDPFilter, calibrate, gdp, profiles, rdp
from dpbo.accounting.costs import Cost
from dpbo.accounting.known import accounting_named
from dpbo.accounting.membership import true_positive_rate
from dpbo.errors import InputError
from dpbo.events import Event, GaussianEvent, LaplaceEvent, SelectionEvent, event_from_json
from dpbo.laws import BinomialRuns
from dpbo.statement import Guarantee

FILTERS = [GDPFilter(), PureFilter(), ZCDPFilter(), RDPFilter(8.0)]
EVENTS = [GaussianEvent, LaplaceEvent]
ORDERS = [1.0001, 1.5, 2.0, 8.0, 64.0, 1000.0]


def rho(event):
    price = profiles.rho(event)
    assert price is not None
    return float(price)


def renyi(event, order):
    price = profiles.renyi(event, order)
    assert price is not None
    return float(price)


def divergence(epsilon, order):
    """Renyi divergence between Laplace(0, 1/epsilon) and its shift by 1, by quadrature in logs."""

    def integrand(x):
        return math.exp(order * (-epsilon * abs(x)) + (1 - order) * (-epsilon * abs(x - 1)) + math.log(epsilon / 2))

    ends = [-60 / epsilon, 0.0, 1.0, 1 + 60 / epsilon]
    total = sum(quad(integrand, a, b, epsabs=0, epsrel=1e-12, limit=200)[0] for a, b in itertools.pairwise(ends))
    return math.log(total) / (order - 1)


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
def test_the_renyi_price_of_laplace_is_its_divergence(epsilon, order):
    price = renyi(LaplaceEvent(1 / epsilon), order)
    assert price == pytest.approx(divergence(epsilon, order), rel=1e-7)


@settings(deadline=None, max_examples=300)
@given(st.floats(1e-4, 20.0), st.floats(1.0001, 1e4))
def test_the_zcdp_price_of_laplace_bounds_every_order(epsilon, order):
    event = LaplaceEvent(1 / epsilon)
    assert renyi(event, order) <= rho(event) * order * (1 + 1e-9) + 3e-15 / (order - 1)


def test_the_zcdp_price_of_laplace_is_attained_at_order_one():
    for epsilon in (0.1, 1.0, 5.0):
        event = LaplaceEvent(1 / epsilon)
        assert renyi(event, 1.0001) == pytest.approx(1.0001 * rho(event), rel=1e-3)


@settings(deadline=None, max_examples=200)
@given(st.floats(1e-3, 10.0), st.floats(0.0, 10.0))
def test_the_gdp_price_of_laplace_lies_above_its_exact_curve(epsilon, at):
    """delta of the Laplace mechanism, max(0, 1 - e^((at - epsilon)/2)), never passes that of its mu."""
    price = GDPFilter().cost(LaplaceEvent(1 / epsilon))
    mu = math.sqrt(price.parts[0])
    exact = max(0.0, 1 - math.exp((at - epsilon) / 2))
    assert gdp.delta_at(mu, at) >= exact * (1 - 1e-9) - 1e-15


@pytest.mark.parametrize(("event", "theirs"), [(GaussianEvent(5.0, 25), dp_accounting.GaussianDpEvent(5.0)),
                                              (LaplaceEvent(4.0, 25), dp_accounting.LaplaceDpEvent(4.0))])  # fmt: skip
@pytest.mark.parametrize("order", ORDERS[1:5])
@pytest.mark.attack("A15")
def test_rdp_agrees_with_dp_accounting(event, theirs, order):
    accountant = RdpAccountant([order])
    accountant.compose(theirs, event.slots)
    accounting = RDPFilter(order)
    assert accounting.guarantee(accounting.cost(event), 1e-5).epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-6, abs=1e-9)


def test_zcdp_gives_the_known_figures():
    """25 Gaussians of total mu = 1: 4.7284 by the best order, 5.2985 by rho + 2 sqrt(rho log(1/delta))."""
    accounting = ZCDPFilter()
    epsilon = accounting.guarantee(accounting.cost(GaussianEvent(5.0, 25)), 1e-5).epsilon
    assert epsilon == pytest.approx(4.7284, abs=2e-4)
    grid = min(rdp.conversion(order, 1e-5) + order * 0.5 for order in np.linspace(1.01, 60, 200_000))
    assert epsilon == pytest.approx(grid, rel=1e-6)


@pytest.mark.parametrize("accounting", FILTERS, ids=lambda f: f.name)
@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-6), (3.0, 1e-5), (8.0, 1e-3)])
@pytest.mark.attack("A15")
def test_a_calibrated_plan_comes_back_within_its_budget_and_wastes_nothing(accounting, event, epsilon, delta):
    budget = Budget(epsilon, delta)
    if accounting.price(event(1.0)) is None:
        with pytest.raises(InputError, match="can pay for"):
            calibrate(budget, releases=3, accounting=accounting, event=event)
        return
    if isinstance(accounting, RDPFilter) and epsilon < 2:
        with pytest.raises(InputError, match="order"):
            accounting.cap(budget)
        return
    for releases in (1, 30, 1000):
        multiplier = calibrate(budget, releases=releases, accounting=accounting, event=event)
        spent = accounting.cost(event(multiplier, releases))
        assert spent <= accounting.cap(budget)
        back = accounting.guarantee(spent, delta)
        assert back.epsilon == pytest.approx(epsilon, rel=1e-6)
        assert not accounting.cost(event(math.nextafter(multiplier, 0), releases)) <= accounting.cap(budget)


def test_laplace_under_the_pure_filter_is_releases_over_epsilon():
    assert calibrate(Budget(2.0, 0.0), releases=30, accounting=PureFilter(), event=LaplaceEvent) == pytest.approx(15.0)
    assert str(PureFilter().guarantee(PureFilter().cost(LaplaceEvent(15.0, 30)), None)) == "(2.000, 0.0)-DP"


@pytest.mark.parametrize("accounting", [*FILTERS, RDPFilter(1.25)], ids=lambda f: f.name)
def test_a_filter_is_found_again_by_its_name(accounting):
    assert accounting_named(accounting.name) == accounting


@pytest.mark.parametrize("event", [GaussianEvent(7.3, 4), LaplaceEvent(0.1, 9)])
def test_events_survive_json(event):
    assert event_from_json(event.to_json()) == event


def test_equal_numbers_are_not_equal_events():
    events: list[Event] = [GaussianEvent(5.0), LaplaceEvent(5.0)]
    assert events[0] != events[1]


@pytest.mark.parametrize(
    ("make", "parameter"),
    [
        (lambda: RDPFilter(1.0), "order"),
        (lambda: RDPFilter(math.inf), "order"),
        (lambda: ZCDPFilter().cap(Budget(1.0, 0.0)), "delta"),
        (lambda: ZCDPFilter().cap(Budget.gdp(1.0)), "budget"),
        (lambda: PureFilter().cap(Budget.gdp(1.0)), "budget"),
        (lambda: accounting_named("RDPFilter(0.5)"), "order"),
        (lambda: accounting_named("Mine"), "accounting"),
        (lambda: PureFilter().cost(GaussianEvent(1.0)), "mechanism"),
    ],
)
def test_what_a_filter_cannot_do_is_said(make, parameter):
    with pytest.raises(InputError, match=parameter):
        make()


@pytest.mark.attack("A15")
def test_a_thousand_distinct_costs_add_up_quickly_and_upward():
    costs = [GDPFilter().cost(GaussianEvent(5 + i / 7)) for i in range(1000)]
    total = sum(costs, Cost.of(0)).parts[0]
    exact = math.fsum(float(cost.parts[0]) for cost in costs)
    assert float(total) == pytest.approx(exact, rel=1e-12)
    assert total >= Fraction(exact) * (1 - Fraction(1, 2**50))
    assert total.denominator.bit_length() <= 513


@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 0.5, 20.0, 199.0, 200.0])
@pytest.mark.attack("A15")
def test_the_gdp_price_of_a_pure_event_is_rounded_up(epsilon):
    price = profiles.mu_squared(LaplaceEvent(1 / epsilon))
    assert price is not None
    with mpmath.workdps(400):
        exact = 8 * mpmath.erfinv(mpmath.tanh(1 / mpmath.mpf(1 / epsilon) / 2)) ** 2
        assert mpmath.mpf(price.numerator) / price.denominator >= exact
        assert mpmath.mpf(price.numerator) / price.denominator <= exact * (1 + mpmath.mpf(2) ** -38)
    assert profiles.mu_squared(LaplaceEvent(1e-3)) is None


def test_a_small_reading_is_read_as_it_is():
    """Renyi divergence at an order, and what its conversion takes off; never below 0."""
    accounting = RDPFilter(64.0)
    for total, delta in ((Fraction(1, 100), 1e-3), (Fraction(3), 1e-5), (Fraction(0), 0.9)):
        true = max(float(total) + math.log(63 / 64) - (math.log(delta) + math.log(64)) / 63, 0.0)
        found = accounting.reading(total, delta).epsilon
        assert found == pytest.approx(true, rel=1e-12, abs=1e-15)
    assert accounting.reading(Fraction(0), 0.9).epsilon == 0.0
    assert accounting.reading(Fraction(3), None).epsilon is None
    assert RDPFilter(1e6).order == 1e6
    with pytest.raises(InputError, match="order"):
        RDPFilter(1.5e6)


@pytest.mark.attack("A15")
def test_a_renyi_reading_is_rounded_up():
    """At an order whose conversion is so small that its own margin does not cover the rounding of the sum."""
    order, delta = 1e6, 1e-5
    with mpmath.workdps(50):
        conversion = mpmath.log1p(-1 / mpmath.mpf(order)) - mpmath.log(mpmath.mpf(delta) * order) / (mpmath.mpf(order) - 1)
        for seventh in range(1, 40):
            exact = mpmath.mpf(seventh) / 7 + conversion
            assert exact <= RDPFilter(order).reading(Fraction(seventh, 7), delta).epsilon <= exact * (1 + 1e-12)


def test_an_order_whose_conversion_takes_all_is_refused():
    order, delta = 16.0, 1e-6
    least = rdp.conversion(order, delta)
    with pytest.raises(InputError, match="large enough"):
        RDPFilter(order).cap(Budget(least, delta))
    assert RDPFilter(order).cap(Budget(least * (1 + 1e-9), delta)).parts[0] > 0


@pytest.mark.parametrize("name", ["Planned(", "[]", "Planned(3", "x)", "RDPFilter(8.0", "8.0)", "GDPFilter"[:-1]])
def test_a_name_that_is_nearly_one_is_none(name):
    with pytest.raises(InputError, match="accounting"):
        accounting_named(name)


def test_membership_bounds():
    assert true_positive_rate(Guarantee(0.0, None, None), 0.01) == pytest.approx(0.01)
    assert true_positive_rate(Guarantee(None, math.log(3), 0.0), 0.01) == pytest.approx(0.03)
    assert true_positive_rate(Guarantee(None, 10.0, 0.0), 0.01) == pytest.approx(1 - math.exp(-10) * 0.99)
    assert true_positive_rate(Guarantee(None, math.log(3), 0.02), 0.01) == pytest.approx(0.05)
    assert true_positive_rate(Guarantee(None, 10.0, 0.02), 0.01) == pytest.approx(1 - math.exp(-10) * 0.97)
    assert true_positive_rate(Guarantee(None, None, None), 0.01) == 1.0
    curve = Guarantee(1.0, None, None)
    assert true_positive_rate(curve, 0.01) <= true_positive_rate(Guarantee(None, gdp.epsilon_at(1.0, 1e-5), 1e-5), 0.01)


@pytest.mark.parametrize("order", [1.000001, 1.0001, 1.02])
@pytest.mark.attack("A15")
def test_no_release_gives_budget_back(order):
    """A selection that hardly ever runs anything costs hardly anything, and not less."""
    event = SelectionEvent(base=(GaussianEvent(1e6),), law=BinomialRuns(1, 1e-6), slots=10**9)
    assert RDPFilter(order).cost(event).parts[0] > 0

    class Generous(PureFilter):
        def toll(self, event):
            return Fraction(-1)

    assert Generous().cost(event).parts[0] == 0


@pytest.mark.parametrize("accounting", FILTERS, ids=str)
def test_a_cap_may_come_from_a_machine_that_rounds_otherwise_and_from_no_other_budget(accounting):
    """By a billionth; and it is one number, as the filter's own is."""
    budget = Budget(2.0, 1e-6)
    cap = accounting.cap(budget)
    assert accounting.may_hold(cap, budget)
    assert accounting.may_hold(cap * (1 + Fraction(9, 10**10)), budget)
    assert not accounting.may_hold(cap * (1 + Fraction(11, 10**10)), budget)
    assert not accounting.may_hold(Cost((cap.parts[0] / 2, cap.parts[0] / 2)), budget)


def test_the_cap_of_a_gdp_budget_is_its_square():
    assert GDPFilter().holds(Budget.gdp(3.0)) == 9
