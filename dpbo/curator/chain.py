"""The ledger's chain: records that carry their predecessor's hash and the running state, and the
rules by which one follows another.

The running state is the total cost, and the slots that a reservation has used where the record
changed them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from dpbo.accounting.calibration import budget_in_words
from dpbo.accounting.filters import Cost, filter_within
from dpbo.curator.birth import EVALUATIONS, FAILURE_PROBABILITY, IN_ALL, OF_EACH_ROW, Birth
from dpbo.curator.record_forms import require_form
from dpbo.errors import (
    BudgetExceeded,
    InputError,
    LedgerCorrupt,
    LedgerMismatch,
    PrivacyError,
    UsageError,
)
from dpbo.events import DeclassifiedEvent, Event, event_from_json

# values of JSON by name
Json = Mapping[str, Any]
_ORIGIN = "0" * 64
_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
# Names that BudgetExceeded shows.
_LISTED = 8
_read = json.JSONDecoder().raw_decode
_quoted = json.encoder.encode_basestring_ascii
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


@dataclass(frozen=True)
class Record:
    """One link of the chain. `body` is public: it holds promises, costs and released values; never
    a private number.
    """

    seq: int
    kind: str
    name: str
    body: dict[str, Any]
    previous: str
    hash: str

    @classmethod
    def following(cls, head: Record | None, kind: str, name: str, body: Json) -> Record:
        """The next link after `head`."""
        seq, previous = _place_after(head)
        # As it will be read: the caller may change its own.
        own: dict[str, Any] = json.loads(dump(body))
        return cls(seq, kind, name, own, previous, _digest(seq, kind, name, dump(own), previous))

    @classmethod
    def stored(cls, seq: int, kind: str, name: str, body: str, previous: str, hash: str) -> Record:
        """A link as it was stored. Raises LedgerCorrupt where its hash does not match its
        content.
        """
        try:
            content, end = _read(body)
            holds = (
                isinstance(content, dict)
                and end == len(body)
                and hash == _digest(seq, kind, name, body, previous)
            )
        except (ValueError, TypeError, RecursionError):
            holds = False
        if not holds:
            raise LedgerCorrupt(f"record {seq} does not match its hash: it was changed or cut off.")
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
            raise LedgerCorrupt(
                f"record {self.seq} cannot be read ({what}): it was changed, or a newer dpbo"
                " wrote it."
            ) from None


@dataclass(frozen=True)
class Reserved:
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
    terms: Json = field(repr=False)
    parallel: bool = False
    limit: int | None = None

    @property
    def releases(self) -> int:
        """How many releases there may be in all."""
        if not self.parallel:
            return self.slots
        if self.limit is not None:
            return self.limit
        return self.slots * int(self.terms["records"])

    def require_failure_probability(self, probability: float) -> None:
        """Raises InputError for a release that may fail with a larger probability than is
        stated.
        """
        if probability > self.terms.get(FAILURE_PROBABILITY, 0.0):
            allowed = (
                f"reserved for releases that fail with probability {probability!r}, though the"
                " assumptions hold"
            )
            remedy = (
                "Reserve it with terms={'assumptions': ..., 'failure_probability':"
                " query.failure_probability()}."
            )
            raise InputError("reservation", self.name, allowed, remedy)

    def to_json(self) -> dict[str, Any]:
        """The record's body."""
        return {**vars(self), "event": self.event.to_json(), "terms": dict(self.terms)}

    def public_inputs(self) -> dict[str, Any]:
        """What was declared public when it was made, and how many releases it has."""
        counts: dict[str, Any] = {EVALUATIONS: self.slots}
        if self.parallel:
            counts = {OF_EACH_ROW: self.slots, IN_ALL: self.limit or "all rows"}
        return {**counts, **self.terms, **counts}

    def require_same(self, wanted: Reserved) -> None:
        """Raises LedgerMismatch, naming the first term that differs; the event comes last, because
        it often follows from the others.

        A noise multiplier that another machine computed may differ in its last digits.
        """
        mine = self.event
        given = wanted.event
        close = math.isclose(mine.noise_multiplier, given.noise_multiplier, rel_tol=1e-9)
        same = close and dataclasses.replace(given, noise_multiplier=mine.noise_multiplier) == mine
        terms = [
            (term, self.terms.get(term), wanted.terms.get(term))
            for term in {**wanted.terms, **self.terms}
        ]
        compared: list[tuple[str, Any, Any]] = [
            ("evaluations", self.slots, wanted.slots),
            ("parallel", self.parallel, wanted.parallel),
            ("limit", self.limit, wanted.limit),
            *terms,
            ("event", mine, mine if same else given),
        ]
        remedy = (
            f"The reservation {self.name!r} exists: resume it with the terms that it was made with,"
            " or choose another name."
        )
        for term, old, new in compared:
            if old != new:
                raise LedgerMismatch(term, old, new, remedy)


class State(NamedTuple):
    """The state after a record: the total cost of everything reserved or charged, and the slots
    used of the reservation that it changed.
    """

    total: Cost
    used: Mapping[str, int]


@dataclass
class _Charged:
    """An event, its cost once it was asked for, how many charges of it count towards what is
    spent, and how often the budget paid for it.
    """

    event: Event
    cost: Cost | None = None
    times: int = 0
    paid: int = 0


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


class Tally:
    """Running totals of charges and reservations, for the statement.

    Attributes:
        exact, exact_charges: whether anything reserved or charged, or a charge, publishes exact
            answers that no named assumption declassifies.
        conditions: the texts of each data assumption, each once: of reservations, and of charges.
        failing: sum of the failure probabilities of everything reserved or charged, as decimals, as
            they were given, so that 0.1 and 0.2 are 0.3. A reservation that states one counts with
            all its slots from the start, and its charges add nothing.
        units: the newest number of units that a charge names.
        declared: by reservation, what questions under it declared otherwise than it says: each kind
            once, by its text.
        unreserved: what releases without a reservation declared, each kind once, by its text.
    """

    _kind: Declared

    def __init__(self) -> None:
        self.exact = False
        self.exact_charges = False
        self.failing = Decimal(0)
        self.conditions = dict[str, dict[str, None]](), dict[str, dict[str, None]]()
        self.units: int | None = None
        self.declared = dict[str, dict[str, dict[str, Any]]]()
        self.unreserved = dict[str, Declared]()
        self._loose = 0
        # Most questions declare what the one before did.
        self._last = dict[str | None, dict[str, Any]]()

    def reserve(self, reserved: Reserved) -> None:
        """Count a reservation."""
        assumptions = reserved.terms.get("assumptions")
        self._assume(0, assumptions)
        if (probability := reserved.terms.get(FAILURE_PROBABILITY)) is not None:
            self.failing += Decimal(repr(probability)) * reserved.releases
        self.exact |= reserved.event.free and not (
            isinstance(reserved.event, DeclassifiedEvent) and assumptions
        )

    def charge(self, body: Json, event: Event, reserved: Reserved | None) -> None:
        """Count a charge."""
        slots = body.get("slots", [])
        declassified = (
            isinstance(event, DeclassifiedEvent)
            and slots
            and all(slot.get("assumptions") for slot in slots)
        )
        if event.free and not declassified:
            self.exact = self.exact_charges = True
        if body.get("units") is not None:
            self.units = body["units"]
        reservation = None if reserved is None else reserved.name
        if reservation is not None:
            self.declared.setdefault(reservation, {})
        for slot in slots:
            self._assume(1, slot.get("assumptions"))
            asked = {"query": slot.get("query"), **slot.get("public", {})}
            if self._last.get(reservation) != asked:
                self._last[reservation] = asked
                if reserved is None:
                    new = Declared(asked, self._loose + 1)
                    self._kind = self.unreserved.setdefault(dump(asked), new)
                else:
                    self._declare(reserved, asked)
            if reserved is None:
                self.failing += Decimal(repr(slot.get(FAILURE_PROBABILITY, 0)))
                self._loose += 1
                self._kind.times += 1

    def _declare(self, reserved: Reserved, asked: Json) -> None:
        """Note what a question declared otherwise than its reservation says."""
        terms = reserved.public_inputs()
        other = {}
        for name, value in asked.items():
            stated = name in terms and terms[name] == value
            if name != "query" and not stated:
                other[name] = value
        if other:
            other = {"query": asked["query"], **other}
            self.declared[reserved.name].setdefault(dump(other), other)

    def _assume(self, whose: int, assumptions: Mapping[str, str] | None) -> None:
        for name, text in (assumptions or {}).items():
            self.conditions[whose].setdefault(name, {})[text] = None


class Chain:
    """A chain as far as it was verified. Its state is recomputed from the records, and compared
    with what they say of it.

    Attributes:
        birth: what the ledger is for; set by the first record, as `cap`, `total` and `tally`.
        cap: what its budget holds.
        total: what everything reserved or charged costs together.
        tally: what else a statement says of it.
        head: the newest record.
        used: slots that each reservation has used; of a parallel one, those of the part that was
            charged most often.
        reservations: by name.
        paid: what each reservation, and the releases of each name without one, took from the
            budget.
        parts: how often each part of the records was charged, by parallel reservation.
        handles: those that were charged.
        unanswered: charges without a value, by number.
        unreserved: names of releases without a reservation.
        charges: numbers of the charges to each reservation.
        values: number of the record of each value released from a reservation, in the order of
            release.
        notes: (kind, text) of every note, oldest first.
    """

    birth: Birth
    cap: Cost
    total: Cost
    tally: Tally
    _last_charged: _Charged

    def __init__(self) -> None:
        self.head: Record | None = None
        self.used = dict[str, int]()
        self.reservations = dict[str, Reserved]()
        self.paid = dict[str, Cost]()
        self.parts = dict[str, Counter[int]]()
        self.unanswered = dict[int, Record]()
        self.unreserved = dict[str, None]()
        self.charges = defaultdict[str, list[int]](list)
        self.values = defaultdict[str, list[int]](list)
        self.notes = dict[tuple[str, str], None]()
        self.handles = set[str]()
        self._asked = Counter[str]()
        self._events = dict[str, _Charged]()
        self._last_body: Json | None = None
        self._own = dict[str, Event]()

    @property
    def newest(self) -> Record:
        """The newest record of a chain that has one."""
        assert self.head is not None
        return self.head

    def next_state(self, kind: str, name: str, body: Json) -> State:
        """The state after a record of this content; nothing is changed. What is charged and what is
        verified follow from this alone.

        Raises:
            BudgetExceeded: it would pass the cap, or its reservation.
            InputError, LedgerMismatch, UsageError: it may not follow for another reason.
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
                charge = self.unanswered.get(body["entry"])
                if charge is None or not self._answers(charge, body["values"]):
                    raise InputError(
                        "entry",
                        body["entry"],
                        "the number of a charge of these values that has none",
                    )
                return State(self.total, {})
            case "reserve":
                if name in self.reservations:
                    raise InputError("name", name, "a name that no reservation has yet")
                total = self._total_with(
                    self._reserved(body), f"the reservation {name!r} of {body['slots']} slots"
                )
                return State(total, {name: 0})
            case "charge":
                charged = self._charged(body["event"])
                event = charged.event
                reservation = body["reservation"]
                if "slots" in body and len(body["slots"]) != event.count:
                    raise InputError(
                        "slots",
                        len(body["slots"]),
                        f"{event.count}, one for each release that is charged",
                    )
                handles = _handles(body)
                if len({*handles}) < len(handles) or not self.handles.isdisjoint(handles):
                    raise UsageError(
                        "a handle must be charged once, because what it answers is released once."
                    )
                if reservation is None:
                    return State(self._total_with(charged, f"the release {name!r}"), {})
                return State(self.total, {reservation: self._slots_with(event, reservation, body)})
        # `require_form` knows no other.
        raise AssertionError(kind)

    def carried(self, state: State) -> dict[str, Any]:
        """What a record carries of the state after it."""
        same = self.head is not None and state.total is self.total
        return {"total": self._total_text if same else str(state.total), "used": dict(state.used)}

    def follow(self, record: Record, state: State | None = None) -> None:
        """Take the next record in; its own hash was checked when it was read. Raises LedgerCorrupt
        where it does not follow.

        Args:
            state: the one after it where this process has just computed it to write the record.
        """
        try:
            if state is None:
                state = self.next_state(record.kind, record.name, record.body)
            if (record.seq, record.previous) != _place_after(self.head) or self.carried(
                state
            ) != record.body["state"]:
                raise ValueError("another place or another state")
            self._index(record, state)
        except (*_UNREADABLE, PrivacyError):
            raise LedgerCorrupt(
                f"record {record.seq} was changed, moved, or does not follow from the records"
                " before it."
            ) from None

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

    def _paid_for(self, name: str, cost: float) -> str:
        """What a reservation, or the releases of a name without one, cost, in words."""
        told = f"{cost:.6g} ({100 * cost / float(sum(self.cap.parts)):.4g} %"
        reserved = self.reservations.get(name)
        if reserved is None:
            return f"releases {name!r} {told})"
        return f"the reservation {name!r} {told}; {self.used[name]} of {reserved.slots} slots used)"

    def _index(self, record: Record, state: State) -> None:
        body = record.body
        match record.kind:
            case "birth":
                self.birth = Birth.from_json(body)
                self.cap = Cost.read(body["cap"])
                if not self.birth.accounting.may_hold(self.cap, self.birth.budget):
                    raise ValueError("a cap above the budget")
                self.tally = Tally()
            case "reserve":
                event = self._charged(body["event"]).event
                reserved = Reserved(
                    record.name,
                    event,
                    body["slots"],
                    body["terms"],
                    record.parallel,
                    body.get("limit"),
                )
                self.reservations[record.name] = reserved
                self.parts[record.name] = Counter()
                self._pay(record.name, self._reserved(body))
                self.tally.reserve(reserved)
            case "charge":
                self.unanswered[record.seq] = record
                self.handles.update(_handles(body))
                self._index_charge(record, self._charged(body["event"]))
            case "value":
                reservation = self.unanswered.pop(body["entry"]).body["reservation"]
                if reservation is not None:
                    self.values[reservation].extend([record.seq] * len(body["values"]))
            case _:
                self.notes[record.kind, record.name] = None
        self.head = record
        self.used.update(state.used)
        if record.kind == "birth" or state.total is not self.total:
            self.total = state.total
            self._total_text = str(state.total)

    def _index_charge(self, record: Record, charged: _Charged) -> None:
        reservation = record.body["reservation"]
        reserved = None if reservation is None else self.reservations[reservation]
        self.tally.charge(record.body, charged.event, reserved)
        if reserved is None:
            self.unreserved[record.name] = None
            self._pay(record.name, charged)
        else:
            self.charges[reservation].append(record.seq)
        if reserved is not None and reserved.parallel:
            self.parts[reservation].update(slot["part"] for slot in record.body["slots"])
            self._asked[reservation] += charged.event.count
        else:
            charged.times += 1

    @property
    def spent(self) -> Cost:
        """What the charges cost; under a parallel reservation, what those of the most often used
        part did.
        """
        spent = self.cap.zero
        for charged in self._events.values():
            if charged.times:
                spent += self._cost(charged) * Fraction(charged.times)
        for name, reserved in self.reservations.items():
            if reserved.parallel and self.used[name]:
                spent += self.birth.accounting.cost(reserved.event.repeated(self.used[name]))
        return spent

    def _pay(self, name: str, charged: _Charged) -> None:
        cost = self._cost(charged)
        self.paid[name] = self.paid[name] + cost if name in self.paid else cost
        charged.paid += 1

    def _cost(self, charged: _Charged) -> Cost:
        if charged.cost is None:
            charged.cost = self.birth.accounting.cost(charged.event)
        return charged.cost

    def _total_with(self, charged: _Charged, what: str) -> Cost:
        """The total once this event is added, or BudgetExceeded."""
        if charged.cost is None:
            self.birth.require_relation(charged.event)
        cost = self._cost(charged)
        total = self.total + cost
        if not total <= self.cap:
            raise self.exceeded(cost, what, self._other_filter(charged))
        return total

    def exceeded(self, cost: Cost, what: str, hint: str = "") -> BudgetExceeded:
        """The error of what would pass the cap."""
        part = (self.total + cost).first_beyond(self.cap)
        requested, spent, cap = (float(each.parts[part]) for each in (cost, self.total, self.cap))
        unit = self.birth.accounting.unit
        return BudgetExceeded(requested, cap - spent, cap, unit, what, self.account(), hint)

    def _other_filter(self, wanted: _Charged) -> str:
        """Which other accounting would have paid for everything so far and for this event, in a
        sentence; nothing where none would.
        """
        paid = [(each.event, each.paid) for each in self._events.values() if each.paid]
        other = filter_within([*paid, (wanted.event, 1)], self.birth.budget)
        if other is None or other == self.birth.accounting:
            return ""
        return (
            f"With accounting={other!r} this and all before it would have been within the budget;"
            " an accounting is chosen when a ledger is made, and stays."
        )

    def _slots_with(self, event: Event, reservation: str, body: Json) -> int:
        """The slots that the reservation has used after this charge.

        A reservation pays only for its own event, and under data assumptions that it has stated
        from the start. Slots of a parallel one are counted by the places of the records: another
        number of records has other places.
        """
        reserved = self.reservations.get(reservation)
        if reserved is None:
            raise InputError("reservation", reservation, "the name of a reservation")
        # Most charges have the event of the last one.
        if event is not self._own.get(reservation) and event != reserved.event.repeated(
            event.count
        ):
            raise InputError(
                "mechanism", event, f"the one that the reservation {reservation!r} was made for"
            )
        self._own[reservation] = event
        slots = body.get("slots", [])
        undeclared = set[str]()
        probability = 0.0
        for slot in slots:
            undeclared.update(slot.get("assumptions", {}))
            probability = max(probability, slot.get(FAILURE_PROBABILITY, 0.0))
        undeclared.difference_update(reserved.terms.get("assumptions") or {})
        if undeclared:
            remedy = "Reserve it with terms={'assumptions': dict(query.data_assumptions())}."
            raise InputError(
                "reservation",
                ", ".join(sorted(undeclared)),
                "reserved for releases under these data assumptions",
                remedy,
            )
        reserved.require_failure_probability(probability)
        before = self.used[reservation]
        after = before + event.count
        if reserved.parallel:
            new = self._parts_with(event, reserved, body)
            known = self.parts[reservation]
            before = max(known[part] for part in new)
            after = max(known[part] + count for part, count in new.items())
        if after > reserved.slots:
            what = f"the release from the reservation {reservation!r}"
            raise BudgetExceeded(
                after - before,
                reserved.slots - before,
                reserved.slots,
                "slots",
                what,
                self.account(),
            )
        return max(self.used[reservation], after)

    def _parts_with(self, event: Event, reserved: Reserved, body: Json) -> Counter[int]:
        """How often a charge to a parallel reservation is for each part of the records."""
        records = reserved.terms.get("records")
        if records != body.get("units"):
            raise LedgerMismatch(
                "records",
                records,
                body.get("units"),
                "Give the reservation's own records, in their order.",
            )
        new = Counter(slot.get("part") for slot in body.get("slots", []))
        if None in new or new.total() != event.count:
            raise InputError(
                "reservation",
                reserved.name,
                "used for questions about one part of the records each",
                "See Query.part.",
            )
        if reserved.limit is not None:
            left = reserved.limit - self._asked[reserved.name]
            if left < event.count:
                raise BudgetExceeded(
                    event.count,
                    left,
                    reserved.limit,
                    "answers",
                    f"the reservation {reserved.name!r}",
                    self.account(),
                )
        return new

    def _answers(self, charge: Record, values: Sequence[Json]) -> bool:
        """Whether a charge may have these values, one for each of its releases."""
        return len(values) == self._charged(
            charge.body["event"]
        ).event.count and names_same_handles(charge, values)

    def _reserved(self, body: Json) -> _Charged:
        """All slots of a reservation of this body: many reservations are alike."""
        # Raises where it is none.
        self._charged(body["event"])
        return self._charged({**body["event"], "count": body["slots"]})

    def _charged(self, body: Json) -> _Charged:
        """The event of this body, which is read once: most records of a chain hold that of the
        last.
        """
        if body != self._last_body:
            key = repr(body)
            if key not in self._events:
                self._events[key] = _Charged(event_from_json(body))
            self._last_charged = self._events[key]
            self._last_body = body
        return self._last_charged


def _place_after(head: Record | None) -> tuple[int, str]:
    """The number of the next record, and the hash of its predecessor."""
    if head is None:
        return (0, _ORIGIN)
    return (head.seq + 1, head.hash)


def _handles(body: Json) -> list[str]:
    """The handles that a charge names."""
    return [slot["handle"] for slot in body.get("slots", ()) if "handle" in slot]


def names_same_handles(charge: Record, values: Sequence[Json]) -> bool:
    """Whether these are the values of that charge's handles, as far as both name them."""
    charged = [slot.get("handle") for slot in charge.body.get("slots", [])]
    given = [value.get("handle") for value in values]
    return charged == given or not charged or None in (*charged, *given)


def dump(value: Any) -> str:
    """Canonical JSON: one text for one value, so that hashes are stable."""
    return _encode(value)


def require_hashes(rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """The hashes of records as they are stored, oldest first, each computed anew from what it
    covers. Raises LedgerCorrupt where one does not match, or does not follow from the last.

    What hashes cover is not looked at: where they end in that of a record that a chain holds, all
    records are those that the chain followed, unless two texts have one SHA-256.
    """
    last = _ORIGIN
    for place, (seq, kind, name, body, previous, hash) in enumerate(rows):
        try:
            follows = (seq, previous) == (place, last)
            holds = follows and hash == _digest(seq, kind, name, body, previous)
        except (TypeError, ValueError):
            # The database holds bytes or numbers in place of text.
            holds = False
        if not holds:
            raise LedgerCorrupt(f"record {place} was changed, moved, removed or put in.")
        last = hash
        yield hash


def _digest(seq: int, kind: str, name: str, body: str, previous: str) -> str:
    """The hash of `dump([seq, kind, name, body, previous])`."""
    # That call takes a fifth of a verification (benchmarks/ledger_growth.py, "statement").
    text = f"[{seq},{_quoted(kind)},{_quoted(name)},{_quoted(body)},{_quoted(previous)}]"
    return hashlib.sha256(text.encode()).hexdigest()
