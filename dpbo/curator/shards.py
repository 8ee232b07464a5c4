"""Whether shards are shards: how many units they hold together, and that no unit has rows in two of them.

Labels are compared without being shown. Each rank makes a 128-bit hash of every label it holds, keyed by random bytes that live as long as
the check, and deals the hashes out, each to the rank that it names by its own value; equal labels meet there. Nobody gets a label, no
rank more than its part of the hashes, and all that comes of it is whether two were equal. Labels are values
(labels.py), of one kind on all ranks: 3 and 3.0 are one unit as they are in one process, but 3 and "3" would be two without being seen.
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

from dpbo.curator.labels import ALLOWED, as_values, kind_of
from dpbo.errors import InputError
from dpbo.queries.integers import MOST_UNITS

_KIND = 8  # bytes


class Lines(Protocol):
    """What the check needs of the ranks."""

    size: int

    def exchange(self, row: bytes) -> list[bytes]: ...
    def dealt(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, eq=False)
class Names:
    """Keyed hashes of a shard's distinct labels, `units x 2` int64, and a hash of what kind of value they are; zeros without labels."""

    hashes: torch.Tensor = field(repr=False)
    kind: bytes


def with_total(total: int, *, public: bool) -> int | None:
    """The number of units of all shards where it is public. Raises InputError where no sum over so many could be exact."""
    if total > MOST_UNITS:
        raise InputError("records", "shards", f"at most {MOST_UNITS} units in all")
    if total == 0 and public:
        raise InputError("records", "shards", "at least one record in all")
    return total if public else None


def names_of(labels: Any, key: bytes) -> Names:
    """Of a shard. Raises InputError on labels that cannot be compared between processes."""
    distinct = _distinct(labels)
    hashed = [hashlib.blake2b(_told(label), digest_size=16, key=key).digest() for label in distinct]
    kind = hashlib.blake2b(repr(kind_of(distinct[0])).encode(), digest_size=_KIND).digest() if distinct else bytes(_KIND)
    whole = np.frombuffer(bytearray(b"".join(hashed)), dtype="<i8").reshape(-1, 2)
    return Names(torch.from_numpy(whole), kind)


def require_apart(names: Names, lines: Lines) -> None:
    """Raises InputError, on every rank alike, where two ranks have a label in common, or labels of different kinds."""
    if len({*lines.exchange(names.kind)} - {bytes(_KIND)}) > 1:
        raise InputError("groups", "labels of different kinds on different ranks", ALLOWED, "Convert them in one way everywhere.")
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
    flat = as_values("groups", labels)
    return list(dict.fromkeys(flat.tolist())) if flat.dtype.kind == "O" else np.unique(flat).tolist()


def _told(label: Any) -> bytes:
    """A text that equal labels of one kind share, and no others."""
    if isinstance(label, numbers.Real):
        return f"n{_exact(label)}".encode()
    if isinstance(label, str):
        return b"s" + label.encode("utf-8", "surrogatepass")
    if isinstance(label, bytes):
        return b"b" + label
    parts = [b"" if part is None else _told(part) for part in label]
    return b"t" + b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def _exact(number: Any) -> Any:
    """Equal numbers of any type as the same text."""
    if isinstance(number, numbers.Integral):
        return int(number)
    if isinstance(number, Fraction):
        return number
    return Fraction(float(number)) if math.isfinite(number) else float(number)
