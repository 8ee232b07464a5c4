"""Records sharded by unit over the processes of a `torch.distributed` group.

    # Under torchrun; "nccl" will do as well.
    dist.init_process_group("gloo")
    promise = {"unit": ..., "adjacency": ..., "budget": ..., "dataset": ...}
    curator = Curator(shard, **promise, ledger="tuning.db", ranks=Ranks())

Every rank runs the same program with its own shard, and every algorithm runs unchanged. One value
is released: rank 0 alone charges it in the ledger (`ledger=` counts there only), draws its noise
and stores it, and all ranks get the same bits, which are those of one process with all records. If
each rank added noise of its own, that would be as many releases for one charge.

In an evaluation the ranks compare the question (128 bytes a rank), evaluate their shards, compare
how that went (1 byte) and reduce the exact int64 sums to rank 0. Quanta, bounds and chunk shapes
follow from the public number of all units, never from a shard's. In a release they compare the
question; then rank 0 charges, draws, stores and broadcasts. So ranks that ask for different things
are refused before anything is charged. Control messages go through gloo, in a group of their own
with a timeout; sums go through the given group where that is NCCL. A rank that dies or comes too
late ends the step on all ranks with RankLost: its neighbours close their connections, so nobody
waits on. All ranks and the network between them are trusted: sums are private and not encrypted.

With `Ranks(trust="sum")` no rank trusts another, nor the network. Each keeps its partial sums and a
ledger of its own. In a release every rank charges its own ledger, then adds its share of the noise
and its masks (secure_sum.py), and sends that to all: the total is the release. Nothing that another
rank sent is unpickled. Whether a step failed somewhere is one bit of all ranks together; a release
tells it with its total.
"""

import contextlib
import dataclasses
import datetime
import functools
import pathlib
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dpbo._version import __version__
from dpbo.entropy import system_entropy
from dpbo.errors import (
    InputError,
    PrivacyError,
    RankFailed,
    RankLost,
    RanksDisagree,
    RanksError,
    Unshown,
    UsageError,
)
from dpbo.fingerprint import fingerprint
from dpbo.mechanisms.choice import ChoiceMechanism
from dpbo.mechanisms.mechanism import Integers, Mechanism
from dpbo.mechanisms.no_noise import NoNoise
from dpbo.mechanisms.shares import share_of, whole
from dpbo.queries.integers import MOST_UNITS
from dpbo.queries.query import Failure, Outcome
from dpbo.records.labels import ALLOWED, LOOKALIKES, hash_labels
from dpbo.records.view import PrivateView
from dpbo.validation import printable, warn

if TYPE_CHECKING:
    from dpbo.curator.secure_sum import Masks

T = TypeVar("T")
K = TypeVar("K", bound=type)
# Bytes of each part of a message.
_DIGEST = 32
_ID = 16
_TITLE = 80
_LENGTH = 8
# What a broadcast sends at once; only what is longer takes a second message.
_FIRST = 1 << 13
_FINE, _FAILURE, _ERROR = range(3)  # an error on one rank goes before a failure on another
TRUST = ("all", "sum")


class Ranks:
    """The processes that share the records, one shard each; all records of a unit are in one shard.
    Several curators may share it.

    In its methods `title` names the step in errors, and `question` is what must be the same on
    every rank. Both are public.

    Args:
        group: a group of torch.distributed; omitted, all processes.
        timeout: how long a rank waits for the slowest one's evaluation before it gives up.
        trust: "all", where every rank and the network may see partial sums; "sum", where they see
            the noised total alone. Then each rank has a `ledger=` of its own, noise is Gaussian or
            Laplace, in shares, and the extra `federated` must be installed.
        tolerate: with "sum", how many ranks may be curious, silent, or put together what they know.
            The noise's standard deviation is sqrt(ranks / (ranks - tolerate)) times that of one
            process.
        key: with "sum", the file of this rank's private key, which
            `openssl genpkey -algorithm x25519 -out FILE` makes; omitted, a key for this start.
        fingerprints: with `key`, those of all ranks' keys, in any order, as
            `openssl pkey -in FILE -pubout -outform DER | sha256sum` prints them, a line each. The
            first word counts. Omitted, who relays messages is trusted not to exchange keys
            (`coordinator-relays-keys`).

    Attributes:
        rank: rank of this process in the group.
        world_size: number of processes in the group.
        told: whether all ranks know that the last step failed.
        trust, tolerate: as given.

    Raises:
        InputError: torch.distributed is not initialised, or an argument is outside its range.
        RankLost: not all ranks came.
        RanksDisagree: with trust="sum", ranks have another `tolerate` or version of dpbo, or some
            alone compare fingerprints.
    """

    def __init__(
        self,
        group: Any = None,
        *,
        timeout: datetime.timedelta = datetime.timedelta(minutes=30),
        trust: str = "all",
        tolerate: int = 1,
        key: str | pathlib.Path | None = None,
        fingerprints: Sequence[str] | None = None,
    ) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise UsageError(
                "Ranks must be made after torch.distributed.init_process_group. Start it with"
                " torchrun."
            )
        if not isinstance(timeout, datetime.timedelta) or timeout <= datetime.timedelta(0):
            raise InputError("timeout", type(timeout).__name__, "a datetime.timedelta above zero")
        self._data = dist.group.WORLD if group is None else group
        self.rank = dist.get_rank(self._data)
        if self.rank < 0:
            raise InputError("group", group, "one that this process belongs to")
        self._members = dist.get_process_group_ranks(self._data)
        self.world_size = len(self._members)
        self.trust = trust
        self.tolerate = tolerate
        self._id = ""
        self._step = "meet"
        self._lost = False
        self.told = False
        self._control: Any = None
        with self._connected():
            self._control = dist.new_group(
                self._members, timeout=timeout, backend="gloo", use_local_synchronization=True
            )
        # From here on the others notice at once where a rank's program ends by an error.
        if trust not in TRUST:
            raise InputError("trust", trust, f"one of {TRUST}")
        if trust == "all" and not (tolerate == 1 and key is None and fingerprints is None):
            raise UsageError("tolerate, key and fingerprints go with trust='sum' alone.")
        if fingerprints is not None and key is None:
            raise UsageError("fingerprints go with a key that was made before: give key=FILE.")
        if trust == "sum" and not 1 <= tolerate < self.world_size:
            allowed = f"from 1 to one less than the {self.world_size} ranks"
            raise InputError("tolerate", tolerate, allowed)
        # What is asked now, by which masks are keyed.
        self._asked = b""
        self._masks: Masks | None = None
        if trust == "sum":
            # Its library comes with an extra.
            from dpbo.curator import secure_sum

            compared = "without" if fingerprints is None else "with"
            terms = f"tolerate={tolerate}, {compared} fingerprints, dpbo {__version__}"
            self._require_same(f"meet with {terms}", ())
            exchange = self.all_gather
            self._masks = secure_sum.Masks(self.rank, tolerate, key, fingerprints, exchange)

    def run_together(self, title: str, question: Iterable[Any], work: Callable[[], T]) -> T:
        """`work()` of this rank, once all ask the same. Where it raises on one rank, it is given up
        on all.

        A rank that raised gets its own error. The others get the first such rank's, or RankFailed
        where that is not one of dpbo's errors. A Failure of one rank is returned on all.

        With trust="sum" the others get RankFailed, as from `total`.
        """
        if self._masks is not None:
            none = np.zeros(0, dtype=np.int64)
            return self.total(title, question, lambda: (work(), none, ()), 0)[0]
        self._require_same(title, question)
        value, error = _attempt(work)
        mark = _ERROR if error is not None else _FAILURE if isinstance(value, Failure) else _FINE
        marks = self.gather_mark(mark)
        worst = max(marks)
        if worst == _FINE:
            return cast(T, value)
        self.told = True
        return self._broadcast(marks.index(worst), value, error)

    def total(
        self,
        title: str,
        question: Iterable[Any],
        work: Callable[[], tuple[T, Integers, Any]],
        most: int,
    ) -> tuple[T, Integers]:
        """What `work()` of this rank gives, and the total of all ranks' numbers, modulo 2^64, once
        all ask the same; with trust="sum" alone.

        Every rank sends one message, after its work. Where that failed on a rank, or is a Failure,
        its words and the total are random to all others; it gets its own error. The others get
        RankFailed, and do not learn which rank failed.

        Args:
            work: gives a value, a vector of numbers, and what else masks are keyed by: the total
                comes out only where all ranks give the same.
            most: how many numbers a rank gives at most, the same on all ranks.
        """
        assert self._masks is not None
        self._require_same(title, question)

        def worked() -> tuple[T, int, Integers, bytes]:
            value, numbers, about = work()
            # What follows the numbers tells that all ranks worked.
            sent = np.zeros(most + 1, dtype=np.int64)
            sent[: numbers.size] = numbers
            return value, numbers.size, sent, fingerprint((self._asked, about))

        found, error = _attempt(worked)
        value, size, sent, about = found or (None, 0, np.zeros(0, dtype=np.int64), b"")
        failed = found is None or isinstance(value, Failure)
        # The others wait for this message: without it they lose this rank.
        with self._connected():
            if failed:
                # Nobody else knows these masks, so to all others they are random words.
                sent = np.zeros(most + 1, dtype=np.int64)
                about = system_entropy(_DIGEST)
            words = self._masks.masked(sent, about)
        total = self._masks.total(self.all_gather(words))
        self.told = bool(failed or total[size:].any())
        if error is not None:
            raise error
        if self.told and not failed:
            raise RankFailed(None, "an error, or sent something else")
        return cast(T, value), total[:size]

    def run_on_rank_0(self, title: str, question: Iterable[Any], work: Callable[[], T]) -> T:
        """`work()` of rank 0, or its error, on every rank; with trust="sum" each rank's own."""
        if self._masks is not None:
            return self.run_together(title, question, work)
        self._require_same(title, question)
        return self._broadcast(0, *(_attempt(work) if self.rank == 0 else (None, None)))

    def reduce(self, title: str, question: Iterable[Any], work: Callable[[], Outcome]) -> Outcome:
        """The exact sum of all ranks' answers on rank 0; elsewhere zeros of the same shape. What an
        answer keeps stays with its rank. With trust="sum" each rank's own answer, or a Failure or
        error where one failed on any rank.
        """
        if self._masks is not None:
            with contextlib.suppress(RankFailed):
                return self.run_together(title, question, work)
            return Failure("rank")
        outcome = self.run_together(title, question, work)
        if isinstance(outcome, Failure):
            return outcome
        return dataclasses.replace(outcome, numerators=self.reduce_tensor(outcome.numerators))

    def count_units(self, view: PrivateView, labels: Any, *, public: bool) -> PrivateView:
        """This rank's shard, with the number of all units where that is public. With trust="sum"
        labels are compared with nobody's.

        Raises:
            InputError: on all ranks: a unit has records on two of them.
            UsageError: there are no units, or too many to be summed exactly.
            RanksError: a rank sent another number than that of its units.
        """
        if self._masks is None:
            total = int(self.reduce_tensor(torch.tensor([view.units], device="cpu"))[0])
        elif public:
            mine = np.array([view.units])
            total = int(self.total("add up units", (), lambda: (None, mine, ()), 1)[1][0])
        else:
            # Each rank sees to its part of the largest number.
            total = view.units * self.world_size

        def of_all() -> int | None:
            # With a total below its own number a rank's sum might overflow, whoever lied.
            if total < view.units:
                raise RanksError(
                    "all ranks together say that they have fewer units than this one has: a rank"
                    " sent something else."
                )
            if public and total == 0:
                raise UsageError("all ranks together must have at least one record.")
            if total > MOST_UNITS:
                raise UsageError(
                    f"all ranks together must have at most {MOST_UNITS} units; with"
                    " Ranks(trust='sum') and a private number each has an equal part of that."
                )
            return total if public else None

        units = self.run_on_rank_0("count units", (), of_all)
        if labels is not None and self._masks is None:
            self._require_disjoint(labels)
        return dataclasses.replace(view, public_units=units)

    def new_id(self) -> str:
        """A random name for a handle, the same on all ranks: it was agreed on with the last
        question.
        """
        return self._id

    def assumptions(self, *, grouped: bool) -> list[str]:
        """What the statement assumes of the ranks; `grouped`: whether units have labels."""
        if self._masks is None:
            return [] if grouped or self.world_size == 1 else ["shards-are-disjoint"]
        relayed = [] if self._masks.compared else ["coordinator-relays-keys"]
        followed = f"ranks-follow-the-protocol: all but {self.tolerate} of {self.world_size}"
        return ["people-are-disjoint", followed, "masks-hide-shares", *relayed]

    def in_shares(self, mechanism: Mechanism) -> Mechanism:
        """The noise that each rank draws, whatever group it may be a share for.

        Raises:
            UsageError: a choice with trust="sum".
            InputError: other noise of which no sum of shares is proved.
        """
        mechanism = whole(mechanism)
        if self._masks is None or isinstance(mechanism, NoNoise):
            return mechanism
        if isinstance(mechanism, ChoiceMechanism):
            raise UsageError(
                "with Ranks(trust='sum') there is no private choice. A sum shows every score:"
                " release all of them with Gaussian noise, and take the best; in a DPSearch,"
                " strategy='auto' or 'bo'."
            )
        share = share_of(mechanism, self.world_size, self.tolerate)
        if share is None:
            raise InputError(
                "mechanism",
                type(mechanism).__name__,
                "GaussianMechanism or LaplaceMechanism with Ranks(trust='sum'): shares of these add"
                " up to a proved law",
                "Take one of these.",
            )
        return share

    def add_digests(self, mine: Tensor | None) -> Tensor | None:
        """The sum of all ranks' digests of rows on rank 0, None where one has none; with
        trust="sum" this rank's own.
        """
        if self._masks is not None:
            return mine
        if not all(self.gather_mark(mine is not None)):
            return None
        assert mine is not None
        return self.reduce_tensor(mine)

    def unlike(self, message: bytes) -> list[int]:
        """The ranks that do not prove, by the secret that they share with this one, that they hold
        the same message.
        """
        assert self._masks is not None
        rows = self.all_gather(self._masks.tags(message))
        return self._masks.unlike(rows, message)

    def send(self, source: int, message: bytes) -> bytes:
        """The bytes of rank `source`, on every rank."""
        packed = len(message).to_bytes(_LENGTH, "little") + message
        received = b""
        size = _FIRST
        with self._connected():
            while len(received) < size:
                part = packed[len(received) : size].ljust(size - len(received), b"\0")
                sent = torch.frombuffer(bytearray(part), dtype=torch.uint8)
                dist.broadcast(sent, src=self._members[source], group=self._control)
                received += sent.numpy().tobytes()
                end = _LENGTH + int.from_bytes(received[:_LENGTH], "little")
                size = max(size, end)
        return received[_LENGTH:end]

    def reduce_tensor(self, numbers: Tensor) -> Tensor:
        """The int64 sum over ranks on rank 0; zeros elsewhere."""
        device = torch.device("cpu")
        group = self._control
        if "nccl" in dist.get_backend_config(self._data) and torch.cuda.is_available():
            device = torch.device("cuda", torch.cuda.current_device())
            group = self._data
        moved = numbers.to(device, copy=True).contiguous()
        with self._connected():
            dist.reduce(moved, dst=self._members[0], group=group)
            if self.rank == 0:
                return moved.cpu()
            return torch.zeros_like(numbers)

    def all_gather(self, row: bytes) -> list[bytes]:
        """Every rank's bytes; all ranks give equally many."""
        mine = torch.frombuffer(bytearray(row), dtype=torch.uint8)
        rows = [torch.zeros_like(mine) for _ in range(self.world_size)]
        with self._connected():
            dist.all_gather(rows, mine, group=self._control)
        return [row.numpy().tobytes() for row in rows]

    def gather_mark(self, mark: int) -> list[int]:
        """Every rank's number below 256."""
        return list(b"".join(self.all_gather(bytes([mark]))))

    def all_to_all(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Send the first `counts[0]` of the rows `n x m` to rank 0, the next `counts[1]` to rank 1,
        and so on; returns those received.
        """
        received_counts = torch.zeros_like(counts)
        with self._connected():
            dist.all_to_all_single(received_counts, counts, group=self._control)
            received = rows.new_zeros((int(received_counts.sum()), rows.shape[1]))
            dist.all_to_all_single(
                received,
                rows.contiguous(),
                received_counts.tolist(),
                counts.tolist(),
                group=self._control,
            )
        return received

    def _require_disjoint(self, labels: Any) -> None:
        """Raises InputError, on every rank alike, where two ranks have a label in common, or labels
        of different kinds, such as 3 and "3".

        Each rank hashes every label that it holds, keyed by random bytes that live as long as the
        check, and sends each hash to the rank that the hash itself names; equal labels meet there.
        No rank receives a label, and none receives more than its part of the hashes. The result is
        only whether two were equal. Then the same for what a reader takes for one label.
        """
        key = self.run_on_rank_0("share a key", (), lambda: system_entropy(32))

        def hashed() -> tuple[Tensor, bytes, Tensor]:
            return *hash_labels(labels, key), hash_labels(labels, key, as_read=True)[0]

        # All at once: between two bare collectives an error here would be told to nobody.
        hashes, kind, as_read = self.run_together("read labels", (), hashed)
        if len({*self.all_gather(kind)} - {bytes(len(kind))}) > 1:
            raise InputError(
                "groups",
                Unshown(labels),
                f"alike on all ranks: {ALLOWED}",
                "Convert them in one way everywhere.",
            )
        if self._meet(hashes):
            remedy = "Divide units among ranks, not rows, for example by a hash of the label."
            raise InputError(
                "groups", Unshown(labels), "such that all rows of a unit are on one rank", remedy
            )
        if self._meet(as_read):
            warn(f"groups: {LOOKALIKES}", UserWarning)

    def _meet(self, hashes: Tensor) -> bool:
        """Whether two ranks have a hash in common, `n x 2` on each rank; the same on all."""
        owner = torch.remainder(hashes[:, 0], self.world_size)
        rows = self.all_to_all(
            hashes[owner.argsort(stable=True)], torch.bincount(owner, minlength=self.world_size)
        ).numpy()
        rows = rows[np.lexsort(rows.T)]
        repeated = bool((rows[1:] == rows[:-1]).all(axis=1).any())
        return any(self.gather_mark(repeated))

    def _require_same(self, title: str, question: Iterable[Any]) -> None:
        """Raises RanksDisagree, on all ranks, where they ask for different things."""
        self._step = title
        self.told = False
        shown = title.encode()[:_TITLE].ljust(_TITLE)
        self._asked = fingerprint((title, *question))
        rows = self.all_gather(self._asked + uuid.uuid4().bytes + shown)
        if others := [rank for rank, row in enumerate(rows) if row[:_DIGEST] != rows[0][:_DIGEST]]:
            self.told = True
            raise RanksDisagree(
                [printable(row[_DIGEST + _ID :].decode(errors="replace").strip()) for row in rows],
                others,
            )
        self._id = rows[0][_DIGEST : _DIGEST + _ID].hex()

    def _broadcast(self, source: int, value: Any, error: BaseException | None) -> Any:
        """The value or error of rank `source`, on every rank. A rank with an error of its own
        raises that.
        """
        message = _pack(value, error, source) if self.rank == source else b""
        received = self.send(source, message)
        if error is not None:
            self.told = True
            raise error
        if self.rank == source:
            return value
        theirs, failed = pickle.loads(received)
        if failed is not None:
            self.told = True
            raise failed
        return theirs

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        """Raises RankLost where a connection breaks or times out. Whatever is raised within, it
        closes this rank's connections, so that its neighbours notice.
        """
        if self._lost:
            raise RankLost(self._step)
        try:
            yield
        except BaseException as error:
            self._lost = True
            with contextlib.suppress(Exception):
                dist.destroy_process_group(self._control)
            self._control = None
            if not isinstance(error, RuntimeError):
                raise
            # What gloo raises for closed connections and timeouts.
            raise RankLost(self._step) from error

    def __repr__(self) -> str:
        return f"<Ranks: {self.rank} of {self.world_size}>"


class OneProcess:
    """What `Ranks` does, where one process holds all records: nothing is compared or sent."""

    rank = 0
    world_size = 1

    def run_together(self, title: str, question: Iterable[Any], work: Callable[[], T]) -> T:
        """`work()`, whatever it is called."""
        return work()

    run_on_rank_0 = reduce = run_together

    def count_units(self, view: PrivateView, labels: Any, *, public: bool) -> PrivateView:
        """The view as it is."""
        return view

    def new_id(self) -> str:
        """A random name for a handle."""
        return uuid.uuid4().hex

    def assumptions(self, *, grouped: bool) -> list[str]:
        """Nothing."""
        return []

    def in_shares(self, mechanism: Mechanism) -> Mechanism:
        """The mechanism, or what it is a share of."""
        return whole(mechanism)

    def add_digests(self, mine: Tensor | None) -> Tensor | None:
        """The digests as they are."""
        return mine


def collective(*names: str) -> Callable[[K], K]:
    """Decorates a curator's class: its constructor and its methods of these names, which every rank
    calls in the same order. If one fails on one rank outside a step of all ranks, the others are
    told at their next step, so that they do not wait.
    """

    def decorated(kind: K) -> K:
        for name in ("__init__", *names):
            setattr(kind, name, _told(getattr(kind, name)))
        return kind

    return decorated


def _told(method: Callable[..., T]) -> Callable[..., T]:
    @functools.wraps(method)
    def told(self: Any, *args: Any, **kwargs: Any) -> T:
        # The constructor gets what the curator does not have yet.
        ranks = getattr(self, "_ranks", kwargs.get("ranks"))
        if not isinstance(ranks, Ranks):
            return method(self, *args, **kwargs)
        ranks.told = False
        try:
            return method(self, *args, **kwargs)
        except Exception:
            if not ranks.told:
                # What this rank raised counts, also where another one is lost.
                with contextlib.suppress(RanksError):
                    ranks.run_on_rank_0("stop for an error of its own", (), lambda: None)
                # A method that called this one has nothing to add.
                ranks.told = True
            raise

    return told


def _attempt(work: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    try:
        return work(), None
    except BaseException as error:  # of any kind: the other ranks wait to hear of it
        return None, error


def _pack(value: Any, error: BaseException | None, rank: int) -> bytes:
    """A pickle for the other ranks. dpbo's errors show nothing private; other errors, and what does
    not pickle, go as a type's name.
    """
    try:
        if error is None or isinstance(error, PrivacyError):
            shown = error
        else:
            shown = RankFailed(rank, type(error).__name__)
        return pickle.dumps((value, shown))
    except Exception as refused:
        return pickle.dumps(
            (None, RankFailed(rank, type(refused if error is None else error).__name__))
        )
