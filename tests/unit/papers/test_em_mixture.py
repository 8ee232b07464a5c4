"""The private mixture finds what it should, spends what it says, resumes without a second noise,
and looks at nothing it may not see.
"""

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.mixture import GaussianMixture
from sklearn.utils.estimator_checks import check_estimator

from dpbo import Adjacency, Budget, BudgetExceeded, Curator, PrivacyUnit
from dpbo.accounting import Planned, PureFilter, ZCDPFilter
from dpbo.errors import InputError, LedgerMismatch, UsageError
from dpbo.events import GaussianEvent, LaplaceEvent
from dpbo.mechanisms import GaussianMechanism
from dpbo.papers.em import DPFactorAnalysis, DPGaussianMixture, DPKMeans, DPLloyd
from dpbo.papers.em.gaussians import Averaged, Prior, mixture_of
from dpbo.papers.em.moment_features import COVARIANCES, MATRICES, features
from dpbo.queries import ClippedMean
from dpbo.testing import SeededEntropy
from tests.attacks.marks import attack
from tests.setups import DOUBLE, EXACT, TERMS, charges, of

REPLACE, ADD = Adjacency.REPLACE_ONE, Adjacency.ADD_OR_REMOVE_ONE


def blobs(n=6000, seed=0):
    """Two well-separated Gaussians in the plane, one of them small and far from round."""
    rng = np.random.default_rng(seed)
    first = rng.normal(size=(2 * n // 3, 2)) * 0.5 + [2.0, 1.0]
    second = rng.normal(size=(n // 3, 2)) @ np.array([[0.6, 0.2], [0.0, 0.2]]) + [-2.0, 0.0]
    return np.concatenate([first, second])[rng.permutation(2 * n // 3 + n // 3)]


def make(records, kind=Curator, **settings):
    terms = {**TERMS, "budget": Budget.gdp(2.0, delta=1e-6), **settings}
    return kind(torch.as_tensor(records), **terms)


def stages(curator):
    return [charge["slots"][0]["details"]["stage"] for charge in charges(curator.ledger)]


def mixture(**changes):
    terms: dict[str, Any] = {
        "n_components": 2,
        "budget": Budget(2.0, 1e-6),
        "radius": 6.0,
        "random_state": 0,
        **changes,
    }
    return DPGaussianMixture(**terms)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_it_comes_close_to_the_open_fit(covariance):
    X = blobs()
    test = blobs(2000, seed=1)
    plain = GaussianMixture(2, covariance_type=covariance, random_state=0).fit(X)
    for method, adjacency in (("mle", REPLACE), ("map", ADD)):
        private = mixture(
            covariance_type=covariance, method=method, adjacency=adjacency, budget=Budget(5.0, 1e-6)
        ).fit(X)
        assert private.score(test) > plain.score(test) - 0.15, (method, adjacency)
        assert private.covariances_.shape == plain.covariances_.shape
        assert sorted(private.weights_) == pytest.approx([1 / 3, 2 / 3], abs=0.05), (
            method,
            adjacency,
        )
        assert (private.predict(test) == private.predict_proba(test).argmax(1)).all()
        assert "(5.000, 1e-06)-DP" in str(private.statement())
        rows, labels = private.sample(500)
        assert rows.shape == (500, 2)
        assert private.score(rows) > private.score(test) - 0.3, (method, adjacency)
        assert set(labels) == {0, 1}


def test_the_density_is_that_of_its_parameters():
    X = blobs()
    for covariance in COVARIANCES:
        private = mixture(covariance_type=covariance, center=[0.5, 0.0]).fit(X)
        twin = GaussianMixture(2, covariance_type=covariance)
        twin.weights_ = private.weights_
        twin.means_ = private.means_
        twin.covariances_ = private.covariances_
        twin.precisions_cholesky_ = (
            np.linalg.cholesky(private.precisions_)
            if covariance in MATRICES
            else np.sqrt(private.precisions_)
        )
        public = blobs(50, seed=4)
        assert private.aic(public) == pytest.approx(twin.aic(public)), covariance
        assert private.bic(public) == pytest.approx(twin.bic(public)), covariance
        assert private.score_samples(X[:50]) == pytest.approx(twin.score_samples(X[:50]), rel=1e-8)
        points = torch.from_numpy(X[:6]).reshape(2, 3, 2).requires_grad_()
        private.log_density(points).sum().backward()
        assert points.grad is not None
        assert bool(points.grad.isfinite().all())


def test_without_noise_a_step_is_the_textbooks():
    """MLE: weighted means and covariances. MAP: the paper's formulas, written out for one
    component.
    """
    Z = torch.randn(400, 2, dtype=DOUBLE) * 0.2
    gamma = torch.rand(2, 400, dtype=DOUBLE)
    gamma = gamma / gamma.sum(0)
    moments = gamma @ features(Z.T, "full").T
    std = torch.zeros(2, 6, dtype=DOUBLE)
    mle, posterior = (mixture_of(moments, std, 2, "full", 1e-6, prior) for prior in (None, Prior()))
    for k in range(2):
        N = float(gamma[k].sum())
        mean = (gamma[k] @ Z) / gamma[k].sum()
        C = (Z - mean).T @ (gamma[k].unsqueeze(1) * (Z - mean)) / N
        assert torch.allclose(mle.means[k], mean)
        assert torch.allclose(mle.covariances[k], C)
        assert float(mle.weights[k]) == pytest.approx(N / 400)
        expected = (
            0.1 * torch.eye(2) + N * C + 1.01 * N / (1.01 + N) * torch.outer(mean, mean)
        ) / (3 + N + 2 + 2)
        assert torch.allclose(posterior.covariances[k], expected.double())
        assert torch.allclose(posterior.means[k], N * mean / (N + 1.01))
        assert float(posterior.weights[k]) == pytest.approx((N + 1) / (400 + 4 - 2))
    tied, posterior = (
        mixture_of(moments, std, 2, "tied", 1e-6, prior) for prior in (None, Prior())
    )
    # the pooled covariance, and the mode of (s0 I, d + 1) with N(0, Sigma/k0) for each mean
    within = Z.T @ Z - sum(gamma[k].sum() * torch.outer(m, m) for k, m in enumerate(mle.means))
    pulls = [
        1.01 * n / (1.01 + n) * torch.outer(m, m)
        for n, m in zip(gamma.sum(1), mle.means, strict=True)
    ]
    expected = (0.1 * torch.eye(2).double() + within + sum(pulls)) / (400 + 2 + 3 + 2 + 1)
    for k in range(2):
        assert torch.allclose(tied.covariances[k], within / 400)
        assert torch.allclose(posterior.covariances[k], expected)


def test_a_public_start_takes_the_place_of_k_means():
    means = np.array([[2.0, 1.0], [-2.0, 0.0]])
    curator = make(blobs())
    settings = of(means_init=means, weights_init=[0.6, 0.4], dimension=2)
    fitted = mixture(budget=0.5, max_iter=4, **settings).fit(curator)
    assert stages(curator) == ["frame"] + ["em"] * 4
    # the components keep the places that they were given
    assert np.abs(fitted.means_ - means).max() < 0.2
    for wrong in ({"means_init": means[:1]}, {"weights_init": [0.5, 0.6]}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            mixture(budget=0.5, name="other", **(settings | wrong)).fit(curator)
    assert list(curator.ledger.used()) == ["dp-em"]


@attack("A5")
def test_one_exact_number_of_private_records_is_refused_and_chooses_no_model():
    X = blobs(600)
    public = blobs(50, seed=4)
    curator = make(X)
    mine = mixture().fit(X)
    theirs = mixture(budget=0.5, dimension=2).fit(curator)
    for fitted, records in ((mine, X), (theirs, curator)):
        for criterion in (fitted.score, fitted.aic, fitted.bic):
            with pytest.raises(InputError, match=r"^X=.*a ClippedMean of each record's score"):
                criterion(records)
    released = curator.release(
        ClippedMean(lambda _, rows: theirs.score_samples(rows), score_range=(-9.0, 0.0)),
        GaussianMechanism(40.0),
    )
    mean = float(released.value)
    parameters = 2 * 3 + 1 + 2 * 3 - 2
    assert theirs.aic(mean, n_samples=600) == pytest.approx(2 * parameters - 1200 * mean)
    assert theirs.bic(mean, n_samples=600) == pytest.approx(
        parameters * math.log(600) - 1200 * mean
    )
    assert pickle.loads(pickle.dumps(mine)).bic(public) == mine.bic(public)


@pytest.mark.parametrize("kind", [DPGaussianMixture, DPKMeans])
def test_fit_predict_charges_nothing_for_rows_that_cannot_be_predicted(kind):
    X = blobs(300)
    curator = make(blobs(300))
    settings = of(budget=Budget(5.0, 1e-6), radius=6.0, random_state=0)
    model = kind(2, **settings)
    assert (model.fit_predict(X) == model.predict(X)).all()
    broken = X.copy()
    broken[3] = np.nan
    for rows in (curator, broken):
        model = kind(2, dimension=2, **settings)
        with pytest.raises(InputError, match="X="):
            model.fit_predict(rows)
        assert not hasattr(model, "statement_")
    assert curator.ledger.head().seq == 0


def test_laplace_noise_on_weights_and_means_takes_half_of_the_budget():
    curator = make(blobs())
    model = mixture(budget=0.5, dimension=2, max_iter=4, noise="LLG")
    fitted = clone(model).fit(curator)
    laws = [
        (
            body["event"]["mechanism"],
            body["slots"][0]["details"]["stage"],
            body["slots"][0]["public"].get("orders"),
        )
        for body in charges(curator.ledger)
    ]
    iteration = [("gaussian", "em", [2]), ("laplace", "em", [0, 1])]
    before = [("gaussian", "frame", [0, 1, 2])] + [("gaussian", "k-means", None)] * 3
    assert laws == before + iteration * 4
    again = clone(model).fit(curator)
    assert np.array_equal(again.means_, fitted.means_), "resumed, without a second charge"
    with pytest.raises(BudgetExceeded):
        mixture(budget=0.6, dimension=2, name="more", noise="LLG").fit(curator)
    assert set(curator.ledger.used()) == {"dp-em", "dp-em, Laplace"}, "no half of it was reserved"
    planned = Planned([GaussianEvent(12.0, 1 + 3 + 4), LaplaceEvent(30.0, 4)])
    spent = mixture(max_iter=4, noise="LLG", accounting=planned).fit(blobs(100)).statement()
    assert spent.guarantee is not None, "a list says itself what each release takes"
    pure = make(blobs(100), budget=Budget(1.0, 0.0), accounting=PureFilter())
    with pytest.raises(UsageError):
        mixture(budget=0.5, dimension=2, noise="LLG").fit(pure)
    assert pure.ledger.used() == {}


def test_averaging_takes_off_the_noise_it_says():
    truth = torch.tensor([[600.0, 30.0], [400.0, -20.0]]).double()
    std = torch.full((2, 2), 5.0).double()
    ends = []
    said = std
    for _ in range(400):
        averaged = Averaged(2, 1000)
        for _ in range(6):
            value, said = averaged.add(truth + 5.0 * torch.randn(2, 2, dtype=DOUBLE), std)
        ends.append(value)
    off = torch.stack(ends) - truth
    assert off.mean(0).abs().max() < 0.5
    assert float(off[:, :, 0].std()) == pytest.approx(float(said[0, 0]), rel=0.1), (
        "counts sum to the public number"
    )
    assert float(off[:, :, 1].std()) <= 1.5 * float(said[0, 1]), (
        "the others to a mean that is noisy itself"
    )


@pytest.mark.parametrize(
    ("adjacency", "missing"),
    [
        (REPLACE, 0.2),
        *(pytest.param(adjacency, 0.0, marks=pytest.mark.deep) for adjacency in (REPLACE, ADD)),
    ],
)
def test_estimates_lie_within_their_standard_errors(adjacency, missing):
    """Noise alone beside the fit without it, and both around what 25 tables were drawn from."""
    means, deviations = np.array([[2.0, 1.0], [-2.0, 0.0]]), np.array([[0.5, 0.8], [0.6, 0.5]])
    settings = of(radius=6.0, dimension=2, max_iter=8, means_init=means, random_state=0)
    by_noise, in_all = [], []
    for seed in range(25):
        rng = np.random.default_rng(seed)
        labels = (rng.random(2000) > 0.3).astype(int)
        X = means[labels] + deviations[labels] * rng.normal(size=(2000, 2))
        X[rng.random(2000) < missing, 1] = np.nan
        shared = of(adjacency=adjacency, entropy=SeededEntropy(seed))
        curator = make(X, budget=Budget.gdp(8.0, delta=1e-6), **shared)
        found = DPGaussianMixture(2, budget=1.0, **settings).fit(curator)
        exact = DPGaussianMixture(2, mechanism=EXACT, **settings).fit(X)
        of_weights, of_means = found.standard_errors(sampling=False)
        by_noise.append((found.means_ - exact.means_) / of_means)
        by_noise.append((found.weights_ - exact.weights_)[:, None] / of_weights[:, None])
        of_weights, of_means = found.standard_errors()
        in_all.append((found.means_ - means) / of_means)
        in_all.append((found.weights_ - [0.3, 0.7])[:, None] / of_weights[:, None])
    noise, total = (np.concatenate([each.ravel() for each in part]) for part in (by_noise, in_all))
    assert np.sqrt(np.square(noise).mean()) == pytest.approx(1.0, abs=0.2)
    assert np.sqrt(np.square(total).mean()) == pytest.approx(1.0, abs=0.2)
    assert (np.abs(total) < 1.96).mean() > 0.9


def test_the_whole_plan_is_spent_and_is_what_the_budget_buys():
    curator = make(blobs())
    private = mixture(budget=0.5, dimension=2, max_iter=5).fit(curator)
    slots = 5 + 3 + 1
    assert private.noise_multiplier_ == pytest.approx(math.sqrt(slots / 0.5) / 2.0)
    assert private.statement().role == "validation and training"
    assert not any(
        "records that models were trained on" in text for text in private.statement().not_protected
    )
    assert curator.ledger.used()["dp-em"] == slots
    with pytest.raises(BudgetExceeded):
        mixture(budget=0.6, dimension=2, name="more").fit(curator)
    for accounting in (ZCDPFilter(), Planned([GaussianEvent(12.0, 15)])):
        assert mixture(accounting=accounting).fit(blobs(500)).statement()
    assert "not bounded" in str(mixture(mechanism=EXACT).fit(blobs(500)).statement())


class Dying(Curator):
    """Loses its machine after four releases."""

    left = 4

    def release_all(self, *arguments, **settings):
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return super().release_all(*arguments, **settings)


@pytest.mark.parametrize("seed", [0, None])
@attack("A16")
def test_a_fit_resumes_from_its_ledger_without_a_second_charge_or_noise(on_disk, seed):
    X = blobs(1000)
    model = mixture(
        budget=0.5, dimension=2, max_iter=5, random_state=seed, shares=(1.0, 1.0, np.float64(2.0))
    )
    with pytest.raises(KeyboardInterrupt):
        clone(model).fit(make(X, kind=Dying, **on_disk))
    first, again = (clone(model).fit(make(X, **on_disk)) for _ in range(2))
    assert np.array_equal(first.means_, again.means_)
    assert stages(make(X, **on_disk)) == ["frame"] + ["k-means"] * 3 + ["em"] * 5
    with pytest.raises(LedgerMismatch):
        clone(model).set_params(radius=7.0).fit(make(X, **on_disk))
    with pytest.raises(LedgerMismatch, match="units"):
        clone(model).fit(make(X[:900], **on_disk))
    with pytest.raises(LedgerMismatch, match="validation records"):
        clone(model).fit(make(X + 1e-3, **on_disk))


def one_broken(row, place, dimension=None):
    """The exact fit to a list that has this row in this place."""
    listed: list[Any] = blobs(60).tolist()
    listed[place] = row
    terms = of(mechanism=EXACT, radius=6.0, max_iter=2, dimension=dimension)
    return DPGaussianMixture(1, **terms).fit(listed).means_.tolist()


@attack("A5", "A21")
def test_a_cell_that_is_no_number_is_not_quoted_and_one_row_refuses_no_others():
    broken: list[Any] = ["secret", 10**400, 1j, [1], None]
    for cell in broken:
        X = np.ones((30, 2), dtype=object)
        X[3, 1] = cell
        listed = X.tolist()
        for rows in (X, listed, [*map(tuple, listed)]):
            mixture(budget=Budget(50.0, 1e-6), n_components=1, max_iter=1).fit(rows)
    others: tuple[Any, ...] = (None, 5.0, "secret", {}, [], [1.0], [1.0, 2.0, 3.0], [[1.0, 2.0]])
    tensors = (torch.tensor([1j, 2.0]), torch.ones(3, requires_grad=True))
    for place, dimension in ((0, None), (3, None), (-1, 2)):
        without = one_broken([np.nan, np.nan], place)
        for row in (*others, *tensors):
            assert one_broken(row, place, dimension) == without, (row, place)
    for table in (
        np.array([["secret", "2"]]),
        np.array([12345.678, 1.0]),
        np.array([[12345.678 + 1j]]),
        [12345.678, 1.0],
    ):
        with pytest.raises(InputError) as refused:
            mixture(budget=Budget(1.0, 1e-6)).fit(table)
        assert "secret" not in str(refused.value)
        assert "12345" not in str(refused.value)


def test_a_far_cluster_of_few_records_is_kept():
    for d, share in ((2, 0.1), (10, 0.05)):
        X = np.random.default_rng(0).normal(size=(20_000, d))
        X[: int(share * len(X)), 0] += 12.0
        fitted = DPGaussianMixture(2, mechanism=EXACT, radius=30.0, random_state=0).fit(X)
        assert fitted.score(X) >= GaussianMixture(2, random_state=0).fit(X).score(X) - 0.06
        assert abs(fitted.means_[:, 0].max() - 12.0) < 0.5


@attack("A5", "A8")
def test_no_records_are_as_private():
    assert mixture(adjacency=ADD).fit(np.empty((0, 2))).statement()
    with pytest.raises(ValueError, match="0 sample"):
        mixture().fit(np.empty((0, 2)))


def test_bad_input_is_refused_and_reserves_nothing():
    wrong: list[dict[str, Any]] = [
        {"shares": (0.0, 1.0, 1.0)},
        {"n_components": 5000},
        {"reach": 0.1},
        {"dimension": None},
        {"radius": None},
        {"covariance_type": "vb"},
    ]
    for change in wrong:
        curator = make(blobs(50))
        with pytest.raises(InputError):
            mixture(**{"budget": 0.5, "dimension": 2, **change}).fit(curator)
        assert curator.ledger.head().seq == 0, change
    grouped = make(blobs(99), unit=PrivacyUnit("patient", groups=np.arange(99) // 2))
    with pytest.raises(InputError, match="one record"):
        mixture(budget=0.5, dimension=2).fit(grouped)
    assert grouped.ledger.used() == {}, "nothing was reserved"
    with pytest.raises(NotFittedError):
        mixture().predict(blobs(10))


# scikit-learn's own checks that cannot apply, each with its reason
NOT_APPLICABLE = {
    "check_estimators_nan_inf": (
        "fit counts rows that are not finite as nothing: refusing them would tell that they are"
        " there"
    ),
    "check_dtype_object": (
        "fit counts a cell that is no number as a broken record: refusing it would tell that it is"
        " there"
    ),
    "check_fit_score_takes_y": (
        "score refuses the rows that fit protected: one exact number of them is no release"
    ),
    "check_fit_idempotent": "every fit draws fresh noise, whatever random_state is",
}


DEEP = [
    pytest.param(kind, marks=pytest.mark.deep) for kind in (DPFactorAnalysis, DPKMeans, DPLloyd)
]


@pytest.mark.parametrize("kind", [DPGaussianMixture, *DEEP])
def test_scikit_learns_own_checks(kind):
    """With a large budget: scikit-learn's data sets have 20 to 100 rows. A check that fails and is
    not in the list raises.
    """
    settings = of(budget=Budget.gdp(20.0), radius=300.0, random_state=0)
    if kind is not DPFactorAnalysis:
        settings["max_iter"] = 1
    estimator = kind(1 if kind is DPFactorAnalysis else 2, **settings)
    checked = check_estimator(estimator, expected_failed_checks=NOT_APPLICABLE, on_skip=None)
    assert sum(result["status"] == "passed" for result in checked) > 30
