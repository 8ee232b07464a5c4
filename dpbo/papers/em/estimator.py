"""The base class of the private estimators, with scikit-learn's interface: each runs a fixed number
of releases with equal noise.

    # makes its own curator, in memory
    DPGaussianMixture(3, budget=Budget(1.0, 1e-5), radius=10.0).fit(X)
    # spends half of a curator's budget
    DPGaussianMixture(3, budget=0.5, radius=10.0, dimension=4).fit(curator)

`fit` on an array protects each row, under `adjacency`; REPLACE_ONE makes the number of rows public.
Rows that are not finite count as nothing, because refusing them would tell that they are there;
predictions, on the caller's own rows, refuse them, and `score_samples` gives NaN for them. Nothing
that `fit` leaves behind depends on the rows except through released values: it keeps no labels, no
likelihood and no convergence check. `random_state` is for starts and samples, never for noise; the
start's seed is kept in the ledger, so that a resumed run starts where it did.

Three warnings. Every `fit` on an array spends its budget anew, on a ledger of its own:
`cross_val_score` or GridSearchCV over private rows spends it many times, with a warning each, and
refuses the scores; one Curator adds them up. One exact number of all rows (`score`, `aic`, `bic`)
is refused for rows that a ledger of this process protects. One for each row (`predict`,
`predict_proba`, `score_samples`, `transform`, `fit_predict`, `fit_transform`) is exact, and not for
release: a query may release a noised sum of it. Earlier steps of a pipeline, such as a scaler, are
not protected.
"""

import collections
import dataclasses
import hashlib
import json
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from numbers import Integral
from types import ModuleType
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from dpbo.accounting.filters import Accounting
from dpbo.accounting.planned import Planned
from dpbo.curator.curator import Curator
from dpbo.curator.pricing import share_of_cap
from dpbo.curator.reservation import Reservation
from dpbo.errors import InputError
from dpbo.mechanisms.additive import AdditiveMechanism
from dpbo.mechanisms.gaussian import GaussianMechanism
from dpbo.mechanisms.no_noise import NoNoise
from dpbo.notebook import FactsAfterFit
from dpbo.papers.em.point_sums import PointSums
from dpbo.privacy import Adjacency, Budget, PrivacyUnit
from dpbo.queries.ball import Ball, Box
from dpbo.records.protected_records import require_unprotected
from dpbo.statement import Statement
from dpbo.validation import Count, Name, Positive, Within, at_least, require, require_settings


def _on_host(value: Any) -> Any:
    """A tensor of any device as one that numpy reads; another value as it is."""
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def _are_numbers(value: Any) -> bool:
    try:
        numbers = np.asarray([] if value is None else _on_host(value))
        return numbers.dtype.kind in "biuf" and bool(np.isfinite(numbers.astype(np.float64)).all())
    except Exception:
        return False


def as_numbers(value: Any) -> torch.Tensor | None:
    """A float64 tensor of what passed as finite numbers."""
    if value is None:
        return None
    return torch.from_numpy(np.asarray(_on_host(value)).astype(np.float64))


Floats = NDArray[np.float64]
BudgetOrShare = Budget | float | Fraction | None
Components = Annotated[int, at_least(1, 10_000)]
Iterations = Annotated[int, at_least(1, 10**6)]
RandomState = Annotated[int, at_least(0, 2**32 - 1)] | np.random.RandomState | ModuleType | None
Center = Annotated[Any, Within("finite numbers, d of them, or None", _are_numbers)]
FiniteNumbers = Annotated[Any, Within("finite numbers, or None", _are_numbers)]


def _public_text(value: Any) -> Iterator[str]:
    """Everything public in a query, in words: numbers to six digits, which another machine computes
    alike.
    """
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _public_text(getattr(value, field.name))
    elif isinstance(value, torch.Tensor):
        yield " ".join(f"{number:.5e}" for number in value.flatten().tolist())
    elif callable(value):
        yield getattr(value, "__qualname__", type(value).__qualname__)
    else:
        yield f"{value:.5e}" if isinstance(value, float) else repr(value)


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateEstimator(FactsAfterFit, BaseEstimator):  # type: ignore[misc]
    """Makes a curator over the records, or takes one; keeps the statement. The constructor stores
    its arguments, and `fit` checks them.
    """

    budget: BudgetOrShare = None
    mechanism: NoNoise | None = None
    adjacency: Adjacency | str = "replace-one"
    accounting: Accounting | None = None
    name: Name
    statement_: Statement = field(init=False)

    def statement(self) -> Statement:
        """The guarantee, as it stood when `fit` ended."""
        check_is_fitted(self)
        return self.statement_

    def __getstate__(self) -> dict[str, Any]:
        """Tensors as copies: one that is a view would bring along all that it is a view of."""
        state = super().__getstate__()
        tensors = {name: part for name, part in state.items() if isinstance(part, torch.Tensor)}
        return {**state, **{name: part.clone() for name, part in tensors.items()}}

    def _settings(self, *names: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}

    def _facts(self) -> dict[str, Any]:
        if hasattr(self, "statement_"):
            return self.statement_.facts()
        return {}

    def _open(self, X: Any) -> Curator:
        """Checks the settings; the curator, which for an array is made."""
        require_settings(self)
        if isinstance(X, Curator):
            if X.ledger.birth.grouped:  # before anything is reserved
                raise InputError(
                    "unit",
                    X.ledger.birth.unit,
                    "one record",
                    "Reduce each unit to one record first, such as its mean: "
                    "table.groupby(labels).mean(). Then make a Curator without groups=.",
                )
            return X
        adjacency = Adjacency.of(self.adjacency)
        cap = Budget.gdp(1.0) if self.mechanism is not None else self.budget
        if not isinstance(cap, Budget):
            raise InputError(
                "budget",
                cap,
                "a Budget, when fitting on an array",
                "For example Budget(epsilon=1.0, delta=1e-6).",
            )
        # how many there are is private otherwise
        rows = self._as_table(X, 1 if adjacency is Adjacency.REPLACE_ONE else 0)
        return Curator(
            torch.from_numpy(rows if rows.flags.writeable else rows.copy()),
            unit=PrivacyUnit("record"),
            adjacency=adjacency,
            budget=cap,
            accounting=self.accounting,
            role="training",
        )

    def _as_table(self, X: Any, least: int) -> Floats:
        """An array as float64. Refused by its dtype and shape alone; a cell that is no number
        counts as NaN, as any broken record does. So does a row of a list that is not as long as
        `dimension` says; where that is not given, as most rows are.
        """
        X = _on_host(X)
        if issparse(X):
            validate_data(self, X)  # scikit-learn's refusal, which quotes no cell
        with np.errstate(all="ignore"):
            if isinstance(X, (list, tuple)):
                width = getattr(self, "dimension", None)
                X = _of_list(X, width if isinstance(width, int) else None)
            rows = np.asarray(X)
            if rows.dtype.kind not in "biufO" or rows.ndim != 2:
                if rows.dtype.kind == "c":
                    kind = "Complex data not supported."
                else:
                    kind = "Reshape your data if it is one-dimensional."
                raise InputError("X", rows, "a table of real numbers, n x d", kind)
            if rows.dtype.kind == "O" and rows.size:
                numbers = np.vectorize(_number, otypes=[np.float64])(rows)
            else:
                numbers = rows.astype(np.float64)
        validate_data(self, X, skip_check_array=True)
        return check_array(
            numbers, ensure_all_finite=False, ensure_min_samples=least, estimator=self
        )

    def _reserve(
        self,
        X: Any,
        curator: Curator,
        slots: int,
        asked: Sequence[PointSums],
        terms: Mapping[str, Any],
        given: Mapping[str, Any],
        noise: type[AdditiveMechanism] = GaussianMechanism,
        *,
        part: str = "",
        share: Fraction = Fraction(1),
    ) -> Reservation:
        """Reserves the releases. On an array they take all of the budget, which is that of the
        curator. What a query like those of `asked` would refuse is refused before.

        Args:
            part: what the name of one of several reservations ends with.
            share: which this one takes of the estimator's budget.
        """
        for query in asked:
            query.sensitivity(curator.adjacency)
        stated = {"records": curator.units, "role": "training", **terms}
        law: AdditiveMechanism | NoNoise | type[AdditiveMechanism] = noise
        budget = self.budget if isinstance(X, Curator) else 1.0
        if self.mechanism is not None:
            law, budget = self.mechanism, None
        elif share != 1 and budget is not None and not isinstance(curator.accounting, Planned):
            # whose list says what each release takes
            budget = share * share_of_cap(curator.ledger, budget)
        # numbers, arrays and tensors
        plain = json.loads(json.dumps(stated, default=operator.methodcaller("tolist")))
        reservation = curator.reserve(
            self.name + part, law, slots=slots, budget=budget, given=given, terms=plain
        )
        reservation.show_progress()
        return reservation

    def _release(
        self, reservation: Reservation, query: PointSums, stage: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The next release: from the ledger if it was made before, else charged and made now.

        Args:
            stage: what the release is for, as the ledger shows it.

        Returns:
            The noisy answer and the standard deviation of the noise of each of its numbers, one
            vector each, float64.

        Raises:
            LedgerMismatch: an earlier session released another question here.
        """
        asked = {
            "stage": stage,
            "question": hashlib.sha256("\n".join(_public_text(query)).encode()).hexdigest()[:16],
        }
        row = reservation.release(query, **asked)
        value = torch.tensor(row["value"], dtype=torch.float64, device="cpu")
        return value, reservation.std_of(query)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # the noise is fresh in every fit
        return tags


@dataclass(kw_only=True, eq=False, repr=False)
class PointEstimator(PrivateEstimator):
    """One of records that are points, clipped to a public ball, or first scaled by public
    bounds.
    """

    bounds: FiniteNumbers = None
    radius: Positive | None = None
    center: Center = None
    dimension: int | None = None
    vectors: Callable[[Any], Any] | None = None
    random_state: RandomState = None
    _box: Box | None = field(default=None, init=False)

    def _open_points(self, X: Any, norm: str = "l2") -> tuple[Curator, int, Ball]:
        """The curator, the public dimension of its records, and the ball that they are clipped to,
        in units of the box where there is one. Warns where most rows lie beyond the ball.
        """
        curator = self._open(X)
        if curator is X:
            if self.dimension is None:
                raise InputError(
                    "dimension", None, "the number of columns, when fitting on a Curator"
                )
            self.n_features_in_ = require("dimension", self.dimension, Count)
            if X.ranks > 1 and not isinstance(self.random_state, Integral):
                raise InputError(
                    "random_state",
                    self.random_state,
                    "a whole number on several ranks",
                    "They must start alike.",
                )
        d = self.n_features_in_
        bounds = as_numbers(self.bounds)
        self._box = None
        if bounds is not None:
            self._box = Box(bounds)
            self._box.require_dimension(d)
        ball = self._ball(d, norm)
        if bounds is None and self.vectors is None:
            curator.protected.warn_if_clipped(ball, d)
        return curator, d, ball

    def _ball(self, d: int, norm: str) -> Ball:
        radius = self.radius
        if radius is None and self._box is not None:
            radius = 1.0 if norm == "linf" else math.sqrt(d)
        if radius is None:
            raise InputError(
                "radius",
                None,
                "a public number, or omitted where there are bounds",
                "Records beyond it are clipped. Give bounds=, one (lower, upper) a column, or a"
                " radius, from what is known without the data.",
            )
        ball = Ball(float(radius), center=as_numbers(self.center), norm=norm)
        ball.require_dimension(d)
        if ball.center is None:
            return ball
        return dataclasses.replace(ball, center=self._inward(ball.center))

    def _inward(self, X: torch.Tensor) -> torch.Tensor:
        """Public points `n x d` in units of the box; the same where there is none."""
        return X if self._box is None else self._box.inward(X)

    def _outward(self, Z: torch.Tensor) -> torch.Tensor:
        """Points `n x d`, or one, in the caller's units."""
        return Z if self._box is None else self._box.outward(Z)

    def _of_records(self) -> dict[str, Any]:
        """How a question's points are made of the records."""
        return {"vectors": self.vectors, "box": self._box}

    def _of_points(self, terms: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The terms and what is given of a reservation, with what all estimators of points have."""
        shared = {"radius": self.radius, "center": as_numbers(self.center)}
        shared["dimension"] = self.n_features_in_
        if self.bounds is not None:
            shared["bounds"] = as_numbers(self.bounds)
        return {**shared, **terms}, {"vectors": self.vectors}

    def _seed(self, curator: Curator) -> int:
        """Seed of the start: `random_state`, else what an earlier session of this run drew, else a
        fresh one.
        """
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        known = curator.ledger.reservation(self.name)
        drawn = None if known is None else known.terms.get("random_state")
        if drawn is None:
            return int(self._generator().random_sample() * 2**31)
        return int(drawn)

    def _generator(self) -> np.random.RandomState:
        return check_random_state(self.random_state)

    def _points(self, X: Any, *, complete: bool = True) -> torch.Tensor:
        """The caller's own rows, for predictions; these must be finite, or, if they need not be
        complete, become NaN where one of their cells is not.
        """
        check_is_fitted(self)
        rows = validate_data(
            self, _on_host(X), dtype=np.float64, reset=False, ensure_all_finite=complete
        )
        points = torch.from_numpy(np.array(rows))
        return points.masked_fill(~points.isfinite().all(1, keepdim=True), math.nan)

    def _unprotected(self, X: Any) -> Any:
        """The caller's own rows, for one exact number of all of them. Raises InputError for the
        records of a curator, and for rows that a ledger of this process protects.
        """
        check_is_fitted(self)
        if isinstance(X, Curator):
            raise InputError("X", X, "rows", "Release a ClippedMean of each record's score.")
        require_unprotected("X", X)
        return X


class LabelEstimator(PointEstimator):
    """One whose `predict` gives labels."""

    def fit_predict(self, X: Any, y: Any = None) -> Any:
        """Fit, then `predict` these rows. The labels are exact, and not for release.

        Raises:
            InputError: X is a Curator, whose records nobody reads, or has cells that are not
                finite, which `predict` refuses; nothing was charged.
        """
        if isinstance(X, Curator):
            raise InputError("X", X, "rows", "Call fit(curator), and predict for rows of your own.")
        rows = self._as_table(X, 1)
        if not np.isfinite(rows).all():
            raise InputError(
                "X",
                rows,
                "finite rows, which `predict` needs",
                "Call fit, which counts others as nothing, and predict for finite rows.",
            )
        estimator: Any = self
        return estimator.fit(X).predict(X)


def record_count(public: float | None, value: torch.Tensor, std: torch.Tensor) -> float:
    """The number of records in a released sum, of which those with a missing cell are no part.

    It is the public number where the released count lies within three standard deviations of its
    noise of that: then fewer are missing than the noise would show. Else, and where there is no
    public number, it is the released count, at least 1 and three standard deviations. Released
    numbers alone decide, so this costs nothing.
    """
    released, noise = float(value), 3.0 * float(std)
    if public is not None and abs(released - public) <= noise:
        return float(public)
    return max(released, 1.0 + noise)


def _of_list(rows: Sequence[Any], width: int | None) -> NDArray[Any]:
    """A list of rows as a table, of this width; where numpy finds no numbers in it, of objects,
    cell by cell. Without a width it is that of most rows, which one row decides only between two
    that are equally frequent.
    """
    try:
        table = np.asarray(rows)
    except (ValueError, TypeError, RuntimeError):
        table = np.array(None)
    lengths = [
        len(row) if isinstance(row, (list, tuple)) or getattr(row, "ndim", 0) == 1 else -1
        for row in rows
    ]
    if table.dtype.kind in "biuf" or max(lengths, default=-1) < 0:
        return table
    if width is None:
        counts = collections.Counter(lengths)
        width = max(counts, key=lambda length: (length >= 0, counts[length], length))
    found = np.full((len(rows), width), None)
    for place, row in enumerate(rows):
        if lengths[place] == width:
            for column, cell in enumerate(row):
                found[place, column] = cell
    return found


def _number(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return np.nan
