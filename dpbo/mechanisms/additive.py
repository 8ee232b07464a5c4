"""Base of the mechanisms that add noise to an exact sum: Gaussian, Laplace and l2-norm Laplace.

Law: released_j = h_j round((S_j q_j + N_j) / h_j) with N_j of scale noise_multiplier * sensitivity
* scale_j, rounded up, where S_j q_j is the query's exact sum and the sensitivity is taken in the
mechanism's own norm. The grid h_j is a power of two with scale / h_j in [2^20, 2^21), made from
public numbers only. Before rounding this is the textbook mechanism; rounding is post-processing.

A table whose neighbours differ in one row (Sensitivity.block) gets noise row by row. All other rows
have the same law under both neighbours, so the guarantee is that of one row, whatever the number of
rows. Vector noise is drawn for each row as a vector.
"""

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from dpbo.accounting.gdp import rounded_up
from dpbo.errors import InputError
from dpbo.events import Event
from dpbo.mechanisms.mechanism import (
    AdditiveDistribution,
    Affine,
    Entropy,
    Epsilon,
    Floats,
    Integers,
    Mechanism,
    Numerators,
    Published,
    on_the_host,
)
from dpbo.mechanisms.rounding import SymmetricDistribution, rounded
from dpbo.privacy import Sensitivity
from dpbo.validation import between, checked, checked_constructor

_GRID_BITS = 20
LEAST_MULTIPLIER = 0.01
MOST_MULTIPLIER = 2.0**20
# Far from where float64 loses digits.
_SMALLEST = 1e-150
# Covers every float rounding between the public numbers and the scale.
ROUND_UP = 1.0 + 2.0**-48


@checked_constructor
@dataclass(frozen=True)
class AdditiveMechanism(Mechanism):
    """Noise of scale `noise_multiplier` times the query's sensitivity.

    Args:
        noise_multiplier: from 0.01 to 2^20; `dpbo.accounting.calibrate` computes it from a budget.
    """

    noise_multiplier: Annotated[float, between(LEAST_MULTIPLIER, MOST_MULTIPLIER)]
    kind: ClassVar[type[Event]]

    @staticmethod
    @abc.abstractmethod
    def norm(sensitivity: Sensitivity) -> float:
        """The sensitivity in the norm that this noise needs."""

    @abc.abstractmethod
    def std(self, dimension: int) -> float:
        """Standard deviation of each coordinate of a vector of this dimension, at scale 1."""

    @abc.abstractmethod
    def noise(self, fractions: Floats, scale: Floats, entropy: Entropy) -> Integers:
        """floor(fraction_j + N_j + 1/2), exactly; fractions in [0, 1), `d` or `rows x d`, and
        scales, `d`, in units of the result.
        """

    @checked
    def event(self, count: int = 1) -> Event:
        return self.kind(self.noise_multiplier, count)

    def scale(self, sensitivity: Sensitivity) -> tuple[float, ...]:
        """Scale parameter of the noise on each number."""
        return tuple(
            self.noise_multiplier * self.norm(sensitivity) * unit * ROUND_UP
            for unit in sensitivity.scale
        )

    def distribution(
        self, sensitivity: Sensitivity, quanta: Sequence[float]
    ) -> AdditiveDistribution:
        scale = self.scale(sensitivity)
        std = self.std(len(scale))
        distribution = AdditiveDistribution(
            self.kind.mechanism,
            scale,
            tuple(s * std for s in scale),
            tuple(map(grid_of, scale)),
            sensitivity.block,
        )
        sizes = (*sensitivity.scale, *scale)
        shifts = _shifts(quanta, distribution.grid)
        reachable = _SMALLEST < min(sizes) and max(sizes) < 1 / _SMALLEST
        if not (reachable and 0 < shifts.min() and shifts.max() <= 53):
            raise InputError(
                "noise_multiplier",
                self.noise_multiplier,
                "such that noise and clipping fit one 64-bit lattice",
                "Use a smaller max_records_per_unit, or ranges and weights that differ less.",
            )
        return distribution

    def publish(self, drawn: Integers, distribution: Any, affine: Affine) -> Published:
        offset, gain = affine
        value = np.asarray(offset) + drawn * np.asarray(distribution.grid) * gain
        variance = (np.asarray(distribution.std) * gain) ** 2
        if distribution.block is None:
            # one scale may serve all coordinates
            variance = np.broadcast_to(variance, value.shape).copy()
        return value, variance

    def _sample(
        self, numerators: Numerators, quanta: Sequence[float], distribution: Any, entropy: Entropy
    ) -> Integers:
        exact = on_the_host(numerators)
        shift = _shifts(quanta, distribution.grid)
        if distribution.block is not None:
            exact = exact.reshape(-1, distribution.block)
        whole = exact >> shift
        # Below 2^53 units: exact.
        fractions = np.ldexp((exact - (whole << shift)).astype(np.float64), -shift)
        return whole + self.noise(
            fractions, np.asarray(distribution.scale) / np.asarray(distribution.grid), entropy
        )


@checked_constructor
@dataclass(frozen=True)
class PureNoise(AdditiveMechanism):
    """Noise that is pure epsilon = 1 / noise_multiplier."""

    @classmethod
    @checked
    def of(cls, epsilon: Epsilon) -> Self:
        """The mechanism of this pure epsilon: noise_multiplier 1 / epsilon, rounded up."""
        return cls(rounded_up(1 / Fraction(epsilon)))


@dataclass(frozen=True)
class IndependentNoise(AdditiveMechanism):
    """Noise with one independent draw of a symmetric law for each coordinate."""

    base_distribution: ClassVar[SymmetricDistribution]

    @abc.abstractmethod
    def simulated(self, count: int, random: np.random.Generator) -> Floats:
        """Draws of the noise at scale 1, but for the rounding of floats: to simulate with public
        numbers, never to release."""

    def exceeded(self, probability: float) -> float:
        """The number that a draw exceeds with this probability, from 1e-100 to 1/2, at scale 1."""
        return -float(self.base_distribution.quantile(np.array(probability)))

    def noise(self, fractions: Floats, scale: Floats, entropy: Entropy) -> Integers:
        wide = np.broadcast_to(scale, fractions.shape)
        return rounded(
            self.base_distribution, fractions.reshape(-1), wide.reshape(-1), entropy
        ).reshape(fractions.shape)


def grid_of(scale: float) -> float:
    """The power of two h with scale / h in [2^20, 2^21)."""
    return math.ldexp(1.0, math.frexp(scale)[1] - 1 - _GRID_BITS)


def _shifts(quanta: Sequence[float], grid: Sequence[float]) -> Integers:
    """How many quanta make one grid step, as powers of two."""
    return (np.frexp(grid)[1] - np.frexp(quanta)[1]).astype(np.int64)
