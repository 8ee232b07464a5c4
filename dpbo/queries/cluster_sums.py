"""What one step of k-means asks: how many records lie nearest to each public centre, and the sum of those records.

A record z in the unit ball or cube (ball.py) contributes (e_k, e_k z) for the nearest centre k, exact in whole numbers; one that is not
finite contributes zero. With weights (q, m) on counts and sums, and unit: one record:

| | two centres or more, l2 | same centre, l2 | l1 (q = m = 1) |
|---|---|---|---|
| ball, ADD_OR_REMOVE_ONE | sqrt(q^2 + m^2) | | 1 + sqrt d |
| ball, REPLACE_ONE | sqrt(2 q^2 + 2 m^2) | 2 m | 2 (1 + sqrt d) |
| cube, ADD_OR_REMOVE_ONE | sqrt(q^2 + d m^2) | | 1 + d |
| cube, REPLACE_ONE | sqrt(2 q^2 + 2 d m^2) | 2 sqrt(d) m | 2 (1 + d) |

Proof. Different centres have disjoint coordinates, so squared lengths (for l1: lengths) add; the same centre: counts cancel and opposite
vectors are 2 m max|z| apart. The sensitivity is the larger of the two columns, reached by both; with one centre only the second arises (or
a record that counts as nothing, which is the add-or-remove case and never more). At q = m in the ball both are 2: counts cost nothing.
In the Laplace mechanism the l1 of the weighted vector is (q + m max|z|_1) once or twice.
Nearest is by the centres as they are kept: within 1e100 of zero, every coordinate in m bits beside its centre's largest, m from 20 to 33.
With d 2^m 2^b <= 2^53 for a record's coordinates of b <= 20 bits, products of centres and records are exact in every order, on every device
and library, so which centre a record is counted at depends on its own lattice vector alone.
DPLloyd (Blum, Dwork, McSherry & Nissim 2005) is the cube with l1 noise. Cost: 4 n K d flops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from dpbo.checking import checked
from dpbo.errors import InputError
from dpbo.privacy import Adjacency, Sensitivity, require_positive
from dpbo.queries.ball import Resolution, product, require_float64
from dpbo.queries.points import PointSums

_UP = 1.0 + 1e-15
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
