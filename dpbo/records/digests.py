"""Digests of private rows, and one of the table: do two tables share records, and are these the
records of before?

A row's digest is a sum of k_j w_j modulo 2^64 over its cells, with fixed odd k_j, mixed. The w_j of
a number is its float32, whatever its dtype; of a date its microseconds; of a text a like sum over
its letters, mixed. Anything else, and a text of more than 64 letters, counts as the text of its
BLAKE2b. A missing value is a NaN, whatever stands for it. Zeros at the end do not count. Two other
rows agree by chance, about once in 2^50 pairs.

A table counts as two sums over its rows' digests, so neither the order of rows nor how they are
dealt to ranks matters.

Digests of records are private: a reader who could compare them over time would learn of records.
None enters a ledger. They stay in memory (protected_records.py), or, under a secret key, in a file
that only the operator may read (ledger/kept.py, charged_tables.py).
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import numbers
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from dpbo.entropy import system_entropy
from dpbo.fingerprint import columns_of, fingerprint
from dpbo.isolation import isolate_generators, mute_warnings
from dpbo.records.containers import leaves
from dpbo.records.labels import is_missing
from dpbo.records.view import PrivateView

Digests = NDArray[np.uint64]
# Rows of a table that are compared with others.
MOST_ROWS = 1 << 18
# In a block of rows.
_BLOCK_CELLS = 1 << 18
# Letters of a text that is compared letter by letter.
_SHORT = 64
# Samples of a Dataset, to see whether it gives the same ones again.
_READ_TWICE = 16
# A part of which more rows occur twice tells of nobody.
_MOST_REPEATED = 0.5


@dataclass(frozen=True, eq=False)
class RowSet:
    """Digests of a table's rows; of more than `MOST_ROWS` the smallest, so that rows which two
    tables share are kept in both or in neither.

    Attributes:
        rows: the distinct ones, sorted.
        count: number of rows kept.
        repeated: share of these that occur more than once. By Good and Turing it estimates the
            share of other people's rows that equal one of these by chance: 0 for measurements,
            large where a row has only a few words or bits.
        whole: digest of all rows in their order.
    """

    rows: Digests = field(repr=False)
    count: int = field(repr=False)
    repeated: float = field(repr=False)
    whole: bytes = field(repr=False)

    @classmethod
    def of(cls, rows: Digests) -> Self:
        """Of at least one row."""
        whole = hashlib.blake2b(rows.data).digest()
        if len(rows) > MOST_ROWS:
            rows = np.partition(rows, MOST_ROWS)[:MOST_ROWS]
        distinct, counts = np.unique(rows, return_counts=True)
        return cls(distinct, len(rows), 1.0 - float((counts == 1).sum()) / len(rows), whole)

    def shared(self, other: RowSet) -> int:
        """Number of rows that both have."""
        return len(np.intersect1d(self.rows, other.rows, assume_unique=True))

    def shares_rows_with(self, other: RowSet) -> bool:
        """Whether the tables are equal, or have more rows in common than chance explains: three
        standard deviations beyond its mean.
        """
        if self.whole == other.whole:
            return True
        few, many = sorted((self, other), key=lambda each: each.count)
        # Where none of n is repeated, the rate may still be 3/n.
        chance = len(few.rows) * (max(few.repeated, many.repeated) + 3.0 / many.count)
        return few.shared(many) > chance + 3.0 * math.sqrt(chance)


@dataclass(frozen=True, eq=False)
class RowDigests:
    """The digests of all rows of a table.

    Attributes:
        parts: of the rows of each part, such as features and labels, `p x n`.
        telling: whether a row of the part may be a person's own: neither a single number nor a
            table's single word.
        units: number of units.
        groups: the unit of each record; None where each record is one.
    """

    parts: Digests = field(repr=False)
    telling: list[bool]
    units: int = field(repr=False)
    groups: Tensor | None = field(repr=False)

    @classmethod
    def of(cls, records: Any) -> Self | None:
        """Of records of any form, or a view of them; None where single ones cannot be read, or not
        alike twice, as where a Dataset changes its samples at random."""
        try:
            return cls._read(records)
        except Exception:
            # Its text may hold records.
            return None

    @classmethod
    def _read(cls, records: Any) -> Self | None:
        view = records
        if not isinstance(view, PrivateView):
            view = PrivateView.of_records(records)
        take = _reader(view)
        if take is None:
            return None
        # Of one row: widths do not depend on how many are read at once.
        parts = _parts(take(slice(min(view.count, 1))))
        width = sum(_words(part, 1).shape[1] for part in parts)
        found = np.zeros((len(parts), view.count), np.uint64)
        step = max(_BLOCK_CELLS // max(width, 1), 1)
        for start in range(0, view.count, step):
            block = slice(start, min(start + step, view.count))
            for place, part in enumerate(_parts(take(block))):
                words = _words(part, block.stop - start)
                # The 1 makes the digest of a row of zeros no smaller than others (`RowSet`).
                sums = words @ _keys(words.shape[1]) + np.uint64(1)
                found[place, block] = _mixed(sums)
        return cls(found, [*map(_tells, parts)], view.units, view.groups)

    @property
    def rows(self) -> Digests:
        """A digest for each row."""
        if len(self.parts) == 1:
            return self.parts[0]
        return _mixed(_keys(len(self.parts)) @ self.parts)

    def sets(self, *, parts_alone: bool = False) -> list[RowSet]:
        """What is compared with other tables: the rows, and those of each part that tells of
        people, such as features under another label.

        Args:
            parts_alone: whether the rows as a whole are left out.
        """
        if not self.parts.size:
            return []
        whole = [] if parts_alone else [RowSet.of(self.rows)]
        if whole and len(self.parts) == 1:
            return whole
        telling = itertools.compress(self.parts, self.telling)
        sets = map(RowSet.of, telling)
        return whole + [each for each in sets if each.repeated <= _MOST_REPEATED]

    def sums(self) -> Tensor:
        """Two sums over rows, and the number of units, as int64 modulo 2^64: of several ranks' rows
        the sum of theirs. Where units are groups, what counts is the sum of each unit's rows:
        records that belong together otherwise are other ones."""
        found = self.rows
        if self.groups is not None:
            of_units = np.zeros(self.units, np.uint64)
            np.add.at(of_units, self.groups.cpu().numpy(), found)
            found = _mixed(of_units)
        sums = np.array([found.sum(), found @ found, self.units], np.uint64)
        return torch.from_numpy(sums.view(np.int64))

    def digest(self, key: bytes) -> str:
        """Digest of all rows in any order."""
        return digest_of_sums(self.sums(), key)

    def digest_in_order(self, key: bytes) -> str:
        """Digest of all rows in their order."""
        return hashlib.blake2b(self.rows.data, key=key, digest_size=16).hexdigest()


def table_digest(records: Any, key: bytes) -> str | None:
    """Digest of all records in any order; None where single ones cannot be read."""
    rows = RowDigests.of(records)
    return None if rows is None else rows.digest(key)


def digest_of_sums(sums: Tensor, key: bytes) -> str:
    """The keyed digest of a table from `RowDigests.sums`."""
    return hashlib.blake2b(sums.numpy().data, key=key, digest_size=16).hexdigest()


def _reader(view: PrivateView) -> Callable[[slice], Any] | None:
    """What takes rows of a view; None where a Dataset changes its samples at random."""
    if view.can_take:
        return view.take
    records = view.records
    # A subclass may give other records than these two do.
    if type(records) is Subset and type(records.dataset) is TensorDataset:
        records = TensorDataset(*records.dataset[records.indices])
    if type(records) is TensorDataset:
        return PrivateView.of_records(records.tensors).take

    def samples(places: slice) -> list[Any]:
        # A warning may show a sample, and samples may be changed at random.
        with mute_warnings(), isolate_generators(system_entropy):
            return [records[place] for place in range(places.start or 0, places.stop)]

    count = min(view.count, _READ_TWICE)
    first, second = (_parts(samples(slice(count))) for _ in range(2))
    for part, again in zip(first, second, strict=True):
        if not np.array_equal(_words(part, count), _words(again, count)):
            return None
    return samples


def _parts(records: Any) -> list[Any]:
    """The parts of some rows; of a list of samples those of each, as a tensor or array where all
    have one shape."""
    found: list[Any] = []
    for part in leaves(records):
        if not isinstance(part, list):
            found.append(part)
            continue
        for column in zip(*map(leaves, part), strict=True):
            cells: Any = [*column]
            if len({getattr(cell, "shape", None) for cell in cells}) == 1:
                if isinstance(cells[0], Tensor):
                    cells = torch.stack(cells)
                elif isinstance(cells[0], np.ndarray):
                    cells = np.stack(cells)
            found.append(cells)
    return found


@functools.lru_cache
def _keys(count: int) -> Digests:
    """The factors of a sum."""
    drawn = np.frombuffer(hashlib.shake_128(b"dpbo").digest(8 * count), dtype="<u8")
    return drawn | np.uint64(1)


def _mixed(found: Digests) -> Digests:
    """The finaliser of SplitMix64 (Steele, Lea & Flood 2014): sums of what it returns are equal
    only by chance. Of 0 it is 0."""
    found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return found ^ (found >> np.uint64(31))


def _tells(part: Any) -> bool:
    """Whether a row of a part, of which this is one, may be a person's own."""
    if isinstance(part, list):
        return not isinstance(part[0], numbers.Number)
    return math.prod(part.shape[1:]) > 1


def _words(part: Any, count: int) -> Digests:
    """`count x m` words, equal for equal cells."""
    if hasattr(part, "iloc"):
        return np.hstack([_words(column.to_numpy(), count) for column in columns_of(part)])
    if isinstance(part, Tensor):
        part = part.detach().cpu()
        part = (torch.view_as_real(part) if part.is_complex() else part).float().numpy()
    if hasattr(part, "tocsr"):
        part = [(row.indices, row.data.astype(np.float64)) for row in part.sorted_indices()]
    kind = part.dtype.kind if isinstance(part, np.ndarray) else ""
    if kind and kind in "biuf":
        words = _number_words(part)
    elif kind and kind in "mM":
        # In one unit: which one a table has depends on what read its file.
        words = part.astype(f"{kind}8[us]").view(np.uint64)
    else:
        words = _cell_words(part.reshape(-1).tolist() if kind else list(part))
    return words.reshape(count, -1)


def _number_words(values: Any) -> Digests:
    """The bits of numbers rounded to float32, with one zero and one NaN. As big-endian ones, since
    the low bits of round numbers are zeros, which a product would keep."""
    with np.errstate(over="ignore"):
        rounded = np.asarray(values, dtype=np.float32) + np.float32(0.0)
    rounded[np.isnan(rounded)] = np.nan
    return rounded.view(">u4").astype(np.uint64)


def _cell_words(cells: list[Any]) -> Digests:
    """A word for each cell."""
    if {*map(type, cells)} == {str} and max(map(len, cells)) <= _SHORT:
        return _text_words(cells)
    plain = [*map(_plain, cells)]
    values = [cell if isinstance(cell, float) else 0.0 for cell in plain]
    texts = ["" if isinstance(cell, float) else cell for cell in plain]
    return _number_words(values) + _text_words(texts)


def _text_words(texts: list[str]) -> Digests:
    """A word for each text; 0 for none."""
    longest = max(1, *map(len, texts))
    letters = np.array(texts, dtype=f"<U{longest}").view("<u4").reshape(-1, longest)
    return _mixed(letters.astype(np.uint64) @ _keys(longest))


def _plain(cell: Any) -> float | str:
    """A cell as a number or a short text. Raises for an object that has no pickle: its content is
    not known.
    """
    if is_missing(cell):
        return math.nan
    if isinstance(cell, (numbers.Real, np.bool_)):
        return float(cell)
    if isinstance(cell, str) and len(cell) <= _SHORT:
        return cell
    pickle.dumps(cell)
    # "content", since a sample may hold other objects, such as pictures. A pickle itself tells of
    # more: where a tensor lies, in what order a set came, and which texts are one object.
    return fingerprint(cell, detail="content", size=16).hex()
