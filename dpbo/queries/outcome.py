"""One row's outcome y_i = f(x_i), which the modeler of outsourced Bayesian optimisation asks for.

    query = RowOutcome(outcome, row=17, value_range=(0.0, 1.0))          # released with noise, or declassified

The answer depends on record i alone (`part`; that `outcome` looks at nothing else is the assumption `score-per-record`), clipped to a
public range [a, b]. Whatever that record is replaced by, and so also when its row moves by little, the answer moves by at most b - a, in
every norm: sensitivity b - a. Another record's change moves nothing, so the outcomes of distinct rows compose in parallel: a plan
`parallel=True` costs what one row's outcomes do.

Declassified, the outcomes are published exact and charged nothing, because the curator declares that they need no protection. That is a
data assumption (`outcomes-declassified`): the release is conditional, and the statement says what remains without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dpbo.checking import Index, checked
from dpbo.errors import InputError
from dpbo.events import DeclassifiedEvent, Event, NotPrivateEvent
from dpbo.privacy import Adjacency, Sensitivity, require_range
from dpbo.queries import scoring
from dpbo.queries.clipped import ClippedMean
from dpbo.queries.integers import Lattice, sum_records
from dpbo.queries.query import Failure, IntegerSum, Query, View

_NOTHING = torch.tensor([[torch.nan]], dtype=torch.float64)


@checked
@dataclass(frozen=True, eq=False)
class RowOutcome(Query):
    """The outcome of record `row`.

    Args:
        outcome: `outcome(records)`, a number, from a copy of the one record in the records' own container. It is called once, and never on
            stand-in records, because it may be an experiment.
        row: position of the record, from 0.
        value_range: public (a, b).
        declassified: why outcomes need no protection, in a sentence for the statement; then release it by
            `NoNoise(allow_not_private=True)`. Omitted, they are protected.
        worst: what counts where there is no number: the "lower" end, the "upper" one, or a number inside.
    """

    outcome: Callable[[Any], Any]
    row: Index = field(kw_only=True)
    value_range: tuple[float, float] = field(kw_only=True)
    declassified: str | None = field(default=None, kw_only=True)
    worst: str | float = field(default="lower", kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "value_range", require_range("value_range", self.value_range))
        if self.declassified is not None and not (isinstance(self.declassified, str) and self.declassified.strip()):
            raise InputError("declassified", self.declassified, "a sentence that says why outcomes need no protection")

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        if not adjacency.replaces:
            raise InputError("adjacency", adjacency, "REPLACE_ONE or BOUNDED_ROW_CHANGE", "Rows have no public position under another.")
        return self._mean().sensitivity(adjacency)

    def charged(self, event: Event, adjacency: Adjacency) -> Event:
        exact = isinstance(event, NotPrivateEvent)
        if exact is not (self.declassified is not None):
            raise InputError("declassified", self.declassified, "given for exact outcomes, and for no others")
        return DeclassifiedEvent(slots=event.slots) if exact else event

    def data_assumptions(self) -> Mapping[str, str]:
        if self.declassified is None:
            return {}
        return {"outcomes-declassified": f"the curator declares that outcomes need no protection: {self.declassified}"}

    def affine(self, units: int | None) -> tuple[Sequence[float], float]:
        return self._mean().affine(units)

    def public_inputs(self) -> dict[str, Any]:
        return {"value_range": list(self.value_range), "worst": self.worst}

    def part(self) -> int | None:
        return self.row

    def quanta(self) -> tuple[float, ...]:
        """The public lattice of the outcome."""
        return tuple(grid.quantum for grid in self._grids())

    def _evaluate(self, view: View, subject: Any) -> IntegerSum | Failure:
        if view.groups is not None:
            raise InputError("groups", "labels", "omitted: an outcome is one record's", "Give each unit one row.")
        if view.public_units is None or self.row >= view.public_units:
            raise InputError("row", self.row, f"below the number of records, {view.public_units}")
        if not view.can_take:
            raise InputError("records", "a container without single records", "tensors, arrays, DataFrames or lists of samples")
        try:
            value = scoring.tensor_of(self.outcome(view.only(self.row).records)).reshape(1, 1).to(torch.float64)
        except BaseException:  # whatever it is, it is this record's own
            value = _NOTHING
        return IntegerSum(sum_records([value.cpu()], self._grids()), self.quanta())

    def _grids(self) -> list[Lattice]:
        return self._mean().lattices(1)

    def _mean(self) -> ClippedMean:
        """What lattice, sensitivity and published value are taken from: the mean over one record."""
        return ClippedMean(lambda _, records: self.outcome(records), score_range=self.value_range, divisor=1.0, worst=self.worst)
