"""Rows with a missing cell are in no sum of the private estimators, nor in their number of rows."""

import numpy as np
import pytest
import torch

from dpbo import Budget
from dpbo.papers.em import DPEM, DPFactorAnalysis, DPGaussianMixture
from dpbo.papers.em.estimator import record_count
from dpbo.queries import ClippedMean
from tests.setups import DOUBLE, EXACT, of, owner

MEANS = np.array([[30.0, 3e4], [50.0, 9.5e4], [70.0, 5.2e4]])
BOUNDS = np.array([[0.0, 100.0], [0.0, 1.5e5]])
SCALED = of(bounds=BOUNDS, random_state=0)


def people(n=6000):
    """Ages and incomes of three kinds of people, of whom one in five says no income."""
    rng = np.random.default_rng(0)
    kinds = rng.choice(3, n, p=[0.5, 0.2, 0.3])
    X = MEANS[kinds] + [4.0, 6e3] * rng.normal(size=(n, 2))
    X[rng.random(n) < 0.2, 1] = np.nan
    return X


def complete(X):
    return X[np.isfinite(X).all(1)]


def of_mixture(found):
    order = found.means_[:, 0].argsort()
    return np.column_stack([found.weights_[order], found.means_[order] / BOUNDS[:, 1]])


def mixture(X, **settings):
    return of_mixture(DPGaussianMixture(3, **SCALED, **settings).fit(X))


def factors(X, **settings):
    found = DPFactorAnalysis(1, **SCALED, **settings).fit(X)
    spread = found.get_covariance().diagonal() ** 0.5
    return np.array([found.mean_, spread]) / BOUNDS[:, 1]


def mean_by_em(X, **settings):
    model = DPEM(
        lambda _, records: torch.as_tensor(records) / torch.from_numpy(BOUNDS[:, 1]),
        bound=1.5,
        m_step=lambda moments, noise: moments,
        start=torch.zeros(2),
        size=2,
        max_iter=1,
        **settings,
    )
    return model.fit(X).parameters_.numpy()


@pytest.mark.parametrize(
    ("estimates", "settings"),
    [
        pytest.param(mixture, {}, id="mixture"),
        pytest.param(mixture, {"noise": "LLG"}, id="Laplace noise"),
        pytest.param(mixture, {"method": "map"}, id="map"),
        pytest.param(mixture, {"frame_iter": 0, "max_iter": 1}, id="k-means start"),
        pytest.param(factors, {}, id="factors"),
        pytest.param(factors, {"center": [50.0, 5e4]}, id="factors about a centre"),
        pytest.param(mean_by_em, {}, id="exponential family"),
    ],
)
def test_without_noise_the_estimates_are_those_of_the_complete_rows(estimates, settings):
    X = people()
    found = estimates(X, mechanism=EXACT, **settings)
    assert found == pytest.approx(estimates(complete(X), mechanism=EXACT, **settings), abs=5e-4)


@pytest.mark.parametrize(
    ("public", "released", "taken"),
    [(100, 97.5, 100.0), (100, 103.0, 100.0), (100, 96.5, 96.5), (None, 97.5, 97.5), (9, 0.5, 4.0)],
)
def test_the_public_number_is_taken_where_the_released_one_agrees(public, released, taken):
    """Within three standard deviations of 1, and never below these."""
    assert record_count(public, torch.tensor(released), torch.ones((), dtype=DOUBLE)) == taken


@pytest.mark.parametrize("kind", [DPGaussianMixture, DPFactorAnalysis])
def test_the_density_of_a_row_with_a_missing_cell_is_missing_and_a_mean_of_them_is_released(kind):
    X = people(600)
    X[3] = [40.0, np.inf]
    curator = owner(torch.from_numpy(X), budget=Budget.gdp(1.0))
    found = kind(1, mechanism=EXACT, dimension=2, **SCALED).fit(curator)
    whole = np.isfinite(X).all(1)
    densities = found.score_samples(X)
    assert np.array_equal(np.isnan(densities), ~whole)
    assert densities[whole] == pytest.approx(found.score_samples(X[whole]))
    query = ClippedMean(lambda _, rows: found.score_samples(rows), score_range=(-30.0, 0.0))
    by_hand = np.where(whole, densities, -30.0).clip(-30.0, 0.0).mean()
    assert float(curator.release(query, EXACT).value) == pytest.approx(by_hand, abs=1e-3)
    public = X + 1.0
    for number in (found.score, found.predict if kind is DPGaussianMixture else found.transform):
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            number(public)
