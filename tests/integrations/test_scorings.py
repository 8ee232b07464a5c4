"""Numbers computed from noised cells: unbiased where the noise leaves anything to see, and their variance what a simulation finds."""

import numpy as np
import pytest
import torch
from sklearn.tree import DecisionTreeClassifier

from dpbo import Adjacency, Budget, Curator, PrivacyUnit
from dpbo.integrations.tuning.scorings import scoring_named
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import CellMeans

RISING = np.exp(np.linspace(-3.0, 0.0, 16)) / np.exp(np.linspace(-3.0, 0.0, 16)).sum()


@pytest.mark.parametrize(
    ("scoring", "shares"),
    [
        ("f1", [0.4, 0.1, 0.1]), ("f1", [0.2, 0.1, 0.02]), ("balanced_accuracy", [0.4, 0.4, 0.1, 0.1]),
        ("balanced_accuracy", [0.7, 0.15, 0.1, 0.05]), ("roc_auc", [*0.5 * RISING, *0.5 * RISING[::-1]]),
        ("roc_auc", [*0.2 * RISING, *0.8 * RISING[::-1]]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("noise", [0.001, 0.01])
def test_the_variance_is_that_of_a_simulation(scoring, shares, noise):
    scored, exact = scoring_named(scoring, None, [0, 1]), torch.tensor([shares], dtype=torch.float64)
    true = scored.observed(exact, torch.zeros_like(exact))[0].item()
    drawn = exact + noise * torch.randn(20_000, len(shares), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values, variances = scored.observed(drawn, torch.full_like(drawn, noise**2))
    assert values.mean().item() == pytest.approx(true, abs=0.15 * values.std().item())
    assert ((values - true) ** 2 / variances).mean().sqrt().item() == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("scoring", ["f1", "balanced_accuracy", "roc_auc"])
def test_no_noise_is_told_to_be_wider_than_the_range(scoring):
    scored = scoring_named(scoring, None, [0, 1])
    assert scored.cells is not None
    below = torch.full((1, scored.cells), -0.01, dtype=torch.float64)
    value, variance = scored.observed(below, torch.full_like(below, 0.01))
    assert 0.0 <= value.item() <= 1.0
    assert variance.item() == 1.0


def protected(*records):
    return Curator(records, unit=PrivacyUnit("record"), adjacency=Adjacency.REPLACE_ONE, budget=Budget.gdp(500.0))


class Picky(DecisionTreeClassifier):  # type: ignore[misc]
    """Fails on a set with a record of 7, and gives NaN for one of 8."""

    def predict(self, X):
        return self.predict_proba(X)[:, 1].round()

    def predict_proba(self, X):
        if (X[:, 0] == 7).any():
            raise ValueError
        return np.where(X[:, :1] == 8, np.nan, super().predict_proba(X))


@pytest.mark.parametrize(("scoring", "worst"), [("f1", {0: 1, 1: 2}), ("balanced_accuracy", {0: 2, 1: 3}), ("roc_auc", {0: 31, 1: 0})])
@pytest.mark.parametrize("odd", [7.0, 8.0])
@pytest.mark.parametrize("label", [0, 1])
def test_a_record_that_a_model_cannot_take_is_one_that_it_is_wrong_about(scoring, worst, odd, label):
    """Nowhere counted, a positive record that nothing can be said of would count as rightly refused."""
    X, y = np.arange(6.0).reshape(-1, 1), np.array([0, 0, 0, 1, 1, 1])
    scored = scoring_named(scoring, None, y)
    assert scored.cells is not None
    curator = protected(np.append(X, [[odd]], 0), np.append(y, label))
    query = CellMeans(scored, Picky(random_state=0).fit(X, y), cells=scored.cells)
    shares = 7 * curator.release(query, GaussianMechanism(0.01)).value
    alone = scored(Picky(random_state=0).fit(X, y), (X, y))
    expected = np.bincount([*alone[alone >= 0].astype(int), worst[label]], minlength=scored.cells)
    assert shares.numpy() == pytest.approx(expected, abs=0.2)


def test_a_label_that_cannot_be_compared_moves_no_other_failing_record():
    class Unequal:
        def __eq__(self, other):
            raise ValueError

        __hash__ = object.__hash__

    X, y = np.append(np.arange(6.0), [7.0, 3.0]).reshape(-1, 1), [0, 0, 0, 1, 1, 1, 1, Unequal()]
    scored = scoring_named("f1", None, [0, 1])
    curator = protected(X, y)
    query = CellMeans(scored, Picky(random_state=0).fit(X[:6], y[:6]), cells=3)
    assert 8 * curator.release(query, GaussianMechanism(0.01)).value.numpy() == pytest.approx([3, 0, 1], abs=0.2)
