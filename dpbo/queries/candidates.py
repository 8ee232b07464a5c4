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
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dpbo.checking import checked
from dpbo.errors import InputError
from dpbo.privacy import Adjacency, Sensitivity, require_range
from dpbo.queries import scoring
from dpbo.queries.clipped import ClippedMean
from dpbo.queries.copies import own
from dpbo.queries.query import Failure, IntegerSum, Query, View


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

    score: scoring.Score
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
