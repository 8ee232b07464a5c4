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

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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

from dpbo.accounting.calibration import exact_share
from dpbo.curator.curator import Curator
from dpbo.errors import BudgetExceeded, InputError, LedgerMismatch
from dpbo.mechanisms.additive import AdditiveMechanism
from dpbo.mechanisms.gaussian import GaussianMechanism
from dpbo.mechanisms.no_noise import NoNoise
from dpbo.privacy import Adjacency, Budget, PrivacyUnit, require_count
from dpbo.queries.ball import Ball
from dpbo.queries.point_sums import PointSums
from dpbo.statement import Statement
from dpbo.validation import Within, at_least, require_settings

# ========== MERGED A fixed number of releases, reserved at once, answered from the ledger as far as it goes.
#
# Everything an iterative algorithm does between two releases is public, so a run that is resumed under its name computes the same questions
# again, finds the answers that were paid for, and goes on with the first one that was not.
#


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy and torch, for the ledger."""
    if isinstance(value, (np.generic, np.ndarray, torch.Tensor)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no setting")


def _digest(query: PointSums) -> str:
    """Of everything public that was asked, to six digits, which another machine computes alike."""
    return hashlib.sha256("\n".join(_parts(query)).encode()).hexdigest()[:16]


def _parts(value: Any) -> Iterator[str]:
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _parts(getattr(value, field.name))
    elif isinstance(value, torch.Tensor):
        yield " ".join(f"{number:.5e}" for number in value.flatten().tolist())
    elif callable(value):
        yield getattr(value, "__qualname__", type(value).__qualname__)
    else:
        yield f"{value:.5e}" if isinstance(value, float) else repr(value)


Spending = Budget | float | NoNoise | None


@dataclass(frozen=True, eq=False)
class Answer:
    """One release: values, and the standard deviation of the noise of each; float64, of the query's length."""

    value: torch.Tensor
    std: torch.Tensor


class Plan:
    """`slots` releases of equal multiplier under one name.

    Args:
        curator: owner of the records.
        name: in the ledger.
        budget: a Budget, a share in (0, 1] of the curator's, or NoNoise(allow_not_private=True).
        slots: how many releases there will be.
        terms: public settings of the algorithm; a run resumes under the same ones only.
        mechanism: law of the noise.
    """

    def __init__(
        self,
        curator: Curator,
        name: str,
        budget: Spending,
        slots: int,
        terms: Mapping[str, Any],
        mechanism: type[AdditiveMechanism] = GaussianMechanism,
    ) -> None:
        self.curator, self.name, self.slots = curator, name, slots
        planned = budget if isinstance(budget, NoNoise) else mechanism(self._multiplier(budget, mechanism))
        held = {"budget": str(budget), "records": curator.units, "role": "training", **terms}
        curator.bind(name, {}, begun=name in curator.ledger.head().used)
        event = curator.reserve(name, planned.event(), slots=slots, terms=json.loads(json.dumps(held, default=_plain)))
        self.mechanism = planned if isinstance(planned, NoNoise) else mechanism(event.noise_multiplier)
        curator.deliver()
        self._known = curator.ledger.values(name)
        if curator.ledger.head().used[name] != len(self._known):
            raise LedgerMismatch("values", len(self._known), curator.ledger.head().used[name], "A release was charged but lost.")
        self._turn = 0

    def std(self, query: PointSums) -> torch.Tensor:
        """Standard deviation of the noise of each number of this question's answer; public."""
        law = self.mechanism.law(query.scale(self.curator.adjacency), query.quanta(self.curator.units))
        return torch.tensor(law.std, dtype=torch.float64)

    def ask(self, query: PointSums, stage: str) -> Answer:
        """The next release: from the ledger if it was made before, else charged and made now."""
        if self._turn >= self.slots:
            raise BudgetExceeded(1, 0, self.slots, "slots", f"the release for {self.name!r}", self.curator.ledger.account())
        if self._turn < len(self._known):
            known = self._known[self._turn]
            asked = known["details"].get("stage"), known["details"].get("question")
            if asked != (stage, _digest(query)):
                raise LedgerMismatch("question", asked[0], stage, "Resume with the settings and the version it began with.")
            value = torch.tensor(known["value"], dtype=torch.float64)
        else:
            handle = self.curator.evaluate(query, stage=stage, question=_digest(query))
            (release,) = self.curator.release_all([handle], self.mechanism, name=self.name, plan=self.name, used=self._turn)
            value = release.value
        self._turn += 1
        return Answer(value, self.std(query))

    def _multiplier(self, budget: Any, mechanism: type[AdditiveMechanism]) -> float:
        accounting, cap = self.curator.accounting, self.curator.ledger.cap
        if not isinstance(budget, (Budget, float, int)) or isinstance(budget, bool):
            raise InputError("budget", budget, "a Budget, a share of the curator's, or NoNoise(allow_not_private=True)")
        available = accounting.cap(budget) if isinstance(budget, Budget) else cap * exact_share(budget)
        multiplier = accounting.multiplier(mechanism.kind, self.slots, available)
        if multiplier is None:
            raise InputError("accounting", accounting.name, f"one that can pay for {mechanism.kind.mechanism} noise")
        return multiplier


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
