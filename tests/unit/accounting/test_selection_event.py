"""A private selection as an event: what the ledger keeps of it, who can pay for it, and how runs and noise are found for a budget."""

import dataclasses
import json
import math
from typing import Any

import pytest

from dpbo.accounting import (
    GDPFilter,
    Planned,
    PureFilter,
    RDPFilter,
    ZCDPFilter,
    calibrate,
    compose,
    event_costs,
    selection_bounds,
)
from dpbo.accounting.calibration import convert_adjacency
from dpbo.accounting.planned import accounting_named
from dpbo.accounting.run_count_tuning import _fitting, choose_run_count, scale_base
from dpbo.curator.birth import Birth
from dpbo.curator.ledger import Ledger
from dpbo.errors import BudgetExceeded, InputError, UsageError
from dpbo.events import DeclassifiedEvent, GaussianEvent, LaplaceEvent, PoissonGaussianEvent, SelectionEvent, event_from_json
from dpbo.privacy import Adjacency, Budget
from dpbo.run_counts import BinomialRuns, FixedRuns, PoissonRuns, ThresholdStop, TruncatedNegativeBinomial, TruncatedPoisson

STEPS = PoissonGaussianEvent(1.1, 300, rate=0.01, relation="add-or-remove-one")
GEOMETRIC = TruncatedNegativeBinomial.of_mean(10.0)
LAWS = [GEOMETRIC, PoissonRuns(4.0), TruncatedPoisson(3.0), BinomialRuns(6, 0.5), FixedRuns(3), ThresholdStop(0.1)]
MIXED = SelectionEvent(base=(STEPS, GaussianEvent(9.0), LaplaceEvent(40.0, 2)), run_count=GEOMETRIC)
PURE = SelectionEvent(base=(LaplaceEvent(20.0, 2),), run_count=GEOMETRIC)
TWO = SelectionEvent(base=(GaussianEvent(3.0),), run_count=FixedRuns(2))
BUDGET = Budget(3.0, 1e-6)


def test_json_keeps_every_digit():
    for law in LAWS:
        event = SelectionEvent(0.7, 2, base=(STEPS, GaussianEvent(1 / 3)), run_count=law)
        for one in (event, SelectionEvent(base=(event, GaussianEvent(4.0)), run_count=PoissonRuns(2.0))):
            assert event_from_json(json.loads(json.dumps(one.to_json()))) == one


def test_bad_events_are_refused():
    for change in ({"base": ()}, {"base": [GaussianEvent(1.0), "laplace"]}, {"base": (DeclassifiedEvent(),)},
                   {"run_count": "geometric"}, {"noise_multiplier": 0.0},
                   {"base": (STEPS, dataclasses.replace(STEPS, relation="replace-one"))}):  # fmt: skip
        with pytest.raises(InputError):
            dataclasses.replace(MIXED, **change)
    listed: dict[str, Any] = {"base": list(MIXED.base)}
    assert dataclasses.replace(MIXED, **listed) == MIXED
    for broken in ({"run_count": {"distribution": "of the jungle"}}, {"more": 1}):
        with pytest.raises(ValueError, match="newer"):
            event_from_json({**MIXED.to_json(), **broken})


def birth(accounting, budget, adjacency="add-or-remove-one"):
    return Birth(dataset="d", unit="record", grouped=False, adjacency=Adjacency(adjacency), role="training", budget=budget,
                 accounting=accounting)  # fmt: skip


@pytest.mark.parametrize("accounting", [Planned([MIXED, GaussianEvent(20.0, 3)]), RDPFilter(12.0)], ids=["planned", "renyi"])
def test_the_ledger_keeps_and_replays_it(tmp_path, accounting):
    path = str(tmp_path / "l.db")
    ledger = Ledger(path, birth(accounting, Budget(20.0, 1e-6)))
    ledger.charge("tuning", MIXED, {"slots": [{}]})
    ledger.charge("after", GaussianEvent(20.0, 3), {"slots": [{}] * 3})
    again = Ledger.open(path)
    again.verify()
    charged = next(record for record in again.records() if record.kind == "charge")
    assert event_from_json(charged.body["event"]) == MIXED
    assert accounting_named(accounting.name) == accounting
    with pytest.raises(BudgetExceeded):
        ledger.charge("more", MIXED.repeated(40), {"slots": [{}] * 40})


def test_a_base_in_another_relation_is_refused():
    with pytest.raises(InputError, match="relation"):
        Ledger(None, birth(Planned([MIXED]), Budget(20.0, 1e-6), "replace-one"))
    converted = convert_adjacency(MIXED, Adjacency.ADD_OR_REMOVE_ONE, Adjacency.REPLACE_ONE)
    assert converted.relations() == {"replace-one"}
    assert converted.base[1:] == (GaussianEvent(4.5), LaplaceEvent(20.0, 2))
    Ledger(None, birth(Planned([converted]), Budget(40.0, 1e-6), "replace-one"))


def test_which_filters_can_pay():
    for accounting in (GDPFilter(), ZCDPFilter(), PureFilter()):
        assert accounting.price(MIXED) is None
    epsilon = float(PureFilter().cost(PURE).parts[0])
    assert 0.1 < epsilon < 3 * 0.1
    assert float(GDPFilter().cost(PURE).parts[0]) > 0
    assert float(ZCDPFilter().cost(PURE).parts[0]) == pytest.approx(epsilon**2 / 2)
    assert float(RDPFilter(8.0).cost(PURE).parts[0]) <= epsilon
    assert compose([PURE], delta=0.0).epsilon == pytest.approx(epsilon)
    assert compose([PURE], delta=1e-6).epsilon <= epsilon


def test_a_threshold_costs_no_more_than_opendp_says():
    import opendp.prelude as dp

    dp.enable_features("contrib", "honest-but-curious")
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
    one = space >> dp.m.then_user_measurement(
        dp.max_divergence(), lambda x: (0.0, "never asked"), lambda d_in: d_in, TO="(f64, ExtrinsicObject)"
    )
    theirs = dp.c.make_select_private_candidate(one, threshold=0.5, stop_probability=0.01)
    for epsilon in (0.1, 1.0):
        ours = float(PureFilter().cost(SelectionEvent(base=(LaplaceEvent(1 / epsilon),), run_count=ThresholdStop(0.01))).parts[0])
        assert 1.9 * epsilon < ours <= theirs.map(epsilon)


def test_a_selection_fits_alone_by_its_profile_and_beside_others_by_the_composition():
    epsilon = compose([TWO], delta=1e-6).epsilon
    assert _fitting(Budget(epsilon * (1 + 1e-5), 1e-6), ())(TWO)
    assert not _fitting(Budget(epsilon * (1 - 1e-4), 1e-6), ())(TWO)
    beside = [GaussianEvent(4.0)]
    together = compose([TWO, *beside], delta=1e-6).epsilon
    assert _fitting(Budget(together, 1e-6), beside)(TWO)
    assert not _fitting(Budget(together * (1 - 1e-9), 1e-6), beside)(TWO)
    for noise in (1.0, 3.0, 9.0):
        event = SelectionEvent(base=(GaussianEvent(noise),), run_count=FixedRuns(2))
        epsilon = compose([event], delta=1e-6).epsilon
        assert not _fitting(Budget(math.nextafter(epsilon, 0), 1e-6), ())(event), noise
    event = SelectionEvent(base=(LaplaceEvent(20.0),), run_count=FixedRuns(2))
    pure, read = float(event_costs.pure(event) or 0), compose([event], delta=1e-3).epsilon
    assert read < 0.98 * pure
    assert _fitting(Budget(pure * (1 + 1e-9), 1e-30), ())(event), "the profile has more than this delta everywhere"
    assert _fitting(Budget(0.99 * pure, 1e-3), ())(event), "the profile has less than this delta there"
    assert not _fitting(Budget(0.99 * pure, 1e-30), ())(event)


def test_a_law_is_chosen_for_a_budget():
    budget, base, shapes = Budget(2.0, 1e-6), (GaussianEvent(4.0),), (0.0, 1.0, math.inf)
    choice = choose_run_count(budget, base, runs=20, shapes=shapes)
    assert choice.epsilon <= 2.0
    assert choice.expected <= 20 * (1 + 1e-9)
    assert choice.usually == choice.run_count.quantile(0.95) > choice.expected
    assert choice.reach == selection_bounds.reach(choice.run_count, 1 / 20), "how surely some run is among the best 1/20"
    for shape in shapes:
        assert choose_run_count(budget, base, runs=20, shapes=[shape]).reach <= choice.reach
    poor = choose_run_count(Budget(1.7, 1e-6), base, runs=20, shapes=[1.0])
    assert poor.epsilon <= 1.7
    assert poor.reach < choice.reach
    more = TruncatedNegativeBinomial.of_mean(1.0 + 1.0102 * (poor.expected - 1.0))
    assert compose([SelectionEvent(base=base, run_count=more)], delta=1e-6).epsilon > 1.7, "one per cent more runs beyond the first"
    rich = choose_run_count(Budget(9.0, 1e-6), base, runs=20)
    assert isinstance(rich.run_count, TruncatedPoisson), "the most concentrated law"
    assert rich.expected == pytest.approx(20)
    joint = choose_run_count(budget, base, runs=5, beside=[GaussianEvent(20.0)], shapes=[1.0])
    assert compose([joint.event, GaussianEvent(20.0)], delta=1e-6).epsilon <= 2.0
    with pytest.raises(InputError, match="budget"):
        choose_run_count(Budget(0.5, 1e-6), base, runs=20)
    for wrong in (1.0, 1.009, 2e6, math.nan, "20", True):
        with pytest.raises(InputError, match="runs"):
            choose_run_count(budget, base, runs=wrong)  # type: ignore[arg-type]


def test_the_noise_of_runs_is_the_least_that_keeps_the_budget():
    """To four digits, wherever the search begins, and never read above the budget."""
    scales = []
    for start in (5.00023, 50.0):
        event = scale_base(BUDGET, [GaussianEvent(start)], FixedRuns(2))
        assert 3.0 * (1 - 2e-4) < compose([event], delta=1e-6).epsilon <= 3.0
        less = dataclasses.replace(event, noise_multiplier=event.noise_multiplier * (1 - 3e-4))
        assert compose([less], delta=1e-6).epsilon > 3.0
        scales.append(event.noise_multiplier * start)
    assert scales == pytest.approx([scales[0]] * 2, rel=3e-4)
    beside = scale_base(BUDGET, (GaussianEvent(5.0),), GEOMETRIC, beside=[GaussianEvent(5.0)])
    assert 3.0 * (1 - 5e-4) < compose([beside, GaussianEvent(5.0)], delta=1e-6).epsilon <= 3.0
    of_filter = calibrate(Budget(1.0, 0.0), releases=1, accounting=PureFilter(),
                          event=lambda m, count=1: SelectionEvent(m, count, base=(LaplaceEvent(1.0),), run_count=GEOMETRIC))  # fmt: skip
    fitted = SelectionEvent(of_filter, base=(LaplaceEvent(1.0),), run_count=GEOMETRIC)
    assert float(PureFilter().cost(fitted).parts[0]) == pytest.approx(1.0)


def test_budgets_that_no_noise_meets_and_bases_that_cost_nothing_are_refused():
    for budget in (Budget(3.0, 0.0), Budget.gdp(1.0)):
        for call in (
            lambda budget=budget: choose_run_count(budget, [GaussianEvent(9.0)], runs=5),
            lambda budget=budget: scale_base(budget, [GaussianEvent(9.0)], FixedRuns(2)),
        ):
            with pytest.raises(InputError, match="given as epsilon and a delta"):
                call()
    spent = compose([GaussianEvent(3.0)], delta=1e-6).epsilon
    with pytest.raises(InputError, match="larger than what the other events"):
        scale_base(Budget(spent * (1 - 1e-6), 1e-6), [GaussianEvent(2.0)], FixedRuns(2), beside=[GaussianEvent(3.0)])
    with pytest.raises(UsageError, match="bounds"):
        scale_base(BUDGET, [LaplaceEvent(1e8)], FixedRuns(2))
