"""The base for queries of one's own: a score of each record and its range, from which a sound sum
over units is made.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Sequence
from typing import Any, ClassVar

from dpbo.privacy import Adjacency, Sensitivity
from dpbo.queries.clipped import ClippedSum, ScoreRanges
from dpbo.queries.query import (
    Affine,
    Outcome,
    Query,
    ScoreCall,
    View,
    copy_mutable,
    fields_of,
)


class UnitSum(Query):
    """A question of your own: the sum over units of a score that you write. Its sensitivity needs
    no proof of yours.

    Write `score`, which gives each record one number or m, and `score_range`, the public range that
    it is clipped to. A unit counts as the mean of its records' scores, or, with
    `max_records_per_unit = k`, as that mean times the number of its records, at most k. The answer
    is the noised sum, which is never divided, so nothing depends on the number of units.

    Sensitivity: that of `ClippedSum`, whatever `score` does with a record, under both adjacencies
    and for units of any number of records. Scores become whole numbers, are clipped, and are
    reduced unit by unit in integers. What is left to you is that a record's score depends on no
    other record (assumption `score-per-record`).

    Example::

        @dataclass(frozen=True, eq=False)
        class CountAbove(UnitSum):
            "How many units exceed a threshold; of several records, the share of them that do."

            threshold: float
            score_range = (0.0, 1.0)

            def score(self, records):
                return records > self.threshold

    Attributes:
        max_records_per_unit: k, as in `ClippedSum`.
        worst: what NaN and failures count as, as in `ClippedSum`: the "lower" end, the "upper" one,
            or a number between them.

    The fields of a data class that are numbers or texts are told as its public inputs.
    """

    per_unit = True
    max_records_per_unit: ClassVar[int] = 1
    worst: ClassVar[str | float] = "lower"

    def __post_init__(self) -> None:
        """Copies what the caller of a data class's constructor may change later."""
        for name, value in fields_of(self).items():
            object.__setattr__(self, name, copy_mutable(value))

    @property
    @abc.abstractmethod
    def score_range(self) -> ScoreRanges:
        """Public (lower, upper), or one pair for each of m numbers; an attribute or property."""

    @abc.abstractmethod
    def score(self, records: Any) -> Any:
        """One number a record (`n`), or m numbers a record (`n x m`), each record on its own."""

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        return self._sum.sensitivity(adjacency)

    def affine(self, units: int | None) -> Affine:
        return self._sum.affine(units)

    def public_inputs(self) -> dict[str, Any]:
        stated = self._sum.public_inputs()
        for name, value in fields_of(self).items():
            if isinstance(value, (bool, int, float, str)):
                stated[name] = value
        return stated

    def require_public(self, adjacency: Adjacency) -> None:
        # The sum is made here, before a worker gets the question, and kept: its range is from now
        # on the one that is answered with, whatever `score_range` says later.
        self._sum.require_public(adjacency)

    def sums_over_units(self) -> bool:
        return True

    def rows_at_once(self) -> int | None:
        return self._sum.rows_at_once()

    def probe(self, example: Any, count: int, subject: Any) -> None:
        self._sum.probe(example, count, subject)

    def per_record_scores(self, subject: Any) -> Sequence[ScoreCall]:
        return self._sum.per_record_scores(subject)

    def _evaluate(self, view: View, subject: Any) -> Outcome:
        return self._sum._evaluate(view, subject)

    @functools.cached_property
    def _sum(self) -> ClippedSum:
        return ClippedSum(
            self._score,
            score_range=self.score_range,
            max_records_per_unit=self.max_records_per_unit,
            worst=self.worst,
        )

    def _score(self, _subject: Any, records: Any) -> Any:
        return self.score(records)
