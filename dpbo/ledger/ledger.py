"""The ledger of one data set: what was promised, charged and released, in one append-only table.

Kinds of entry: `birth` (data set, unit, adjacency, budget, accounting), `reserve` (a reservation's
slots), `charge` (before any noise is drawn), `value` (what a charge released), `assume` and `void`
(what later statements must say). Each is written in one durable transaction, with no other writer
between: the newest entry is read, the cap or the reservation's slots are compared, the next entry
is inserted, and it is committed. It holds the total cost of everything so far, and a hash of its
own columns and of the hash before it. A process that is killed before the commit has written
nothing; after it, the charge stands, and its value is lost if it was not stored. A lost value is
never drawn again.

`verify`, `facts` (for a statement) and `records` (for an export) read every entry and compute every
hash anew, so a change, a gap and another order are found there. The loss of the newest entries, and
a table rewritten as a whole, are found against a head hash kept elsewhere; and against the newest
entry that this process saw, or that the file beside the ledger tells of (kept.py), at the start of
every transaction.

Who wrote an entry, when and why stands in it, under its hash, if the operator says so in the
environment variable DPBO_RUN_BY before the ledger is opened. dpbo writes no time of its own: when a
value was released tells how long the private scores took.
"""

import contextlib
import functools
import json
import logging
import os
import pathlib
import reprlib
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import starmap
from typing import Annotated, Any, NamedTuple, Self

import sqlalchemy as sa

from dpbo.accounting.filters import Cost
from dpbo.accounting.planned import Planned
from dpbo.errors import (
    BudgetExceeded,
    InputError,
    LedgerCorrupt,
    LedgerError,
    LedgerMismatch,
    LedgerMissing,
    LedgerRolledBack,
    Unshown,
)
from dpbo.events import Event
from dpbo.hidden_run import in_hidden_run
from dpbo.ledger.birth import Birth
from dpbo.ledger.entries import ORIGIN, Json, Record, Reserved, digest, dump, table
from dpbo.ledger.facts import Facts
from dpbo.ledger.kept import keep_head, kept_head, rolled_back
from dpbo.ledger.storage import SCHEMA, Storage
from dpbo.validation import PRINTABLE, Count, Within, checked, require_json

_LOG = logging.getLogger(__name__)
# The variable of the environment that names who runs this process, and its longest text.
RUN_BY = "DPBO_RUN_BY"
_LONGEST_SIGNATURE = 200
# Entries that are read together.
_AT_ONCE = 500
NOTES = ("assume", "void")
_COLUMN = table.c
_ALL = sa.select(table).order_by(_COLUMN.seq)
_HEAD = sa.select(_COLUMN.seq, _COLUMN.hash, _COLUMN.total).order_by(_COLUMN.seq.desc()).limit(1)
_NEWEST = sa.select(table).order_by(_COLUMN.seq.desc()).limit(sa.bindparam("count"))
# To build a statement takes longer than to execute it.
_AFTER = _ALL.where(_COLUMN.seq > sa.bindparam("after"))
_OF_RESERVATION = _ALL.where(
    _COLUMN.reservation == sa.bindparam("reservation"), _COLUMN.kind == sa.bindparam("kind")
)
_NEWER_OF_RESERVATION = _OF_RESERVATION.where(_COLUMN.seq > sa.bindparam("after"))
_NEWEST_OF_RESERVATION = (
    _OF_RESERVATION.order_by(None).order_by(_COLUMN.seq.desc()).limit(sa.bindparam("count"))
)


def _counted(kind: str, reservation: Any) -> sa.Function[int]:
    """What the newest entry of this kind counts of a reservation; 0 where there is none."""
    newest = table.alias()
    found = (
        sa.select(newest.c.used)
        .where(newest.c.reservation == reservation, newest.c.kind == kind)
        .order_by(newest.c.seq.desc())
        .limit(1)
        .scalar_subquery()
    )
    return sa.func.coalesce(found, 0)


_RESERVED = sa.select(
    _COLUMN.name, _COLUMN.body, _counted("charge", _COLUMN.name), _counted("value", _COLUMN.name)
).where(_COLUMN.kind == "reserve", _COLUMN.reservation.is_(None))
_NAMED = _RESERVED.where(_COLUMN.name == sa.bindparam("name"))
_HASH = sa.select(_COLUMN.hash).where(_COLUMN.seq == sa.bindparam("seq"))
_ANSWER = table.alias()
_CHARGE = sa.select(
    _COLUMN.reservation,
    sa.select(_ANSWER.c.seq).where(_ANSWER.c.answers == _COLUMN.seq).scalar_subquery(),
    _counted("value", _COLUMN.reservation),
).where(_COLUMN.seq == sa.bindparam("seq"), _COLUMN.kind == "charge")
_INSERT = table.insert()
_NAMES = [column.name for column in table.columns]
Text = Annotated[
    str,
    Within(
        "text of 1 to 200 printable characters",
        lambda value: 0 < len(value) <= 200 and value.isprintable(),
    ),
]
"""What every database keeps whole and finds again, and every terminal shows as it is."""


class Head(NamedTuple):
    """The newest entry, as the next one needs it."""

    seq: int
    hash: str
    total: str


class _Plan(NamedTuple):
    """A reservation, the slots that its charges have used, and those that values have filled."""

    reserved: Reserved
    used: int
    filled: int


@functools.lru_cache(maxsize=64)
def _reserved(name: str, body: str) -> Reserved:
    """A reservation from its entry, which never changes and is read for each charge."""
    return Reserved.of(name, json.loads(body))


@checked
class Ledger:
    """The table at a place.

    Args:
        url: file name, path or SQLAlchemy URL; None for the memory of this process.
        birth: what the ledger is made for. One that exists must have been made for the same.

    Attributes:
        birth, budget, accounting: what it was made for.
        id: of this ledger and its copies alone, wherever they lie.
        cap: what its budget holds, as computed when it was made: another machine's root finder may
            end a float away.
        fingerprints: of its reservations, where no file keeps them (kept.py).

    Raises:
        InputError: a budget that the accounting cannot serve.
        LedgerMismatch: it was made for something else; the error names what differs.
        LedgerUnavailable: it cannot be reached.
        LedgerCorrupt: it was damaged.
        LedgerRolledBack: it is an older copy.
    """

    def __init__(self, url: str | pathlib.Path | None, birth: Birth) -> None:
        for parameter, name in (("dataset", birth.dataset), ("unit", birth.unit)):
            if not name.isprintable():
                raise InputError(parameter, name, PRINTABLE)
        # Refuses before anything is written.
        cap = birth.cap()
        self._prepare(Storage(url))
        with self._transaction(writing=True, create=True) as connection:
            if self._head is None:
                if isinstance(birth.accounting, Planned):
                    # Exactly: only a ledger of another machine has room for its rounding.
                    birth.accounting.require_kept(birth.budget)
                # Not of the noise's entropy, which tests repeat.
                body = {
                    "schema": SCHEMA,
                    "id": uuid.uuid4().hex,
                    "cap": str(cap),
                    **birth.to_json(),
                }
                self._write(connection, "birth", "", body, cap.zero)
            self._bind(connection)
        assert self._seen is not None
        keep_head(self.storage, *self._seen)
        made_for = self.birth.to_json()
        for name, value in birth.to_json().items():
            if value != made_for[name]:
                remedy = (
                    "Pass what the ledger was made with. A second ledger for the same records does"
                    " not renew the budget: both add up."
                )
                if name == "units":
                    # Another ledger for what is left of these records would forget what was spent
                    # on them.
                    remedy = (
                        "Where the number of units is public it is part of the promise: give all of"
                        " them, and no other. Put a public stand-in record (such as zeros) in the"
                        " place of a unit that has left, and leave out one that has joined."
                    )
                if name == "federated":
                    remedy = (
                        "Ranks(trust='sum') show one another their ledgers. Give ledger= of each"
                        " rank a place of its own, apart from that of studies without the others;"
                        " the budgets of both add up."
                    )
                if name == "accounting":
                    kept = reprlib.repr(self.birth.accounting)
                    remedy = (
                        f"Give accounting={kept} of dpbo.accounting, to DPSearch in"
                        " privacy=Privacy(accounting=...): by itself it takes PureFilter() for few"
                        " releases and GDPFilter() for many. `tune` has a ledger of its own."
                    )
                raise LedgerMismatch(name, made_for[name], value, remedy)

    @classmethod
    def open(cls, url: str | pathlib.Path) -> Self:
        """Open a ledger to look at it: nothing is created."""
        ledger = cls.__new__(cls)
        ledger._prepare(Storage(url, create=False))
        with ledger._transaction() as connection:
            if ledger._head is None:
                raise LedgerMissing("the ledger is empty: its first record was never written.")
            ledger._bind(connection)
        return ledger

    def _prepare(self, storage: Storage) -> None:
        self.storage = storage
        self.fingerprints = dict[str, Any]()
        self._made_in_hidden_run = in_hidden_run.get() is not None
        self._signature = _signature()
        # The newest entry of the transaction under way, and the newest that this process saw.
        self._head: Head | None = None
        self._seen: tuple[int, str] | None = None
        # How often each part of the records was charged, and up to which entry that is counted, by
        # parallel reservation.
        self._parts = dict[str, tuple[int, Counter[int]]]()

    def _bind(self, connection: sa.Connection) -> None:
        """Read what the ledger was made for."""
        (row,) = connection.execute(_ALL.limit(1))
        first = Record.stored(*row)
        if first.kind != "birth":
            raise LedgerCorrupt("the ledger's first record is missing: it was removed.")
        if (schema := first.body.get("schema")) != SCHEMA:
            remedy = "Open it with the dpbo version that wrote it, or upgrade dpbo."
            raise LedgerMismatch("schema", schema, SCHEMA, remedy)
        try:
            self.id: str = first.body["id"]
            self.birth = Birth.from_json(first.body)
            self.cap = Cost.read(first.body["cap"])
        except (KeyError, TypeError, ValueError, ArithmeticError):
            raise LedgerCorrupt("the ledger's first record cannot be read.") from None
        self.budget = self.birth.budget
        self.accounting = self.birth.accounting

    def reserve(
        self,
        name: Text,
        event: Event,
        slots: Count,
        terms: Json,
        *,
        parallel: bool = False,
        limit: Count | None = None,
    ) -> Event:
        """Set aside `slots` times `event` under a name, or find that reservation again if its terms
        are the same.

        A parallel reservation has so many slots for each part of the records (`Curator.reserve`),
        and at most `limit` in all. Returns the event that is reserved. Recomputed on another
        machine it may differ in its last digits; the first one stands.
        """
        require_json("terms", terms)
        # In the order that they were given in: the first that differs is named.
        held = {term: json.loads(dump(value)) for term, value in terms.items()}
        wanted = Reserved(name, event, slots, held, parallel, limit if parallel else None)
        with self._transaction(writing=True) as connection:
            if (known := self._plan(connection, name)) is not None:
                known.reserved.require_same(wanted)
                return known.reserved.event
            what = f"the reservation {name!r} of {slots} slots"
            total = self._total_with(connection, event.repeated(slots), what)
            self._write(connection, "reserve", name, wanted.to_json(), total)
        _LOG.info("%r: reserved %d releases", name, slots)
        return event

    def charge(
        self,
        name: Text,
        event: Event,
        details: Json,
        reservation: str | None = None,
        *,
        used: int | None = None,
    ) -> int:
        """Charge one release before its noise is drawn; returns the entry's number once the charge
        is durable.

        With `reservation` it takes event.count slots from the reservation of that name, else its
        cost from the budget. With `used`, only if the reservation has used exactly so many slots
        before: for runs in which every release builds on the last.
        """
        require_json("details", details)
        body = {**details, "event": event.to_json()}
        with self._transaction(writing=True) as connection:
            if reservation is None:
                total = self._total_with(connection, event, f"the release {name!r}")
                return self._write(connection, "charge", name, body, total)
            before = self._require_slots(connection, event, reservation, body, used)
            after = before + event.count
            return self._write(connection, "charge", name, body, None, reservation, after)

    def store(self, entry: int, name: str, values: Sequence[Json]) -> None:
        """Keep what was drawn for a charge, one value a slot. Called again, it keeps it once: the
        first commit may have gone unanswered.
        """
        with self._transaction(writing=True) as connection:
            charge = connection.execute(_CHARGE, {"seq": entry}).first()
            if charge is None:
                raise LedgerRolledBack(
                    f"record {entry} is not the charge of these values: another copy was put in its"
                    " place."
                )
            reservation, answer, before = charge
            if answer is not None:
                return
            filled = 0 if reservation is None else before + len(values)
            body = {"values": list(values)}
            self._write(connection, "value", name, body, None, reservation, filled, entry)
        if reservation is None:
            _LOG.info("%r: released", name)
        elif _LOG.isEnabledFor(logging.INFO):
            held = self.reservation(reservation)
            slots = None if held is None else held.slots
            _LOG.info("%r: released %d of %d", reservation, self.counts(reservation)[0], slots)

    def note(self, kind: str, text: Text) -> None:
        """Note once, for every later statement: an assumption ("assume"), or why there is no
        guarantee ("void").

        Assumptions that no part of dpbo makes stand in the statement as the caller's own words.
        """
        if kind not in NOTES:
            raise InputError(
                "kind",
                kind,
                f"one of {NOTES}",
                "Every other kind of record says what was charged, and is written with it.",
            )
        with self._transaction(writing=True) as connection:
            if not self._named(connection, kind, text):
                self._write(connection, kind, text, {}, None)

    def charged(self, handle: str) -> bool:
        """Whether a charge names this handle; waits for a commit that is still under way."""
        named = sa.select(_COLUMN.seq).where(
            _COLUMN.kind == "charge", _COLUMN.body.contains(dump(handle), autoescape=True)
        )
        with self._transaction(writing=self.storage.file is None) as connection:
            return connection.execute(named.limit(1)).first() is not None

    def has_charges(self) -> bool:
        """Whether anything was charged, by this process or an earlier one."""
        charges = sa.select(_COLUMN.seq).where(_COLUMN.kind == "charge").limit(1)
        with self._transaction() as connection:
            return connection.execute(charges).first() is not None

    def values(self, reservation: str, *, skip: int = 0) -> list[dict[str, Any]]:
        """Every value released from a reservation, a slot each, in the order of release; but for
        the first `skip`, as many as an earlier call returned.
        """
        with self._transaction() as connection:
            plan = self._plan(connection, reservation)
            new = max(0, plan.filled - skip) if plan is not None else 0
            # An entry holds the values of all slots that were released together.
            rows = connection.execute(
                _NEWEST_OF_RESERVATION,
                {"reservation": reservation, "kind": "value", "count": new},
            ).all()
        found = list[dict[str, Any]]()
        for record in starmap(Record.stored, reversed(rows)):
            found += record.body["values"]
        return found[len(found) - new :]

    def used(self) -> dict[str, int]:
        """Slots charged so far, by reservation; for a parallel one, those of the part that was
        charged most often.
        """
        with self._transaction() as connection:
            rows = connection.execute(_RESERVED.order_by(_COLUMN.seq)).all()
            plans = [_Plan(_reserved(name, body), *counts) for name, body, *counts in rows]
            return {plan.reserved.name: self._busiest(connection, plan) for plan in plans}

    def counts(self, reservation: str) -> tuple[int, int]:
        """Slots that a reservation has used, as in `used`, and how many values it has released."""
        with self._transaction() as connection:
            plan = self._plan(connection, reservation)
            return (0, 0) if plan is None else (self._busiest(connection, plan), plan.filled)

    def reservation(self, name: str) -> Reserved | None:
        """The reservation of this name; None where there is none."""
        with self._transaction() as connection:
            plan = self._plan(connection, name)
        return None if plan is None else plan.reserved

    def charges(self, reservation: str) -> list[Record]:
        """Every charge to a reservation, oldest first."""
        return self._read(_OF_RESERVATION, reservation=reservation, kind="charge")

    def head(self) -> Record:
        """The newest entry."""
        (newest,) = self._read(_NEWEST, count=1)
        return newest

    def records(self, *, after: int | None = None) -> list[Record]:
        """All entries, every hash computed anew, or those that follow the one of this number;
        oldest first.
        """
        if after is not None:
            return self._read(_AFTER, after=after)
        with self._transaction() as connection:
            return list(starmap(Record.stored, _whole(connection)))

    def each(self) -> Iterator[Record]:
        """All entries, oldest first, a part in memory at a time; others may write between two
        parts.
        """
        for start in range(0, self.head().seq + 1, _AT_ONCE):
            part = _ALL.where(_COLUMN.seq >= start, _COLUMN.seq < start + _AT_ONCE)
            yield from self._read(part)

    def facts(self, *, expect: str | None = None) -> Facts:
        """What all entries say together. Every hash is computed anew. Raises what `verify` does."""
        self._require_whole(expect)
        with self._transaction() as connection:
            return _facts(connection, expect)

    def verify(self, *, expect: str | None = None) -> Record:
        """The newest entry of a table in which every hash holds. Raises LedgerCorrupt otherwise.

        Args:
            expect: a head hash kept elsewhere; it must occur in the table, or the ledger was rolled
                back or rewritten.
        """
        self._require_whole(expect)
        with self._transaction() as connection:
            for row in _whole(connection, expect):
                newest = row
        return Record.stored(*newest)

    def account(self) -> str:
        """The budget in epsilon and delta, and what was spent or reserved for what, for
        BudgetExceeded.
        """
        return self.facts().account()

    @property
    def void(self) -> bool:
        """Whether an entry says that nothing is guaranteed."""
        with self._transaction() as connection:
            return self._named(connection, "void")

    @contextlib.contextmanager
    def alone(self) -> Iterator[Head]:
        """Meanwhile no other process can write to the ledger. Nothing is written. Gives the newest
        entry.
        """
        with self._transaction(writing=True):
            assert self._head is not None
            yield self._head

    @contextlib.contextmanager
    def _transaction(
        self, *, writing: bool = False, create: bool = False
    ) -> Iterator[sa.Connection]:
        """A transaction on a table that holds the newest entry that was seen before. Raises
        LedgerRolledBack.
        """
        storage = self.storage
        with storage.lock:
            found = storage.found()
            known = self._seen is not None and storage.is_untouched(found)
            # Read before the table, which may grow meanwhile.
            kept = None if known else kept_head(storage)
            if writing:
                opened = storage.writing(create=create, found=found)
            else:
                opened = storage.reading(found)
            with opened as connection:
                row = connection.execute(_HEAD).first()
                self._head = None if row is None else Head(*row)
                before = self._head
                if self._seen is not None and not self._holds(connection, self._seen):
                    raise LedgerRolledBack(
                        f"record {self._seen[0]} is not the one that this process saw: another copy"
                        " was put in its place."
                    )
                if kept is not None and not self._holds(connection, kept):
                    raise rolled_back(storage, kept[0])
                if self._head is not None and self._head[:2] != self._seen:
                    # The next charge is added to its total.
                    newest, *last = connection.execute(_NEWEST, {"count": 2}).all()
                    _require_hash(newest, newest.seq, last[0].hash if last else ORIGIN)
                yield connection
            if self._head is not None:
                # Durable now: a place that loses it is noticed before the value of a charge goes
                # out.
                self._seen = self._head[:2]
                if self._head != before:
                    keep_head(storage, *self._seen)

    def _read(self, query: sa.Select[Any], **named: str | int) -> list[Record]:
        """The entries that a query selects."""
        with self._transaction() as connection:
            return list(starmap(Record.stored, connection.execute(query, named)))

    def _holds(self, connection: sa.Connection, seen: tuple[int, str]) -> bool:
        """Whether the table has an entry of this number and hash."""
        if self._head is not None and self._head[:2] == seen:
            return True
        return bool(connection.execute(_HASH, {"seq": seen[0]}).scalar() == seen[1])

    def _write(
        self,
        connection: sa.Connection,
        kind: str,
        name: str,
        body: Json,
        total: Cost | None,
        reservation: str | None = None,
        used: int = 0,
        answers: int | None = None,
    ) -> int:
        """Insert the next entry; the total stays where none is given. Its number.

        A hidden run writes to ledgers that it made in memory, and to no other: their records would
        tell how many runs there were.
        """
        if in_hidden_run.get() is not None and (
            self.storage.persistent or not self._made_in_hidden_run
        ):
            text = (
                "a run of a private selection writes to no ledger: its records would tell how many"
                " runs there were."
            )
            raise LedgerError(
                f"{text} The selection's base= says what a run costs. Release outside the"
                " selection."
            )
        head = self._head or Head(-1, ORIGIN, str(total))
        held = head.total if total is None else str(total)
        text = dump({**body, **self._signature})
        columns = (head.seq + 1, kind, name, reservation, used, answers, text, held)
        hash = digest(head.hash, *columns)
        connection.execute(_INSERT, dict(zip(_NAMES, (*columns, hash), strict=True)))
        self._head = Head(head.seq + 1, hash, held)
        return self._head.seq

    def _total_with(self, connection: sa.Connection, event: Event, what: str) -> Cost:
        """The total once this event is added. Raises BudgetExceeded."""
        self.birth.require_relation(event)
        cost = self.accounting.cost(event)
        assert self._head is not None
        total = Cost.read(self._head.total) + cost
        if not total <= self.cap:
            raise _facts(connection).exceeded(cost, what, event)
        return total

    def _require_slots(
        self,
        connection: sa.Connection,
        event: Event,
        name: str,
        body: Json,
        used: int | None,
    ) -> int:
        """Slots that a reservation has used before this charge. Raises where it does not pay for
        it: only for its own event, under data assumptions that it stated from the start, and for as
        many slots as are left.
        """
        plan = self._plan(connection, name)
        if plan is None:
            raise InputError("reservation", name, "the name of a reservation")
        reserved, in_all, _ = plan
        if event != reserved.event.repeated(event.count):
            raise InputError(
                "mechanism", event, f"the one that the reservation {name!r} was made for"
            )
        slots = body.get("slots", [])
        reserved.require_declared(slots)
        if used is not None and in_all != used:
            raise LedgerError(
                f"another process released from the reservation {name!r}; nothing was charged."
                " Open the run again to go on."
            )
        before, after = in_all, in_all + event.count
        if reserved.parallel:
            new = self._new_parts(connection, reserved, body, event.count, in_all)
            known = self._charged_parts(connection, name)
            before = max(known[part] for part in new)
            after = max(known[part] + count for part, count in new.items())
        if after > reserved.slots:
            what = f"the release from the reservation {name!r}"
            left = reserved.slots - before
            account = _facts(connection).account()
            raise BudgetExceeded(after - before, left, reserved.slots, "slots", what, account)
        return in_all

    def _new_parts(
        self, connection: sa.Connection, reserved: Reserved, body: Json, count: int, before: int
    ) -> Counter[int]:
        """How often a charge to a parallel reservation is for each part of the records. Slots are
        counted by the places of the records: another number of records has other places.
        """
        records = reserved.terms.get("records")
        if records != body.get("units"):
            raise LedgerMismatch(
                "records",
                records,
                body.get("units"),
                "Give the reservation's own records, in their order.",
            )
        new = Counter(slot.get("part") for slot in body.get("slots", []))
        if None in new or new.total() != count:
            raise InputError(
                "reservation",
                reserved.name,
                "used for questions about one part of the records each",
                "See Query.part.",
            )
        if reserved.limit is not None and before + count > reserved.limit:
            what = f"the reservation {reserved.name!r}"
            account = _facts(connection).account()
            left = reserved.limit - before
            raise BudgetExceeded(count, left, reserved.limit, "answers", what, account)
        return new

    def _charged_parts(self, connection: sa.Connection, reservation: str) -> Counter[int]:
        """How often each part of the records was charged to a parallel reservation. What an
        earlier call counted is not read again: entries do not change.
        """
        last, parts = self._parts.get(reservation, (0, Counter[int]()))
        named = {"reservation": reservation, "kind": "charge", "after": last}
        parts = parts.copy()
        for record in starmap(Record.stored, connection.execute(_NEWER_OF_RESERVATION, named)):
            parts.update(slot["part"] for slot in record.body["slots"])
            last = record.seq
        self._parts[reservation] = last, parts
        return parts

    def _plan(self, connection: sa.Connection, name: str) -> _Plan | None:
        """The reservation of this name; None where there is none."""
        row = connection.execute(_NAMED, {"name": name}).first()
        return None if row is None else _Plan(_reserved(row[0], row[1]), *row[2:])

    def _busiest(self, connection: sa.Connection, plan: _Plan) -> int:
        """Slots that are used; of a parallel reservation, those of the part charged most often."""
        if not plan.reserved.parallel:
            return plan.used
        return max(self._charged_parts(connection, plan.reserved.name).values(), default=0)

    def _named(self, connection: sa.Connection, kind: str, name: str | None = None) -> bool:
        """Whether there is an entry of this kind, and of this name where one is given."""
        own = (_COLUMN.kind == kind, _COLUMN.reservation.is_(None))
        query = sa.select(_COLUMN.seq).where(*own).limit(1)
        if name is not None:
            query = query.where(_COLUMN.name == name)
        return connection.execute(query).first() is not None

    def _require_whole(self, expect: str | None) -> None:
        if expect is not None and len(expect) != 64:
            raise InputError("expect", expect, "a whole head hash of 64 characters")
        self.storage.require_whole()


def _signature() -> dict[str, str]:
    """What the operator has records say of who writes them, and when. Raises InputError."""
    text = os.environ.get(RUN_BY, "")
    if not text:
        return {}
    if len(text) > _LONGEST_SIGNATURE or not text.isprintable():
        allowed = f"{PRINTABLE} and at most {_LONGEST_SIGNATURE} characters long"
        raise InputError(RUN_BY, Unshown(text), allowed, "It is a variable of the environment.")
    return {"run_by": text}


def _require_hash(row: Any, place: int, last: str) -> None:
    """Raises LedgerCorrupt unless this row has this place, and the hash that follows `last`."""
    try:
        holds = row.seq == place and row.hash == digest(last, *row[:-1])
    except (TypeError, ValueError):
        # The database holds bytes or numbers in place of text.
        holds = False
    if not holds:
        raise LedgerCorrupt(f"record {place} was changed, moved, removed or put in.")


def _whole(connection: sa.Connection, expect: str | None = None) -> Iterator[Any]:
    """All rows, oldest first, each hash computed anew. Raises LedgerCorrupt where one does not
    hold, and LedgerRolledBack where none of them is the expected one.
    """
    last = ORIGIN
    found = expect is None
    place = -1
    for place, row in enumerate(connection.execute(_ALL)):
        _require_hash(row, place, last)
        last = row.hash
        found |= last == expect
        yield row
    if place < 0:
        raise LedgerCorrupt("the ledger is empty: its records were removed.")
    if not found:
        raise LedgerRolledBack(
            "the expected head is not in the chain: it was rolled back or rewritten since that head"
            " was noted."
        )


def _facts(connection: sa.Connection, expect: str | None = None) -> Facts:
    facts = Facts()
    for row in _whole(connection, expect):
        facts.add(Record.stored(*row))
    return facts
