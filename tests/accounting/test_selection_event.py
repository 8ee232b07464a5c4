"""A private selection as an event: kept exactly by the ledger, paid for by what can pay, converted, calibrated."""

import dataclasses
import json
import math

import numpy as np
import pytest

from dpbo.accounting import (
    GDPFilter,
    Planned,
    PureFilter,
    RDPFilter,
    ZCDPFilter,
    calibrate,
    choose_law,
    compose,
    convert,
    scale_base,
    selected,
)
from dpbo.accounting.dominating import base_of, selection_side
from dpbo.accounting.known import accounting_named
from dpbo.curator.ledger import Ledger
from dpbo.errors import BudgetExceeded, InputError
from dpbo.events import DeclassifiedEvent, GaussianEvent, LaplaceEvent, PoissonGaussianEvent, SelectionEvent, event_from_json
from dpbo.laws import BinomialRuns, FixedRuns, PoissonRuns, ThresholdStop, TruncatedNegativeBinomial, TruncatedPoisson
from dpbo.privacy import Adjacency, Budget

STEPS = PoissonGaussianEvent(1.1, 300, rate=0.01, relation="add-or-remove-one")
GEOMETRIC = TruncatedNegativeBinomial.of_mean(10.0)
LAWS = [GEOMETRIC, PoissonRuns(4.0), TruncatedPoisson(3.0), BinomialRuns(6, 0.5), FixedRuns(3), ThresholdStop(0.1)]
MIXED = SelectionEvent(base=(STEPS, GaussianEvent(9.0), LaplaceEvent(40.0, 2)), law=GEOMETRIC)
PURE = SelectionEvent(base=(LaplaceEvent(20.0, 2),), law=GEOMETRIC)


@pytest.mark.parametrize("law", LAWS, ids=[law.name for law in LAWS])
def test_json_keeps_every_digit(law):
    event = SelectionEvent(0.7, 2, base=(STEPS, GaussianEvent(1 / 3)), law=law)
    assert event_from_json(json.loads(json.dumps(event.to_json()))) == event
    nested = SelectionEvent(base=(event, GaussianEvent(4.0)), law=PoissonRuns(2.0))
    assert event_from_json(json.loads(json.dumps(nested.to_json()))) == nested


def test_bad_events_are_named():
    for change in ({"base": ()}, {"base": [GaussianEvent(1.0)]}, {"base": (DeclassifiedEvent(),)},
                   {"law": "geometric"}, {"noise_multiplier": 0.0},
                   {"base": (STEPS, dataclasses.replace(STEPS, relation="replace-one"))}):  # fmt: skip
        with pytest.raises(InputError):
            dataclasses.replace(MIXED, **change)
    broken = MIXED.to_json()
    with pytest.raises(ValueError, match="newer"):
        event_from_json({**broken, "law": {"law": "of the jungle"}})
    with pytest.raises(ValueError, match="newer"):
        event_from_json({**broken, "more": 1})


def test_each_direction_of_a_selection_keeps_its_own_profile():
    event = SelectionEvent(base=(PoissonGaussianEvent(1.1, 30, rate=0.05, relation="add-or-remove-one"),), law=GEOMETRIC)
    base, epsilons = base_of(event.run()), np.linspace(1.0, 3.0, 8)
    assert base is not None
    profiles = [selected.profile(event.law, side, epsilons, spread=event.spread) for side in (base, base.swapped())]
    assert not np.allclose(profiles[0], profiles[1], rtol=0.1)
    for reverse, own in zip((False, True), profiles, strict=True):
        side = selection_side(event, reverse)
        assert side is not None
        assert np.allclose(side.delta(epsilons), own, rtol=0.01)


def birth(accounting, budget, adjacency="add-or-remove-one"):
    return {"dataset": "d", "unit": "record", "grouped": False, "adjacency": adjacency, "role": "training",
            "budget": budget.to_json(), "accounting": accounting.name}  # fmt: skip


@pytest.mark.parametrize("accounting", [Planned([MIXED, GaussianEvent(20.0, 3)]), RDPFilter(12.0)], ids=["planned", "renyi"])
def test_the_ledger_keeps_and_replays_it(tmp_path, accounting):
    path = str(tmp_path / "l.db")
    ledger = Ledger(path, birth(accounting, Budget(20.0, 1e-6)))
    ledger.charge("tuning", MIXED, {"slots": [{}]})
    ledger.charge("after", GaussianEvent(20.0, 3), {"slots": [{}] * 3})
    again = Ledger.existing(path)
    again.verify()
    charged = next(record for record in again.verified() if record.kind == "charge")
    assert event_from_json(charged.body["event"]) == MIXED
    assert accounting_named(accounting.name) == accounting
    more = MIXED.repeated(40)
    with pytest.raises(BudgetExceeded):
        ledger.charge("more", more, {"slots": [{}] * 40})


def test_a_base_in_another_relation_is_refused(tmp_path):
    with pytest.raises(InputError, match="relation"):
        Ledger(None, birth(Planned([MIXED]), Budget(20.0, 1e-6), "replace-one"))
    converted = convert(MIXED, Adjacency.ADD_OR_REMOVE_ONE, Adjacency.REPLACE_ONE)
    assert converted.relations() == {"replace-one"}
    assert converted.base[1:] == (GaussianEvent(4.5), LaplaceEvent(20.0, 2))
    Ledger(None, birth(Planned([converted]), Budget(40.0, 1e-6), "replace-one"))
    assert compose([converted], delta=1e-6).epsilon > compose([MIXED], delta=1e-6).epsilon


def test_who_can_pay():
    assert GDPFilter().price(MIXED) is None
    assert ZCDPFilter().price(MIXED) is None
    assert PureFilter().price(MIXED) is None
    epsilon = float(PureFilter().cost(PURE).parts[0])
    assert 0.1 < epsilon < 3 * 0.1
    assert float(GDPFilter().cost(PURE).parts[0]) > 0
    assert float(ZCDPFilter().cost(PURE).parts[0]) == pytest.approx(epsilon**2 / 2)
    assert float(RDPFilter(8.0).cost(PURE).parts[0]) <= epsilon
    assert compose([PURE], delta=0.0).epsilon == pytest.approx(epsilon)
    assert compose([PURE], delta=1e-6).epsilon <= epsilon


def test_noise_of_runs_is_calibrated_as_any_other():
    budget = Budget(3.0, 1e-6)
    event = scale_base(budget, (LaplaceEvent(20.0), GaussianEvent(9.0)), GEOMETRIC)
    assert budget.epsilon is not None
    assert compose([event], delta=1e-6).epsilon <= budget.epsilon
    tighter = dataclasses.replace(event, noise_multiplier=event.noise_multiplier * 0.999)
    assert compose([tighter], delta=1e-6).epsilon > budget.epsilon * 0.9995
    beside = scale_base(budget, (GaussianEvent(5.0),), GEOMETRIC, beside=[GaussianEvent(5.0)])
    assert compose([beside, GaussianEvent(5.0)], delta=1e-6).epsilon <= budget.epsilon
    of_filter = calibrate(Budget(1.0, 0.0), releases=1, accounting=PureFilter(),
                          event=lambda m, slots=1: SelectionEvent(m, slots, base=(LaplaceEvent(1.0),), law=GEOMETRIC))  # fmt: skip
    assert float(PureFilter().cost(SelectionEvent(of_filter, base=(LaplaceEvent(1.0),), law=GEOMETRIC)).parts[0]) == pytest.approx(1.0)


def test_a_law_is_chosen_for_a_budget():
    budget, base = Budget(2.0, 1e-6), (GaussianEvent(4.0),)
    choice = choose_law(budget, base, runs=20)
    assert choice.epsilon <= 2.0
    assert choice.expected <= 20 * (1 + 1e-9)
    assert choice.usually == choice.law.quantile(0.95) > choice.expected
    for shape in (0.0, 1.0, math.inf):
        assert choose_law(budget, base, runs=20, shapes=[shape]).reach <= choice.reach
    poor = choose_law(Budget(1.7, 1e-6), base, runs=20)
    assert poor.epsilon <= 1.7
    assert poor.reach < choice.reach
    rich = choose_law(Budget(9.0, 1e-6), base, runs=20)
    assert isinstance(rich.law, TruncatedPoisson)
    assert rich.expected == pytest.approx(20)
    joint = choose_law(Budget(2.0, 1e-6), base, runs=5, beside=[GaussianEvent(20.0)], shapes=[1.0])
    assert compose([joint.event, GaussianEvent(20.0)], delta=1e-6).epsilon <= 2.0
    with pytest.raises(InputError, match="budget"):
        choose_law(Budget(0.5, 1e-6), base, runs=20)
    for wrong in (1.0, math.nan, "20"):
        with pytest.raises(InputError, match="runs"):
            choose_law(budget, base, runs=wrong)  # type: ignore[arg-type]


def test_opendps_threshold_law_costs_no_less():
    import opendp.prelude as dp

    dp.enable_features("contrib", "honest-but-curious")
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
    one = space >> dp.m.then_user_measurement(
        dp.max_divergence(), lambda x: (0.0, "never asked"), lambda d_in: d_in, TO="(f64, ExtrinsicObject)"
    )
    theirs = dp.c.make_select_private_candidate(one, threshold=0.5, stop_probability=0.01)
    for epsilon in (0.1, 1.0):
        ours = float(PureFilter().cost(SelectionEvent(base=(LaplaceEvent(1 / epsilon),), law=ThresholdStop(0.01))).parts[0])
        assert 1.9 * epsilon < ours <= theirs.map(epsilon)


@pytest.mark.parametrize("start", [5.0, 5.0001, 5.00023, 5.00031])
def test_a_calibrated_selection_never_reads_above_its_budget(start):
    budget = Budget(2.0, 1e-6)
    event = scale_base(budget, (GaussianEvent(start),), GEOMETRIC)
    assert 2.0 * (1 - 2e-4) < compose([event], delta=1e-6).epsilon <= 2.0
