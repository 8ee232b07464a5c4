"""What a release costs, as data: the event that goes to the ledger and that any accountant can recompute.

Floats are kept as they were drawn with, so `event -> JSON -> event` is exact. What an event costs under each notion of privacy stands in
accounting/profiles.py.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from dpbo.errors import InputError


@dataclass(frozen=True)
class Event:
    """`slots` releases, each with noise of scale `noise_multiplier` times its sensitivity, drawn jointly or one after another."""

    noise_multiplier: float
    slots: int = 1
    mechanism: ClassVar[str]

    def __post_init__(self) -> None:
        if not isinstance(self.noise_multiplier, float) or not 0.0 < self.noise_multiplier < math.inf:
            raise InputError("noise_multiplier", self.noise_multiplier, "a finite float above 0")
        if isinstance(self.slots, bool) or not isinstance(self.slots, int) or self.slots < 1:
            raise InputError("slots", self.slots, "a whole number of at least 1")

    def to_json(self) -> dict[str, Any]:
        """Readable by `event_from_json` and by people."""
        return {"mechanism": self.mechanism, **dataclasses.asdict(self)}

    def repeated(self, slots: int) -> Self:
        """This event's law over another number of slots."""
        return dataclasses.replace(self, slots=slots)


class GaussianEvent(Event):
    """Standard deviation over l2 sensitivity: each slot is exactly mu-GDP with mu = 1 / noise_multiplier."""

    mechanism = "gaussian"


class LaplaceEvent(Event):
    """Scale over l1 sensitivity: each slot is pure epsilon = 1 / noise_multiplier."""

    mechanism = "laplace"


class ExponentialEvent(Event):
    """Scale of the utilities' noise over their sensitivity: each slot is pure epsilon = 2 / noise_multiplier, of range epsilon."""

    mechanism = "exponential"


class PermuteAndFlipEvent(Event):
    """Scale of the utilities' noise over their sensitivity: each slot is pure epsilon = 2 / noise_multiplier."""

    mechanism = "permute-and-flip"


def event_from_json(body: dict[str, Any]) -> Event:
    """The event that `to_json` wrote. Raises ValueError on an unknown mechanism."""
    match body:
        case {"mechanism": str(mechanism), "noise_multiplier": float(multiplier), "slots": int(slots)}:
            for kind in (GaussianEvent, LaplaceEvent, ExponentialEvent, PermuteAndFlipEvent):
                if kind.mechanism == mechanism:
                    return kind(multiplier, slots)
    raise ValueError(f"unknown mechanism {body.get('mechanism')!r}: written by a newer dpbo?")
