"""A release: the only type that crosses the wall. A noised value, the law of its noise, its cost, and its place in the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpbo.events import Event

if TYPE_CHECKING:
    import torch

    from dpbo.mechanisms.mechanism import NoiseLaw


@dataclass(frozen=True, eq=False)
class Release:
    """One released vector of m numbers.

    Attributes:
        value: float64, shape `m`.
        variance: of the noise alone, float64, shape `m`; known, not estimated.
        lattice: the same value before public scaling, as whole multiples of `law.grid`.
        law: the law of the noise on the released sum.
        event: what the ledger was charged for the whole joint release.
        entry: number of the ledger entry; values released jointly share one.
    """

    value: torch.Tensor
    variance: torch.Tensor
    lattice: tuple[int, ...]
    law: NoiseLaw
    event: Event
    entry: int
