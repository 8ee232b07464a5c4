"""The Gaussian mechanism, drawn exactly.

Law: released_j = h_j round((S_j q_j + N_j) / h_j) with independent N_j ~ Normal(0, std_j^2), where S_j q_j is the query's exact sum and
std_j = noise_multiplier * l2 sensitivity * scale_j, rounded up. The grid h_j is a power of two with std_j / h_j in [2^20, 2^21),
made from public numbers only. Neighbours differ by at most `l2` in the coordinates divided by `scale`, so before rounding this is the
Gaussian mechanism with mu = 1 / noise_multiplier (Dong, Roth & Su 2022, Theorem 2.7, in any dimension), and rounding is
post-processing: exactly mu-GDP, with no rounding term.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpbo.errors import InputError
from dpbo.events import GaussianEvent
from dpbo.mechanisms.mechanism import Entropy, Mechanism, NoiseLaw
from dpbo.mechanisms.rounded_normal import rounded_normal
from dpbo.privacy import Sensitivity, require_positive

_GRID_BITS = 20
_LEAST, _MOST = 0.01, 2.0**20
_SMALLEST = 1e-150  # far from where float64 loses digits
_ROUND_UP = 1.0 + 2.0**-48  # covers every float rounding between the public numbers and std


@dataclass(frozen=True)
class GaussianMechanism(Mechanism):
    """Gaussian noise of `noise_multiplier` (0.01 to 2^20) times the query's l2 sensitivity; see `calibrate`."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", require_positive("noise_multiplier", self.noise_multiplier, _LEAST, _MOST))

    def event(self, slots: int = 1) -> GaussianEvent:
        return GaussianEvent(self.noise_multiplier, slots)

    def law(self, sensitivity: Sensitivity, quanta: Sequence[float]) -> NoiseLaw:
        std = tuple(self.noise_multiplier * sensitivity.l2 * unit * _ROUND_UP for unit in sensitivity.scale)
        law = NoiseLaw("gaussian", std, tuple(_grid(s) for s in std))
        reachable = all(_SMALLEST < s < 1 / _SMALLEST for s in (*sensitivity.scale, *std))
        if not reachable or not all(0 < shift <= 53 for shift in _shifts(quanta, law.grid)):
            raise InputError("noise_multiplier", self.noise_multiplier, "such that noise and clipping fit one 64-bit lattice",
                             "Use a smaller max_records_per_unit, or ranges and weights closer together.")  # fmt: skip
        return law

    def _sample(
        self, numerators: Sequence[int] | NDArray[np.int64], quanta: Sequence[float], law: NoiseLaw, entropy: Entropy
    ) -> NDArray[np.int64]:
        exact, shift = np.asarray(numerators, dtype=np.int64), _shifts(quanta, law.grid)
        whole = exact >> shift
        fractions = np.ldexp((exact - (whole << shift)).astype(np.float64), -shift)  # below 2^53 units: exact
        return whole + rounded_normal(fractions, np.asarray(law.std) / np.asarray(law.grid), entropy)


def _grid(std: float) -> float:
    """The power of two h with std / h in [2^20, 2^21)."""
    return math.ldexp(1.0, math.frexp(std)[1] - 1 - _GRID_BITS)


def _shifts(quanta: Sequence[float], grid: Sequence[float]) -> NDArray[np.int64]:
    """How many quanta make one grid step, as powers of two."""
    return (np.frexp(grid)[1] - np.frexp(quanta)[1]).astype(np.int64)
