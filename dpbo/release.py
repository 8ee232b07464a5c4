"""A release: a noised answer, the law of its noise, what it cost, and its entry in the ledger."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from dpbo.events import Event
from dpbo.mechanisms.mechanism import Mechanism, NoiseDistribution
from dpbo.queries.query import Query


@dataclass(frozen=True, eq=False)
class Release:
    """What `Curator.release` returns: one noised vector of m numbers, or a table of n rows.

    Attributes:
        value: float64, shape `m` (`n x m` of a table); of a choice, the index that was chosen.
        variance: of the noise, float64, shape `m`, the same for every row; known, not estimated.
            Empty for a choice.
        lattice: what was drawn, in whole numbers, row after row: the value in multiples of
            `distribution.grid`, or the index.
        distribution: of the noise.
        event: what the ledger was charged for all that was released jointly.
        entry: number of the ledger entry; values released jointly share one.
    """

    value: Tensor
    variance: Tensor
    lattice: tuple[int, ...]
    distribution: NoiseDistribution
    event: Event
    entry: int


class CuratorLike(Protocol):
    """A `Curator`, as models and acquisition functions see it: they hand it a query and get the
    release, and import nothing of it.
    """

    def release(self, question: Query, mechanism: Mechanism) -> Release:
        """The noised answer, as in `Curator.release`."""
