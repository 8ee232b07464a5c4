"""Every filter against an independent accountant, every price against a numerical supremum; costs,
roundings and membership.
"""

import itertools
import math
from fractions import Fraction

import dp_accounting
import mpmath
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from dpbo import Budget
from dpbo.accounting import (
    GDPFilter,
    PureFilter,
    RDPFilter,
    ZCDPFilter,
    calibrate,
    event_costs,
    gdp,
)
from dpbo.accounting.filters import _GRAIN, _LONGEST, Cost
from dpbo.accounting.gdp import root_up, rounded_up, true_positive_rate
from dpbo.accounting.planned import accounting_named
from dpbo.errors import InputError
from dpbo.events import GaussianEvent, LaplaceEvent, SelectionEvent
from dpbo.run_counts import PoissonRuns
from dpbo.statement import Guarantee
from tests.attacks.marks import attack

FILTERS = [GDPFilter(), PureFilter(), ZCDPFilter(), RDPFilter(8.0)]


@settings(deadline=None, max_examples=60)
@given(st.floats(1e-3, 10.0), st.floats(0.0, 10.0))
def test_the_gdp_price_of_laplace_lies_above_its_exact_curve(epsilon, at):
    """delta of the Laplace mechanism, max(0, 1 - e^((at - epsilon)/2)), is never above that of its
    mu.
    """
    mu = math.sqrt(GDPFilter().cost(LaplaceEvent(1 / epsilon)).parts[0])
    exact = max(0.0, 1 - math.exp((at - epsilon) / 2))
    assert gdp._exact_delta(mu, at) >= exact * (1 - 1e-9) - 1e-15


@attack("A15")
def test_rdp_agrees_with_dp_accounting():
    for event, theirs in (
        (GaussianEvent(5.0, 25), dp_accounting.GaussianDpEvent(5.0)),
        (LaplaceEvent(4.0, 25), dp_accounting.LaplaceDpEvent(4.0)),
    ):
        for order in (1.5, 2.0, 8.0, 64.0):
            accountant = RdpAccountant([order])
            accountant.compose(theirs, event.count)
            accounting = RDPFilter(order)
            ours = accounting.guarantee(accounting.cost(event), 1e-5).epsilon
            assert ours == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("accounting", FILTERS, ids=lambda f: f.name)
@attack("A15")
def test_a_calibrated_plan_comes_back_within_its_budget_and_wastes_nothing(accounting):
    for event, (epsilon, delta) in itertools.product(
        [GaussianEvent, LaplaceEvent], [(0.5, 1e-6), (3.0, 1e-5), (8.0, 1e-3)]
    ):
        budget = Budget(epsilon, delta)
        if accounting.cost_or_none(event(1.0)) is None:
            with pytest.raises(InputError, match="can pay for"):
                calibrate(budget, releases=3, accounting=accounting, event=event)
            continue
        if isinstance(accounting, RDPFilter) and epsilon < 2:
            with pytest.raises(InputError, match="order"):
                accounting.cap(budget)
            continue
        for releases in (1, 30, 1000):
            multiplier = calibrate(budget, releases=releases, accounting=accounting, event=event)
            spent = accounting.cost(event(multiplier, releases))
            assert spent <= accounting.cap(budget)
            assert accounting.guarantee(spent, delta).epsilon == pytest.approx(epsilon, rel=1e-6)
            assert not accounting.cost(
                event(math.nextafter(multiplier, 0), releases)
            ) <= accounting.cap(budget)
    assert calibrate(
        Budget(2.0, 0.0), releases=30, accounting=PureFilter(), event=LaplaceEvent
    ) == pytest.approx(15.0)
    assert GDPFilter().cap_amount(Budget.gdp(3.0)) == 9, "the cap of a GDP budget is its square"


@attack("A15")
def test_a_thousand_distinct_costs_add_up_quickly_and_upward():
    costs = [GDPFilter().cost(GaussianEvent(5 + i / 7)) for i in range(1000)]
    total = sum(costs, Cost.of(0)).parts[0]
    exact = math.fsum(float(cost.parts[0]) for cost in costs)
    assert float(total) == pytest.approx(exact, rel=1e-12)
    assert total >= Fraction(exact) * (1 - Fraction(1, 2**50))
    assert total.denominator.bit_length() <= 513
    short = Fraction(1, 1 << (_LONGEST - 1))
    long = Fraction(1, 1 << _LONGEST)
    assert (Cost.of(short) + Cost.of(0)).parts == (short,), "exact while denominators are short"
    assert (Cost.of(long) + Cost.of(1)).parts == (1 + Fraction(1, _GRAIN),), "rounded up from there"


@attack("A15")
def test_the_gdp_price_of_a_pure_event_is_rounded_up():
    for epsilon in (1e-6, 1e-3, 0.5, 20.0, 199.0, 200.0):
        price = event_costs.mu_squared(LaplaceEvent(1 / epsilon))
        assert price is not None
        with mpmath.workdps(400):
            exact = 8 * mpmath.erfinv(mpmath.tanh(1 / mpmath.mpf(1 / epsilon) / 2)) ** 2
            assert (
                exact
                <= mpmath.mpf(price.numerator) / price.denominator
                <= exact * (1 + mpmath.mpf(2) ** -38)
            )
    assert event_costs.mu_squared(LaplaceEvent(1e-3)) is None


@attack("A15")
def test_a_renyi_reading_is_rounded_up():
    """At an order whose conversion is so small that its own margin does not cover the rounding of
    the sum.
    """
    order = 1e6
    delta = 1e-5
    with mpmath.workdps(50):
        conversion = mpmath.log1p(-1 / mpmath.mpf(order)) - mpmath.log(
            mpmath.mpf(delta) * order
        ) / (mpmath.mpf(order) - 1)
        for seventh in range(1, 40):
            exact = mpmath.mpf(seventh) / 7 + conversion
            assert (
                exact
                <= RDPFilter(order).guarantee_of(Fraction(seventh, 7), delta).epsilon
                <= exact * (1 + 1e-12)
            )
    assert RDPFilter(64.0).guarantee_of(Fraction(0), 0.9).epsilon == 0.0, "never below 0"
    assert RDPFilter(64.0).guarantee_of(Fraction(3), None).epsilon is None


def test_no_release_gives_budget_back():
    """A selection that hardly ever runs anything costs hardly anything, and not less."""
    event = SelectionEvent(base=(GaussianEvent(1e6),), run_count=PoissonRuns(1e-6), count=10**9)
    for order in (1.000001, 1.0001, 1.02):
        assert RDPFilter(order).cost(event).parts[0] > 0

    class Generous(PureFilter):
        def cost_amount(self, event):
            return Fraction(-1)

    assert Generous().cost(event).parts[0] == 0


def test_a_cap_may_come_from_a_machine_that_rounds_otherwise_not_from_another_budget():
    """It may differ by a billionth; and it is one number, as the filter's own is."""
    budget = Budget(2.0, 1e-6)
    for accounting in FILTERS:
        assert accounting_named(accounting.name) == accounting
        cap = accounting.cap(budget)
        assert accounting.may_hold(cap, budget)
        assert accounting.may_hold(cap * (1 + Fraction(9, 10**10)), budget)
        assert not accounting.may_hold(cap * (1 + Fraction(11, 10**10)), budget)
        assert not accounting.may_hold(Cost((cap.parts[0] / 2, cap.parts[0] / 2)), budget)


@attack("A15")
def test_exact_numbers_are_rounded_up_by_no_more_than_a_step():
    for exact in (Fraction(n, d) for n in range(1, 40) for d in (3, 7, 10**9, 2**60)):
        found = rounded_up(exact)
        assert Fraction(math.nextafter(found, 0.0)) < exact <= Fraction(found)
    for square in (
        Fraction(n, d)
        for n in range(1, 40)
        for d in (1, 7, 10**9, 7 * 2**899, 10**300, 10**330, 10**600)
    ):
        found = root_up(square)
        assert (
            Fraction(math.nextafter(math.nextafter(found, 0.0), 0.0)) ** 2
            < square
            <= Fraction(found) ** 2
        )
    assert root_up(Fraction(1, 10**400)) == pytest.approx(1e-200, rel=1e-15), (
        "no float squares to it"
    )
    assert root_up(Fraction(1, 10**800)) == 5e-324
    assert root_up(Fraction(0)) == 0.0


def test_the_success_of_a_membership_test_follows_from_the_guarantee():
    """mu: the normal curve. (epsilon, delta): t <= e^epsilon f + delta and 1 - f <= e^epsilon (1 -
    t) + delta, and no more.
    """
    for mu, rate in itertools.product([0.1, 1.0, 4.0], [1e-6, 0.01, 0.3, 0.9]):
        assert true_positive_rate(Guarantee(mu, None, None), rate) == pytest.approx(
            norm.cdf(norm.ppf(rate) + mu), rel=1e-9
        )
    terms = [(1.0, 1e-5), (0.2, 0.1), (3.0, 0.0), (1000.0, 1e-6), (1.0, 0.3)]
    for (epsilon, delta), rate in itertools.product(terms, [0.0, 0.01, 0.3, 0.9]):
        found = true_positive_rate(Guarantee(None, epsilon, delta), rate)
        growth = math.exp(min(epsilon, 700))
        assert found <= min((growth * rate + delta) * (1 + 1e-12), 1.0)
        assert (1 - rate - delta) / growth <= 1 - found + 1e-12
        beyond = found * (1 + 1e-6) + 1e-6
        assert (
            beyond > 1 or beyond > growth * rate + delta or (1 - rate - delta) / growth > 1 - beyond
        ), "it is too low"
    for guarantee in (
        Guarantee(None, None, None),
        Guarantee(None, 1.0, None),
        Guarantee(None, None, 1e-5),
    ):
        assert true_positive_rate(guarantee, 0.1) == 1.0, "without a bound everybody may be found"
