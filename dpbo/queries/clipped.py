"""Sums and means of a bounded score over protected units.

The user's score gives m numbers a record. Each is put on its metric's lattice (NaN and infinities
become the worst value; truncated, then clipped), a unit's records are averaged toward zero, and
units are summed in int64.

Sensitivity of the released sum. Metric j has range [a_j, b_j], measured from an origin o_j. A unit
contributes t times its records' mean, truncated toward zero, where t = min(k, rows) and k =
max_records_per_unit: a number between k(a_j - o_j) and k(b_j - o_j), or down to a_j - o_j (up to
b_j - o_j) when the range lies above (below) the origin. It depends on that unit's records alone
(assumption `score-per-record`), so neighbours (those of BOUNDED_ROW_CHANGE are some of
REPLACE_ONE's) differ by at most

    REPLACE_ONE:        D_j = k (b_j - a_j) + (k - 1) gap_j,
    ADD_OR_REMOVE_ONE:  D_j = k max(|a_j - o_j|, |b_j - o_j|),

where gap_j is the distance of the range from the origin (0 for every mean). In the weighted
coordinates w_j sum_j / D_j they differ by at most w_j in each, hence by sum w (l1), |w|_2 (l2), max
w (linf). For equal ranges and weights l2 is sqrt(m)(b - a), the diagonal of the box: nothing is
clipped beyond the ranges themselves.

Paired scores. With a public `reference` r0 a record counts as d = clip(s(subject) - s(r0), -c, c),
each score clipped to its range first. r0 and c are fixed before the release and depend on no
protected record, so d is a function of that record alone with range [-c, c], and the theorem above
holds with a = -c, b = c: D = 2c under REPLACE_ONE, c under ADD_OR_REMOVE_ONE (origin 0). No new
accounting.
"""

import abc
import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any, Self

import torch
from torch import Tensor

from dpbo.accounting.gdp import root_up, rounded_up
from dpbo.errors import InputError
from dpbo.events import Event, RolesEvent
from dpbo.fingerprint import fingerprint
from dpbo.privacy import Adjacency, Sensitivity
from dpbo.queries import score_evaluation
from dpbo.queries.integers import MOST_ROWS_PER_UNIT, Lattice, sum_records, sum_units
from dpbo.queries.query import (
    Affine,
    Failure,
    IntegerSum,
    Outcome,
    Query,
    ScoreCall,
    View,
    copy_mutable,
)
from dpbo.validation import (
    Positive,
    ScoreRange,
    Within,
    at_least,
    between,
    checked,
    checked_constructor,
    require,
)

# of one metric, or of several
ScoreRanges = Annotated[
    tuple[float, float] | Sequence[tuple[float, float]],
    Within(
        "a public pair (lower, upper) of numbers, or a list of pairs, one for each metric",
        lambda _: True,
        "For example (0, 1), or [(0, 1), (0, 1)] for two metrics.",
    ),
]
Divisor = Annotated[float, between(1.0, 1e18)]


@dataclass(frozen=True)
class PairedScore:
    """The score of a subject minus that of a fixed reference, on each record: `n x m`, each clipped
    to its range first.

    Attributes:
        score: `score(subject, records)`.
        reference: a copy of what every subject is compared with.
        ranges: of the score's metrics.
        worst: the end of the range that NaN and infinities count as: "lower" or "upper".
    """

    score: score_evaluation.Score
    reference: Any = field(repr=False)
    ranges: tuple[tuple[float, float], ...]
    worst: str

    def __call__(self, subject: Any, records: Any) -> Tensor:
        own, other = (self.score(each, records) for each in self.sides(subject))
        return self.difference(*map(score_evaluation.tensor_of, (own, other)))

    def sides(self, subject: Any) -> tuple[Any, Any]:
        """The two that are compared. Where one cannot take a record, that one has the worst score
        there, and the other its own.
        """
        return subject, copy_mutable(self.reference)

    def difference(self, own: Tensor, other: Tensor) -> Tensor:
        """Of scores of the two sides; NaN counts as the worst on its side."""
        # else one record's difference would be another's, too
        if own.shape != other.shape:
            raise ValueError("the score has another shape for the reference")
        return self._clipped(own.double()) - self._clipped(other.double())

    def _clipped(self, scores: Tensor) -> Tensor:
        lower, upper = torch.tensor(self.ranges, dtype=torch.float64, device=scores.device).T
        if scores.ndim == 1:
            lower, upper = lower[0], upper[0]
        worst = lower if self.worst == "lower" else upper
        return torch.where(scores.isfinite(), scores, worst).clamp(lower, upper)


@checked_constructor
@dataclass(frozen=True, eq=False)
class ClippedScores(Query):
    """Base of ClippedMean and ClippedSum: a score that is clipped to a public range.

    Args:
        score: `score(subject, records)` returns one number a record (shape `n`) or m numbers a
            record (`n x m`): a tensor, an array, a list, bools, or an iterator of batches. It must
            score each record on its own: the assumption `score-per-record`.
        subject: what is scored, such as a fitted model or a point x. Tensors, arrays, lists and
            dicts are copied, a model is not.
        score_range: public (lower, upper), or one such pair for each metric, in the score's units.
        fit: if given, the score gets `fit(subject)`. It runs outside the curator and must use no
            protected record.
        weights: one number from 1e-6 to 1e6 for each metric. A metric of twice the weight gets half
            the noise relative to its range.
        max_records_per_unit: a unit counts as its records' mean times min(this, its number of
            records). 1: every unit counts alike.
        worst: what NaN, infinities and failures count as: the "lower" end of the range (for scores
            that are maximised), the "upper" one, or a number inside every range. With a reference
            each of the two has it where it fails itself; a record that the public form has no value
            for counts as no difference.
        role: the role of the curator's records, such as "validation", where the study's other
            records have another role: the release is then charged to records of this role only.
        reference: if given, scores are paired: a record counts as score(subject) -
            score(reference). It is what `fit` returns, or a subject where there is no `fit`, and
            must come from public records or released values alone. It is copied.
        largest_difference: c, with a reference: differences are clipped to [-c, c]. From above 0 to
            the width of the narrowest range.
    """

    per_unit = True
    score: score_evaluation.Score
    subject: Any = field(default=None, repr=False)
    score_range: ScoreRanges = field(kw_only=True)
    fit: Callable[[Any], Any] | None = field(default=None, kw_only=True)
    weights: Sequence[float] | None = field(default=None, kw_only=True)
    max_records_per_unit: Annotated[int, at_least(1, MOST_ROWS_PER_UNIT)] = field(
        default=1, kw_only=True
    )
    worst: str | float = field(default="lower", kw_only=True)
    role: str | None = field(default=None, kw_only=True)
    reference: Any = field(default=None, repr=False, kw_only=True)
    largest_difference: Positive | None = field(default=None, kw_only=True)
    ranges: tuple[tuple[float, float], ...] = field(init=False, repr=False)
    _paired: PairedScore | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("subject", "score_range"):
            object.__setattr__(self, name, copy_mutable(getattr(self, name)))
        given: Any = self.score_range
        if not (given and all(isinstance(ends, Sequence) for ends in given)):
            given = [given]
        ranges = tuple(require("score_range", ends, ScoreRange) for ends in given)
        object.__setattr__(self, "ranges", ranges)
        weights = (1.0,) * self.metrics if self.weights is None else tuple(self.weights)
        if len(weights) != self.metrics:
            raise InputError("weights", weights, f"{self.metrics} numbers, one for each metric")
        for weight in weights:
            require("weights", weight, Annotated[float, between(1e-6, 1e6)])
        object.__setattr__(self, "weights", weights)
        if self.worst not in ("lower", "upper") and not self._inside(self.worst):
            raise InputError(
                "worst", self.worst, "'lower', 'upper', or a number inside every range"
            )
        if self.reference is not None or self.largest_difference is not None:
            self._pair()

    def _inside(self, score: str | float) -> bool:
        """Whether it is a number inside every range."""
        if isinstance(score, str):
            return False
        return all(lower <= score <= upper for lower, upper in self.ranges)

    def _pair(self) -> None:
        """Score differences to a copy of the reference from here on."""
        c = self.largest_difference
        if self.reference is None or c is None:
            raise InputError("largest_difference", c, "given with a reference, and only then")
        width = min(upper - lower for lower, upper in self.ranges)
        if c > width:
            raise InputError(
                "largest_difference", c, f"at most {width:g}, the width of score_range"
            )
        if self.worst not in ("lower", "upper"):
            raise InputError("worst", self.worst, "'lower' or 'upper' with a reference")
        try:
            reference = copy.deepcopy(self.reference)
        except Exception as cause:
            remedy = "A reference that may change later would be another question."
            kind = type(self.reference).__name__
            allowed = "a model that copy.deepcopy can copy"
            raise InputError("reference", kind, allowed, remedy) from cause
        paired = PairedScore(self.score, reference, self.ranges, str(self.worst))
        object.__setattr__(self, "reference", reference)
        object.__setattr__(self, "_paired", paired)
        object.__setattr__(self, "ranges", ((-c, c),) * self.metrics)

    @property
    def asked(self) -> Any:
        """What is called on the records: the score, or a function of it."""
        return self._paired or self.score

    @checked
    def about(self, subject: Any) -> Self:
        """The same question about another subject; no argument is checked a second time."""
        other = copy.copy(self)
        object.__setattr__(other, "subject", copy_mutable(subject))
        return other

    def given(self) -> dict[str, Any]:
        """What a resumed reservation of this question must be given again, by name."""
        given: dict[str, Any] = {"score": self.score, "fit": self.fit}
        if self.reference is not None:
            given["reference"] = fingerprint(self.reference, detail="content").hex()
        return given

    @abc.abstractmethod
    def origins(self) -> tuple[float, ...]:
        """The point of each metric's range that counts as zero."""

    @property
    def metrics(self) -> int:
        """m, the number of metrics."""
        return len(self.ranges)

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        return _box(
            self.ranges,
            tuple(self.origins()),
            tuple(self.weights or ()),
            self.max_records_per_unit,
            adjacency.replaces,
        )

    def release_event(self, event: Event, adjacency: Adjacency) -> Event:
        if self.role is None or event.free:
            return event
        one = dataclasses.replace(event, noise_multiplier=1.0, count=1)
        return RolesEvent(event.noise_multiplier, event.count, costs=((self.role, (one,)),))

    def sums_over_units(self) -> bool:
        return True

    def rows_at_once(self) -> int | None:
        return score_evaluation.ROWS_AT_ONCE

    def prepare(self) -> Any:
        if self.fit is None:
            return self.subject
        return self.fit(copy_mutable(self.subject))

    def probe(self, example: Any, count: int, subject: Any) -> None:
        grids = self.lattices(count)

        def reduce(pieces: Any) -> Tensor:
            return sum_records(pieces, grids)

        score_evaluation.probe_score(self.asked, subject, example, self.metrics, count, reduce)

    def per_record_scores(self, subject: Any) -> Sequence[ScoreCall]:
        # most differences may be clipped
        return [(self.asked, subject, () if self._paired else self.ranges)]

    def scores_one_at_a_time(self) -> bool:
        return True

    def public_inputs(self) -> dict[str, Any]:
        inputs = {
            "score_range": list(map(list, self.ranges)),
            "weights": list(self.weights or ()),
            "max_records_per_unit": self.max_records_per_unit,
            "worst": self.worst,
        }
        if self._paired is not None:
            inputs["score_range"] = list(map(list, self._paired.ranges))
            inputs["reference"] = type(self.reference).__name__
            inputs["largest_difference"] = self.largest_difference
        return inputs

    def lattices(self, units: int | None) -> list[Lattice]:
        """The public grid of each metric; `units` is their public number, or None."""
        # where neither side has a score, neither is better
        worst = self.worst if self._paired is None else 0.0
        most = self.max_records_per_unit
        grids = []
        for ends, origin in zip(self.ranges, self.origins(), strict=True):
            grids.append(Lattice.over(*ends, origin=origin, worst=worst, units=units, repeats=most))
        return grids

    def quanta(self, units: int | None) -> tuple[float, ...]:
        return tuple(grid.quantum for grid in self.lattices(units))

    def _evaluate(self, view: View, subject: Any) -> Outcome:
        grids = self.lattices(view.public_units)

        def reduce(pieces: Any) -> Tensor:
            if view.groups is None or view.rows is None:
                return sum_records(pieces, grids).cpu()
            return sum_units(pieces, grids, view.groups, view.rows, self.max_records_per_unit).cpu()

        total = score_evaluation.score_records(self.asked, subject, view, self.metrics, reduce)
        if isinstance(total, Failure):
            return total
        return IntegerSum(total, tuple(grid.quantum for grid in grids))


# every evaluation of a search asks for the same
@functools.lru_cache(maxsize=64)
def _box(
    ranges: Sequence[tuple[float, float]],
    origins: Sequence[float],
    weighted: Sequence[float],
    k: int,
    replaces: bool,
) -> Sensitivity:
    """The sensitivity of clipped scores: see the theorem above."""
    weights = list(map(Fraction, weighted))
    units = []
    for (lower, upper), origin, weight in zip(ranges, origins, weights, strict=True):
        a = Fraction(lower) - Fraction(origin)
        b = Fraction(upper) - Fraction(origin)
        if replaces:
            replaced = k * (b - a) + (k - 1) * max(a, -b, Fraction(0))
            units.append(replaced / weight)
        else:
            units.append(k * max(abs(a), abs(b)) / weight)
    largest = max(units)
    l1 = largest * sum(weights)
    linf = largest * max(weights)
    scale = tuple(float(unit / largest) for unit in units)
    return Sensitivity(
        rounded_up(l1),
        root_up(largest**2 * sum(weight**2 for weight in weights)),
        rounded_up(linf),
        scale,
    )


@checked_constructor
@dataclass(frozen=True, eq=False)
class ClippedMean(ClippedScores):
    """The mean of clipped scores over units. The sum is measured from the middle of the range and
    divided in public. A score that is NaN counts as the lower end of the range, unless `worst` says
    otherwise, and in the number of units: of a column with gaps release the sum and the number of
    the cells that are there.

    Args:
        divisor: public number of units to divide by; by default their true number, which only
            REPLACE_ONE makes public. A divisor above the true number pulls the mean toward the
            middle of the range.

    The other arguments are those of `ClippedScores`.
    """

    per_unit = True
    divisor: Divisor | None = field(default=None, kw_only=True)

    def origins(self) -> tuple[float, ...]:
        return tuple(lower + (upper - lower) / 2 for lower, upper in self.ranges)

    def require_public(self, adjacency: Adjacency) -> None:
        if self.divisor is None and (not adjacency.replaces or self.max_records_per_unit > 1):
            private = (
                "With max_records_per_unit > 1 up to so many records of each unit count, and their"
                " number is private."
            )
            if not adjacency.replaces:
                private = f"With adjacency={adjacency.value!r} the number of units is private."
            remedy = f"{private} Pass divisor=, a public number fixed without looking at the data."
            raise InputError("divisor", None, "a number of units", remedy)

    def affine(self, units: int | None) -> Affine:
        divisor = self.divisor or units
        assert divisor is not None, "require_public has run"
        return self.origins(), 1.0 / divisor

    def public_inputs(self) -> dict[str, Any]:
        return {**super().public_inputs(), "divisor": self.divisor}


@checked_constructor
@dataclass(frozen=True, eq=False)
class ClippedSum(ClippedScores):
    """The sum of clipped scores over units, from zero. Arguments as in `ClippedScores`."""

    def origins(self) -> tuple[float, ...]:
        return (0.0,) * self.metrics

    def affine(self, units: int | None) -> Affine:
        return self.origins(), 1.0
