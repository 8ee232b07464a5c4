"""Second moments and cluster sums under the query contract."""

import dataclasses
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch

from dpbo import Adjacency, Budget, PrivacyUnit, Source
from dpbo.errors import PrivateFailure
from dpbo.papers.em.point_sums import ClusterSums, SecondMoment
from dpbo.queries.ball import Ball
from dpbo.queries.query import IntegerSum
from dpbo.records.view import PrivateView
from tests.attacks.marks import attack
from tests.contracts.bases import PointContract, tries
from tests.setups import DOUBLE, EXACT, owner

REPLACE, ADD = Adjacency.REPLACE_ONE, Adjacency.ADD_OR_REMOVE_ONE
CENTERS = torch.tensor([[0.5, 0.0], [-0.5, 0.0], [0.0, 9.0]]).double()


@tries(50)
@attack("A5", "A9")
class TestSecondMoment(PointContract):
    covers = SecondMoment
    metrics = 3

    def query(self, score):
        return SecondMoment(3, ball=Ball(2.0), vectors=lambda r: score(None, r))

    def worst(self, adjacency):
        rest = [[1.0, 1.0, 0.0]]
        return [[*rest, [0, 2.0, 0]], rest + ([[1e9, 0, 0]] if adjacency is REPLACE else [])]


@tries(30)
@attack("A5", "A9")
class TestCountedSecondMoment(PointContract):
    covers = SecondMoment
    metrics = 3

    def query(self, score):
        return SecondMoment(3, ball=Ball(2.0), counted=True, vectors=lambda r: score(None, r))

    def worst(self, adjacency):
        rest = [[1.0, 1.0, 0.0]]
        return [[*rest, [0, 2.0, 0]], rest + ([[math.nan] * 3] if adjacency is REPLACE else [])]


@tries(30)
@attack("A5", "A9")
class TestClusters(PointContract):  # different centres and the same one are equally far apart
    covers = ClusterSums
    metrics = 2

    def query(self, score):
        return ClusterSums(2, ball=Ball(1.0), centers=CENTERS, vectors=lambda r: score(None, r))

    def worst(self, adjacency):
        return [[[1.0, 0], [0.1, 0]], [[0.1, 0]] + ([[-1.0, 0]] if adjacency is REPLACE else [])]


@tries(30)
@attack("A5", "A9")
class TestCube(PointContract):
    covers = ClusterSums
    metrics = 2

    def query(self, score):
        ball = Ball(3.0, norm="linf")
        return ClusterSums(
            2, ball=ball, centers=CENTERS[2:], weights=(2.0, 1.0), vectors=lambda r: score(None, r)
        )

    def worst(self, adjacency):
        return [
            [[3.0, 3.0], [0.1, 0]],
            [[0.1, 0]] + ([[-9.0, -4.0]] if adjacency is REPLACE else []),
        ]


def make(records, **terms):
    return owner(records, budget=Budget.gdp(1.0), **terms)


@pytest.mark.parametrize("adjacency", [REPLACE, ADD])
def test_they_are_what_they_say(adjacency):
    X = np.random.default_rng(0).normal(size=(3000, 4))
    X[7] = math.inf
    kept = torch.from_numpy(np.delete(X, 7, 0)) / 5.0
    kept = kept / kept.norm(dim=1, keepdim=True).clamp(min=1.0)
    step = 2e-4 if adjacency is ADD else 2e-5  # a private number of records leaves fewer bits
    moment = make(X, adjacency=adjacency).release(SecondMoment(4, ball=Ball(5.0)), EXACT).value
    i, j = torch.triu_indices(4, 4)
    assert torch.allclose(moment, (kept.T @ kept)[i, j], atol=3000 * step)
    both = SecondMoment(4, ball=Ball(5.0), counted=True)
    counted = make(X, adjacency=adjacency).release(both, EXACT).value
    assert counted[0] == 2999
    assert torch.allclose(counted[1:], moment, atol=3000 * step)
    # of other lengths than each other
    centers = torch.tensor([[0.3], [0.6], [1.0]]).double() * torch.eye(4).double()[:3]
    sums = (
        make(X, adjacency=adjacency)
        .release(ClusterSums(4, ball=Ball(5.0), centers=centers), EXACT)
        .value.reshape(3, 5)
    )
    nearest = torch.cdist(kept, centers).argmin(1)
    for k in range(3):
        assert abs(float(sums[k, 0]) - int((nearest == k).sum())) <= 2, (
            "ties within a step may fall either way"
        )
        assert torch.allclose(sums[k, 1:], kept[nearest == k].sum(0), atol=2.0)
    assert sums[:, 0].sum() == 2999


@attack("A4")
def test_one_record_changes_no_others_bits_nor_does_its_place():
    for n in (1, 4095, 8193):
        X = torch.randn(n + 1, 5, dtype=DOUBLE)
        ball = Ball(1.0)
        for query in (
            SecondMoment(5, ball=ball),
            ClusterSums(5, ball=ball, centers=X[:1]),
            ClusterSums(5, ball=ball, centers=X[:2000]),
        ):
            whole, rest, one = (query._total([part], n + 1) for part in (X, X[1:], X[:1]))
            assert torch.equal(rest + one, whole), (n, query)
    for _ in range(30):
        center, record = (torch.randn(5, dtype=DOUBLE) for _ in range(2))
        record = 0.3 * (record + record.flip(0)) / record.norm()
        far = 9.0 * torch.eye(5, dtype=DOUBLE)
        query = ClusterSums(
            5, ball=Ball(1.0), centers=torch.cat([torch.stack([center, center.flip(0)]), far])
        )
        total = query._total([record.expand(2 * 4096, 5).contiguous()], 2 * 4096)
        assert (total.reshape(7, 6)[:, 0] != 0).sum() == 1


@attack("A4")
def test_products_of_centres_and_lattice_vectors_are_exact_in_every_order():
    """Any order of sums passes whole numbers below 2^53 alone, also where every coordinate is as
    long as it may be.
    """
    sizes = torch.tensor([[1.0], [1e-300], [1e60], [1e90]], dtype=DOUBLE)
    for d in (1, 3, 64, 1000):
        generator = torch.Generator().manual_seed(d)
        given = sizes * torch.randn(4, d, dtype=DOUBLE, generator=generator)
        given = torch.cat([given, 1.0 - 1e-6 * torch.rand(1, d, dtype=DOUBLE, generator=generator)])
        centers = torch.cat([given, torch.full((1, d), 1e308, dtype=DOUBLE)])
        kept = ClusterSums(d, ball=Ball(1.0, norm="linf"), centers=centers).centers
        assert torch.all(
            (kept[:5] - given).abs() <= 2.0**-20 * given.abs().amax(1, keepdim=True)
        ), d
        for row in kept.tolist():
            fine = max(Fraction(number).denominator for number in row)
            numbers = [int(Fraction(number) * fine) for number in row]
            common = math.gcd(*numbers)
            assert sum(map(abs, numbers)) // (common & -common) * 2**20 <= 2**53, (
                "in steps of the largest power of two in all of them"
            )


def exact_sum(query, view):
    answer = query._evaluate(view, None)
    assert isinstance(answer, IntegerSum)
    return answer.numerators.tolist()


@attack("A4")
@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_kept_places_are_those_of_the_same_records_and_ball(norm):
    """Steps of one search keep the records' places; another ball, changed records and other records
    get places of their own.
    """
    X = torch.randn(20_000, 2, dtype=DOUBLE)
    X[3] = math.nan
    X[19999] = -math.inf
    view = PrivateView.of(X, PrivacyUnit("record"), units_are_public=True)
    first = Ball(1.0, norm=norm)
    second = Ball(1.5, norm=norm)
    for ball, shift, records in (
        (first, 0.0, X),
        (first, 0.3, X),
        (second, 0.3, X),
        (first, 0.1, X),
        (first, 0.1, 2.0 * X),
    ):
        query = ClusterSums(2, ball=ball, centers=CENTERS + shift, keep=True)
        seen = view if records is X else dataclasses.replace(view, container=records)
        expected = query._total([records], len(records))
        assert exact_sum(query, seen) == expected.tolist()
    X.mul_(0.5)
    assert exact_sum(query, view) == query._total([X], len(X)).tolist()
    assert not pickle.loads(pickle.dumps(view))._kept, "workers are sent the records alone"


@attack("A5", "A9")
def test_kept_places_of_narrow_records_answer_no_question_about_wider_ones():
    """Else a record would be repeated in each coordinate, and be five times as long as a ball's
    radius.
    """
    ball = Ball(1.0)
    load = Source(lambda: torch.ones(1000, 1, dtype=DOUBLE))
    curator = make(load)
    narrow, wide = (
        ClusterSums(d, ball=ball, centers=torch.zeros(1, d, dtype=DOUBLE), keep=True)
        for d in (1, 25)
    )
    curator.evaluate(narrow)
    with pytest.raises(PrivateFailure):
        curator.evaluate(wide)
