"""The ledger's chain: records that name their predecessor's hash and carry the running state, and its replay from the first record on."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpbo.accounting.filters import Accounting, Cost
from dpbo.errors import LedgerCorrupt
from dpbo.events import Event, event_from_json

_ORIGIN = "0" * 64
_FORMS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "reserve": {"event": dict, "slots": int, "terms": dict},
    "charge": {"event": dict, "plan": (str, type(None))},
    "value": {"entry": int, "values": list},
}
_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


@dataclass(frozen=True)
class Record:
    """One link of the chain. `body` is public: it holds promises, costs, released values; never a private number."""

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
        content = dict(body)
        return cls(seq, kind, name, content, previous, _digest(seq, kind, name, dump(content), previous))

    @classmethod
    def stored(cls, seq: int, kind: str, name: str, body: str, previous: str, hash: str) -> Record:
        """A link as it was stored. Raises LedgerCorrupt where its hash does not match its content."""
        try:
            content = json.loads(body)
            sound = isinstance(content, dict) and hash == _digest(seq, kind, name, body, previous)
        except (ValueError, TypeError, RecursionError):
            sound = False
        if not sound:
            raise LedgerCorrupt(f"record {seq} does not match its hash: it was changed or cut off.")
        if any(not isinstance(content.get(term), form) or term not in content for term, form in _FORMS.get(kind, {}).items()):
            raise LedgerCorrupt(f"record {seq} has not the form of its kind, {kind!r}, though its hash holds: no dpbo wrote it.")
        return cls(seq, kind, name, content, previous, hash)

    @property
    def total(self) -> Cost:
        """Everything reserved or charged so far."""
        with stored_forms(self.seq):
            return Cost.read(self.body["state"]["total"])

    @property
    def event(self) -> Event:
        """Of a reservation, one slot's; of a charge, all slots'."""
        with stored_forms(self.seq):
            return event_from_json(self.body["event"])

    @property
    def parallel(self) -> bool:
        """Of a reservation: whether its slots are those of each part of the records."""
        return self.body.get("parallel", False) is True

    @property
    def parts(self) -> list[int]:
        """Of a charge under a parallel plan: the part that each slot is about."""
        with stored_forms(self.seq):
            return [slot["part"] for slot in self.body["slots"]]

    @property
    def used(self) -> dict[str, int]:
        """Slots charged so far, for each plan; of a parallel one, those of the part that was asked most often."""
        with stored_forms(self.seq):
            return {str(plan): int(slots) for plan, slots in self.body["state"]["used"].items()}


@contextlib.contextmanager
def stored_forms(seq: int) -> Iterator[None]:
    """Reads what stands in the record of this number. Raises LedgerCorrupt where it is not what any dpbo up to this one wrote."""
    try:
        yield
    except _UNREADABLE as error:
        told = f"{type(error).__name__}: {error}"
        raise LedgerCorrupt(f"record {seq} cannot be understood ({told}): it was changed, or written by a newer dpbo.") from None


def replay(chain: Iterable[Record], accounting: Accounting, cap: Cost) -> None:
    """Recompute every link, cost and slot. Raises LedgerCorrupt at the first record that does not follow, or passes the cap or its plan."""
    totals = Totals(accounting, cap)
    for record in chain:
        totals.follow(record)


class Totals:
    """The running state, recomputed from the records and kept apart from what they say of it.

    Attributes:
        head: the newest record that was followed.
        void: whether a record says that nothing is guaranteed.
        plans: the reservations, by name.
        paid: what each plan, and the releases of each name outside of plans, took from the budget.
        used: slots that were charged, by plan; of a parallel one, those of the part that was asked most often.
        parts: how often each part of the records was charged, by parallel plan.
    """

    def __init__(self, accounting: Accounting, cap: Cost) -> None:
        self._accounting, self._cap = accounting, cap
        self.head: Record | None = None
        self.void = False
        self.plans, self.paid, self.parts = dict[str, Record](), dict[str, Cost](), dict[str, Counter[int]]()
        self._total, self.used = cap.nothing, dict[str, int]()
        self._open, self._relation = dict[int, Record](), ""
        self._events = dict[str, Event]()

    def follow(self, record: Record) -> None:
        """Take the next record in; its own hash was checked when it was read. Raises LedgerCorrupt where it does not follow."""
        place = (0, _ORIGIN) if self.head is None else (self.head.seq + 1, self.head.hash)
        try:
            follows = (record.seq, record.previous) == place and self._after(record) == record.body["state"]
        except (*_UNREADABLE, LedgerCorrupt):
            follows = False
        if not follows:
            raise LedgerCorrupt(f"record {record.seq} was changed, moved, or does not follow from the records before it.")
        self.head = record

    def _after(self, record: Record) -> dict[str, Any]:
        """The state this record ought to carry. Raises ValueError where it could not have been written."""
        match record.kind:
            case "birth":
                _require(record.seq == 0)
                self._relation = record.body["adjacency"]
            case "reserve":
                _require(record.name not in self.plans)
                self.plans[record.name], self.used[record.name], self.parts[record.name] = record, 0, Counter()
                self._pay(record.name, self._event(record.body["event"]).repeated(record.body["slots"]))
            case "charge":
                self._charge(record)
            case "value":
                charge = self._open.pop(record.body["entry"])
                _require(len(record.body["values"]) == self._event(charge.body["event"]).slots and answers(charge, record.body["values"]))
            case "assume" | "void":
                self.void |= record.kind == "void"
            case _:
                raise ValueError(f"unknown kind {record.kind!r}")
        return {"total": str(self._total), "used": dict(self.used)}

    def _charge(self, record: Record) -> None:
        event, plan = self._event(record.body["event"]), record.body["plan"]
        _require(len(record.body.get("slots", range(event.slots))) == event.slots)
        self._open[record.seq] = record
        if plan is None:
            return self._pay(record.name, event)
        reserved = self.plans[plan].body
        if self.plans[plan].parallel:
            _require(all(map(is_part, record.parts)))
            _require("records" not in reserved["terms"] or record.body["units"] == reserved["terms"]["records"])  # see upgrades.py
            self.parts[plan].update(record.parts)
            self.used[plan] = max(self.parts[plan].values())
            _require(reserved.get("limit") is None or self.parts[plan].total() <= reserved["limit"])
        else:
            self.used[plan] += event.slots
        _require(event == self._event(reserved["event"]).repeated(event.slots) and self.used[plan] <= reserved["slots"])

    def _pay(self, name: str, event: Event) -> None:
        _require(event.relations() <= {self._relation})
        cost = self._accounting.cost(event)
        self._total, self.paid[name] = self._total + cost, self.paid.get(name, cost.nothing) + cost
        _require(self._total <= self._cap)

    def _event(self, body: Mapping[str, Any]) -> Event:
        """Most records of a chain say the same event: each is read once."""
        text = dump(body)
        if text not in self._events:
            self._events[text] = event_from_json(body)
        return self._events[text]


def answers(charge: Record, values: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these are the values of that charge's handles, as far as both name them."""
    asked, told = [slot.get("handle") for slot in charge.body.get("slots", [])], [value.get("handle") for value in values]
    return not asked or None in (*asked, *told) or asked == told


def is_part(part: Any) -> bool:
    """Whether this names a record's place."""
    return isinstance(part, int) and not isinstance(part, bool) and part >= 0


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError("the record could not have been written")


def _digest(seq: int, kind: str, name: str, body: str, previous: str) -> str:
    return hashlib.sha256(dump([seq, kind, name, body, previous]).encode()).hexdigest()


def dump(value: Any) -> str:
    """Canonical JSON: one text for one value, so that hashes are stable."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
