"""Public bounds put raw columns into the ball, and without them a ball that cuts most rows is told
of.
"""

import warnings

import numpy as np
import pytest
import torch

from dpbo import Budget
from dpbo.papers.em import DPFactorAnalysis, DPGaussianMixture, DPKMeans, DPLloyd, embedding
from dpbo.papers.em.moment_features import COVARIANCES
from dpbo.records.protected_records import ClippedRowsWarning
from tests.setups import DOUBLE, EXACT, of, owner

BOUNDS = np.array([[0.0, 100.0], [-1e5, 3e5]])
HALF = np.array([50.0, 2e5])
MIDDLE = np.array([50.0, 1e5])
BUDGET = Budget(2.0, 1e-5)


def people(n=3000, seed=0):
    """Ages and incomes of two kinds of people, some beyond the bounds, some missing."""
    rng = np.random.default_rng(seed)
    first = rng.normal([40.0, 3e4], [5.0, 8e3], (2 * n // 3, 2))
    second = rng.normal([65.0, 2e5], [6.0, 4e4], (n // 3, 2))
    X = np.concatenate([first, second])[rng.permutation(2 * n // 3 + n // 3)]
    X[0] = [130.0, 1e6]
    X[1, 0] = np.nan
    X[2, 1] = -np.inf
    return X


def scaled(X):
    """What bounds do to a record, and what is then clipped to the ball."""
    Z = (X - MIDDLE) / HALF
    return np.where(np.isfinite(Z), np.clip(Z, -1.0, 1.0), np.nan)


def pair(kind, *args, **settings):
    """The fit with bounds, and the one to rows that were scaled by hand, without noise."""
    X = people()
    shared = of(mechanism=EXACT, random_state=0, **settings)
    radius = 1.0 if kind is DPLloyd else 2**0.5
    by_hand = kind(*args, radius=radius, **shared).fit(scaled(X))
    return kind(*args, bounds=BOUNDS, **shared).fit(X), by_hand


@pytest.mark.parametrize(
    ("covariance", "frames"), [*((covariance, 1) for covariance in COVARIANCES), ("full", 0)]
)
def test_a_mixture_between_bounds_is_that_of_scaled_rows_in_the_callers_units(covariance, frames):
    found, by_hand = pair(DPGaussianMixture, 2, covariance_type=covariance, frame_iter=frames)
    assert found.weights_ == pytest.approx(by_hand.weights_)
    assert (found.means_ - MIDDLE) / HALF == pytest.approx(by_hand.means_)
    for ours, theirs, unit in zip(
        found.standard_errors(), by_hand.standard_errors(), (1.0, HALF), strict=True
    ):
        assert ours == pytest.approx(theirs * unit)
    matrices = {"full": np.outer(HALF, HALF), "tied": np.outer(HALF, HALF)}
    units = matrices.get(covariance, HALF**2)
    own = by_hand.covariances_
    assert found.covariances_ == pytest.approx(
        (own[:, None] if covariance == "spherical" else own) * units
    )
    if covariance != "tied":
        assert len(found.covariances_) == 2
    public = people(200, seed=1)[3:]
    by_scaling = by_hand.score_samples((public - MIDDLE) / HALF) - np.log(HALF).sum()
    assert found.score_samples(public) == pytest.approx(by_scaling)
    assert (found.predict(public) == by_hand.predict((public - MIDDLE) / HALF)).all()
    drawn, labels = found.sample(100)
    again, same = by_hand.sample(100)
    assert drawn == pytest.approx(again * HALF + MIDDLE)
    assert (labels == same).all()


@pytest.mark.parametrize("kind", [DPKMeans, DPLloyd])
def test_clusters_between_bounds_are_nearest_in_their_units(kind):
    found, by_hand = pair(kind, 2)
    assert (found.cluster_centers_ - MIDDLE) / HALF == pytest.approx(by_hand.cluster_centers_)
    public = people(200, seed=1)[3:]
    assert found.transform(public) == pytest.approx(by_hand.transform((public - MIDDLE) / HALF))


def test_factors_between_bounds_are_in_the_callers_units():
    found, by_hand = pair(DPFactorAnalysis, 1)
    assert found.mean_ == pytest.approx(by_hand.mean_ * HALF + MIDDLE)
    assert found.get_covariance() == pytest.approx(by_hand.get_covariance() * np.outer(HALF, HALF))
    public = people(200, seed=1)[3:]
    encoded = embedding(found)(torch.from_numpy(public)).numpy()
    assert encoded == pytest.approx(by_hand.transform((public - MIDDLE) / HALF))
    assert found.transform(public) == pytest.approx(encoded)


def test_a_public_start_and_centre_are_given_in_the_callers_units():
    X = people()
    settings = of(mechanism=EXACT, max_iter=2, random_state=0)
    start = np.array([[40.0, 3e4], [65.0, 2e5]])
    found = DPGaussianMixture(
        2, bounds=BOUNDS, center=[55.0, 0.0], radius=0.7, means_init=start, **settings
    ).fit(X)
    by_hand = DPGaussianMixture(
        2,
        center=([55.0, 0.0] - MIDDLE) / HALF,
        radius=0.7,
        means_init=(start - MIDDLE) / HALF,
        **settings,
    ).fit(scaled(X))
    assert (found.means_ - MIDDLE) / HALF == pytest.approx(by_hand.means_)


@pytest.mark.parametrize("kind", [DPGaussianMixture, DPFactorAnalysis])
def test_raw_columns_in_a_small_ball_are_warned_of_before_a_charge(kind):
    """The whole budget was spent on the radius."""
    X = people(300)
    with pytest.warns(ClippedRowsWarning, match=r"radius=1\.7.*bounds=.*those who may see the"):
        fitted = kind(2, budget=BUDGET, radius=1.7, random_state=0).fit(X)
    told = str(fitted.statement())
    assert "clipped" not in told
    assert "bounds" not in told
    curator = owner(torch.from_numpy(X), budget=BUDGET, allow_repeated=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ClippedRowsWarning)
        with pytest.raises(ClippedRowsWarning):
            kind(2, budget=0.5, radius=1.7, dimension=2).fit(curator)
        assert curator.ledger.used() == {}, "nothing was reserved or charged"
        kind(2, budget=BUDGET, radius=2e6, random_state=0).fit(people(300, seed=2))
        bounded = kind(2, budget=BUDGET, bounds=BOUNDS, random_state=0).fit(people(300, seed=3))
        assert "bounds [[0.0, 100.0], [-100000.0, 300000.0]]" in str(bounded.statement())
        # rows that are not finite do not count
        others = torch.full((90, 2), torch.inf, dtype=DOUBLE)
        others[::3] = 0.5
        kind(2, budget=BUDGET, radius=1.7, random_state=0).fit(others)
