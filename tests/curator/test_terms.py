"""What plans are reserved with: a caller hides nothing that dpbo states, and a session resumes under all of a plan's terms."""

import pytest
import torch

from dpbo import Adjacency, Budget, Curator, PrivacyUnit, PrivateObjective
from dpbo.algorithms.outsourced import Outcomes, release_rows
from dpbo.curator.terms import COUNTED, plan_terms
from dpbo.errors import InputError, LedgerMismatch
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import RowTable

EVENT = GaussianMechanism(30.0).event()
OWN = {"score_range": [[0.0, 1.0]]}


def make(**changes):
    settings = {"unit": PrivacyUnit("record"), "adjacency": Adjacency.REPLACE_ONE, "budget": Budget(3.0, 1e-5)}
    return Curator(torch.linspace(0, 1, 400, dtype=torch.float64).reshape(200, 2), **{**settings, **changes})


def kept(tmp_path):
    return {"ledger": str(tmp_path / "l.db"), "dataset": "study"}


def score(_x, records):
    return records[:, 0]


def objective(curator, **changes):
    return PrivateObjective(curator, score, **{"score_range": (0.0, 1.0), "evaluations": 6, "budget_share": 0.5, **changes})


def outcomes(curator, **changes):
    return Outcomes(curator, lambda records: records[0, 0], value_range=(0.0, 1000.0), budget_share=0.5, **changes)


def rows(curator, **changes):
    return release_rows(curator, RowTable((0.0, 0.0), 5.0), GaussianMechanism(20.0), **changes)


EVERY = [(plan, name) for plan in (objective, outcomes, rows) for name in ("role", "records", "assumptions", "attested", *COUNTED)]


@pytest.mark.parametrize(
    ("plan", "name"),
    [*EVERY, (objective, "budget_share"), (objective, "cells"), (outcomes, "value_range"), (rows, "radius"), (rows, "projection")],
)
def test_a_caller_hides_nothing_that_dpbo_states(plan, name):
    private = make()
    with pytest.raises(InputError, match=rf"^terms='{name}' is not allowed.*another name") as caught:
        plan(private, terms={name: 1, "told": "x"})
    assert name in caught.value.allowed
    assert "told" not in str(caught.value)
    assert private.ledger.head().seq == 0


def test_a_plan_that_is_known_is_compared_as_a_whole_and_its_own_terms_still_cannot_be_given():
    assert plan_terms(OWN, {"role": "training"}, known=True) == {**OWN, "role": "training"}
    with pytest.raises(InputError, match="terms='score_range'"):
        plan_terms(OWN, OWN, known=True)


@pytest.mark.parametrize(
    ("terms", "told"),
    [
        *(({name: 1}, name) for name in (*COUNTED, "parallel")),
        ({"role": "nurse"}, "nurse"),
        ({"role": ["training"]}, "role"),
        ({"records": 7}, "records"),
        ({"assumptions": ["gp-prior"]}, "assumptions"),
        ({"assumptions": {"gp-prior": 1}}, "assumptions"),
    ],
    ids=str,
)
@pytest.mark.parametrize("parallel", [False, True])
def test_what_no_statement_could_tell_is_refused_before_anything_is_written(terms, told, parallel):
    private = make(allow_conditional=True)
    before = private.ledger.head()
    with pytest.raises(InputError, match=f"^terms=.*{told}"):
        private.reserve("p", EVENT, slots=1, terms=terms, parallel=parallel)
    assert private.ledger.head() == before
    assert private.statement()


@pytest.mark.parametrize("terms", [{"role": "training"}, {"records": 200}, {"assumptions": {"gp-prior": "in words"}}], ids=str)
def test_what_an_algorithm_states_of_its_plan_is_kept(terms):
    private = make(allow_conditional=True)
    private.reserve("p", EVENT, slots=1, terms=terms)
    assert private.statement().public_inputs["p"] == {"evaluations": 1, **terms}


@pytest.mark.parametrize(("first", "then", "field"), [({"a": 1}, {}, "a"), ({}, {"a": 1}, "a"), ({"a": 1, "b": 2}, {"b": 2}, "a")])
@pytest.mark.parametrize("plan", [objective, outcomes, rows])
def test_a_session_resumes_under_all_terms_and_no_other(tmp_path, plan, first, then, field):
    plan(make(**kept(tmp_path)), terms=first)
    plan(make(**kept(tmp_path)), terms=first)
    with pytest.raises(LedgerMismatch) as caught:
        plan(make(**kept(tmp_path)), terms=then)
    assert caught.value.field == field


def test_terms_are_kept_as_the_ledger_gives_them_back(tmp_path):
    """Two whole numbers as names are sorted as numbers when they are written, and as words once they were read."""
    for _ in range(2):
        private = make(**kept(tmp_path))
        private.reserve("p", EVENT, slots=1, terms={"of": {2: "a", 10: ("b", 1)}})
        assert private.ledger.verify().seq == 1
