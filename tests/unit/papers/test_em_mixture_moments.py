"""Moments of mixtures under the query contract: exact whole numbers, bounds that are reached, and
the paper's constant broken.
"""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbo import Adjacency, Budget
from dpbo.mechanisms import GaussianMechanism
from dpbo.papers.em.mixture_moments import MixtureMoments, responsibilities
from dpbo.papers.em.moment_features import COVARIANCES, features, width_of
from dpbo.queries.ball import Ball, lattice_chunks
from tests.attacks.marks import attack
from tests.contracts.bases import PointContract, tries
from tests.setups import DOUBLE, EXACT, owner

REPLACE = Adjacency.REPLACE_ONE


def natural(K, d, covariance="full", seed=0, sharpness=3.0):
    generator = torch.Generator().manual_seed(seed)
    return sharpness * torch.randn(K, width_of(covariance, d), dtype=DOUBLE, generator=generator)


def split(d, covariance="full"):
    """Two components, told apart by the sign of the first coordinate, sharply."""
    theta = torch.zeros(2, width_of(covariance, d), dtype=DOUBLE)
    theta[0, 1] = 1e3
    theta[1, 1] = -1e3
    return theta


@tries(30, neighbours=150)
@attack("A5", "A9")
class TestSplit(PointContract):
    """Two components, and beside another record the one or the other of two ends."""

    covers = MixtureMoments
    metrics = 3
    covariance = "full"
    orders: tuple[int, ...] = (0, 1, 2)
    weights = (1.0, 1.0, 1.0)
    ends = ((1.0, 0.0, 0.0), (-1.0, 0.0, 0.0))

    def query(self, score):
        return MixtureMoments(
            3,
            ball=Ball(1.0),
            natural=split(3, self.covariance),
            covariance=self.covariance,
            orders=self.orders,
            weights=self.weights,
            vectors=lambda r: score(None, r),
        )

    def worst(self, adjacency):
        rest = [[0.3, 0.1, 0.0]]
        one, other = map(list, self.ends)
        return [[*rest, one], rest + ([other] if adjacency is REPLACE else [])]


@tries(30)
class TestOneComponent(PointContract):
    covers = MixtureMoments
    metrics = 2

    def query(self, score):
        return MixtureMoments(
            2, ball=Ball(5.0), natural=torch.zeros(1, 6).double(), vectors=lambda r: score(None, r)
        )

    def worst(self, adjacency):
        turned = [5 * math.cos(2 * math.pi / 3), 5 * math.sin(2 * math.pi / 3)]
        return [[[5.0, 0]], [turned] if adjacency is REPLACE else []]


@tries(30)
@attack("A5", "A9")
class TestSoft(PointContract):
    """Soft responsibilities, weights, a whitening and a centre; diagonal covariances."""

    covers = MixtureMoments
    metrics = 2
    tight = False

    def query(self, score):
        ball = Ball(
            2.0,
            center=torch.tensor([1.0, -3.0]).double(),
            matrix=torch.tensor([[2.0, 0.3], [0.3, 0.5]]).double(),
        )
        theta = natural(4, 2, "diag")
        return MixtureMoments(
            2,
            ball=ball,
            natural=theta,
            covariance="diag",
            weights=(0.2, 0.5, 1.0),
            vectors=lambda r: score(None, r),
        )

    def worst(self, adjacency):
        return [
            [[1.0, 2.0], [0.0, 1.0]],
            [[1.0, 2.0]] + ([[5.0, 5.0]] if adjacency is REPLACE else []),
        ]


@tries(30, neighbours=150)
@attack("A5", "A9")
class TestTied(TestSplit):
    """Two components and orthogonal records, whose common second moments differ most."""

    covariance = "tied"
    ends = ((math.sqrt(0.5), math.sqrt(0.5), 0.0), (-math.sqrt(0.5), math.sqrt(0.5), 0.0))


@tries(30, neighbours=150)
@attack("A5", "A9")
class TestCountsAndMeans(TestSplit):
    """Without second moments opposite records of one component are as far apart as any."""

    orders = (0, 1)
    weights = (1.0, 2.0, 1.0)
    ends = ((0.02, 0.9998, 0.0), (0.02, -0.9998, 0.0))


@tries(30)
@attack("A5", "A9")
class TestSquares(TestSplit):
    orders = (2,)


def test_counts_and_means_reach_their_l1_sensitivity():
    """Replaced, a record of equal coordinates in one component by its opposite in the other."""
    query = MixtureMoments(4, ball=Ball(1.0), natural=split(4), orders=(0, 1))
    X = torch.full((1, 4), 0.5, dtype=DOUBLE)
    one, other = (make(rows).release(query, EXACT).value for rows in (X, -X))
    assert float((one - other).abs().sum()) == pytest.approx(2 * (1 + math.sqrt(4)), rel=1e-3)
    assert query.sensitivity(REPLACE).l1 == pytest.approx(2 * (1 + math.sqrt(4)))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 40), st.integers(1, 4), st.integers(-200, 200), st.integers(0, 2**32))
@attack("A5")
def test_no_record_is_longer_than_one_and_weights_sum_to_one_exactly(n, d, magnitude, seed):
    rng = np.random.default_rng(seed)
    X = torch.from_numpy(rng.normal(size=(n, d)) * 10.0**magnitude)
    X[rng.integers(0, n)] = float(rng.choice([math.nan, math.inf, -math.inf, 1e308, 5e-324]))
    for norm in ("l2", "linf"):
        ((Z, valid),) = lattice_chunks(X, Ball(0.7, norm=norm), 14, 256)
        most = 1 << 14
        for column, counted in zip(Z.T.tolist(), valid.tolist(), strict=True):
            whole = [int(z) for z in column]
            assert whole == column
            assert (
                sum(z * z for z in whole) if norm == "l2" else max(map(abs, whole)) ** 2
            ) <= most**2
            assert counted or not any(whole)
    gamma = responsibilities(
        torch.from_numpy(rng.normal(size=(5, n)) * 10.0**magnitude),
        torch.ones(n, dtype=torch.bool),
        11,
    )
    assert set(gamma.sum(0).tolist()) <= {0.0, 2048.0}
    assert gamma.min() >= 0


def make(records, mu=1.0, **settings):
    return owner(records, budget=Budget.gdp(mu), **settings)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_they_are_the_moments_of_the_clipped_records(covariance):
    X = torch.randn(5000, 3, dtype=DOUBLE)
    X[3] = math.nan
    theta = natural(3, 3, covariance)
    query = MixtureMoments(3, ball=Ball(1.5), natural=theta, covariance=covariance)
    found = query.table(make(X).release(query, EXACT).value)
    Z = torch.cat([X[:3], X[4:]]) / 1.5
    Z = Z / Z.norm(dim=1, keepdim=True).clamp(min=1.0)
    phi = features(Z.T, covariance)
    expected = (theta @ phi).softmax(0) @ phi.T
    if covariance == "tied":
        expected[:, 4:] = expected[:, 4:].mean(0)
    assert torch.allclose(found, expected, atol=5000 * 2.0**-12)
    assert found[:, 0].sum() == 4999
    first, second = (dataclasses.replace(query, orders=orders) for orders in ((0, 1), (2,)))
    apart = first.table(make(X).release(first, EXACT).value)
    apart += second.table(make(X).release(second, EXACT).value)
    # coordinates alone have finer steps
    assert torch.allclose(apart, found, atol=5000 * 2.0**-12)


def test_noise_follows_the_weights():
    X = torch.zeros(10, 2, dtype=DOUBLE)
    for weights in ((1.0, 1.0, 1.0), (0.25, 0.5, 1.0)):
        query = MixtureMoments(2, ball=Ball(1.0), natural=natural(2, 2), weights=weights)
        std = make(X).release(query, GaussianMechanism(3.0)).variance.sqrt().reshape(2, 6)
        D = math.sqrt(2 * sum(w * w for w in weights))
        q, m, c = (3.0 * D / w for w in weights)
        assert std[1].tolist() == pytest.approx([q, m, m, c, c / math.sqrt(2), c])


def test_the_authors_covariance_moves_four_times_as_far_as_their_noise_is_for():
    """Park et al.'s pmkt3/condGaussCpdCreate.m: (S0 + XX + a xbar xbar') / b, noise for 1 / b."""
    d = 2
    kappa = 1.01

    def statistic(X):
        n = len(X)
        mean = X.mean(0)
        a = kappa * n / (kappa + n)
        scatter = (X - mean).T @ (X - mean)
        return (0.1 * np.eye(d) + scatter + a * np.outer(mean, mean)) / (n + 2 * d + 3)

    X = np.zeros((1000, d))
    X[:, 0] = 1.0
    other = X.copy()
    other[0] = [-1.0, 0.0]
    b = 1000 + 2 * d + 3
    moved = float(np.linalg.norm(statistic(X) - statistic(other)))
    assert moved * b == pytest.approx(4 * 999 / (1000 + kappa))
    assert moved * b > 3.99
