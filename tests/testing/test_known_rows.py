"""Who knows three rows reads all the others off PO-GP-UCB's Z, and off rows with noise no more than the noise allows."""

import math

import pytest
import torch
from scipy.stats import binom

from dpbo import Adjacency, Budget, Curator, PrivacyUnit, RowChange
from dpbo.algorithms.outsourced import po_gp_ucb_transform, random_projection, release_rows, row_noises
from dpbo.errors import InputError
from dpbo.mechanisms import L2LaplaceMechanism
from dpbo.queries import RowTable
from dpbo.testing import outside_column_space, recover_rows, which_published

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
    ways = row_noises(2, budget=Budget(epsilon, 1e-5), moves=1.0)
    way = next(way for way in ways if isinstance(way.mechanism, L2LaplaceMechanism) is pure)
    curator = Curator(
        X,
        unit=PrivacyUnit("row"),
        adjacency=Adjacency.BOUNDED_ROW_CHANGE,
        row_change=change,
        budget=Budget(epsilon, 0.0 if pure else 1e-5),
        accounting=way.accounting,
    )
    rows = release_rows(curator, RowTable((0.0, 0.0), 25.5, row_change=change, projection=A), way.mechanism)
    return rows.Z if A is None else rows.Z @ torch.linalg.inv(A), rows.variance**0.5


KINDS = ["gaussian", "l2-laplace", "projected"]


@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("known", [(0, 99, 9900), (4, 5010, 7777)], ids=["corners", "inside"])
@pytest.mark.attack("A18")
def test_three_known_rows_give_all_the_others(branch, known):
    X = grid()
    Z, inflated = published(X, BRANCHES[branch])
    assert inflated is (branch == "else")
    assert float((recover_rows(Z, X[list(known)], known) - X).abs().max()) <= 1e-10


@pytest.mark.parametrize("branch", BRANCHES)
def test_known_rows_in_more_dimensions(branch):
    X = torch.randn(2000, 5, dtype=DOUBLE) * torch.linspace(1, 9, 5, dtype=DOUBLE)
    Z, _ = published(X, {"if": 1e9, "else": 1.0}[branch], r=5)
    assert float((recover_rows(Z, X[:6], range(6)) - X).abs().max()) <= 1e-10


@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("r", [1, 10])
@pytest.mark.attack("A18")
def test_neighbours_are_told_apart_always(branch, r):
    """Rows moved by 0.01 where the relation allows 1; r = 1 is enough. A coin would be right 20 times of 20 once in a million."""
    X, right = grid(), 0
    for seed in range(20):
        neighbour = X.clone()
        neighbour[int(torch.randint(len(X), ()))] += 0.01 * torch.nn.functional.normalize(torch.randn(2, dtype=DOUBLE), dim=0)
        truth = seed % 2
        Z, _ = published((X, neighbour)[truth], BRANCHES[branch], r, seed)
        right += which_published(Z, (X, neighbour)) == truth
    assert right == 20


def test_the_true_table_leaves_rounding_outside_and_a_neighbour_far_more():
    X = grid()
    Z, _ = published(X, 1.0)
    neighbour = X.clone()
    neighbour[5050] += torch.tensor([1.0, 0.0], dtype=DOUBLE)
    assert outside_column_space(Z, X) < 1e-13
    assert outside_column_space(Z, neighbour) > 1e-4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("known", [3, 5000], ids=["three rows known", "half known"])
@pytest.mark.attack("A18")
def test_rows_with_noise_are_found_no_better_than_the_noise_allows(kind, known):
    """B is the identity and the noise of unknown rows their own: the error's deviation is at least the noise's. Five standard errors."""
    X = grid()
    Z, deviation = released(X, kind, 3.0)
    order = torch.randperm(len(X))
    indices, others = order[:known].tolist(), order[known:]
    squares = (recover_rows(Z, X[indices], indices) - X)[others].square()
    error = float(squares.sum(1).std() / 2 / len(others) ** 0.5)
    assert float(squares.mean()) >= deviation**2 - 5 * error
    if known > 3:
        assert float(squares.mean()) <= 1.01 * deviation**2 + 5 * error, "of the order of the noise: the attack is no straw man"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.attack("A18")
def test_neighbours_of_rows_with_noise_are_told_apart_no_better_than_the_noise_allows(kind):
    """Rows moved by 1 under epsilon = 1: right at most e/(1 + e) of the time, plus delta; 200 trials, wrong alarm once in 10^6."""
    X, right, trials = grid(20), 0, 200
    for trial in range(trials):
        neighbour = X.clone()
        neighbour[7] += torch.tensor([1.0, 0.0], dtype=DOUBLE)
        truth = trial % 2
        Z, _ = released((X, neighbour)[truth], kind, 1.0)
        right += which_published(Z, (X, neighbour)) == truth
    assert binom.sf(right - 1, trials, math.e / (1 + math.e)) > 1e-6


def test_what_is_refused():
    X = grid(4)
    Z, _ = published(X, 1.0, r=3)
    with pytest.raises(InputError, match="known"):
        recover_rows(Z, X[:2], [0, 1])
    with pytest.raises(InputError, match="known"):
        recover_rows(Z, X[:3], [0, 1, 2])
    with pytest.raises(InputError, match="Z="):
        recover_rows(Z[:, :1], X[[0, 1, 4]], [0, 1, 4])
    with pytest.raises(InputError, match="Z="):
        recover_rows(Z, X[[0, 1, 4]], [0, 1])
    with pytest.raises(InputError, match="float64"):
        recover_rows(Z.float(), X[[0, 1, 4]], [0, 1, 4])
