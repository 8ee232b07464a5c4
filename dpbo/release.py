"""A release: the only type that crosses the wall. A noised value, the law of its noise, its cost, and its place in the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpbo.events import Event

if TYPE_CHECKING:
    import torch

    from dpbo.mechanisms.mechanism import Law


@dataclass(frozen=True, eq=False)
class Release:
    """One released vector of m numbers, or a table of n rows.

    Attributes:
        value: float64, shape `m` (`n x m` of a table); of a selection, the index that was chosen.
        variance: of the noise alone, float64, shape `m`, the same for every row; known, not estimated. Empty for a selection.
        lattice: what was drawn, in whole numbers, row after row: the same value as multiples of `law.grid`, or the index.
        law: of what was drawn.
        event: what the ledger was charged for the whole joint release.
        entry: number of the ledger entry; values released jointly share one.
    """

    value: torch.Tensor
    variance: torch.Tensor
    lattice: tuple[int, ...]
    law: Law
    event: Event
    entry: int
