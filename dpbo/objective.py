"""A private objective, for a BoTorch loop in place of the function that it optimises.

    objective = PrivateObjective(curator, score, score_range=(0.0, 1.0), evaluations=40, fit=train)
    # straight into SingleTaskGP(X, Y, train_Yvar=Yvar)
    Y, Yvar = objective(X)
    model = objective.model()                     # or a GP fitted to all values released so far

The budget of all evaluations is reserved when the objective is built, and each gets the noise of
`evaluations` equal releases. Every Y is public, so whatever is computed from it costs nothing.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import scipy
import torch
from numpy.typing import NDArray

from dpbo import models
from dpbo.curator.birth import plan_terms
from dpbo.curator.curator import Curator
from dpbo.curator.handle import Handle
from dpbo.errors import BudgetExceeded, InputError, PrivateFailure, ScoreError, UsageError
from dpbo.fingerprint import fingerprint
from dpbo.mechanisms.additive import AdditiveMechanism
from dpbo.mechanisms.gaussian import GaussianMechanism
from dpbo.mechanisms.laplace import LaplaceMechanism
from dpbo.mechanisms.no_noise import NoNoise
from dpbo.notebook import facts_table
from dpbo.privacy import Budget
from dpbo.queries.cells import CellMeans
from dpbo.queries.clipped import ClippedMean, ScoreRanges
from dpbo.queries.query import Query, copy_mutable
from dpbo.queries.sampled import PoissonSampled
from dpbo.queries.score_evaluation import Score
from dpbo.space import Space
from dpbo.validation import POINTS, Count, Name, Within, checked, warn

if TYPE_CHECKING:
    # the private side runs without BoTorch, which `model` loads
    from botorch.models import SingleTaskGP

_LOG = logging.getLogger(__name__)
_STATED = (
    "budget",
    "cells",
    "divisor",
    "largest_difference",
    "max_records_per_unit",
    "reference",
    "sample_rate",
    "score_range",
    "weights",
    "worst",
)
_POINT = Within(
    "a float64 tensor, finite, of shape d",
    lambda x: x.ndim == 1 and x.dtype == torch.float64 and bool(x.isfinite().all()),
    "Use torch.as_tensor(x, dtype=torch.float64).",
)
_BOUNDS = Within(
    "a finite float64 tensor of shape 2 x d, lower ends in the first row",
    lambda ends: (
        ends.ndim == 2
        and len(ends) == 2
        and ends.dtype == torch.float64
        and bool(ends.isfinite().all() and (ends[0] <= ends[1]).all())
    ),
    "For example Space(...).bounds.",
)
# of the width of the bounds; an optimiser may end that far outside by rounding or by its
# constraints' tolerance
_FAR = 0.01


class NoiseWarning(UserWarning):
    """The noise of a release is so large that the search can hardly find anything."""


@checked
class PrivateObjective:
    """A noisy black box over private records: the mean of a score over units, released with noise
    of known variance.

    Args:
        curator: owner of the records.
        score: `score(model, records)`, or `score(x, records)` without `fit`. It returns one number
            a record (`n`), or m (`n x m`), and is maximised. x is a float64 tensor of shape `d`.
        score_range: public (lower, upper) of a record's score, or one pair a metric. Scores beyond
            are clipped.
        evaluations: number of points that may be released.
        fit: `fit(x) -> model`, from public records only. If it raises an exception, nothing is
            charged.
        name: name of the plan in the ledger. The same name and terms resume the plan, which needs
            the records, score and fit that it began with. The log says how many values were
            resumed, and how many were charged but not delivered because the process was killed.
        budget: what all evaluations together may spend: a `Budget`, or a share in (0, 1] of the
            curator's. 1 leaves nothing for another release, such as the final score. Under
            `Planned`, which lists what each release takes: 1.
        weights: one number a metric, for several metrics: a metric of twice the weight gets half
            the noise relative to its range.
        max_records_per_unit: a unit with r records counts as min(r, this) records, each with the
            mean of its scores; 1: all units count alike.
        divisor: public number of units that the sum of scores is divided by; omitted, their true
            number, which only REPLACE_ONE makes public. Required where `max_records_per_unit` is
            above 1.
        worst: the score that NaN and a failed score count as: the "lower" end of the range, the
            "upper" end, or a number inside it.
        role: role of the curator's records, such as "validation": each release is then charged to
            the records of this role only.
        mechanism: GaussianMechanism, or LaplaceMechanism if the curator's filter cannot pay for a
            Gaussian; omitted, the first that it can pay for. `NoNoise(allow_not_private=True)` is
            the non-private baseline.
        sample_rate: each evaluation scores a Poisson sample of the units, taken with this
            probability; see `PoissonSampled`.
        cells: the score gives the index of one of so many cells for each record; `CellMeans`
            releases the cells' shares with less noise than as many free scores. `score_range` is
            then (0, 1).
        reference, largest_difference: a public model (what `fit` returns) and c: each evaluation
            then releases the mean difference of a record's scores to those of the reference,
            clipped to [-c, c], with 2c / (width of score_range) times the noise. In a search keep c
            at a quarter of the width or more: the optimiser finds models that a smaller c flatters.
        bounds: where points are expected, `2 x d` as for `optimize_acqf`. A point further outside
            than 1 % of the width is refused before anything is fitted or charged: a point in other
            units than `fit` expects is a paid mistake.
        progress: whether to show a bar that counts evaluations; it appears on a terminal only, and
            shows no times.
        terms: further public facts about the plan, as JSON values, for the ledger and the
            statement. A resumed plan needs the same.

    Attributes:
        noise_multiplier: of the mechanism.
        noise_std: standard deviation of an evaluation, `m`, in the score's units.
        metrics: m.

    Raises:
        InputError: an argument outside its range.
        BudgetExceeded: the budget is not left.
        LedgerMismatch: the name belongs to a plan with other terms, or (PlanChanged) to one that
            began with other records, another score or another fit.
    """

    def __init__(
        self,
        curator: Curator,
        score: Score,
        *,
        score_range: ScoreRanges,
        evaluations: Count,
        fit: Any = None,
        name: Name = "objective",
        budget: Budget | float | Fraction = 1,
        weights: Sequence[float] | None = None,
        max_records_per_unit: int = 1,
        divisor: float | None = None,
        worst: str = "lower",
        role: str | None = None,
        mechanism: type[AdditiveMechanism] | NoNoise | None = None,
        sample_rate: float | None = None,
        cells: int | None = None,
        reference: Any = None,
        largest_difference: float | None = None,
        bounds: Annotated[torch.Tensor, _BOUNDS] | None = None,
        progress: bool = True,
        terms: Mapping[str, Any] | None = None,
    ) -> None:
        # copies: the caller may change its lists
        score_range, weights = copy_mutable((score_range, weights))
        settings = {
            "score_range": score_range,
            "fit": fit,
            "weights": weights,
            "divisor": divisor,
            "worst": worst,
            "max_records_per_unit": max_records_per_unit,
            "role": role,
            "reference": reference,
            "largest_difference": largest_difference,
        }
        self._sample_rate, self._progress = sample_rate, progress
        self._bounds = None if bounds is None else bounds.detach().cpu().clone()
        if cells is not None and sample_rate is not None:
            raise InputError(
                "sample_rate",
                sample_rate,
                "omitted with cells",
                "The variance of sampled cells is not bounded here.",
            )
        self._mean = mean = (
            ClippedMean(score, **settings)
            if cells is None
            else CellMeans(score, cells=cells, **settings)
        )
        self.curator, self.name, self.evaluations, self.metrics = (
            curator,
            name,
            evaluations,
            mean.metrics,
        )
        query = self._query(None)
        kinds = (
            (GaussianMechanism, LaplaceMechanism) if sample_rate is None else (GaussianMechanism,)
        )
        paired = (
            {}
            if reference is None
            else {"reference": fingerprint(reference, detail="content").hex()}
        )
        self._reservation = curator.reserve(
            name,
            mechanism or kinds,
            slots=evaluations,
            budget=budget,
            query=query,
            given={"score": score, "fit": fit, **paired},
            terms=plan_terms(query.public_inputs(), terms or {}, also=_STATED),
        )
        self.noise_multiplier = self._reservation.event.noise_multiplier
        self.noise_std = self._reservation.noise_std
        # at this object's last release; None after one that failed
        self._left: int | None = self.remaining
        # values read, and their columns
        self._known = 0, np.empty((0, 0)), np.empty((0, self.metrics)), np.empty((0, self.metrics))
        self._dimension: int | None = None  # of x; fixed by the first release
        self._report(mean, evaluations - self._left)

    @property
    def remaining(self) -> int:
        """Number of evaluations not yet charged."""
        return self._reservation.remaining

    def __call__(self, X: Annotated[torch.Tensor, POINTS]) -> tuple[torch.Tensor, torch.Tensor]:
        """Evaluate and release every row of X. Each call is a new, charged release, also at a point
        seen before.

        Args:
            X: `q x d`, float64.

        Returns:
            Y: `q x m`, Yvar: `q x m`, the known variance of the noise; on the device of X.

        Raises:
            InputError: a wrong shape or dtype, or a row far outside `bounds`; nothing was evaluated
                or charged.
            BudgetExceeded: q is more than `remaining`; nothing was evaluated or charged.
        """
        if len(X) > (left := self.remaining):
            advice = f"Pass at most {left} of the rows. " if left else ""
            what, account = (
                f"X of shape {tuple(X.shape)}, for {self.name!r},",
                self.curator.ledger.account(),
            )
            raise BudgetExceeded(
                len(X), left, self.evaluations, "evaluations", what, advice + account
            )
        points = X.detach().cpu()  # once for all rows: a GPU is waited for
        self._require_within_bounds("X", points)
        return self._released(
            [self._evaluated(*pair) for pair in zip(X.detach(), points, strict=True)], X.device
        )

    def evaluate(self, x: Annotated[torch.Tensor, _POINT]) -> Handle:
        """Fit and score at one point (`d`), for a later release. Free; may be repeated."""
        return self._evaluated(x.detach(), x.detach().cpu())

    def _evaluated(self, x: torch.Tensor, point: torch.Tensor) -> Handle:
        """`evaluate` at x, whose copy on the CPU is `point`."""
        query, details = self._question(x, point)
        try:
            return self.curator.evaluate(query, reservation=self.name, **details)
        except (ScoreError, PrivateFailure) as error:
            if x.device == self.curator.device:
                raise
            where = (
                f"x is on {x.device} and the records are on {self.curator.device}: pass"
                f" X.to({str(self.curator.device)!r})."
            )
            raise type(error)(f"{error} {where}") from error

    def submit(self, x: Annotated[torch.Tensor, _POINT], executor: Executor) -> Future[Handle]:
        """`evaluate` on an executor. Release the future's handle when it is done, in any order.

        The order of release is public. If jobs are released as they finish, it depends on how long
        they take, which then must not depend on the records. `dpbo.algorithms.AsynchronousBO`
        releases in the order of submission by default.
        """
        query, details = self._question(x.detach(), x.detach().cpu())
        return self.curator.submit(query, executor, reservation=self.name, **details)

    def release(self, handles: Handle | Sequence[Handle]) -> tuple[torch.Tensor, torch.Tensor]:
        """Release one or more handles: Y `q x m`, Yvar `q x m`. A handle released again gives its
        one value.

        Raises:
            InputError: a handle that no objective of this name evaluated; nothing was charged.
            BudgetExceeded: more handles than `remaining`; nothing was charged.
        """
        several = [handles] if isinstance(handles, Handle) else list(handles)
        if not several:
            raise InputError("handles", [], "one handle or more")
        # another reservation's answer has other noise, and its terms do not state this one
        for handle in several:
            if not isinstance(handle, Handle) or handle.reservation != self.name:
                raise InputError(
                    "handle",
                    handle,
                    f"one that the objective {self.name!r} evaluated",
                    "Release others where they were made.",
                )
        return self._released(several, torch.device("cpu"))

    def history(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Everything released so far under this name, also by earlier processes: X `t x d`, Y `t x
        m`, Yvar `t x m`.

        Queries of other kinds may be released under this plan as well (`Curator.release_all`).
        Their values are left out if they have no x, an x of another length than the first one's, or
        another number of metrics. They took evaluations of the plan, and the statement lists what
        they declared.
        """
        X, Y, Yvar = (torch.tensor(column, dtype=torch.float64) for column in self._columns())
        return X, Y, Yvar

    def model(
        self,
        space: Space | None = None,
        *,
        builder: Callable[[Space, torch.Tensor, torch.Tensor, torch.Tensor], Any] | None = None,
    ) -> "SingleTaskGP":
        """A fitted Gaussian process of `history()`, with the known noise variances. It sees
        released values only, so it costs nothing.

        Args:
            space: the space of the points, which says what is a category; omitted, all coordinates
                are numbers.
            builder: makes the model of (space, X, Y, Yvar): `dpbo.models.sparse_gp`, or a function
                of your own. Omitted, `dpbo.models.default_gp`, which fits a SingleTaskGP with
                `train_Yvar` (MixedSingleTaskGP with categories).

        Returns:
            The model in eval mode, of m outputs.

        Raises:
            InputError: no value was released yet, or the space has another number of coordinates.
        """
        X, Y, Yvar = self.history()
        if not len(X):
            raise UsageError("the objective has released no value yet: evaluate some points first.")
        numbers = {f"x{i}": scipy.stats.uniform(0, 1) for i in range(X.shape[1])}
        return (builder or models.default_gp)(
            Space(**numbers) if space is None else space, X, Y, Yvar
        )

    def _repr_html_(self) -> str:
        noise = ", ".join(f"{std:.3g}" for std in self.noise_std.tolist())
        facts = {
            "Evaluations": f"{self.evaluations - self.remaining} of {self.evaluations} charged",
            "Noise of each": f"standard deviation {noise}, in the score's units",
            "Score range": ", ".join(
                f"{lower:g} to {upper:g}" for lower, upper in self._mean.ranges
            ),
            "Records": repr(self.curator),
        }
        return facts_table(facts, title=f"PrivateObjective {self.name!r}")

    def __repr__(self) -> str:
        return (
            f"<PrivateObjective {self.name!r}: {self.evaluations} evaluations, noise"
            f" {self.noise_std.tolist()} each>"
        )

    def _query(self, x: torch.Tensor | None) -> Query:
        mean = self._mean.about(x)
        return mean if self._sample_rate is None else PoissonSampled(mean, rate=self._sample_rate)

    def _question(self, x: torch.Tensor, point: torch.Tensor) -> tuple[Query, dict[str, Any]]:
        """The query at x and the details that the ledger stores with its value; `point` is x on the
        CPU.
        """
        query, details = self._query(x), {"x": point.tolist()}
        self._require_within_bounds("x", point.unsqueeze(0))
        self._require_dimension([details["x"]])
        return query, details

    def _require_within_bounds(self, name: str, points: torch.Tensor) -> None:
        """Raises InputError for a point (of `q x d`, on the CPU) that is far outside the bounds."""
        if self._bounds is None:
            return
        lower, upper = self._bounds
        if points.shape[1] != len(lower):
            raise InputError(
                name, tuple(points.shape), f"of {len(lower)} coordinates, as bounds= has"
            )
        slack = _FAR * (upper - lower)
        outside = ((points < lower - slack) | (points > upper + slack)).nonzero()
        if len(outside):
            row, i = outside[0].tolist()
            remedy = (
                "Convert the point to the units of bounds=, for example by"
                " botorch.utils.transforms.unnormalize. Nothing was charged."
            )
            place = f"{name}[{i}]" if name == "x" else f"{name}[{row}, {i}]"
            raise InputError(
                place,
                points[row, i].item(),
                f"from {lower[i]:g} to {upper[i]:g}, the bounds= of this objective",
                remedy,
            )

    def _columns(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """X, Y and Yvar as arrays; of the ledger, only what is new is read."""
        read, *known = self._known
        values = self.curator.ledger.values(self.name, skip=read)
        own = [v for v in values if "x" in v["details"] and len(v["value"]) == self.metrics]
        if own and not len(known[0]):
            known[0] = np.empty((0, len(own[0]["details"]["x"])))
        own = [v for v in own if len(v["details"]["x"]) == known[0].shape[1]]
        if own:
            new = (
                [v["details"]["x"] for v in own],
                [v["value"] for v in own],
                [v["variance"] for v in own],
            )
            known = [
                np.concatenate([old, np.array(column, dtype=np.float64)])
                for old, column in zip(known, new, strict=True)
            ]
        X, Y, Yvar = known
        self._known = read + len(values), X, Y, Yvar
        return X, Y, Yvar

    def _require_dimension(self, points: Sequence[Sequence[float]]) -> None:
        """Raises InputError unless all points have as many coordinates as the first that was
        released, also by an earlier process.
        """
        if (
            self._dimension is None
            and self.remaining < self.evaluations
            and len(X := self._columns()[0])
        ):
            self._dimension = X.shape[1]
        d = self._dimension or len(points[0])
        for x in points:
            if len(x) != d:
                whose = "as those released before have" if self._dimension else "as the others have"
                raise InputError(
                    "x", (len(x),), f"of {d} coordinates, {whose}", "Nothing was charged."
                )

    def _released(
        self, handles: Sequence[Handle], device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.curator.deliver()  # several ranks then see the same ledger
        self._require_dimension([handle.details["x"] for handle in handles])
        left = self._left  # read once: other threads change it
        if left is not None and self.remaining < left:  # another object released under this plan
            self.curator.assume("durations-tell-nothing")
        self._left = None
        releases = self._reservation.release_all(handles)
        # as of the charge and the store just made
        self._left = self.evaluations - self.curator.ledger.used(newest=False)[self.name]
        return torch.stack([r.value for r in releases]).to(device), torch.stack(
            [r.variance for r in releases]
        ).to(device)

    def _report(self, mean: ClippedMean, done: int) -> None:
        """Log what was resumed, start the progress bar, and warn of noise above a tenth of the
        score range.
        """
        if done:
            lost = self._reservation.lost
            if not self.curator.rank:
                fate = f"{lost} (charged, but never delivered)" if lost else "0"
                level, left = logging.WARNING if lost else logging.INFO, self.evaluations - done
                _LOG.log(
                    level,
                    "%r: values resumed: %d, lost: %s, evaluations left: %d",
                    self.name,
                    done - lost,
                    fate,
                    left,
                )
        if self._progress:
            self._reservation.show_progress()
        for std, (lower, upper) in zip(self.noise_std.tolist(), mean.ranges, strict=True):
            if std > (upper - lower) / 10:
                text = (
                    f"each evaluation has noise of standard deviation {std:.3g}, more than a tenth"
                    f" of the score range ({lower:g}, {upper:g}): plan fewer evaluations, a larger"
                    " budget or more units."
                )
                warn(text, NoiseWarning)
