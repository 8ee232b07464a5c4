"""Records sharded by unit over the processes of a `torch.distributed` group.

    dist.init_process_group("gloo")                                             # or "nccl"; under torchrun
    curator = Curator(shard, unit=..., adjacency=..., budget=..., dataset=..., ledger="tuning.db", ranks=Ranks())

Every rank runs the same program with its own shard, and every algorithm runs unchanged: what is released is one value, charged and drawn on
rank 0 alone and the same bits everywhere, the bits one process with all records would have drawn from the same numbers. Rank 0 has the
ledger (`ledger=` counts there alone) and the only noise; never would each rank add its own, which would be as many releases for one charge.

A step is: compare what is asked (128 bytes a rank), evaluate the own shard, compare how that went (1 byte), add partial sums up on rank 0.
A release is: compare, charge, draw, store on rank 0, tell all. Control always goes through gloo, in a group of its own with a timeout;
partial sums through the given group where that is NCCL. A rank that dies or comes too late ends the step on all with RankLost, and its
neighbours hang up, so that all are told. All ranks and the lines between them are trusted: partial sums are private and not encrypted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypeVar, cast

import torch
import torch.distributed as dist

from dpbo.curator.chain import Record
from dpbo.curator.described import digest_of
from dpbo.curator.entropy import system_entropy
from dpbo.curator.ledger import Ledger, insert
from dpbo.curator.records import PrivateView
from dpbo.curator.shards import names_of, require_apart, with_total
from dpbo.curator.storage import Storage
from dpbo.errors import InputError, LedgerError, LedgerUnavailable, PrivacyError, RankFailed, RankLost, RanksDisagree
from dpbo.queries.query import Failure, IntegerSum

# ========== MERGED The ledger as all ranks saw it last: a copy in memory of the first rank's chain, which is public.
#
# Algorithms read it to decide what to do next; as it is the same everywhere, every rank decides the same, and reading it needs no others.
# It moves on when the ranks do something together. Only the first rank's own ledger is ever written to, and by the curator alone.
#


class Mirror(Ledger):
    """Reads as the ledger does; refuses to be written to.

    Args:
        chain: its records from birth on.
        persistent: whether the first rank's own outlives its process.
    """

    def __init__(self, chain: Sequence[Record], *, persistent: bool) -> None:
        self.storage = _Copy(None)
        self.storage.persistent_elsewhere = persistent
        self.follow(chain)
        self._bind(chain[0])

    def follow(self, news: Sequence[Record]) -> None:
        """Take over what was added since."""
        if news:
            with self.storage.writing() as connection:
                for record in news:
                    insert(connection, record)

    def reserve(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Refused."""
        _refuse()

    def charge(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Refused."""
        _refuse()

    def store(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Refused."""
        _refuse()

    def note(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Refused."""
        _refuse()


class _Copy(Storage):
    persistent_elsewhere = False

    @property
    def persistent(self) -> bool:
        return self.persistent_elsewhere


def _refuse() -> NoReturn:
    raise LedgerError("the ledger of a curator on several ranks is written by the curator alone: use its reserve() and release().")


# ========== MERGED What a curator does with others that hold shards of the same records, and the case that there are none.
#
# Every process calls the same code with records of its own and gets the same released values. What crosses between them:
#     `sum`: exact int64 partial sums of clipped contributions, to the first rank alone; whole numbers add up to the same bits in any order.
#     `first`: what the first rank alone does (charge, draw, store), its value or its error given to all, so that nobody waits for ever.
#     `whole`: the number of units where it is public, and keyed hashes of labels, so that no unit stands on two ranks.
# Quanta, bounds and chunk shapes come from the public number of all units, never from a shard's. Before each of them the ranks compare a
# digest of the public question, so that ranks that went apart are refused before anything is charged.
#

T = TypeVar("T")
Asked = Iterable[Any]


class Together(Protocol):
    """The ranks as their curators see them. `title` names a step in errors; `asked` is what must be the same on every rank, public.

    Attributes:
        rank: of this process, from 0.
        size: how many there are.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def together(self, title: str, asked: Asked, work: Callable[[], T]) -> T: ...
    def first(self, title: str, asked: Asked, work: Callable[[], T]) -> T: ...
    def sum(self, title: str, asked: Asked, work: Callable[[], IntegerSum | Failure]) -> IntegerSum | Failure: ...
    def whole(self, view: PrivateView, labels: Any, *, public: bool) -> PrivateView: ...
    def name(self) -> str: ...


class Alone:
    """One process with all records: everything is simply done."""

    rank, size = 0, 1

    def together(self, title: str, asked: Asked, work: Callable[[], T]) -> T:
        """`work()`."""
        return work()

    def first(self, title: str, asked: Asked, work: Callable[[], T]) -> T:
        """`work()`."""
        return work()

    def sum(self, title: str, asked: Asked, work: Callable[[], IntegerSum | Failure]) -> IntegerSum | Failure:
        """`work()`."""
        return work()

    def whole(self, view: PrivateView, labels: Any, *, public: bool) -> PrivateView:
        """The view as it is."""
        return view

    def name(self) -> str:
        """Random, for a handle."""
        return uuid.uuid4().hex


# ========== MERGED The ledger behind a curator, written by the first rank alone and read alike on all.


class Books:
    """Opens the ledger at `url`, born with `born`, on the first rank; the others follow it in a Mirror.

    Attributes:
        own: what is written to; of use on the first rank alone.
        seen: what may be read: `own` itself, or of several ranks what all saw last.
    """

    def __init__(self, ranks: Together, url: str | None, born: Mapping[str, Any]) -> None:
        self._ranks = ranks
        opened: list[Ledger] = []

        def told() -> tuple[list[Record], bool] | None:
            opened.append(Ledger(url, born))
            return None if ranks.size == 1 else (opened[0].records(), opened[0].storage.persistent)

        first = ranks.first("open the ledger", (), told)
        self._mirror = None if first is None else Mirror(first[0], persistent=first[1])
        self.seen: Ledger = opened[0] if self._mirror is None else self._mirror
        self.own = opened[0] if opened else self.seen

    def by_first(self, title: str, asked: Iterable[Any], work: Callable[[], T]) -> T:
        """What only the first rank does: its value or error for all, with all that the ledger has gained since."""
        mirror = self._mirror
        if mirror is None:
            return work()
        last = mirror.head().seq

        def told() -> tuple[T | None, PrivacyError | None, list[Record]]:
            value, refused, news = None, None, list[Record]()
            try:
                value = work()
            except PrivacyError as error:
                refused = error
            with contextlib.suppress(LedgerUnavailable):
                news = self.own.records(after=last)
            return value, refused, news

        value, refused, news = self._ranks.first(title, asked, told)
        mirror.follow(news)
        if refused is not None:
            raise refused
        return cast(T, value)

    def note(self, kind: str, text: str) -> None:
        """Note something on all ranks' behalf, for every later statement."""
        self.by_first("note", (kind, text), lambda: self.own.note(kind, text))


_DIGEST, _NAME, _TITLE = 32, 16, 80
_FINE, _REFUSED, _FAILED = 0, 1, 2  # errors come first: of what raises, all raise, and of what fails, all note it


class Ranks:
    """The processes that share the records, one shard each; a unit's records stand on one of them. Several curators may share it.

    Args:
        group: of torch.distributed; omitted, all processes.
        timeout: how long a rank waits for the slowest one's evaluation before it gives up.

    Raises:
        InputError: torch.distributed was not initialised, or an argument is outside its range. RankLost: not all came.
    """

    def __init__(self, group: Any = None, *, timeout: datetime.timedelta = datetime.timedelta(minutes=30)) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise InputError("ranks", "no process group", "made after torch.distributed.init_process_group", "Start it with torchrun.")
        if not isinstance(timeout, datetime.timedelta) or timeout <= datetime.timedelta(0):
            raise InputError("timeout", type(timeout).__name__, "a datetime.timedelta above zero")
        self._data = dist.group.WORLD if group is None else group
        self.rank = dist.get_rank(self._data)
        if self.rank < 0:
            raise InputError("group", "of other processes", "one that this process belongs to")
        self._members = dist.get_process_group_ranks(self._data)
        self.size = len(self._members)
        self._name, self._doing, self._lost = "", "meet", False
        self._control: Any = None
        with self._watched():
            self._control = dist.new_group(self._members, timeout=timeout, backend="gloo", use_local_synchronization=True)

    def together(self, title: str, asked: Asked, work: Callable[[], T]) -> T:
        """`work()` of this rank, once all ask the same; where it raises on one, it is given up on all. One's Failure is everybody's.

        Whoever raised raises its own error; the others that of the first rank that did, or RankFailed where it is no error of dpbo's.
        """
        self._agree(title, asked)
        value, error = _tried(work)
        bad = isinstance(value, Failure)
        marks = [row[0] for row in self.exchange(bytes([_FAILED if error is not None else _REFUSED if bad else _FINE]))]
        worst = max(marks)
        return cast(T, value) if worst == _FINE else self._shared(marks.index(worst), value, error)

    def first(self, title: str, asked: Asked, work: Callable[[], T]) -> T:
        """`work()` of the first rank, or its error, for all."""
        self._agree(title, asked)
        return self._shared(0, *(_tried(work) if self.rank == 0 else (None, None)))

    def sum(self, title: str, asked: Asked, work: Callable[[], IntegerSum | Failure]) -> IntegerSum | Failure:
        """The sum of all ranks' answers on the first; elsewhere zeros of the same shape. What each keeps stays with it."""
        outcome = self.together(title, asked, work)
        return outcome if isinstance(outcome, Failure) else dataclasses.replace(outcome, numerators=self.added(outcome.numerators))

    def whole(self, view: PrivateView, labels: Any, *, public: bool) -> PrivateView:
        """This rank's shard, with the public number of all units. Raises InputError, on all, where a unit has rows on two ranks."""
        total = int(self.added(torch.tensor([view.units]))[0])
        known = self.first("count units", (), lambda: with_total(total, public=public))
        if labels is not None:
            key = self.first("share a key", (), lambda: system_entropy(32))
            require_apart(self.together("read labels", (), lambda: names_of(labels, key)), self)
        return dataclasses.replace(view, public_units=known)

    def name(self) -> str:
        """Random, and the same on all ranks: from the last thing they agreed on."""
        return self._name

    def added(self, numbers: torch.Tensor) -> torch.Tensor:
        """The int64 sum over ranks, on the first; zeros elsewhere."""
        on_device = "nccl" in dist.get_backend_config(self._data) and torch.cuda.is_available()
        device = torch.device("cuda", torch.cuda.current_device()) if on_device else torch.device("cpu")
        moved = numbers.to(device, copy=True).contiguous()
        with self._watched():
            dist.reduce(moved, dst=self._members[0], group=self._data if on_device else self._control)
            return moved.cpu() if self.rank == 0 else torch.zeros_like(numbers)

    def exchange(self, row: bytes) -> list[bytes]:
        """Every rank's bytes, equally many."""
        mine = torch.frombuffer(bytearray(row), dtype=torch.uint8)
        rows = [torch.empty_like(mine) for _ in range(self.size)]
        with self._watched():
            dist.all_gather(rows, mine, group=self._control)
        return [row.numpy().tobytes() for row in rows]

    def dealt(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Rows `n x m` that go to the ranks in order, so many to each; returns those that came here."""
        coming = torch.empty_like(counts)
        with self._watched():
            dist.all_to_all_single(coming, counts, group=self._control)
            came = rows.new_empty((int(coming.sum()), rows.shape[1]))
            dist.all_to_all_single(came, rows.contiguous(), coming.tolist(), counts.tolist(), group=self._control)
        return came

    def _agree(self, title: str, asked: Asked) -> None:
        self._doing = title
        shown = title.encode()[:_TITLE].ljust(_TITLE)
        rows = self.exchange(digest_of((title, *asked)) + uuid.uuid4().bytes + shown)
        if apart := [rank for rank, row in enumerate(rows) if row[:_DIGEST] != rows[0][:_DIGEST]]:
            raise RanksDisagree([row[_DIGEST + _NAME :].decode(errors="replace").strip() for row in rows], apart)
        self._name = rows[0][_DIGEST : _DIGEST + _NAME].hex()

    def _shared(self, source: int, value: Any, error: BaseException | None) -> Any:
        """The source's value or error, on every rank. Whoever has an error of its own raises that."""
        packed = _packed(value, error, source) if self.rank == source else b""
        size = torch.tensor([len(packed)])
        with self._watched():
            dist.broadcast(size, src=self._members[source], group=self._control)
            content = torch.frombuffer(bytearray(packed), dtype=torch.uint8) if packed else torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(content, src=self._members[source], group=self._control)
        if error is not None:
            raise error
        theirs, failed = pickle.loads(content.numpy().tobytes()) if self.rank != source else (value, None)
        if failed is not None:
            raise failed
        return theirs

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        if self._lost:
            raise RankLost(self._doing)
        try:
            yield
        except RuntimeError as error:  # gloo's word for closed connections and timeouts
            self._hang_up(error)

    def _hang_up(self, error: RuntimeError) -> NoReturn:
        """Close the lines, so that ranks that wait for this one are told, too."""
        self._lost = True
        with contextlib.suppress(Exception):
            dist.destroy_process_group(self._control)
        self._control = None
        raise RankLost(self._doing) from error

    def __repr__(self) -> str:
        return f"<Ranks: {self.rank} of {self.size}>"


def _tried(work: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    try:
        return work(), None
    except BaseException as error:  # the other ranks wait to hear of it, whatever it is
        return None, error


def _packed(value: Any, error: BaseException | None, rank: int) -> bytes:
    """For the other ranks, who wait for it: where it cannot be pickled, they hear of that."""
    try:
        return pickle.dumps((value, _fit_to_travel(error, rank)))
    except Exception as refused:
        return pickle.dumps((None, RankFailed(rank, type(refused if error is None else error).__name__)))


def _fit_to_travel(error: BaseException | None, rank: int) -> PrivacyError | None:
    """An error of dpbo's as it is: it shows nothing private. Of any other its type alone."""
    return error if error is None or isinstance(error, PrivacyError) else RankFailed(rank, type(error).__name__)
