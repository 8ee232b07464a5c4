"""A mean over a Poisson sample of the units: amplification by sampling, and less to score.

    PoissonSampled(ClippedMean(score, x, score_range=(0, 1)), rate=0.1)

Every evaluation draws a sample of its own, each unit by itself with probability q; nobody ever sees who is in it. One unit contributes
a vector of l2 norm at most C = the inner query's sensitivity under ADD_OR_REMOVE_ONE (scores are measured from the middle of their range,
cells from zero).
With noise of M C the release is dominated by the pair of accounting/pairs.py under either relation, and is charged as that event.
For a fixed sample the sum moves between neighbours by C (add or remove) or 2 C (replace). The published mean divides by q n; by sampling
its variance is at most (1 - q) / (q n) times the square of the most that a unit counts (half the range; 1 in a cell), which is added to
Yvar (the variance itself is private); under ADD_OR_REMOVE_ONE n is private and the divisor stands for it, so there Yvar is right if the
divisor is not below n.
A joint release of several points uses a sample for each: that costs less than one sample for all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from dpbo.errors import InputError
from dpbo.events import Event, GaussianEvent, NotPrivateEvent, PoissonGaussianEvent
from dpbo.privacy import Adjacency, Sensitivity
from dpbo.queries.clipped import ClippedMean
from dpbo.queries.query import Failure, IntegerSum, Query, View
from dpbo.validation import Within, checked


@checked
@dataclass(frozen=True, eq=False)
class PoissonSampled(Query):
    """A ClippedMean over a sample; records must be of a kind that can be sliced.

    Args:
        query: the mean.
        rate: in (0, 1], the probability with which each unit is taken.
    """

    query: ClippedMean
    rate: Annotated[float, Within("from 1e-9 to 1", lambda value: 1e-9 <= value <= 1.0)] = dataclasses.field(kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", float(self.rate))

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        bound = self.scale(adjacency)
        times = 2.0 if adjacency.replaces else 1.0
        return Sensitivity(times * bound.l1, times * bound.l2, times * bound.linf, bound.scale)

    def scale(self, adjacency: Adjacency) -> Sensitivity:
        """The norm bound of one unit's contribution, under either relation."""
        return self.query.sensitivity(Adjacency.ADD_OR_REMOVE_ONE)

    def charged(self, event: Event, adjacency: Adjacency) -> Event:
        if isinstance(event, NotPrivateEvent):
            return event
        if not isinstance(event, GaussianEvent):
            raise InputError("mechanism", event.mechanism, "GaussianMechanism, for a sampled mean")
        return PoissonGaussianEvent(event.noise_multiplier, event.slots, rate=self.rate, relation=adjacency.value)

    def affine(self, units: int | None) -> tuple[Sequence[float], float]:
        offset, gain = self.query.affine(units)
        return offset, gain / self.rate

    def variance_within(self, units: int | None) -> Sequence[float]:
        gain = self.query.affine(units)[1]
        number = 1 / gain if units is None else units  # where it is private, the divisor stands for it
        ends = zip(self.query.ranges, self.query.origins(), strict=True)  # an origin may round to either end of its range
        most = [self.query.max_records_per_unit * max(origin - lower, upper - origin) for (lower, upper), origin in ends]
        return [(1 - self.rate) / self.rate * number * (gain * each) ** 2 for each in most]

    def public_inputs(self) -> dict[str, Any]:
        return {**self.query.public_inputs(), "sample_rate": self.rate}

    def require_public(self, adjacency: Adjacency) -> None:
        if adjacency is Adjacency.BOUNDED_ROW_CHANGE:
            raise InputError("adjacency", adjacency, "REPLACE_ONE or ADD_OR_REMOVE_ONE for sampled means")
        self.query.require_public(adjacency)

    def adds_up(self) -> bool:
        return True

    def prepare(self) -> Any:
        return self.query.prepare()

    def probe(self, example: Any, count: int, subject: Any) -> None:
        self.query.probe(example, count, subject)

    def scored(self, subject: Any) -> tuple[Any, Any, Sequence[tuple[float, float]]]:
        return self.query.scored(subject)

    def _evaluate(self, view: View, subject: Any) -> IntegerSum | Failure:
        if not view.can_take:
            raise InputError("records", type(view.records).__name__, "of a kind that can be sliced, to be sampled")
        return self.query._evaluate(view.sampled(self.rate), subject)
