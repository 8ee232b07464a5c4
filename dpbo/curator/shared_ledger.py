"""The ledger of a curator on one process or several (ranks.py): of ranks that trust each other rank
0 alone opens it and writes to it, and every rank reads a copy; of others each has its own.
"""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar, cast

import numpy as np

from dpbo.curator.ranks import OneProcess, Ranks
from dpbo.curator.releasing import Drawn
from dpbo.errors import (
    LedgerError,
    LedgerMismatch,
    LedgerUnavailable,
    PrivacyError,
    RanksError,
    UsageError,
)
from dpbo.events import event_from_json
from dpbo.ledger.entries import Record, Reserved, dump, table
from dpbo.ledger.ledger import Ledger
from dpbo.ledger.storage import Storage
from dpbo.mechanisms.mechanism import AdditiveDistribution, Integers
from dpbo.queries.integers import MOST_SUM
from dpbo.validation import warn

T = TypeVar("T")
# In standard deviations: no honest total lies further from the records' own sum.
_FAR = 40
# What the body of an entry says of its own ledger or machine alone.
_OWN = ("id", "cap", "run_by")


class LedgerCopy(Ledger):
    """A copy in memory of rank 0's ledger, which is public, as all ranks saw it last. It refuses to
    be written to.

    Algorithms read it to decide what to do next. As it is the same on every rank, every rank
    decides the same, without asking the others.

    Args:
        chain: the ledger's records from its birth on.
        persistent: whether rank 0's ledger outlives its process.
        identity: of rank 0's storage.
    """

    def __init__(self, chain: Sequence[Record], *, persistent: bool, identity: str) -> None:
        storage = Storage(None)
        storage.persistent = persistent
        storage.identity = identity
        self._prepare(storage)
        # Makes the table.
        with storage.writing(create=True):
            pass
        self.append(chain)
        with self._transaction() as connection:
            self._bind(connection)

    def append(self, records: Sequence[Record]) -> None:
        """Take over records that were added to rank 0's ledger since."""
        if records:
            with self.storage.writing() as connection:
                connection.execute(table.insert(), [record.columns() for record in records])

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise LedgerError(
            "the ledger of a curator on several ranks is written by the curator alone: use its"
            " reserve() and release()."
        )

    reserve = charge = store = note = _refuse


class SharedLedger:
    """A ledger that the processes of a curator share.

    Args:
        ranks: the processes.
        opening: opens the ledger; called on rank 0 alone.

    Attributes:
        own: rank 0's ledger; of no use elsewhere.
        seen: the ledger as all ranks saw it last.
    """

    def __init__(self, ranks: Ranks | OneProcess, opening: Callable[[], Ledger]) -> None:
        self._ranks = ranks
        self._copy: LedgerCopy | None = None
        if ranks.world_size == 1:
            self.own = self.seen = opening()
            return
        opened = list[Ledger]()

        def chain() -> tuple[list[Record], bool, str]:
            opened.append(opening())
            return opened[0].records(), opened[0].storage.persistent, opened[0].storage.identity

        records, persistent, identity = ranks.run_on_rank_0("open the ledger", (), chain)
        self._copy = self.seen = LedgerCopy(records, persistent=persistent, identity=identity)
        self.own = opened[0] if opened else self._copy

    def change(self, title: str, question: Iterable[Any], work: Callable[[], T]) -> T:
        """`work()` of rank 0, or its error, on every rank, with what the ledger has gained by it.
        Arguments as in `Ranks`.
        """
        copy = self._copy
        if copy is None:
            return work()
        last = copy.head().seq

        def attempt() -> tuple[T | None, PrivacyError | None, list[Record]]:
            value = None
            refused = None
            added = list[Record]()
            try:
                value = work()
            except PrivacyError as error:
                refused = error
            with contextlib.suppress(LedgerUnavailable):
                added = self.own.records(after=last)
            return value, refused, added

        value, refused, added = self._ranks.run_on_rank_0(title, question, attempt)
        copy.append(added)
        if refused is not None:
            raise refused
        return cast(T, value)

    def on_records(self, title: str, work: Callable[[], T]) -> T:
        """`work()` of each rank, which depends on its own records."""
        return work()

    def release(
        self,
        title: str,
        question: Iterable[Any],
        compare: Callable[[], None],
        draw: Callable[[], list[Drawn]],
        publish: Callable[[list[Drawn]], T],
        most: int,
    ) -> T:
        """`publish(draw())` of rank 0, on every rank, after `compare()` of each; `most` as in
        OwnLedger.
        """
        compare()
        return self.change(title, question, lambda: publish(draw()))


class OwnLedger:
    """The ledger of a rank that does not trust the others: all ranks write the same entries, each
    to its own ledger, and none goes on where another one's differ.

    A rank that stopped earlier than others, or lost its ledger, first adds what the longest holds
    beyond its own entries, as if it were charged anew: so nothing is forgotten, and its own cap
    counts. Before anything is written, every rank proves to every other one, by the secret of the
    two, that it holds the same message and that its own ledger begins it. What a rank has lost it
    believes the others: if they hide entries, its cap begins anew.

    Args:
        ranks: the processes.
        opening: opens this rank's ledger.

    Attributes:
        own, seen: this rank's ledger.
        deliver: stores what this rank drew while its ledger was out of reach, before each step that
            compares ledgers: the others have stored it.

    Raises:
        LedgerMismatch: this ledger and another rank's hold different entries.
        RanksError: so do another rank's and a third one's, or somebody changed a message.
        UsageError: two ranks opened the same ledger, or another rank's has no guarantee.
    """

    def __init__(self, ranks: Ranks, opening: Callable[[], Ledger]) -> None:
        self._ranks = ranks

        def opened() -> tuple[Ledger, bytes]:
            ledger = opening()
            return ledger, b"".join(map(_line, ledger.records()))

        self.own, mine = ranks.run_together("open the ledger", (), opened)
        self.seen = self.own
        self._head = hashlib.sha256()
        self._read = -1
        self._compared = False
        self.deliver: Callable[[], None] = lambda: None
        self._catch_up(mine)

    def head(self) -> str:
        """A digest of all entries, but for what is each ledger's own."""
        for record in self.own.records(after=self._read):
            self._head.update(_line(record))
            self._read = record.seq
        return self._head.hexdigest()

    def change(self, title: str, question: Iterable[Any], work: Callable[[], T]) -> T:
        """`work()` of each rank, where all ledgers hold the same entries."""
        return self._ranks.run_together(*self._asking(title, question), work)

    def _asking(self, title: str, question: Iterable[Any]) -> tuple[str, Iterable[Any]]:
        """Title and question of a step on ledgers that hold the same entries."""
        self.deliver()
        head = self.head()
        return f"{title} after entry {self._read} ({head[:8]})", (head, *question)

    def on_records(self, title: str, work: Callable[[], T]) -> T:
        """`work()` of each rank, which depends on its own records: where it raises, the others
        learn no more than that some rank failed.
        """
        return self.change(title, (), work)

    def release(
        self,
        title: str,
        question: Iterable[Any],
        compare: Callable[[], None],
        draw: Callable[[], list[Drawn]],
        publish: Callable[[list[Drawn]], T],
        most: int,
    ) -> T:
        """`publish` of each rank, with the totals of what all drew by `draw()`, after `compare()`.
        A rank sends one message, of all its sums, after it has charged and drawn them. Where one
        cannot, it sends random words (`Ranks.total`).

        A number that no honest total reaches is refused: a random word passes with probability
        2^-2 quantum / grid. At multiplier 10 that is 2^-23 for the mean of a million units, and
        about 2^-14 where the number of units is private, as quanta then allow for 2^32 of them.

        Args:
            most: how many numbers are drawn at most, the same on all ranks.

        Raises:
            RanksError: a rank sent something else.
            RankFailed: another rank could not charge or draw.
        """
        if most and not self._compared:
            # What refuses a new ledger's first charge on one rank stops it on all.
            self.on_records("compare tables", compare)
            self._compared = True

        none = np.zeros(0, dtype=np.int64)

        def drawn() -> tuple[list[Drawn], Integers, Any]:
            compare()
            found = draw()
            numbers = np.concatenate([none, *(each.numbers.reshape(-1) for each in found)])
            return found, numbers, (self.head(), dump([each.law.to_json() for each in found]))

        shares, total = self._ranks.total(*self._asking(title, question), drawn, most)
        found = []
        for share in shares:
            part, total = np.split(total, [share.numbers.size])
            law = cast(AdditiveDistribution, share.law)
            std, quanta = (np.asarray(each) / law.grid for each in (law.std, share.quanta))
            most_honest = MOST_SUM * quanta + _FAR * std + self._ranks.world_size
            part = part.reshape(share.numbers.shape)
            if (np.abs(part.astype(np.float64)) > most_honest).any():
                raise RanksError(
                    "the ranks' masks do not cancel: a rank sent something else. The charge stands,"
                    " and nothing was released."
                )
            found.append(dataclasses.replace(share, numbers=part))
        return publish(found)

    def _catch_up(self, mine: bytes) -> None:
        """Add the entries that the longest of all ledgers holds beyond this one's, `mine`."""
        identity = hashlib.sha256(self.own.id.encode()).digest()
        rows = self._ranks.all_gather(identity + mine.count(b"\n").to_bytes(8, "little"))
        if len({row[:32] for row in rows}) < len(rows):
            raise UsageError(
                "two ranks opened the same ledger: with Ranks(trust='sum') each has its own. Give"
                " each rank another ledger=."
            )
        lengths = [int.from_bytes(row[32:], "little") for row in rows]
        longest = lengths.index(max(lengths))
        if len({*lengths}) == 1:
            return
        theirs = self._ranks.send(longest, mine)
        begins = theirs.startswith(mine)
        # A rank whose ledger does not begin the message vouches for another one.
        others = self._ranks.unlike(theirs if begins else b"")
        remedy = "Each rank opens the ledger that it had when they ran together before."
        if not begins:
            raise LedgerMismatch(
                "ledger",
                f"{lengths[self._ranks.rank]} entries",
                f"{lengths[longest]} entries of rank {longest}, which differ from the first on",
                remedy,
            )
        if others:
            raise RanksError(
                f"ranks {others} do not confirm the entries that rank {longest} holds beyond this"
                " rank's: their ledgers hold others, or somebody changed a message. Nothing was"
                f" written. {remedy}"
            )
        lines = theirs[len(mine) :].splitlines()
        self._ranks.run_together("catch up", (), lambda: self._add(longest, lines))

    def _add(self, rank: int, lines: Sequence[bytes]) -> None:
        """Write the entries that another rank's ledger holds beyond this one's, within its cap."""
        entries = list(map(json.loads, lines))
        if not entries:
            return
        if any(kind == "void" for kind, *_ in entries):
            raise UsageError(
                f"rank {rank}'s ledger says that it guarantees nothing, and this rank's does not:"
                " that is not taken over. Take new ledgers on all ranks."
            )
        for kind, name, reservation, answers, body in entries:
            if kind == "reserve":
                reserved = Reserved.of(name, body)
                # A parallel one is refused on ranks.
                self.own.reserve(name, reserved.event, reserved.slots, reserved.terms)
            elif kind == "charge":
                self.own.charge(name, event_from_json(body.pop("event")), body, reservation)
            elif kind == "value":
                self.own.store(answers, name, body["values"])
            else:
                self.own.note(kind, name)
        charges = sum(kind == "charge" for kind, *_ in entries)
        warn(
            f"this rank's ledger took over {len(entries)} entries, {charges} of them charges, from"
            f" rank {rank}'s. {self.own.account()} If this rank released less together with the"
            " others, ask them why.",
            UserWarning,
        )


def _line(record: Record) -> bytes:
    """What an entry says that is the same in the ledgers of all ranks."""
    body = {name: value for name, value in record.body.items() if name not in _OWN}
    common = [record.kind, record.name, record.reservation, record.answers, body]
    return f"{dump(common)}\n".encode()
