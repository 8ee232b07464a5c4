"""The ledger's chain: records that carry their predecessor's hash and the running state, and the rules by which one follows another.

The running state of schema 2 is the total cost, and the slots that a reservation has used where the record changed them. Schema 1 has the
slots of all reservations in every record; such a ledger is read, and continued, in its own form.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from dpbo.accounting.calibration import budget_in_words
from dpbo.accounting.filters import Cost
from dpbo.curator.birth import EVALUATIONS, FAILURE_PROBABILITY, IN_ALL, OF_EACH_ROW, Birth
from dpbo.curator.record_forms import require_form
from dpbo.errors import BudgetExceeded, InputError, LedgerCorrupt, LedgerMismatch, PrivacyError, UsageError
from dpbo.events import DeclassifiedEvent, Event, event_from_json

_ORIGIN = "0" * 64
_FIELDS: dict[str, tuple[tuple[str, type | tuple[type, ...]], ...]] = {
    "reserve": (("event", dict), ("slots", int), ("terms", dict)),
    "charge": (("event", dict), ("plan", (str, type(None)))),
    "value": (("entry", int), ("values", list)),
}
_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
_LISTED = 8  # names that BudgetExceeded shows
_read = json.JSONDecoder().raw_decode
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode
_quoted = json.encoder.encode_basestring_ascii


@dataclass(frozen=True, init=False)
class Record:
    """One link of the chain. `body` is public: it holds promises, costs and released values; never a private number."""

    seq: int
    kind: str
    name: str
    body: dict[str, Any]
    previous: str
    hash: str

    def __init__(self, seq: int, kind: str, name: str, body: dict[str, Any], previous: str, hash: str) -> None:
        vars(self).update(seq=seq, kind=kind, name=name, body=body, previous=previous, hash=hash)  # in half of a data class's time

    @classmethod
    def following(cls, head: Record | None, kind: str, name: str, body: Mapping[str, Any]) -> Record:
        """The next link after `head`."""
        return link(head, kind, name, body)[0]

    @classmethod
    def stored(cls, seq: int, kind: str, name: str, body: str, previous: str, hash: str) -> Record:
        """A link as it was stored. Raises LedgerCorrupt where its hash does not match its content."""
        try:
            content, end = _read(body)
            holds = isinstance(content, dict) and end == len(body) and hash == _digest(seq, kind, name, body, previous)
        except (ValueError, TypeError, RecursionError):
            holds = False
        if not holds:
            raise LedgerCorrupt(f"record {seq} does not match its hash: it was changed or cut off.")
        for key, form in _FIELDS.get(kind, ()):
            if key not in content or not isinstance(content[key], form):
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

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except _UNREADABLE as error:
            what = f"{type(error).__name__}: {error}"
            raise LedgerCorrupt(f"record {self.seq} cannot be read ({what}): it was changed, or a newer dpbo wrote it.") from None


@dataclass(frozen=True)
class ReservationEvent:
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

    @property
    def releases(self) -> int:
        """How many releases there may be in all."""
        if not self.parallel:
            return self.slots
        return self.limit if self.limit is not None else self.slots * int(self.terms["records"])

    def require_failure_probability(self, probability: float) -> None:
        """Raises InputError for a release that may fail with a larger probability than is stated."""
        if probability > self.terms.get(FAILURE_PROBABILITY, 0.0):
            allowed = f"reserved for releases that fail with probability {probability!r}, though the assumptions hold"
            remedy = "Reserve it with terms={'assumptions': ..., 'failure_probability': query.failure_probability()}."
            raise InputError("plan", self.name, allowed, remedy)

    def to_json(self) -> dict[str, Any]:
        """The record's body."""
        return {**vars(self), "event": self.event.to_json(), "terms": dict(self.terms)}

    def public_inputs(self) -> dict[str, Any]:
        """What was declared public when it was made, and how many releases it has."""
        counts = {OF_EACH_ROW: self.slots, IN_ALL: self.limit or "all rows"} if self.parallel else {EVALUATIONS: self.slots}
        return {**counts, **self.terms, **counts}

    def require_same(self, wanted: ReservationEvent) -> None:
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


class State(NamedTuple):
    """The state after a record: the total cost of everything reserved or charged, and the slots used of the reservation that it changed."""

    total: Cost
    used: Mapping[str, int]


class _Charged:
    """An event, its price once it was asked for, and how many charges of it count towards what is spent."""

    __slots__ = ("cost", "event", "times")

    def __init__(self, event: Event) -> None:
        self.event, self.times = event, 0
        self.cost: Cost | None = None


class Tally:
    """Running totals of charges and reservations, for the statement.

    Attributes:
        exact, exact_charges: whether anything reserved or charged, or a charge, publishes exact answers that no named assumption
            declassifies.
        conditions: the texts of each data assumption, each once: of reservations, and of charges.
        failing: sum of the failure probabilities of everything reserved or charged, as decimals, as they were given, so that 0.1 and 0.2
            are 0.3. A reservation that states one counts with all its slots from the start, and its charges add nothing.
        units: the newest number of units that a charge names.
        declared: by reservation, what questions under it declared otherwise than it says: each kind once, by its text.
        unplanned: what each release without a reservation declared.
    """

    def __init__(self) -> None:
        self.exact, self.exact_charges, self.failing = False, False, Decimal(0)
        self.conditions = dict[str, dict[str, None]](), dict[str, dict[str, None]]()
        self.units: int | None = None
        self.declared, self.unplanned = dict[str, dict[str, dict[str, Any]]](), list[dict[str, Any]]()
        self._last = dict[str | None, dict[str, Any]]()  # most questions declare what the one before did

    def reserve(self, reserved: ReservationEvent) -> None:
        """Count a reservation."""
        assumptions = reserved.terms.get("assumptions")
        self._assume(0, assumptions)
        if (probability := reserved.terms.get(FAILURE_PROBABILITY)) is not None:
            self.failing += Decimal(repr(probability)) * reserved.releases
        self.exact |= reserved.event.free and not (isinstance(reserved.event, DeclassifiedEvent) and assumptions)

    def charge(self, body: Mapping[str, Any], event: Event, reserved: ReservationEvent | None) -> None:
        """Count a charge."""
        slots = body.get("slots", [])
        if event.free and not (isinstance(event, DeclassifiedEvent) and slots and all(slot.get("assumptions") for slot in slots)):
            self.exact = self.exact_charges = True
        if (units := body.get("units")) is not None:
            self.units = units
        plan = None if reserved is None else reserved.name
        if plan is not None:
            self.declared.setdefault(plan, {})
        for slot in slots:
            if "assumptions" in slot:
                self._assume(1, slot["assumptions"])
            if FAILURE_PROBABILITY in slot and (reserved is None or FAILURE_PROBABILITY not in reserved.terms):
                self.failing += Decimal(repr(slot[FAILURE_PROBABILITY]))
            asked = {"query": slot.get("query"), **slot.get("public", {})}
            if self._last.get(plan) != asked:
                self._last[plan] = asked
                if reserved is not None:
                    terms = reserved.public_inputs()
                    public = slot.get("public", {})
                    if other := {name: value for name, value in public.items() if name not in terms or terms[name] != value}:
                        other = {"query": slot.get("query"), **other}
                        self.declared[reserved.name].setdefault(dump(other), other)
            if reserved is None:
                self.unplanned.append(self._last[plan])

    def _assume(self, whose: int, assumptions: Mapping[str, str] | None) -> None:
        for name, text in (assumptions or {}).items():
            self.conditions[whose].setdefault(name, {})[text] = None


class Chain:
    """A chain as far as it was verified. Its state is recomputed from the records, and compared with what they say of it.

    Attributes:
        birth: what the ledger is for; set by the first record, as `cap`, `total` and `tally`.
        cap: what its budget holds.
        total: what everything reserved or charged costs together.
        tally: what else a statement says of it.
        head: the newest record.
        used: slots that each reservation has used; of a parallel one, those of the part that was charged most often.
        reservations: by name.
        paid: what each reservation, and the releases of each name without one, took from the budget.
        parts: how often each part of the records was charged, by parallel reservation.
        unanswered: charges without a value, by number.
        unplanned: names of releases without a reservation.
        charges: numbers of the charges to each reservation.
        values: number of the record of each value released from a reservation, in the order of release.
        notes: (kind, text) of every note, oldest first.
    """

    birth: Birth
    cap: Cost
    total: Cost
    tally: Tally

    def __init__(self) -> None:
        self.head: Record | None = None
        self.used, self.reservations = dict[str, int](), dict[str, ReservationEvent]()
        self.paid, self.parts, self._asked = dict[str, Cost](), dict[str, Counter[int]](), Counter[str]()
        self.unplanned = dict[str, None]()
        self.unanswered, self.notes = dict[int, Record](), dict[tuple[str, str], None]()
        self.charges, self.values = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
        self._handles = set[bytes]()
        self._events, self._own = dict[Any, _Charged](), dict[str, Event]()
        self._newest: tuple[Any, _Charged | None] = None, None  # body and event of the newest charge

    def next_state(self, kind: str, name: str, body: Mapping[str, Any]) -> State:
        """The state after a record of this content; nothing is changed. What is charged and what is verified follow from this alone.

        Raises:
            BudgetExceeded: it would pass the cap, or its reservation. InputError, LedgerMismatch: it may not follow for another reason.
        """
        if (kind == "birth") is not (self.head is None):
            raise InputError("kind", kind, "a birth as the first record, and only there")
        require_form(kind, body)
        match kind:
            case "birth":
                return State(Cost.read(body["cap"]).zero, {})
            case "assume" | "void":
                return State(self.total, {})
            case "value":
                charge, values = self.unanswered.get(body["entry"]), body["values"]
                if (
                    charge is None
                    or len(values) != self._charged(charge.body["event"]).event.count
                    or not names_same_handles(charge, values)
                ):
                    raise InputError("entry", body["entry"], "the number of a charge of these values that has none")
                return State(self.total, {})
            case "reserve":
                if name in self.reservations:
                    raise InputError("name", name, "a name that no reservation has yet")
                total = self._total_with(self._reserved(body), f"the reservation {name!r} of {body['slots']} slots")
                return State(total, {name: 0})
            case "charge":
                charged, plan = self._charged(body["event"]), body["plan"]
                event = charged.event
                if "slots" in body and len(body["slots"]) != event.count:
                    raise InputError("slots", len(body["slots"]), f"{event.count}, one for each release that is charged")
                handles = _handles(body)
                if len({*handles}) < len(handles) or not self._handles.isdisjoint(handles):
                    raise UsageError("a handle must be charged once, because what it answers is released once.")
                if plan is None:
                    return State(self._total_with(charged, f"the release {name!r}"), {})
                return State(self.total, {plan: self._slots_with(event, plan, body)})
        raise AssertionError(kind)  # `require_form` knows no other

    def carried(self, state: State, body: Mapping[str, Any]) -> dict[str, Any]:
        """What the next record, of this body, carries of the state after it."""
        schema = body["schema"] if self.head is None else self._schema
        used = {**self.used, **state.used} if schema == 1 else dict(state.used)
        return {"total": self._total_text if self.head is not None and state.total is self.total else str(state.total), "used": used}

    def follow(self, record: Record, state: State | None = None) -> None:
        """Take the next record in; its own hash was checked when it was read. Raises LedgerCorrupt where it does not follow.

        Args:
            state: the one after it where this process has just computed it to write the record.
        """
        place = (0, _ORIGIN) if self.head is None else (self.head.seq + 1, self.head.hash)
        try:
            if state is None:
                state = self.next_state(record.kind, record.name, record.body)
            if (record.seq, record.previous) != place or self.carried(state, record.body) != record.body["state"]:
                raise ValueError("another place or another state")
            self._index(record, state)
        except (*_UNREADABLE, PrivacyError):
            raise LedgerCorrupt(f"record {record.seq} was changed, moved, or does not follow from the records before it.") from None

    def account(self) -> str:
        """The budget in epsilon and delta, and what was spent or reserved for what, for BudgetExceeded."""
        total = self.total
        whose = f"({budget_in_words(self.birth.budget)}) of {f'data set {self.birth.dataset!r}' if self.birth.dataset else 'these records'}"
        costs = {name: float(sum(cost.parts)) for name, cost in self.paid.items()}
        by_cost = sorted((name for name, cost in costs.items() if cost), key=lambda name: -costs[name])
        shown = list[str]()
        for name in by_cost[:_LISTED]:
            reserved, share = self.reservations.get(name), f"{100 * costs[name] / float(sum(self.cap.parts)):.4g} %"
            what = "releases" if reserved is None else "the reservation"
            slots = "" if reserved is None else f"; {self.used[name]} of {reserved.slots} slots used"
            shown.append(f"{what} {name!r} {costs[name]:.6g} ({share}{slots})")
        shown += [f"{len(by_cost) - _LISTED} others"] * (len(by_cost) > _LISTED)
        if not shown:
            return f"Nothing of the budget {whose} is spent or reserved."
        full = all(float(part) >= (1 - 1e-9) * cap for part, cap in zip(total.parts, self.cap.parts, strict=True))
        used = all(self.used[name] == reserved.slots for name, reserved in self.reservations.items())
        how = "used up" if full and used else f"spent or reserved {'in full' if full else 'in part'}"
        where = " `python -m dpbo ledger show FILE` lists what was released." if self.birth.dataset else ""
        remedy = " Unused slots of a reservation cannot be given to another: ask for no more than is left, for example by budget=0.5."
        remedy = remedy if self.reservations and not full and not self.birth.accounting.events else ""
        return f"The budget {whose} is {how}, in {self.birth.accounting.unit}: {', '.join(shown)}.{where}{remedy}"

    def _index(self, record: Record, state: State) -> None:
        body = record.body
        match record.kind:
            case "birth":
                self.birth, self.cap, self._schema = Birth.from_json(body), Cost.read(body["cap"]), body["schema"]
                if not self.birth.accounting.may_hold(self.cap, self.birth.budget):
                    raise ValueError("a cap above the budget")
                self.tally = Tally()
            case "reserve":
                event = self._charged(body["event"]).event
                reserved = ReservationEvent(record.name, event, body["slots"], body["terms"], record.parallel, body.get("limit"))
                self.reservations[record.name], self.parts[record.name] = reserved, Counter()
                self._pay(record.name, self._reserved(body))
                self.tally.reserve(reserved)
            case "charge":
                self.unanswered[record.seq] = record
                self._handles.update(_handles(body))
                charged, plan = self._charged(body["event"]), body["plan"]
                if plan is None:
                    self.unplanned[record.name] = None
                    self._pay(record.name, charged)
                    self.tally.charge(body, charged.event, None)
                else:
                    self.charges[plan].append(record.seq)
                    self.tally.charge(body, charged.event, self.reservations[plan])
                if plan is not None and self.reservations[plan].parallel:
                    self.parts[plan].update(slot["part"] for slot in body["slots"])
                    self._asked[plan] += charged.event.count
                else:
                    charged.times += 1
            case "value":
                if (plan := self.unanswered.pop(body["entry"]).body["plan"]) is not None:
                    self.values[plan].extend([record.seq] * len(body["values"]))
            case _:
                self.notes[record.kind, record.name] = None
        self.head = record
        self.used.update(state.used)
        if record.kind == "birth" or state.total is not self.total:
            self.total, self._total_text = state.total, str(state.total)

    @property
    def spent(self) -> Cost:
        """What the charges cost; under a parallel reservation, what those of the most often used part did."""
        plans = [*self.reservations.values()]
        parallel = [plan.event.repeated(slots) for plan in plans if plan.parallel and (slots := self.used[plan.name])]
        single = [self._cost(charged) * Fraction(charged.times) for charged in [*self._events.values()] if charged.times]
        return sum([*single, *map(self.birth.accounting.cost, parallel)], self.cap.zero)

    def _pay(self, name: str, charged: _Charged) -> None:
        cost = self._cost(charged)
        self.paid[name] = self.paid[name] + cost if name in self.paid else cost

    def _cost(self, charged: _Charged) -> Cost:
        if charged.cost is None:
            charged.cost = self.birth.accounting.cost(charged.event)
        return charged.cost

    def _total_with(self, charged: _Charged, what: str) -> Cost:
        """The total once this event is added, or BudgetExceeded."""
        if charged.cost is None:
            self.birth.require_relation(charged.event)
        cost, before, accounting = self._cost(charged), self.total, self.birth.accounting
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
        if event is not self._own.get(plan):
            if event != reserved.event.repeated(event.count):
                raise InputError("mechanism", event, f"the one that the reservation {plan!r} was made for")
            self._own[plan] = event
        undeclared = {name for slot in slots for name in slot.get("assumptions", {})}
        if undeclared and (undeclared := undeclared - set(reserved.terms.get("assumptions") or {})):
            remedy = "Reserve it with terms={'assumptions': dict(query.data_assumptions())}."
            raise InputError("plan", ", ".join(sorted(undeclared)), "reserved for releases under these data assumptions", remedy)
        # Older ledgers hold plans that state none, and releases that do.
        if FAILURE_PROBABILITY in reserved.terms:
            reserved.require_failure_probability(max((slot.get(FAILURE_PROBABILITY, 0.0) for slot in slots), default=0.0))
        before = used = self.used[plan]
        after = before + event.count
        if reserved.parallel:
            if (records := reserved.terms.get("records")) != body.get("units"):
                raise LedgerMismatch("records", records, body.get("units"), "Give the reservation's own records, in their order.")
            new, known = Counter(slot.get("part") for slot in slots), self.parts[plan]
            if not all(type(part) is int and part >= 0 for part in new) or new.total() != event.count:
                raise InputError("plan", plan, "used for questions about one part of the records each", "See Query.part.")
            if reserved.limit is not None and (left := reserved.limit - self._asked[plan]) < event.count:
                raise BudgetExceeded(event.count, left, reserved.limit, "answers", f"the reservation {plan!r}", self.account())
            before, after = max(known[part] for part in new), max(known[part] + count for part, count in new.items())
        if after > reserved.slots:
            what, left = f"the release from the reservation {plan!r}", reserved.slots - before
            raise BudgetExceeded(after - before, left, reserved.slots, "slots", what, self.account())
        return max(used, after)

    def _reserved(self, body: Mapping[str, Any]) -> _Charged:
        """All slots of a reservation of this body: many plans are alike."""
        self._charged(body["event"])  # raises where it is none
        return self._charged({**body["event"], "count": body["slots"]})

    def _charged(self, body: Mapping[str, Any]) -> _Charged:
        """Most records of a chain hold the same event: each is read once."""
        newest, known = self._newest
        if known is not None and newest == body:
            return known
        try:
            key: Any = tuple(sorted(body.items()))
            known = self._events.get(key)
        except TypeError:  # a list in it
            key = dump(body)
            known = self._events.get(key)
        if known is None:
            known = self._events[key] = _Charged(event_from_json(body))
        self._newest = body, known
        return known


def link(head: Record | None, kind: str, name: str, body: Mapping[str, Any]) -> tuple[Record, str]:
    """The next link after `head`, and its body as it is hashed and stored."""
    seq, previous = (0, _ORIGIN) if head is None else (head.seq + 1, head.hash)
    own: dict[str, Any] = json.loads(dump(body))  # as it will be read: the caller may change its own
    text = dump(own)
    return Record(seq, kind, name, own, previous, _digest(seq, kind, name, text, previous)), text


def _handles(body: Mapping[str, Any]) -> list[bytes]:
    """The handles that a charge names, shorter than as text."""
    return [hashlib.blake2b(slot["handle"].encode("utf-8", "surrogatepass"), digest_size=16).digest()
            for slot in body.get("slots", ()) if "handle" in slot]  # fmt: skip


def names_same_handles(charge: Record, values: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these are the values of that charge's handles, as far as both name them."""
    charged, given = [slot.get("handle") for slot in charge.body.get("slots", [])], [value.get("handle") for value in values]
    return charged == given or not charged or None in (*charged, *given)


def dump(value: Any) -> str:
    """Canonical JSON: one text for one value, so that hashes are stable."""
    return _encode(value)


def _digest(seq: int, kind: str, name: str, body: str, previous: str) -> str:
    text = f"[{seq},{_quoted(kind)},{_quoted(name)},{_quoted(body)},{_quoted(previous)}]"  # dump([seq, kind, name, body, previous])
    return hashlib.sha256(text.encode()).hexdigest()
