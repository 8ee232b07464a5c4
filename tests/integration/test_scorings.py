"""Numbers computed from noised cells: unbiased where the noise leaves anything to see, and their
variance what a simulation finds.
"""

import functools
import itertools

import numpy as np
import pytest
import sklearn.metrics
import torch
from sklearn.metrics import make_scorer
from sklearn.tree import DecisionTreeClassifier

from dpbo import Budget
from dpbo.errors import InputError
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import CellMeans
from dpbo.search.scorings import scoring_named
from tests.attacks.marks import attack
from tests.integration.test_search import TRAIN, VALIDATION
from tests.setups import DOUBLE, owner

RISING = np.exp(np.linspace(-3.0, 0.0, 16)) / np.exp(np.linspace(-3.0, 0.0, 16)).sum()


SCORINGS = ["accuracy", "neg_log_loss", "balanced_accuracy", "f1", "roc_auc"]


def test_the_variance_is_that_of_a_simulation():
    for scoring, shares in (
        ("f1", [0.2, 0.1, 0.02]),
        ("balanced_accuracy", [0.7, 0.15, 0.1, 0.05]),
        ("roc_auc", [*0.2 * RISING, *0.8 * RISING[::-1]]),
    ):
        scored = scoring_named(scoring, None, [0, 1])
        exact = torch.tensor([shares], dtype=DOUBLE)
        true = scored.observed(exact, torch.zeros_like(exact))[0].item()
        for noise in (0.001, 0.01):
            drawn = exact + noise * torch.randn(20_000, len(shares), dtype=DOUBLE)
            values, variances = scored.observed(drawn, torch.full_like(drawn, noise**2))
            assert values.mean().item() == pytest.approx(true, abs=0.15 * values.std().item()), (
                scoring,
                shares,
                noise,
            )
            assert ((values - true) ** 2 / variances).mean().sqrt().item() == pytest.approx(
                1.0, abs=0.1
            ), (scoring, shares, noise)


def test_the_noise_is_never_said_to_be_wider_than_the_range():
    for scoring in ("f1", "balanced_accuracy", "roc_auc"):
        scored = scoring_named(scoring, None, [0, 1])
        assert scored.cells is not None
        below = torch.full((1, scored.cells), -0.01, dtype=DOUBLE)
        value, variance = scored.observed(below, torch.full_like(below, 0.01))
        assert 0.0 <= value.item() <= 1.0, scoring
        assert variance.item() == 1.0, scoring


def protected(*records):
    return owner(records, budget=Budget.gdp(500.0))


class Picky(DecisionTreeClassifier):  # type: ignore[misc]
    """Fails on a set with a record of 7, and gives NaN for one of 8."""

    def predict(self, X):
        return self.predict_proba(X)[:, 1].round()

    def predict_proba(self, X):
        if (X[:, 0] == 7).any():
            raise ValueError
        return np.where(X[:, :1] == 8, np.nan, super().predict_proba(X))


def test_a_record_that_a_model_cannot_take_is_one_that_it_is_wrong_about():
    """Nowhere counted, a positive record that nothing can be said of would count as rightly
    refused.
    """
    X, y = np.arange(6.0).reshape(-1, 1), np.array([0, 0, 0, 1, 1, 1])
    model = Picky(random_state=0).fit(X, y)
    for scoring, worst in (("f1", (1, 2)), ("balanced_accuracy", (2, 3)), ("roc_auc", (31, 0))):
        scored = scoring_named(scoring, None, y)
        assert scored.cells is not None
        alone = scored(model, (X, y))
        for odd, label in itertools.product((7.0, 8.0), (0, 1)):
            curator = protected(np.append(X, [[odd]], 0), np.append(y, label))
            shares = (
                7
                * curator.release(
                    CellMeans(scored, model, cells=scored.cells), GaussianMechanism(0.01)
                ).value
            )
            expected = np.bincount(
                [*alone[alone >= 0].astype(int), worst[label]], minlength=scored.cells
            )
            assert shares.numpy() == pytest.approx(expected, abs=0.2), (scoring, odd, label)


@attack("A5")
def test_one_label_of_another_type_moves_no_other_records_score():
    """As one array of numpy's choice, a list's one word would make all its numbers words, and every
    score wrong.
    """
    model = DecisionTreeClassifier(max_depth=3).fit(*TRAIN)
    labels = VALIDATION[1].tolist()
    for scoring in SCORINGS:
        scored = scoring_named(scoring, None, TRAIN[1])
        before = np.asarray(scored(model, VALIDATION), dtype=np.float64)
        assert np.array_equal(
            np.asarray(scored(model, (VALIDATION[0], labels)), dtype=np.float64), before
        )
        for odd in ("x", 0.5, None, 2**70, (1, 2)):
            after = np.asarray(scored(model, (VALIDATION[0], [odd, *labels[1:]])), dtype=np.float64)
            assert np.array_equal(after[1:], before[1:]), (scoring, odd)


@attack("A13")
def test_no_model_is_worse_than_any():
    for scoring in SCORINGS:
        scored = scoring_named(scoring, None, TRAIN[1])
        numbers = torch.from_numpy(np.asarray(scored(None, VALIDATION), dtype=np.float64))
        if scored.cells is None:
            assert numbers.isnan().all(), "which is clipped to the worst end"
        else:
            shares = (numbers[:, None] == torch.arange(scored.cells)).double().mean(0, keepdim=True)
            assert scored.observed(shares, 1e-8 * torch.ones_like(shares))[
                0
            ].item() == pytest.approx(0.0, abs=1e-4), scoring


TWO_CLASSES = {
    "precision": sklearn.metrics.precision_score,
    "recall": sklearn.metrics.recall_score,
    "f1": sklearn.metrics.f1_score,
}
THREE_CLASSES = {
    "balanced_accuracy": sklearn.metrics.balanced_accuracy_score,
    "f1_macro": functools.partial(sklearn.metrics.f1_score, average="macro"),
}
EDGES = {
    "ordinary": ([0, 1, 1, 0, 1], [0, 1, 0, 1, 1]),
    "never positive": ([0, 1, 1, 0, 0], [0, 0, 0, 0, 0]),
    "no positives": ([0, 0, 0, 0, 0], [0, 1, 0, 0, 0]),
    "neither": ([0, 0, 0, 0, 0], [0, 0, 0, 0, 0]),
    "all right": ([0, 1, 1, 0, 1], [0, 1, 1, 0, 1]),
}


class Says:
    """A model with these predictions."""

    classes_ = np.arange(3)

    def __init__(self, predictions):
        self.predictions = np.array(predictions)

    def predict(self, _):
        return self.predictions


@pytest.mark.filterwarnings(
    "ignore:y_pred contains classes not in y_true:UserWarning",
    "ignore:A single label was found:UserWarning",
)
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("scoring", [*TWO_CLASSES, *THREE_CLASSES])
def test_without_noise_scores_of_cells_are_scikit_learns(scoring, edge):
    """A ratio of nothing to nothing was .5, and a class that nobody has counted as right."""
    labels, predictions = map(np.array, EDGES[edge])
    classes = [0, 1] if scoring in TWO_CLASSES else [0, 1, 2]
    scored = scoring_named(scoring, None, classes)
    cells = np.asarray(scored(Says(predictions), (np.zeros((5, 1)), labels)))
    assert scored.cells is not None
    shares = np.bincount(cells[cells >= 0].astype(int), minlength=scored.cells) / len(labels)
    exact = torch.from_numpy(shares).unsqueeze(0)
    value, _ = scored.observed(exact, torch.zeros_like(exact))
    expected = (
        TWO_CLASSES[scoring](labels, predictions, zero_division=0)
        if scoring in TWO_CLASSES
        else THREE_CLASSES[scoring](labels, predictions)
    )
    assert value.item() == pytest.approx(expected, abs=1e-9)


def test_macro_f1s_noise_is_what_a_simulation_finds_with_a_rare_class():
    """A rare class that noise made larger than it can be was said to be certain."""
    scored = scoring_named("f1_macro", None, [0, 1, 2])
    shares = [0.5, 0.05, 0.01, 0.05, 0.3, 0.02, 0.01, 0.02, 0.04]
    exact = torch.tensor([shares], dtype=DOUBLE)
    true = scored.observed(exact, torch.zeros_like(exact))[0].item()
    for noise in (0.002, 0.02):
        draw = torch.Generator().manual_seed(0)
        drawn = exact + noise * torch.randn(20_000, 9, dtype=DOUBLE, generator=draw)
        values, variances = scored.observed(drawn, torch.full_like(drawn, noise**2))
        errors = (values - true).abs() / variances.sqrt()
        assert errors.square().mean().sqrt().item() == pytest.approx(1.0, abs=0.2)
        assert (errors > 5.0).double().mean().item() < 1e-3


def accuracy_score(y, predicted):
    return float((y == predicted).min())


@pytest.mark.parametrize(
    "scorer",
    [
        make_scorer(accuracy_score),
        make_scorer(sklearn.metrics.roc_auc_score),
        make_scorer(sklearn.metrics.f1_score, average="micro"),
    ],
    ids=["own function of that name", "ranks of predictions", "micro"],
)
def test_a_scorer_that_means_something_else_is_refused(scorer):
    with pytest.raises(InputError, match="make_scorer of one of"):
        scoring_named(scorer, None, [0, 1])
