"""The ledger behind a curator: one for all ranks, opened and written on rank 0."""

import contextlib
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar, cast

from dpbo.curator.birth import Birth
from dpbo.curator.chain import Record
from dpbo.curator.distributed import Ranks, SingleProcess
from dpbo.curator.ledger import Ledger, insert
from dpbo.curator.storage import Storage
from dpbo.errors import LedgerError, LedgerUnavailable, PrivacyError

T = TypeVar("T")


class LedgerCopy(Ledger):
    """A copy in memory of rank 0's ledger, which is public, as all ranks saw it last. It refuses to be written to.

    Algorithms read it to decide what to do next. As it is the same on every rank, every rank decides the same, without asking the others.

    Args:
        chain: the ledger's records from its birth on.
        persistent: whether rank 0's ledger outlives its process.
        identity: of rank 0's storage.
    """

    def __init__(self, chain: Sequence[Record], *, persistent: bool, identity: str) -> None:
        self.storage = Storage(None)
        self.storage.persistent, self.storage.identity = persistent, identity
        self.append(chain)
        self._bind(chain[0])

    def append(self, records: Sequence[Record]) -> None:
        """Take over records that were added to rank 0's ledger since."""
        if records:
            with self.storage.writing() as connection:
                for record in records:
                    insert(connection, record)

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise LedgerError("the ledger of a curator on several ranks is written by the curator alone: use its reserve() and release().")

    reserve = charge = store = note = _refuse


class SharedLedger:
    """The ledger behind a curator: opened and written on rank 0, read alike on all ranks.

    Args:
        ranks: the processes that share it.
        url: file name, path or SQLAlchemy URL; None for a ledger in memory.
        birth: what it is made for.

    Attributes:
        writable: rank 0's ledger; of use there only.
        readable: what every rank may read: the ledger itself, or with several ranks its copy.
    """

    def __init__(self, ranks: Ranks | SingleProcess, url: str | pathlib.Path | None, birth: Birth) -> None:
        self._ranks = ranks
        self._copy: LedgerCopy | None = None
        if ranks.world_size == 1:
            self.writable = self.readable = Ledger(url, birth)
            return
        opened: list[Ledger] = []

        def chain() -> tuple[list[Record], bool, str]:
            opened.append(Ledger(url, birth))
            return opened[0].records(), opened[0].storage.persistent, opened[0].storage.identity

        records, persistent, identity = ranks.run_on_rank_0("open the ledger", (), chain)
        self.readable = self._copy = LedgerCopy(records, persistent=persistent, identity=identity)
        self.writable = opened[0] if opened else self.readable

    def run_on_rank_0(self, title: str, question: Iterable[Any], work: Callable[[], T]) -> T:
        """`work()` of rank 0, or its error, on every rank, with what the ledger has gained by it."""
        copy = self._copy
        if copy is None:
            return work()
        last = copy.head().seq

        def attempt() -> tuple[T | None, PrivacyError | None, list[Record]]:
            value, refused, added = None, None, list[Record]()
            try:
                value = work()
            except PrivacyError as error:
                refused = error
            with contextlib.suppress(LedgerUnavailable):
                added = self.writable.records(after=last)
            return value, refused, added

        value, refused, added = self._ranks.run_on_rank_0(title, question, attempt)
        copy.append(added)
        copy.head()  # reads them: else what these ranks charged would look, at the next release, as if another process had
        if refused is not None:
            raise refused
        return cast(T, value)

    def note(self, kind: str, text: str) -> None:
        """Note something for every later statement (`Ledger.note`)."""
        self.run_on_rank_0("note", (kind, text), lambda: self.writable.note(kind, text))
