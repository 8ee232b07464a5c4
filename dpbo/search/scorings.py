"""Scorings of DPSearch: what is measured on each validation record, and how released means become
the number that is maximised.

Accuracy and clipped losses are means of per-record scores, so the released mean is the number
itself. Balanced accuracy, precision, recall, F1, ROC AUC and average precision are not means and
have no useful sensitivity. Instead each record falls into one of a few cells, the shares of the
cells are released together, and the number is computed from those in public. Its variance comes
from the delta method at the released shares, so it is an estimate, while that of a mean is known.

A protected record whose class training lacks is counted nowhere by these, and as the worst score by
means. A class that no protected record has and no model predicts counts nowhere, as in
scikit-learn, and a ratio of nothing to nothing is 0.

Warnings that a model gives on private records are muted: they can reveal a record, as "unknown
category" does.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import sklearn.metrics
import torch
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.base import is_classifier, is_regressor

from dpbo.errors import InputError, UsageError
from dpbo.isolation import mute_warnings
from dpbo.queries.cells import CellMeans
from dpbo.queries.clipped import ClippedMean
from dpbo.validation import ScoreRange, require

Measure = Callable[[Any, Any, Any], Any]
Value = Callable[[torch.Tensor], torch.Tensor]
LOG_FLOOR = -3.0
BINS = 16
# Smaller shares, which noise can produce, count as this.
_EMPTY = 1e-6


def label_array(labels: Any) -> NDArray[Any]:
    """Labels as an array. A list becomes objects: one word in an array of numpy's choice would turn
    all its numbers into words."""
    return np.asarray(
        labels if hasattr(labels, "shape") else np.fromiter(labels, dtype=object, count=len(labels))
    )


@dataclass(frozen=True)
class Scoring:
    """One way to score.

    Attributes:
        measure: `measure(model, features, labels)` returns one number a record: its score, or the
            cell that it falls into. Where the model is None or cannot take a record, that is the
            worst cell for the record's label.
        bounds: public range of the number that is maximised; without cells, the range of one
            record's score.
        cells: number of cells, or None for a mean.
        value: function from shares of cells (`... x m`) to the number that is maximised.
        positive: the class that it is about, where it is about one.
    """

    measure: Measure
    bounds: tuple[float, float]
    cells: int | None = None
    value: Value | None = None
    positive: Any = None

    def __call__(self, model: Any, records: Any) -> Any:
        """The score that `PrivateObjective` calls; a model that could not be fitted has the worst
        score on every record."""
        features, labels = records
        if model is None and self.cells is None:
            return np.full(len(labels), np.nan)
        with mute_warnings():
            return self.measure(model, features, label_array(labels))

    def query(self, **settings: Any) -> ClippedMean:
        """The question of the mean score, or of the shares of the cells."""
        if self.cells is None:
            return ClippedMean(self, score_range=self.bounds, **settings)
        return CellMeans(self, cells=self.cells, **settings)

    def worst_cell(self, records: Any) -> Any:
        """The cell for a record that the model cannot take: that of a wrong prediction."""
        return self(None, records)

    def observed(self, Y: torch.Tensor, Yvar: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The maximised number and its variance, `t x 1` each, from released means `t x m`. Public
        post-processing."""
        if self.value is None:
            return Y, Yvar
        cells = Y.detach().requires_grad_()
        values = self.value(cells)
        (slope,) = torch.autograd.grad(values.sum(), cells)
        widest = (self.bounds[1] - self.bounds[0]) ** 2  # no value can be further off
        return values.detach().unsqueeze(1).clamp(*self.bounds), (slope**2 * Yvar).sum(
            1, keepdim=True
        ).clamp_max(widest)


def scoring_named(scoring: Any, score_range: Any, labels: Any, estimator: Any = None) -> Scoring:
    """The scoring of this scikit-learn name or `make_scorer` object, or of a function
    `scoring(model, X, y)` that returns one number a record.

    Args:
        score_range: the public range of one record's score, for scorings that have none of their
            own.
        labels: training labels, which define the classes.
        estimator: whose kind the score must suit.
    """
    settings: dict[str, Any] = {}
    if hasattr(scoring, "_score_func"):
        scoring, settings = _unwrapped(scoring)
    _require_no_metric(scoring)
    _require_kind(scoring, estimator)
    if isinstance(scoring, (Mapping, list, tuple, set)):
        remedy = "Several scores are released by dpbo.PrivateObjective, with one range each."
        raise InputError("scoring", scoring, "one score: it alone decides what is chosen", remedy)
    row = None if callable(scoring) else _TABLE.get(scoring)
    if score_range is None and (callable(scoring) or (row is not None and row.of == "numbers")):
        what = "a scoring of your own" if callable(scoring) else scoring
        remedy = (
            "Fix it without looking at the validation records, for example (-c, 0.0) for an error"
            " clipped at c."
        )
        raise InputError(
            "score_range", None, f"the public range of one record's score for {what}", remedy
        )
    given: Any = require("score_range", score_range, ScoreRange | None)
    if callable(scoring):
        return Scoring(scoring, given)
    if row is None:
        names = ", ".join(map(repr, _TABLE))
        allowed = f"one of {names}, or scoring(model, X, y) giving one number a record"
        raise InputError("scoring", scoring, allowed)
    if not row.most:
        return row.scoring(_Asked([], None, given))
    classes: list[Any] = np.unique(labels).tolist()
    positive = None
    if row.most == 2:
        positive = _positive(classes, settings.get("pos_label"), scoring, named=row.positive)
    elif len(classes) > row.most:
        allowed = f"a score of {len(classes)} classes: it takes at most {row.most}"
        raise InputError("scoring", scoring, allowed)
    return row.scoring(_Asked(classes, positive, given))


_FOR_REGRESSORS = (
    "accuracy, which DPSearch scores by unless scoring= is given, counts equal numbers. For a"
    " regressor give scoring='neg_mean_squared_error' or 'neg_mean_absolute_error', with"
    " score_range=(-c, 0.0): no record's error counts as more than c, a public number."
)


def _require_kind(name: Any, estimator: Any) -> None:
    """Refuse a score of classes for a regressor, which would count equal floats, an error on a line
    for a classifier, and a score of probabilities for a model that gives none.

    Raises:
        UsageError: the score is not for this kind of estimator.
    """
    if estimator is None or not isinstance(name, str):
        return
    of = _TABLE[name].of if name in _TABLE else "classes"
    if of == "probabilities" and not hasattr(estimator, "predict_proba"):
        allowed = "a score of predictions, such as 'accuracy', for a model without predict_proba"
        remedy = "Or give it probabilities: sklearn.calibration.CalibratedClassifierCV(model)."
        raise InputError("scoring", name, allowed, remedy)
    if is_regressor(estimator) and name == "accuracy":
        # the default, which the caller did not write
        raise UsageError(_FOR_REGRESSORS)
    if is_regressor(estimator) and of != "numbers":
        errors = [name for name, row in _TABLE.items() if row.of == "numbers"]
        allowed = f"one of {errors} for a regressor, or a function"
        raise InputError("scoring", name, allowed, "Give score_range=(-c, 0.0), too.")
    if is_classifier(estimator) and of == "numbers":
        allowed = "a score of classes for a classifier, such as 'accuracy'"
        raise InputError("scoring", name, allowed)


def _require_no_metric(scoring: Any) -> None:
    """Refuse a function of `sklearn.metrics`, which compares labels and sees no model."""
    metric = getattr(scoring, "__name__", "")
    if not metric or getattr(sklearn.metrics, metric, None) is not scoring:
        return
    remedy = "It compares labels, and gives one number for all records."
    if (name := _name_of(metric)) is not None:
        remedy = f"It compares labels: give scoring={name!r}."
    allowed = "a name such as 'accuracy', or scoring(model, X, y) giving one number a record"
    raise InputError("scoring", metric, allowed, remedy)


def _unwrapped(scorer: Any) -> tuple[str, dict[str, Any]]:
    """The name of what `sklearn.metrics.make_scorer` made, and its settings.

    Raises:
        InputError: of another function, or with settings that change more than the positive class
            or the average of F1.
    """
    function = scorer._score_func
    own = function is not getattr(sklearn.metrics, function.__name__, None)
    name = None if own else _name_of(function.__name__)
    # scikit-learn's would rank records by their predicted classes.
    unranked = name in ("roc_auc", "average_precision") and scorer._response_method == "predict"
    given = dict(scorer._kwargs)
    average = given.pop("average", "binary")
    settings = {key: value for key, value in given.items() if value is not None}
    if name == "f1" and average == "macro":
        name = "f1_macro"
        average = "binary"
    minimised = name is not None and name.startswith("neg_")
    odd = set(settings) - {"pos_label"} or average != "binary" or (scorer._sign < 0) != minimised
    if name is None or odd or unranked:
        allowed = (
            f"make_scorer of one of {_FUNCTIONS}, with its usual sign and no other settings than "
            "pos_label=, or average='macro' of F1; by name for ROC AUC"
        )
        raise InputError("scoring", scorer, allowed)
    return name, settings


def _positive(classes: list[Any], given: Any, scoring: str, *, named: bool) -> Any:
    """The class that a score of two classes is about: the one that is given, or 1 or True; the
    second where the score is the same for either (not `named`)."""
    if len(classes) != 2:
        allowed = f"a score of {len(classes)} classes, such as 'f1_macro': it needs two"
        raise InputError("scoring", scoring, allowed)
    if not named:
        return classes[1]
    if given is not None:
        if given not in classes:
            raise InputError("pos_label", given, f"one of the training labels {classes}")
        return given
    if classes in ([0, 1], [-1, 1]):
        return classes[1]
    remedy = (
        f"Say which class it is about: scoring=make_scorer({scoring}_score,"
        f" pos_label={classes[1]!r}), of sklearn.metrics."
    )
    raise InputError(
        "scoring", scoring, f"a score that says which of {classes} it is about", remedy
    )


def places_of(labels: NDArray[Any], classes: Any) -> NDArray[np.int64]:
    """Place of each label among the classes; -1 for one that is none of them."""
    same = labels[:, None] == np.asarray(classes)
    return np.where(same.any(1), same.argmax(1), -1)


def _correct(model: Any, features: Any, labels: NDArray[Any]) -> Any:
    return np.asarray(model.predict(features)) == labels


def _likelihood(model: Any, features: Any, labels: NDArray[Any]) -> Any:
    """Predicted probability of the true class; 0 for a class that training lacks."""
    own = labels[:, None] == np.asarray(model.classes_)
    return (np.asarray(model.predict_proba(features)) * own).sum(1)


def _log_likelihood(model: Any, features: Any, labels: NDArray[Any]) -> Any:
    """Log-likelihood of the true class; about minus infinity, so clipped, for a class that training
    lacks."""
    return np.log(np.maximum(_likelihood(model, features, labels), 1e-300))


@dataclass(frozen=True)
class Brier:
    """Minus the Brier score: of two classes the squared error of one's probability, of more the sum
    over all, as in scikit-learn."""

    two: bool

    def __call__(self, model: Any, features: Any, labels: NDArray[Any]) -> Any:
        squares = (np.asarray(model.predict_proba(features)) ** 2).sum(1)
        score = squares - 2 * _likelihood(model, features, labels) + 1
        if self.two:
            return -score / 2
        return -score


def _error(model: Any, features: Any, labels: NDArray[Any]) -> Any:
    return np.asarray(model.predict(features), dtype=np.float64) - labels.astype(np.float64)


def _squared_error(model: Any, features: Any, labels: NDArray[Any]) -> Any:
    return -(_error(model, features, labels) ** 2)


def _absolute_error(model: Any, features: Any, labels: NDArray[Any]) -> Any:
    return -np.abs(_error(model, features, labels))


@dataclass(frozen=True)
class Correctness:
    """Two cells a class: right, then wrong. A class that training lacks has no cell."""

    classes: tuple[Any, ...]

    def __call__(self, model: Any, features: Any, labels: NDArray[Any]) -> Any:
        own = places_of(labels, self.classes)
        if model is None:
            wrong = np.ones(len(labels), dtype=bool)
        else:
            wrong = ~_correct(model, features, labels)
        return np.where(own >= 0, own + len(self.classes) * wrong, -1)


@dataclass(frozen=True)
class Confusion:
    """Three cells: true positive, false positive, false negative."""

    positive: Any

    def __call__(self, model: Any, features: Any, labels: NDArray[Any]) -> Any:
        true = labels == self.positive
        predicted = ~true
        if model is not None:
            labels_predicted = np.asarray(model.predict(features))
            # NaN counts as wrong
            predicted = np.where(
                labels_predicted == labels_predicted, labels_predicted == self.positive, ~true
            )
        return np.select([predicted & true, predicted & ~true, ~predicted & true], [0, 1, 2], -1)


@dataclass(frozen=True)
class ConfusionMatrix:
    """A cell for each pair of a true and a predicted class. A class that training lacks has no
    cell; a prediction that is none of the classes counts as the class after the true one.
    """

    classes: tuple[Any, ...]

    def __call__(self, model: Any, features: Any, labels: NDArray[Any]) -> Any:
        count = len(self.classes)
        own = places_of(labels, self.classes)
        predicted = wrong = (own + 1) % count
        if model is not None:
            found = places_of(np.asarray(model.predict(features)), self.classes)
            predicted = np.where(found >= 0, found, wrong)
        return np.where(own >= 0, own * count + predicted, -1)


@dataclass(frozen=True)
class Histogram:
    """Equal bins of the predicted probability of the positive class: first for positive records,
    then for the others.

    A model without probabilities is scored by the logistic function of its decision function:
    fixed, public and increasing, so it keeps the order that ROC AUC is about. Each record still
    falls into one bin, whatever its decision value, so the sensitivity is the same. The bins are
    finest at decision values around 0; values beyond about +-2.7 share the outermost ones.
    """

    positive: Any

    def __call__(self, model: Any, features: Any, labels: NDArray[Any]) -> Any:
        true = labels == self.positive
        if model is None:
            likely = ~true
        else:
            place_of_positive = np.asarray(model.classes_).tolist().index(self.positive)
            if hasattr(model, "predict_proba"):
                likely = np.asarray(model.predict_proba(features))[:, place_of_positive]
            else:
                decision = np.asarray(model.decision_function(features), dtype=np.float64)
                likely = expit(decision if place_of_positive == 1 else -decision)
        place = np.clip(np.floor(np.where(np.isnan(likely), ~true, likely) * BINS), 0, BINS - 1)
        return np.where(true, place, place + BINS)


def _at_least(shares: torch.Tensor, least: float = _EMPTY) -> torch.Tensor:
    """max(x, least) with slope 1 everywhere: a share that noise made small is as uncertain as any
    other."""
    return shares + (shares.clamp_min(least) - shares).detach()


def _share_of(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """part / whole, from 0 to 1; 0 where both are empty, as scikit-learn has it."""
    share = _at_least(part, 0.0) / _at_least(whole)
    return 1.0 - _at_least(1.0 - share, 0.0)


def _mean_of_present(values: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    """The mean over the classes that there are, as scikit-learn takes it."""
    there = size > _EMPTY
    # Where noise made all empty, nothing is known of any.
    counted = (there | ~there.any(-1, keepdim=True)).to(values)
    return (values * counted).sum(-1) / counted.sum(-1)


def _balanced(cells: torch.Tensor) -> torch.Tensor:
    right, wrong = _at_least(cells, 0.0).chunk(2, -1)
    return _mean_of_present(_share_of(right, right + wrong), right + wrong)


def _precision(cells: torch.Tensor) -> torch.Tensor:
    true, false, _ = _at_least(cells, 0.0).unbind(-1)
    return _share_of(true, true + false)


def _recall(cells: torch.Tensor) -> torch.Tensor:
    true, _, missed = _at_least(cells, 0.0).unbind(-1)
    return _share_of(true, true + missed)


def _f1(cells: torch.Tensor) -> torch.Tensor:
    true, false, missed = _at_least(cells, 0.0).unbind(-1)
    return _share_of(2 * true, 2 * true + false + missed)


def _f1_macro(cells: torch.Tensor) -> torch.Tensor:
    count = math.isqrt(cells.shape[-1])
    table = cells.reshape(*cells.shape[:-1], count, count)
    both = table.sum(-1) + table.sum(-2)
    right = table.diagonal(dim1=-2, dim2=-1)
    return _mean_of_present(_share_of(2 * right, both), both)


def _auc(cells: torch.Tensor) -> torch.Tensor:
    """Probability that a random positive record lies in a higher bin than a random other one; ties
    count half.

    Shares that noise made negative stay: they cancel in the sums, and clipping each at zero would
    pull the value toward 0.5.
    """
    positive, other = cells.chunk(2, -1)
    below = other.cumsum(-1) - other / 2
    return (positive * below).sum(-1) / (_at_least(positive.sum(-1)) * _at_least(other.sum(-1)))


def _average_precision(cells: torch.Tensor) -> torch.Tensor:
    """The mean precision at the ends of the bins, from the highest down, weighted by the positive
    records in each."""
    positive, other = (half.flip(-1) for half in cells.chunk(2, -1))
    above = positive.cumsum(-1)
    precision = above / _at_least(above + other.cumsum(-1))
    return (positive * precision).sum(-1) / _at_least(positive.sum(-1))


class _Asked(NamedTuple):
    """What a score is about: the training classes, the positive one if there is one, and the range
    that the caller gave."""

    classes: list[Any]
    positive: Any
    score_range: tuple[float, float] | None


@dataclass(frozen=True)
class _Row:
    """What a name stands for.

    Attributes:
        function: of scikit-learn's metrics, whose mean or value it is; "" for none.
        scoring: makes the scoring.
        of: what it compares with the labels: predicted "classes", "probabilities" or "numbers",
            whose range only the user knows.
        most: number of classes at most; with 2, exactly; with 0 it does not matter which there are.
        positive: whether it is about one class of two.
    """

    function: str
    scoring: Callable[[_Asked], Scoring]
    of: str = "classes"
    most: float = 0
    positive: bool = False


def _mean(measure: Measure, bounds: Any = None, default: Any = None) -> Callable[[_Asked], Scoring]:
    """A mean of single records' scores: with their own range, or the caller's."""
    return lambda asked: Scoring(measure, bounds or asked.score_range or default)


def _counted(value: Value) -> Callable[[_Asked], Scoring]:
    """A number from the shares of true positives, false positives and false negatives."""
    return lambda asked: Scoring(Confusion(asked.positive), (0.0, 1.0), 3, value, asked.positive)


def _brier(asked: _Asked) -> Scoring:
    two = len(asked.classes) == 2
    return Scoring(Brier(two), (-1.0 if two else -2.0, 0.0))


def _balanced_accuracy(asked: _Asked) -> Scoring:
    measure = Correctness(tuple(asked.classes))
    return Scoring(measure, (0.0, 1.0), 2 * len(asked.classes), _balanced)


def _macro(asked: _Asked) -> Scoring:
    measure = ConfusionMatrix(tuple(asked.classes))
    return Scoring(measure, (0.0, 1.0), len(asked.classes) ** 2, _f1_macro)


def _area(asked: _Asked) -> Scoring:
    # The same for either class.
    return Scoring(Histogram(asked.positive), (0.0, 1.0), 2 * BINS, _auc)


def _precisions(asked: _Asked) -> Scoring:
    measure = Histogram(asked.positive)
    return Scoring(measure, (0.0, 1.0), 2 * BINS, _average_precision, asked.positive)


_TABLE = {
    "accuracy": _Row("accuracy_score", _mean(_correct, (0.0, 1.0))),
    "neg_brier_score": _Row("brier_score_loss", _brier, "probabilities", most=math.inf),
    "neg_log_loss": _Row(
        "log_loss", _mean(_log_likelihood, default=(LOG_FLOOR, 0.0)), "probabilities"
    ),
    "neg_mean_squared_error": _Row("mean_squared_error", _mean(_squared_error), "numbers"),
    "neg_mean_absolute_error": _Row("mean_absolute_error", _mean(_absolute_error), "numbers"),
    "balanced_accuracy": _Row("balanced_accuracy_score", _balanced_accuracy, most=math.inf),
    "precision": _Row("precision_score", _counted(_precision), most=2, positive=True),
    "recall": _Row("recall_score", _counted(_recall), most=2, positive=True),
    "f1": _Row("f1_score", _counted(_f1), most=2, positive=True),
    "roc_auc": _Row("roc_auc_score", _area, most=2),
    "average_precision": _Row("average_precision_score", _precisions, most=2, positive=True),
    "true_class_probability": _Row("", _mean(_likelihood, (0.0, 1.0)), "probabilities"),
    # A cell for each pair of classes: as many as a release may have.
    "f1_macro": _Row("", _macro, most=100),
}
_FUNCTIONS = ", ".join(row.function for row in _TABLE.values() if row.function)


def _name_of(function: str) -> str | None:
    """The scoring that stands for a function of `sklearn.metrics`."""
    return next((name for name, row in _TABLE.items() if row.function == function), None)
