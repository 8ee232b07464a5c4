"""The Laplace mechanism, drawn exactly: pure differential privacy.

Neighbours differ by at most `l1` in the coordinates divided by `scale`, so with scale parameter M *
l1 * scale_j in coordinate j every output's density changes by a factor of at most e^(1/M): pure
epsilon = 1 / M (Dwork, McSherry, Nissim & Smith 2006, Theorem 1); rounded as in `additive`, so with
no further term. The standard deviation is sqrt(2) times the scale.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import mpmath
import numpy as np

from dpbo.events import Event, LaplaceEvent
from dpbo.mechanisms.additive import IndependentNoise, PureNoise
from dpbo.mechanisms.mechanism import Floats
from dpbo.mechanisms.rounding import SymmetricDistribution
from dpbo.privacy import Sensitivity
from dpbo.validation import checked_constructor


def _quantile(p: Floats) -> Any:
    with np.errstate(divide="ignore"):
        return np.log(2 * p)


LAPLACE = SymmetricDistribution(_quantile, lambda p: mpmath.log(2 * p), lambda z: mpmath.exp(z) / 2)


@checked_constructor
@dataclass(frozen=True)
class LaplaceMechanism(IndependentNoise, PureNoise):
    """Laplace noise of scale `noise_multiplier` times l1: pure epsilon 1 / noise_multiplier."""

    base_distribution: ClassVar[SymmetricDistribution] = LAPLACE
    kind: ClassVar[type[Event]] = LaplaceEvent

    @staticmethod
    def norm(sensitivity: Sensitivity) -> float:
        return sensitivity.l1

    def simulated(self, count: int, random: np.random.Generator) -> Floats:
        return random.laplace(size=count)

    def std(self, dimension: int) -> float:
        return math.sqrt(2.0)
