"""What a release costs, as data: the event that goes to the ledger and that any accountant can recompute.

Floats are kept as they were drawn with, so `event -> JSON -> event` is exact. What an event costs under each notion of privacy stands in
accounting/profiles.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from dpbo.errors import InputError
from dpbo.run_counts import CountLaw, RunLaw, law_from_json
from dpbo.validation import checked


@checked
@dataclass(frozen=True)
class Event:
    """`slots` releases, each with noise of scale `noise_multiplier` times its sensitivity, drawn jointly or one after another."""

    noise_multiplier: float
    slots: int = 1
    mechanism: ClassVar[str]
    free: ClassVar[bool] = False  # exact, so that no budget could pay: charged nothing

    def __post_init__(self) -> None:
        if not isinstance(self.noise_multiplier, float) or not 1e-100 <= self.noise_multiplier <= 1e100:
            raise InputError("noise_multiplier", self.noise_multiplier, "a float from 1e-100 to 1e100")
        _require_slots(self.slots)

    def to_json(self) -> dict[str, Any]:
        """Readable by `event_from_json` and by people."""
        return {"mechanism": self.mechanism, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """The way back, from the fields alone. Raises InputError, a ValueError, on other fields."""
        if {field.name for field in dataclasses.fields(cls)} != set(body):
            raise _unknown()
        return cls(**body)

    def relations(self) -> frozenset[str]:
        """The neighbouring relations that its numbers are for; of most events none, as they count in units of their sensitivity."""
        return frozenset()

    def repeated(self, slots: int) -> Self:
        """This event's law over another number of slots."""
        return dataclasses.replace(self, slots=slots)


@checked
class GaussianEvent(Event):
    """Standard deviation over l2 sensitivity: each slot is exactly mu-GDP with mu = 1 / noise_multiplier."""

    mechanism = "gaussian"


@checked
class LaplaceEvent(Event):
    """Scale over l1 sensitivity: each slot is pure epsilon = 1 / noise_multiplier."""

    mechanism = "laplace"


@checked
class L2LaplaceEvent(Event):
    """Scale of the radius over l2 sensitivity: each slot is pure epsilon = 1 / noise_multiplier."""

    mechanism = "l2-laplace"


@checked
class ExponentialEvent(Event):
    """Scale of the utilities' noise over their sensitivity: each slot is pure epsilon = 2 / noise_multiplier, of range epsilon."""

    mechanism = "exponential"


@checked
class PermuteAndFlipEvent(Event):
    """Scale of the utilities' noise over their sensitivity: each slot is pure epsilon = 2 / noise_multiplier."""

    mechanism = "permute-and-flip"


@checked
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

    def relations(self) -> frozenset[str]:
        return frozenset({self.relation})


@checked
@dataclass(frozen=True)
class SelectionEvent(Event):
    """The best of a random number of runs, each run costing all events of `base`; only the best is released.

    What each run costs is that of its output and its score together. `noise_multiplier` multiplies the noise of every event in the base, so
    that a base can be calibrated as any other noise is; 1 is the base as it stands. `spread` = (c, C): what earlier runs gave may decide
    where later ones look, at densities between c and C times the public prior's; (1, 1) is always the prior.
    """

    noise_multiplier: float = 1.0
    base: tuple[Event, ...] = dataclasses.field(kw_only=True)
    law: RunLaw = dataclasses.field(kw_only=True)
    spread: tuple[float, float] = dataclasses.field(default=(1.0, 1.0), kw_only=True)
    mechanism: ClassVar[str] = "private-selection"

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = isinstance(self.base, tuple) and all(isinstance(event, Event) and not event.free for event in self.base)
        if not whole or not self.base:
            raise InputError("base", type(self.base).__name__, "a tuple of one event or more, none of them exact")
        if not isinstance(self.law, RunLaw):
            raise InputError("law", type(self.law).__name__, "a law of dpbo.run_counts", "For example PoissonRuns(10.0).")
        if not (isinstance(self.spread, tuple) and len(self.spread) == 2 and 0.0 < self.spread[0] <= 1.0 <= self.spread[1] < math.inf):
            raise InputError("spread", self.spread, "(c, C) with 0 < c <= 1 <= C")
        if self.spread != (1.0, 1.0) and not isinstance(self.law, CountLaw):
            raise InputError("law", type(self.law).__name__, "a law of the number of runs, where runs look at earlier ones")
        if len(self.relations()) > 1:
            raise InputError("base", sorted(self.relations()), "of one relation", "See dpbo.accounting.convert_adjacency.")
        self.run()  # refuses noise out of its range

    def run(self) -> tuple[Event, ...]:
        """What one run costs."""
        scale = self.noise_multiplier
        return tuple(dataclasses.replace(event, noise_multiplier=event.noise_multiplier * scale) for event in self.base)

    def relations(self) -> frozenset[str]:
        return frozenset().union(*(event.relations() for event in self.base))

    def to_json(self) -> dict[str, Any]:
        head = {"mechanism": self.mechanism, "noise_multiplier": self.noise_multiplier, "slots": self.slots}
        base = [event.to_json() for event in self.base]
        return {**head, "base": base, "law": self.law.to_json(), "spread": list(self.spread)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        events, law = _listed(body.get("base"), event_from_json), law_from_json(body.get("law"))
        return super().from_json({**body, "base": events, "law": law, "spread": _listed(body.get("spread"), lambda end: end)})


@checked
@dataclass(frozen=True)
class RolesEvent(Event):
    """One release from records of several roles, such as training and validation; which record has which role is a public rule.

    Neighbouring data sets differ in records of one role, the same in all releases of a study, and to whoever knows the others a release
    then is one that costs what `costs` says of that role. So what a study guarantees is the worst over the roles, each role's events
    composed by themselves; events outside any RolesEvent count for every role.

    Args:
        costs: (role, events) for each role, by name; a role that is not named pays nothing.
    """

    noise_multiplier: float = 1.0
    costs: tuple[tuple[str, tuple[Event, ...]], ...] = dataclasses.field(kw_only=True)
    mechanism: ClassVar[str] = "roles"

    def __post_init__(self) -> None:
        super().__post_init__()
        named = dict(self.costs)
        nested = any(isinstance(event, RolesEvent) or event.free for events in named.values() for event in events)
        if not named or len(named) < len(self.costs) or nested or not all(named.values()):
            raise InputError("costs", sorted(named), "one event or more for each of several roles, none of them exact or of roles itself")
        if len(self.relations()) > 1:
            raise InputError("costs", sorted(self.relations()), "of one relation", "See dpbo.accounting.convert_adjacency.")
        for role in self.roles:
            self.of(role)  # refuses noise out of its range

    def of(self, role: str) -> tuple[Event, ...]:
        """What all slots cost a record of this role."""
        events = dict(self.costs).get(role, ())
        scale, slots = self.noise_multiplier, self.slots
        return tuple(dataclasses.replace(e, noise_multiplier=e.noise_multiplier * scale, slots=e.slots * slots) for e in events)

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.costs)

    def relations(self) -> frozenset[str]:
        return frozenset().union(*(event.relations() for _, events in self.costs for event in events))

    def to_json(self) -> dict[str, Any]:
        head = {"mechanism": self.mechanism, "noise_multiplier": self.noise_multiplier, "slots": self.slots}
        return {**head, "costs": [[role, [event.to_json() for event in events]] for role, events in self.costs]}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        pairs = _listed(body.get("costs"), lambda pair: pair)
        if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
            raise _unknown()
        return super().from_json({**body, "costs": tuple((role, _listed(events, event_from_json)) for role, events in pairs)})


@checked
@dataclass(frozen=True)
class ExactEvent(Event):
    """Exact answers: no noise."""

    noise_multiplier: float = 0.0
    free: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.noise_multiplier != 0.0:
            raise InputError("noise_multiplier", self.noise_multiplier, "0 for a release without noise")
        _require_slots(self.slots)


@checked
class NotPrivateEvent(ExactEvent):
    """Without any guarantee, exact or with noise for a bound that does not hold; the statement says "not bounded"."""

    mechanism = "none"


@checked
class DeclassifiedEvent(ExactEvent):
    """Declared to need no protection: free under that declaration, which is a named data assumption."""

    mechanism = "declassified"


def _listed(body: Any, read: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Each item of a JSON list, read."""
    if not isinstance(body, (list, tuple)):
        raise _unknown()
    return tuple(map(read, body))


def _unknown() -> InputError:
    return InputError("body", "an unknown event", "what to_json wrote", "Was it written by a newer dpbo?")


def _require_slots(slots: Any) -> None:
    if isinstance(slots, bool) or not isinstance(slots, int) or slots < 1:
        raise InputError("slots", slots, "a whole number of at least 1")


_KINDS: dict[str, type[Event]] = {
    kind.mechanism: kind
    for kind in (
        GaussianEvent, LaplaceEvent, L2LaplaceEvent, ExponentialEvent, PermuteAndFlipEvent, PoissonGaussianEvent, SelectionEvent,
        RolesEvent, NotPrivateEvent, DeclassifiedEvent,
    )
}  # fmt: skip


@checked
def event_from_json(body: Any) -> Event:
    """The event that `to_json` wrote. Raises InputError, a ValueError, on an unknown mechanism or content."""
    kind = _KINDS.get(body["mechanism"]) if isinstance(body, dict) and isinstance(body.get("mechanism"), str) else None
    if kind is None:
        raise _unknown()
    return kind.from_json({name: value for name, value in body.items() if name != "mechanism"})
