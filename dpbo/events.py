"""What a release costs, as data: the event that goes to the ledger and that any accountant can recompute.

Floats are kept as they were drawn with, so `event -> JSON -> event` is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dpbo.errors import InputError


@dataclass(frozen=True)
class GaussianEvent:
    """`slots` Gaussian releases, each with standard deviation `noise_multiplier` times its l2 sensitivity.

    Drawn jointly or one after another they are exactly mu-GDP with mu^2 = slots / noise_multiplier^2.
    """

    noise_multiplier: float
    slots: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.noise_multiplier, float) or not 0.0 < self.noise_multiplier < math.inf:
            raise InputError("noise_multiplier", self.noise_multiplier, "a finite float above 0")
        if isinstance(self.slots, bool) or not isinstance(self.slots, int) or self.slots < 1:
            raise InputError("slots", self.slots, "a whole number of at least 1")

    def to_json(self) -> dict[str, Any]:
        """Readable by `event_from_json` and by people."""
        return {"mechanism": "gaussian", "noise_multiplier": self.noise_multiplier, "slots": self.slots}

    def repeated(self, slots: int) -> GaussianEvent:
        """This event's law over another number of slots."""
        return GaussianEvent(self.noise_multiplier, slots)


def event_from_json(body: dict[str, Any]) -> GaussianEvent:
    """The event that `to_json` wrote. Raises ValueError on an unknown mechanism."""
    match body:
        case {"mechanism": "gaussian", "noise_multiplier": float(multiplier), "slots": int(slots)}:
            return GaussianEvent(multiplier, slots)
    raise ValueError(f"unknown mechanism {body.get('mechanism')!r}: written by a newer dpbo?")
