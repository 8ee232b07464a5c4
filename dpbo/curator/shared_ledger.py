"""The ledger of a curator on one process or several: rank 0 alone opens it and writes to it, and
every rank reads a copy (ranks.py).
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar, cast

from dpbo.curator.ranks import OneProcess, Ranks
from dpbo.errors import LedgerError, LedgerUnavailable, PrivacyError
from dpbo.ledger.entries import Record, table
from dpbo.ledger.ledger import Ledger
from dpbo.ledger.storage import Storage

T = TypeVar("T")


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
        self.append(chain)

    def append(self, records: Sequence[Record]) -> None:
        """Take over records that were added to rank 0's ledger since."""
        if records:
            with self.storage.writing(create=True) as connection:
                for record in records:
                    connection.execute(table.insert().values(record.columns()))
                self._bind(connection)

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
