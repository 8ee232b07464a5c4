"""Utilities of public candidates, for a private choice among them: their total scores, or how good
each is as a quantile of a score.

    utilities = CandidateScores(score, candidates, score_range=(0.0, 1.0))
    release = curator.release(utilities, PermuteAndFlipMechanism.of(1.0))
    best = candidates[int(release.value)]
"""

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from dpbo.errors import InputError
from dpbo.privacy import Adjacency, Sensitivity
from dpbo.queries import score_evaluation
from dpbo.queries.clipped import ClippedMean
from dpbo.queries.integers import Lattice, unit_means
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
from dpbo.validation import Positive, Probability, ScoreRange, between, checked_constructor

# quantile utilities are whole multiples of 2^-20; a fraction that is none is rounded so that they
# shrink
_FINE = 1 << 20
# of the last candidate: in steps below 2^60, beside 2^20 * MOST_UNITS for the units, so that none
# leaves int64
_MOST_COST = 1e12


@checked_constructor
@dataclass(frozen=True, eq=False)
class CandidateScores(Query):
    """Total scores of N public candidates. Release it with a choice mechanism, which publishes the
    index of the chosen one.

    A unit counts as the mean of its records' clipped scores, measured from the middle of the range
    [a, b], so one unit moves every candidate's sum by at most D = b - a (REPLACE_ONE) or (b - a)/2
    (ADD_OR_REMOVE_ONE), all at once: linf is D, l2 sqrt(N) D, l1 N D. No assumption on the scores
    is needed. On m units the choice at epsilon loses at most (2 D / (epsilon m)) (log N + a) of the
    mean score with probability 1 - e^-a (McSherry & Talwar 2007; permute-and-flip is never worse).

    Args:
        score: `score(candidate, records)`, or `score(fit(candidate), records)`: one number a
            record, maximised.
        candidates: what is chosen from, one or more, fixed without looking at the data.
        score_range: public (lower, upper) of a record's score.
        fit: if given, it is called with each candidate. It runs outside the curator and must use no
            protected record.
        reference, largest_difference: as in `ClippedScores`: utilities are then sums of score
            differences to the reference, clipped to [-c, c], so D = 2c (REPLACE_ONE) or c. A small
            c needs little noise; the clip moves the mean where differences are skewed.
        offsets: public numbers, one a candidate, in units of a sum of scores: what is added to
            each sum before the choice, such as a handicap below zero for candidates that need more
            evidence. They are the same for neighbours, so D is as without them.

    Raises:
        InputError: no candidate, or offsets that are not one finite number for each.
    """

    per_unit = True
    score: score_evaluation.Score
    candidates: Sequence[Any] = field(repr=False)
    score_range: ScoreRange = field(kw_only=True)
    fit: Callable[[Any], Any] | None = field(default=None, kw_only=True)
    reference: Any = field(default=None, repr=False, kw_only=True)
    largest_difference: Positive | None = field(default=None, kw_only=True)
    offsets: Sequence[float] | None = field(default=None, kw_only=True)
    _template: ClippedMean = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "candidates", tuple(map(copy_mutable, self.candidates)))
        if not self.candidates:
            raise InputError("candidates", 0, "one or more")
        if self.offsets is not None:
            offsets = tuple(map(float, self.offsets))
            if len(offsets) != len(self.candidates) or not all(map(math.isfinite, offsets)):
                raise InputError("offsets", offsets, "one finite number for each candidate")
            object.__setattr__(self, "offsets", offsets)
        template = ClippedMean(
            self.score,
            score_range=self.score_range,
            fit=self.fit,
            reference=self.reference,
            largest_difference=self.largest_difference,
        )
        object.__setattr__(self, "_template", template)

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        return Sensitivity.of_linf(self._template.sensitivity(adjacency).linf, len(self.candidates))

    def affine(self, units: int | None) -> Affine:
        return self.offsets or (0.0,) * len(self.candidates), 1.0

    def public_inputs(self) -> dict[str, Any]:
        stated = self._template.public_inputs()
        for name in ("weights", "max_records_per_unit", "worst", "divisor"):
            del stated[name]
        stated.update(candidates=len(self.candidates), score_range=[*self.score_range])
        if self.offsets is not None:
            stated["offsets"] = list(self.offsets)
        return stated

    def sums_over_units(self) -> bool:
        return True

    def rows_at_once(self) -> int | None:
        return self._template.rows_at_once()

    def prepare(self) -> Any:
        # a score may write into its argument
        return [self._template.about(copy.deepcopy(each)).prepare() for each in self.candidates]

    def probe(self, example: Any, count: int, subject: Any) -> None:
        self._template.probe(example, count, subject[0])

    def per_record_scores(self, subject: Any) -> Sequence[ScoreCall]:
        return list(chain.from_iterable(map(self._template.per_record_scores, subject)))

    def scores_one_at_a_time(self) -> bool:
        return True

    def _evaluate(self, view: View, subject: Any) -> Outcome:
        sums = []
        for model in subject:
            answer = self._template._evaluate(view, model)
            if isinstance(answer, Failure):
                return answer
            sums.append(answer)
        totals = torch.cat([answer.numerators for answer in sums])
        return IntegerSum(totals, sums[0].quanta * len(sums))


@checked_constructor
@dataclass(frozen=True, eq=False)
class QuantileUtilities(Query):
    """How good each of N public values is as a quantile of a score over units, for example to
    choose a clip bound privately.

    Release it with a choice mechanism, which publishes the index of the chosen value.

    A unit counts as the mean of its records' scores, truncated to the lattice; NaN, infinities and
    failures count as the last candidate. With the quantile q
    = a/b and c_j the number of units below candidate j, the utility is -|b c_j - a n| / b: zero at
    the quantile (less a public j * step_cost, which no record moves).

    Sensitivity of each utility. REPLACE_ONE: n stays and c_j moves by at most 1: at most 1.
    ADD_OR_REMOVE_ONE: b c_j - a n moves by b - a or by -a: at most max(q, 1 - q). So linf is that
    for all candidates; l2 and l1 are sqrt(N) and N times it.

    Args:
        score: `score(subject, records)`: one number a record, each record on its own.
        subject: what is scored.
        candidates: increasing public numbers, two or more. Scores below the first count as the
            first, those above the last as the last.
        quantile: in (0, 1), a decimal of at most six digits, taken as the fraction it is written
            as.
        step_cost: public utility taken off for each place further up the list, from 0 to 1e6, so
            that of equally good candidates the lower is chosen. Times the number of candidates it
            may be at most 10^12.
    """

    per_unit = True
    score: score_evaluation.Score
    subject: Any = field(default=None, repr=False)
    candidates: Sequence[float] = field(kw_only=True)
    quantile: Probability = field(kw_only=True)
    step_cost: Annotated[float, between(0.0, 1e6)] = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        values = list(map(float, self.candidates))
        gaps = np.diff(values)
        if len(values) < 2 or not np.isfinite(gaps).all() or not (gaps > 0).all():
            raise InputError("candidates", values, "two or more increasing finite numbers")
        if self._fraction().denominator > _FINE:
            raise InputError("quantile", self.quantile, "a decimal of at most six digits")
        if self.step_cost * len(values) > _MOST_COST:
            raise InputError(
                "step_cost",
                self.step_cost,
                f"at most {_MOST_COST / len(values):g} for {len(values)} candidates",
            )
        object.__setattr__(self, "candidates", tuple(values))
        object.__setattr__(self, "subject", copy_mutable(self.subject))

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        share = self._fraction()
        bound = 1.0
        if not adjacency.replaces:
            bound = math.nextafter(float(max(share, 1 - share)), math.inf)
        return Sensitivity.of_linf(bound, len(self.candidates))

    def affine(self, units: int | None) -> Affine:
        return (0.0,) * len(self.candidates), 1.0

    def public_inputs(self) -> dict[str, Any]:
        return {
            "candidates": list(self.candidates),
            "quantile": self.quantile,
            "step_cost": self.step_cost,
            "worst": "last candidate",
        }

    def probe(self, example: Any, count: int, subject: Any) -> None:
        grid = self._grid(count)
        score_evaluation.probe_score(
            self.score,
            subject,
            example,
            1,
            count,
            lambda pieces: unit_means(pieces, grid, None, None),
        )

    def prepare(self) -> Any:
        return self.subject

    def per_record_scores(self, subject: Any) -> Sequence[ScoreCall]:
        return [(self.score, subject, ())]

    def scores_one_at_a_time(self) -> bool:
        return True

    def _evaluate(self, view: View, subject: Any) -> Outcome:
        grid = self._grid(view.public_units)

        def reduce(pieces: Iterable[Tensor]) -> Tensor:
            return unit_means(pieces, grid, view.groups, view.rows)

        means = score_evaluation.score_records(self.score, subject, view, 1, reduce)
        if isinstance(means, Failure):
            return means
        steps = [
            math.ceil((Fraction(value) - Fraction(grid.origin)) / Fraction(grid.quantum))
            for value in self.candidates
        ]
        below = torch.searchsorted(
            means.sort().values, torch.tensor(steps, device=means.device)
        ).cpu()
        share = self._fraction()
        numerators = -(share.denominator * below - share.numerator * view.units).abs()
        cost = round(self.step_cost * _FINE) * torch.arange(len(steps), device="cpu")
        return IntegerSum(
            numerators * (_FINE // share.denominator) - cost, (1.0 / _FINE,) * len(steps)
        )

    def _fraction(self) -> Fraction:
        return Fraction(str(self.quantile))

    def _grid(self, units: int | None) -> Lattice:
        ends = self.candidates[0], self.candidates[-1]
        return Lattice.over(*ends, origin=ends[0], worst="upper", units=units)
