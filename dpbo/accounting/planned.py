"""Accounting by a list, fixed before the first release, of every event that will be charged,
composed by the least of all valid bounds.

    # 30 Gaussian slots and 5 selections, nothing else
    Planned([GaussianEvent(10.0, 30), ExponentialEvent(20.0, 5)])

The list may not depend on the data; the order in which its slots are spent, and the queries, may
depend on released values. A slot's output is a randomised image of a draw from its dominating pair,
and the draws of all slots are independent. So the released values, in whatever order and even if
slots stay unused, are post-processing of all draws together; Renyi divergences add at each order in
any case (Feldman & Zrnic 2021). So every bound holds for the list, and so does the least. A minimum
over filters would not hold.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Self

from dpbo.accounting.composition import Composition, compose, merged
from dpbo.accounting.filters import (
    Accounting,
    Cost,
    EventKind,
    GDPFilter,
    PureFilter,
    RDPFilter,
    ZCDPFilter,
)
from dpbo.accounting.roots import least_scale
from dpbo.errors import InputError, UsageError
from dpbo.events import Event, event_from_json
from dpbo.privacy import Budget
from dpbo.statement import Guarantee
from dpbo.validation import checked, checked_constructor

# an existing ledger may come from a machine that rounds differently; the statement prints the bound
# itself
_ROUNDING = 1e-6


@checked_constructor
@dataclass(frozen=True)
class Planned(Accounting):
    """Accounting by the list of all events of a study, whose cost is a number of slots for each
    event.

    Args:
        events: what will be released, each with its number of slots; equal ones are added up.

    Raises:
        InputError: no events, an exact event, or events of several neighbouring relations.
    """

    events: tuple[Event, ...]
    unit: ClassVar[str] = "slots"
    cap_is_budget: ClassVar[bool] = False

    def __init__(self, events: Sequence[Event]) -> None:
        if not events or not all(isinstance(event, Event) and not event.free for event in events):
            raise InputError(
                "events",
                type(events).__name__,
                "one event or more of dpbo.events",
                "For example GaussianEvent(10.0, 30).",
            )
        object.__setattr__(self, "events", merged(events))
        # It refuses mixed relations.
        compose(self.events, delta=0.0)

    @property
    def name(self) -> str:
        events = [event.to_json() for event in self.events]
        return f"Planned({json.dumps(events, sort_keys=True, separators=(',', ':'))})"

    @classmethod
    @checked
    def read(cls, name: str) -> Self:
        """The `Planned` of this `name`. Raises InputError on any other text."""
        try:
            bodies = list(json.loads(name.removeprefix("Planned(").removesuffix(")")))
        except (ValueError, TypeError, RecursionError):
            raise InputError(
                "name",
                name,
                "text that the attribute `name` of a Planned gave",
                "Copy it unchanged.",
            ) from None
        return cls(list(map(event_from_json, bodies)))

    @checked
    def cost_or_none(self, event: Event) -> Cost | None:
        if event.free:
            return self._whole().zero
        same = [event.repeated(1) == planned.repeated(1) for planned in self.events]
        if any(same):
            return Cost.of(*(event.count * here for here in same))
        return None

    @checked
    def cap(self, budget: Budget) -> Cost:
        self.require_kept(budget, room=_ROUNDING)
        return self._whole()

    def require_kept(self, budget: Budget, *, room: float = 0.0) -> None:
        """Raises InputError, which says what the events cost, where they do not fit."""
        if self.fits(budget, room=room):
            return
        bound = self.composition(budget.delta or 0.0, refine=False)
        unit = "mu"
        reached = bound.mu
        if budget.epsilon is not None:
            unit = "epsilon"
            reached = bound.epsilon
        cost = "have no known mu" if reached is None else f"reach {unit} {reached}"
        remedy = (
            "List fewer slots or larger noise multipliers (calibrate finds the smallest that fits)"
        )
        if reached is None:
            remedy += ", or give the budget as epsilon and delta"
        raise UsageError(
            f"the events {cost}, but must stay within the budget's {unit}"
            f" {budget.epsilon or budget.mu}. {remedy}."
        )

    @checked
    def fits(self, budget: Budget, *, room: float = 0.0) -> bool:
        """Whether the events keep the budget, or pass it by no more than the share `room`."""
        bound = self.composition(budget.delta or 0.0, refine=False)
        if budget.epsilon is not None:
            return bound.epsilon <= budget.epsilon * (1 + room)
        return bound.mu is not None and budget.mu is not None and bound.mu <= budget.mu * (1 + room)

    def may_hold(self, cap: Cost, budget: Budget) -> bool:
        # every statement composes the guarantee anew
        return cap == self._whole()

    def guarantee(self, cost: Cost, delta: float | None) -> Guarantee:
        used = [
            event.repeated(int(slots))
            for event, slots in zip(self.events, cost.parts, strict=True)
            if slots
        ]
        bound = compose(used, delta=delta or 0.0, refine=True)
        pure = delta is None and math.isinf(bound.epsilon)
        return Guarantee(
            bound.mu, None if pure else bound.epsilon, None if pure else (delta or 0.0)
        )

    def multiplier(self, kind: EventKind, slots: int, available: Cost) -> float | None:
        """The multiplier of the listed event of this kind that has this many slots. `available`
        must be the whole list.
        """
        if available != self._whole():
            share = float(available.parts[0] / self.events[0].count)
            remedy = "The list of Planned says what each release takes: leave `budget` at 1."
            raise InputError("budget", share, "1 with accounting=Planned(...)", remedy)
        fitting = [
            event
            for event in self.events
            if kind(event.noise_multiplier, 1) == event.repeated(1) and event.count >= slots
        ]
        if fitting:
            return min(fitting, key=lambda event: event.count).noise_multiplier
        return None

    @checked
    def composition(self, delta: float, *, refine: bool = True) -> Composition:
        """The bounds on the whole list."""
        return compose(self.events, delta=delta, refine=refine)

    def _whole(self) -> Cost:
        return Cost.of(*(event.count for event in self.events))

    def least_beside(self, budget: Budget, kind: EventKind, slots: int, share: Fraction) -> float:
        """The least multiplier with which this many slots of `kind` fit the budget beside the
        planned events, to 7 digits.
        """
        if share != 1:
            remedy = (
                "Planned lists all other releases, so these take all that it leaves: leave `share`"
                " out."
            )
            raise InputError("share", float(share), "1 with accounting=Planned(...)", remedy)

        def fits(multiplier: float) -> bool:
            return Planned([*self.events, kind(multiplier, slots)]).fits(budget)

        self.cap(budget)
        multiplier = least_scale(fits, precision=1e-7, least=1e-6, most=1e12)
        if math.isinf(multiplier):
            remedy = "Raise the budget, or list fewer slots or larger noise multipliers in Planned."
            raise InputError(
                "budget",
                budget.epsilon or budget.mu,
                "larger than the cost of the events in Planned",
                remedy,
            )
        if multiplier == 0.0:
            raise UsageError(
                "the event costs next to nothing, so the budget bounds no noise of it: plan it with"
                " any noise."
            )
        return multiplier


def accounting_named(name: str) -> Accounting:
    """The accounting of a ledger, from its `name`. Raises InputError on an unknown name."""
    for known in (GDPFilter(), PureFilter(), ZCDPFilter()):
        if name == known.name:
            return known
    if name.startswith("RDPFilter(") and name.endswith(")"):
        return RDPFilter(float(name.removeprefix("RDPFilter(").removesuffix(")")))
    if name.startswith("Planned(") and name.endswith(")"):
        return Planned.read(name)
    raise InputError(
        "accounting", name, "one of dpbo.accounting", "Was this ledger written by a newer dpbo?"
    )
