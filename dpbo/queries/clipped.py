"""Sums and means of a bounded score over protected units.

Evaluate: the user's score gives m numbers a record. Each is put on its metric's lattice (NaN and infinities at the worst end,
truncated, clipped), a unit's records are averaged toward zero, and units are summed in int64.

Sensitivity of the released sum. Metric j has range [a_j, b_j], measured from an origin o_j. A unit contributes t times its records'
mean, truncated toward zero, where t = min(k, rows) and k = max_records_per_unit: a number between k(a_j - o_j) and k(b_j - o_j), or
down to a_j - o_j (up to b_j - o_j) when the range lies above (below) the origin. It depends on that unit's records alone (assumption
`score-per-record`), so neighbours (those of BOUNDED_ROW_CHANGE are some of REPLACE_ONE's) differ by at most
    REPLACE_ONE:        D_j = k (b_j - a_j) + (k - 1) gap_j,  gap_j = distance of the range from the origin (0 for every mean)
    ADD_OR_REMOVE_ONE:  D_j = k max(|a_j - o_j|, |b_j - o_j|).
In the weighted coordinates w_j sum_j / D_j they differ by at most w_j in each, hence by sum w (l1), |w|_2 (l2), max w (linf). For
equal ranges and weights l2 is sqrt(m)(b - a), the diagonal of the box: nothing is clipped beyond the ranges themselves.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch

from dpbo.errors import InputError
from dpbo.events import Event, RolesEvent
from dpbo.privacy import Adjacency, Sensitivity, require_count, require_positive, require_range
from dpbo.queries import score_evaluation
from dpbo.queries.integers import MOST_ROWS_PER_UNIT, Lattice, sum_records, sum_units
from dpbo.queries.query import Failure, IntegerSum, Query, View, own
from dpbo.validation import checked

ScoreRange = tuple[float, float] | Sequence[tuple[float, float]]


@checked
@dataclass(frozen=True, eq=False)
class ClippedScores(Query):
    """What ClippedMean and ClippedSum share.

    Args:
        score: `score(subject, records)` returns one number a record (`n`), or m of them (`n x m`): a tensor, an array, a list, bools,
            or an iterator of batches. It must score each record by itself: the assumption `score-per-record`.
        subject: what is scored, a fitted model or a point x. Tensors, arrays, lists and dicts are copied, a model is not.
        score_range: public (lower, upper), or one such pair a metric.
        fit: if given, the score gets `fit(subject)`; it runs in the open and must touch no protected record.
        weights: 1e-6 to 1e6, one a metric: a metric of twice the weight gets half the noise relative to its range.
        max_records_per_unit: a unit counts as its mean times min(this, its rows); at most 2^22. 1: every unit counts alike.
        role: the curator's own, where other records of the same study have another one: this release then costs records of this role alone.
        worst: where NaN and failures fall: the "lower" end of the range, for scores that are maximised, the "upper" one, or a number.
    """

    score: score_evaluation.Score
    subject: Any = field(default=None, repr=False)
    score_range: ScoreRange = field(kw_only=True)
    fit: Callable[[Any], Any] | None = field(default=None, kw_only=True)
    weights: Sequence[float] | None = field(default=None, kw_only=True)
    max_records_per_unit: int = field(default=1, kw_only=True)
    worst: str | float = field(default="lower", kw_only=True)
    role: str | None = field(default=None, kw_only=True)
    ranges: tuple[tuple[float, float], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("subject", "score_range"):
            object.__setattr__(self, name, own(getattr(self, name)))
        object.__setattr__(self, "ranges", _ranges(self.score_range))
        object.__setattr__(self, "weights", _weights(self.weights, self.metrics))
        if require_count("max_records_per_unit", self.max_records_per_unit) > MOST_ROWS_PER_UNIT:
            raise InputError(
                "max_records_per_unit", self.max_records_per_unit, f"at most {MOST_ROWS_PER_UNIT}, as no unit has more records"
            )
        if self.worst not in ("lower", "upper") and not _inside(self.worst, self.ranges):
            raise InputError("worst", self.worst, "'lower', 'upper', or a number inside every range")

    @abc.abstractmethod
    def origins(self) -> tuple[float, ...]:
        """The point of each metric's range that counts as zero."""

    @property
    def metrics(self) -> int:
        """m, the number of metrics."""
        return len(self.ranges)

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        widths = [self._width(adjacency, *ends, origin) for ends, origin in zip(self.ranges, self.origins(), strict=True)]
        weights = [Fraction(weight) for weight in self.weights or ()]
        units = [width / weight for width, weight in zip(widths, weights, strict=True)]
        largest = max(units)
        l1, linf = largest * sum(weights), largest * max(weights)
        scale = tuple(float(unit / largest) for unit in units)
        return Sensitivity(_rounded_up(l1), root_up(largest**2 * sum(weight**2 for weight in weights)), _rounded_up(linf), scale)

    def charged(self, event: Event, adjacency: Adjacency) -> Event:
        if self.role is None or event.free:
            return event
        one = dataclasses.replace(event, noise_multiplier=1.0, slots=1)
        return RolesEvent(event.noise_multiplier, event.slots, costs=((self.role, (one,)),))

    def adds_up(self) -> bool:
        return True

    def prepare(self) -> Any:
        return self.subject if self.fit is None else self.fit(self.subject)

    def probe(self, example: Any, count: int, subject: Any) -> None:
        grids = self.lattices(count)
        score_evaluation.try_on(self.score, subject, example, self.metrics, count, lambda pieces: sum_records(pieces, grids))

    def scored(self, subject: Any) -> tuple[Any, Any, Sequence[tuple[float, float]]]:
        return self.score, subject, self.ranges

    def public_inputs(self) -> dict[str, Any]:
        return {
            "score_range": [list(ends) for ends in self.ranges],
            "weights": list(self.weights or ()),
            "max_records_per_unit": self.max_records_per_unit,
            "worst": self.worst,
        }

    def lattices(self, units: int | None) -> list[Lattice]:
        """The public grid of each metric for this public number of units (None: private)."""
        return [
            Lattice.over(*ends, origin=origin, worst=self.worst, units=units, repeats=self.max_records_per_unit)
            for ends, origin in zip(self.ranges, self.origins(), strict=True)
        ]

    def _evaluate(self, view: View, subject: Any) -> IntegerSum | Failure:
        grids = self.lattices(view.public_units)

        def reduce(pieces: Any) -> torch.Tensor:
            if view.groups is None or view.rows is None:
                return sum_records(pieces, grids).cpu()
            return sum_units(pieces, grids, view.groups, view.rows, self.max_records_per_unit).cpu()

        total = score_evaluation.over_records(self.score, subject, view, self.metrics, reduce)
        return total if isinstance(total, Failure) else IntegerSum(total, tuple(grid.quantum for grid in grids))

    def _width(self, adjacency: Adjacency, lower: float, upper: float, origin: float) -> Fraction:
        a, b, k = Fraction(lower) - Fraction(origin), Fraction(upper) - Fraction(origin), self.max_records_per_unit
        match adjacency:
            case Adjacency.REPLACE_ONE | Adjacency.BOUNDED_ROW_CHANGE:
                return k * (b - a) + (k - 1) * max(a, -b, Fraction(0))
            case Adjacency.ADD_OR_REMOVE_ONE:
                return k * max(abs(a), abs(b))


def _inside(value: Any, ranges: Sequence[tuple[float, float]]) -> bool:
    return isinstance(value, (int, float)) and all(lower <= value <= upper for lower, upper in ranges)


def _rounded_up(exact: Fraction) -> float:
    value = float(exact)
    return value if Fraction(value) >= exact else math.nextafter(value, math.inf)


def root_up(square: Fraction) -> float:
    """The square root as a float, rounded up."""
    root = math.sqrt(square)
    return root if Fraction(root) ** 2 >= square else math.nextafter(root, math.inf)


def _ranges(score_range: ScoreRange) -> tuple[tuple[float, float], ...]:
    several = isinstance(score_range, Sequence) and len(score_range) > 0 and all(isinstance(ends, Sequence) for ends in score_range)
    return tuple(require_range("score_range", ends) for ends in (score_range if several else [score_range]))


def _weights(weights: Sequence[float] | None, metrics: int) -> tuple[float, ...]:
    if weights is None:
        return (1.0,) * metrics
    if len(weights) != metrics:
        raise InputError("weights", weights, f"{metrics} positive numbers, one a metric")
    return tuple(require_positive("weights", weight, 1e-6, 1e6) for weight in weights)


@checked
@dataclass(frozen=True, eq=False)
class ClippedMean(ClippedScores):
    """The mean score over units: the sum of scores measured from the middle of the range, divided in public.

    Args:
        divisor: public number of units to divide by. Omitted, it is the number of units, which only REPLACE_ONE makes public.
            A divisor above the true number pulls the mean toward the middle of the range.
    """

    divisor: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.divisor is not None:
            require_positive("divisor", self.divisor, 1.0, 1e18)

    def origins(self) -> tuple[float, ...]:
        return tuple(lower + (upper - lower) / 2 for lower, upper in self.ranges)

    def require_public(self, adjacency: Adjacency) -> None:
        if self.divisor is None and (not adjacency.replaces or self.max_records_per_unit > 1):
            remedy = "The number of units is private there; give a number fixed without looking at the data."
            raise InputError("divisor", None, "a public number under this adjacency or with max_records_per_unit > 1", remedy)

    def affine(self, units: int | None) -> tuple[Sequence[float], float]:
        divisor = self.divisor if self.divisor is not None else units
        assert divisor is not None, "require_public has run"
        return self.origins(), 1.0 / divisor

    def public_inputs(self) -> dict[str, Any]:
        return {**super().public_inputs(), "divisor": self.divisor}


@checked
@dataclass(frozen=True, eq=False)
class ClippedSum(ClippedScores):
    """The sum of clipped scores over units, measured from zero."""

    def origins(self) -> tuple[float, ...]:
        return (0.0,) * self.metrics

    def affine(self, units: int | None) -> tuple[Sequence[float], float]:
        return self.origins(), 1.0
