"""The ledger's chain: records that carry their predecessor's hash and the running state, and the rules by which one follows another."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from dpbo.accounting.calibration import budget_in_words
from dpbo.accounting.filters import Cost
from dpbo.curator.birth import Birth
from dpbo.errors import BudgetExceeded, InputError, LedgerCorrupt, LedgerMismatch, PrivacyError
from dpbo.events import Event, event_from_json

_ORIGIN = "0" * 64
_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "reserve": {"event": dict, "slots": int, "terms": dict},
    "charge": {"event": dict, "plan": (str, type(None))},
    "value": {"entry": int, "values": list},
}
_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
_LISTED = 8  # names that BudgetExceeded shows


@dataclass(frozen=True)
class Record:
    """One link of the chain. `body` is public: it holds promises, costs and released values; never a private number."""

    seq: int
    kind: str
    name: str
    body: dict[str, Any]
    previous: str
    hash: str

    @classmethod
    def following(cls, head: Record | None, kind: str, name: str, body: Mapping[str, Any]) -> Record:
        """The next link after `head`."""
        seq, previous = (0, _ORIGIN) if head is None else (head.seq + 1, head.hash)
        return cls(seq, kind, name, dict(body), previous, _digest(seq, kind, name, dump(body), previous))

    @classmethod
    def stored(cls, seq: int, kind: str, name: str, body: str, previous: str, hash: str) -> Record:
        """A link as it was stored. Raises LedgerCorrupt where its hash does not match its content."""
        try:
            content = json.loads(body)
            holds = isinstance(content, dict) and hash == _digest(seq, kind, name, body, previous)
        except (ValueError, TypeError, RecursionError):
            holds = False
        if not holds:
            raise LedgerCorrupt(f"record {seq} does not match its hash: it was changed or cut off.")
        if any(key not in content or not isinstance(content[key], form) for key, form in _FIELDS.get(kind, {}).items()):
            raise LedgerCorrupt(f"record {seq} lacks the fields of its kind, {kind!r}, though its hash holds: dpbo did not write it.")
        return cls(seq, kind, name, content, previous, hash)

    @property
    def total(self) -> Cost:
        """Everything reserved or charged so far."""
        with self._readable():
            return Cost.read(self.body["state"]["total"])

    @property
    def event(self) -> Event:
        """The event of one slot of a reservation, or of all slots of a charge."""
        with self._readable():
            return event_from_json(self.body["event"])

    @property
    def parallel(self) -> bool:
        """Whether a reservation has its slots for each part of the records."""
        return self.body.get("parallel") is True

    @property
    def used(self) -> dict[str, int]:
        """Slots charged so far, by reservation; for a parallel one, those of the part that was charged most often."""
        with self._readable():
            return {str(plan): int(slots) for plan, slots in self.body["state"]["used"].items()}

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except _UNREADABLE as error:
            what = f"{type(error).__name__}: {error}"
            raise LedgerCorrupt(f"record {self.seq} cannot be read ({what}): it was changed, or a newer dpbo wrote it.") from None


@dataclass(frozen=True)
class Reservation:
    """Budget that is set aside under a name.

    Attributes:
        name: under which it is resumed.
        event: one slot's.
        slots: how many there are; of a parallel reservation, for each part of the records.
        terms: the public facts that it was made with.
        parallel: whether each part of the records has its own slots (`Curator.reserve`).
        limit: how many releases of a parallel reservation there may be in all; None for no limit.
    """

    name: str
    event: Event
    slots: int
    terms: Mapping[str, Any] = field(repr=False)
    parallel: bool = False
    limit: int | None = None

    @classmethod
    def of(cls, record: Record) -> Self:
        """The reservation that a record of kind `reserve` holds."""
        body = record.body
        return cls(record.name, record.event, body["slots"], body["terms"], record.parallel, body.get("limit"))

    def to_json(self) -> dict[str, Any]:
        """The record's body."""
        return {**vars(self), "event": self.event.to_json(), "terms": dict(self.terms)}

    def require_same(self, wanted: Reservation) -> None:
        """Raises LedgerMismatch, naming the first term that differs; the event comes last, because it often follows from the others.

        A noise multiplier that another machine computed may differ in its last digits.
        """
        mine, given = self.event, wanted.event
        close = math.isclose(mine.noise_multiplier, given.noise_multiplier, rel_tol=1e-9)
        same = close and dataclasses.replace(given, noise_multiplier=mine.noise_multiplier) == mine
        compared: list[tuple[str, Any, Any]] = [
            ("evaluations", self.slots, wanted.slots),
            ("parallel", self.parallel, wanted.parallel),
            ("limit", self.limit, wanted.limit),
        ]
        compared += [(term, self.terms.get(term), wanted.terms.get(term)) for term in {**wanted.terms, **self.terms}]
        compared.append(("event", mine, mine if same else given))
        remedy = f"The reservation {self.name!r} exists: resume it with the terms that it was made with, or choose another name."
        for term, old, new in compared:
            if old != new:
                raise LedgerMismatch(term, old, new, remedy)


@dataclass(frozen=True)
class State:
    """What every record carries: the total cost of everything reserved or charged, and the slots that each reservation has used."""

    total: Cost
    used: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """As a record keeps it."""
        return {"total": str(self.total), "used": dict(self.used)}


class Chain:
    """A chain as far as it was verified. Its state is recomputed from the records, and compared with what they say of it.

    Attributes:
        birth: what the ledger is for; set by the first record, as `cap`.
        cap: what its budget holds.
        head: the newest record.
        state: the one after it.
        reservations: by name.
        paid: what each reservation, and the releases of each name without one, took from the budget.
        parts: how often each part of the records was charged, by parallel reservation.
        unanswered: charges without a value, by number.
        notes: (kind, text) of every note.
    """

    birth: Birth
    cap: Cost
    state: State

    def __init__(self) -> None:
        self.head: Record | None = None
        self.reservations, self.paid, self.parts = dict[str, Reservation](), dict[str, Cost](), dict[str, Counter[int]]()
        self.unanswered, self.notes = dict[int, Record](), set[tuple[str, str]]()
        self._events = dict[str, Event]()

    def next_state(self, kind: str, name: str, body: Mapping[str, Any]) -> State:
        """The state after a record of this content; nothing is changed. What is charged and what is verified follow from this alone.

        Raises:
            BudgetExceeded: it would pass the cap, or its reservation. InputError, LedgerMismatch: it may not follow for another reason.
        """
        if (kind == "birth") is not (self.head is None):
            raise InputError("kind", kind, "a birth as the first record, and only there")
        match kind:
            case "birth":
                return State(Cost.read(body["cap"]).zero, {})
            case "assume" | "void":
                return self.state
            case "value":
                charge, values = self.unanswered.get(body["entry"]), body["values"]
                if charge is None or len(values) != self._event(charge.body["event"]).slots or not names_same_handles(charge, values):
                    raise InputError("entry", body["entry"], "the number of a charge of these values that has none")
                return self.state
            case "reserve":
                if name in self.reservations:
                    raise InputError("name", name, "a name that no reservation has yet")
                event, slots = self._event(body["event"]), body["slots"]
                total = self._total_with(event.repeated(slots), f"the reservation {name!r} of {slots} slots")
                return State(total, {**self.state.used, name: 0})
            case "charge":
                event, plan = self._event(body["event"]), body["plan"]
                if len(body.get("slots", range(event.slots))) != event.slots:
                    raise InputError("slots", len(body["slots"]), f"{event.slots}, one for each release that is charged")
                if plan is None:
                    return State(self._total_with(event, f"the release {name!r}"), self.state.used)
                return State(self.state.total, {**self.state.used, plan: self._slots_with(event, plan, body)})
        raise InputError("kind", kind, f"one of {('birth', 'reserve', 'charge', 'value', 'assume', 'void')}")

    def follow(self, record: Record) -> None:
        """Take the next record in; its own hash was checked when it was read. Raises LedgerCorrupt where it does not follow."""
        place = (0, _ORIGIN) if self.head is None else (self.head.seq + 1, self.head.hash)
        try:
            state = self.next_state(record.kind, record.name, record.body)
            if (record.seq, record.previous) != place or state.to_json() != record.body["state"]:
                raise ValueError("another place or another state")
            self._index(record, state)
        except (*_UNREADABLE, PrivacyError):
            raise LedgerCorrupt(f"record {record.seq} was changed, moved, or does not follow from the records before it.") from None

    def account(self) -> str:
        """The budget in epsilon and delta, and what was spent or reserved for what, for BudgetExceeded."""
        total = self.state.total
        whose = f"({budget_in_words(self.birth.budget)}) of {f'data set {self.birth.dataset!r}' if self.birth.dataset else 'these records'}"
        costs = {name: float(sum(cost.parts)) for name, cost in self.paid.items()}
        by_cost = sorted((name for name, cost in costs.items() if cost), key=lambda name: -costs[name])
        shown = list[str]()
        for name in by_cost[:_LISTED]:
            reserved, share = self.reservations.get(name), f"{100 * costs[name] / float(sum(self.cap.parts)):.4g} %"
            what = "releases" if reserved is None else "the reservation"
            slots = "" if reserved is None else f"; {self.state.used[name]} of {reserved.slots} slots used"
            shown.append(f"{what} {name!r} {costs[name]:.6g} ({share}{slots})")
        shown += [f"{len(by_cost) - _LISTED} others"] * (len(by_cost) > _LISTED)
        if not shown:
            return f"Nothing of the budget {whose} is spent or reserved."
        full = all(float(part) >= (1 - 1e-9) * cap for part, cap in zip(total.parts, self.cap.parts, strict=True))
        used = all(self.state.used[name] == reserved.slots for name, reserved in self.reservations.items())
        how = "used up" if full and used else f"spent or reserved {'in full' if full else 'in part'}"
        where = " `python -m dpbo ledger show FILE` lists what was released." if self.birth.dataset else ""
        remedy = " Unused slots of a reservation cannot be given to another: ask for no more than is left, for example by budget=0.5."
        remedy = remedy if self.reservations and not full and not self.birth.accounting.events else ""
        return f"The budget {whose} is {how}, in {self.birth.accounting.unit}: {', '.join(shown)}.{where}{remedy}"

    def _index(self, record: Record, state: State) -> None:
        body = record.body
        match record.kind:
            case "birth":
                self.birth, self.cap = Birth.from_json(body), Cost.read(body["cap"])
                if not self.birth.accounting.may_hold(self.cap, self.birth.budget):
                    raise ValueError("a cap above the budget")
            case "reserve":
                self.reservations[record.name] = reserved = Reservation.of(record)
                self.parts[record.name] = Counter()
                self._pay(record.name, reserved.event.repeated(reserved.slots))
            case "charge":
                self.unanswered[record.seq] = record
                if (plan := body["plan"]) is None:
                    self._pay(record.name, self._event(body["event"]))
                elif self.reservations[plan].parallel:
                    self.parts[plan].update(slot["part"] for slot in body["slots"])
            case "value":
                del self.unanswered[body["entry"]]
            case _:
                self.notes.add((record.kind, record.name))
        self.head, self.state = record, state

    def _pay(self, name: str, event: Event) -> None:
        cost = self.birth.accounting.cost(event)
        self.paid[name] = self.paid.get(name, cost.zero) + cost

    def _total_with(self, event: Event, what: str) -> Cost:
        """The total once this event is added, or BudgetExceeded."""
        self.birth.require_relation(event)
        cost, before, accounting = self.birth.accounting.cost(event), self.state.total, self.birth.accounting
        total = before + cost
        if not total <= self.cap:
            part = total.first_beyond(self.cap)
            requested, spent, cap = (float(c.parts[part]) for c in (cost, before, self.cap))
            raise BudgetExceeded(requested, cap - spent, cap, accounting.unit, what, self.account())
        return total

    def _slots_with(self, event: Event, plan: str, body: Mapping[str, Any]) -> int:
        """The slots that the reservation has used after this charge.

        A reservation pays only for its own event, and under data assumptions that it has stated from the start. Slots of a parallel one
        are counted by the places of the records: another number of records has other places.
        """
        reserved, slots = self.reservations.get(plan), body.get("slots", [])
        if reserved is None:
            raise InputError("plan", plan, "the name of a reservation")
        if event != reserved.event.repeated(event.slots):
            raise InputError("mechanism", event, f"the one that the reservation {plan!r} was made for")
        undeclared = {name for slot in slots for name in slot.get("assumptions", {})} - set(reserved.terms.get("assumptions") or {})
        if undeclared:
            remedy = "Reserve it with terms={'assumptions': dict(query.data_assumptions())}."
            raise InputError("plan", ", ".join(sorted(undeclared)), "reserved for releases under these data assumptions", remedy)
        before = used = self.state.used[plan]
        after = before + event.slots
        if reserved.parallel:
            if (records := reserved.terms.get("records")) != body.get("units"):
                raise LedgerMismatch("records", records, body.get("units"), "Give the reservation's own records, in their order.")
            new, known = Counter(slot.get("part") for slot in slots), self.parts[plan]
            if not all(type(part) is int and part >= 0 for part in new) or new.total() != event.slots:
                raise InputError("plan", plan, "used for questions about one part of the records each", "See Query.part.")
            if reserved.limit is not None and known.total() + event.slots > reserved.limit:
                left = reserved.limit - known.total()
                raise BudgetExceeded(event.slots, left, reserved.limit, "answers", f"the reservation {plan!r}", self.account())
            before, after = max(known[part] for part in new), max(known[part] + count for part, count in new.items())
        if after > reserved.slots:
            what, left = f"the release from the reservation {plan!r}", reserved.slots - before
            raise BudgetExceeded(after - before, left, reserved.slots, "slots", what, self.account())
        return max(used, after)

    def _event(self, body: Mapping[str, Any]) -> Event:
        """Most records of a chain hold the same event: each is read once."""
        text = dump(body)
        if text not in self._events:
            self._events[text] = event_from_json(body)
        return self._events[text]


def replay(records: Iterable[Record]) -> Chain:
    """Recompute every link, cost and slot. Raises LedgerCorrupt at the first record that does not follow from those before it."""
    chain = Chain()
    for record in records:
        chain.follow(record)
    return chain


def names_same_handles(charge: Record, values: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these are the values of that charge's handles, as far as both name them."""
    charged, given = [slot.get("handle") for slot in charge.body.get("slots", [])], [value.get("handle") for value in values]
    return not charged or None in (*charged, *given) or charged == given


def dump(value: Any) -> str:
    """Canonical JSON: one text for one value, so that hashes are stable."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(seq: int, kind: str, name: str, body: str, previous: str) -> str:
    return hashlib.sha256(dump([seq, kind, name, body, previous]).encode()).hexdigest()
