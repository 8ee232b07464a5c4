"""How many units fall into each of m cells, from which F1, balanced accuracy and ROC AUC are
computed in public after the release.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any

import torch
from torch import Tensor

from dpbo.accounting.gdp import root_up
from dpbo.errors import InputError
from dpbo.privacy import Adjacency, Sensitivity
from dpbo.queries.clipped import ClippedMean
from dpbo.queries.query import Affine
from dpbo.queries.score_evaluation import tensor_of
from dpbo.validation import at_least, checked_constructor

# of ClippedMean's arguments: cells have equal noise, one range and no differences
_FIXED = {
    "score_range": None,
    "weights": None,
    "max_records_per_unit": 1,
    "worst": "lower",
    "reference": None,
    "largest_difference": None,
}


@dataclass(frozen=True)
class OneCell:
    """The score of m indicators made from a score that names cells: at most one indicator of a
    record is true, whatever it names.
    """

    score: Callable[[Any, Any], Any]
    cells: int

    @property
    def score_of_failed(self) -> OneCell | None:
        """The score where the score fails, if `score.worst_cell` names those records' cells."""
        worst_cell = getattr(self.score, "worst_cell", None)
        if worst_cell is None:
            return None
        return OneCell(lambda _, records: worst_cell(records), self.cells)

    def __call__(self, subject: Any, records: Any) -> Any:
        cells = self.score(subject, records)
        if isinstance(cells, Iterator):
            return map(self._indicators, cells)
        return self._indicators(cells)

    def _indicators(self, batch: Any) -> Tensor:
        cells = tensor_of(batch)
        if cells.ndim != 1:
            raise ValueError("one cell a record, shape (n,)")
        return cells.double().unsqueeze(1) == torch.arange(
            self.cells, dtype=torch.float64, device=cells.device
        )


@checked_constructor
@dataclass(frozen=True, eq=False)
class CellMeans(ClippedMean):
    """The share of units in each of m cells, divided in public.

    A record falls into one cell or into none, also where the score fails on it. A unit contributes
    the shares v_j of its records in each cell, truncated toward zero on the lattice, so v >= 0 and
    |v|_1 <= 1, whatever its records are (assumption `score-per-record`).

    Sensitivity of the sum. ADD_OR_REMOVE_ONE: |v|_2 <= |v|_1 <= 1, likewise linf. REPLACE_ONE: for
    two such vectors |v - w|_2^2 = |v|_2^2 + |w|_2^2 - 2 v.w <= 2, since v.w >= 0; |v - w|_1 <= 2;
    |v - w|_inf <= 1. Single records in two different cells attain all three. The box around m free
    scores in [0, 1] would give sqrt(m) where this gives sqrt(2).

    Args:
        score: `score(subject, records)` names one cell a record, 0 to cells - 1; any other number,
            or NaN, is no cell. Records on which it fails fall into none, or into the cells that
            `score.worst_cell(records)` names if it has that method.
        cells: m, from 2 to 10,000.
        subject, fit, divisor: as in `ClippedMean`.
    """

    per_unit = True
    score_range: Any = field(default=None, kw_only=True)
    cells: Annotated[int, at_least(2, 10_000)] = field(kw_only=True)

    def __post_init__(self) -> None:
        for name, fixed in _FIXED.items():
            value = getattr(self, name)
            if value is not None and not (isinstance(value, (int, str)) and value == fixed):
                raise InputError(name, value, "omitted: cells fix it")
        object.__setattr__(self, "score_range", [(0.0, 1.0)] * self.cells)
        super().__post_init__()

    @property
    def asked(self) -> OneCell:
        return OneCell(self.score, self.cells)

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        ones = (1.0,) * self.cells
        if adjacency.replaces:
            return Sensitivity(2.0, root_up(Fraction(2)), 1.0, ones)
        return Sensitivity(1.0, 1.0, 1.0, ones)

    def origins(self) -> tuple[float, ...]:
        return (0.0,) * self.cells

    def affine(self, units: int | None) -> Affine:
        return self.origins(), super().affine(units)[1]

    def public_inputs(self) -> dict[str, Any]:
        return {"cells": self.cells, "divisor": self.divisor}
