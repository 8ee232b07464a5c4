"""Keyed fingerprints of private records: do two tables share records, and are these the records of
before?

A row counts as two 32-bit words for each of its cells. Those of a number are its float32, whatever
its dtype, and 0. A row's fingerprint is 64 bits: the upper halves of two sums k_0 + sum of k_j w_j
modulo 2^64 over its words w_j, with secret 64-bit keys, which are strongly universal (Lemire &
Kaser 2014): two different rows agree with probability 2^-64.

The words of a text of at most 64 letters are such a fingerprint themselves, with other keys, of its
letters, each as its code point, and its length. Two texts of different lengths differ in that word;
two of one length differ in a letter. So different texts have equal words with probability 2^-64,
and rows that differ in a text agree with probability 2^-63 at most. The words of any other cell are
a keyed BLAKE2b of 64 bits, of its pickle where it is no value of Python, numpy or torch. A missing
value is a NaN, whatever stands for it.

A table counts as the sum of its rows' fingerprints, mixed once more by each of two secret keys, so
neither the order of rows nor how they are dealt to ranks matters (`TableDigest`).

Fingerprints of records are private: a reader who could try keys or compare them over time would
learn of records. None enters a ledger. They stay in memory (protected_records.py), or in a file
that only the operator may read (reservation_fingerprints.py).
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import itertools
import math
import numbers
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from dpbo.curator.entropy import system_entropy
from dpbo.curator.public_form import is_missing
from dpbo.curator.records import PrivateView, leaves
from dpbo.fingerprint import columns_of, fingerprint
from dpbo.isolation import isolate_generators, mute_warnings

Digests = NDArray[np.uint64]
_Words = tuple[Digests, Digests | None]
MOST_ROWS = 1 << 16
# In a block of rows.
_BLOCK_CELLS = 1 << 18
# Letters of a text that are compared at once with those of others.
_SHORT = 64
# Sums of 64 bits in the digest of a table, of 128 bits.
_SUMS = 2
# So many values in the first rows of a column are no code.
_FEW = 16
_LOOKED_AT = 256
# Samples of a Dataset, to see whether it gives the same ones again.
_READ_TWICE = 16
_CELLS = (
    str,
    bytes,
    numbers.Number,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    tuple,
    list,
    Mapping,
    np.ndarray,
    Tensor,
)
# The secret key of this process.
PROCESS_KEY = system_entropy(32)


class Rows(Protocol):
    """Records whose rows can be compared."""

    @property
    def count(self) -> int:
        """Number of records."""

    @property
    def units(self) -> int:
        """Number of units."""

    @property
    def groups(self) -> Tensor | None:
        """The unit of each record; None where each record is one."""

    @property
    def can_take(self) -> bool:
        """Whether single records can be taken out."""

    def take(self, positions: Tensor | slice, /) -> Any:
        """The records at these positions, as a table."""


@dataclass(frozen=True, eq=False)
class _Samples:
    """The samples of a torch Dataset as rows."""

    records: Any = field(repr=False)
    can_take: bool = True

    @property
    def count(self) -> int:
        return len(self.records)

    units = count
    groups: None = None

    def take(self, positions: Tensor | slice) -> Any:
        """The parts of the samples, each as a tensor or array where all have one shape, else as a
        list."""
        # A warning may show a sample, and samples may be changed at random.
        with mute_warnings(), isolate_generators(system_entropy):
            if isinstance(positions, slice):
                positions = torch.arange(self.count, device="cpu")[positions]
            samples = [leaves(self.records[place]) for place in positions.tolist()]
        return tuple(_stacked(list(parts)) for parts in zip(*samples, strict=True))


def rows_of(records: Any) -> Rows | None:
    """Records of any form as rows that can be compared; None where they cannot, as where a Dataset
    changes its samples at random."""
    try:
        if isinstance(records, PrivateView):
            if records.can_take:
                return records
            records = records.records
        # A subclass may give other records than these two do.
        if type(records) is Subset:
            if (whole := rows_of(records.dataset)) is None:
                return None
            rows = whole.take(torch.as_tensor(records.indices, device="cpu"))
            return PrivateView.of_records(rows)
        if type(records) is TensorDataset:
            records = records.tensors
        elif isinstance(records, Dataset):
            samples = _Samples(records)
            few = torch.arange(min(samples.count, _READ_TWICE), device="cpu")
            first = row_digests(samples, PROCESS_KEY, few)
            second = row_digests(samples, PROCESS_KEY, few)
            if first is not None and second is not None and np.array_equal(first, second):
                return samples
            return None
        view = PrivateView.of_records(records)
        if view.can_take:
            return view
        return None
    except Exception:
        # Its text may hold records.
        return None


def _stacked(parts: list[Any]) -> Any:
    if all(isinstance(part, Tensor) for part in parts) and len({part.shape for part in parts}) == 1:
        return torch.stack(parts)
    if (
        all(isinstance(part, np.ndarray) for part in parts)
        and len({(part.shape, part.dtype) for part in parts}) == 1
    ):
        return np.stack(parts)
    return parts


@dataclass(frozen=True, eq=False)
class Sketch:
    """Fingerprints of a table's rows, or of `MOST_ROWS` rows drawn at random where it has more.

    Two such tables of n rows with a share s in common then have no drawn row in common with
    probability exp(-s MOST_ROWS^2 / n).

    Attributes:
        rows: the distinct fingerprints, sorted.
        count: number of rows looked at.
        repeated: share of these that occur more than once. By Good and Turing it estimates the
            share of other people's rows that equal one of these by chance: 0 for measurements,
            large where a row has only a few words or bits.
        whole: digest of all rows in their order.
        columns: digests of single columns in their order, but for those in which other people
            agree, too (`_Columns.telling`).
    """

    rows: Digests = field(repr=False)
    count: int = field(repr=False)
    repeated: float = field(repr=False)
    whole: bytes = field(repr=False)
    columns: frozenset[int] = field(repr=False)

    @classmethod
    def of(cls, rows: Rows | None) -> Sketch | None:
        """None without rows, or where single rows cannot be taken."""
        if rows is None:
            return None
        positions = None
        if rows.count > MOST_ROWS:
            drawn = np.random.default_rng(list(PROCESS_KEY)).choice(
                rows.count, MOST_ROWS, replace=False
            )
            positions = torch.from_numpy(np.sort(drawn))
        columns = _Columns()
        found = row_digests(rows, PROCESS_KEY, positions, columns)
        if found is None or not len(found):
            return None
        distinct, counts = np.unique(found, return_counts=True)
        whole = hashlib.sha256(found.tobytes() + str(rows.count).encode()).digest()
        return cls(
            distinct,
            len(found),
            1.0 - float((counts == 1).sum()) / len(found),
            whole,
            columns.telling(),
        )

    def is_of_people_of(self, other: Sketch) -> bool:
        """Whether the tables have rows in common, or a column: the same people with another label,
        or other columns.
        """
        return self.shares_rows_with(other) or not self.columns.isdisjoint(other.columns)

    def shares_rows_with(self, other: Sketch) -> bool:
        """Whether the tables have more rows in common than chance explains: three standard
        deviations beyond its mean.
        """
        if self.whole == other.whole:
            return True
        # Where none of n is repeated, the rate may still be 3/n.
        by_chance = max(self.repeated, other.repeated) + 3.0 / self.count
        chance = len(other.rows) * by_chance
        return self._shared(other) > chance + 3.0 * float(np.sqrt(chance))

    def has_rows_of(self, other: Sketch) -> bool:
        """Whether the tables have any row in common, though no row is repeated within either:
        perhaps by chance, for rows of few words."""
        return not self.repeated and not other.repeated and self._shared(other) > 0

    def _shared(self, other: Sketch) -> int:
        return int(np.isin(other.rows, self.rows, assume_unique=True).sum())


class _Columns:
    """Digests of a table's columns of 32-bit words, of which blocks of rows come one after the
    other: sums of the words with a secret key a row, modulo 2^64."""

    def __init__(self) -> None:
        self._keys = np.frombuffer(
            hashlib.shake_128(b"columns" + PROCESS_KEY).digest(8 * MOST_ROWS), dtype="<u8"
        )
        self._sums: Any = np.uint64(0)
        self._first: NDArray[np.int64] | None = None

    def add(self, words: Digests) -> None:
        own, self._keys = np.split(self._keys, [len(words)])
        self._sums = self._sums + own @ words
        known = np.zeros((0, words.shape[1]), np.int64) if self._first is None else self._first
        self._first = np.concatenate([known, words[: _LOOKED_AT - len(known)].astype(np.int64)])

    def telling(self) -> frozenset[int]:
        """Of the columns that no other people share by chance: not of those with few values, nor of
        those that follow the rows' order alone, such as row numbers, sines of the day, or hours.
        """
        if self._first is None:
            return frozenset()
        many = (np.diff(np.sort(self._first, axis=0), axis=0) != 0).sum(axis=0) >= _FEW
        telling = many & ~_few_turns(self._first)
        telling[telling] = ~_periodic(self._first[:, telling])
        return frozenset(self._sums[telling].tolist())


def _few_turns(rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether a column rises or falls for long. One in any order turns at two of three steps."""
    steps = np.sign(np.diff(rows, axis=0)).astype(np.int8)
    moves = steps != 0
    # Where neighbours are equal, it goes on as before.
    newest = np.maximum.accumulate(np.where(moves, np.arange(len(steps))[:, None], 0), axis=0)
    ways = np.take_along_axis(steps, newest, axis=0)
    turns = (ways[1:] * ways[:-1] < 0).sum(axis=0)
    return turns * 4 < moves.sum(axis=0)


def _periodic(rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether a column is the same again after some number of rows, half of them at most."""
    found = np.zeros(rows.shape[1], dtype=np.bool_)
    half = len(rows) // 2
    few = min(_FEW, half)
    for period in range(1, half + 1):
        # Most columns differ soon.
        like = (rows[period : period + few] == rows[:few]).all(axis=0) & ~found
        found[like] = (rows[period:, like] == rows[:-period, like]).all(axis=0)
    return found


class TableDigest:
    """Sums over all records: the same for the same records in any order, and the sum of what ranks
    find in their shards.

    Attributes:
        sums: two sums over rows, and the number of units, as int64 modulo 2^64; private.
    """

    def __init__(self, sums: Tensor) -> None:
        self.sums = sums

    @classmethod
    def of(cls, rows: Rows, key: bytes) -> TableDigest | None:
        """None where single records cannot be read. Where units are groups, what counts is the sum
        of each unit's rows: records that belong together otherwise are other ones."""
        mixing = np.frombuffer(hashlib.shake_128(b"table" + key).digest(8 * _SUMS), dtype="<u8")
        sums = np.zeros(_SUMS, dtype=np.uint64)
        grouped = rows.groups is not None
        of_units = np.zeros(rows.units if grouped else 0, dtype=np.uint64)
        begun = 0

        def add_to_sums(found: Digests) -> None:
            found_sums = [_mixed(found ^ one).sum(dtype=np.uint64) for one in mixing]
            np.add(sums, found_sums, out=sums)

        def add_to_units(found: Digests) -> None:
            nonlocal begun
            units = rows.groups[begun : begun + len(found)].cpu().numpy()  # type: ignore[index]
            np.add.at(of_units, units, _mixed(found))
            begun += len(found)

        if not _read(rows, key, add_to_units if grouped else add_to_sums):
            return None
        if grouped:
            add_to_sums(of_units)
        return cls(torch.from_numpy(np.array([*sums, rows.units], dtype=np.uint64).view(np.int64)))

    def hex(self, key: bytes) -> str:
        """As it is kept and compared."""
        return hashlib.blake2b(self.sums.numpy().tobytes(), key=key, digest_size=16).hexdigest()


def table_digest(rows: Rows | None, key: bytes) -> str | None:
    """Digest of all records in any order; None where single records cannot be read."""
    digest = None if rows is None else TableDigest.of(rows, key)
    return None if digest is None else digest.hex(key)


def order_digest(rows: Rows, key: bytes) -> str | None:
    """Digest of all records in their order; None where single records cannot be read."""
    hashed = hashlib.blake2b(key=key, digest_size=16)
    if not _read(rows, key, lambda found: hashed.update(found.data)):
        return None
    return hashed.hexdigest()


def _mixed(numbers: Digests) -> Digests:
    """The finaliser of SplitMix64 (Steele, Lea & Flood 2014): sums of what it returns cancel only
    by chance."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def row_digests(
    view: Rows, key: bytes, positions: Tensor | None = None, columns: _Columns | None = None
) -> Digests | None:
    """A fingerprint for each row, or those at these positions; None where single records cannot be
    read.

    `columns` is given the same words.
    """
    found = [np.zeros(0, np.uint64)]
    if _read(view, key, found.append, positions, columns):
        return np.concatenate(found)
    return None


def _read(
    view: Rows,
    key: bytes,
    use: Callable[[Digests], Any],
    positions: Tensor | None = None,
    columns: _Columns | None = None,
) -> bool:
    """Give the fingerprints of rows, block by block, to `use`; False where single records cannot be
    read."""
    count = view.count if positions is None else len(positions)
    try:
        if not view.can_take:
            return False
        wide = sum(first.shape[1] for first, _ in _words_of(view, slice(0, 1), 1, key))
        keys = np.frombuffer(hashlib.shake_128(key).digest(16 + 32 * wide), dtype="<u8")
        step = max(_BLOCK_CELLS // max(wide, 1), 1)
        for start in range(0, count, step):
            block = slice(start, min(start + step, count))
            rows = block if positions is None else positions[block]
            words = _words_of(view, rows, block.stop - start, key)
            if columns is not None:
                found = itertools.chain.from_iterable(words)
                columns.add(np.hstack([part for part in found if part is not None]))
            # Modulo 2^64.
            sums = np.tile(keys[:2], (block.stop - start, 1))
            place = 0
            own = keys[2:].reshape(wide, 2, 2)
            for first, second in words:
                of_part = own[place : place + first.shape[1]]
                sums += first @ of_part[:, 0]
                if second is not None:
                    sums += second @ of_part[:, 1]
                place += first.shape[1]
            use(_upper(sums))
    except Exception:
        # Its text may hold records.
        return False
    return True


def _upper(sums: Digests) -> Digests:
    """The upper halves of two sums as one number, `n x 2` to `n`."""
    return (sums[:, 0] & np.uint64(0xFFFFFFFF00000000)) | (sums[:, 1] >> np.uint64(32))


def _words_of(view: Rows, rows: Tensor | slice, count: int, key: bytes) -> list[_Words]:
    """The words of some rows of a table."""
    found = []
    for part in leaves(view.take(rows)):
        found += _words(part, count, key)
    return found


def _words(part: Any, count: int, key: bytes) -> list[_Words]:
    """The first and the second words of `count x m` cells, equal for equal cells; None in place of
    second words that are all 0."""
    if hasattr(part, "iloc"):
        found = []
        for column in columns_of(part):
            found += _words(column.to_numpy(), count, key)
        return found
    if isinstance(part, Tensor):
        part = part.detach().cpu()
        part = (torch.view_as_real(part) if part.is_complex() else part).float().numpy()
    if isinstance(part, np.ndarray) and part.dtype.kind in "biuf":
        return [(_singles(part.reshape(count, -1)), None)]
    if hasattr(part, "tocsr"):
        part = [(row.indices, row.data.astype(np.float64)) for row in part.sorted_indices()]
    if isinstance(part, np.ndarray) and part.dtype.kind in "mM":
        # In one unit: which one a table has depends on what read its file.
        times = np.ascontiguousarray(part).astype(f"{part.dtype.kind}8[us]")
        words = times.view("<u4").astype(np.uint64)
    elif isinstance(part, np.ndarray):
        words = _cell_words(part.reshape(-1).tolist(), key)
    else:
        words = _cell_words(list(part), key)
    words = words.reshape(count, -1, 2)
    return [(words[:, :, 0], words[:, :, 1])]


def _cell_words(cells: list[Any], key: bytes) -> Digests:
    """Two words for each cell."""
    if any(issubclass(kind, np.generic) for kind in {*map(type, cells)}):
        cells = [cell.item() if isinstance(cell, np.generic) else cell for cell in cells]
    short = np.array([type(cell) is str and len(cell) <= _SHORT for cell in cells], dtype=np.bool_)
    if cells and short.all():
        return _text_words(cells, key)
    words = np.zeros((len(cells), 2), np.uint64)
    if short.any():
        words[short] = _text_words([*itertools.compress(cells, short)], key)
    found = b"".join(_cell(cell, key) for cell in itertools.compress(cells, ~short))
    words[~short] = np.frombuffer(found, dtype="<u4").reshape(-1, 2)
    return words


def _text_words(texts: list[str], key: bytes) -> Digests:
    """Two words for each text of at most `_SHORT` letters."""
    keys = np.frombuffer(hashlib.shake_128(b"text" + key).digest(16 * (_SHORT + 2)), dtype="<u8")
    lengths = np.fromiter(map(len, texts), np.uint64, len(texts))
    longest = max(int(lengths.max()), 1)
    # Shorter ones end in zeros, which the length tells from letters.
    letters = np.array(texts, dtype=f"<U{longest}").view("<u4").reshape(-1, longest)
    words = np.hstack([np.ones_like(lengths)[:, None], lengths[:, None], letters.astype(np.uint64)])
    return (words @ keys.reshape(-1, 2)[: longest + 2]) >> np.uint64(32)


def _singles(numbers: Any) -> Digests:
    """The bits of numbers rounded to float32, with one zero and one NaN."""
    with np.errstate(over="ignore"):
        rounded = np.asarray(numbers, dtype=np.float32) + np.float32(0.0)
    rounded[np.isnan(rounded)] = np.nan
    return rounded.view(np.uint32).astype(np.uint64)


def _cell(cell: Any, key: bytes) -> bytes:
    """8 bytes: a number as in a table of numbers; a missing value of any kind as NaN. Raises for an
    object that has no pickle: its content is not known.
    """
    if is_missing(cell):
        cell = math.nan
    if isinstance(cell, (int, float)):
        with contextlib.suppress(OverflowError):
            # An integer beyond the largest float.
            return _singles(np.array([float(cell)])).tobytes()
    if not isinstance(cell, _CELLS):
        pickle.dumps(cell)
    # "content", since a sample may hold other objects, such as pictures. A pickle itself tells of
    # more: where a tensor lies, in what order a set came, and which texts are one object.
    return fingerprint(cell, detail="content", key=key, size=8)
