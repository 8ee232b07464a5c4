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

from dpbo.errors import InputError
from dpbo.privacy import Adjacency, Sensitivity, require_positive
from dpbo.queries import score_evaluation
from dpbo.queries.ball import LARGEST_CHUNK, MOST_DIMENSION, Ball, Resolution, chunk_rows, lattice_chunks, product, require_float64
from dpbo.queries.query import Failure, IntegerSum, Query, View
from dpbo.validation import at_least, checked

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
        score_evaluation.try_on(self._rows, None, example, self.dimension, count, lambda pieces: self._total(pieces, count))

    def _evaluate(self, view: View, subject: Any) -> IntegerSum | Failure:
        if view.groups is not None:
            raise InputError("unit", "groups of records", "single records", "Reduce each unit to one record first, for example its mean.")

        def summed(pieces: Iterable[torch.Tensor]) -> torch.Tensor:
            # on the records' own device, wherever a piece comes from: where one record fails, all come from the CPU
            parts = (part.to(view.device) for piece in pieces for part in torch.split(piece, LARGEST_CHUNK))
            return self._total(parts, view.public_units).cpu()

        total = score_evaluation.over_records(self._rows, None, view, self.dimension, summed)
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


# ========== MERGED What one step of k-means asks: how many records lie nearest to each public centre, and the sum of those records.
#
# A record z in the unit ball or cube (ball.py) contributes (e_k, e_k z) for the nearest centre k, exact in whole numbers; one that is not
# finite contributes zero. With weights (q, m) on counts and sums, and unit: one record:
#
# | | two centres or more, l2 | same centre, l2 | l1 (q = m = 1) |
# |---|---|---|---|
# | ball, ADD_OR_REMOVE_ONE | sqrt(q^2 + m^2) | | 1 + sqrt d |
# | ball, REPLACE_ONE | sqrt(2 q^2 + 2 m^2) | 2 m | 2 (1 + sqrt d) |
# | cube, ADD_OR_REMOVE_ONE | sqrt(q^2 + d m^2) | | 1 + d |
# | cube, REPLACE_ONE | sqrt(2 q^2 + 2 d m^2) | 2 sqrt(d) m | 2 (1 + d) |
#
# Proof. Different centres have disjoint coordinates, so squared lengths (for l1: lengths) add; the same centre: counts cancel and opposite
# vectors are 2 m max|z| apart. The sensitivity is the larger of the two columns, reached by both; with one centre only the second arises
# (or
# a record that counts as nothing, which is the add-or-remove case and never more). At q = m in the ball both are 2: counts cost nothing.
# In the Laplace mechanism the l1 of the weighted vector is (q + m max|z|_1) once or twice.
# Nearest is by the centres as they are kept: within 1e100 of zero, every coordinate in m bits beside its centre's largest, m from 20 to 33.
# With d 2^m 2^b <= 2^53 for a record's coordinates of b <= 20 bits, products of centres and records are exact in every order, on every
# device
# and library, so which centre a record is counted at depends on its own lattice vector alone.
# DPLloyd (Blum, Dwork, McSherry & Nissim 2005) is the cube with l1 noise. Cost: 4 n K d flops.
#

_FARTHEST = 1e100  # nearest to nothing, and far from overflow
_PRODUCT_BITS = 33  # of a centre's coordinate, less those of the dimension: 53 without the 20 of a record's


@checked
@dataclass(frozen=True, eq=False)
class ClusterSums(PointSums):
    """Counts and sums of the records nearest to each centre, row by row `K x (1 + d)` as one vector.

    Args:
        centers: `K x d`, float64, in the ball's coordinates; kept rounded, as above.
        weights: (q, m), each from 1e-3 to 1e3: a block of twice the weight gets half the noise.
    """

    centers: torch.Tensor = field(kw_only=True)
    weights: tuple[float, float] = field(default=(1.0, 1.0), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_float64("centers", self.centers)
        if self.centers.ndim != 2 or self.centers.shape[1] != self.dimension or not len(self.centers):
            raise InputError("centers", tuple(self.centers.shape), f"of shape K x {self.dimension}")
        object.__setattr__(self, "weights", tuple(require_positive("weights", weight, 1e-3, 1e3) for weight in self.weights))
        object.__setattr__(self, "centers", _rounded(self.centers.detach().cpu(), _PRODUCT_BITS - math.ceil(math.log2(self.dimension))))

    @property
    def components(self) -> int:
        return 1  # weights are one-hot, so they need no bits of their own

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        both = super().sensitivity(adjacency)  # l2, and refuses other relations
        q, m, d = *self._scaled(), self.dimension
        l1 = q + m * (d if self.ball.norm == "linf" else math.sqrt(d))
        replaced = adjacency is Adjacency.REPLACE_ONE
        return Sensitivity((2.0 * l1 if replaced else l1) * _UP, both.l2, max(q, 2.0 * m if replaced else m) * _UP, both.scale)

    def squared(self, adjacency: Adjacency) -> float:
        q, m = self._scaled()
        longest = self.dimension if self.ball.norm == "linf" else 1.0
        alone = q * q + longest * m * m
        if adjacency is not Adjacency.REPLACE_ONE:
            return alone
        different = 2.0 * alone if len(self.centers) > 1 else alone
        return max(different, 4.0 * longest * m * m)

    def units(self) -> torch.Tensor:
        q, m = self._scaled()
        return torch.tensor([1.0 / q] + [1.0 / m] * self.dimension, dtype=torch.float64).repeat(len(self.centers))

    def degree_of(self) -> torch.Tensor:
        return torch.tensor([0] + [1] * self.dimension).repeat(len(self.centers))

    def public_inputs(self) -> dict[str, Any]:
        return {**super().public_inputs(), "components": len(self.centers), "weights": list(self.weights)}

    def chunk(self, Z: torch.Tensor, alive: torch.Tensor, resolution: Resolution) -> torch.Tensor:
        offset = math.ldexp(0.5, resolution.bits) * self.centers.square().sum(1, keepdim=True)
        centers = self.centers.to(Z.device, non_blocking=True)
        nearest = (centers @ Z).sub_(offset.to(Z.device, non_blocking=True)).argmax(0)
        chosen = torch.zeros(len(centers), Z.shape[1], dtype=torch.float64, device=Z.device)
        chosen.scatter_(0, nearest.unsqueeze(0), alive.to(torch.float64).unsqueeze(0))
        return product(chosen, torch.cat([torch.ones_like(Z[:1]), Z])).flatten()

    def _scaled(self) -> tuple[float, float]:
        least = min(self.weights)
        return self.weights[0] / least, self.weights[1] / least


def _rounded(centers: torch.Tensor, bits: int) -> torch.Tensor:
    """Each row in whole multiples of a power of two of its own, at most 2^bits of them."""
    numbers = centers.clamp(-_FARTHEST, _FARTHEST).numpy()
    exponents = np.frexp(np.abs(numbers).max(1, keepdims=True))[1] - bits
    return torch.from_numpy(np.ldexp(np.rint(np.ldexp(numbers, -exponents)), exponents))


# ========== MERGED The sum of z z' over records: all that factor analysis and principal components ask (Analyze Gauss).
#
# A record z in the unit ball (ball.py) contributes the upper triangle of z z', exact in whole numbers; off the diagonal it counts sqrt 2
# times (features.py), so lengths are Frobenius norms.
# Theorem (l2; unit: one record). ADD_OR_REMOVE_ONE: |z z'|_F = |z|^2 <= 1. REPLACE_ONE: |z z' - y y'|_F^2 = |z|^4 + |y|^4 - 2 (z.y)^2 <= 2,
# reached by orthogonal unit vectors; a record that counts as nothing is z = 0. In the svec coordinates noise of standard deviation s is s
# on
# the diagonal and s / sqrt 2 off it. Source: Dwork, Talwar, Thakurta & Zhang 2014, whose noise off the diagonal is larger than need be.
#
# Cost: 2 n d^2 flops and two d x d matrices.
#


@checked
@dataclass(frozen=True, eq=False)
class SecondMoment(PointSums):
    """Sum over records of z z', its upper triangle row by row: d(d+1)/2 numbers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ball.norm != "l2":
            raise InputError("norm", self.ball.norm, "'l2' for second moments")

    @property
    def components(self) -> int:
        return 1

    def squared(self, adjacency: Adjacency) -> float:
        return 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0

    def units(self) -> torch.Tensor:
        i, j = torch.triu_indices(self.dimension, self.dimension)
        units = torch.full((len(i),), math.sqrt(0.5), dtype=torch.float64)  # torch.where of two numbers would be float32
        units[i == j] = 1.0
        return units

    def width(self) -> int:
        return self.dimension

    def degree_of(self) -> torch.Tensor:
        return torch.full((self.dimension * (self.dimension + 1) // 2,), 2)

    def chunk(self, Z: torch.Tensor, alive: torch.Tensor, resolution: Resolution) -> torch.Tensor:
        i, j = torch.triu_indices(self.dimension, self.dimension, device=Z.device)
        return product(Z, Z)[i, j]
