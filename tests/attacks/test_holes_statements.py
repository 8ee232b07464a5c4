"""Statements that promised what did not hold, or told what they should not: each test runs the attack that showed it."""

import json
from typing import Any

import pytest
import torch
from gpytorch.kernels import RBFKernel

from dpbo import Adjacency, Budget, Curator, PrivacyUnit
from dpbo.accounting import PureFilter
from dpbo.errors import InputError, PrivateFailure
from dpbo.mechanisms import ExponentialMechanism, LaplaceMechanism, NoNoise
from dpbo.papers.kusner import AdaptiveLipschitz, KusnerSearch, RegularisedBest
from dpbo.queries import ClippedMean

CANDIDATES = torch.linspace(0, 1, 9, dtype=torch.float64).unsqueeze(1)
ONCE = AdaptiveLipschitz(RBFKernel().double(), 1e-2, 1)


def make(records: torch.Tensor, epsilon: float = 1.0, **settings: Any) -> Curator:
    terms: dict[str, Any] = {"unit": PrivacyUnit("record"), "adjacency": Adjacency.REPLACE_ONE, "accounting": PureFilter()}
    return Curator(records, budget=Budget(epsilon, 0.0), **{"allow_conditional": True, **terms, **settings})


def best(**changes: Any) -> RegularisedBest:
    """A margin loss, 1/2-Lipschitz in w, whose models are w = 1/l."""
    terms: dict[str, Any] = {"fit": lambda l: 1 / l, "grid": [4.0], "lipschitz": 0.5, "bound": 1.0, "at_zero": 0.5, "records": 5}  # noqa: E741
    return RegularisedBest(lambda w, r: (0.5 - 0.5 * r[:, 1] * w * r[:, 0]).clamp(0, 1), **{**terms, **changes})


def search(delta: float, **changes: Any) -> KusnerSearch:
    terms: dict[str, Any] = {"noise": 1e-2, "evaluations": 2, "kappa": 0.9, "delta": delta, "value_range": (-1.0, 1.0), **changes}
    return KusnerSearch(lambda x, records: 0.0, CANDIDATES, kernel=RBFKernel().double(), **terms)


@pytest.mark.attack("A9", "A19")
def test_the_papers_constants_are_never_vouched_for():
    """One flipped label moves the value by .05, and the paper's constant says .025."""
    data = torch.tensor([[1.0, 1.0]] * 5, dtype=torch.float64)
    flipped = data.clone()
    flipped[0, 1] = -1.0
    for refused in (best, lambda **paper: search(0.1, **{k: v for k, v in paper.items() if k != "adaptive"})):
        with pytest.raises(InputError, match="allow_not_private"):
            refused(constants="paper", adaptive=ONCE)
    query = best(constants="paper", adaptive=ONCE, allow_not_private=True)
    moved = [float(make(records).release(query, NoNoise(allow_not_private=True)).value) for records in (data, flipped)]
    assert abs(moved[0] - moved[1]) > 1.9 * query.sensitivity(Adjacency.REPLACE_ONE).l1 / 5
    for asked in (query, search(0.1, constants="paper", allow_not_private=True).value()):
        curator = make(data)
        curator.release(asked, LaplaceMechanism(1.0))
        statement = curator.statement()
        assert str(statement).startswith("VOID: answers without any guarantee")
        assert str(statement.guarantee) == statement.lines[0] == statement.lines[2].split(",")[0] == "not bounded"


def test_over_the_whole_grid_no_constants_are_taken_or_shown():
    for constants in ("paper", "corrected"):
        with pytest.raises(InputError, match=r"constants=.*whole grid"):
            best(constants=constants, allow_not_private=True)
    assert "constants" not in best().public_inputs()


@pytest.mark.attack("A19")
def test_failure_probabilities_add_up_and_the_headline_begins_with_what_holds_unconditionally():
    """The paper's own union: two releases at delta fail with probability 2 delta; three at .4 promise nothing."""
    curator = make(torch.ones(9, dtype=torch.float64), 15.0)
    for released, probability in ((1, 0.4), (2, 0.8), (3, 1.0)):
        curator.release(search(0.4).best(), ExponentialMechanism.of(5.0))
        statement = curator.statement()
        headline = dict(statement.sections())["Guarantee"]
        assert statement.failure_probability == json.loads(statement.to_json())["failure_probability"] == probability
        assert headline.startswith("unconditionally not bounded; under gp-prior, except with probability ")
        for text in (headline, statement.lines[2], statement.meaning[0]):
            assert f"except with probability {probability}" in text
            assert ("(15.00, 0.0)-DP" in text) == (released < 3 and text is not statement.meaning[0])
    assert str(statement.guarantee) == "not bounded"


@pytest.mark.attack("A21")
def test_nothing_that_readers_see_depends_on_whether_a_score_failed_as_a_whole():
    """Seven of eight records or all eight fail: that was one bit, in the ledger's kinds of record and in the statement."""

    def picky(_: Any, records: torch.Tensor) -> torch.Tensor:
        if bool((records > 0.5).any()):
            raise ValueError
        return records

    seen, failures = [], 0
    for failing in (7, 8):
        curator = make(torch.tensor([1.0] * failing + [0.0] * (8 - failing), dtype=torch.float64))
        try:
            curator.evaluate(ClippedMean(picky, score_range=(0.0, 1.0)))
        except PrivateFailure:
            failures += 1
        statement = curator.statement()
        seen.append(([record.kind for record in curator.ledger.records()], str(statement).replace(statement.head, "")))
    assert failures == 1
    assert seen[0] == seen[1]
    assert "score-total" in statement.assumptions
