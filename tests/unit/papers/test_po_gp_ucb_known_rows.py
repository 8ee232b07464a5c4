"""From three known rows all the others can be read off PO-GP-UCB's Z, and off rows with noise no more precisely than the noise allows."""

import math
from typing import Any

import pytest
import torch

from dpbo import Adjacency, Budget, Curator, PrivacyUnit, RowChange
from dpbo.mechanisms import L2LaplaceMechanism
from dpbo.papers.po_gp_ucb import po_gp_ucb_transform, release_rows, row_noises
from dpbo.papers.po_gp_ucb.row_noise import random_projection
from dpbo.papers.po_gp_ucb.transform import identify_table, recover_rows
from dpbo.queries import RowTable

DOUBLE = torch.float64
BRANCHES = {"if": math.exp(1.1), "else": 1.0}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def grid(side=100):
    axis = torch.linspace(-1, 1, side, dtype=DOUBLE)
    X = torch.cartesian_prod(axis, axis)
    return 25.0 * X / X.norm(dim=1).max()


def published(X, epsilon, r=10, seed=0):
    made = po_gp_ucb_transform(X, epsilon=epsilon, delta=1e-5, r=r, generator=torch.Generator().manual_seed(seed), allow_not_private=True)
    return made.Z, made.inflated


def released(X, kind, epsilon):
    """(Z, deviation of a coordinate's noise) of a real release, pure or at delta = 1e-5, by a curator that protects a row's move by 1."""
    change, pure = RowChange(1.0, diameter=51.0), kind == "l2-laplace"
    A = random_projection(2, 2, seed=1) if kind == "projected" else None
    ways = row_noises(2, budget=Budget(epsilon, 1e-5), sensitivity=1.0)
    way = next(way for way in ways if isinstance(way.mechanism, L2LaplaceMechanism) is pure)
    terms: dict[str, Any] = {"budget": Budget(epsilon, 0.0 if pure else 1e-5), "accounting": way.accounting}
    curator = Curator(X, unit=PrivacyUnit("row"), adjacency=Adjacency.BOUNDED_ROW_CHANGE, row_change=change, **terms)
    rows = release_rows(curator, RowTable((0.0, 0.0), 25.5, row_change=change, projection=A), way.mechanism)
    return rows.Z if A is None else rows.Z @ torch.linalg.inv(A), rows.variance**0.5


KINDS = ["gaussian", "l2-laplace", "projected"]


@pytest.mark.attack("A18")
def test_three_known_rows_give_all_the_others():
    X = grid()
    for branch, epsilon in BRANCHES.items():
        Z, inflated = published(X, epsilon)
        assert inflated is (branch == "else")
        for known in ((0, 99, 9900), (4, 5010, 7777)):  # corners, and inside
            assert float((recover_rows(Z, X[list(known)], known) - X).abs().max()) <= 1e-10
    X = torch.randn(2000, 5, dtype=DOUBLE) * torch.linspace(1, 9, 5, dtype=DOUBLE)
    for epsilon in (1e9, 1.0):
        Z, _ = published(X, epsilon, r=5)
        assert float((recover_rows(Z, X[:6], range(6)) - X).abs().max()) <= 1e-10


@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.attack("A18")
def test_neighbours_are_told_apart_always(branch):
    """Rows moved by 0.01 where the relation allows 1; r = 1 is enough. A coin would be right 20 times of 20 once in a million."""
    X = grid()
    for r in (1, 10):
        right = 0
        for seed in range(20):
            neighbour = X.clone()
            neighbour[int(torch.randint(len(X), ()))] += 0.01 * torch.nn.functional.normalize(torch.randn(2, dtype=DOUBLE), dim=0)
            truth = seed % 2
            Z, _ = published((X, neighbour)[truth], BRANCHES[branch], r, seed)
            right += identify_table(Z, (X, neighbour)) == truth
        assert right == 20, r


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.attack("A18")
def test_rows_with_noise_are_found_no_better_than_the_noise_allows(kind):
    """B is the identity and the noise of unknown rows their own: the error's deviation is at least the noise's. Five standard errors."""
    X = grid()
    Z, deviation = released(X, kind, 3.0)
    order = torch.randperm(len(X))
    for known in (3, 5000):
        indices, others = order[:known].tolist(), order[known:]
        squares = (recover_rows(Z, X[indices], indices) - X)[others].square()
        error = float(squares.sum(1).std() / 2 / len(others) ** 0.5)
        assert float(squares.mean()) >= deviation**2 - 5 * error
        if known > 3:
            assert float(squares.mean()) <= 1.01 * deviation**2 + 5 * error, "of the order of the noise: the attack is no straw man"
