"""QuantileUtilities under the query contract, and a private quantile from end to end."""

import math

import numpy as np
import pytest
import torch

from dpbo import Adjacency, Budget, Curator, PrivacyUnit
from dpbo.accounting import PureFilter
from dpbo.curator.records import PrivateView
from dpbo.errors import InputError, ScoreError
from dpbo.mechanisms import ExponentialMechanism
from dpbo.mechanisms.selection import _LARGEST
from dpbo.queries import QuantileUtilities
from dpbo.queries.integers import MOST_UNITS
from dpbo.queries.quantile import _FINE
from dpbo.queries.query import IntegerSum
from dpbo.testing import QueryContract


@pytest.mark.attack("A5")
@pytest.mark.attack("A9")
class TestQuantile(QueryContract):
    covers = QuantileUtilities

    def query(self, score):
        return QuantileUtilities(score, candidates=[0.0, 0.25, 0.5, 1.0], quantile=0.9)


class TestMedian(QueryContract):
    covers = QuantileUtilities

    def query(self, score):
        return QuantileUtilities(score, candidates=[-1.0, 0.1, 7.0], quantile=0.5)


def norms(_x, records):
    return records


@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ADD_OR_REMOVE_ONE])
@pytest.mark.parametrize("grouped", [False, True])
def test_the_chosen_candidate_is_near_the_quantile(adjacency, grouped):
    records = torch.rand(4000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    unit = PrivacyUnit("patient", groups=np.arange(4000)) if grouped else PrivacyUnit("record")
    curator = Curator(records, unit=unit, adjacency=adjacency, budget=Budget(2.0, 0.0), accounting=PureFilter())
    grid = torch.linspace(0, 1, 101).tolist()
    release = curator.release(QuantileUtilities(norms, candidates=grid, quantile=0.9), ExponentialMechanism.of(1.0))
    assert abs(grid[int(release.value.item())] - 0.9) <= 0.03
    assert "candidates" in str(curator.statement())


@pytest.mark.parametrize("grouped", [False, True])
def test_utilities_count_who_is_below(grouped):
    """-|how many units score less - q n| less the cost of the place; scores on a candidate are not below it, NaN is at the upper end."""
    records = torch.tensor([3.0, -2.0, 5.0, 5.0, 6.9, 100.0, -7.0, 7.0, 0.25, 0.2499, torch.nan], dtype=torch.float64)
    unit = PrivacyUnit("patient", groups=np.arange(11)) if grouped else PrivacyUnit("record")
    view = PrivateView.of(records, unit, units_are_public=True)
    candidates = [-2.0, 0.25, 5.0, 7.0]
    question = QuantileUtilities(norms, candidates=candidates, quantile=0.35, step_cost=0.5)
    answer = question._evaluate(view, None)
    assert isinstance(answer, IntegerSum)
    below = [0, 3, 5, 8]
    expected = [-abs(count - 0.35 * 11) - 0.5 * place for place, count in enumerate(below)]
    assert (answer.numerators.double() * answer.quanta[0]).tolist() == pytest.approx(expected, rel=2e-5), (
        "the step of 2^-20 is shared out in whole parts"
    )
    assert len(set(answer.quanta)) == 1


def test_a_unit_is_below_a_candidate_where_its_truncated_score_is():
    """Also where the candidate lies between two numbers of the lattice, as a tenth does."""
    question = QuantileUtilities(norms, candidates=[0.0, 0.1, 1.0], quantile=0.5)
    step = question._grid(4).quantum
    last = math.floor(0.1 / step) * step
    assert last < 0.1 < last + step
    records = torch.tensor([last - step, last, last + step, 0.7], dtype=torch.float64)
    answer = question._evaluate(PrivateView.of(records, PrivacyUnit("record"), units_are_public=True), None)
    assert isinstance(answer, IntegerSum)
    assert (answer.numerators.double() * answer.quanta[0]).tolist() == [-2.0, 0.0, -2.0]


def test_extreme_quantiles_are_those_that_were_asked_for():
    records = torch.arange(100_000, dtype=torch.float64) / 100_000
    curator = Curator(
        records, unit=PrivacyUnit("record"), adjacency=Adjacency.REPLACE_ONE, budget=Budget(30.0, 0.0), accounting=PureFilter()
    )
    grid = (torch.arange(40) / 10_000).tolist()
    chosen = curator.release(QuantileUtilities(norms, candidates=grid, quantile=0.0004), ExponentialMechanism.of(10.0)).value.item()
    assert abs(grid[int(chosen)] - 0.0004) < 2e-4


def test_costs_that_could_leave_int64_are_refused():
    """The last place's, 10^12 at most, and all units' together keep below what a choice may take."""
    QuantileUtilities(norms, candidates=range(10**6), quantile=0.5, step_cost=1e6)
    with pytest.raises(InputError, match="at most 999999 for 1000001 candidates"):
        QuantileUtilities(norms, candidates=range(10**6 + 1), quantile=0.5, step_cost=1e6)
    last = round(1e6 * _FINE) * (10**6 - 1)
    assert last + _FINE * MOST_UNITS < _LARGEST


def test_bad_questions_are_refused():
    nan = float("nan")
    several = [([1.0], 0.5), ([1.0, 1.0], 0.5), ([0.0, nan], 0.5), ([0.0, 1.0], 1.0), ([0.0, 1.0], 0), ([0.0, 1.0], 1 / 3)]
    for candidates, quantile in several:
        with pytest.raises(InputError):
            QuantileUtilities(norms, candidates=candidates, quantile=quantile)
    curator = Curator(torch.rand(10), unit=PrivacyUnit("record"), adjacency=Adjacency.REPLACE_ONE, budget=Budget(2.0, 0.0),
                      accounting=PureFilter())  # fmt: skip
    with pytest.raises(ScoreError):
        curator.evaluate(QuantileUtilities(lambda _x, r: r[:-1], candidates=[0.0, 1.0], quantile=0.5))
