"""What the private estimators share with scikit-learn, and with each other.

    DPGaussianMixture(3, budget=Budget(1.0, 1e-5), radius=10.0).fit(X)              # makes its own curator, in memory
    DPGaussianMixture(3, budget=0.5, radius=10.0, dimension=4).fit(curator)         # spends half of a curator's budget

`fit` on an array protects each row, under `adjacency`; REPLACE_ONE makes the number of rows public. Rows that are not finite count as
nothing, because refusing them would tell that they are there; predictions, on the caller's own rows, refuse them. Nothing that `fit` leaves
behind depends on the rows but through what was released: no labels of theirs, no likelihood, no convergence check. `random_state` is for
starts and samples, never for noise; the start's seed is kept in the ledger, so that a resumed run starts where it did.

Three things to know. Every `fit` on an array spends its budget anew, on a ledger of its own: `cross_val_score` or GridSearchCV over private
rows spends it many times, with a warning each, and prints exact scores; one Curator adds them up. What `predict`, `transform`,
`fit_transform` and `score` say of private rows is exact, and the caller's to keep. Steps before this one in a pipeline, such as a scaler,
are not protected.
"""

from __future__ import annotations

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

from dpbo.checking import Within, at_least, require_settings
from dpbo.curator.curator import Curator
from dpbo.errors import InputError
from dpbo.mechanisms.no_noise import NoNoise
from dpbo.privacy import Adjacency, Budget, PrivacyUnit, require_count
from dpbo.queries.ball import Ball
from dpbo.statement import Statement

Floats = NDArray[np.float64]
Components = Annotated[int, at_least(1, 10_000)]
Iterations = Annotated[int, at_least(1, 10**6)]
RandomState = Annotated[int, at_least(0, 2**32 - 1)] | np.random.RandomState | ModuleType | None
Center = Annotated[Any, Within("finite numbers, d of them, or None", lambda value: _are_numbers(value))]


class PrivateEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn carries no annotations that mypy follows here
    """Opens a curator over the records, or takes one; keeps the statement."""

    budget: Any
    radius: Any
    center: Any
    adjacency: Adjacency | str
    accounting: Any
    dimension: int | None
    vectors: Any
    name: str
    random_state: Any
    statement_: Statement

    def statement(self) -> Statement:
        """What was guaranteed, to whom, when `fit` ended."""
        check_is_fitted(self)
        return self.statement_

    def _require_settings(self) -> None:
        """Raises InputError where the constructor's arguments, which scikit-learn keeps without looking, are not what they should be."""
        require_settings(self)

    def _opened(self, X: Any) -> tuple[Curator, int]:
        """The curator, and the public dimension of the records."""
        self._require_settings()
        if isinstance(X, Curator):
            if self.dimension is None:
                raise InputError("dimension", None, "the number of columns, when fitting on a Curator")
            if X.ledger.birth["grouped"]:  # before anything is reserved
                raise InputError("unit", "groups of records", "single records", "Reduce each unit to one record first.")
            if X.ranks > 1 and not isinstance(self.random_state, Integral):
                raise InputError("random_state", self.random_state, "a whole number on several ranks", "They must start alike.")
            self.n_features_in_ = require_count("dimension", self.dimension)
            return X, self.n_features_in_
        relation = _relation(self.adjacency)
        least = 1 if relation is Adjacency.REPLACE_ONE else 0  # how many there are is private otherwise
        rows = self._rows(X, least)
        cap = Budget.gdp(1.0) if isinstance(self.budget, NoNoise) else self.budget
        if not isinstance(cap, Budget):
            raise InputError("budget", cap, "a Budget, when fitting on an array", "For example Budget(epsilon=1.0, delta=1e-6).")
        writable = rows if rows.flags.writeable else rows.copy()
        terms = {"unit": PrivacyUnit("record"), "adjacency": relation, "budget": cap, "accounting": self.accounting}
        return Curator(torch.from_numpy(writable), role="training", **terms), rows.shape[1]

    def _rows(self, X: Any, least: int) -> Floats:
        """The array as float64. Refused by its dtype and shape alone; a cell that is no number counts as NaN, as any broken record does."""
        if issparse(X):
            validate_data(self, X)  # scikit-learn's refusal, which quotes no cell
        with np.errstate(all="ignore"):
            try:
                rows = np.asarray(X)
            except ValueError:
                raise InputError("X", type(X).__name__, "rows of one length") from None
            if rows.dtype.kind not in "biufO" or rows.ndim != 2:
                kind = "Complex data not supported." if rows.dtype.kind == "c" else "Reshape your data if it is one-dimensional."
                raise InputError("X", f"{rows.dtype} of {rows.ndim} dimensions", "a table of real numbers, n x d", kind)
            numbers = np.vectorize(_number, otypes=[np.float64])(rows) if rows.dtype.kind == "O" and rows.size else rows.astype(np.float64)
        validate_data(self, X, skip_check_array=True)
        return check_array(numbers, ensure_all_finite=False, ensure_min_samples=least, estimator=self)

    def _spending(self, X: Any) -> Any:
        """What the plan may spend: all of a curator of one's own."""
        return self.budget if isinstance(X, Curator) or isinstance(self.budget, NoNoise) else 1.0

    def _ball(self, d: int, norm: str = "l2") -> Ball:
        if self.radius is None:
            raise InputError("radius", None, "a public number", "Records beyond it are clipped; fix it without looking at the data.")
        center = None if self.center is None else torch.as_tensor(np.asarray(self.center, dtype=np.float64))
        ball = Ball(float(self.radius), center=center, norm=norm)
        ball.require_dimension(d)
        return ball

    def _points(self, X: Any) -> torch.Tensor:
        """The caller's own rows, for predictions; these must be finite."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=np.float64, reset=False)
        return torch.from_numpy(np.array(rows))

    def _seed(self, curator: Curator) -> int:
        """Of the start: `random_state`, else what an earlier session of this plan drew, else a fresh one."""
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        known = curator.ledger.plan(self.name)
        drawn = None if known is None else known.body["terms"].get("random_state")
        return int(self._generator().random_sample() * 2**31) if drawn is None else int(drawn)

    def _generator(self) -> np.random.RandomState:
        return check_random_state(self.random_state)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # the noise is fresh in every fit
        return tags


def _are_numbers(value: Any) -> bool:
    try:
        numbers = np.asarray([] if value is None else value)
        return numbers.dtype.kind in "biuf" and bool(np.isfinite(numbers.astype(np.float64)).all())
    except Exception:
        return False


def _number(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return np.nan


def _relation(adjacency: Any) -> Adjacency:
    """An Adjacency, also by its name: scikit-learn's defaults are plain values."""
    try:
        return Adjacency(adjacency) if isinstance(adjacency, (str, Adjacency)) else Adjacency(type(adjacency).__name__)
    except ValueError:
        raise InputError("adjacency", adjacency, "'replace-one' or 'add-or-remove-one'") from None


def spread(count: int, cloud: torch.Tensor) -> torch.Tensor:
    """`count` well-spread points of a public cloud `n x d`: the first, then always the one furthest from all before, then Lloyd's steps."""
    centers = cloud[:1]
    for _ in range(count - 1):
        furthest = torch.cdist(cloud, centers).amin(1).argmax()
        centers = torch.cat([centers, cloud[furthest].unsqueeze(0)])
    for _ in range(20):
        nearest = torch.nn.functional.one_hot(torch.cdist(cloud, centers).argmin(1), count).to(cloud.dtype)
        centers = (nearest.T @ cloud) / nearest.sum(0).clamp(min=1.0).unsqueeze(1)
    return centers
