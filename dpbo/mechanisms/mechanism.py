"""Mechanism: a law of noise, as a multiple of the sensitivity that the query proves.
`GaussianMechanism(8.0)` is one.

It knows its event (what the ledger charges) and its noise scale (multiplier x sensitivity); nobody
passes a standard deviation. Only the curator calls `_sample`, after the charge is durable.
"""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dpbo.events import Event
from dpbo.privacy import Sensitivity
from dpbo.validation import between

# Of a release by a mechanism of pure privacy.
Epsilon = Annotated[float, between(1e-300, 1e300)]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
# 64 random bits each.
Words = NDArray[np.uint64]
# Returns this many unpredictable bytes.
Entropy = Callable[[int], bytes]
# `int64`, on any device.
Numerators = Sequence[int] | Integers | Tensor
# (offset, gain).
Affine = tuple[Sequence[float], float]
# (value, variance).
Published = tuple[Floats, Floats]


class NoiseDistribution(Protocol):
    """The public law of what is drawn, fit for the ledger."""

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class AdditiveDistribution:
    """The public law of one released vector: per coordinate its scale parameter, standard deviation
    and release grid.

    With `block` the vector is a table with rows of this many coordinates, and each row has
    independent noise of this law.
    """

    name: str
    scale: tuple[float, ...]
    std: tuple[float, ...]
    grid: tuple[float, ...]
    block: int | None = None

    def to_json(self) -> dict[str, Any]:
        """For the ledger."""
        numbers = {
            "name": self.name,
            "scale": list(self.scale),
            "std": list(self.std),
            "grid": list(self.grid),
        }
        if self.block is None:
            return numbers
        return {**numbers, "block": self.block}


class Mechanism(abc.ABC):
    """A law of noise. A subclass states its guarantee, and why its sampling is exact."""

    @abc.abstractmethod
    def event(self, count: int = 1) -> Event:
        """What `count` joint or successive releases cost."""

    @abc.abstractmethod
    def distribution(self, sensitivity: Sensitivity, quanta: Sequence[float]) -> NoiseDistribution:
        """The noise for this sensitivity on sums in whole `quanta`; public. Raises InputError where
        it cannot be drawn exactly.
        """

    @abc.abstractmethod
    def publish(self, drawn: Integers, distribution: Any, affine: Affine) -> Published:
        """(value, variance) of a draw, in the query's own units. Public post-processing."""

    @abc.abstractmethod
    def _sample(
        self, numerators: Numerators, quanta: Sequence[float], distribution: Any, entropy: Entropy
    ) -> Integers:
        """A draw in whole numbers: multiples of `distribution.grid`, or the index of a choice."""


def on_the_host(numerators: Numerators) -> Integers:
    """The numerators as an array on the CPU, where noise is drawn."""
    if isinstance(numerators, Tensor):
        numerators = numerators.cpu().numpy()
    return np.asarray(numerators, dtype=np.int64)
