"""How well each of N public candidates scores over all units: utilities for a private choice.

    release = curator.release(CandidateScores(score, candidates, score_range=(0.0, 1.0)), PermuteAndFlipMechanism.of(1.0))
    best = candidates[int(release.value)]

A unit counts by the mean of its records' clipped scores, measured from the middle of the range [a, b], so one unit moves every candidate's
sum by at most D = b - a (REPLACE_ONE) or (b - a)/2 (ADD_OR_REMOVE_ONE), all at once: linf is D, l2 sqrt(N) D, l1 N D. No assumption on the
scores is needed. On m units the choice at epsilon loses at most (2 D / (epsilon m)) (log N + a) of the mean score with probability
1 - e^-a (McSherry & Talwar 2007; permute-and-flip is never worse).
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any

import torch

from dpbo.errors import InputError
from dpbo.privacy import Adjacency, Sensitivity, require_range
from dpbo.queries import score_evaluation
from dpbo.queries.clipped import ClippedMean
from dpbo.queries.integers import Lattice, unit_means
from dpbo.queries.query import Failure, IntegerSum, Query, View, own
from dpbo.validation import Probability, Within, checked

# ========== MERGED How good each of N public values is as a quantile of a score over units: utilities for a private choice, for example
# of a clip bound.
#
# A unit counts by the mean of its records' scores, truncated to the lattice as everywhere. With q = a/b and c_j the number of units below
# candidate j, the utility is -|b c_j - a n| / b: zero at the best place (less a public j * step_cost, which no record moves).
#
# Sensitivity of each utility. REPLACE_ONE: n stays, c_j moves by at most 1: at most 1. ADD_OR_REMOVE_ONE: b c_j - a n moves by b - a or
# by -a: at most max(q, 1 - q). So linf is that, for all candidates alike; l2 and l1 are sqrt(N) and N times it.
#

_FINE = 1 << 20  # utilities are whole multiples of 2^-20; a fraction that does not fit is rounded so that they shrink
_MOST_COST = 1e12  # of the last place: in steps below 2^60, and all units' 2^20 * MOST_UNITS, so that none leaves int64


@checked
@dataclass(frozen=True, eq=False)
class QuantileUtilities(Query):
    """Utilities of public `candidates` as the `quantile` of a score; release them by a selection mechanism, which gives the index.

    Args:
        score: `score(subject, records)`, one number a record; each record by itself.
        subject: what is scored.
        candidates: increasing public numbers, two or more; scores beyond the first and last count as those.
        quantile: in (0, 1), as the fraction it is written as.
        step_cost: public utility taken off for every place further up, so that of equally good candidates the lower is chosen;
            times their number at most 10^12.
    """

    score: score_evaluation.Score
    subject: Any = field(default=None, repr=False)
    candidates: Sequence[float] = field(kw_only=True)
    quantile: Probability = field(kw_only=True)
    step_cost: Annotated[float, Within("from 0 to 1e6", lambda value: 0.0 <= value <= 1e6)] = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        values = [float(value) for value in self.candidates]
        if len(values) < 2 or not all(math.isfinite(v) for v in values) or any(a >= b for a, b in itertools.pairwise(values)):
            raise InputError("candidates", values, "two or more increasing finite numbers")
        if self._share().denominator > _FINE:
            raise InputError("quantile", self.quantile, "a decimal of at most six digits")
        if self.step_cost * len(values) > _MOST_COST:
            raise InputError("step_cost", self.step_cost, f"at most {_MOST_COST / len(values):g} for {len(values)} candidates")
        object.__setattr__(self, "candidates", tuple(values))
        object.__setattr__(self, "subject", own(self.subject))

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        share = self._share()
        match adjacency:
            case Adjacency.REPLACE_ONE | Adjacency.BOUNDED_ROW_CHANGE:
                most = 1.0
            case Adjacency.ADD_OR_REMOVE_ONE:
                most = math.nextafter(float(max(share, 1 - share)), math.inf)
        count = len(self.candidates)
        return Sensitivity(most * count, most * math.sqrt(count) * (1 + 1e-15), most, (1.0,) * count)

    def affine(self, units: int | None) -> tuple[Sequence[float], float]:
        return (0.0,) * len(self.candidates), 1.0

    def public_inputs(self) -> dict[str, Any]:
        return {"candidates": list(self.candidates), "quantile": self.quantile, "step_cost": self.step_cost}

    def probe(self, example: Any, count: int, subject: Any) -> None:
        score_evaluation.try_on(self.score, subject, example, 1, count, lambda pieces: unit_means(pieces, self._grid(count), None, None))

    def prepare(self) -> Any:
        return self.subject

    def _evaluate(self, view: View, subject: Any) -> IntegerSum | Failure:
        grid = self._grid(view.public_units)

        def reduce(pieces: Iterable[torch.Tensor]) -> torch.Tensor:
            return unit_means(pieces, grid, view.groups, view.rows)

        means = score_evaluation.over_records(self.score, subject, view, 1, reduce)
        return means if isinstance(means, Failure) else self._utilities(means, grid, view.units)

    def _utilities(self, means: torch.Tensor, grid: Lattice, units: int) -> IntegerSum:
        steps = [math.ceil((Fraction(value) - Fraction(grid.origin)) / Fraction(grid.quantum)) for value in self.candidates]
        below = torch.searchsorted(means.sort().values, torch.tensor(steps, device=means.device)).cpu()
        share = self._share()
        numerators = -(share.denominator * below - share.numerator * units).abs()
        cost = round(self.step_cost * _FINE) * torch.arange(len(steps))
        return IntegerSum(numerators * (_FINE // share.denominator) - cost, (1.0 / _FINE,) * len(steps))

    def _share(self) -> Fraction:
        return Fraction(str(self.quantile))

    def _grid(self, units: int | None) -> Lattice:
        ends = self.candidates[0], self.candidates[-1]
        return Lattice.over(*ends, origin=ends[0], worst="upper", units=units)


@checked
@dataclass(frozen=True, eq=False)
class CandidateScores(Query):
    """Total scores of public candidates; release them by a selection mechanism, which gives the index.

    Args:
        score: `score(candidate, records)`, or `score(fit(candidate), records)`; one number a record, maximised.
        candidates: what is chosen from, one or more; fixed without looking at the data.
        score_range: public (lower, upper) of a record's score.
        fit: if given, run on each candidate in the open; it must touch no protected record.
    """

    score: score_evaluation.Score
    candidates: Sequence[Any] = field(repr=False)
    score_range: tuple[float, float] = field(kw_only=True)
    fit: Callable[[Any], Any] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "candidates", tuple(map(own, self.candidates)))
        object.__setattr__(self, "score_range", require_range("score_range", self.score_range))
        if len(self.candidates) < 1:
            raise InputError("candidates", len(self.candidates), "one or more")

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        width, count = self._mean(None).sensitivity(adjacency).linf, len(self.candidates)
        return Sensitivity(width * count, width * math.sqrt(count) * (1 + 1e-15), width, (1.0,) * count)

    def affine(self, units: int | None) -> tuple[Sequence[float], float]:
        return (0.0,) * len(self.candidates), 1.0

    def public_inputs(self) -> dict[str, Any]:
        return {"candidates": len(self.candidates), "score_range": list(self._mean(None).ranges[0])}

    def adds_up(self) -> bool:
        return True

    def prepare(self) -> Any:
        return [self._mean(copy.deepcopy(candidate)).prepare() for candidate in self.candidates]  # a score may write into what it gets

    def probe(self, example: Any, count: int, subject: Any) -> None:
        self._mean(None).probe(example, count, subject[0])

    def scored(self, subject: Any) -> tuple[Any, Any, Sequence[tuple[float, float]]]:
        return self._mean(None).scored(subject[0])

    def _evaluate(self, view: View, subject: Any) -> IntegerSum | Failure:
        mean, sums = self._mean(None), []
        for model in subject:
            answer = mean._evaluate(view, model)
            if isinstance(answer, Failure):
                return answer
            sums.append(answer)
        return IntegerSum(torch.cat([answer.numerators for answer in sums]), sums[0].quanta * len(sums))

    def _mean(self, candidate: Any) -> ClippedMean:
        return ClippedMean(self.score, candidate, score_range=self.score_range, fit=self.fit)
