"""Private k-means and factor analysis."""

import math

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import FactorAnalysis

from dpbo import Adjacency, Budget, PrivacyUnit
from dpbo.accounting import PureFilter
from dpbo.errors import InputError
from dpbo.papers.em import DPFactorAnalysis, DPKMeans, DPLloyd, embedding
from dpbo.testing import replay
from tests.attacks.marks import attack
from tests.setups import EXACT, of, owner


def squares(n=4000, seed=0):
    rng = np.random.default_rng(seed)
    corners = np.array([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    return corners[rng.integers(0, 4, n)] + 0.15 * rng.normal(size=(n, 2))


def factors(n, d, m, seed=0):
    """(records, L): m factors with noise of unlike variances, mean 1."""
    rng = np.random.default_rng(seed)
    L = rng.normal(size=(d, m)) * 0.5
    psi = rng.uniform(0.05, 0.2, size=d)
    return 1.0 + rng.normal(size=(n, m)) @ L.T + rng.normal(size=(n, d)) * np.sqrt(psi), L


@pytest.mark.parametrize("kind", [DPKMeans, DPLloyd])
@pytest.mark.parametrize("adjacency", list(Adjacency)[:2])
def test_k_means_finds_the_clusters(kind, adjacency):
    X = squares()
    found = kind(4, budget=Budget.gdp(20.0), radius=2.0, adjacency=adjacency, random_state=0).fit(X)
    best = KMeans(4, n_init=3, random_state=0).fit(X)
    with pytest.raises(InputError, match=r"^X=.*protects"):
        found.score(X)
    public = squares(seed=1)
    assert found.score(public) > 1.15 * best.score(public)
    assert found.transform(X[:7]).shape == (7, 4)
    assert (found.predict(X) == found.transform(X).argmin(1)).all()
    assert not hasattr(found, "labels_")
    assert not hasattr(found, "inertia_")


def test_lloyd_is_pure_under_a_pure_budget_and_its_noise_the_papers():
    X = squares()
    found = DPLloyd(
        4, budget=Budget(2.0, 0.0), radius=2.0, accounting=PureFilter(), max_iter=5, random_state=0
    ).fit(X)
    assert "(2.000, 0.0)-DP" in str(found.statement())
    with pytest.raises(InputError, match="delta"):
        DPKMeans(4, budget=Budget(2.0, 0.0), radius=2.0).fit(X)


@pytest.mark.parametrize(
    ("adjacency", "kind"),
    [
        (Adjacency.REPLACE_ONE, DPKMeans),
        (Adjacency.ADD_OR_REMOVE_ONE, DPLloyd),
        (Adjacency.ADD_OR_REMOVE_ONE, DPFactorAnalysis),
    ],
)
@attack("A6", "A7", "A8")
def test_nothing_depends_on_the_records_but_through_releases(kind, adjacency):
    """One record is another, or there is one fewer, whose number is then private too."""
    X = torch.from_numpy(squares(200))
    neighbour = X.clone() if adjacency.replaces else X[1:].clone()
    neighbour[3] = math.inf if adjacency.replaces else X[4]

    def run(curator, _):
        fitted = kind(
            1 if kind is DPFactorAnalysis else 4,
            budget=0.9,
            radius=2.0,
            dimension=2,
            random_state=0,
        ).fit(curator)
        return fitted.components_ if kind is DPFactorAnalysis else fitted.cluster_centers_

    replay(
        run, X, neighbour, unit=PrivacyUnit("record"), adjacency=adjacency, budget=Budget(1.0, 1e-5)
    )


def test_factor_analysis_comes_close_to_the_open_one():
    d = 60
    n = 40_000
    records, L = factors(n + 2000, d, 2)
    X, test = records[:n], records[n:]
    private = DPFactorAnalysis(
        2, budget=Budget(2.0, 1e-6), radius=1.6 * d**0.5, random_state=0
    ).fit(X)
    with pytest.raises(InputError, match=r"^X=.*protects"):
        private.score(X)
    assert private.score(test) > FactorAnalysis(2).fit(X).score(test) - 0.02 * d
    overlap = np.linalg.svd(np.linalg.qr(private.components_.T)[0].T @ np.linalg.qr(L)[0])[1]
    assert overlap.min() > 0.95
    assert np.allclose(
        private.get_covariance(),
        private.components_.T @ private.components_ + np.diag(private.noise_variance_),
    )
    assert "(2.000, 1e-06)-DP" in str(private.statement())


def test_without_noise_it_is_factor_analysis():
    X, _ = factors(3000, 8, 2)
    exact = DPFactorAnalysis(2, mechanism=EXACT, radius=30.0, max_iter=500, random_state=0).fit(X)
    plain = FactorAnalysis(2, tol=1e-10, max_iter=5000).fit(X)
    assert exact.score(X) == pytest.approx(plain.score(X), abs=0.02)


def test_with_a_public_centre_one_release_is_enough():
    X, _ = factors(3000, 5, 1)
    curator = owner(
        torch.from_numpy(X),
        adjacency=Adjacency.ADD_OR_REMOVE_ONE,
        budget=Budget.gdp(2.0, delta=1e-6),
    )
    settings = of(budget=1.0, radius=5.0, dimension=5, center=[1.0] * 5)
    with pytest.raises(InputError, match="divisor"):
        DPFactorAnalysis(1, **settings).fit(curator)
    DPFactorAnalysis(1, divisor=3000.0, **settings).fit(curator)
    assert curator.ledger.used()["factor analysis"] == 1


def test_the_embedding_is_a_linear_map_that_botorch_can_differentiate():
    X, _ = factors(300, 6, 2)
    private = DPFactorAnalysis(2, mechanism=EXACT, radius=5.0).fit(X)
    points = torch.from_numpy(X[:8]).reshape(2, 4, 6).requires_grad_()
    encoded = embedding(private)(points)
    assert np.allclose(encoded.detach().reshape(8, 2), private.transform(X[:8]))
    encoded.sum().backward()
    with pytest.raises(InputError, match="analysis"):
        embedding(DPKMeans(2, mechanism=EXACT, radius=5.0).fit(X))
