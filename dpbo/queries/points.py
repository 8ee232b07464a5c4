"""What questions about points share: records as vectors in a public ball, sums of exact whole numbers, chunk by chunk.

A record contributes one vector that depends on its own numbers and on public parameters; the sum over records is exact whatever the order,
chunk, shard or device (ball.py). Units that are groups of records are refused: a unit's mean of whole numbers is not whole, so the exact
sensitivities would not hold; reduce each unit to one record first.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import torch

from dpbo.checking import at_least
from dpbo.errors import InputError
from dpbo.privacy import Adjacency, Sensitivity
from dpbo.queries import scoring
from dpbo.queries.ball import LARGEST_CHUNK, MOST_DIMENSION, Ball, Resolution, chunk_rows, lattice_chunks
from dpbo.queries.query import Failure, IntegerSum, Query, View

_UP = 1.0 + 1e-15


@dataclass(frozen=True, eq=False)
class PointSums(Query):
    """Sums over records of whole-number statistics of z, the record's place in the ball. Published in z's units, never divided.

    Args:
        dimension: d, public.
        ball: where records are clipped to.
        vectors: `vectors(records)` gives `n x d` where records are no such tensor or array themselves; each record by itself.
    """

    dimension: Annotated[int, at_least(1, MOST_DIMENSION)]
    ball: Ball = field(kw_only=True)
    vectors: Callable[[Any], Any] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self.ball.require_dimension(self.dimension)

    @property
    @abc.abstractmethod
    def components(self) -> int:
        """K."""

    @abc.abstractmethod
    def squared(self, adjacency: Adjacency) -> float:
        """Squared l2 sensitivity of the vector whose coordinates are divided by `units`."""

    @abc.abstractmethod
    def units(self) -> torch.Tensor:
        """What each coordinate of the answer is measured in, at most 1."""

    @abc.abstractmethod
    def degree_of(self) -> torch.Tensor:
        """Degree in z of each coordinate of the answer; those of degree p are multiples of 2^-(weight_bits + p bits)."""

    @abc.abstractmethod
    def chunk(self, Z: torch.Tensor, alive: torch.Tensor, resolution: Resolution) -> torch.Tensor:
        """The chunk's sum in whole numbers, int64, from Z `d x rows` in whole numbers and which of its columns are records."""

    def summed(self, X: torch.Tensor, resolution: Resolution) -> torch.Tensor:
        """The sum over records `n x d` in whole numbers, int64."""
        total = torch.zeros(len(self.units()), dtype=torch.int64, device=X.device)
        for Z, alive in lattice_chunks([X], self.ball, resolution.bits, chunk_rows(max(self.width(), self.components), X.device.type)):
            total += self.chunk(Z, alive, resolution)
        return total

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        if adjacency not in (Adjacency.REPLACE_ONE, Adjacency.ADD_OR_REMOVE_ONE):
            raise InputError("adjacency", adjacency, "REPLACE_ONE or ADD_OR_REMOVE_ONE")
        l2, units = math.sqrt(self.squared(adjacency)) * _UP, tuple(self.units().tolist())
        return Sensitivity(l2 * math.sqrt(len(units)) * _UP, l2, l2, units)  # of so many coordinates l1 is at most the root times l2

    def affine(self, units: int | None) -> tuple[Sequence[float], float]:
        return (0.0,) * len(self.units()), 1.0

    def public_inputs(self) -> dict[str, Any]:
        return {"dimension": self.dimension, "radius": self.ball.radius, "norm": self.ball.norm}

    def adds_up(self) -> bool:
        return True

    def width(self) -> int:
        """Numbers a row in work on a chunk."""
        return len(self.units()) // self.components

    def resolution(self, units: int | None) -> Resolution:
        """The public steps for so many public units (None: private)."""
        return Resolution.of(int(self.degree_of().max()), self.components, units)

    def quanta(self, units: int | None) -> tuple[float, ...]:
        """The public step of each coordinate of the answer, alike for all."""
        return (math.ldexp(1.0, -self.resolution(units).lattice_bits),) * len(self.units())

    def probe(self, example: Any, count: int, subject: Any) -> None:
        scoring.try_on(self._rows, None, example, self.dimension, count, lambda pieces: self._total(pieces, count))

    def _evaluate(self, view: View, subject: Any) -> IntegerSum | Failure:
        if view.groups is not None:
            raise InputError("unit", "groups of records", "single records", "Reduce each unit to one record first, for example its mean.")

        def summed(pieces: Iterable[torch.Tensor]) -> torch.Tensor:
            # on the records' own device, wherever a piece comes from: where one record fails, all come from the CPU
            parts = (part.to(view.device) for piece in pieces for part in torch.split(piece, LARGEST_CHUNK))
            return self._total(parts, view.public_units).cpu()

        total = scoring.over_records(self._rows, None, view, self.dimension, summed)
        return total if isinstance(total, Failure) else IntegerSum(total, self.quanta(view.public_units))

    def _rows(self, _subject: Any, records: Any) -> Any:
        return records if self.vectors is None else self.vectors(records)

    def _total(self, pieces: Iterable[torch.Tensor], units: int | None) -> torch.Tensor:
        steps, width = self.resolution(units), len(self.units())
        total: torch.Tensor | None = None
        for piece in pieces:
            part = self.summed(piece, steps)
            total = part if total is None else total.add_(part)
        if total is None:
            return torch.zeros(width, dtype=torch.int64)
        return total << (steps.lattice_bits - steps.weight_bits - steps.bits * self.degree_of()).to(total.device)


def powers(exponents: torch.Tensor) -> torch.Tensor:
    """2^exponents, exactly: float64."""
    return torch.from_numpy(np.ldexp(1.0, exponents.numpy()))
