"""The sum of z z' over records: all that factor analysis and principal components ask (Analyze Gauss).

A record z in the unit ball (ball.py) contributes the upper triangle of z z', exact in whole numbers; off the diagonal it counts sqrt 2
times (features.py), so lengths are Frobenius norms.
Theorem (l2; unit: one record). ADD_OR_REMOVE_ONE: |z z'|_F = |z|^2 <= 1. REPLACE_ONE: |z z' - y y'|_F^2 = |z|^4 + |y|^4 - 2 (z.y)^2 <= 2,
reached by orthogonal unit vectors; a record that counts as nothing is z = 0. In the svec coordinates noise of standard deviation s is s on
the diagonal and s / sqrt 2 off it. Source: Dwork, Talwar, Thakurta & Zhang 2014, whose noise off the diagonal is larger than need be.

Cost: 2 n d^2 flops and two d x d matrices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from dpbo.checking import checked
from dpbo.errors import InputError
from dpbo.privacy import Adjacency
from dpbo.queries.ball import Resolution, product
from dpbo.queries.points import PointSums


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
