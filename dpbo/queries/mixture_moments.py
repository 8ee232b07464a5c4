"""What one step of EM for a mixture of Gaussians asks: every component's responsibility-weighted moments, in one joint answer.

A record z in the unit ball (ball.py) contributes s = (gamma_k, gamma_k z, gamma_k z z')_k. Its responsibilities come from public
parameters theta, gamma_k ~ exp(theta_k . (1, z, z z')), and are whole multiples of 2^-a that sum to 1 exactly (the largest takes what
rounding leaves; a = 11, so rounding moves a sum by at most n / 2^12); z is whole multiples of 2^-b with |z| <= 1 exactly. Products and
sums of those are exact, so what follows holds for the released integers, whatever the floats that computed gamma did. A record that is not
finite contributes zero.

Theorem (l2, svec coordinates, blocks weighted by q, m, c; unit: one record). Let A = q^2 + m^2 + c^2 and B = sup |s - s'|^2 over one-hot
gamma = gamma' (features.distance_squared; 4.5 at q = m = c = 1).
    ADD_OR_REMOVE_ONE: sqrt A.    REPLACE_ONE: sqrt max(2 A, B) for two components or more, sqrt max(A, B) for one.
Proof. |s - s'|^2 is convex in (gamma, gamma'), so its sup is at extreme points of the simplices: one-hot, or zero for a record that counts
as nothing. Two different components have disjoint coordinates: |s|^2 + |s'|^2 <= 2 A, reached by unit z. The same one: at most B, as the
counts cancel. One of them zero: |s|^2 <= A. So sqrt 6, sqrt 4.5 and sqrt 3 at equal weights, each attained. With one component the count is
moved by records that count as nothing alone, and is nearly free. Source: Park, Foulds, Chaudhuri & Welling 2017, whose separate releases
(2K + 1 an iteration) and whose covariance constant 2/N_k do not hold up: the sup there is 4/N_k.

Cost: 4 n K F flops for F = 1 + d + d(d+1)/2 statistics, in chunks that stay in cache; nothing grows with n. On a GPU one pass where K F is
small (fused_moments.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from dpbo.errors import InputError
from dpbo.privacy import Adjacency, require_positive
from dpbo.queries.ball import Resolution, product, require_float64
from dpbo.queries.gpu.moments import can_fuse_moments, fused_moments
from dpbo.queries.integers import by_columns
from dpbo.queries.moment_features import (
    Weights,
    degrees,
    distance_squared,
    features,
    isometry,
    length_squared,
    require_covariance,
    width_of,
)
from dpbo.queries.point_sums import PointSums, powers
from dpbo.validation import checked

_MOST_COMPONENTS = 1 << 10  # more would leave weights and records too few bits


@checked
@dataclass(frozen=True, eq=False)
class MixtureMoments(PointSums):
    """Sums over records of gamma_k (1, z, z z'), row by row `K x F` as one vector.

    Args:
        natural: theta, `K x F`, float64, finite: log-density of each component, up to what all share, as a linear function of the
            statistics of z (features.py).
        covariance: "full" (z_i z_j for i <= j), "diag" (z_i^2) or "spherical" (|z|^2).
        weights: (q, m, c), each from 1e-3 to 1e3: a block of twice the weight gets half the noise.
    """

    natural: torch.Tensor = field(kw_only=True)
    covariance: str = field(default="full", kw_only=True)
    weights: Weights = field(default=(1.0, 1.0, 1.0), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ball.norm != "l2":
            raise InputError("norm", self.ball.norm, "'l2' for mixture moments")
        width = width_of(require_covariance(self.covariance), self.dimension)
        require_float64("natural", self.natural)
        if self.natural.ndim != 2 or self.natural.shape[1] != width or not 1 <= len(self.natural) <= _MOST_COMPONENTS:
            raise InputError("natural", tuple(self.natural.shape), f"of shape K x {width} with K at most {_MOST_COMPONENTS}")
        object.__setattr__(self, "weights", tuple(require_positive("weights", weight, 1e-3, 1e3) for weight in self.weights))
        object.__setattr__(self, "natural", self.natural.detach().cpu().clone())

    @property
    def components(self) -> int:
        return len(self.natural)

    def squared(self, adjacency: Adjacency) -> float:
        least = min(self.weights)
        q, m, c = (weight / least for weight in self.weights)
        alone, same = length_squared((q, m, c)), distance_squared((q, m, c), self.covariance)
        both = alone if self.components == 1 else 2.0 * alone
        return max(both, same) if adjacency is Adjacency.REPLACE_ONE else alone

    def units(self) -> torch.Tensor:
        weights = torch.tensor(self.weights, dtype=torch.float64)[degrees(self.covariance, self.dimension)]
        return (min(self.weights) / (weights * isometry(self.covariance, self.dimension))).repeat(self.components)

    def degree_of(self) -> torch.Tensor:
        return degrees(self.covariance, self.dimension).repeat(self.components)

    def public_inputs(self) -> dict[str, Any]:
        mixture = {"components": self.components, "covariance": self.covariance, "weights": list(self.weights)}
        return {**super().public_inputs(), **mixture}

    def chunk(self, Z: torch.Tensor, alive: torch.Tensor, resolution: Resolution) -> torch.Tensor:
        phi = features(Z, 1.0, self.covariance)
        if self.components == 1:
            return product(alive.to(torch.float64).unsqueeze(0), phi).flatten()
        scaled = self._scaled(resolution).to(Z.device, non_blocking=True)
        return product(responsibilities(by_columns(scaled, phi), alive, resolution.weight_bits), phi).flatten()

    def summed(self, X: torch.Tensor, resolution: Resolution) -> torch.Tensor:
        if can_fuse_moments(X.device, self.components, self.dimension, self.covariance):
            return fused_moments(X, self._scaled(resolution), self.ball, resolution, self.covariance)
        return super().summed(X, resolution)

    def _scaled(self, resolution: Resolution) -> torch.Tensor:
        """theta for statistics of whole coordinates."""
        return self.natural * powers(-resolution.bits * degrees(self.covariance, self.dimension))


def responsibilities(logits: torch.Tensor, alive: torch.Tensor, bits: int) -> torch.Tensor:
    """softmax over components in whole multiples of 2^-bits: each column sums to 2^bits exactly, or is zero. `K x rows`."""
    top, largest = logits.max(0)
    gamma = (logits - top).exp_()
    whole = float(1 << bits)
    gamma.mul_(whole / gamma.sum(0)).round_()
    gamma.scatter_add_(0, largest.unsqueeze(0), (whole - gamma.sum(0)).unsqueeze(0))
    sound = alive & (gamma.amin(0) >= 0.0) & (gamma.sum(0) == whole)
    return torch.where(sound, gamma, 0.0)
