"""Public scores: every candidate, cross-validated on the training records, and what these say of
cells of records.

The configuration in row 0 is the default, the estimator as it was given. Gains are measured from
it.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold
from sklearn.tree import DecisionTreeRegressor

from dpbo.errors import InputError
from dpbo.isolation import mute_warnings
from dpbo.progress import progress_bar
from dpbo.queries.score_evaluation import tensor_of
from dpbo.search.scorings import Scoring, label_array, places_of
from dpbo.search.training import Configuration, Trainer, in_parallel, rows_at
from dpbo.space import Space

if TYPE_CHECKING:
    from dpbo.search.problem import Problem

FOLDS = 5
# Of a cell's share, relative to it.
TYPICAL_SHIFTS = np.array([0.0, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4])

Array = NDArray[np.float64]


def public_candidates(space: Space, most: int, seed: int) -> torch.Tensor:
    """Every point of a space of lists if there are at most `most`, else that many different Sobol
    points: `n x d`."""
    listed = {**space.discrete_dims, **space.cat_dims}
    points: Iterable[Sequence[float]]
    if len(listed) == len(space.names) and math.prod(map(len, listed.values())) <= most:
        points = itertools.product(*[listed[i] for i in sorted(listed)])
    else:
        different = dict.fromkeys(map(tuple, space.sample(16 * most, seed=seed).tolist()))
        points = itertools.islice(different, most)
    return space.bounds.new_tensor([*points])


class Features:
    """What the cells are made of: the default model's predictions and the label, as numbers, for
    each record by itself."""

    def __init__(self, labels: Any, *, classifier: bool) -> None:
        self.classes = np.unique(np.asarray(labels)) if classifier else None

    @classmethod
    def of(cls, trainer: Trainer) -> "Features":
        """For the labels of all training records."""
        return cls(trainer.labels(), classifier=trainer.classifies)

    def codes(self, labels: Any) -> NDArray[np.int64]:
        """Place of each label among the classes; -1 for one that training lacks. Zeros for a
        regression."""
        if self.classes is None:
            return np.zeros(len(labels), dtype=np.int64)
        return places_of(label_array(labels), self.classes)

    def __call__(self, model: Any, X: Any, labels: Any) -> Array:
        """`records x (predictions, label)`."""
        target = label_array(labels) if self.classes is None else self.codes(labels)
        if hasattr(model, "predict_proba") and target.ndim == 1:
            predictions = np.asarray(model.predict_proba(X), dtype=np.float64)
            if self.classes is not None:
                # A fold may lack a class.
                known = np.asarray(model.classes_)[:, None] == self.classes
                predictions = (predictions @ known)[:, 1:]
        elif self.classes is not None:
            predictions = self.codes(model.predict(X))[:, None].astype(np.float64)
        else:
            predictions = np.asarray(model.predict(X), dtype=np.float64).reshape(len(labels), -1)
        table = np.nan_to_num(np.column_stack([predictions, target.astype(np.float64)]))
        # A tree cannot take larger numbers.
        return np.clip(table, -1e30, 1e30)


@dataclass(frozen=True)
class Cells:
    """The score of `CellMeans`: the cell of each record.

    Attributes:
        tree: a tree whose leaves are the cells.
        leaves: its leaves' numbers, increasing.
        features: makes the tree's inputs from a record.
    """

    tree: DecisionTreeRegressor
    leaves: NDArray[np.int64]
    features: Features

    def __call__(self, model: Any, records: Any) -> NDArray[np.int64]:
        with mute_warnings():
            return self.cells(self.features(model, *records))

    def cells(self, described: Array) -> NDArray[np.int64]:
        """The cell of each row of features."""
        return np.searchsorted(self.leaves, self.tree.apply(described))


@dataclass(frozen=True)
class Shares:
    """The public side of the cells.

    Attributes:
        inside: `records x cells`: how much each public record counts in the cell that it falls
            into.
    """

    inside: Array

    @property
    def share(self) -> Array:
        """The share of the public records in each cell."""
        return np.asarray(self.inside.sum(0) / self.inside.sum())

    def means(self, scores: Array) -> Array:
        """Mean in each cell of scores (`... x records`)."""
        return np.asarray(scores @ self.inside) / np.maximum(self.inside.sum(0), 1.0)

    def shrunk(self, released: Array, noise_std: float, units: float) -> Array:
        """Released shares (`... x cells`), scaled to sum 1 and shrunk toward the public ones.

        The less the populations typically differ, beside the noise, the more is shrunk. How much
        they differ is not known: each of TYPICAL_SHIFTS, as a share of the public share, is
        weighted by the likelihood of the released shares.
        """
        public = self.share
        released = released / released.sum(-1, keepdims=True).clip(0.1)
        shift = released - public
        error = noise_std**2 + public * (1 - public) / units + 1e-12
        typical = (TYPICAL_SHIFTS[:, None] * public) ** 2
        variance = typical + error
        log_likelihood = -0.5 * (shift[..., None, :] ** 2 / variance + np.log(variance)).sum(-1)
        trust = softmax(log_likelihood, axis=-1) @ (typical / variance)
        share = np.maximum(public + trust * shift, 0.0)
        return np.asarray(share / share.sum(-1, keepdims=True).clip(1e-9))


@dataclass(frozen=True, kw_only=True)
class PublicScores:
    """Scores of candidates on training records that they were not fitted to.

    Attributes:
        points: the candidates but for the default, `n x d`.
        scores: `(n + 1) x records`, the default configuration in row 0.
        features: what the cells are made of.
        described: the features of each record, by the default model.
        labels: the place of each record's label among the classes.
    """

    points: torch.Tensor
    scores: Array
    features: Features
    described: Array
    labels: NDArray[np.int64]
    _cells: dict[int, tuple[Cells, Shares]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, problem: "Problem") -> "PublicScores":
        """Of the problem's candidates. Raises InputError if the default configuration cannot be
        fitted."""
        points = public_candidates(problem.space, problem.n_iter, problem.seed)
        features = Features.of(problem.trainer)
        again = ", again, because public scores are not kept" if problem.begun else ""
        problem.tell(
            f"public cross-validation: {len(points) + 1} configurations, each fitted to"
            f" {FOLDS} folds{again}"
        )
        scores, described = out_of_fold(
            problem.trainer,
            problem.scoring,
            [None, *points],
            features,
            problem.seed,
            problem.groups_train,
            n_jobs=problem.n_jobs,
            progress=problem.verbose > 0,
        )
        labels = features.codes(problem.trainer.labels())
        return cls(
            points=points, scores=scores, features=features, described=described, labels=labels
        )

    @property
    def configurations(self) -> list[Configuration]:
        """The candidates, the default configuration first."""
        return [None, *self.points]

    @property
    def means(self) -> Array:
        """The mean score of each candidate."""
        return np.asarray(self.scores.mean(1))

    @functools.cached_property
    def gains(self) -> Array:
        """Score differences to the default configuration."""
        return np.asarray(self.scores - self.scores[0])

    @functools.cached_property
    def optimism(self) -> Array:
        """How much of each candidate's mean gain is chance: public means differ by what the
        candidates are worth and by which records were drawn, and what is best among them owes more
        to the second than others do.

        The share that is kept is that of a normal model of both (empirical Bayes): 1 - sampling
        variance of a mean over the variance of the means.
        """
        centred = self.scores - self.scores.mean(0)
        spread = float(centred.mean(1).var(ddof=1))
        sampling = float(centred.var(1, ddof=1).mean()) / self.scores.shape[1]
        kept = max(0.0, 1.0 - sampling / spread) if spread > 0 else 1.0
        return np.asarray((1.0 - kept) * self.gains.mean(1))

    @property
    def order(self) -> list[int]:
        """Candidates by their public mean score; the default comes second if it is not the best."""
        return ordered(self.means)

    @property
    def best(self) -> Configuration:
        """The best candidate: the free choice."""
        return self.configurations[self.order[0]]

    def cells(self, most: int) -> tuple[Cells, Shares]:
        """At most so many cells, within which the gains of the candidates vary little, and their
        public shares."""
        if most not in self._cells:
            least = max(1, min(40, len(self.labels) // (2 * most)))
            tree = DecisionTreeRegressor(
                max_leaf_nodes=most, min_samples_leaf=least, random_state=0
            )
            tree.fit(self.described, self.gains.T)
            cells = Cells(tree, np.unique(tree.apply(self.described)), self.features)
            places = np.arange(len(cells.leaves))
            inside = cells.cells(self.described)[:, None] == places
            self._cells[most] = cells, Shares(inside.astype(np.float64))
        return self._cells[most]

    def has_cells(self, most: int) -> bool:
        """Whether there are two or more: the candidates differ by more than a constant."""
        return len(self.cells(most)[0].leaves) > 1


def ordered(means: Array) -> list[int]:
    """Candidates from the best to the worst; the default, 0, comes second if it is not the best."""
    ranked = np.argsort(-means, kind="stable").tolist()
    if ranked[0] != 0:
        ranked.remove(0)
        ranked.insert(1, 0)
    return ranked


def out_of_fold(
    trainer: Trainer,
    scoring: Scoring,
    configurations: Sequence[Configuration],
    features: Features | None,
    seed: int,
    groups: Any = None,
    *,
    n_jobs: int | None = None,
    progress: bool = False,
) -> tuple[Array, Array]:
    """Scores of configurations on training records that they were not fitted to, and the records'
    features.

    Args:
        features: to be computed from the first configuration's models; None leaves them out.
        n_jobs: number of joblib's workers; the scores are the same for any.
        progress: whether to show a bar.

    Returns:
        `configurations x records`, and `records x features`.

    Raises:
        InputError: the first configuration cannot be fitted, of which features are wanted.
    """
    X, y = trainer.table()
    count = len(label_array(y))
    scores = np.zeros((len(configurations), count))
    described = np.zeros((count, 0))
    folds = list(_folds(Features.of(trainer), y, count, seed, groups))

    def tasks() -> Iterator[tuple[Any, ...]]:
        with progress_bar(
            "cross-validation", len(folds) * len(configurations), hidden=not progress
        ) as bar:
            for train, held in folds:
                part = trainer.on(rows_at(X, train), rows_at(y, train))
                records = rows_at(X, held), rows_at(y, held)
                for place, x in enumerate(configurations):
                    yield part, scoring, x, records, None if place else features
                    bar.update()

    places = itertools.product(folds, range(len(configurations)))
    results = in_parallel(n_jobs, _held_out, tasks())
    for ((_, held), place), (row, found) in zip(places, results, strict=True):
        scores[place, held] = row
        if found is not None:
            if not described.size:
                described = np.zeros((count, found.shape[1]))
            described[held] = found
    return scores, described


def _held_out(
    trainer: Trainer, scoring: Scoring, x: Configuration, records: Any, features: Features | None
) -> tuple[Array, Array | None]:
    """Scores of the configuration x on the records, and the features that its model gives them."""
    model = trainer.public_model(x)
    row = tensor_of(scoring(model, records)).double().reshape(-1).numpy()
    row = np.clip(np.where(np.isfinite(row), row, scoring.bounds[0]), *scoring.bounds)
    if features is None:
        return row, None
    if model is None:
        allowed = "one that can be fitted as it is given"
        raise InputError(
            "estimator", type(trainer.estimator).__name__, allowed, "Others are compared with it."
        )
    return row, features(model, *records)


def _folds(
    features: Features, y: Any, count: int, seed: int, groups: Any
) -> Iterator[tuple[Any, Any]]:
    folds = min(FOLDS, count)
    codes = features.codes(y)
    stratified = (
        features.classes is not None and np.unique(codes, return_counts=True)[1].min() >= folds
    )
    shuffled = {"shuffle": True, "random_state": seed}
    splitter: Any
    if groups is None:
        splitter = (StratifiedKFold if stratified else KFold)(folds, **shuffled)
    else:
        folds = min(folds, len(np.unique(np.asarray(groups))))
        splitter = StratifiedGroupKFold(folds, **shuffled) if stratified else GroupKFold(folds)
    return splitter.split(np.zeros(count), codes, groups)
