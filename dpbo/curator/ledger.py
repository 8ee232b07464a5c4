"""The ledger: what was promised, charged and released on one data set, in an append-only chain of records.

Kinds of record: `birth` (data set, unit, adjacency, budget, accounting), `reserve` (a plan's slots), `charge` (before any noise is
drawn), `value` (what came out of an earlier charge), `assume` and `void` (what later statements must say). Every record carries the
running state (total cost, slots used by each plan) and the hash of its predecessor, so every change, gap and reordering is seen. The
whole chain is verified when the ledger is opened, and for each statement; every other call verifies the records that are new since, and
how many there are. The loss of the last records, and a chain rewritten whole, are seen against a head hash kept elsewhere; while a
ledger is open, against the newest record that this process wrote, read as the head or verified: it must stand in whatever is read or
written to afterwards.
A charge stands whatever happens next. A charge without a value is a lost release, never drawn again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from dpbo.accounting.filters import Accounting, Cost
from dpbo.accounting.gdp import epsilon_at
from dpbo.accounting.planned import Planned, accounting_named
from dpbo.curator.chain import Record, Totals, answers, dump, is_part, replay, stored_forms
from dpbo.curator.storage import Storage, Taken, table
from dpbo.curator.upgrades import upgraded, upgraded_value
from dpbo.errors import BudgetExceeded, InputError, LedgerCorrupt, LedgerError, LedgerMismatch
from dpbo.events import Event
from dpbo.privacy import Budget, require_count
from dpbo.statement import format_up
from dpbo.validation import checked, require_json

# ========== MERGED A plan's slots: what a charge leaves of them, and which charges and sessions may use them.


def with_slots(
    head: Record, reserved: Record | None, plan: str, event: Event, details: Mapping[str, Any], taken: Counter[int] | None,
    account: Callable[[], str],
) -> dict[str, Any]:  # fmt: skip
    """The state after this charge; `taken` by part, for a parallel plan."""
    if reserved is None:
        raise InputError("plan", plan, "the name of a plan that was reserved")
    if event != reserved.event.repeated(event.slots):
        raise InputError("mechanism", event, f"the one reserved for the plan {plan!r}")
    used, slots = head.used[plan], reserved.body["slots"]
    if taken is None:
        after = used + event.slots
    else:
        parts = Counter(slot.get("part") for slot in details.get("slots", []))
        if not all(map(is_part, parts)) or sum(parts.values()) != event.slots:
            raise InputError("plan", plan, "used for questions about one part of the records each", "See Query.part.")
        if (limit := reserved.body.get("limit")) is not None and taken.total() + event.slots > limit:
            raise BudgetExceeded(event.slots, limit - taken.total(), limit, "answers", f"the plan {plan!r}", account())
        after = max(used, *(taken[part] + count for part, count in parts.items()))
        used = max(taken[part] for part in parts)
    if after > slots:
        raise BudgetExceeded(after - used, slots - used, slots, "slots", f"the release for the plan {plan!r}", account())
    return {"total": str(head.total), "used": {**head.used, plan: after}}


def require_declared(reserved: Record | None, details: Mapping[str, Any]) -> None:
    """A plan's statement must have told from the start under which data assumptions it will release."""
    declared = {} if reserved is None else reserved.body["terms"].get("assumptions", {})
    asked = {name for slot in details.get("slots", []) for name in slot.get("assumptions", {})}
    if not asked <= set(declared):
        remedy = "Reserve it with terms={'assumptions': dict(query.data_assumptions())}."
        raise InputError("plan", ", ".join(sorted(asked)), "reserved for releases under these data assumptions", remedy)


def require_records(reserved: Record, details: Mapping[str, Any]) -> None:
    """Slots of a parallel plan are those of the records' places: another number of records has other places."""
    if (promised := reserved.body["terms"].get("records")) != details.get("units"):
        raise LedgerMismatch("records", promised, details.get("units"), "Give the records that the plan was made for, in their order.")


def same_event(known: Record, event: Event, wanted: Mapping[str, Any]) -> Event:
    """The reserved event of a plan that exists, where its terms are the wanted ones. Raises LedgerMismatch, naming one that is not."""
    stored, kept, given = known.body, known.event, event
    close = math.isclose(kept.noise_multiplier, given.noise_multiplier, rel_tol=1e-9)
    same = close and dataclasses.replace(given, noise_multiplier=kept.noise_multiplier) == kept
    events: dict[str, tuple[Any, Any]] = {"event": (kept, kept if same else given), "evaluations": (stored["slots"], wanted["slots"])}
    for term in ("parallel", "limit"):
        events[term] = stored.get(term), wanted.get(term)
    terms = {term: (stored["terms"].get(term), wanted["terms"].get(term)) for term in {**wanted["terms"], **stored["terms"]}}
    for term, (old, new) in {**events, **terms}.items():
        if old != new:
            remedy = f"The plan {known.name!r} exists: resume it with its own terms, or choose another name."
            raise LedgerMismatch(term, old, new, remedy)
    return kept


SCHEMA = 1
NOTES = ("assume", "void")
_LONGEST = 200  # characters of a name
_LISTED = 8  # names of what was spent


@checked
class Ledger:
    """The chain at `url` (None: memory). `birth` must be what an existing ledger was born with."""

    def __init__(self, url: str | None, birth: Mapping[str, Any]) -> None:
        require_json("birth", birth)
        cap = _cap(birth)  # refuses before anything is written
        self.storage = Storage(url)
        wanted = {"schema": SCHEMA, **birth}
        try:
            first = self._born(wanted, cap)
        except Taken:  # two processes gave birth at once; the other one's record stands
            first = self._born(wanted, cap)
        _require_same(first.body, wanted)
        self._bind(first)

    @classmethod
    def existing(cls, url: str) -> Ledger:
        """Open a ledger to look at it: nothing is created."""
        ledger = cls.__new__(cls)
        ledger.storage = Storage(url, create=False)
        with ledger.storage.reading() as connection:
            first = _read_one(connection, table.c.seq == 0)
        if first is None:
            raise LedgerError("the ledger is empty: it was never born.")
        _require_schema(first.body)
        ledger._bind(first)
        return ledger

    def _born(self, birth: Mapping[str, Any], cap: Cost) -> Record:
        with self.storage.writing() as connection:
            first = _read_one(connection, table.c.seq == 0)
            if first is None and isinstance(plan := accounting_named(birth["accounting"]), Planned):
                plan.require_kept(Budget.from_json(birth["budget"]))  # without the room of a ledger that another machine began
            return first or _append(
                connection, None, "birth", "", {**birth, "cap": str(cap), "state": {"total": str(cap.nothing), "used": {}}}
            )

    def _bind(self, first: Record) -> None:
        with stored_forms(first.seq):
            self.birth = upgraded(first.body)
            self.budget = Budget.from_json(self.birth["budget"])
            self.accounting: Accounting = accounting_named(self.birth["accounting"])
            self.cap = Cost.read(self.birth["cap"])  # kept: another machine's root finder may end a float away
        self._seen = first.seq, first.hash
        self._totals = Totals(self.accounting, self.cap)
        if not self.accounting.may_hold(self.cap, self.budget):
            raise LedgerCorrupt("the ledger states a cap above its budget.")
        self.head()  # verifies the chain

    def reserve(
        self, name: str, event: Event, slots: int, terms: Mapping[str, Any], *, parallel: bool = False, limit: int | None = None
    ) -> Event:
        """Take `slots` times `event` from the budget for the plan `name`, or find that plan again if its terms are the same.

        A parallel plan has so many slots for each part of the records (`Curator.reserve`), and at most `limit` in all.
        Returns the event that is reserved. Recomputed on another machine it may differ in its last digits; the first one stands.
        """
        _require_name("name", name)
        require_json("terms", terms)
        body = {"event": event.to_json(), "slots": require_count("slots", slots), "terms": dict(terms)}
        body |= {"parallel": True, "limit": limit} if parallel else {}
        with self._knowing(self.storage.writing()) as connection:
            known = _plan(connection, name)
            if known is not None:
                return same_event(known, event, body)
            head, total = self._paid(event.repeated(slots), f"the plan {name!r} of {slots} releases")
            if name in head.used:
                raise LedgerCorrupt(f"the ledger counts slots of the plan {name!r}, but its reservation is gone.")
            state = {"total": str(total), "used": {**head.used, name: 0}}
            reserved = _append(connection, head, "reserve", name, {**body, "state": state})
        self._saw(reserved)
        return event

    def charge(self, name: str, event: Event, details: Mapping[str, Any], plan: str | None = None, *, used: int | None = None) -> int:
        """Charge one release before its noise is drawn; returns the entry's number once the charge is durable.

        With `plan` it takes event.slots of what that plan reserved, else its cost from the budget. With `used`, only if the plan has
        used exactly so many slots before: for runs in which every release builds on the last.
        """
        _require_name("name", name)
        require_json("details", details)
        with self._knowing(self.storage.writing()) as connection:
            if plan is None:
                head, total = self._paid(event, f"the release {name!r}")
                state = {"total": str(total), "used": head.used}
            else:
                head = self._head
                if used is not None and head.used.get(plan) != used:
                    raise LedgerError(f"another process took a step of the plan {plan!r}; nothing was charged. Open the run anew to go on.")
                reserved = _plan(connection, plan)
                require_declared(reserved, details)
                taken = self._totals.parts[plan] if reserved is not None and reserved.parallel else None
                if reserved is not None and taken is not None:
                    require_records(reserved, details)
                state = with_slots(head, reserved, plan, event, details, taken, self.account)
            body = {"event": event.to_json(), "plan": plan, **details, "state": state}
            charged = _append(connection, head, "charge", name, body)
        self._saw(charged)  # durable now: a store that loses it is seen before the value of this charge goes out
        return charged.seq

    def store(self, entry: int, name: str, values: Sequence[Mapping[str, Any]]) -> None:
        """Keep what was drawn for a charge, one value a slot. Said twice, it is kept once: the first commit may have gone unanswered."""
        with self._knowing(self.storage.writing()) as connection:
            head, charge = self._head, _read_one(connection, table.c.seq == entry)
            if charge is None or charge.kind != "charge" or not answers(charge, values):
                raise LedgerCorrupt(f"record {entry} is not the charge of these values: another copy was put in its place.")
            later = _read(connection, (table.c.seq > entry) & (table.c.kind == "value") & (table.c.name == name))
            stored = next((record for record in later if record.body["entry"] == entry), None)
            if stored is None:
                stored = _append(connection, head, "value", name, {"entry": entry, "values": list(values), "state": head.body["state"]})
        self._saw(stored)

    def note(self, kind: str, text: str) -> None:
        """Note once, for every later statement: an assumption ("assume"), or why there is no guarantee ("void").

        Assumptions that no part of dpbo makes stand in the statement as the caller's own words.
        """
        if kind not in NOTES:
            raise InputError("kind", kind, f"one of {NOTES}", "Every other kind of record says what was charged, and is written with it.")
        _require_name("text", text)
        if not text:
            raise InputError("text", text, "a name or a sentence", "A reader of the statement must see what was noted.")
        with self._knowing(self.storage.writing()) as connection:
            noted = _read_one(connection, (table.c.kind == kind) & (table.c.name == text))
            if noted is None:
                noted = _append(connection, head := self._head, kind, text, {"state": head.body["state"]})
        self._saw(noted)

    def charged(self, handle: str) -> bool:
        """Whether a charge names this handle; waits for a commit that is still under way."""
        with self._knowing(self.storage.reading_after_writers()) as connection:
            return any(handle in dump(record.body) for record in _read(connection, table.c.kind == "charge"))

    def values(self, plan: str) -> list[dict[str, Any]]:
        """Every value released under a plan, a slot each, in the order of release."""
        with self._knowing(self.storage.reading()) as connection:
            charges = _charges(connection, plan)
            named = table.c.name.in_({record.name for record in charges})
            stored = _read(connection, (table.c.kind == "value") & named)
        entries = {record.seq for record in charges}
        return [upgraded_value(value) for record in stored if record.body["entry"] in entries for value in record.body["values"]]

    def plan(self, name: str) -> Record | None:
        """The reservation of this name."""
        with self._knowing(self.storage.reading()) as connection:
            return _plan(connection, name)

    def charges(self, plan: str) -> list[Record]:
        """Every charge under a plan, oldest first."""
        with self._knowing(self.storage.reading()) as connection:
            return _charges(connection, plan)

    def head(self) -> Record:
        """The newest record."""
        with self._knowing(self.storage.reading()):
            return self._head

    def records(self, *, after: int | None = None) -> list[Record]:
        """The whole chain, with whatever else stands in its table, or what follows the record of this number; oldest first."""
        with self._knowing(self.storage.reading()) as connection:
            return _read(connection, sa.true() if after is None else table.c.seq > after)

    def verified(self) -> list[Record]:
        """The whole chain, every hash and total recomputed.

        Raises LedgerCorrupt where a record does not follow from the last, or the newest one that this process saw is not among them.
        """
        self.storage.require_whole()
        chain = self.records()
        replay(chain, self.accounting, self.cap)
        self._saw(chain[-1])
        return chain

    def verify(self, *, expect: str | None = None) -> Record:
        """The newest record of a chain that holds. Raises LedgerCorrupt otherwise.

        Args:
            expect: a head hash kept elsewhere; it must occur in the chain, or the ledger was rolled back or rewritten.
        """
        if expect is not None and len(expect) != 64:
            raise InputError("expect", expect, "a whole head hash of 64 characters")
        chain = self.verified()
        if expect is not None and expect not in {record.hash for record in chain}:
            raise LedgerCorrupt("the expected head is not in the chain: it was rolled back or rewritten since that head was noted.")
        return chain[-1]

    def account(self) -> str:
        """The budget in epsilon and delta, and what was spent or reserved for what as this process last saw it, for BudgetExceeded."""
        budget, costs = self.budget, {name: float(sum(cost.parts)) for name, cost in self._totals.paid.items()}
        if budget.epsilon is not None:
            pair = f"epsilon {budget.epsilon:g} at delta {budget.delta:g}"
        elif budget.mu is not None and budget.delta is not None:
            pair = f"epsilon {format_up(epsilon_at(budget.mu, budget.delta))} at delta {budget.delta:g} (mu {budget.mu:g})"
        else:
            pair = f"mu {budget.mu:g}"
        largest = sorted((name for name, cost in costs.items() if cost), key=lambda name: -costs[name])
        used, plans = self._totals.used, self._totals.plans
        slots = {name: f" ({used[name]} of {plans[name].body['slots']} slots used)" for name in largest[:_LISTED] if name in plans}
        told = [f"{name!r} {costs[name]:.6g}{slots.get(name, '')}" for name in largest[:_LISTED]]
        told += [f"{len(largest) - _LISTED} others"] * (len(largest) > _LISTED)
        whose = repr(self.birth["dataset"]) if self.birth["dataset"] else "these records"
        return f"The budget of {whose} is {pair}. Spent or reserved of it, in {self.accounting.unit}: {', '.join(told) or 'nothing'}."

    @property
    def void(self) -> bool:
        """Whether this process last saw a record that says that nothing is guaranteed."""
        return self._totals.void

    @property
    def _head(self) -> Record:
        """The newest record, within a transaction or as last seen."""
        assert self._totals.head is not None
        return self._totals.head

    def _saw(self, record: Record) -> None:
        """A durable record: from here on a ledger without it is another one."""
        self._seen = max(self._seen, (record.seq, record.hash))  # threads may come here in another order than they wrote

    @contextlib.contextmanager
    def _knowing(self, opened: contextlib.AbstractContextManager[sa.Connection]) -> Iterator[sa.Connection]:
        """A transaction on a chain that holds, with the newest record that this process saw in it. Raises LedgerCorrupt."""
        seen = self._seen  # before the transaction's snapshot is taken: a later one may hold more, never less
        with opened as connection:
            try:
                self._follow(connection, seen)
            except BaseException:  # also an interrupt: what is half followed must not be followed twice
                self._totals = Totals(self.accounting, self.cap)
                raise
            yield connection

    def _follow(self, connection: sa.Connection, seen: tuple[int, str]) -> None:
        """Verify what is new since the last transaction, and that nothing is missing from what was verified before."""
        head = self._totals.head
        news: sa.ColumnElement[bool] = sa.true()
        if head is not None:
            news, seen = table.c.seq >= head.seq, max(seen, (head.seq, head.hash))
        counted = sa.select(sa.func.count()).select_from(table).scalar_subquery()
        rows = connection.execute(sa.select(table, counted).where(news).order_by(table.c.seq)).all()
        known = {row.seq: row.hash for row in rows}
        for seq, hash in (seen,) if head is None else (seen, (head.seq, head.hash)):
            if known.get(seq) != hash:
                raise LedgerCorrupt(f"record {seq} is not the one that this process saw: another copy was put in its place.")
        for *row, _ in rows if head is None else rows[1:]:
            self._totals.follow(Record.stored(*row))
        if (count := rows[-1][-1]) != (whole := self._head.seq + 1):
            raise LedgerCorrupt(f"the ledger holds {count} records where {whole} were written: one was removed or put in.")
        self._saw(self._head)

    def _paid(self, event: Event, what: str) -> tuple[Record, Cost]:
        """The newest record and the total once this event is added, or BudgetExceeded."""
        _require_relation(event, self.birth["adjacency"])
        head, cost = self._head, self.accounting.cost(event)
        with stored_forms(head.seq):
            total = head.total + cost
        if not total <= self.cap:
            part = total.first_beyond(self.cap)
            asked, spent, cap = (float(c.parts[part]) for c in (cost, head.total, self.cap))
            raise BudgetExceeded(asked, cap - spent, cap, self.accounting.unit, what, self.account())
        return head, total


def _plan(connection: sa.Connection, name: str) -> Record | None:
    return _read_one(connection, (table.c.kind == "reserve") & (table.c.name == name))


def _append(connection: sa.Connection, head: Record | None, kind: str, name: str, body: Mapping[str, Any]) -> Record:
    record = Record.following(head, kind, name, body)
    insert(connection, record)
    return record


def insert(connection: sa.Connection, record: Record) -> None:
    """Write one link, as it is."""
    row = {name: getattr(record, name) for name in ("seq", "kind", "name", "previous", "hash")}
    connection.execute(table.insert().values(**row, body=dump(record.body)))


def _charges(connection: sa.Connection, plan: str) -> list[Record]:
    return [record for record in _read(connection, table.c.kind == "charge") if record.body["plan"] == plan]


def _read(connection: sa.Connection, where: sa.ColumnElement[bool]) -> list[Record]:
    """These records, oldest first."""
    return [Record.stored(*row) for row in connection.execute(sa.select(table).where(where).order_by(table.c.seq))]


def _read_one(connection: sa.Connection, where: sa.ColumnElement[bool]) -> Record | None:
    row = connection.execute(sa.select(table).where(where).limit(1)).first()
    return None if row is None else Record.stored(*row)


def _cap(birth: Mapping[str, Any]) -> Cost:
    if missing := {"accounting", "adjacency", "budget"} - set(birth):
        raise InputError("birth", f"without {sorted(missing)}", "what a curator says of itself, with accounting, adjacency and budget")
    accounting = accounting_named(birth["accounting"])
    for event in accounting.events:
        _require_relation(event, birth["adjacency"])
    return accounting.cap(Budget.from_json(birth["budget"]))


def _require_relation(event: Event, adjacency: str) -> None:
    if not event.relations() <= {adjacency}:
        raise InputError(
            "relation", sorted(event.relations()), f"the ledger's own, {adjacency!r}", "See dpbo.accounting.convert_adjacency."
        )


def _require_name(parameter: str, name: str) -> None:
    """What every database keeps whole, and finds again: servers refuse or cut other names."""
    if not isinstance(name, str) or len(name) > _LONGEST or "\0" in name or _surrogates(name):
        raise InputError(parameter, name, f"text of at most {_LONGEST} characters, without NUL or surrogates")


def _surrogates(name: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in name)


def _require_schema(birth: Mapping[str, Any]) -> None:
    if birth.get("schema") != SCHEMA:
        raise LedgerMismatch("schema", birth.get("schema"), SCHEMA, "Open it with the dpbo version that wrote it, or upgrade dpbo.")


def _require_same(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    _require_schema(stored)
    for name, value in wanted.items():
        if stored.get(name) != value and not (name == "units" and name not in stored):  # older ledgers do not have it
            remedy = "One ledger protects one data set, under one promise: give what it was born with, or use another ledger."
            if name == "units":  # another ledger for what is left of these records would forget what was spent on them
                remedy = ("Where the number of units is public it is part of the promise: give all of them. Put a public stand-in record "
                          "(such as zeros) in the place of a unit that has left.")  # fmt: skip
            raise LedgerMismatch(name, stored.get(name), value, remedy)
