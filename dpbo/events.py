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
    free: ClassVar[bool] = False  # exact, so that no budget could pay: charged nothing

    def __post_init__(self) -> None:
        if not isinstance(self.noise_multiplier, float) or not 0.0 < self.noise_multiplier < math.inf:
            raise InputError("noise_multiplier", self.noise_multiplier, "a finite float above 0")
        _require_slots(self.slots)

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


class L2LaplaceEvent(Event):
    """Scale of the radius over l2 sensitivity: each slot is pure epsilon = 1 / noise_multiplier."""

    mechanism = "l2-laplace"


class ExponentialEvent(Event):
    """Scale of the utilities' noise over their sensitivity: each slot is pure epsilon = 2 / noise_multiplier, of range epsilon."""

    mechanism = "exponential"


class PermuteAndFlipEvent(Event):
    """Scale of the utilities' noise over their sensitivity: each slot is pure epsilon = 2 / noise_multiplier."""

    mechanism = "permute-and-flip"


@dataclass(frozen=True)
class PoissonGaussianEvent(Event):
    """Gaussian noise on a sum over a sample that takes each unit with probability `rate`, by itself, anew for every slot.

    noise_multiplier is the standard deviation over the norm bound of ONE unit's contribution, whatever the relation, which is named:
    "add-or-remove-one", or "replace-one", where both the old and the new contribution may be in the sample.
    """

    rate: float = dataclasses.field(kw_only=True)
    relation: str = dataclasses.field(kw_only=True)
    mechanism: ClassVar[str] = "poisson-gaussian"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.rate, float) or not 0.0 < self.rate <= 1.0:
            raise InputError("rate", self.rate, "a float in (0, 1]")
        if self.relation not in ("replace-one", "add-or-remove-one"):
            raise InputError("relation", self.relation, "'replace-one' or 'add-or-remove-one'")


@dataclass(frozen=True)
class ExactEvent(Event):
    """Exact answers: no noise."""

    noise_multiplier: float = 0.0
    free: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.noise_multiplier != 0.0:
            raise InputError("noise_multiplier", self.noise_multiplier, "0 for a release without noise")
        _require_slots(self.slots)


class NotPrivateEvent(ExactEvent):
    """Without any guarantee; the statement says "not bounded"."""

    mechanism = "none"


class DeclassifiedEvent(ExactEvent):
    """Declared to need no protection: free under that declaration, which is a named data assumption."""

    mechanism = "declassified"


def _require_slots(slots: Any) -> None:
    if isinstance(slots, bool) or not isinstance(slots, int) or slots < 1:
        raise InputError("slots", slots, "a whole number of at least 1")


_KINDS: dict[str, type[Event]] = {
    kind.mechanism: kind
    for kind in (
        GaussianEvent, LaplaceEvent, L2LaplaceEvent, ExponentialEvent, PermuteAndFlipEvent, PoissonGaussianEvent, NotPrivateEvent,
        DeclassifiedEvent,
    )
}  # fmt: skip


def event_from_json(body: dict[str, Any]) -> Event:
    """The event that `to_json` wrote. Raises ValueError on an unknown mechanism or content."""
    kind = _KINDS.get(body["mechanism"]) if isinstance(body, dict) and isinstance(body.get("mechanism"), str) else None
    if kind is None or {field.name for field in dataclasses.fields(kind)} != set(body) - {"mechanism"}:
        raise ValueError("unknown event: written by a newer dpbo?")
    return kind(**{name: value for name, value in body.items() if name != "mechanism"})
