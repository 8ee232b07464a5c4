"""Utilities to choose by, CandidateScores and QuantileUtilities: under the query contract, and
chosen from.
"""

import math

import numpy as np
import pytest
import torch

from dpbo import Adjacency, Budget, PrivacyUnit
from dpbo.accounting import PureFilter
from dpbo.curator.releasing import noised
from dpbo.errors import InputError
from dpbo.mechanisms import ExponentialMechanism, PermuteAndFlipMechanism
from dpbo.mechanisms.choice import _LARGEST
from dpbo.queries import CandidateScores, QuantileUtilities
from dpbo.queries.integers import MOST_UNITS
from dpbo.queries.utilities import _FINE
from dpbo.testing import QueryContract, SeededEntropy
from tests.attacks.marks import attack
from tests.contracts.bases import exact_sum, tries
from tests.setups import DOUBLE, owner


@tries(40)
@attack("A5", "A9")
class TestCandidates(QueryContract):
    covers = CandidateScores
    metrics = 3

    def query(self, score):
        return CandidateScores(
            lambda j, records: score(None, records)[:, j], range(3), score_range=(-0.5, 7.3)
        )


@tries(40)
@attack("A5", "A9")
class TestQuantile(QueryContract):
    covers = QuantileUtilities

    def query(self, score):
        return QuantileUtilities(score, candidates=[0.0, 0.25, 0.5, 1.0], quantile=0.9)


def norms(_x, records):
    return records


def make(records, epsilon=30.0, **terms):
    return owner(records, budget=Budget(epsilon, 0.0), accounting=PureFilter(), **terms)


def utilities_of(question, records, unit=None):
    """The exact utilities, as floats, and what each is counted in."""
    answer = exact_sum(question, torch.tensor(records, dtype=DOUBLE), unit)
    return (answer.numerators.double() * answer.quanta[0]).tolist(), answer.quanta


@pytest.mark.parametrize("kind", [ExponentialMechanism, PermuteAndFlipMechanism])
def test_the_best_candidate_is_chosen_from_its_fitted_model(kind):
    records = torch.rand(2000, dtype=DOUBLE)
    candidates = [0.1, 0.5, 0.9]
    fitted = []

    def fit(c):
        fitted.append(c)
        return c * 2

    query = CandidateScores(
        lambda c, r: (r - c / 2).abs().neg(), candidates, score_range=(-1.0, 0.0), fit=fit
    )
    curator = make(records)
    assert int(curator.release(query, kind.of(1.0)).value) == 1
    assert fitted == candidates
    assert curator.ledger.head().body["values"][0]["value"] == [1.0]
    assert "candidates 3" in str(curator.statement())


@attack("A8", "A9")
def test_offsets_change_who_is_ahead_and_not_what_a_unit_moves():
    """The mechanism gets the totals and the public offsets, which do not depend on the number of
    records; and a large handicap outweighs a better score.
    """
    offsets = [0.0, 2.0, -7.5]
    query = CandidateScores(
        lambda c, r: 0.0 * r + c, [0.2, 0.5, 0.9], score_range=(0.0, 1.0), offsets=offsets
    )
    sensitivity = query.sensitivity(Adjacency.ADD_OR_REMOVE_ONE)
    received = []

    class Watched(PermuteAndFlipMechanism):
        def _sample(self, numerators, *rest):
            received.append(numerators)
            return super()._sample(numerators, *rest)

    mechanism = Watched.of(1.0)
    for count in (40, 39):
        answer = exact_sum(query, torch.zeros(count, dtype=DOUBLE), public=False)
        law = mechanism.distribution(sensitivity, answer.quanta)
        noised(query, answer, law, mechanism, SeededEntropy(0), units=None)
        added = (received[-1] - answer.numerators) * answer.quanta[0]
        assert added.tolist() == pytest.approx(offsets)
    handicapped = CandidateScores(
        lambda c, r: 0.0 * r + c, [0.2, 0.9], score_range=(0.0, 1.0), offsets=[0.0, -1e6]
    )
    released = make(torch.zeros(1000)).release(handicapped, PermuteAndFlipMechanism.of(1.0))
    assert int(released.value) == 0


@pytest.mark.parametrize(
    "unit",
    [PrivacyUnit("patient", groups=np.arange(11)), PrivacyUnit("record")],
    ids=["grouped", "single"],
)
def test_utilities_count_who_is_below(unit):
    """-|how many units score less - q n| less the cost of the place; scores on a candidate are not
    below it, NaN is at the upper end.
    """
    question = QuantileUtilities(
        norms, candidates=[-2.0, 0.25, 5.0, 7.0], quantile=0.35, step_cost=0.5
    )
    found, quanta = utilities_of(
        question, [3.0, -2.0, 5.0, 5.0, 6.9, 100.0, -7.0, 7.0, 0.25, 0.2499, math.nan], unit
    )
    expected = [-abs(below - 0.35 * 11) - 0.5 * place for place, below in enumerate([0, 3, 5, 8])]
    assert found == pytest.approx(expected, rel=2e-5), (
        "the step of 2^-20 is shared out in whole parts"
    )
    assert len(set(quanta)) == 1


def test_a_unit_is_below_a_candidate_where_its_truncated_score_is():
    """Also where the candidate lies between two numbers of the lattice, as a tenth does."""
    question = QuantileUtilities(norms, candidates=[0.0, 0.1, 1.0], quantile=0.5)
    step = question._grid(4).quantum
    last = math.floor(0.1 / step) * step
    assert last < 0.1 < last + step
    assert utilities_of(question, [last - step, last, last + step, 0.7])[0] == [-2.0, 0.0, -2.0]


def test_costs_that_could_leave_int64_are_refused():
    """The last place's, 10^12 at most, and all units' together keep below what a choice may
    take.
    """
    with pytest.raises(InputError, match="at most 999999 for 1000001 candidates"):
        QuantileUtilities(norms, candidates=range(10**6 + 1), quantile=0.5, step_cost=1e6)
    assert round(1e6 * _FINE) * (10**6 - 1) + _FINE * MOST_UNITS < _LARGEST
