"""A plan fixed before the first release: every event it will ever charge, composed by the least of all valid bounds.

    Planned([GaussianEvent(10.0, 30), ExponentialEvent(20.0, 5)])       30 Gaussian slots and 5 choices, nothing else

Nothing about the list may depend on the data; in which order, and on which questions, its slots are spent may depend on what was released.
A slot's output is a randomised image of a draw from its dominating pair, and the draws of all slots are independent, so whatever is seen in
whatever order, or never asked, is post-processing of all of them at once; Renyi divergences add at each order in any case (Feldman & Zrnic
2021). So each bound holds for the plan, and so does the least, which is true of no minimum over filters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Self

from dpbo.accounting.composition import Composition, compose, merged
from dpbo.accounting.filters import Accounting, Cost, EventKind, GDPFilter, PureFilter, RDPFilter, ZCDPFilter
from dpbo.errors import InputError
from dpbo.events import Event, event_from_json
from dpbo.privacy import Budget
from dpbo.statement import Guarantee
from dpbo.validation import checked

_ROUNDING = 1e-6  # of a ledger that is there: another machine may round differently; the statement prints the bound itself
_PRECISION = 1e-7


@checked
@dataclass(frozen=True)
class Planned(Accounting):
    """The events of a whole study. Costs are slots of each event; the guarantee is that of all of them.

    Args:
        events: what will be released, each with its number of slots; equal ones are added up.
    """

    events: tuple[Event, ...]
    unit: ClassVar[str] = "slots"
    cap_is_budget: ClassVar[bool] = False
    _hooks: ClassVar[frozenset[str]] = frozenset({"guarantee", "least_beside", "may_hold", "multiplier", "require_kept"})

    def __init__(self, events: Sequence[Event]) -> None:
        if not events or not all(isinstance(event, Event) and not event.free for event in events):
            raise InputError("events", type(events).__name__, "one event or more of dpbo.events", "For example GaussianEvent(10.0, 30).")
        object.__setattr__(self, "events", merged(events))
        compose(self.events, delta=0.0)  # refuses mixed relations

    @property
    def name(self) -> str:
        return f"Planned({json.dumps([event.to_json() for event in self.events], sort_keys=True, separators=(',', ':'))})"

    @classmethod
    def read(cls, name: str) -> Self:
        """The plan that `name` names. Raises InputError where it names none."""
        try:
            bodies = list(json.loads(name.removeprefix("Planned(").removesuffix(")")))
        except (ValueError, TypeError, RecursionError):
            raise InputError("name", name, "the name of a Planned", "Give what its `name` says.") from None
        return cls([event_from_json(body) for body in bodies])

    def price(self, event: Event) -> Cost | None:
        if event.free:
            return Cost.of(*(0 for _ in self.events))
        same = [event.repeated(1) == planned.repeated(1) for planned in self.events]
        return Cost.of(*(event.slots * here for here in same)) if any(same) else None

    def cap(self, budget: Budget) -> Cost:
        self.require_kept(budget, room=_ROUNDING)
        return self._whole()

    def require_kept(self, budget: Budget, *, room: float = 0.0) -> None:
        """Raises InputError, saying what is reached, where the plan does not fit."""
        if not self.fits(budget, room=room):
            bound = self.composition(budget.delta or 0.0, refine=False)
            unit, reached = ("epsilon", bound.epsilon) if budget.epsilon is not None else ("mu", bound.mu)
            got = "has no mu" if reached is None else f"reaches {unit} {reached}"
            allowed = f"within the budget's {unit} {budget.epsilon or budget.mu}"
            raise InputError("events", got, allowed, "Plan fewer slots or more noise; see calibrate.")

    def fits(self, budget: Budget, *, room: float = 0.0) -> bool:
        """Whether the plan keeps the budget, or passes it by no more than the share `room`."""
        bound = self.composition(budget.delta or 0.0, refine=False)
        if budget.epsilon is not None:
            return bound.epsilon <= budget.epsilon * (1 + room)
        return bound.mu is not None and budget.mu is not None and bound.mu <= budget.mu * (1 + room)

    def may_hold(self, cap: Cost, budget: Budget) -> bool:
        return cap == self._whole()  # what they guarantee is composed anew in every statement

    def guarantee(self, cost: Cost, delta: float | None) -> Guarantee:
        used = [event.repeated(int(slots)) for event, slots in zip(self.events, cost.parts, strict=True) if slots]
        bound = compose(used, delta=delta or 0.0, refine=True)
        pure = delta is None and math.isinf(bound.epsilon)
        return Guarantee(bound.mu, None if pure else bound.epsilon, None if pure else (delta or 0.0))

    def multiplier(self, kind: EventKind, slots: int, available: Cost) -> float | None:
        """That of the planned event of this kind which has so many slots; the plan fixed it, so `available` is all of it, or refused."""
        if available != self._whole():
            share = float(available.parts[0] / self.events[0].slots)
            raise InputError("budget", share, "1 under a plan", "The plan lists what each release takes, and no share changes it.")
        fitting = [event for event in self.events if kind(event.noise_multiplier, 1) == event.repeated(1) and event.slots >= slots]
        return min(fitting, key=lambda event: event.slots).noise_multiplier if fitting else None

    def composition(self, delta: float, *, refine: bool = True) -> Composition:
        """The bounds on the whole plan."""
        return compose(self.events, delta=delta, refine=refine)

    def _whole(self) -> Cost:
        return Cost.of(*(event.slots for event in self.events))

    def least_beside(self, budget: Budget, kind: EventKind, slots: int, share: Fraction) -> float:
        """The least multiplier with which so many slots of `kind` fit the budget beside everything planned, to 7 digits."""
        if share != 1:
            raise InputError("share", float(share), "1 beside a plan", "What else is released is what the plan lists.")

        def fits(multiplier: float) -> bool:
            return Planned([*self.events, kind(multiplier, slots)]).fits(budget)

        self.cap(budget)
        high = 1.0
        while not fits(high):
            high *= 2.0
            if high > 1e12:
                raise InputError("budget", budget.epsilon or budget.mu, "larger than what the plan takes alone")
        low = high / 2.0
        while fits(low):
            low /= 2.0
            if low < 1e-6:
                raise InputError("event", "costs next to nothing", "one that the budget bounds", "Plan it with any noise: it fits.")
        while high / low > 1 + _PRECISION:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if fits(middle) else (middle, high)
        return high


# ========== MERGED The accounting that a ledger was born with, found again by its name.


def accounting_named(name: str) -> Accounting:
    """Raises InputError on a name that no accounting bears."""
    for known in (GDPFilter(), PureFilter(), ZCDPFilter()):
        if name == known.name:
            return known
    if name.startswith("RDPFilter(") and name.endswith(")"):
        return RDPFilter(float(name.removeprefix("RDPFilter(").removesuffix(")")))
    if name.startswith("Planned(") and name.endswith(")"):
        return Planned.read(name)
    raise InputError("accounting", name, "one of dpbo.accounting", "Was this ledger written by a newer dpbo?")
