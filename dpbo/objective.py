"""A private objective: the one changed line of a BoTorch loop.

    objective = PrivateObjective(curator, score, score_range=(0.0, 1.0), evaluations=40, fit=train)
    Y, Yvar = objective(X)                        # straight into SingleTaskGP(X, Y, train_Yvar=Yvar)

Its K evaluations are taken from the budget when it is built, each with the exact noise that K equal Gaussians leave, so every Y is
public and whatever is done with it is free.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from fractions import Fraction
from typing import Annotated, Any

import torch
from tqdm import tqdm

from dpbo.accounting.calibration import exact_share
from dpbo.accounting.filters import EventKind
from dpbo.curator.birth import plan_terms, require_own_role
from dpbo.curator.curator import Curator
from dpbo.curator.handle import Handle
from dpbo.curator.turns import assume_durations_tell_nothing
from dpbo.errors import BudgetExceeded, InputError
from dpbo.events import Event
from dpbo.mechanisms.additive import AdditiveMechanism
from dpbo.mechanisms.gaussian import GaussianMechanism
from dpbo.mechanisms.laplace import LaplaceMechanism
from dpbo.mechanisms.no_noise import NoNoise
from dpbo.privacy import require_count
from dpbo.queries.cells import CellMeans
from dpbo.queries.clipped import ClippedMean, ScoreRange
from dpbo.queries.query import Query, own
from dpbo.queries.sampled import PoissonSampled
from dpbo.queries.score_evaluation import Score
from dpbo.validation import POINTS, checked, warn

_LOG = logging.getLogger(__name__)
BAR = "{desc}: {n_fmt}/{total_fmt} |{bar}|"  # no times: how long a score takes may depend on the records
_STATED = ("cells", "divisor", "max_records_per_unit", "sample_rate", "score_range", "weights", "worst")  # of one plan or another
_ASKED: weakref.WeakKeyDictionary[Query, tuple[str, dict[str, Any]]] = weakref.WeakKeyDictionary()  # by which plan, at which x


class NoiseWarning(UserWarning):
    """The planned noise is more than a tenth of the score's range."""


@checked
class PrivateObjective:
    """A noisy black box over private records, with known noise.

    Args:
        curator: owner of the records.
        score: `score(model, records)`, or `score(x, records)` without `fit`; one number a record (`n`), or m (`n x m`), maximised. x is
            a float64 tensor of shape `d`.
        score_range: public (lower, upper) of a record's score, or one pair a metric; scores beyond are clipped.
        evaluations: how many points x this plan may release.
        fit: `fit(x) -> model`; part no protected record. Where it raises, nothing is charged.
        name: the plan's name in the ledger; the same name and terms resume it, with the records, score and fit that it began with:
            the log says how many evaluations were resumed, and how many of them are lost.
        budget: part of the budget (of mu^2) this plan takes. 1 leaves nothing for a final separate release. Under `Planned`, which
            lists what each release takes, 1.
        weights, max_records_per_unit, divisor, worst, role: as in `ClippedMean`.
        mechanism: GaussianMechanism, or LaplaceMechanism where the curator's filter can pay for no Gaussian; omitted, the first that fits.
            `NoNoise(allow_not_private=True)` runs the same loop without privacy, as a baseline.
        sample_rate: each evaluation scores a Poisson sample of the units, taken with this probability; `PoissonSampled` says what it costs.
        cells: the score names the one of so many cells that a record falls into; `CellMeans` releases their shares, less noisily than as
            so many free scores. `score_range` is (0, 1) then.
        terms: further public facts of the plan, as JSON values, for the ledger and the statement, by other names than those that dpbo
            states itself; whoever resumes it must give the same.

    Raises:
        InputError: an argument outside its range. BudgetExceeded: the share is not left. LedgerMismatch: the name is taken by a plan with
        other terms, or (PlanChanged) by one that began with other records, another score or another fit.
    """

    def __init__(
        self,
        curator: Curator,
        score: Score,
        *,
        score_range: ScoreRange,
        evaluations: int,
        fit: Any = None,
        name: str = "objective",
        budget: float | Fraction = 1,
        weights: Sequence[float] | None = None,
        max_records_per_unit: int = 1,
        divisor: float | None = None,
        worst: str = "lower",
        role: str | None = None,
        mechanism: type[AdditiveMechanism] | NoNoise | None = None,
        sample_rate: float | None = None,
        cells: int | None = None,
        terms: Mapping[str, Any] | None = None,
    ) -> None:
        bounds, weighed = own((score_range, weights))  # the caller may change what was given; the plan stays as it was reserved
        self._settings = {"score_range": bounds, "fit": fit, "weights": weighed, "divisor": divisor, "worst": worst,
                          "max_records_per_unit": max_records_per_unit, "role": role}  # fmt: skip
        self._score, self._sample_rate, self._cells = score, sample_rate, cells
        if cells is not None and sample_rate is not None:
            raise InputError("sample_rate", sample_rate, "left out with cells", "The variance of sampled cells is not bounded here.")
        mean, query = self._mean(None), self._query(None)
        query.require_public(curator.adjacency)
        require_own_role(role, curator.ledger.birth["role"])
        require_count("evaluations", evaluations)
        if not isinstance(name, str) or not 0 < len(name) <= 200:
            raise InputError("name", name, "a word of at most 200 letters")
        self.curator, self.name, self.evaluations, self.metrics = curator, name, evaluations, mean.metrics
        share = exact_share(budget)
        planned = mechanism if isinstance(mechanism, NoNoise) else self._planned(mechanism, query, share)
        self._noise_std(planned)  # refuses what cannot be drawn before anything is reserved
        itself = {"budget": str(share), **query.public_inputs()}
        begun = name in curator.ledger.head().used
        stated = plan_terms(itself, terms or {}, known=begun, also=_STATED)
        curator.bind(name, {"score": score, "fit": fit}, begun=begun)
        event = curator.reserve(name, query.charged(planned.event(), curator.adjacency), slots=evaluations, terms=stated)
        self.noise_multiplier = event.noise_multiplier
        self._mechanism = planned if isinstance(planned, NoNoise) else type(planned)(event.noise_multiplier)
        self.noise_std = self._noise_std(self._mechanism)
        self._left: int | None = self.remaining  # when one last looked; None after a release that failed
        self._dimension: int | None = None  # of x; fixed by the first release
        done = evaluations - self._left
        if done:
            self._tell_resumed(done)
        hidden = True if curator.rank else None
        self._bar = tqdm(total=evaluations, initial=done, desc=name, disable=hidden, delay=0.1, bar_format=BAR)
        self._warn_of_noise(mean)

    @property
    def remaining(self) -> int:
        """Evaluations not yet charged."""
        return self.evaluations - self.curator.ledger.head().used.get(self.name, 0)

    def __call__(self, X: Annotated[torch.Tensor, POINTS]) -> tuple[torch.Tensor, torch.Tensor]:
        """Evaluate and release every row of X: always a new, charged release, also at a point seen before.

        Args:
            X: `q x d`, float64.

        Returns:
            Y: `q x m`, Yvar: `q x m`, the known variance of the noise.

        Raises:
            InputError: a wrong shape or dtype. BudgetExceeded: q is more than what is left; the batch is refused whole.
        """
        points = _require_points(X)
        self._require_left(len(points))
        return self._released([self.evaluate(x) for x in points], X.device)

    def evaluate(self, x: torch.Tensor) -> Handle:
        """Fit and score at one point (`d`), for a later release. Free, may be retried."""
        query, details = self._asked(x)
        return self.curator.evaluate(query, **details)

    def submit(self, x: torch.Tensor, executor: Executor) -> Future[Handle]:
        """`evaluate` on an executor; release the future's handle when it is done, in any order.

        The order of release is public: where jobs are released as they finish, nothing but how long they take decides it, and that must
        not depend on the records. `dpbo.algorithms.AsynchronousBO` releases in the order of submission unless told otherwise.
        """
        query, details = self._asked(x)
        return self.curator.submit(query, executor, **details)

    def release(self, handles: Handle | Sequence[Handle]) -> tuple[torch.Tensor, torch.Tensor]:
        """Release one or more handles: Y `q x m`, Yvar `q x m`. A handle released twice gives its one value.

        Raises:
            InputError: a handle that no objective of this name evaluated. BudgetExceeded: more of them than are left. Nothing was charged.
        """
        several = [handles] if isinstance(handles, Handle) else list(handles)
        if not several:
            raise InputError("handles", [], "one handle or more")
        for handle in several:
            self._require_own(handle)
        return self._released(several, torch.device("cpu"))

    def history(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Everything released so far under this name, also by earlier processes: X `t x d`, Y `t x m`, Yvar `t x m`.

        A question of another kind may be released under this plan as well (`Curator.release_all`): where its value belongs to no x, to an
        x of another length than the first one's, or to other metrics, it is of something else and left out here. It took its slot, and
        the statement lists what it declared.
        """
        values = self._own_values()
        columns = [value["details"]["x"] for value in values], [v["value"] for v in values], [v["variance"] for v in values]
        X, Y, Yvar = (torch.tensor(column, dtype=torch.float64) for column in columns)
        return (X, Y, Yvar) if values else (X.reshape(0, 0), Y.reshape(0, self.metrics), Yvar.reshape(0, self.metrics))

    def __repr__(self) -> str:
        return f"<PrivateObjective {self.name!r}: {self.evaluations} evaluations, noise {self.noise_std.tolist()} each>"

    def _mean(self, x: torch.Tensor | None) -> ClippedMean:
        subject = None if x is None else x.clone()
        if self._cells is not None:
            return CellMeans(self._score, subject, cells=self._cells, **self._settings)
        return ClippedMean(self._score, subject, **self._settings)

    def _query(self, x: torch.Tensor | None) -> Query:
        return self._mean(x) if self._sample_rate is None else PoissonSampled(self._mean(x), rate=self._sample_rate)

    def _asked(self, x: torch.Tensor) -> tuple[Query, dict[str, Any]]:
        query, details = self._query(x), {"x": _require_point(x).tolist()}
        self._require_dimension([details["x"]])
        _ASKED[query] = self.name, details
        return query, details

    def _require_own(self, handle: Any) -> None:
        """Another plan's answer has other noise, and what was declared for it is not in this one's terms."""
        ours = isinstance(handle, Handle) and type(handle.query) is type(self._query(None))
        if not ours or _ASKED.get(handle.query) != (self.name, handle.details):
            raise InputError("handle", handle, f"one that the objective {self.name!r} evaluated", "Release others where they were made.")

    def _own_values(self) -> list[dict[str, Any]]:
        own = [v for v in self.curator.ledger.values(self.name) if "x" in v["details"] and len(v["value"]) == self.metrics]
        return [v for v in own if len(v["details"]["x"]) == len(own[0]["details"]["x"])]

    def _require_dimension(self, points: Sequence[Sequence[float]]) -> None:
        """All points of a plan have as many coordinates as the first that was released, here or by an earlier process."""
        if self._dimension is None and self.remaining < self.evaluations and (own := self._own_values()):
            self._dimension = len(own[0]["details"]["x"])
        d = self._dimension or len(points[0])
        for x in points:
            if len(x) != d:
                whose = "as those released before have" if self._dimension else "as the others have"
                raise InputError("x", f"with {len(x)} coordinates", f"of {d} coordinates, {whose}", "Nothing was charged.")

    def _released(self, handles: Sequence[Handle], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        self.curator.deliver()  # of several ranks all see now what the ledger has gained
        self._require_dimension([handle.details["x"] for handle in handles])
        left = self._left  # another thread may be at it
        if left is not None and self.remaining < left:  # somebody else's release came between
            assume_durations_tell_nothing(self.curator)
        self._left = None
        releases = self.curator.release_all(handles, self._mechanism, name=self.name, plan=self.name)
        self._left = self.remaining
        self._show_progress()
        return torch.stack([r.value for r in releases]).to(device), torch.stack([r.variance for r in releases]).to(device)

    def _require_left(self, points: int) -> None:
        if points > (left := self.remaining):
            raise BudgetExceeded(points, left, self.evaluations, "slots", f"the batch for {self.name!r}", self.curator.ledger.account())

    def _planned(self, law: type[AdditiveMechanism] | None, query: Query, share: Fraction) -> AdditiveMechanism:
        """The first law that the accounting can pay for, with the least noise that the share of the cap allows."""
        accounting, available = self.curator.accounting, self.curator.ledger.cap * share
        either = (GaussianMechanism, LaplaceMechanism) if self._sample_rate is None else (GaussianMechanism,)
        laws = either if law is None else (law,)
        for candidate in laws:
            one = query.charged(candidate(1.0).event(), self.curator.adjacency)
            multiplier = accounting.multiplier(_kind(one), self.evaluations, available)
            if multiplier is not None:
                return candidate(multiplier)
        names = " or ".join(query.charged(candidate(1.0).event(), self.curator.adjacency).mechanism for candidate in laws)
        remedy = "Sampled means need RDPFilter or Planned; a plan must list the event with as many slots as there are evaluations."
        raise InputError("mechanism", names, f"one that {accounting.name} can pay for", remedy)

    def _noise_std(self, mechanism: AdditiveMechanism | NoNoise) -> torch.Tensor:
        """Standard deviation of an evaluation, sampling included where units are sampled."""
        query, units = self._query(None), self.curator.units
        law = mechanism.law(query.scale(self.curator.adjacency), [grid.quantum for grid in self._mean(None).lattices(units)])
        variance = (torch.tensor(law.std, dtype=torch.float64) * query.affine(units)[1]) ** 2
        return (variance + torch.as_tensor(query.variance_within(units), dtype=torch.float64)).sqrt()

    def _tell_resumed(self, done: int) -> None:
        """What was charged under this name before, and how much of it has no value."""
        self.curator.deliver()  # a value may wait here
        lost = done - len(self.curator.ledger.values(self.name))
        if not self.curator.rank:
            told = f"{lost} lost: charged, but never delivered" if lost else "0 lost"
            _LOG.warning("%r: resumed %d of %d evaluations, %s", self.name, done, self.evaluations, told)

    def _warn_of_noise(self, query: ClippedMean) -> None:
        for std, (lower, upper) in zip(self.noise_std.tolist(), query.ranges, strict=True):
            if std > (upper - lower) / 10:
                text = (f"each evaluation carries noise of standard deviation {std:.3g}, more than a tenth of the score range "
                        f"({lower:g}, {upper:g}): plan fewer evaluations, a larger budget or more units.")  # fmt: skip
                warn(text, NoiseWarning)

    def _show_progress(self) -> None:
        """Slots charged so far, on a terminal only."""
        if self._bar.disable:
            return
        self._bar.update(self.evaluations - self.remaining - self._bar.n)
        if self._bar.n >= self.evaluations:
            self._bar.close()


def _kind(one: Event) -> EventKind:
    """Events like this one, at other multipliers."""
    return lambda noise_multiplier, slots=1: dataclasses.replace(one, noise_multiplier=noise_multiplier, slots=slots)


def _require_points(X: Any) -> torch.Tensor:
    if not isinstance(X, torch.Tensor) or X.ndim != 2 or 0 in X.shape:
        shape = tuple(X.shape) if isinstance(X, torch.Tensor) else type(X).__name__
        raise InputError("X", shape, "a tensor of shape q x d", "For one point use x.unsqueeze(0).")
    _require_point(X[0])
    if not bool(X.isfinite().all()):
        raise InputError("X", "with NaN or infinite entries", "finite")
    return X.detach()


def _require_point(x: Any) -> torch.Tensor:
    if not isinstance(x, torch.Tensor) or x.ndim != 1:
        raise InputError("x", tuple(x.shape) if isinstance(x, torch.Tensor) else type(x).__name__, "a tensor of shape d")
    if x.dtype != torch.float64:
        raise InputError("X", x.dtype, "float64", "Use X.double().")
    if not all(map(math.isfinite, x.tolist())):
        raise InputError("x", "with NaN or infinite entries", "finite")
    return x.detach()
