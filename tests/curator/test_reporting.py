"""What a statement says of plans: roles that are none, and what questions under a plan declared otherwise than its terms say."""

import pytest
import torch

from dpbo import Adjacency, Budget, Curator, PrivacyUnit, PrivateObjective
from dpbo.__main__ import main
from dpbo.errors import LedgerMismatch
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import ClippedMean, ClippedSum

EVENT = GaussianMechanism(30.0).event()


def make(**changes):
    settings = {"unit": PrivacyUnit("record"), "adjacency": Adjacency.REPLACE_ONE, "budget": Budget(3.0, 1e-5)}
    return Curator(torch.linspace(0, 1, 200, dtype=torch.float64), **{**settings, **changes})


def score(_x, records):
    return records


def objective(curator, **changes):
    return PrivateObjective(curator, score, **{"score_range": (0.0, 1.0), "evaluations": 6, "budget_share": 0.5, **changes})


def test_a_role_that_earlier_versions_took_from_a_caller_is_told_and_its_plan_goes_on(tmp_path, capsys):
    means = ClippedMean(score, score_range=(0.0, 1.0)).public_inputs()
    planned = GaussianMechanism(objective(make()).noise_multiplier).event()
    kept = {"ledger": str(tmp_path / "l.db"), "dataset": "study"}
    make(**kept).ledger.reserve("objective", planned, 6, {**means, "budget_share": "1/2", "role": "nurse", "evaluations": 1})
    private = make(**kept)
    objective(private, terms={"role": "nurse", "evaluations": 1})(torch.rand(1, 1, dtype=torch.float64))
    statement = private.statement()
    assert statement.role == "validation"
    assert statement.not_protected[-1] == "records of the role 'nurse', which a plan names and dpbo does not know"
    assert statement.public_inputs["objective"]["evaluations"] == 6, "the ledger counts"
    with pytest.raises(LedgerMismatch, match="role"):
        objective(private, terms={"evaluations": 1})
    assert main(["ledger", "show", str(tmp_path / "l.db")]) == main(["ledger", "form", str(tmp_path / "l.db")]) == 0
    assert capsys.readouterr().out.count("'nurse', which") == 2


def test_a_role_of_no_words_is_told_as_well():
    private = make()
    private.ledger.reserve("p", EVENT, 1, {"role": ["training"]})
    private.ledger.reserve("q", EVENT, 1, {"role": "training"})
    statement = private.statement()
    assert statement.role == "validation and training"
    assert "role ['training'], which" in statement.not_protected[-1]


def asked(curator, *queries, plan="objective"):
    law = GaussianMechanism(curator.ledger.plan(plan).event.noise_multiplier)
    return [curator.release_all([curator.evaluate(query)], law, name="other", plan=plan)[0] for query in queries]


def test_what_questions_under_a_plan_declared_otherwise_is_listed_once():
    private = make()
    search = objective(private, name="objective")
    search(torch.rand(1, 1, dtype=torch.float64))
    assert list(private.statement().public_inputs) == ["objective"], "nothing to add"
    asked(private, *[ClippedMean(score, score_range=(-77.0, 99.0), divisor=123.0)] * 2, ClippedSum(score, score_range=(0.0, 2.0)))
    told = private.statement().public_inputs
    assert list(told) == ["objective", "objective, question 1", "objective, question 2"]
    assert told["objective, question 1"] == {"query": "ClippedMean", "score_range": [[-77.0, 99.0]], "divisor": 123.0}
    assert told["objective, question 2"] == {"query": "ClippedSum", "score_range": [[0.0, 2.0]]}
    assert "objective, question 1: query ClippedMean" in str(private.statement())


def test_a_plan_named_as_a_question_keeps_its_terms():
    private = make()
    for name in ("objective", "objective, question 1"):
        objective(private, name=name, budget_share=0.25)
    asked(private, ClippedSum(score, score_range=(0.0, 2.0)))
    told = private.statement().public_inputs
    assert told["objective, question 1"]["evaluations"] == 6
    assert told["objective, question 1 (not a plan)"]["query"] == "ClippedSum"


def test_of_many_kinds_of_question_the_first_five_are_listed():
    private = make()
    objective(private, evaluations=8)
    asked(private, *(ClippedSum(score, score_range=(0.0, 2.0 + i)) for i in range(7)))
    told = private.statement().public_inputs
    assert len(told) == 1 + 5 + 1
    assert told["objective, question 6"] == {"of other kinds": 2, "listed": "in the ledger alone"}


def test_an_old_plan_whose_caller_hid_a_range_is_told_with_the_true_one():
    private = make()
    private.ledger.reserve("objective", EVENT, 6, {"score_range": [[0.0, 0.1]]})
    asked(private, ClippedMean(score, score_range=(0.0, 1000.0)))
    assert private.statement().public_inputs["objective, question 1"]["score_range"] == [[0.0, 1000.0]]
