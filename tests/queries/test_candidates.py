"""Scores of public candidates under the query contract, and chosen from."""

import pytest
import torch

from dpbo import Adjacency, Budget, Curator, PrivacyUnit
from dpbo.accounting import PureFilter
from dpbo.errors import InputError
from dpbo.mechanisms import ExponentialMechanism, PermuteAndFlipMechanism
from dpbo.queries import CandidateScores
from dpbo.testing import QueryContract


@pytest.mark.attack("A5")
@pytest.mark.attack("A9")
class TestCandidates(QueryContract):
    covers = CandidateScores
    metrics = 3

    def query(self, score):
        return CandidateScores(lambda j, records: score(None, records)[:, j], range(3), score_range=(-0.5, 7.3))


def make(records, **settings):
    terms = {"unit": PrivacyUnit("record"), "adjacency": Adjacency.REPLACE_ONE, "budget": Budget(20.0, 0.0), "accounting": PureFilter()}
    return Curator(records, **{**terms, **settings})


@pytest.mark.parametrize("kind", [ExponentialMechanism, PermuteAndFlipMechanism])
def test_the_best_candidate_is_chosen_from_its_fitted_model(kind):
    records = torch.rand(2000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    candidates, fitted = [0.1, 0.5, 0.9], []

    def fit(c):
        fitted.append(c)
        return c * 2

    query = CandidateScores(lambda c, r: (r - c / 2).abs().neg(), candidates, score_range=(-1.0, 0.0), fit=fit)
    curator = make(records)
    assert int(curator.release(query, kind.of(1.0)).value) == 1
    assert fitted == candidates
    assert curator.ledger.head().body["values"][0]["value"] == [1.0]
    assert "candidates 3" in str(curator.statement())


def test_the_sensitivity_is_the_ranges_width_for_all_candidates_at_once():
    query = CandidateScores(lambda c, r: r, range(9), score_range=(0.0, 2.0))
    replaced, removed = (query.sensitivity(a) for a in (Adjacency.REPLACE_ONE, Adjacency.ADD_OR_REMOVE_ONE))
    assert (replaced.linf, replaced.l1) == (2.0, 18.0)
    assert (removed.linf, removed.l1) == (1.0, 9.0)


def test_no_candidates_are_refused():
    with pytest.raises(InputError, match="candidates"):
        CandidateScores(lambda c, r: r, [], score_range=(0.0, 1.0))
