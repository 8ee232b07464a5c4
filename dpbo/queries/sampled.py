"""A mean over a Poisson sample of the units: each release costs less privacy (amplification by
sampling) and scores fewer records.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

from dpbo.errors import InputError
from dpbo.events import Event, GaussianEvent, NotPrivateEvent, PoissonGaussianEvent
from dpbo.privacy import Adjacency, Sensitivity
from dpbo.queries.clipped import ClippedMean
from dpbo.queries.query import (
    Affine,
    Outcome,
    Query,
    ScoreCall,
    View,
    require_per_unit,
)
from dpbo.validation import between, checked_constructor


@checked_constructor
@dataclass(frozen=True, eq=False)
class PoissonSampled(Query):
    """A `ClippedMean` over a Poisson sample of the units: `PoissonSampled(ClippedMean(score, x,
    score_range=(0, 1)), rate=0.1)`.

    Each evaluation draws a fresh sample that takes each unit independently with probability q and
    is never shown. A joint release of several points draws a sample for each, which costs less than
    one sample for all.

    Sensitivity. One unit contributes a vector of l2 norm at most C, the inner query's sensitivity
    under ADD_OR_REMOVE_ONE (scores are measured from the middle of their range, cells from zero).
    Of `CellMeans` C is 1: a unit's shares of the cells are at least 0 and add up to at most 1.
    For a fixed sample the sum moves between neighbours by C (add or remove) or 2 C (replace). With
    noise of standard deviation M C the release is dominated, under either relation, by the
    subsampled Gaussian pair of `dpbo.accounting`, and is charged as that event.

    The published mean divides by q n. Sampling gives it a variance of at most (1 - q) / (q n) times
    the square of the most that a unit counts (half the range; 1 in a cell). This public bound is
    added to Yvar, since the variance itself is private. Under ADD_OR_REMOVE_ONE the divisor stands
    for n, which is private, so there Yvar is right if the divisor is not below n.

    Args:
        query: the mean. Its records must be of a kind that can be sliced.
        rate: q, from 1e-9 to 1.
    """

    per_unit = True
    query: ClippedMean
    rate: Annotated[float, between(1e-9, 1.0)] = field(kw_only=True)

    def about(self, subject: Any) -> Self:
        """The same question about another subject."""
        return dataclasses.replace(self, query=self.query.about(subject))

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        bound = self.noise_sensitivity(adjacency)
        times = 2.0 if adjacency.replaces else 1.0
        return Sensitivity(times * bound.l1, times * bound.l2, times * bound.linf, bound.scale)

    def noise_sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        """The bound on one unit's contribution, under either relation."""
        return self.query.sensitivity(Adjacency.ADD_OR_REMOVE_ONE)

    def release_event(self, event: Event, adjacency: Adjacency) -> Event:
        if isinstance(event, NotPrivateEvent):
            return event
        if not isinstance(event, GaussianEvent):
            raise InputError("mechanism", event.mechanism, "GaussianMechanism, for a sampled mean")
        return PoissonGaussianEvent(
            event.noise_multiplier, event.count, rate=self.rate, relation=adjacency.value
        )

    def affine(self, units: int | None) -> Affine:
        offset, gain = self.query.affine(units)
        return offset, gain / self.rate

    def sampling_variance(self, units: int | None) -> Sequence[float]:
        gain = self.query.affine(units)[1]
        # a private number is replaced by the divisor
        number = 1 / gain if units is None else units
        shares = []
        for (lower, upper), origin in zip(self.query.ranges, self.query.origins(), strict=True):
            # an origin may be rounded toward either end
            most = self.query.max_records_per_unit * max(origin - lower, upper - origin)
            shares.append((1 - self.rate) / self.rate * number * (gain * most) ** 2)
        return shares

    def quanta(self, units: int | None) -> tuple[float, ...]:
        return self.query.quanta(units)

    def public_inputs(self) -> dict[str, Any]:
        return {**self.query.public_inputs(), "sample_rate": self.rate}

    def require_public(self, adjacency: Adjacency) -> None:
        if adjacency is Adjacency.BOUNDED_ROW_CHANGE:
            raise InputError(
                "adjacency", adjacency, "REPLACE_ONE or ADD_OR_REMOVE_ONE for sampled means"
            )
        self.query.require_public(adjacency)

    def sums_over_units(self) -> bool:
        return True

    def prepare(self) -> Any:
        return self.query.prepare()

    def probe(self, example: Any, count: int, subject: Any) -> None:
        self.query.probe(example, count, subject)

    def per_record_scores(self, subject: Any) -> Sequence[ScoreCall]:
        return self.query.per_record_scores(subject)

    def scores_one_at_a_time(self) -> bool:
        return self.query.scores_one_at_a_time()

    def _evaluate(self, view: View, subject: Any) -> Outcome:
        require_per_unit(self.query, grouped=view.groups is not None)
        if not view.can_take:
            raise InputError(
                "records",
                type(view.records).__name__,
                "of a kind that can be sliced, to be sampled",
            )
        return self.query._evaluate(view.poisson_sample(self.rate), subject)
