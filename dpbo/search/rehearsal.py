"""Rehearsal: how a private search would go, simulated on the public training records, so that the choice of method costs nothing.

    print(dpbo.rehearse(estimator, space, X_train, y_train, units=300, budget=Budget(1.0, 1e-6)))

Every candidate is scored out of fold on the training records: a public matrix of scores, candidates x records. On it each method is
simulated with the real number of units, budget and noise, and its mean gain over the default configuration is compared with the free
choice, the candidate with the best cross-validated score.

Simulated shift. If the protected records were drawn like the public ones, the free choice would be hard to beat. So the simulated
populations are the public records with weights exp(s z): z is a random direction in the label, the default model's predictions and the
candidates' scores (standard deviation 1), and s is log-uniform from a tenth of `shift` to `shift`. At s = 0.5 a typical share of 50 %
becomes 62 %, at s = 1 73 %. The range of s is an assumption, which the public records cannot test, and so are the directions: the simulated
people are the public ones with other weights, along the label and the predictions, which is what the cells of weighted_cv are made of.
People of kinds that the public records lack are not simulated. So the gains are optimistic, most of all that of weighted_cv. The public
records are themselves a sample: every population draws its training side, from which the free choice, the order and the cells' means come,
from them with replacement.

Weighted cross-validation ("weighted_cv"). A tree splits the public records by label and the default model's predictions into cells within
which the candidates' score differences vary little. The shares of the protected records in these cells are released once, with noise.
Public scores, weighted by released share over public share, then estimate each candidate's score on the protected population (Sugiyama,
Krauledat & Mueller 2007, with the density ratio constant in a cell). The released shares are shrunk toward the public ones: share + t *
(released - share) with t the posterior mean of v / (v + noise variance + sampling variance), where v = (s share)^2 is the shift that is
typical. Its size s, from none to 140 % of a share, is learned from the same released shares (equal prior weights, normal likelihood): after
the release this costs nothing. The estimate is biased where a cell's records differ between the populations; this does not touch the
privacy, which rests on the release of the shares.
The weighted score is public, so a Bayesian optimisation on it, half as many configurations again, costs fits but no privacy.

A private choice ("list"). The candidates are ordered by the public score, the default second; one choice mechanism chooses among the
first ones, on exact mean scores, plain or paired with the default (`ClippedScores`, largest_difference).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.base import is_classifier
from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold
from sklearn.tree import DecisionTreeRegressor

from dpbo.errors import InputError
from dpbo.isolation import mute_warnings
from dpbo.models.builders import default_gp, mute_optimizer_warnings
from dpbo.progress import progress_bar
from dpbo.queries.score_evaluation import tensor_of
from dpbo.search.scorings import Scoring, label_array
from dpbo.search.training import Trainer, in_parallel
from dpbo.space import Space

FOLDS, POPULATIONS, DRAWS = 5, 60, 10
TYPICAL_SHIFTS = np.array([0.0, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4])  # of a cell's share, relative to it
CELLS, LISTS, DIFFERENCES = (4, 8, 16), (4, 16), (0.05, 0.1, 0.25)  # the last as a share of the score range's width

Array = NDArray[np.float64]


class Matrix(NamedTuple):
    """Public scores: `scores` out of fold, `candidates x records`, the default configuration in row 0, and each record's `features`."""

    scores: Array
    features: Array
    labels: NDArray[np.int64]

    @property
    def gains(self) -> Array:
        """Score differences to the default configuration."""
        return self.scores - self.scores[0]

    @property
    def order(self) -> list[int]:
        """Candidates by public mean score; the default comes second if it is not the best."""
        return ordered(self.scores.mean(1))


def ordered(means: Array) -> list[int]:
    """Candidates from the best to the worst; the default, 0, comes second if it is not the best."""
    ranked = np.argsort(-means, kind="stable").tolist()
    return ranked if ranked[0] == 0 else [ranked[0], 0, *(i for i in ranked[1:] if i)]


class Features:
    """What the cells are made of: the default model's predictions and the label, as numbers, for each record by itself."""

    def __init__(self, labels: Any, *, classifier: bool) -> None:
        self.classes = np.unique(np.asarray(labels)) if classifier else None

    def codes(self, labels: Any) -> NDArray[np.int64]:
        """Place of each label among the classes; -1 for one that training lacks. Zeros for a regression."""
        if self.classes is None:
            return np.zeros(len(labels), dtype=np.int64)
        same = label_array(labels)[:, None] == self.classes[None, :]
        return np.where(same.any(1), same.argmax(1), -1)

    def __call__(self, model: Any, X: Any, labels: Any) -> Array:
        """`records x (predictions, label)`."""
        if hasattr(model, "predict_proba"):
            predictions = np.asarray(model.predict_proba(X), dtype=np.float64)
            if self.classes is not None:  # a fold may lack a class
                predictions = (predictions @ (np.asarray(model.classes_)[:, None] == self.classes[None, :]))[:, 1:]
        elif self.classes is not None:
            predictions = self.codes(model.predict(X))[:, None].astype(np.float64)
        else:
            predictions = np.asarray(model.predict(X), dtype=np.float64).reshape(len(labels), -1)
        target = self.codes(labels) if self.classes is not None else label_array(labels).astype(np.float64)
        return np.clip(np.nan_to_num(np.column_stack([predictions, target])), -1e30, 1e30)  # what a tree can take


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

    @classmethod
    def of(cls, matrix: Matrix, features: Features, most: int) -> "Cells":
        """At most so many cells, within which the gains of the candidates vary little."""
        least = max(1, min(40, len(matrix.labels) // (2 * most)))
        tree = DecisionTreeRegressor(max_leaf_nodes=most, min_samples_leaf=least, random_state=0).fit(matrix.features, matrix.gains.T)
        return cls(tree, np.unique(tree.apply(matrix.features)), features)

    def __call__(self, model: Any, records: Any) -> NDArray[np.int64]:
        with mute_warnings():
            return self.cells(self.features(model, *records))

    def cells(self, features: Array) -> NDArray[np.int64]:
        """The cell of each row of features."""
        return np.searchsorted(self.leaves, self.tree.apply(features))


@dataclass(frozen=True)
class Shares:
    """The public side of the cells.

    Attributes:
        inside: `records x cells`: how much each public record counts in the cell that it falls into.
        share: of the public records in each cell.
    """

    inside: Array
    share: Array

    @classmethod
    def of(cls, matrix: Matrix, cells: Cells) -> "Shares":
        return cls.counted((cells.cells(matrix.features)[:, None] == np.arange(len(cells.leaves))).astype(np.float64))

    @classmethod
    def counted(cls, inside: Array) -> "Shares":
        """With the share that follows from how much each record counts."""
        return cls(inside, inside.sum(0) / inside.sum())

    def means(self, scores: Array) -> Array:
        """Mean in each cell of scores (`... x records`)."""
        return np.asarray(scores @ self.inside) / np.maximum(self.inside.sum(0), 1.0)

    def shrunk(self, released: Array, noise_std: float, units: float) -> Array:
        """Released shares (`... x cells`), scaled to sum 1 and shrunk toward the public ones.

        The less the populations typically differ, beside the noise, the more is shrunk. How much they differ is not known: each of
        TYPICAL_SHIFTS, as a share of the public share, is weighted by the likelihood of the released shares.
        """
        released = released / released.sum(-1, keepdims=True).clip(0.1)
        shift, error = released - self.share, noise_std**2 + self.share * (1 - self.share) / units + 1e-12
        typical = (TYPICAL_SHIFTS[:, None] * self.share) ** 2
        variance = typical + error
        log_likelihood = -0.5 * (shift[..., None, :] ** 2 / variance + np.log(variance)).sum(-1)
        trust = softmax(log_likelihood, axis=-1) @ (typical / variance)
        share = np.maximum(self.share + trust * shift, 0.0)
        return np.asarray(share / share.sum(-1, keepdims=True).clip(1e-9))

    def variance(self, scores: Array, share: Array) -> Array:
        """Variance of the weighted means of scores (`... x records`) that comes from the public records being a sample."""
        spread = np.maximum(self.means(scores**2) - self.means(scores) ** 2, 0.0) / np.maximum(self.inside.sum(0), 1.0)
        return spread @ share**2


def out_of_fold(
    trainer: Trainer,
    scoring: Scoring,
    candidates: torch.Tensor,
    features: Features | None,
    seed: int,
    groups: Any = None,
    *,
    n_jobs: int | None = None,
    progress: bool = False,
) -> Matrix:
    """Scores of every candidate (`n x d`) on training records that it was not fitted to.

    Args:
        features: to be computed from the first candidate, the default configuration; None leaves them out.
        n_jobs: number of joblib's workers; the scores are the same for any.
        progress: whether to show a bar.

    Raises:
        InputError: the default configuration cannot be fitted.
    """
    X, y = trainer.table()
    count, classes = len(label_array(y)), default_features(trainer, y)
    scores, described = np.empty((len(candidates), count)), np.zeros((count, 0))
    folds = list(_folds(classes, y, count, seed, groups))

    def tasks() -> Iterator[tuple[Any, ...]]:
        with progress_bar("cross-validation", len(folds) * len(candidates), hidden=not progress) as bar:
            for train, held in folds:
                part, records = trainer.on(_rows(X, train), _rows(y, train)), (_rows(X, held), _rows(y, held))
                for i, x in enumerate(candidates):
                    yield part, scoring, x, records, None if i else features
                    bar.update()

    rows = iter(in_parallel(n_jobs, _held_out, tasks()))
    for _, held in folds:
        for i in range(len(candidates)):
            scores[i, held], found = next(rows)
            if found is not None:
                described = described if described.size else np.zeros((count, found.shape[1]))
                described[held] = found
    return Matrix(scores, described, classes.codes(y))


def _held_out(trainer: Trainer, scoring: Scoring, x: torch.Tensor, records: Any, features: Features | None) -> tuple[Array, Array | None]:
    """Scores of the candidate x on the records, and the features that its model gives them."""
    model = trainer.unscored(x)
    row = tensor_of(scoring(model, records)).double().reshape(-1).numpy()
    row = np.clip(np.where(np.isfinite(row), row, scoring.bounds[0]), *scoring.bounds)
    if features is None:
        return row, None
    if model is None:
        allowed = "one that can be fitted as it is given"
        raise InputError("estimator", type(trainer.estimator).__name__, allowed, "Others are compared with it.")
    return row, features(model, *records)


def _folds(features: Features, y: Any, count: int, seed: int, groups: Any) -> Iterator[tuple[Any, Any]]:
    folds = min(FOLDS, count)
    stratified = features.classes is not None and np.unique(features.codes(y), return_counts=True)[1].min() >= folds
    if groups is not None:
        folds = min(folds, len(np.unique(np.asarray(groups))))
        kind: Any = StratifiedGroupKFold(folds, shuffle=True, random_state=seed) if stratified else GroupKFold(folds)
    else:
        kind = (StratifiedKFold if stratified else KFold)(folds, shuffle=True, random_state=seed)
    return kind.split(np.zeros(count), features.codes(y), groups)


def _rows(table: Any, rows: Any) -> Any:
    if hasattr(table, "iloc"):
        return table.iloc[rows]
    return table[rows] if hasattr(table, "shape") else [table[i] for i in rows]


@dataclass(frozen=True)
class Method:
    """One method with its settings, and what the rehearsal found.

    Attributes:
        strategy: "free" (the best cross-validated candidate), "weighted_cv", "list" or "bo".
        options: its settings: cells; candidates and largest_difference.
        gain: simulated mean gain over the default configuration, on populations that differ from the public one as `shift` says.
        gain_alike: the same on populations that do not differ.
        error: standard error of `gain` minus that of the free choice, from the simulation.
    """

    strategy: str
    options: Mapping[str, Any]
    gain: float
    gain_alike: float
    error: float


@dataclass(frozen=True)
class Rehearsal:
    """The methods in the order of their simulated gain; `str()` is a table.

    Attributes:
        methods: the one with the largest simulated gain first.
        units: number of protected units that was simulated.
        shift: largest simulated shift.
        close: "weighted_cv" is preferred to a list or a search if its gain is below the largest by at most this share of it.
    """

    methods: tuple[Method, ...]
    units: int
    shift: float
    close: float = 0.0

    @property
    def best(self) -> Method:
        """The method to take: that with the largest simulated gain, or a "weighted_cv" close to it instead of a list or a search, because
        its own free search comes on top of what is simulated.
        """
        first = self.methods[0]
        close = [method for method in self.methods if method.strategy == "weighted_cv" and method.gain >= (1 - self.close) * first.gain]
        return close[0] if close and first.strategy in ("list", "bo") else first

    def __str__(self) -> str:
        lines = [f"{'method':46s} {'gain':>8s} {'alike':>8s} {'error':>8s}"]
        for method in self.methods:
            settings = ", ".join(f"{name} {value:.4g}" for name, value in method.options.items() if value is not None)
            name = f"{method.strategy} ({settings})" if settings else method.strategy
            lines.append(f"{name:46s} {method.gain:8.4f} {method.gain_alike:8.4f} {method.error:8.4f}")
        if self.best.strategy == "free":
            lines.append("The free choice is expected to win: cross-validate on the public records. Nothing needs to be released.")
        elif self.best is not self.methods[0]:
            lines.append("weighted_cv is taken: it is close to the best, and its free search comes on top of what is simulated.")
        lines += [
            f"gain: simulated mean gain over the default configuration with {self.units} protected units, drawn from populations that",
            f"differ from the public one by up to {self.shift:g} standard deviations. alike: the same, drawn from the public one. error:",
            "standard error of the gain minus the free choice's, from the simulation alone. People of kinds that the public records lack",
            "are not simulated, so the gains are optimistic.",
        ]
        return "\n".join(lines)


class Noise(NamedTuple):
    """What the simulation needs to know of the budget.

    Attributes:
        cells: standard deviation of one released share.
        choice: scale of the noise of a private choice among mean scores of range 1.
        gumbel: whether that noise is Gumbel (exponential mechanism) or exponential (permute-and-flip).
        search: standard deviation of one evaluation in a search with as many evaluations as candidates.
    """

    cells: float
    choice: float
    gumbel: bool
    search: float


def simulate(
    matrix: Matrix,
    cells: Mapping[int, Cells],
    noise: Noise,
    *,
    width: float,
    lists: Sequence[int] = LISTS,
    differences: Sequence[float | None] = (None,),
    units: int,
    shift: float,
    seed: int,
    smoother: Array | None = None,
) -> Rehearsal:
    """Compare the methods on simulated populations.

    Args:
        matrix: public scores.
        cells: by their number.
        width: of the score range.
        lists, differences: numbers of candidates of a private choice, and the largest differences of its paired scores (None: plain).
        smoother: `candidates x candidates`: from a search's noised scores, centred, to posterior means; None leaves the search out.
    """
    random, gains = np.random.default_rng(seed), matrix.gains
    clipped = {c: gains if c is None else np.clip(gains, -c, c) for c in differences}
    found: dict[tuple[str, tuple[tuple[str, Any], ...]], list[float]] = {}
    inside = {number: Shares.of(matrix, one).inside for number, one in cells.items()}
    count = gains.shape[1]
    strengths = [0.0] * (POPULATIONS // 3)
    if shift > 0:
        strengths += np.exp(random.uniform(math.log(shift / 10), math.log(shift), POPULATIONS)).tolist()
    for strength in strengths:
        weights = _weights(matrix, strength, random)
        truth = gains @ weights
        counts = random.multinomial(units, weights, DRAWS).astype(np.float64)
        public = random.multinomial(count, np.full(count, 1 / count)).astype(np.float64)
        order = ordered(gains @ public)

        def note(chosen: Any, strategy: str, truth: Array = truth, **options: Any) -> None:
            found.setdefault((strategy, tuple(options.items())), []).append(float(truth[chosen].mean()))

        note(np.array([order[0]]), "free")
        for number, members in inside.items():
            share = Shares.counted(members * public[:, None])
            released = counts @ members / units + noise.cells * random.laplace(size=(DRAWS, len(share.share))) / math.sqrt(2)
            note((share.shrunk(released, noise.cells, units) @ share.means(matrix.scores).T).argmax(1), "weighted_cv", cells=number)
        draw = random.gumbel if noise.gumbel else random.exponential
        for c in differences:
            means, reach = counts @ clipped[c].T / units, width if c is None else 2 * c
            noisy = means + noise.choice * reach * draw(size=means.shape)
            for size in lists:
                note(np.array(order)[noisy[:, order[:size]].argmax(1)], "list", candidates=size, largest_difference=c)
        if smoother is not None:
            values = counts @ gains[1:].T / units + noise.search * random.standard_normal((DRAWS, len(gains) - 1))
            note(1 + ((values - values.mean(1, keepdims=True)) @ smoother.T).argmax(1), "bo")
    alike = POPULATIONS // 3
    part = slice(alike, None) if shift > 0 else slice(0, alike)
    free = np.array(found["free", ()][part])
    methods = [
        Method(strategy, dict(options), float(np.mean(values[part])), float(np.mean(values[:alike])),
               float(np.std(np.array(values[part]) - free, ddof=1) / math.sqrt(len(free))))
        for (strategy, options), values in found.items()
    ]  # fmt: skip
    return Rehearsal(tuple(sorted(methods, key=lambda method: -method.gain)), units, shift)


def smoother(space: Space, X: torch.Tensor, means: Array, noise_std: float) -> Array:
    """From noised scores at X (`n x d`) to posterior means of a Gaussian process fitted to the public mean scores."""
    Y = torch.as_tensor(means, dtype=torch.float64).reshape(-1, 1)
    with mute_optimizer_warnings(), torch.no_grad():
        gp = default_gp(space, X, Y, torch.full_like(Y, 1e-12))
        prior = gp.covar_module(gp.transform_inputs(X)).to_dense()
    noise = noise_std**2 / float(Y.var().clamp_min(1e-12)) * torch.eye(len(X), dtype=torch.float64)
    return torch.linalg.solve(prior + noise, prior).T.numpy()


def _weights(matrix: Matrix, strength: float, random: np.random.Generator) -> Array:
    """Weights of the public records, with sum 1, for one simulated population."""
    codes = np.eye(matrix.labels.max() + 1)[matrix.labels]
    parts = [codes, matrix.features, matrix.gains.T]
    sides = [_standardised(_standardised(part) @ random.standard_normal(part.shape[1])) for part in parts]
    logits = strength * _standardised(np.sum(sides, 0))
    logits = np.minimum(logits, np.quantile(logits, 0.99))
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def _standardised(table: Array) -> Array:
    spread = table.std(0)
    return (table - table.mean(0)) / np.where(spread > 0, spread, 1.0)


def default_features(trainer: Trainer, y: Any) -> Features:
    """The features of the cells, for the trainer's kind of estimator."""
    return Features(y, classifier=is_classifier(trainer.estimator))
