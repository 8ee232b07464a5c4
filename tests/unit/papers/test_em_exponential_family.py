"""The general DP-EM: what its question can move by, that its noise is for that, and a mixture of
Poissons as its third instance.
"""

import functools
import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from sklearn.utils.estimator_checks import check_estimator

from dpbo import Adjacency, Budget, PrivacyUnit
from dpbo.errors import InputError, LedgerMismatch, ScoreError
from dpbo.papers.em import DPEM
from dpbo.papers.em.point_sums import VectorSum
from dpbo.queries.ball import Ball
from tests.attacks.marks import attack
from tests.contracts.bases import PointContract, tries
from tests.setups import DOUBLE, EXACT, of
from tests.unit.papers.test_em_mixture import NOT_APPLICABLE, make

REPLACE, ADD = Adjacency.REPLACE_ONE, Adjacency.ADD_OR_REMOVE_ONE
MOST = 20.0  # events that a record counts for, in each of two columns
START = (torch.tensor([0.5, 0.5]).double(), torch.tensor([[2.0, 8.0], [8.0, 2.0]]).double())


def poissons(theta, records):
    """gamma_k and gamma_k x of two components of two Poisson counts: six numbers, of length sqrt 2
    at most.
    """
    weights, rates = theta
    x = torch.as_tensor(records, dtype=DOUBLE).clamp(0.0, MOST)
    gamma = torch.softmax(weights.log() + x @ rates.log().T - rates.sum(1), 1)
    sums = gamma.unsqueeze(2) * x.unsqueeze(1) / (MOST * math.sqrt(2.0))
    return torch.cat([gamma, sums.flatten(1)], 1)


def rates_of(moments, noise):
    weights = torch.maximum(moments[:2], 3.0 * noise[:2]).clamp(min=1e-3)
    rates = MOST * math.sqrt(2.0) * moments[2:].reshape(2, 2) / weights.unsqueeze(1)
    return weights / weights.sum(), rates.clamp(0.1, MOST)


def em(**changes):
    settings = of(
        statistics=poissons,
        bound=math.sqrt(2.0),
        m_step=rates_of,
        start=START,
        size=6,
        budget=Budget(1.0, 1e-6),
    )
    return DPEM(**{**settings, **changes})


def counts(n=4000, seed=0):
    rng = np.random.default_rng(seed)
    first = rng.random(n) < 0.7
    return rng.poisson(np.where(first[:, None], [1.0, 6.0], [9.0, 3.0])).astype(float)


@tries(40, neighbours=200)
@attack("A5", "A9")
class TestVectorSum(PointContract):
    covers = VectorSum
    metrics = 3
    nonnegative = False
    furthest = (0.0, -9.0, 0.0)

    def query(self, score):
        return VectorSum(
            3,
            ball=Ball(2.0),
            weights=(0.5, 1.0),
            nonnegative=self.nonnegative,
            vectors=lambda records: score(None, records),
        )

    def worst(self, adjacency):
        rest = [[1.0, -1.0, 0.0]]
        other = [[*self.furthest]] if adjacency is REPLACE else []
        return [[*rest, [0, 2.0, 0]], rest + other]


@tries(40, neighbours=200)
@attack("A5", "A9")
class TestNonnegative(TestVectorSum):
    nonnegative = True
    furthest = (9.0, 0.0, 0.0)

    def test_what_is_below_zero_counts_as_zero(self):
        query = self.query(lambda _, records: records)
        below, zero = (
            self._of_units(query, [[[0.0, middle, 1.0]]], DOUBLE, 1) for middle in (-1.0, 0.0)
        )
        assert below.numerators.tolist() == zero.numerators.tolist()


@tries(40, neighbours=200)
@attack("A5", "A9")
class TestPoissons(PointContract):
    """The question of a mixture of Poissons, as `DPEM` asks it."""

    covers = VectorSum
    metrics = 2
    tight = False

    def query(self, score):
        asks = em(
            statistics=lambda theta, records: poissons(theta, score(None, records)),
            nonnegative=True,
        )
        return asks._question(START)

    def worst(self, adjacency):
        rest = [[1.0, 1.0]]
        return [[*rest, [0.0, 20.0]], rest + ([[20.0, 0.0]] if adjacency is REPLACE else [])]


@pytest.mark.parametrize(
    ("adjacency", "nonnegative", "moved"),
    [
        (REPLACE, False, 2.0),
        (REPLACE, True, math.sqrt(2.0)),
        (ADD, False, math.sqrt(1.25)),
        (ADD, True, math.sqrt(1.25)),
    ],
)
def test_the_noise_is_for_what_a_record_can_move(adjacency, nonnegative, moved):
    """Of the mean: 2 C / N where N is public, and of the sum and its divisor where it is not."""
    seen = []

    def keep(moments, noise):
        seen.append(noise)
        return START

    fitted = em(
        adjacency=adjacency, nonnegative=nonnegative, m_step=keep, bound=3.0, max_iter=2
    ).fit(counts(400))
    expected = fitted.noise_multiplier_ * moved * 3.0 / 400
    near = 1e-6 if adjacency is REPLACE else 0.5
    assert seen[0].tolist() == pytest.approx([expected] * 6, rel=near)
    assert seen[0].unique().numel() == 1


def test_it_is_em_without_noise_and_close_to_it_with():
    X = counts(40_000)
    theta = START
    for _ in range(10):
        theta = rates_of(poissons(theta, X).mean(0), torch.zeros(6))
    exact = em(mechanism=EXACT).fit(X).parameters_
    private = em(nonnegative=True).fit(X)
    for part, expected, noised in zip(exact, theta, private.parameters_, strict=True):
        assert torch.allclose(part, expected, rtol=1e-3)
        assert torch.allclose(noised, expected, atol=0.5)
    assert "(1.000, 1e-06)-DP" in str(private.statement())
    assert float(private.parameters_[0].max()) == pytest.approx(0.7, abs=0.05)


@attack("A16")
def test_it_resumes_with_what_it_began_with_alone(on_disk):
    X = counts(400)
    first, again = (em(budget=0.5).fit(make(X, **on_disk)) for _ in range(2))
    assert torch.equal(first.parameters_[1], again.parameters_[1])
    assert make(X, **on_disk).ledger.used() == {"em": 10}
    for changes in (
        {"m_step": lambda moments, noise: rates_of(2 * moments, noise)},
        {"statistics": lambda theta, records: 0.5 * poissons(theta, records)},
        {"start": (START[0], START[1] + 1.0)},
    ):
        with pytest.raises(LedgerMismatch):
            em(budget=0.5, **changes).fit(make(X, **on_disk))


def row_sums(theta, records):
    return torch.as_tensor(records).sum(1, keepdim=True)


def moments_alone(moments, noise):
    return moments


@pytest.mark.deep
def test_scikit_learns_own_checks():
    estimator = DPEM(
        row_sums,
        1.0,
        moments_alone,
        start=0.0,
        size=1,
        max_iter=1,
        budget=Budget.gdp(20.0),
    )
    checked = check_estimator(estimator, expected_failed_checks=NOT_APPLICABLE, on_skip=None)
    assert sum(result["status"] == "passed" for result in checked) > 25


class Rates(NamedTuple):
    rates: torch.Tensor


@attack("A4")
@pytest.mark.parametrize("start", [torch.ones(1).double(), Rates(torch.ones(1).double())])
def test_what_the_statistics_write_into_theta_reaches_no_other_call(start):
    """Where one record made them fail, they were called again, and all others' were halved."""

    def halved(theta, records):
        rates = theta.rates if isinstance(theta, Rates) else theta
        rates.mul_(0.5)
        if bool((records < 0.0).any()):
            raise ValueError
        return records * rates

    def moment(first):
        records = np.full((100, 1), 0.5)
        records[0] = first
        settings = {"start": start, "size": 1, "max_iter": 1, "mechanism": EXACT}
        fitted = em(statistics=halved, m_step=moments_alone, **settings).fit(records)
        return float(fitted.parameters_)

    found = [moment(0.5), moment(0.5), moment(-1.0)]
    assert found == pytest.approx([0.25, 0.25, 0.25], abs=1e-5)


@attack("A4")
def test_statistics_and_vectors_of_several_records_are_refused():
    """Nothing was tried on public records, as it is of every other score."""

    def of_all(theta, records):
        return torch.softmax(records, 0)

    asked = VectorSum(2, ball=Ball(1.0), vectors=functools.partial(of_all, None))
    with pytest.raises(ScoreError, match="each record by itself"):
        make(counts(100)).evaluate(asked)
    with pytest.raises(ScoreError, match="each record by itself"):
        em(statistics=of_all, m_step=moments_alone, size=2).fit(counts(100))


def test_what_it_cannot_do_is_refused_before_the_budget_is_touched():
    curator = make(counts(100), unit=PrivacyUnit("patient", groups=np.arange(100) // 2))
    with pytest.raises(InputError, match="one record"):
        em(budget=0.5).fit(curator)
    assert curator.ledger.used() == {}
