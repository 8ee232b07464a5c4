"""The ledger of one data set: what was promised, charged and released, in an append-only chain of
records.

Kinds of record: `birth` (data set, unit, adjacency, budget, accounting), `reserve` (a reservation's
slots), `charge` (before any noise is drawn), `value` (what a charge released), `assume` and `void`
(what later statements must say). Every record carries the running state (the total cost, and the
slots used of the reservation that it changed) and the hash of its predecessor, so every change, gap
and reordering is detected. The whole chain is verified when the ledger is opened, and for each
statement; every other call verifies the records that are new, and counts all where another
connection wrote. The loss of the last records, and a chain rewritten as a whole, are detected
against a head hash kept elsewhere; while a ledger is open, against the newest record that this
process wrote, read as the head or verified: whatever is read or written to afterwards must hold it.
A ledger in a file must also hold the newest record that the file of fingerprints beside it tells of
(reservation_fingerprints.py). A charge stands whatever happens next. A charge without a value is a
lost release and never drawn again.

Who wrote a record, when and why stands in it, under its hash, if the operator says so in the
environment variable DPBO_RUN_BY before the ledger is opened. dpbo writes no time of its own: when a
value was released tells how long the private scores took.
"""

import contextlib
import json
import logging
import os
import pathlib
import uuid
from collections.abc import Collection, Iterator, Sequence
from itertools import chain as chained
from itertools import starmap
from typing import Annotated, Any, Self

import sqlalchemy as sa

from dpbo.accounting.planned import Planned
from dpbo.curator.birth import Birth
from dpbo.curator.chain import (
    Chain,
    Json,
    Record,
    Reserved,
    State,
    dump,
    names_same_handles,
    require_hashes,
)
from dpbo.curator.reservation_fingerprints import keep_head, kept_head, require_kept_head
from dpbo.curator.storage import Storage, Taken, table
from dpbo.errors import (
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
from dpbo.validation import PRINTABLE, Count, Within, checked, require_json

_LOG = logging.getLogger(__name__)
SCHEMA = 1
# The variable of the environment that names who runs this process, and its longest text.
RUN_BY = "DPBO_RUN_BY"
_LONGEST_SIGNATURE = 200
# Records that are read together.
_AT_ONCE = 500
NOTES = ("assume", "void")
_ALL = sa.select(table).order_by(table.c.seq)
_NEWER = _ALL.add_columns(sa.select(sa.func.count()).select_from(table).scalar_subquery()).where(
    table.c.seq >= sa.bindparam("head")
)
_NUMBERED = _ALL.where(table.c.seq.in_(sa.bindparam("numbers", expanding=True)))
Text = Annotated[
    str,
    Within(
        "text of 1 to 200 printable characters",
        lambda value: 0 < len(value) <= 200 and value.isprintable(),
    ),
]
"""What every database keeps whole and finds again, and every terminal shows as it is."""


@checked
class Ledger:
    """The chain of records at a place.

    Args:
        url: file name, path or SQLAlchemy URL; None for the memory of this process.
        birth: what the ledger is made for. One that exists must have been made for the same.

    Attributes:
        birth, budget, accounting: what it was made for.
        id: of this ledger and its copies alone, wherever they lie.
        cap: what its budget holds, as computed when it was made: another machine's root finder may
            end a float away.
        fingerprints: of its reservations, where no file keeps them (reservation_fingerprints.py).

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
        # Not of the noise's entropy, which tests repeat.
        body = {
            "schema": SCHEMA,
            "id": uuid.uuid4().hex,
            "cap": str(birth.cap()),
            **birth.to_json(),
        }
        self.storage = Storage(url)
        try:
            first = self._first(birth, body)
        except Taken:
            # Two processes made it at once; the other one's record stands.
            first = self._first(birth, body)
        self._bind(first)
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
                if name == "accounting":
                    remedy = (
                        f"Give accounting={made_for[name]}, to DPSearch in"
                        " privacy=Privacy(accounting=...): by itself it takes PureFilter() for few"
                        " releases and GDPFilter() for many."
                    )
                raise LedgerMismatch(name, made_for[name], value, remedy)

    @classmethod
    def open(cls, url: str | pathlib.Path) -> Self:
        """Open a ledger to look at it: nothing is created."""
        ledger = cls.__new__(cls)
        ledger.storage = Storage(url, create=False)
        with ledger.storage.reading() as connection:
            first = _read_one(connection, 0)
            others = connection.execute(sa.select(sa.func.count()).select_from(table)).scalar()
        if first is None and others:
            raise LedgerCorrupt(
                "the ledger's first record is missing, though others are there: it was removed."
                " Charge nothing on it."
            )
        if first is None:
            raise LedgerMissing("the ledger is empty: its first record was never written.")
        ledger._bind(first)
        return ledger

    def _first(self, birth: Birth, body: Json) -> Record:
        with self.storage.writing() as connection:
            first = _read_one(connection, 0)
            if first is None:
                require_kept_head(self.storage, kept_head(self.storage), None)
                if isinstance(birth.accounting, Planned):
                    # Exactly: only a ledger of another machine has room for its rounding.
                    birth.accounting.require_kept(birth.budget)
                first, _ = _next(Chain(), "birth", "", body)
                insert(connection, first)
            return first

    def _bind(self, first: Record) -> None:
        if (schema := first.body.get("schema")) != SCHEMA:
            raise LedgerMismatch(
                "schema",
                schema,
                SCHEMA,
                "Open it with the dpbo version that wrote it, or upgrade dpbo.",
            )
        # Ledgers had none at first.
        self.id: str = first.body.get("id", first.hash)
        self._chain = Chain()
        self._seen = first.seq, first.hash
        self.fingerprints = dict[str, Any]()
        self._made_in_hidden_run = in_hidden_run.get() is not None
        self._signature = _signature()
        # Of the storage that holds the chain's records and no others.
        self._version: tuple[object, int, int] | None = None
        if (kept := kept_head(self.storage)) is not None:
            # Read before the chain, which may grow meanwhile.
            with self.storage.reading() as connection:
                there = _read_one(connection, kept[0])
            require_kept_head(self.storage, kept, None if there is None else there.hash)
        # Verifies the chain.
        self.head()
        self.birth = self._chain.birth
        self.cap = self._chain.cap
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
        wanted = Reserved(
            name,
            event,
            slots,
            json.loads(json.dumps(dict(terms))),
            parallel,
            limit if parallel else None,
        )
        with self._transaction(self.storage.writing()) as connection:
            if (known := self._chain.reservations.get(name)) is not None:
                known.require_same(wanted)
                return known.event
            self._write(connection, "reserve", name, wanted.to_json())
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
        with self._transaction(self.storage.writing()) as connection:
            if used is not None and self._chain.used.get(str(reservation)) != used:
                what = (
                    f"another process released from the reservation {reservation!r};"
                    " nothing was charged."
                )
                raise LedgerError(f"{what} Open the run again to go on.")
            entry = self._write(
                connection,
                "charge",
                name,
                {**details, "event": event.to_json(), "reservation": reservation},
            )
        # Of records that are protected elsewhere, whatever this ledger's own noise is worth.
        return entry.seq

    def store(self, entry: int, name: str, values: Sequence[Json]) -> None:
        """Keep what was drawn for a charge, one value a slot. Called again, it keeps it once: the
        first commit may have gone unanswered.
        """
        with self._transaction(self.storage.writing()) as connection:
            charge = self._chain.unanswered.get(entry) or _read_one(connection, entry)
            if charge is None or charge.kind != "charge" or not names_same_handles(charge, values):
                raise LedgerRolledBack(
                    f"record {entry} is not the charge of these values: another copy was put in its"
                    " place."
                )
            if entry not in self._chain.unanswered:
                return
            self._write(connection, "value", name, {"entry": entry, "values": list(values)})
            reserved = self._chain.reservations.get(charge.body["reservation"] or "")
            used = 0 if reserved is None else self._chain.used[reserved.name]
        if reserved is None:
            _LOG.info("%r: released", name)
        else:
            _LOG.info("%r: released %d of %d", reserved.name, used, reserved.slots)

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
        with self._transaction(self.storage.writing()) as connection:
            if (kind, text) in self._chain.notes:
                return
            self._write(connection, kind, text, {})

    def charged(self, handle: str) -> bool:
        """Whether a charge names this handle; waits for a commit that is still under way."""
        with self._transaction(self.storage.reading_after_writers()):
            return handle in self._chain.handles

    def values(self, reservation: str, *, skip: int = 0) -> list[dict[str, Any]]:
        """Every value released from a reservation, a slot each, in the order of release; but for
        the first `skip`, as many as an earlier call returned."""
        with self._transaction(self.storage.reading()) as connection:
            records = self._chain.values.get(reservation, [])
            new = records[skip:]
            found = list[dict[str, Any]]()
            for record in _numbered(connection, dict.fromkeys(new)):
                found += record.body["values"]
            # a record holds the values of all slots that were released together
            return found[len(found) - len(new) :]

    def used(self, *, newest: bool = True) -> dict[str, int]:
        """Slots charged so far, by reservation; for a parallel one, those of the part that was
        charged most often.

        Args:
            newest: whether to look for what other processes have charged since this one last read
                or wrote.
        """
        with self._newest() if newest else self.storage.lock:
            return dict(self._chain.used)

    def reservation(self, name: str) -> Reserved | None:
        """The reservation of this name; None where there is none."""
        with self._newest():
            return self._chain.reservations.get(name)

    def charges(self, reservation: str) -> list[Record]:
        """Every charge to a reservation, oldest first."""
        with self._transaction(self.storage.reading()) as connection:
            return _numbered(connection, self._chain.charges.get(reservation, []))

    def head(self) -> Record:
        """The newest record."""
        with self._newest():
            return self._chain.newest

    def records(self, *, after: int | None = None) -> list[Record]:
        """The whole chain, with whatever else stands in its table, or what follows the record of
        this number; oldest first.
        """
        with self._transaction(self.storage.reading()) as connection:
            return _read(connection, sa.true() if after is None else table.c.seq > after)

    def each(self) -> Iterator[Record]:
        """The whole chain, oldest first, a part in memory at a time; others may write between two
        parts.
        """
        for start in range(0, self.head().seq + 1, _AT_ONCE):
            with self._transaction(self.storage.reading()) as connection:
                part = _numbered(connection, range(start, start + _AT_ONCE))
            yield from part

    def chain(self) -> Chain:
        """The chain as verified so far, with what is new; read it, change nothing."""
        with self._newest():
            return self._chain

    def verified(self, *, expect: str | None = None) -> Chain:
        """The whole chain, read again, every hash recomputed. Read it, change nothing.

        Every total was recomputed when this process first read or wrote its record. The hashes end
        in that of the newest one, so these are the same records.

        Raises LedgerCorrupt where a record does not follow from the last, or the newest one that
        this process saw is not among them.

        Args:
            expect: a head hash kept elsewhere; it must occur in the chain, or the ledger was rolled
                back or rewritten.
        """
        if expect is not None and len(expect) != 64:
            raise InputError("expect", expect, "a whole head hash of 64 characters")
        self.storage.require_whole()
        found = expect is None
        with self._transaction(self.storage.reading()) as connection:
            last = ""
            rows = connection.execute(_ALL).partitions(_AT_ONCE)
            for last in require_hashes(chained.from_iterable(rows)):
                found |= last == expect
            chain = self._chain
            if last != chain.newest.hash:
                raise LedgerCorrupt("the ledger's records are not those that this process read.")
        if not found:
            raise LedgerRolledBack(
                "the expected head is not in the chain: it was rolled back or rewritten since that"
                " head was noted."
            )
        return chain

    def verify(self, *, expect: str | None = None) -> Record:
        """The newest record of a chain that holds. Raises LedgerCorrupt otherwise.

        Args:
            expect: a head hash kept elsewhere; it must occur in the chain, or the ledger was rolled
                back or rewritten.
        """
        return self.verified(expect=expect).newest

    def account(self) -> str:
        """The budget in epsilon and delta, and what was spent or reserved for what as this process
        last saw it, for BudgetExceeded.
        """
        return self._chain.account()

    @property
    def void(self) -> bool:
        """Whether this process last saw a record that says that nothing is guaranteed."""
        return any(kind == "void" for kind, _ in self._chain.notes)

    @contextlib.contextmanager
    def alone(self) -> Iterator[Record]:
        """Meanwhile no other process can write to the ledger. Nothing is written. Gives the newest
        record.
        """
        with self._transaction(self.storage.writing()):
            yield self._chain.newest

    def _saw(self, record: Record) -> None:
        """A durable record: from here on a ledger without it is another one."""
        self._seen = max(self._seen, (record.seq, record.hash))

    @contextlib.contextmanager
    def _transaction(
        self, opened: contextlib.AbstractContextManager[sa.Connection]
    ) -> Iterator[sa.Connection]:
        """A transaction on a chain that holds, with the newest record that this process saw in it.
        Raises LedgerCorrupt.
        """
        with self.storage.lock:
            self._written = list[tuple[Record, State]]()
            with opened as connection:
                try:
                    self._follow(connection)
                except BaseException:
                    # Also an interrupt: what is half followed must not be followed twice.
                    self._chain = Chain()
                    raise
                yield connection
            for record, state in self._written:
                # Durable now: a store that loses it is detected before the value of a charge goes
                # out.
                self._saw(record)
                try:
                    self._chain.follow(record, state)
                except BaseException:
                    self._chain = Chain()
                    raise
            if self._written:
                keep_head(self.storage, *self._seen)
            if self._version is not None:
                # Last: interrupted before, the next transaction reads the records.
                self._version = (*self._version[:2], self.storage.written)

    @contextlib.contextmanager
    def _newest(self) -> Iterator[None]:
        """Hold the lock on a chain with everything that was written so far. There is a transaction
        only where somebody else wrote.
        """
        with self.storage.lock:
            if self._chain.head is None or not self.storage.is_at(self._version):
                with self._transaction(self.storage.reading()):
                    pass
            yield

    def _follow(self, connection: sa.Connection) -> None:
        """Verify what is new since the last transaction, and that nothing is missing from what was
        verified before.
        """
        head = self._chain.head
        version = self.storage.version(connection)
        if head is not None and version is not None and version == self._version:
            return
        last = None if head is None else (head.seq, head.hash)
        missing = {self._seen} if last is None else {last, max(last, self._seen)}
        count = 0
        # In parts: all records at once would leave no room in caches for anything else.
        rows = connection.execute(_NEWER, {"head": 0 if last is None else last[0]}).partitions(
            _AT_ONCE
        )
        for seq, kind, name, body, previous, hash, written in chained.from_iterable(rows):
            missing.discard((seq, hash))
            if last in missing:
                break
            count = written
            if last is None or seq > last[0]:
                self._chain.follow(Record.stored(seq, kind, name, body, previous, hash))
        if missing:
            text = (
                f"record {min(missing)[0]} is not the one that this process saw: another copy was"
                " put in its place."
            )
            raise LedgerRolledBack(text)
        newest = self._chain.newest
        if count != newest.seq + 1:
            raise LedgerCorrupt(
                f"the ledger holds {count} records where {newest.seq + 1} were written: one was"
                " removed or put in."
            )
        self._saw(newest)
        self._version = version

    def _write(self, connection: sa.Connection, kind: str, name: str, body: Json) -> Record:
        """The next record of the chain, which follows once it is durable.

        Raises what `Chain.next_state` does, with nothing written.
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
        record, state = _next(self._chain, kind, name, {**body, **self._signature})
        insert(connection, record)
        self._written.append((record, state))
        return record


def _signature() -> dict[str, str]:
    """What the operator has records say of who writes them, and when. Raises InputError."""
    text = os.environ.get(RUN_BY, "")
    if not text:
        return {}
    if len(text) > _LONGEST_SIGNATURE or not text.isprintable():
        allowed = f"{PRINTABLE} and at most {_LONGEST_SIGNATURE} characters long"
        raise InputError(RUN_BY, Unshown(text), allowed, "It is a variable of the environment.")
    return {"run_by": text}


def _next(chain: Chain, kind: str, name: str, body: Json) -> tuple[Record, State]:
    """The next record of a chain, and the state after it."""
    state = chain.next_state(kind, name, body)
    return Record.following(chain.head, kind, name, {**body, "state": chain.carried(state)}), state


def insert(connection: sa.Connection, record: Record) -> None:
    """Write one link, as it is."""
    connection.execute(table.insert(), {**vars(record), "body": dump(record.body)})


def _numbered(connection: sa.Connection, numbers: Collection[int]) -> list[Record]:
    """The records of these numbers, which are in order."""
    wanted = list(numbers)
    found = list[Record]()
    for start in range(0, len(wanted), _AT_ONCE):
        part = wanted[start : start + _AT_ONCE]
        found += starmap(Record.stored, connection.execute(_NUMBERED, {"numbers": part}))
    return found


def _read(connection: sa.Connection, where: sa.ColumnElement[bool]) -> list[Record]:
    """These records, oldest first."""
    rows = connection.execute(_ALL.where(where))
    return list(starmap(Record.stored, rows))


def _read_one(connection: sa.Connection, seq: int) -> Record | None:
    return next(iter(_read(connection, table.c.seq == seq)), None)
