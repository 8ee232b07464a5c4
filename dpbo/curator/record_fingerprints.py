"""Keyed fingerprints of private records: do two tables share records, and is a plan resumed with what it began with?

A row counts as its 32-bit words w_j, numbers rounded to float32 whatever their dtype. Its fingerprint is 64 bits: the upper halves of two
sums k_0 + sum of k_j w_j modulo 2^64 with secret 64-bit keys, which are strongly universal (Lemire & Kaser 2014): two different rows agree
with probability 2^-64. A table counts as its rows' fingerprints in sorted order, so the order of rows does not matter.

Fingerprints of records are private: a reader who could try keys or compare them over time would learn of records. None enters a ledger.
They stay in memory, or in the file `<ledger>.fingerprints` beside the ledger, which only the operator may read (mode 0600). It holds the
key and, for each plan, the fingerprints of the records and of what else the plan was given. Back it up with the records, not with the
ledger. Where it is missing, the log warns, and a plan is taken to go on with what it began with. Plans of a ledger in memory or on a
server are compared within this process alone.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import hashlib
import json
import logging
import numbers
import pathlib
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpbo.curator.entropy import system_entropy
from dpbo.curator.records import PrivateView, leaves
from dpbo.errors import InputError, LedgerUnavailable, PlanChanged
from dpbo.fingerprint import fingerprint
from dpbo.privacy import PrivacyUnit

if TYPE_CHECKING:
    from dpbo.curator.ledger import Ledger

_LOG = logging.getLogger(__name__)
Digests = NDArray[np.uint64]
MOST_ROWS, _CHUNK_WORDS, _TABLES = 1 << 16, 1 << 21, 64
_CELLS = (str, bytes, numbers.Number, datetime.date, datetime.time, datetime.timedelta, tuple, list, Mapping, np.ndarray, torch.Tensor)
_PYTHON = f" under Python {sys.version_info.major}.{sys.version_info.minor}"  # code is compared only where one version compiled it
_key = system_entropy(32)  # of this process
_lock = threading.Lock()
_in_memory: weakref.WeakKeyDictionary[Ledger, dict[str, Any]] = weakref.WeakKeyDictionary()
_on_servers: dict[str, dict[str, Any]] = {}


class RepeatedRecordsWarning(UserWarning):
    """Records are used under a budget in memory after they were used under another one: neither statement adds both up."""


@dataclass(frozen=True, eq=False)
class Sketch:
    """Fingerprints of a table's rows, or of `MOST_ROWS` rows drawn at random where it has more.

    Two such tables of n rows with a share s in common then have no drawn row in common with probability exp(-s MOST_ROWS^2 / n).

    Attributes:
        rows: the distinct fingerprints, sorted.
        count: number of rows looked at.
        repeated: share of these that occur more than once. By Good and Turing it estimates the share of other people's rows that equal one
            of these by chance: 0 for measurements, large where a row has only a few words or bits.
        whole: digest of all rows in their order.
    """

    rows: Digests = field(repr=False)
    count: int = field(repr=False)
    repeated: float = field(repr=False)
    whole: bytes = field(repr=False)

    @classmethod
    def of(cls, view: PrivateView) -> Sketch | None:
        """None without rows, or where single rows cannot be taken."""
        positions = None
        if view.count > MOST_ROWS:
            drawn = np.random.default_rng(list(_key)).choice(view.count, MOST_ROWS, replace=False)
            positions = torch.from_numpy(np.sort(drawn))
        found = row_digests(view, _key, positions)
        if found is None or not len(found):
            return None
        rows, counts = np.unique(found, return_counts=True)
        whole = hashlib.sha256(found.tobytes() + str(view.count).encode()).digest()
        return cls(rows, len(found), 1.0 - float((counts == 1).sum()) / len(found), whole)

    def shares_rows_with(self, other: Sketch) -> bool:
        """Whether the tables have more rows in common than chance explains: three standard deviations beyond its mean."""
        if self.whole == other.whole:
            return True
        shared = int(np.isin(other.rows, self.rows, assume_unique=True).sum())
        by_chance = max(self.repeated, other.repeated) + 3.0 / self.count  # where none of n is repeated, the rate may still be 3/n
        chance = len(other.rows) * by_chance
        return shared > chance + 3.0 * float(np.sqrt(chance))


_protected: collections.deque[Sketch] = collections.deque(maxlen=_TABLES)


def remember(sketch: Sketch | None) -> None:
    """Note that a ledger of this process protects these records and was charged for them. The last 64 tables are kept."""
    with _lock:
        if sketch is not None and all(sketch.whole != known.whole for known in _protected):
            _protected.append(sketch)


def is_protected(sketch: Sketch | None) -> bool:
    """Whether a ledger of this process protects some of these records."""
    with _lock:
        return sketch is not None and any(known.shares_rows_with(sketch) for known in _protected)


def holds_protected(records: Any) -> bool:
    """`is_protected` for records that are not in a curator."""
    try:
        view = PrivateView.of(records, PrivacyUnit("record"), units_are_public=True)
    except InputError:  # their form cannot be compared
        return False
    return is_protected(Sketch.of(view))


def holds_same(view: PrivateView, records: Any) -> bool:
    """Whether a view's records are these, each as often, in any order; False where single records cannot be read and they are others."""
    if records is view.container:
        return True
    try:
        other = PrivateView.of(records, PrivacyUnit("record"), units_are_public=True)
    except InputError:  # their form cannot be compared
        return False
    found = table_digest(view, _key)
    return found is not None and found == table_digest(other, _key)


def table_digest(view: PrivateView, key: bytes) -> str | None:
    """Digest of all records, in any order, and of the number of units; None where single records cannot be read."""
    found = row_digests(view, key)
    if found is None:
        return None
    return hashlib.blake2b(np.sort(found).tobytes() + str(view.units).encode(), key=key, digest_size=16).hexdigest()


def row_digests(view: PrivateView, key: bytes, positions: torch.Tensor | None = None) -> Digests | None:
    """A fingerprint for each row, or those at these positions; None where single records cannot be read."""
    places = torch.arange(view.count) if positions is None else positions
    found = [np.empty(0, np.uint64)]
    try:
        if not view.can_take:
            return None
        wide = sum(_words(part, 1, key).shape[1] for part in leaves(view.take(places[:1]))) if len(places) else 1
        keys = np.frombuffer(hashlib.shake_128(key).digest(16 * (wide + 1)), dtype="<u8").reshape(-1, 2)
        for chunk in torch.split(places, max(_CHUNK_WORDS // max(wide, 1), 1)):
            if len(chunk):
                words = np.hstack([_words(part, len(chunk), key) for part in leaves(view.take(chunk))])
                sums = words @ keys[1:] + keys[0]  # modulo 2^64
                found.append((sums[:, 0] & np.uint64(0xFFFFFFFF00000000)) | (sums[:, 1] >> np.uint64(32)))
    except Exception:  # its text may hold records
        return None
    return np.concatenate(found)


def _words(part: Any, count: int, key: bytes) -> Digests:
    """`count x m` 32-bit words, equal for equal rows."""
    if hasattr(part, "iloc"):
        columns = [part] if part.ndim == 1 else [part.iloc[:, place] for place in range(part.shape[1])]
        return np.hstack([np.empty((count, 0), np.uint64), *(_words(column.to_numpy(), count, key) for column in columns)])
    if isinstance(part, torch.Tensor):
        part = part.detach().cpu()
        part = (torch.view_as_real(part) if part.is_complex() else part).double().numpy()
    if isinstance(part, np.ndarray) and part.dtype.kind in "biuf":
        return _singles(part.reshape(count, -1)).view("<u4").astype(np.uint64)
    if hasattr(part, "tocsr"):
        part = [(row.indices, row.data.astype(np.float64)) for row in part.sorted_indices()]
    cells = part.reshape(count, -1).tolist() if isinstance(part, np.ndarray) else [[cell] for cell in part]
    found = b"".join(_cell(cell, key) for row in cells for cell in row)
    return np.frombuffer(found, dtype="<u4").reshape(count, -1).astype(np.uint64)


def _singles(numbers: Any) -> NDArray[np.float64]:
    """Rounded to float32, with one zero and one NaN."""
    with np.errstate(over="ignore"):
        rounded = np.ascontiguousarray(numbers, dtype=np.float32).astype(np.float64) + 0.0
    rounded[np.isnan(rounded)] = np.nan
    return rounded


def _cell(cell: Any, key: bytes) -> bytes:
    """8 bytes: a number as in a table of numbers."""
    cell = cell.item() if isinstance(cell, np.generic) else cell
    if isinstance(cell, (int, float)):
        with contextlib.suppress(OverflowError):  # an integer beyond the largest float
            return _singles(np.array([[float(cell)]])).tobytes()
    if cell is not None and not isinstance(cell, _CELLS):
        raise TypeError("the content of such a record is not known")
    return fingerprint(cell, key=key, size=8)


def require_same(
    ledger: Ledger, view: PrivateView | None, plan: str, things: Mapping[str, Any], tables: Mapping[str, Any], *, begun: bool
) -> None:
    """Compare what a plan is given with what it began with, or keep the fingerprints where it begins now.

    Args:
        ledger: the plan's ledger; its file has the fingerprints beside it.
        view: the private records; None where they are not compared.
        plan: name of the plan.
        things: scores, functions and estimators, by name.
        tables: records of other roles, by name.
        begun: whether the ledger knows the plan already.

    Raises:
        PlanChanged: names what differs. LedgerUnavailable: the file of fingerprints cannot be read or written.
    """
    file = None if ledger.storage.file is None else ledger.storage.file.with_name(f"{ledger.storage.file.name}.fingerprints")
    if file is not None:
        stored = _read(file)
    else:
        stored = _on_servers.setdefault(str(ledger.storage.url), {}) if ledger.storage.persistent else _in_memory.setdefault(ledger, {})
    key = bytes.fromhex(stored.setdefault("key", system_entropy(32).hex()))
    current = {f"{name}{_PYTHON}": fingerprint(thing, detail="references", key=key, size=16).hex() for name, thing in things.items()}
    views = {name: PrivateView.of(table, PrivacyUnit("record"), units_are_public=True) for name, table in tables.items()}
    if view is not None and ledger.storage.persistent:  # a ledger in memory has one curator, and that its records
        views[f"{ledger.birth.role} records"] = view
    current |= {name: digest for name, table_view in views.items() if (digest := table_digest(table_view, key)) is not None}
    plans = stored.setdefault("plans", {})
    if begun and file is not None and plan not in plans:
        _LOG.warning("%r: resumed unchecked, because %s does not tell which records, score and fit it began with", plan, file.name)
    first = plans.get(plan, {}) if begun else {}
    for name in current:
        if first.get(name, current[name]) != current[name]:
            raise PlanChanged(plan, name.removesuffix(_PYTHON))
    if plans.get(plan) != (now := {**first, **current}):
        plans[plan] = now
        if file is not None:
            _write(file, stored)


def _read(file: pathlib.Path) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError), _file_errors(file):
        found = json.loads(file.read_text())
        bytes.fromhex(found["key"])
        return dict(found)
    return {}


def _write(file: pathlib.Path, content: Mapping[str, Any]) -> None:
    new = file.with_name(f"{file.name}.{system_entropy(8).hex()}")
    with _file_errors(file):
        new.touch(mode=0o600, exist_ok=False)
        new.write_text(json.dumps(content))
        new.replace(file)  # all of it or nothing


@contextlib.contextmanager
def _file_errors(file: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError):
        raise LedgerUnavailable(
            f"the file {file.name!r} beside the ledger cannot be read or written. Nothing was charged. Put it back, or delete it: "
            "then nothing tells whether a plan is resumed with what it began with."
        ) from None
