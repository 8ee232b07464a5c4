"""A private selection as an event: what the ledger keeps of it, who can pay for it, and how noise
is found for a budget.
"""

import dataclasses

import pytest

from dpbo.accounting import (
    GDPFilter,
    Planned,
    PureFilter,
    RDPFilter,
    ZCDPFilter,
    compose,
)
from dpbo.accounting.calibration import convert_adjacency
from dpbo.accounting.planned import accounting_named
from dpbo.errors import BudgetExceeded, InputError
from dpbo.events import (
    DeclassifiedEvent,
    GaussianEvent,
    LaplaceEvent,
    PoissonGaussianEvent,
    SelectionEvent,
    event_from_json,
)
from dpbo.ledger.birth import Birth
from dpbo.ledger.ledger import Ledger
from dpbo.privacy import Adjacency, Budget
from dpbo.run_counts import (
    TruncatedNegativeBinomial,
)
from tests.setups import charges, of

STEPS = PoissonGaussianEvent(1.1, 300, rate=0.01, relation="add-or-remove-one")
GEOMETRIC = TruncatedNegativeBinomial.of_mean(10.0)
MIXED = SelectionEvent(base=(STEPS, GaussianEvent(9.0), LaplaceEvent(40.0, 2)), run_count=GEOMETRIC)
PURE = SelectionEvent(base=(LaplaceEvent(20.0, 2),), run_count=GEOMETRIC)


def test_bad_events_are_refused():
    for change in (
        {"base": ()},
        {"base": [GaussianEvent(1.0), "laplace"]},
        {"base": (DeclassifiedEvent(),)},
        {"run_count": "geometric"},
        {"noise_multiplier": 0.0},
        {"base": (STEPS, dataclasses.replace(STEPS, relation="replace-one"))},
    ):
        with pytest.raises(InputError):
            dataclasses.replace(MIXED, **change)
    listed = of(base=list(MIXED.base))
    assert dataclasses.replace(MIXED, **listed) == MIXED
    for broken in ({"run_count": {"distribution": "of the jungle"}}, {"more": 1}):
        with pytest.raises(ValueError, match="newer"):
            event_from_json({**MIXED.to_json(), **broken})


def birth(accounting, budget, adjacency="add-or-remove-one"):
    return Birth(
        dataset="d",
        unit="record",
        grouped=False,
        adjacency=Adjacency(adjacency),
        role="training",
        budget=budget,
        accounting=accounting,
    )


def test_the_ledger_keeps_and_replays_it(tmp_path):
    path = str(tmp_path / "l.db")
    accounting = Planned([MIXED, GaussianEvent(20.0, 3)])
    ledger = Ledger(path, birth(accounting, Budget(20.0, 1e-6)))
    ledger.charge("tuning", MIXED, {"slots": [{}]})
    ledger.charge("after", GaussianEvent(20.0, 3), {"slots": [{}] * 3})
    again = Ledger.open(path)
    again.verify()
    assert event_from_json(charges(again)[0]["event"]) == MIXED
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
        assert accounting.cost_or_none(MIXED) is None
    epsilon = float(PureFilter().cost(PURE).parts[0])
    assert 0.1 < epsilon < 3 * 0.1
    assert float(GDPFilter().cost(PURE).parts[0]) > 0
    assert float(ZCDPFilter().cost(PURE).parts[0]) == pytest.approx(epsilon**2 / 2)
    assert float(RDPFilter(8.0).cost(PURE).parts[0]) <= epsilon
    assert compose([PURE], delta=0.0).epsilon == pytest.approx(epsilon)
    assert compose([PURE], delta=1e-6).epsilon <= epsilon
