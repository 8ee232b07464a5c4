"""A curator whose records are shared by several processes: the steps that all of them take together
(ranks.py).
"""

import contextlib
import functools
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any, NoReturn, TypeVar, cast

from dpbo.curator.curator import Curator
from dpbo.curator.handle import Handle
from dpbo.curator.ranks import Ranks
from dpbo.errors import InputError, LedgerError, LedgerUnavailable, PrivacyError, RanksDisagree
from dpbo.events import Event
from dpbo.fingerprint import Reached
from dpbo.ledger.birth import Birth
from dpbo.ledger.entries import Record, table
from dpbo.ledger.ledger import Ledger
from dpbo.ledger.storage import Storage
from dpbo.privacy import PrivacyUnit
from dpbo.queries.query import Outcome, Query
from dpbo.records.digests import RowDigests, digest_of_sums
from dpbo.records.view import PrivateView
from dpbo.release import Release
from dpbo.validation import require

T = TypeVar("T")
# every rank calls them, in the same order
_COLLECTIVE = ("assume", "bind", "evaluate", "release", "release_all", "reserve")


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


def _told(method: Callable[..., T]) -> Callable[..., T]:
    """The method of a ShardedCurator. If it fails on one rank before a step of all ranks, the
    others are told, so that they do not wait.
    """

    @functools.wraps(method)
    def told(self: "ShardedCurator", *args: Any, **kwargs: Any) -> T:
        steps = self._ranks.steps
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            if steps == self._ranks.steps:
                with contextlib.suppress(RanksDisagree):
                    self._ranks.run_on_rank_0("refuse an argument", (str(error),), lambda: None)
            raise

    return told


class ShardedCurator(Curator):
    """What `Curator(..., ranks=Ranks())` makes. Arguments as in Curator.

    Before each step the ranks compare what they ask for. Rank 0 alone opens the ledger, charges,
    draws and stores.
    """

    _ranks: Ranks
    _copy: Ledger  # of rank 0's, as all ranks saw it last

    def __init__(self, records: Any, *, ranks: Ranks, **settings: Any) -> None:
        self._ranks = require("ranks", ranks, Ranks)
        _told(Curator.__init__)(self, records, **settings)

    @property
    def ledger(self) -> Ledger:
        return self._copy

    @property
    def rank(self) -> int:
        return self._ranks.rank

    @property
    def ranks(self) -> int:
        return self._ranks.world_size

    def submit(
        self, query: Query, executor: Executor, *, reservation: str | None = None, **details: Any
    ) -> Future[Handle]:
        raise InputError(
            "executor",
            type(executor).__name__,
            "left out on several ranks",
            "Each evaluates its own shard.",
        )

    def _read(self, records: Any, unit: PrivacyUnit, birth: Birth, *how: Any) -> PrivateView:
        promise = (
            birth.to_json(),
            unit.groups is not None,
            self._allow_conditional,
            self._allow_repeated,
        )
        view = self._ranks.run_together(
            "make a Curator", promise, functools.partial(super()._read, records, unit, birth, *how)
        )
        return self._ranks.count_units(view, unit.groups, public=birth.adjacency.replaces)

    def _opened(self, url: str | pathlib.Path | None, birth: Birth) -> Ledger:
        if self.ranks == 1:
            self._copy = super()._opened(url, birth)
            return self._copy
        opened: list[Ledger] = []

        def chain() -> tuple[list[Record], bool, str]:
            opened.append(Ledger(url, birth))
            return opened[0].records(), opened[0].storage.persistent, opened[0].storage.identity

        records, persistent, identity = self._ranks.run_on_rank_0("open the ledger", (), chain)
        self._copy = LedgerCopy(records, persistent=persistent, identity=identity)
        return opened[0] if opened else self._copy  # of use on rank 0 only

    def _new_id(self) -> str:
        return self._ranks.new_id()

    def _evaluated(self, *question: Any) -> Outcome:
        query = question[0]
        title = f"evaluate {type(query).__name__}"
        asked = (*question, Reached(query))
        return self._ranks.reduce(title, asked, functools.partial(super()._evaluated, *question))

    def _released(self, *question: Any) -> tuple[Release, ...]:
        return self._on_rank_0(
            f"release {question[2]}", question, functools.partial(super()._released, *question)
        )

    def _reserved(self, *question: Any) -> Event:
        return self._on_rank_0(
            f"reserve {question[0]}", question, functools.partial(super()._reserved, *question)
        )

    def _note(self, *question: Any) -> None:
        self._on_rank_0("note", question, functools.partial(super()._note, *question))

    def deliver(self) -> None:
        self._on_rank_0("deliver", (), super().deliver)

    def _can_be_repeated(self) -> bool:
        return self._on_rank_0("choose entropy", (), super()._can_be_repeated)

    def _key(self) -> bytes:
        return self._on_rank_0("compare records", (), super()._key)

    def _digest(self, records: PrivateView, key: bytes) -> str | None:
        """The digest of all ranks' records, on rank 0. How they are dealt to ranks does not
        matter.
        """
        mine = RowDigests.of(records)
        if not all(self._ranks.gather_mark(mine is not None)):
            return None
        assert mine is not None
        return digest_of_sums(self._ranks.reduce_tensor(mine.sums()), key)

    def _require_same(
        self,
        reservation: str,
        things: Mapping[str, Any],
        found: Mapping[str, str | None],
        begun: bool,
    ) -> None:
        compare = functools.partial(super()._require_same, reservation, things, found, begun)
        self._on_rank_0(f"bind {reservation}", (sorted(things), sorted(found), begun), compare)

    def _on_rank_0(self, title: str, question: Iterable[Any], work: Callable[[], T]) -> T:
        """`work()` of rank 0, or its error, on every rank, with what the ledger has gained by
        it.
        """
        copy = self._copy
        if not isinstance(copy, LedgerCopy):
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
                added = self._ledger.records(after=last)
            return value, refused, added

        value, refused, added = self._ranks.run_on_rank_0(title, question, attempt)
        copy.append(added)
        if refused is not None:
            raise refused
        return cast(T, value)


for _name in _COLLECTIVE:
    setattr(ShardedCurator, _name, _told(getattr(Curator, _name)))
