"""A private objective, for a BoTorch loop in place of the function that it optimises.

    objective = PrivateObjective(curator, score, score_range=(0.0, 1.0), evaluations=40, fit=train)
    # straight into SingleTaskGP(X, Y, train_Yvar=Yvar)
    Y, Yvar = objective(X)
    model = objective.model()                     # or a GP fitted to all values released so far

The budget of all evaluations is reserved when the objective is built, and each gets the noise of
`evaluations` equal releases. Every Y is public, so whatever is computed from it costs nothing.

From X to Y: `Curator.evaluate` (curator/curator.py) hands each row's query (queries/clipped.py)
to a job (curator/evaluation.py), which scores the records (queries/score_evaluation.py) and sums
their scores in integers (queries/integers.py). `Reservation.release_all` (curator/reservation.py)
charges the slots (ledger/ledger.py), adds noise to the sums (curator/releasing.py joins query and
mechanism, such as mechanisms/gaussian.py; mechanisms/additive.py and rounding.py draw) and stores
the values (curator/pending.py). Who trusts `evaluate` and `release_all` reads this file alone.
"""

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

import scipy
import torch
from torch import Tensor

from dpbo import models
from dpbo.curator.curator import Curator
from dpbo.curator.handle import Handle
from dpbo.errors import BudgetExceeded, InputError, PrivateFailure, ScoreError, UsageError
from dpbo.ledger.birth import reservation_terms
from dpbo.mechanisms.additive import AdditiveMechanism
from dpbo.mechanisms.gaussian import GaussianMechanism
from dpbo.mechanisms.laplace import LaplaceMechanism
from dpbo.mechanisms.no_noise import NoNoise
from dpbo.notebook import facts_table
from dpbo.privacy import Budget
from dpbo.queries.clipped import ClippedMean, ScoreRanges
from dpbo.queries.query import Query
from dpbo.queries.score_evaluation import Score
from dpbo.space import Space
from dpbo.validation import POINT, POINTS, Count, Name, Within, checked, is_finite_float64, warn

if TYPE_CHECKING:
    # the private side runs without BoTorch, which `model` loads
    from botorch.models import SingleTaskGP

_LOG = logging.getLogger(__name__)
# Handles that objectives of this process released.
_RELEASED = weakref.WeakSet[Handle]()
_STATED = (
    "bounds",
    "budget",
    "cells",
    "divisor",
    "largest_difference",
    "max_records_per_unit",
    "reference",
    "score_range",
    "weights",
    "worst",
)
_BOUNDS = Within(
    "a finite float64 tensor of shape 2 x d, lower ends in the first row",
    lambda ends: (
        ends.ndim == 2
        and len(ends) == 2
        and is_finite_float64(ends)
        and bool((ends[0] <= ends[1]).all())
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
            Or a query of `dpbo.queries` without its subject, which says more about the score:
            `ClippedMean` (weights of metrics, records a unit, failures, role, differences to a
            reference) or `CellMeans` (shares of cells).
        score_range: public (lower, upper) of a record's score, or one pair a metric. Scores beyond
            are clipped. Required with a function, omitted with a query, which has its own; so are
            the next two.
        fit: `fit(x) -> model`, from public records only. If it raises an exception, nothing is
            charged. Code of `fit` or `score` that names a table with protected rows is refused,
            also where it takes other rows of it: split the table first.
        divisor: public number of units that the sum of scores is divided by; omitted, their true
            number, which only REPLACE_ONE makes public.
        evaluations: number of points that may be released.
        budget: what all evaluations together may spend: a `Budget`, or a share in (0, 1] of the
            curator's. 1 leaves nothing for another release, such as the final score. Under
            `Planned`, which lists what each release takes: 1.
        mechanism: GaussianMechanism, or LaplaceMechanism if the curator's filter cannot pay for a
            Gaussian; omitted, the first that it can pay for. `NoNoise(allow_not_private=True)` is
            the non-private baseline.
        name: name of the reservation in the ledger. The same name and terms resume it, which needs
            the records, score and fit that it began with. The log says how many values were
            resumed, and how many were charged but not delivered because the process was killed.
        space: of the points. Whole numbers and categories between two values are rounded to the
            nearest, in the history and the ledger, too: models then learn the point that was
            evaluated. It takes the place of `bounds`.
        bounds: where points are expected, `2 x d` as for `optimize_acqf`. A point further outside
            than 1 % of the width is refused before anything is fitted or charged: a point in other
            units than `fit` expects is a paid mistake. The statement lists them as public.
        progress: whether to show a bar that counts evaluations; it appears on a terminal only, and
            shows no times.
        terms: further public facts, as JSON values, for the ledger and the statement. A resumed
            reservation needs the same.

    Attributes:
        noise_multiplier: of the mechanism.
        noise_std: standard deviation of an evaluation, `m`, in the score's units.
        metrics: m.

    Raises:
        InputError: an argument outside its range, or a function that names protected rows.
        BudgetExceeded: the budget is not left.
        LedgerMismatch: the name belongs to a reservation with other terms, or (ReservationChanged)
            to one that began with other records, another score or another fit.
    """

    def __init__(
        self,
        curator: Curator,
        score: Score | Query,
        *,
        score_range: ScoreRanges | None = None,
        fit: Any = None,
        divisor: float | None = None,
        evaluations: Count,
        budget: Budget | float | Fraction = 1,
        mechanism: type[AdditiveMechanism] | NoNoise | None = None,
        name: Name = "objective",
        space: Space | None = None,
        bounds: Annotated[Tensor, _BOUNDS] | None = None,
        progress: bool = True,
        terms: Mapping[str, Any] | None = None,
    ) -> None:
        self._query = _query(score, score_range=score_range, fit=fit, divisor=divisor)
        self.curator = curator
        self.name = name
        self.evaluations = evaluations
        self.metrics = self._query.metrics
        self._ranges = self._query.ranges
        if space is not None and bounds is not None:
            raise InputError("bounds", tuple(bounds.shape), "left out with space=, which has them")
        self._space = space
        self._bounds = None if bounds is None else bounds.detach().cpu().clone()
        # A baseline protects nothing.
        if not isinstance(mechanism, NoNoise):
            curator.protected.require_unnamed("score", self._query.score)
            curator.protected.require_unnamed("fit", self._query.fit)
        stated = self._query.public_inputs()
        if self._bounds is not None:
            stated["bounds"] = self._bounds.tolist()
        if space is not None:
            stated["space"] = space.to_json()
        self._reservation = curator.reserve(
            name,
            mechanism or (GaussianMechanism, LaplaceMechanism),
            slots=evaluations,
            budget=budget,
            query=self._query,
            given=self._query.given(),
            terms=reservation_terms(stated, terms or {}, also=_STATED),
        )
        self.noise_multiplier = self._reservation.event.noise_multiplier
        self.noise_std = self._reservation.noise_std
        # evaluations left after this object's last release; None after one that failed
        self._left: int | None = self.remaining
        # releases of earlier sessions
        self._resumed = evaluations - self._left
        none = torch.zeros(0, self.metrics, dtype=torch.float64, device="cpu")
        # how many of the ledger's values were read, and X, Y and Yvar of those
        self._known = (0, none[:, :0], none, none)
        # of x; fixed by the first release
        self._dimension: int | None = None
        self._log_resumed(self._resumed)
        if progress:
            self._reservation.show_progress()
        self._warn_of_noise()

    @property
    def remaining(self) -> int:
        """Number of evaluations not yet charged."""
        return self._reservation.remaining

    def __call__(self, X: Annotated[Tensor, POINTS]) -> tuple[Tensor, Tensor]:
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
        # No less than there are: what others used meanwhile is found by the charge.
        left = self.remaining if self._left is None else self._left
        if len(X) > left:
            what = f"X of shape {tuple(X.shape)}, for {self.name!r},"
            advice = self.curator.ledger.account()
            if left:
                advice = f"Pass at most {left} of the rows. {advice}"
            raise BudgetExceeded(len(X), left, self.evaluations, "evaluations", what, advice)
        # once for all rows: a GPU is waited for
        points = self._rounded(X.detach().cpu())
        if self._space is not None:
            X = points.to(X.device)
        # all rows before the first is fitted
        self._require_within_bounds("X", points)
        self._tell_of_earlier(points)
        handles = [self._evaluated(x, point) for x, point in zip(X, points, strict=True)]
        return self._released(handles, X.device)

    def evaluate(self, x: Annotated[Tensor, POINT]) -> Handle:
        """Fit and score at one point (`d`), for a later release. Free; may be repeated."""
        return self._evaluated(*self._placed(x))

    def _evaluated(self, x: Tensor, point: Tensor) -> Handle:
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

    def submit(self, x: Annotated[Tensor, POINT], executor: Executor) -> Future[Handle]:
        """`evaluate` on an executor. Release the future's handle when it is done, in any order.

        The order of release is public. If jobs are released as they finish, it depends on how long
        they take, which then must not depend on the records. `dpbo.algorithms.AsynchronousBO`
        releases in the order of submission by default.
        """
        query, details = self._question(*self._placed(x))
        return self.curator.submit(query, executor, reservation=self.name, **details)

    def release(self, handles: Handle | Sequence[Handle]) -> tuple[Tensor, Tensor]:
        """Release one or more handles: Y `q x m`, Yvar `q x m`. A handle released again gives its
        one value.

        Raises:
            InputError: a handle that no objective of this name evaluated; nothing was charged.
            BudgetExceeded: more handles than `remaining`; nothing was charged.
        """
        if isinstance(handles, Handle):
            handles = [handles]
        several = list(handles)
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

    def history(self) -> tuple[Tensor, Tensor, Tensor]:
        """Everything released so far under this name, also by earlier processes: X `t x d`, Y `t x
        m`, Yvar `t x m`.

        Queries of other kinds may be released from this reservation as well
        (`Curator.release_all`). Their values are left out if they have no x, an x of another length
        than the first one's, or another number of metrics. They took evaluations of the
        reservation, and the statement lists what they declared.
        """
        # copies: the caller may change them
        X, Y, Yvar = self._columns()
        return X.clone(), Y.clone(), Yvar.clone()

    def model(
        self,
        space: Space | None = None,
        *,
        builder: Callable[[Space, Tensor, Tensor, Tensor], Any] | None = None,
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
            UsageError: no value was released yet.
            InputError: the space has another number of coordinates.
        """
        X, Y, Yvar = self.history()
        if not len(X):
            raise UsageError("the objective has released no value yet: evaluate some points first.")
        if space is None:
            space = Space(**{f"x{i}": scipy.stats.uniform(0, 1) for i in range(X.shape[1])})
        return (builder or models.default_gp)(space, X, Y, Yvar)

    def _repr_html_(self) -> str:
        noise = ", ".join(f"{std:.3g}" for std in self.noise_std.tolist())
        facts = {
            "Evaluations": f"{self.evaluations - self.remaining} of {self.evaluations} charged",
            "Noise of each": f"standard deviation {noise}, in the score's units",
            "Score range": ", ".join(f"{lower:g} to {upper:g}" for lower, upper in self._ranges),
            "Records": repr(self.curator),
        }
        return facts_table(facts, title=f"PrivateObjective {self.name!r}")

    def __repr__(self) -> str:
        return (
            f"<PrivateObjective {self.name!r}: {self.evaluations} evaluations, noise"
            f" {self.noise_std.tolist()} each>"
        )

    def _rounded(self, points: Tensor) -> Tensor:
        """The points of the space that these decode to, `q x d`, where the space is known."""
        if self._space is None:
            return points
        return self._space.rounded(points)

    def _placed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The point that is evaluated, `d`, where x is and on the CPU."""
        point = self._rounded(x.detach().cpu().unsqueeze(0))[0]
        return (x if self._space is None else point.to(x.device)), point

    def _question(self, x: Tensor, point: Tensor) -> tuple[Query, dict[str, Any]]:
        """The query at x, and the details that the ledger stores with its value."""
        self._require_within_bounds("x", point.unsqueeze(0))
        details = {"x": point.tolist()}
        self._require_dimension([details["x"]])
        return self._query.about(x.detach()), details

    def _require_within_bounds(self, name: str, points: Tensor) -> None:
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
            place = f"{name}[{row}, {i}]"
            if name == "x":
                place = f"x[{i}]"
            raise InputError(
                place,
                points[row, i].item(),
                f"from {lower[i]:g} to {upper[i]:g}, the bounds= of this objective",
                remedy,
            )

    def _columns(self) -> tuple[Tensor, Tensor, Tensor]:
        """`history`, shared; of the ledger, only what is new is read."""
        read, X, Y, Yvar = self._known
        values = self.curator.ledger.values(self.name, skip=read)
        points, found, variances = [], [], []
        d = X.shape[1]
        for value in values:
            if "x" not in value["details"] or len(value["value"]) != self.metrics:
                continue
            x = value["details"]["x"]
            # none was read so far
            d = d or len(x)
            if len(x) == d:
                points.append(x)
                found.append(value["value"])
                variances.append(value["variance"])
        if points:
            X = torch.cat([X.reshape(-1, d), X.new_tensor(points)])
            Y = torch.cat([Y, Y.new_tensor(found)])
            Yvar = torch.cat([Yvar, Yvar.new_tensor(variances)])
        # in one step, because other threads read it
        self._known = (read + len(values), X, Y, Yvar)
        return X, Y, Yvar

    def _require_dimension(self, points: Sequence[Sequence[float]]) -> None:
        """Raises InputError unless all points have as many coordinates as the first that was
        released, also by an earlier process.
        """
        if self._dimension is None and self.remaining < self.evaluations:
            X = self._columns()[0]
            self._dimension = X.shape[1] or None
        d = self._dimension or len(points[0])
        for x in points:
            if len(x) != d:
                allowed = f"of {d} coordinates, as the other points"
                raise InputError("x", (len(x),), allowed, "Nothing was charged.")

    def _released(self, handles: Sequence[Handle], device: torch.device) -> tuple[Tensor, Tensor]:
        # several ranks then see the same ledger
        self.curator.deliver()
        self._require_dimension([handle.details["x"] for handle in handles])
        left = self._left
        self._left = None
        fresh = set(handles).difference(_RELEASED)
        releases = self._reservation.release_all(handles)
        _RELEASED.update(fresh)
        # as of the charge and the store just made
        self._left = self.remaining
        # another object released from this reservation
        if left is not None and self._left < left - len(fresh):
            self.curator.assume("durations-tell-nothing")
        Y = torch.stack([release.value for release in releases])
        Yvar = torch.stack([release.variance for release in releases])
        return Y.to(device), Yvar.to(device)

    def _tell_of_earlier(self, points: Tensor) -> None:
        """Log points (`q x d`) that an earlier session released: a loop that begins with its design
        again pays for it again.
        """
        if not self._resumed:
            return
        earlier = self._columns()[0][: self._resumed]
        if earlier.shape[1:] != points.shape[1:]:
            return
        again = int((points.unsqueeze(1) == earlier).all(-1).any(-1).sum())
        if again:
            _LOG.warning(
                "%r: %d of these points were released by an earlier session, and are paid for"
                " again: history() has their values, and remaining how many are left",
                self.name,
                again,
            )

    def _log_resumed(self, done: int) -> None:
        if not done:
            return
        # Of all ranks, which deliver together what waits.
        lost = self._reservation.lost
        if self.curator.rank:
            return
        level = logging.INFO
        told = "0"
        if lost:
            level = logging.WARNING
            told = f"{lost} (charged, but never delivered)"
        form = "%r: values resumed: %d, lost: %s, evaluations left: %d"
        _LOG.log(level, form, self.name, done - lost, told, self.evaluations - done)

    def _warn_of_noise(self) -> None:
        for std, (lower, upper) in zip(self.noise_std.tolist(), self._ranges, strict=True):
            if std > (upper - lower) / 10:
                text = (
                    f"each evaluation has noise of standard deviation {std:.3g}, more than a tenth"
                    f" of the score range ({lower:g}, {upper:g}): plan fewer evaluations, a larger"
                    " budget or more units."
                )
                warn(text, NoiseWarning)


def _query(score: Score | Query, **settings: Any) -> ClippedMean:
    """The query of an objective, without its subject."""
    given = {name: value for name, value in settings.items() if value is not None}
    if isinstance(score, ClippedMean):
        for name, value in given.items():
            remedy = f"Give it to {type(score).__name__}."
            raise InputError(name, value, "omitted where score is a query", remedy)
        return score
    if isinstance(score, Query):
        raise InputError(
            "score",
            type(score).__name__,
            "a function, or a ClippedMean or CellMeans",
            "For another query: curator.reserve(...), then curator.evaluate(query, x=...) and"
            " release_all of the reservation, in a loop of your own.",
        )
    if "score_range" not in given:
        raise InputError("score_range", None, "a public pair (lower, upper), or one pair a metric")
    return ClippedMean(score, **given)
