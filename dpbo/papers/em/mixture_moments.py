"""One step of EM for a mixture of Gaussians: the responsibility-weighted moments of all components,
in one joint answer.
"""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any

import numpy as np
import torch

from dpbo.errors import InputError
from dpbo.papers.em.moment_features import (
    Covariance,
    distance_squared,
    features,
    isometry,
    statistic_degrees,
    width_of,
)
from dpbo.papers.em.point_sums import (
    BlockWeight,
    ChunkSum,
    PointSums,
    in_least,
    of_counts_and_sums,
)
from dpbo.privacy import Adjacency, Sensitivity
from dpbo.queries.ball import FLOAT64, Resolution, product
from dpbo.queries.products import deterministic_matmul
from dpbo.validation import Within, checked_constructor

# of a logit below the largest: e^-700 rounds to no weight, and exp_ takes ten times as long where
# its result underflows
_SMALLEST = -700.0
_MOST_COMPONENTS = 1 << 10  # more would leave too few bits for weights and records
_ORDERS = ((0, 1, 2), (0, 1), (2,))
Orders = Annotated[tuple[int, ...], Within(f"one of {_ORDERS}", lambda value: value in _ORDERS)]


@checked_constructor
@dataclass(frozen=True, eq=False)
class MixtureMoments(PointSums):
    """Sums over records of gamma_k (1, z, z z'), `K x F` row by row as one vector.

    A record z in the unit ball (ball.py) contributes s = (gamma_k, gamma_k z, gamma_k z z')_k. Its
    responsibilities follow from public parameters theta, gamma_k ~ exp(theta_k . (1, z, z z')), and
    are whole multiples of 2^-a that sum to 1 exactly (the largest takes what rounding leaves; a =
    11, so rounding moves a sum by at most n / 2^12); z is whole multiples of 2^-b with |z| <= 1
    exactly. Products and sums of those are exact, so what follows holds for the released integers,
    whatever the floats that computed gamma did. A record that is not finite contributes zero.

    Theorem (l2, svec coordinates, blocks weighted by q, m, c; unit: one record). Let A = q^2 + m^2
    + c^2 and B = sup |s - s'|^2 over one-hot gamma = gamma' (`moment_features.distance_squared`;
    4.5 at q = m = c = 1).
        ADD_OR_REMOVE_ONE: sqrt A.
        REPLACE_ONE: sqrt max(2 A, B) for two components or more, sqrt max(A, B) for one.
    Proof. |s - s'|^2 is convex in (gamma, gamma'), so its sup is at extreme points of the
    simplices: one-hot, or zero for a record that counts as nothing. Two different components have
    disjoint coordinates: |s|^2 + |s'|^2 <= 2 A, attained by unit z. The same one: at most B, as the
    counts cancel. One of them zero: |s|^2 <= A. So sqrt 6, sqrt 4.5 and sqrt 3 at equal weights,
    each attained. With one component only records that count as nothing move the count, which is
    nearly free. Source: Park, Foulds, Chaudhuri & Welling 2017, who release 2K + 1 moments an
    iteration separately. Their code's covariance constant, 1/N_k, does not hold up: the sup is
    4/N_k.

    Tied covariances: the second moments of all records stand once, without gamma. The bounds are
    the same: records of two components have the squared distance 2 (q^2 + m^2) in the other blocks,
    and here |z z' - y y'|_F^2 <= 2, both at orthogonal unit vectors; of one component, at most B.

    With `orders` a block that is not answered has weight 0 in the theorem. Of counts and means
    alone l1 is q + m sqrt d, twice that under REPLACE_ONE (`point_sums.of_counts_and_sums`): for
    the Laplace mechanism.

    Cost: 4 n K F flops for F = 1 + d + d(d+1)/2 statistics, in chunks that stay in cache; nothing
    grows with n.

    Args:
        natural: theta, shape `K x F`, float64, finite: the log-density of each component, up to a
            term that all share, as a linear function of the statistics of z (moment_features.py).
        covariance: "full" (z_i z_j for i <= j), "tied" (these of all records together, after the
            components' others), "diag" (z_i^2) or "spherical" (|z|^2).
        weights: (q, m, c), each from 1e-3 to 1e3: a block of twice the weight gets half the noise.
        orders: which blocks are answered, by their degree in z: (0, 1, 2), (0, 1) or (2,).
        dimension, ball, vectors, box: as in `PointSums`; the ball's norm must be "l2".
    """

    _: KW_ONLY
    natural: Annotated[torch.Tensor, FLOAT64]
    covariance: Covariance = "full"
    weights: tuple[BlockWeight, BlockWeight, BlockWeight] = (1.0, 1.0, 1.0)
    orders: Orders = (0, 1, 2)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_l2("mixture moments")
        width = width_of(self.covariance, self.dimension)
        if (
            self.natural.ndim != 2
            or self.natural.shape[1] != width
            or not 1 <= len(self.natural) <= _MOST_COMPONENTS
        ):
            raise InputError(
                "natural",
                tuple(self.natural.shape),
                f"of shape K x {width} with K at most {_MOST_COMPONENTS}",
            )
        object.__setattr__(self, "natural", self.natural.detach().cpu().clone())

    @property
    def components(self) -> int:
        return len(self.natural)

    def squared_l2(self, adjacency: Adjacency) -> float:
        q, m, c = self._answered_weights()
        one_record = q * q + m * m + c * c
        if adjacency is not Adjacency.REPLACE_ONE:
            return one_record
        two_components = one_record if self.components == 1 else 2.0 * one_record
        return max(two_components, distance_squared((q, m, c), self.covariance))

    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        general = super().sensitivity(adjacency)  # its l2 is exact; it refuses other adjacencies
        if 2 in self.orders:
            return general
        q, m, _ = self._answered_weights()
        return of_counts_and_sums(general, q, m, math.sqrt(self.dimension), adjacency)

    def coordinate_scale(self) -> torch.Tensor:
        weights = torch.tensor(self.weights, dtype=torch.float64, device="cpu")[
            statistic_degrees(self.covariance, self.dimension)
        ]
        scale = min(self.weights) / (weights * isometry(self.covariance, self.dimension))
        return self._in_order(scale)

    def degrees(self) -> torch.Tensor:
        return self._in_order(statistic_degrees(self.covariance, self.dimension))

    def width(self) -> int:
        return self.natural.shape[1]

    def table(self, answer: torch.Tensor) -> torch.Tensor:
        """An answer as one row a component, `K x F`: what is not answered is 0, and what all share
        is divided among them.
        """
        own, shared = self._blocks()
        moments = answer.new_zeros(self.components, self.width())
        first = self.components * int(own.sum())
        moments[:, own] = answer[:first].reshape(self.components, -1)
        moments[:, shared] = answer[first:] / self.components
        return moments

    def public_inputs(self) -> dict[str, Any]:
        return {
            **super().public_inputs(),
            "components": self.components,
            "covariance": self.covariance,
            "weights": list(self.weights),
            "orders": list(self.orders),
        }

    def chunk_sum(self, resolution: Resolution, device: torch.device) -> ChunkSum:
        # theta for whole coordinates: column f times 2^(-bits * degree of f), exactly
        exponents = -resolution.bits * statistic_degrees(self.covariance, self.dimension)
        scaled = self.natural * torch.from_numpy(np.ldexp(1.0, exponents.numpy()))
        natural = scaled.to(device, non_blocking=True)
        own, shared = (block.to(device) for block in self._blocks())
        everything = bool(own.all())

        def sum_of(Z: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
            phi = features(Z, self.covariance)
            if self.components == 1:
                gamma = valid.to(torch.float64).unsqueeze(0)
            else:
                logits = deterministic_matmul(natural, phi)
                gamma = responsibilities(logits, valid, resolution.weight_bits)
            if everything:
                return product(gamma, phi).flatten()
            # a record's weights sum to one whole weight, or to zero if it counts as nothing
            together = product(gamma.sum(0, keepdim=True), phi[shared])
            return torch.cat([product(gamma, phi[own]).flatten(), together.flatten()])

        return sum_of

    def _answered_weights(self) -> tuple[float, float, float]:
        """(q, m, c) in units of the smallest, 0 for a block that is not answered."""
        weights = in_least(self.weights)
        for order in {0, 1, 2}.difference(self.orders):
            weights[order] = 0.0
        q, m, c = weights
        return q, m, c

    def _blocks(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Which statistics are answered for each component, and which once for all: two masks of
        length F.
        """
        degrees = statistic_degrees(self.covariance, self.dimension)
        answered = torch.isin(degrees, torch.tensor(self.orders, device="cpu"))
        shared = answered & (degrees == 2) & (self.covariance == "tied")
        return answered & ~shared, shared

    def _in_order(self, of_statistics: torch.Tensor) -> torch.Tensor:
        """Numbers of the F statistics, in the order of the answer."""
        own, shared = self._blocks()
        return torch.cat([of_statistics[own].repeat(self.components), of_statistics[shared]])


def responsibilities(logits: torch.Tensor, valid: torch.Tensor, bits: int) -> torch.Tensor:
    """softmax over components in whole multiples of 2^-bits: each column sums to 2^bits exactly, or
    is zero. `K x rows`.
    """
    top, largest = logits.max(0)
    gamma = (logits - top).clamp_(min=_SMALLEST).exp_()
    whole = float(1 << bits)
    gamma.mul_(whole / gamma.sum(0)).round_()
    gamma.scatter_add_(0, largest.unsqueeze(0), (whole - gamma.sum(0)).unsqueeze(0))
    valid = valid & (gamma.amin(0) >= 0.0) & (gamma.sum(0) == whole)
    if not valid.is_cuda and bool(valid.all()):
        return gamma
    return torch.where(valid, gamma, 0.0)
