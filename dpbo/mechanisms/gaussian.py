"""The Gaussian mechanism, drawn exactly.

Neighbours differ by at most `l2` in the coordinates divided by `scale`, so with standard deviation
M * l2 * scale_j it is mu-GDP with mu = 1 / M, in any dimension (Dong, Roth & Su 2022, Theorem 2.7);
rounded as in `additive`, so with no further term.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import mpmath
import numpy as np
import scipy

from dpbo.events import Event, GaussianEvent
from dpbo.mechanisms.additive import IndependentNoise
from dpbo.mechanisms.mechanism import Floats
from dpbo.mechanisms.rounding import SymmetricDistribution
from dpbo.privacy import Sensitivity
from dpbo.validation import checked_constructor

# SciPy's `ndtri` takes a logarithm below this, a polynomial above: four times as long (measured).
_TAIL = math.exp(-2.0)


def _quantile(p: Floats) -> Any:
    """ndtri, both branches for every element, so that the time does not depend on the draw."""
    near = p > _TAIL
    return np.where(
        near,
        scipy.special.ndtri(np.where(near, p, 0.25)),
        scipy.special.ndtri(np.where(near, 0.01, p)),
    )


NORMAL = SymmetricDistribution(
    _quantile,
    lambda p: mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1),
    lambda z: mpmath.erfc(-z / mpmath.sqrt(2)) / 2,
)
NORMALS = SymmetricDistribution(lambda p: scipy.special.ndtri(p), NORMAL.exact, NORMAL.cdf)
"""The same law for long vectors, a third faster. Its time depends on how many of all draws lie far
from zero, on no single draw.
"""


@checked_constructor
@dataclass(frozen=True)
class GaussianMechanism(IndependentNoise):
    """Gaussian noise of standard deviation `noise_multiplier` times the l2 sensitivity: (1 /
    noise_multiplier)-GDP.
    """

    base_distribution: ClassVar[SymmetricDistribution] = NORMAL
    kind: ClassVar[type[Event]] = GaussianEvent

    @staticmethod
    def norm(sensitivity: Sensitivity) -> float:
        return sensitivity.l2

    def simulated(self, count: int, random: np.random.Generator) -> Floats:
        return random.standard_normal(count)

    def std(self, dimension: int) -> float:
        return 1.0
