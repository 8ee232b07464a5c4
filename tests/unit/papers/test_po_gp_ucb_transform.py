"""PO-GP-UCB's Algorithm 1: as printed, in both branches, against the paper's
numbers.

From three known rows all the others can be read off its Z, and off rows with noise no more
precisely than the noise allows.
"""

import math

import pytest
import torch

from benchmarks.papers.po_gp_ucb_attack import identify_table, recover_rows
from dpbo import Budget, Curator, PrivacyUnit, RowChange
from dpbo.errors import InputError
from dpbo.mechanisms import L2LaplaceMechanism
from dpbo.papers.po_gp_ucb import RowTable, bounds, release_rows, row_noises
from dpbo.papers.po_gp_ucb.row_noise import random_projection
from dpbo.papers.po_gp_ucb.transform import po_gp_ucb_omega, po_gp_ucb_transform
from tests.attacks.marks import attack
from tests.setups import DOUBLE, of

BRANCHES = {"if": math.exp(1.1), "else": 1.0}


def grid(side=100):
    """The paper's synthetic inputs: centred, then scaled to norm 25."""
    axis = torch.linspace(-1, 1, side, dtype=DOUBLE)
    X = torch.cartesian_prod(axis, axis)
    return 25.0 * X / X.norm(dim=1).max()


def published(X, epsilon, r=10, delta=1e-5, seed=0):
    return po_gp_ucb_transform(
        X,
        epsilon=epsilon,
        delta=delta,
        r=r,
        generator=torch.Generator().manual_seed(seed),
        allow_not_private=True,
    )


def test_the_largest_tested_r_below_sigma_min_is_the_papers():
    """Tables 1 to 3: it is so only with the root over r log(2/delta), and rows centred before they
    are scaled.
    """
    X = grid()
    for log_epsilon, tested, largest in (
        (1.1, (3, 6, 8, 10, 15, 20), 10),
        (1.3, (3, 9, 12, 15, 20, 30), 15),
        (1.5, (5, 10, 15, 20, 30, 50), 20),
    ):
        assert (
            max(r for r in tested if not published(X, math.exp(log_epsilon), r).inflated) == largest
        )
    assert abs(published(X, 1.0).sigma_min - 1030.88) < 0.01
    assert po_gp_ucb_omega(epsilon=math.exp(1.1), delta=1e-5, r=10) == pytest.approx(
        976.1, abs=0.05
    )


def test_one_branch_projects_centred_rows_and_the_other_raises_singular_values():
    X = grid(12) + 3.0
    r = 7
    release = published(X, 1e6, r)
    M = torch.randn(2, r, dtype=DOUBLE)
    assert not release.inflated
    torch.testing.assert_close(release.Z, (X - X.mean(0)) @ M / r**0.5)
    release = published(X, 1.0, r)
    raised = torch.linalg.lstsq(M.mT, (r**0.5 * release.Z).mT).solution.mT
    _, S, Vh = torch.linalg.svd(X - X.mean(0), full_matrices=False)
    _, raised_values, _ = torch.linalg.svd(raised, full_matrices=False)
    assert release.inflated
    torch.testing.assert_close(raised_values, (S.square() + release.omega**2).sqrt())
    torch.testing.assert_close(
        (Vh @ raised.mT @ raised @ Vh.mT).diagonal(), S.square() + release.omega**2
    )


@pytest.mark.parametrize("allowed", [False, 1, "yes"])
def test_who_does_not_insist_is_refused(allowed):
    generator = torch.Generator()
    settings = of(epsilon=1.0, delta=1e-5, r=3, generator=generator, allow_not_private=allowed)
    with pytest.raises(InputError, match="allow_not_private"):
        po_gp_ucb_transform(grid(3), **settings)


def released(X, kind, epsilon):
    """(Z, deviation of a coordinate's noise) of a real release, pure or at delta = 1e-5, by a
    curator that protects a row's move by 1.
    """
    change = RowChange(1.0, diameter=51.0)
    pure = kind == "l2-laplace"
    A = random_projection(2, 2, seed=1) if kind == "projected" else None
    ways = row_noises(2, budget=Budget(epsilon, 1e-5), sensitivity=1.0)
    way = next(way for way in ways if isinstance(way.mechanism, L2LaplaceMechanism) is pure)
    terms = of(budget=Budget(epsilon, 0.0 if pure else 1e-5), accounting=way.accounting)
    curator = Curator(X, unit=PrivacyUnit("row"), adjacency=change, **terms)
    rows = release_rows(
        curator, RowTable((0.0, 0.0), 25.5, row_change=change, projection=A), way.mechanism
    )
    return rows.Z if A is None else rows.Z @ torch.linalg.inv(A), rows.variance**0.5


@attack("A18")
def test_three_known_rows_give_all_the_others():
    X = grid()
    for branch, epsilon in BRANCHES.items():
        release = published(X, epsilon)
        assert release.inflated is (branch == "else")
        # corners, and inside
        for known in ((0, 99, 9900), (4, 5010, 7777)):
            assert float((recover_rows(release.Z, X[list(known)], known) - X).abs().max()) <= 1e-10
    X = torch.randn(2000, 5, dtype=DOUBLE) * torch.linspace(1, 9, 5, dtype=DOUBLE)
    for epsilon in (1e9, 1.0):
        Z = published(X, epsilon, r=5).Z
        assert float((recover_rows(Z, X[:6], range(6)) - X).abs().max()) <= 1e-10


@attack("A18")
def test_fewer_rows_or_noisy_ones_are_enough_for_who_knows_more():
    """d rows beside the population's moments; or, up to an average of their noise, many noisy
    rows.
    """
    X = torch.randn(2000, 5, dtype=DOUBLE) * torch.linspace(1, 9, 5, dtype=DOUBLE)
    Z = published(X, 1.0, r=8).Z
    moments = (X.mean(0), torch.cov(X.mT, correction=0))
    assert float((recover_rows(Z, X[:5], range(5), public=moments) - X).abs().max()) <= 1e-6
    assert float((recover_rows(Z, X[:5], range(5)) - X).abs().max()) > 1.0
    noisy = X[:400] + torch.randn(400, 5, dtype=DOUBLE)
    assert float((recover_rows(Z, noisy, range(400)) - X).square().mean()) <= 0.1


@pytest.mark.parametrize("branch", BRANCHES)
@attack("A18")
def test_neighbours_are_told_apart_always(branch):
    """Rows moved by 0.01 where the relation allows 1; r = 1 is enough. A coin would be right 20
    times of 20 once in a million.
    """
    X = grid()
    for r in (1, 10):
        right = 0
        for seed in range(20):
            neighbour = X.clone()
            neighbour[int(torch.randint(len(X), ()))] += 0.01 * torch.nn.functional.normalize(
                torch.randn(2, dtype=DOUBLE), dim=0
            )
            truth = seed % 2
            Z = published((X, neighbour)[truth], BRANCHES[branch], r, seed=seed).Z
            right += identify_table(Z, (X, neighbour)) == truth
        assert right == 20, r


@pytest.mark.parametrize("kind", ["gaussian", "l2-laplace", "projected"])
@attack("A18")
def test_rows_with_noise_are_found_no_better_than_the_noise_allows(kind):
    """B is the identity and the noise of unknown rows their own: the error's deviation is at least
    the noise's. Five standard errors.
    """
    X = grid()
    Z, deviation = released(X, kind, 3.0)
    order = torch.randperm(len(X))
    for known in (3, 5000):
        indices = order[:known].tolist()
        others = order[known:]
        squares = (recover_rows(Z, X[indices], indices) - X)[others].square()
        error = float(squares.sum(1).std() / 2 / len(others) ** 0.5)
        assert float(squares.mean()) >= deviation**2 - 5 * error
        if known > 3:
            assert float(squares.mean()) <= 1.01 * deviation**2 + 5 * error, (
                "of the order of the noise: the attack is no straw man"
            )


@pytest.mark.parametrize("epsilon", [3000.0, 100.0])
def test_distances_keep_within_lemma_1_and_theorem_2_and_fewer_columns_do_not(epsilon):
    """Both branches; at a twentieth of the columns, most tables have a pair outside."""
    X = 25.0 * torch.rand(30, 2, dtype=DOUBLE)
    nu = 0.4
    mu = 0.1
    before = torch.pdist(X - X.mean(0)).square()

    def outside(r):
        found = 0
        for seed in range(60):
            rows = published(X, epsilon, r, delta=1e-2, seed=seed)
            low, high = bounds.distance_factors(nu=nu, sigma_min=rows.sigma_min, omega=rows.omega)
            ratio = torch.pdist(rows.Z).square() / before
            found += bool((ratio < low).any() or (ratio > high).any())
        return found, rows.inflated

    needed = bounds.columns_needed(count=30, nu=nu, mu=mu)
    few, inflated = outside(needed)
    assert few <= 60 * mu
    assert inflated is (epsilon == 100.0)
    assert outside(needed // 20)[0] > 30


def test_theorem_3_asks_for_more_columns_than_anybody_uses_and_its_parts_hold():
    needs = bounds.theorem_3_needs(
        count=10_000, diameter=50.0, lengthscale=1.25, largest=1.0, error=10.0, delta=0.05
    )
    assert needs.nu == 0.00125
    assert 1.1e8 < needs.columns < 1.2e8, "the paper's experiments have 3 to 50"
    d2 = 4.0
    nu = 0.3
    squares = torch.linspace(0.0, d2, 50, dtype=DOUBLE)
    # |k_zz' - k_xx'| <= nu d^2 k_xx' for nu <= 2 / d^2, on which the theorem rests
    for factor in (1 - nu, 1 + nu):
        kernel = (-squares / 2).exp()
        moved = (-factor * squares / 2).exp()
        assert bool(((moved - kernel).abs() <= nu * d2 * kernel).all())
    assert sum(1 / t for t in range(1, 51)) <= 1 + math.log(50)
    assert sum(1 / t for t in range(1, 51)) > math.log(50), "what the paper prints"
    terms = of(beta=9.0, gamma=3.0, noise=0.1, c1=0.2, c2=0.1)
    found = bounds.theorem_3(error=0.5, evaluations=50, **terms)
    assert found**2 == pytest.approx(
        0.25 + 24 * 0.7**2 * (1 + math.log(50)) / 50 + 24 / math.log(11) * 27 / 50
    )


def test_diagonal_dominance_is_definition_3():
    places = (torch.tensor([[0.0], [middle], [9.0]], dtype=DOUBLE) for middle in (0.1, 4.0))
    near, far = ((-0.5 * (x - x.T).square()).exp() for x in places)
    assert bounds.is_diagonally_dominant(far)
    assert not bounds.is_diagonally_dominant(near), "no two near inputs"
    edge = torch.eye(2, dtype=DOUBLE) + torch.tensor([[0.0, 0.5], [0.5, 0.0]], dtype=DOUBLE)
    assert bounds.is_diagonally_dominant(edge)
    assert not bounds.is_diagonally_dominant(edge - 1e-9 * torch.eye(2, dtype=DOUBLE))
    with pytest.raises(InputError, match="square"):
        bounds.is_diagonally_dominant(torch.ones(2, 3, dtype=DOUBLE))


def test_the_branch_alone_breaks_the_theorem():
    """One singular value at omega: N(0, 1) below it, N(0, 2) above; delta at epsilon = 1 is the
    probability by which the second exceeds e times the first.
    """
    x = torch.linspace(-12, 12, 200_001, dtype=DOUBLE)
    one = (-x.square() / 2).exp() / math.sqrt(2 * math.pi)
    two = (-x.square() / 4).exp() / math.sqrt(4 * math.pi)
    delta = float(torch.trapezoid((two - math.e * one).clamp_min(0), x))
    assert 0.04 < delta < 0.05


@pytest.mark.parametrize("omega", [0.5, 1.5, 4.0])
@pytest.mark.parametrize("nu", [0.01, 0.3])
def test_remark_2_bounds_how_far_a_covariance_moves(nu, omega):
    """Over all distances and all that Theorem 2 lets them become; attained at the diameter."""
    d = 2.0
    squared = torch.linspace(0, d**2, 2001, dtype=DOUBLE)
    moved = torch.tensor(0.0, dtype=DOUBLE)
    for scale in (1 - nu, 1.0, *bounds.distance_factors(nu=nu, sigma_min=1.0, omega=omega)):
        moved = torch.maximum(moved, ((squared * (1 - scale) / 2).exp() - 1).abs().amax())
    terms = {"diameter": 3 * d, "lengthscale": 3.0, "largest": 0.7, "sigma_min": 1.0}
    terms |= {"nu": nu, "omega": omega}
    assert bounds.remark_2(**terms) == pytest.approx(2 * math.sqrt(3) * 0.7 * float(moved))
    if omega < 1.0:
        assert bounds.remark_2(**terms) <= 2 * math.sqrt(3) * 0.7 * nu * d**2


def test_remark_2_of_a_huge_diameter_promises_nothing():
    terms = {"diameter": 1e6, "lengthscale": 1.0, "largest": 1.0, "sigma_min": 1.0}
    assert bounds.remark_2(**terms, nu=0.5, omega=0.5) == math.inf
