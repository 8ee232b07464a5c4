"""Plans: a caller hides nothing that dpbo states, a session resumes under all of a plan's terms,
and the statement lists what differs.
"""

import pytest
import torch

from dpbo import Budget, PrivateObjective
from dpbo.errors import InputError, LedgerMismatch
from dpbo.ledger.birth import COUNTED
from dpbo.mechanisms import GaussianMechanism
from dpbo.papers.po_gp_ucb import Outcomes, RowTable, release_rows
from dpbo.queries import ClippedMean, ClippedSum
from tests.setups import DOUBLE, first_column, owner

EVENT = GaussianMechanism(30.0).event()


def make(**changes):
    records = torch.linspace(0, 1, 400, dtype=DOUBLE).reshape(200, 2)
    return owner(records, **{"budget": Budget(3.0, 1e-5), **changes})


def objective(curator, **changes):
    return PrivateObjective(
        curator,
        first_column,
        **{"score_range": (0.0, 1.0), "evaluations": 6, "budget": 0.5, **changes},
    )


def outcomes(curator, **changes):
    return Outcomes(
        curator, lambda records: records[0, 0], value_range=(0.0, 1000.0), budget=0.5, **changes
    )


def rows(curator, **changes):
    return release_rows(curator, RowTable((0.0, 0.0), 5.0), GaussianMechanism(20.0), **changes)


pytestmark = pytest.mark.filterwarnings("ignore:noise .* a coordinate on rows")
PLANS = pytest.mark.parametrize("plan", [objective, outcomes, rows])
OWN_TERMS = {
    objective: ("budget", "cells"),
    outcomes: ("value_range",),
    rows: ("radius", "projection"),
}


@PLANS
def test_a_caller_hides_nothing_that_dpbo_states(plan):
    private = make()
    for name in ("role", "records", "assumptions", "attested", *COUNTED, *OWN_TERMS[plan]):
        with pytest.raises(
            InputError, match=rf"^terms='{name}' is not allowed.*another name"
        ) as caught:
            plan(private, terms={name: 1, "told": "x"})
        assert name in caught.value.allowed
        assert "told" not in str(caught.value)
    assert private.ledger.head().seq == 0


@pytest.mark.parametrize("parallel", [False, True])
def test_what_no_statement_could_tell_is_refused_before_anything_is_written(parallel):
    private = make(allow_conditional=True)
    before = private.ledger.head()
    assumptions = [
        ({"assumptions": wrong}, "assumptions") for wrong in (["gp-prior"], {"gp-prior": 1})
    ]
    roles = [
        ({"role": "nurse"}, "nurse"),
        ({"role": ["training"]}, "role"),
        ({"records": 7}, "records"),
    ]
    for terms, told in [
        *(({name: 1}, name) for name in (*COUNTED, "parallel")),
        *roles,
        *assumptions,
    ]:
        with pytest.raises(InputError, match=f"^terms.*{told}"):
            private.reserve("p", EVENT, slots=1, terms=terms, parallel=parallel)
    assert private.ledger.head() == before
    assert private.statement()


def test_what_an_algorithm_states_of_its_plan_is_kept_as_the_ledger_gives_it_back(on_disk):
    """Two whole numbers as names are sorted as numbers when they are written, and as words once
    they were read.
    """
    for _ in range(2):
        private = make(**on_disk)
        private.reserve("p", EVENT, slots=1, terms={"of": {2: "a", 10: ("b", 1)}})
        assert private.ledger.verify().seq == 1


@PLANS
def test_a_session_resumes_under_all_terms_and_no_other(tmp_path, plan):
    for first, then in (({"a": 1}, {}), ({}, {"a": 1}), ({"a": 1, "b": 2}, {"b": 2})):
        kept = {"ledger": str(tmp_path / f"{len(first)}{len(then)}.db"), "dataset": "study"}
        for _ in range(2):
            plan(make(**kept), terms=first)
        with pytest.raises(LedgerMismatch) as caught:
            plan(make(**kept), terms=then)
        assert caught.value.field == "a"


def asked(curator, *queries, plan="objective"):
    law = GaussianMechanism(curator.ledger.reservation(plan).event.noise_multiplier)
    return [
        curator.release_all([curator.evaluate(query)], law, name="other", reservation=plan)[0]
        for query in queries
    ]


def test_terms_that_questions_change_under_a_plan_are_listed_once_and_five_kinds():
    private = make()
    search = objective(private, name="objective")
    search(torch.rand(1, 1, dtype=DOUBLE))
    assert list(private.statement().public_inputs) == ["objective"], "nothing to add"
    asked(
        private,
        *[ClippedMean(first_column, score_range=(-77.0, 99.0), divisor=123.0)] * 2,
        ClippedSum(first_column, score_range=(0.0, 2.0)),
    )
    told = private.statement().public_inputs
    assert list(told) == ["objective", "objective, question 1", "objective, question 2"]
    assert told["objective, question 1"] == {
        "query": "ClippedMean",
        "score_range": [[-77.0, 99.0]],
        "divisor": 123.0,
    }
    assert told["objective, question 2"] == {"query": "ClippedSum", "score_range": [[0.0, 2.0]]}
    assert "objective, question 1: query ClippedMean" in str(private.statement())
    private = make()
    objective(private, evaluations=8)
    asked(private, *(ClippedSum(first_column, score_range=(0.0, 2.0 + i)) for i in range(7)))
    told = private.statement().public_inputs
    assert len(told) == 1 + 5 + 1
    assert told["objective, question 6"] == {"of other kinds": 2, "listed": "in the ledger alone"}
