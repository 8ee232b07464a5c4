"""How many units fall into each of m cells: what F1, balanced accuracy and ROC AUC are computed from, in public, after release.

A record falls into one cell or into none, also where the score fails on it; a unit contributes the shares v_j of its records in each
cell, truncated toward zero on the lattice. So v >= 0 and |v|_1 <= 1, whatever its records are (assumption `score-per-record`).
Sensitivity of the sum. ADD_OR_REMOVE_ONE: |v|_2 <= |v|_1 <= 1, likewise linf. REPLACE_ONE: for two such vectors |v - w|_2^2 =
|v|_2^2 + |w|_2^2 - 2 v.w <= 2, since v.w >= 0; |v - w|_1 <= 2; |v - w|_inf <= 1. Single records in two different cells reach all three.
The box around m free scores in [0, 1] would give sqrt(m) where this gives sqrt(2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any

import torch

from dpbo.errors import InputError
from dpbo.privacy import Adjacency, Sensitivity
from dpbo.queries.clipped import ClippedMean, root_up
from dpbo.queries.score_evaluation import tensor_of
from dpbo.validation import at_least, checked, require


@dataclass(frozen=True)
class OneCell:
    """The score of m indicators that belongs to a score naming cells: at most one of a row is true, whatever is named."""

    score: Callable[[Any, Any], Any]
    cells: int

    @property
    def score_of_failed(self) -> OneCell | None:
        """What counts for records that the score fails on, where it says so."""
        named = getattr(self.score, "worst_cell", None)
        return None if named is None else OneCell(lambda _, records: named(records), self.cells)

    def __call__(self, subject: Any, records: Any) -> Any:
        named = self.score(subject, records)
        return (self._rows(batch) for batch in named) if isinstance(named, Iterator) else self._rows(named)

    def _rows(self, batch: Any) -> torch.Tensor:
        places = tensor_of(batch)
        if places.ndim != 1:
            raise ValueError("one cell a record, shape (n,)")
        return places.double().unsqueeze(1) == torch.arange(self.cells, dtype=torch.float64, device=places.device)


@checked
@dataclass(frozen=True, eq=False)
class CellMeans(ClippedMean):
    """The share of units in each cell, divided in public.

    Args:
        score: `score(subject, records)` names one cell a record, 0 to cells - 1; anything else, NaN too, is no cell. Records on
            which it fails fall into none, or into the cells that `score.worst_cell(records)` names, where it has that.
        cells: how many there are, two or more.
        subject, fit, divisor: as in `ClippedMean`.
    """

    score_range: Any = field(default=None, kw_only=True)
    cells: int = field(kw_only=True)

    def __post_init__(self) -> None:
        require("cells", self.cells, Annotated[int, at_least(2, 10_000)])
        require("score_range", self.score_range, tuple[float, float] | None)
        if self.score_range not in (None, (0, 1)) or self.max_records_per_unit != 1 or self.worst != "lower":
            raise InputError("cells", self.cells, "given without score_range, max_records_per_unit and worst", "Cells fix these.")
        if not isinstance(self.score, OneCell):
            object.__setattr__(self, "score", OneCell(self.score, self.cells))
        object.__setattr__(self, "score_range", [(0.0, 1.0)] * self.cells)
        super().__post_init__()
        if len(set(self.weights or ())) > 1:
            raise InputError("weights", "several", "left out with cells", "They are released with equal noise.")

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        ones = (1.0,) * self.cells
        match adjacency:
            case Adjacency.REPLACE_ONE | Adjacency.BOUNDED_ROW_CHANGE:
                return Sensitivity(2.0, root_up(Fraction(2)), 1.0, ones)
            case Adjacency.ADD_OR_REMOVE_ONE:
                return Sensitivity(1.0, 1.0, 1.0, ones)

    def origins(self) -> tuple[float, ...]:
        return (0.0,) * self.cells

    def affine(self, units: int | None) -> tuple[Sequence[float], float]:
        return self.origins(), super().affine(units)[1]

    def public_inputs(self) -> dict[str, Any]:
        return {"cells": self.cells, "divisor": self.divisor}
