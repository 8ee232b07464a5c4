"""What all entries of a ledger say together: the sums that a statement, a report and a refusal
show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from dpbo.accounting.calibration import budget_in_words
from dpbo.accounting.filters import Cost, filter_within
from dpbo.errors import BudgetExceeded
from dpbo.events import DeclassifiedEvent, Event, event_from_json
from dpbo.ledger.birth import FAILURE_PROBABILITY, Birth
from dpbo.ledger.entries import Json, Record, Reserved, dump

# Names that BudgetExceeded shows.
_LISTED = 8


@dataclass
class Declared:
    """What some releases without a reservation declared, all of them alike.

    Attributes:
        inputs: what they declared.
        first: which release was the first of them, from 1.
        times: how many there are.
    """

    inputs: dict[str, Any]
    first: int
    times: int = 0


class Facts:
    """The sums over entries that were added in their order, from the first.

    Attributes:
        birth, cap: what the ledger is for, and what its budget holds.
        head: the newest entry.
        reservations: by name.
        used: slots that each reservation has used; of a parallel one, those of the part that was
            charged most often.
        delivered: how many values each reservation has.
        paid: what each reservation, and the releases of each name without one, took from the
            budget.
        unreserved: names of releases without a reservation.
        unanswered: charges without a value, by number.
        notes: (kind, text) of every note, oldest first.
        exact, exact_charges: whether anything reserved or charged, or a charge, publishes exact
            answers that no named assumption declassifies.
        conditions: the texts of each data assumption, each once: of reservations, and of charges.
        failing: sum of the failure probabilities of everything reserved or charged, as decimals, as
            they were given, so that 0.1 and 0.2 are 0.3. A reservation that states one counts with
            all its slots from the start, and its charges add nothing.
        units: the newest number of units that a charge names.
        declared: by reservation, what questions under it declared otherwise than it says: each kind
            once, by its text.
        loose: what releases without a reservation declared, each kind once, by its text.
    """

    birth: Birth
    cap: Cost
    head: Record

    def __init__(self) -> None:
        self.reservations = dict[str, Reserved]()
        self.used = dict[str, int]()
        self.delivered = Counter[str]()
        self.paid = dict[str, Cost]()
        self.unreserved = dict[str, None]()
        self.unanswered = dict[int, Record]()
        self.notes = dict[tuple[str, str], None]()
        self.exact = False
        self.exact_charges = False
        self.conditions = dict[str, dict[str, None]](), dict[str, dict[str, None]]()
        self.failing = Decimal(0)
        self.units: int | None = None
        self.declared = dict[str, dict[str, dict[str, Any]]]()
        self.loose = dict[str, Declared]()
        self._parts = dict[str, Counter[int]]()
        self._events = dict[str, Event]()
        # How often each event was charged, and how often the budget paid for it.
        self._charged = Counter[Event]()
        self._bought = Counter[Event]()
        self._releases = 0

    @property
    def total(self) -> Cost:
        """What everything reserved or charged costs together."""
        return self.head.total

    @property
    def spent(self) -> Cost:
        """What the charges cost; under a parallel reservation, what those of the most often used
        part did.
        """
        cost = self.birth.accounting.cost
        spent = self.cap.zero
        for event, times in self._charged.items():
            spent += cost(event) * Fraction(times)
        for name, reserved in self.reservations.items():
            if reserved.parallel and self.used[name]:
                spent += cost(reserved.event.repeated(self.used[name]))
        return spent

    def add(self, record: Record) -> None:
        """Count the next entry."""
        body = record.body
        match record.kind:
            case "birth":
                self.birth = Birth.from_json(body)
                self.cap = Cost.read(body["cap"])
            case "reserve":
                reserved = Reserved.of(record.name, body)
                self.reservations[record.name] = reserved
                self.used[record.name] = 0
                self._parts[record.name] = Counter()
                self._buy(record.name, reserved.event.repeated(reserved.slots))
                self._reserve(reserved)
            case "charge":
                self.unanswered[record.seq] = record
                self._charge(record)
            case "value":
                self.unanswered.pop(record.answers or 0, None)
                if record.reservation is not None:
                    self.delivered[record.reservation] = record.used
            case _:
                self.notes[record.kind, record.name] = None
        self.head = record

    def account(self) -> str:
        """The budget in epsilon and delta, and what was spent or reserved for what, for
        BudgetExceeded.
        """
        birth = self.birth
        records = f"data set {birth.dataset!r}" if birth.dataset else "these records"
        budget = f"budget ({budget_in_words(birth.budget)}) of {records}"
        costs = {
            name: float(sum(cost.parts)) for name, cost in self.paid.items() if any(cost.parts)
        }
        if not costs:
            return f"Nothing of the {budget} is spent or reserved."
        by_cost = sorted(costs, key=lambda name: -costs[name])
        shown = [self._paid_for(name, costs[name]) for name in by_cost[:_LISTED]]
        if len(by_cost) > _LISTED:
            shown.append(f"{len(by_cost) - _LISTED} others")
        full = all(float(part) >= (1 - 1e-9) * cap for part, cap in self.total.beside(self.cap))
        unused = any(self.used[name] < held.slots for name, held in self.reservations.items())
        how = "spent or reserved in part"
        if full:
            how = "spent or reserved in full" if unused else "used up"
        text = f"The {budget} is {how}, in {birth.accounting.unit}: {', '.join(shown)}."
        if birth.dataset:
            text += " `python -m dpbo ledger show FILE_OR_URL` lists what was released."
        if unused and not full and not birth.accounting.events:
            text += " Unused slots of a reservation cannot be given to another."
        return text

    def exceeded(self, cost: Cost, what: str, wanted: Event | None = None) -> BudgetExceeded:
        """The error of what would pass the cap. With the event that is wanted it names the
        accounting, if any, that would have paid for it and for everything so far.
        """
        birth = self.birth
        hint = ""
        if wanted is not None:
            other = filter_within([*self._bought.items(), (wanted, 1)], birth.budget)
            if other is not None and other != birth.accounting:
                hint = (
                    f"With accounting={other!r} this and all before it would have been within the"
                    " budget; an accounting is chosen when a ledger is made, and stays."
                )
        part = (self.total + cost).first_beyond(self.cap)
        requested, spent, cap = (float(each.parts[part]) for each in (cost, self.total, self.cap))
        return BudgetExceeded(
            requested, cap - spent, cap, birth.accounting.unit, what, self.account(), hint
        )

    def _paid_for(self, name: str, cost: float) -> str:
        """What a reservation, or the releases of a name without one, cost, in words."""
        told = f"{cost:.6g} ({100 * cost / float(sum(self.cap.parts)):.4g} %"
        reserved = self.reservations.get(name)
        if reserved is None:
            return f"releases {name!r} {told})"
        return f"the reservation {name!r} {told}; {self.used[name]} of {reserved.slots} slots used)"

    def _buy(self, name: str, event: Event) -> None:
        cost = self.birth.accounting.cost(event)
        self.paid[name] = self.paid[name] + cost if name in self.paid else cost
        self._bought[event] += 1

    def _reserve(self, reserved: Reserved) -> None:
        assumptions = reserved.terms.get("assumptions")
        self._assume(0, assumptions)
        if (probability := reserved.terms.get(FAILURE_PROBABILITY)) is not None:
            self.failing += Decimal(repr(probability)) * reserved.releases
        self.exact |= reserved.event.free and not (
            isinstance(reserved.event, DeclassifiedEvent) and assumptions
        )

    def _charge(self, record: Record) -> None:
        body = record.body
        slots = body.get("slots", [])
        event = self._event(body["event"])
        declassified = (
            isinstance(event, DeclassifiedEvent)
            and slots
            and all(slot.get("assumptions") for slot in slots)
        )
        if event.free and not declassified:
            self.exact = self.exact_charges = True
        if body.get("units") is not None:
            self.units = body["units"]
        reserved = None
        if record.reservation is None:
            self.unreserved[record.name] = None
            self._buy(record.name, event)
        else:
            reserved = self.reservations[record.reservation]
            self.declared.setdefault(reserved.name, {})
        if reserved is not None and reserved.parallel:
            parts = self._parts[reserved.name]
            parts.update(slot["part"] for slot in slots)
            self.used[reserved.name] = max(parts.values())
        else:
            self._charged[event] += 1
            if reserved is not None:
                self.used[reserved.name] = record.used
        for slot in slots:
            self._assume(1, slot.get("assumptions"))
            asked = {"query": slot.get("query"), **slot.get("public", {})}
            if reserved is not None:
                self._declare(reserved, asked)
                continue
            self.failing += Decimal(repr(slot.get(FAILURE_PROBABILITY, 0)))
            self._releases += 1
            kind = self.loose.setdefault(dump(asked), Declared(asked, self._releases))
            kind.times += 1

    def _declare(self, reserved: Reserved, asked: Json) -> None:
        """Note what a question declared otherwise than its reservation says."""
        terms = reserved.public_inputs()
        other = {
            name: value
            for name, value in asked.items()
            if name != "query" and not (name in terms and terms[name] == value)
        }
        if other:
            other = {"query": asked["query"], **other}
            self.declared[reserved.name].setdefault(dump(other), other)

    def _assume(self, whose: int, assumptions: Mapping[str, str] | None) -> None:
        for name, text in (assumptions or {}).items():
            self.conditions[whose].setdefault(name, {})[text] = None

    def _event(self, body: Json) -> Event:
        """The event of this body, which is read once: most charges have that of others."""
        key = dump(body)
        if key not in self._events:
            self._events[key] = event_from_json(body)
        return self._events[key]
