"""Whether shards are shards: how many units they hold together, and that no unit has rows in two of them.

Labels are compared without being shown. Each rank makes a 128-bit hash of every label it holds, keyed by random bytes that live as long as
the check, and deals the hashes out, each to the rank that it names by its own value; equal labels meet there. Nobody gets a label, no
rank more than its part of the hashes, and all that comes of it is whether two were equal. Labels must be numbers, words, bytes or tuples of
them, of the same kinds on all ranks: 3 and 3.0 are one unit as they are in one process, but 3 and "3" would be two without being seen.
"""

from __future__ import annotations

import hashlib
import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import torch

from dpbo.errors import InputError
from dpbo.queries.integers import MOST_UNITS

_ALLOWED = "numbers, words, bytes or tuples of them, of the same kinds on every rank"
_NUMBER, _WORD, _BYTES, _TUPLE = 1, 2, 4, 8
_PLACES = 16


class Lines(Protocol):
    """What the check needs of the ranks."""

    size: int

    def exchange(self, row: bytes) -> list[bytes]: ...
    def dealt(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, eq=False)
class Names:
    """Keyed hashes of a shard's distinct labels, `units x 2` int64, and which kinds there are: of labels, then of each place in tuples."""

    hashes: torch.Tensor = field(repr=False)
    kinds: bytes


def with_total(total: int, *, public: bool) -> int | None:
    """The number of units of all shards where it is public. Raises InputError where no sum over so many could be exact."""
    if total > MOST_UNITS:
        raise InputError("records", "shards", f"at most {MOST_UNITS} units in all")
    if total == 0 and public:
        raise InputError("records", "shards", "at least one record in all")
    return total if public else None


def names_of(labels: Any, key: bytes) -> Names:
    """Of a shard. Raises InputError on labels that cannot be compared between processes."""
    kinds, hashed = bytearray(_PLACES), []
    for label in _distinct(labels):
        kind, text = _told(label)
        kinds[0] |= kind
        _note_places(label, kinds)
        hashed.append(hashlib.blake2b(text, digest_size=16, key=key).digest())
    whole = np.frombuffer(bytearray(b"".join(hashed)), dtype="<i8").reshape(-1, 2)
    return Names(torch.from_numpy(whole), bytes(kinds))


def require_apart(names: Names, lines: Lines) -> None:
    """Raises InputError, on every rank alike, where two ranks have a label in common, or labels of different kinds."""
    places = zip(*lines.exchange(names.kinds), strict=True)
    if any(len(set(kinds) - {0}) > 1 for kinds in places):
        raise InputError("groups", "labels of different kinds on different ranks", _ALLOWED, "Give numbers everywhere, or words.")
    owner = torch.remainder(names.hashes[:, 0], lines.size)
    came = lines.dealt(names.hashes[owner.argsort(stable=True)], torch.bincount(owner, minlength=lines.size))
    if any(row[0] for row in lines.exchange(bytes([_has_equals(came)]))):
        remedy = "Deal units out, not rows, for example by a hash of the label."
        raise InputError("groups", "labels with rows on more than one rank", "such that all rows of a unit are on one rank", remedy)


def _has_equals(rows: torch.Tensor) -> bool:
    first, second = rows.numpy().T
    order = np.lexsort((second, first))
    return bool(((np.diff(first[order]) == 0) & (np.diff(second[order]) == 0)).any())


def _distinct(labels: Any) -> Sequence[Any]:
    flat = labels.cpu().numpy() if isinstance(labels, torch.Tensor) else labels
    flat = np.asarray(flat if hasattr(flat, "dtype") else np.array(flat, dtype=object))
    return list(dict.fromkeys(flat.tolist())) if flat.dtype.kind == "O" else np.unique(flat).tolist()


def _told(label: Any) -> tuple[int, bytes]:
    """(kind, a text that equal labels and no others share)."""
    if isinstance(label, numbers.Real):
        return _NUMBER, f"n{_exact(label)}".encode()
    if isinstance(label, str):
        return _WORD, b"s" + label.encode("utf-8", "surrogatepass")
    if isinstance(label, bytes):
        return _BYTES, b"b" + label
    if isinstance(label, tuple):
        parts = [_told(part)[1] for part in label]
        return _TUPLE, b"t" + b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    raise InputError("groups", type(label).__name__, _ALLOWED)


def _note_places(label: Any, kinds: bytearray, place: int = 0) -> None:
    """Kinds of a tuple's parts, by their places; far places share one."""
    if isinstance(label, tuple):
        for part in label:
            place = 1 + place % (_PLACES - 1)
            kinds[place] |= _told(part)[0]
            _note_places(part, kinds, place)


def _exact(number: Any) -> Any:
    """Equal numbers of any type as the same text."""
    if isinstance(number, numbers.Integral):
        return int(number)
    if isinstance(number, Fraction):
        return number
    return Fraction(float(number)) if math.isfinite(number) else float(number)
