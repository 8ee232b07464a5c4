"""What is measured on each validation record, and how released means become the number that is maximised.

Accuracy and clipped losses are means of per-record scores: what is released is the number itself. Balanced accuracy, F1 and ROC AUC are
not, and have no useful sensitivity. Their cells are: each record falls into one of a few cells, whose means are released jointly, and the
number is computed from those in public. The variance it gets is that of its linear part at the released cells (delta method): an estimate,
where that of a mean is known.

Warnings that a model gives on private records are muted: they can tell of a record, as "unknown category" does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpbo.errors import InputError
from dpbo.isolation import quietly
from dpbo.privacy import require_range

Measure = Callable[[Any, Any, Any], Any]
Value = Callable[[torch.Tensor], torch.Tensor]
LOG_FLOOR, BINS = -3.0, 16
_EMPTY = 1e-6  # a share that noise made smaller counts as this


@dataclass(frozen=True)
class Scoring:
    """One way to score.

    Attributes:
        measure: `measure(model, features, labels)`, one number a record: its score, or the cell that it falls into. Without a model, and
            for a record that the model cannot take, it is the worst cell for this label.
        bounds: public range of what is maximised; without cells, of one record's score.
        cells: how many there are, or None.
        value: of shares of cells (`... x m`), what is maximised.
    """

    measure: Measure
    bounds: tuple[float, float]
    cells: int | None = None
    value: Value | None = None

    def __call__(self, model: Any, records: Any) -> Any:
        """The score for `PrivateObjective`: `score(model, records)`; a model that could not be fitted is worst everywhere."""
        features, labels = records
        if model is None and self.cells is None:
            return np.full(len(labels), np.nan)
        with quietly():
            return self.measure(model, features, _array(labels))

    def worst_cell(self, records: Any) -> Any:
        """The cell that counts for a record that a model cannot take: that of being wrong about it."""
        return self(None, records)

    def observed(self, Y: torch.Tensor, Yvar: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What is maximised and its variance, `t x 1` each, from released means `t x m`. Public post-processing."""
        if self.value is None:
            return Y, Yvar
        cells = Y.detach().requires_grad_()
        values = self.value(cells)
        (slope,) = torch.autograd.grad(values.sum(), cells)
        widest = (self.bounds[1] - self.bounds[0]) ** 2  # no value is further off than that
        return values.detach().unsqueeze(1).clamp(*self.bounds), (slope**2 * Yvar).sum(1, keepdim=True).clamp_max(widest)


def scoring_named(scoring: Any, score_range: Any, labels: Any) -> Scoring:
    """By scikit-learn's name, or from `scoring(model, X, y)` giving one number a record; classes come from the training labels."""
    if callable(scoring):
        return _mean(scoring, _needed(score_range, "a scoring of your own"))
    match scoring:
        case "accuracy":
            return _mean(_correct, (0.0, 1.0))
        case "neg_log_loss":
            return _mean(_log_likelihood, (LOG_FLOOR, 0.0) if score_range is None else require_range("score_range", score_range))
        case "neg_mean_squared_error":
            return _mean(_squared_error, _needed(score_range, scoring))
        case "balanced_accuracy":
            return _cells(Correctness(tuple(np.unique(labels).tolist())), 2 * len(np.unique(labels)), _balanced)
        case "f1":
            return _cells(Confusion(_positive(labels)), 3, _f1)
        case "roc_auc":
            return _cells(Histogram(_positive(labels)), 2 * BINS, _auc)
    known = "'accuracy', 'neg_log_loss', 'neg_mean_squared_error', 'balanced_accuracy', 'f1', 'roc_auc'"
    raise InputError("scoring", scoring, f"{known}, or scoring(model, X, y) giving one number a record")


def _array(labels: Any) -> NDArray[Any]:
    """Labels that nothing converts: as one array of numpy's choice, a list's one word would turn all its numbers into words."""
    return np.asarray(labels) if hasattr(labels, "dtype") else np.fromiter(labels, dtype=object, count=len(labels))


def _mean(measure: Measure, ends: tuple[float, float]) -> Scoring:
    return Scoring(measure, ends)


def _cells(measure: Measure, count: int, value: Value) -> Scoring:
    return Scoring(measure, (0.0, 1.0), count, value)


def _needed(score_range: Any, what: str) -> tuple[float, float]:
    if score_range is None:
        remedy = "Fix it without looking at the validation records, for example (-c, 0.0) for an error clipped at c."
        raise InputError("score_range", None, f"the public range of one record's score for {what}", remedy)
    return require_range("score_range", score_range)


def _positive(labels: Any) -> Any:
    classes = np.unique(labels)
    if len(classes) != 2:
        raise InputError("scoring", len(classes), "one for this number of classes", "F1 and ROC AUC need two.")
    return classes.tolist()[1]


def _correct(model: Any, features: Any, labels: NDArray[Any]) -> Any:
    return np.asarray(model.predict(features)) == labels


def _log_likelihood(model: Any, features: Any, labels: NDArray[Any]) -> Any:
    """Of the true class; of a class that training lacks, minus infinity, which is clipped."""
    likelihood = (np.asarray(model.predict_proba(features)) * (labels[:, None] == np.asarray(model.classes_)[None, :])).sum(1)
    return np.log(np.maximum(likelihood, 1e-300))


def _squared_error(model: Any, features: Any, labels: NDArray[Any]) -> Any:
    return -((np.asarray(model.predict(features), dtype=np.float64) - labels.astype(np.float64)) ** 2)


@dataclass(frozen=True)
class Correctness:
    """Two cells a class: right, then wrong. A class that training lacks has none."""

    classes: tuple[Any, ...]

    def __call__(self, model: Any, features: Any, labels: NDArray[Any]) -> Any:
        own = labels[:, None] == np.asarray(self.classes)[None, :]
        wrong = np.ones(len(labels), dtype=bool) if model is None else ~_correct(model, features, labels)
        return np.where(own.any(1), own.argmax(1) + len(self.classes) * wrong, -1)


@dataclass(frozen=True)
class Confusion:
    """Three cells: true positive, false positive, false negative."""

    positive: Any

    def __call__(self, model: Any, features: Any, labels: NDArray[Any]) -> Any:
        true = labels == self.positive
        said = ~true if model is None else _said(np.asarray(model.predict(features)), self.positive, true)
        return np.select([said & true, said & ~true, ~said & true], [0, 1, 2], -1)


def _said(predicted: NDArray[Any], positive: Any, true: NDArray[Any]) -> Any:
    """Whether positive was said; of NaN, the wrong thing."""
    return np.where(predicted == predicted, predicted == positive, ~true)


@dataclass(frozen=True)
class Histogram:
    """Equal bins of the predicted probability of the positive class: of positive records, then of the others."""

    positive: Any

    def __call__(self, model: Any, features: Any, labels: NDArray[Any]) -> Any:
        true = labels == self.positive
        likely = ~true if model is None else self._probability(model, features)
        place = np.clip(np.floor(np.where(np.isnan(likely), ~true, likely) * BINS), 0, BINS - 1)
        return np.where(true, place, place + BINS)

    def _probability(self, model: Any, features: Any) -> Any:
        return np.asarray(model.predict_proba(features))[:, np.asarray(model.classes_).tolist().index(self.positive)]


class _AtLeast(torch.autograd.Function):
    """max(x, _EMPTY) whose slope is taken as 1 below, too: a share that noise made small is as uncertain as any."""

    @staticmethod
    def forward(_context: Any, shares: torch.Tensor) -> torch.Tensor:
        return shares.clamp_min(_EMPTY)

    @staticmethod
    def backward(_context: Any, *slopes: Any) -> Any:
        return slopes[0]


def _some(shares: torch.Tensor) -> torch.Tensor:
    return _AtLeast.apply(shares)  # type: ignore[no-untyped-call]


def _balanced(cells: torch.Tensor) -> torch.Tensor:
    right, wrong = _some(cells).chunk(2, -1)
    return (right / (right + wrong)).mean(-1)


def _f1(cells: torch.Tensor) -> torch.Tensor:
    true, false, missed = _some(cells).unbind(-1)
    return 2 * true / (2 * true + false + missed)


def _auc(cells: torch.Tensor) -> torch.Tensor:
    """Of a positive and another record drawn at random, how often the positive one lies in a higher bin; half where in one.

    Bins keep what noise put below zero: it cancels in the sums, where raising each to zero would pull the value toward a half.
    """
    positive, other = cells.chunk(2, -1)
    below = other.cumsum(-1) - other / 2
    return (positive * below).sum(-1) / (_some(positive.sum(-1)) * _some(other.sum(-1)))
