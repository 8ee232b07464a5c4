"""Checks that no unit has records in two shards, without showing any rank another one's labels.

Each rank hashes every label that it holds to 128 bits, keyed by random bytes that live as long as the check, and sends each hash to the
rank that the hash itself names; equal labels meet there. No rank receives a label, and none receives more than its part of the hashes. The
result is only whether two were equal. Labels compare as values (`dpbo.curator.labels`): 3 and 3.0 are one unit, as in one process. Labels
of different kinds on different ranks, such as 3 and "3", are refused.
"""

from __future__ import annotations

import hashlib
import math
import numbers
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import torch

from dpbo.curator.labels import ALLOWED, as_values, kind_of
from dpbo.errors import InputError

_KIND = 8  # bytes


class Group(Protocol):
    """What the check needs of `Ranks`."""

    world_size: int

    def all_gather(self, row: bytes) -> list[bytes]: ...
    def all_to_all(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, eq=False)
class LabelHashes:
    """Keyed hashes of a shard's distinct labels.

    Attributes:
        hashes: `labels x 2` int64.
        kind: a hash of the labels' kind; zeros without labels.
    """

    hashes: torch.Tensor = field(repr=False)
    kind: bytes


def hash_labels(labels: Any, key: bytes) -> LabelHashes:
    """Hash a shard's labels. Raises InputError on labels that cannot be compared between processes."""
    flat = as_values("groups", labels)
    distinct = list(dict.fromkeys(flat.tolist())) if flat.dtype.kind == "O" else np.unique(flat).tolist()
    hashed = b"".join(hashlib.blake2b(_label_bytes(label), digest_size=16, key=key).digest() for label in distinct)
    kind = hashlib.blake2b(repr(kind_of(distinct[0])).encode(), digest_size=_KIND).digest() if distinct else bytes(_KIND)
    return LabelHashes(torch.from_numpy(np.frombuffer(bytearray(hashed), dtype="<i8").reshape(-1, 2)), kind)


def require_disjoint_shards(labels: LabelHashes, group: Group) -> None:
    """Raises InputError, on every rank alike, where two ranks have a label in common, or labels of different kinds."""
    if len({*group.all_gather(labels.kind)} - {bytes(_KIND)}) > 1:
        raise InputError("groups", "labels of different kinds on different ranks", ALLOWED, "Convert them in one way everywhere.")
    owner = torch.remainder(labels.hashes[:, 0], group.world_size)
    rows = group.all_to_all(labels.hashes[owner.argsort(stable=True)], torch.bincount(owner, minlength=group.world_size)).numpy()
    rows = rows[np.lexsort(rows.T)]
    repeated = bool((rows[1:] == rows[:-1]).all(axis=1).any())
    if any(row[0] for row in group.all_gather(bytes([repeated]))):
        remedy = "Divide units among ranks, not rows, for example by a hash of the label."
        raise InputError("groups", "labels with rows on more than one rank", "such that all rows of a unit are on one rank", remedy)


def _label_bytes(label: Any) -> bytes:
    """Bytes that equal labels of one kind have in common, and different labels do not."""
    if isinstance(label, numbers.Integral):
        return f"n{int(label)}".encode()
    if isinstance(label, numbers.Real):
        number = label if isinstance(label, Fraction) or not math.isfinite(label) else Fraction(float(label))
        return f"n{number}".encode()
    if isinstance(label, str):
        return b"s" + label.encode("utf-8", "surrogatepass")
    if isinstance(label, bytes):
        return b"b" + label
    parts = [b"" if part is None else _label_bytes(part) for part in label]
    return b"t" + b"".join(len(part).to_bytes(8, "little") + part for part in parts)
