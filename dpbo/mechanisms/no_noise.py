"""No noise: exact answers, so that a non-private baseline runs through the same code. They have no
privacy.

The ledger records the release as an event that no budget pays for, and every later statement says
"not bounded".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpbo.errors import InputError
from dpbo.events import NotPrivateEvent
from dpbo.mechanisms.mechanism import (
    AdditiveDistribution,
    Affine,
    Entropy,
    Integers,
    Mechanism,
    Numerators,
    Published,
    on_the_host,
)
from dpbo.privacy import Sensitivity
from dpbo.validation import checked, checked_constructor


@checked_constructor
@dataclass(frozen=True)
class NoNoise(Mechanism):
    """Releases the exact sum, without privacy.

    Args:
        allow_not_private: must be True, which declares that these records need no protection.
    """

    allow_not_private: bool = False

    def __post_init__(self) -> None:
        if self.allow_not_private is not True:
            raise InputError(
                "allow_not_private",
                self.allow_not_private,
                "True, to publish exact answers",
                "They are not private.",
            )

    @checked
    def event(self, count: int = 1) -> NotPrivateEvent:
        return NotPrivateEvent(count=count)

    def distribution(
        self, sensitivity: Sensitivity, quanta: Sequence[float]
    ) -> AdditiveDistribution:
        zeros = (0.0,) * len(quanta)
        name = self.event().mechanism
        return AdditiveDistribution(name, zeros, zeros, tuple(quanta), sensitivity.block)

    def publish(self, drawn: Integers, distribution: Any, affine: Affine) -> Published:
        offset, gain = affine
        value = np.asarray(offset) + drawn * np.asarray(distribution.grid) * gain
        return value, np.zeros(len(distribution.grid))

    def _sample(
        self, numerators: Numerators, quanta: Sequence[float], distribution: Any, entropy: Entropy
    ) -> Integers:
        exact = on_the_host(numerators)
        if distribution.block is None:
            return exact
        return exact.reshape(-1, distribution.block)
