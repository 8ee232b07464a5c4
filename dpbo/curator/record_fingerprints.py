"""Keyed fingerprints: whether two tables share records, and whether a plan is resumed with what it began with.

A row counts as its 32-bit words w_j, numbers rounded to float32 whatever their dtype. Its fingerprint is 64 bits: the upper halves of two
sums k_0 + sum of k_j w_j modulo 2^64 with secret 64-bit keys, which are strongly universal (Lemire & Kaser 2014): two different rows agree
with probability 2^-64. A table counts as its rows' fingerprints in sorted order, so the order of rows does not matter.

Fingerprints of records are private: a reader who could try keys or compare them over time would learn of records. They stay in memory, or
beside the ledger in a file that only the operator reads (resuming.py). None enters a ledger.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import dis
import functools
import hashlib
import json
import numbers
import pathlib
import sys
import sysconfig
import threading
import types
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpbo.curator.described import digest_of
from dpbo.curator.entropy import system_entropy
from dpbo.curator.ledger import Ledger
from dpbo.curator.records import PrivateView, leaves
from dpbo.errors import InputError, LedgerUnavailable, PlanChanged
from dpbo.privacy import PrivacyUnit

Digests = NDArray[np.uint64]
MOST_ROWS, _CHUNK_WORDS, _TABLES = 1 << 16, 1 << 21, 64
_LIBRARIES = (*(sysconfig.get_paths()[name] for name in ("purelib", "platlib", "stdlib")), __file__.rpartition("curator/")[0])
_key = system_entropy(32)  # of this process
_lock = threading.Lock()


class RepeatedRecordsWarning(UserWarning):
    """Records are asked under a budget in memory that were asked under another one: what each states does not add them up."""


@dataclass(frozen=True, eq=False)
class Sketch:
    """Fingerprints of a table's rows; of more than `MOST_ROWS`, of so many drawn at random.

    Two tables of n rows with a share s in common then share a drawn row but with probability exp(-s MOST_ROWS^2 / n).

    Attributes:
        rows: the distinct ones, sorted.
        count: how many rows were looked at.
        repeated: share of these that occur more than once. By Good and Turing it is about the share of other people's rows that have a
            twin among these by chance: 0 for measurements, large for a few words or bits a row.
        whole: of all rows in their order.
    """

    rows: Digests = field(repr=False)
    count: int = field(repr=False)
    repeated: float = field(repr=False)
    whole: bytes = field(repr=False)

    @classmethod
    def of(cls, view: PrivateView) -> Sketch | None:
        """None where the rows cannot be taken. Never raises: what they raise may hold some."""
        try:
            positions = None
            if view.count > MOST_ROWS:
                drawn = np.random.default_rng(list(_key)).choice(view.count, MOST_ROWS, replace=False)
                positions = torch.from_numpy(np.sort(drawn))
            found = row_digests(view, _key, positions)
        except Exception:
            return None
        if found is None or not len(found):
            return None
        rows, counts = np.unique(found, return_counts=True)
        whole = hashlib.sha256(found.tobytes() + str(view.count).encode()).digest()
        return cls(rows, len(found), 1.0 - float((counts == 1).sum()) / len(found), whole)

    def meets(self, other: Sketch) -> bool:
        """Whether the tables share records: more rows than chance explains, three standard deviations beyond its mean."""
        if self.whole == other.whole:
            return True
        shared = int(np.isin(other.rows, self.rows, assume_unique=True).sum())
        chance = len(other.rows) * (max(self.repeated, other.repeated) + 3.0 / self.count)  # where none is repeated, 3 may have been
        return shared > chance + 3.0 * float(np.sqrt(chance))


_protected: collections.deque[Sketch] = collections.deque(maxlen=_TABLES)


def remember(sketch: Sketch | None) -> None:
    """These records are protected by a ledger of this process, from which something was charged."""
    with _lock:
        if sketch is not None and all(sketch.whole != known.whole for known in _protected):
            _protected.append(sketch)


def is_protected(sketch: Sketch | None) -> bool:
    """Whether some of these records are protected by a ledger of this process; the last tables that were charged for are known."""
    with _lock:
        return sketch is not None and any(known.meets(sketch) for known in _protected)


def holds_protected(records: Any) -> bool:
    """`is_protected` of records in the open."""
    try:
        view = PrivateView.of(records, PrivacyUnit("record"), units_are_public=True)
    except InputError:  # of no form that could be compared
        return False
    return is_protected(Sketch.of(view))


def table_digest(view: PrivateView, key: bytes) -> str | None:
    """Of all records, in any order, and the number of units; None where single records cannot be read."""
    try:
        found = row_digests(view, key)
    except Exception:  # what the records raise may hold some
        return None
    if found is None:
        return None
    return hashlib.blake2b(np.sort(found).tobytes() + str(view.units).encode(), key=key, digest_size=16).hexdigest()


def thing_digest(thing: Any, key: bytes) -> str:
    """Of a score, an estimator or a function that trains: the code of the caller's own functions and classes, with the functions, tables,
    numbers and words that they refer to; parameters of estimators; bytes of tables. Libraries count by their names, other objects by type.
    """
    return hashlib.blake2b(digest_of(_told(thing, set())), key=key, digest_size=16).hexdigest()


def row_digests(view: PrivateView, key: bytes, positions: torch.Tensor | None = None) -> Digests | None:
    """A fingerprint for each row, or those at these positions; None where single records cannot be taken."""
    if not view.can_take:
        return None
    places = torch.arange(view.count) if positions is None else positions
    wide = sum(_words(part, 1, key).shape[1] for part in leaves(view.take(places[:1]))) if len(places) else 1
    parts = torch.split(places, max(_CHUNK_WORDS // max(wide, 1), 1))
    chunks = [_hashed(leaves(view.take(part)), len(part), key) for part in parts if len(part)]
    return np.concatenate([np.empty(0, np.uint64), *chunks])


def _hashed(parts: list[Any], count: int, key: bytes) -> Digests:
    words = np.hstack([_words(part, count, key) for part in parts])
    keys = np.frombuffer(hashlib.shake_128(key).digest(16 * (words.shape[1] + 1)), dtype="<u8").reshape(-1, 2)
    sums = words @ keys[1:] + keys[0]  # modulo 2^64
    upper = np.uint64(0xFFFFFFFF00000000)
    return (sums[:, 0] & upper) | (sums[:, 1] >> np.uint64(32))


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
        with contextlib.suppress(OverflowError):  # a whole number of hundreds of digits
            return _singles(np.array([[float(cell)]])).tobytes()
    if isinstance(cell, (datetime.date, datetime.time, datetime.timedelta)):
        cell = repr(cell)
    if cell is not None and not isinstance(cell, (str, bytes, numbers.Number, tuple, list, Mapping, np.ndarray, torch.Tensor)):
        raise TypeError("a record of another kind has no content that is known")
    return hashlib.blake2b(digest_of(cell), key=key, digest_size=8).digest()


def _told(thing: Any, seen: set[Any]) -> Any:
    """What tells this thing from others, in parts that `digest_of` reads."""
    tell = functools.partial(_told, seen=seen)
    if hasattr(thing, "__wrapped__") and not (isinstance(thing, types.FunctionType) and _is_own(thing)):  # such as by torch.no_grad()
        return "wrapped", tell(thing.__wrapped__)
    if isinstance(thing, (type, types.FunctionType)):
        if not _is_own(thing) or thing in seen:
            return thing.__qualname__ if _is_own(thing) else thing
        seen.add(thing)
        if isinstance(thing, type):
            return "class", [(name, tell(part)) for name, part in vars(thing).items() if isinstance(part, types.FunctionType)]
        rest = thing.__defaults__, thing.__kwdefaults__
        return "function", _code(thing.__code__, thing.__doc__), *map(tell, rest), [(name, tell(part)) for name, part in _referred(thing)]
    match thing:
        case functools.partial():
            return "partial", tell(thing.func), tell(thing.args), tell(thing.keywords)
        case types.MethodType():
            return "method", tell(thing.__func__), tell(thing.__self__)
        case tuple() | list():
            return [tell(part) for part in thing]
        case Mapping():
            return "mapping", sorted(((str(name), tell(part)) for name, part in thing.items()), key=lambda item: item[0])
        case object(iloc=_):
            return "table", [*getattr(thing, "columns", ())], [*_columns(thing)]
        case object(tocsr=_):
            rows = thing.tocsr()
            return "sparse", rows.shape, rows.indptr, rows.indices, rows.data
        case object(get_params=_):
            return type(thing).__qualname__, tell(type(thing)), tell(thing.get_params(deep=False))
    if dataclasses.is_dataclass(thing):
        fields = [(part.name, tell(getattr(thing, part.name))) for part in dataclasses.fields(thing)]
        return type(thing).__qualname__, tell(type(thing)), fields
    return thing if _is_plain(thing) or not _is_own(type(thing)) else (type(thing).__qualname__, tell(type(thing)))


def _columns(frame: Any) -> Iterator[Any]:
    yield from ([frame.to_numpy()] if frame.ndim == 1 else (frame.iloc[:, place].to_numpy() for place in range(frame.shape[1])))


def _is_plain(thing: Any) -> bool:
    return thing is None or isinstance(thing, (bool, int, float, complex, str, bytes, np.generic, np.ndarray, torch.Tensor))


def _code(code: types.CodeType, doc: str | None = None) -> Any:
    constants = code.co_consts[1:] if doc is not None and code.co_consts[:1] == (doc,) else code.co_consts
    return code.co_code, code.co_names, [_code(part) if isinstance(part, types.CodeType) else part for part in constants]


def _referred(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What the function's code refers to outside itself, and does not set."""
    codes = [*_codes(function.__code__)]
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    names = {name for code in codes for name in code.co_names} - set(cells)
    rebound = {line.argval for code in codes for line in dis.get_instructions(code) if line.opname in ("STORE_DEREF", "STORE_GLOBAL")}
    for name in sorted({*cells, *names} - rebound):
        try:
            value = cells[name].cell_contents if name in cells else function.__globals__.get(name)
        except ValueError:  # not assigned yet
            continue
        if _lasts(value):
            yield name, value


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _lasts(value: Any) -> bool:
    """Functions, classes, tables, numbers, words and tuples of these; not lists, dicts and other objects, which may fill as code runs."""
    if isinstance(value, tuple):
        return all(map(_lasts, value))
    if value is None or isinstance(value, types.ModuleType):
        return False
    return _is_plain(value) or isinstance(value, (functools.partial, types.FunctionType, type)) or hasattr(value, "iloc")


def _is_own(thing: Any) -> bool:
    """Whether it is the caller's own code: neither Python's, nor an installed library's, nor dpbo's."""
    name = getattr(thing, "__module__", None) or ""
    code = getattr(thing, "__code__", None)
    file = getattr(sys.modules.get(name), "__file__", None) if code is None else code.co_filename
    return name != "builtins" and not (file or "").startswith(_LIBRARIES)


# ========== MERGED What a plan began with, so that its name is not resumed with another question: by keyed fingerprints beside the ledger.
#
# A ledger in a file has a second file beside it, `<ledger>.fingerprints`, which only the operator may read (mode 0600): the key, and for
# each
# plan the fingerprints of the records and of what else it was given. They are private, so back the file up with the records, not with the
# ledger. Where it is missing, what a plan goes on with counts as what it began with. Of a ledger in memory or on a server, plans are
# compared
# within this process alone.
#

_UNDER = f" under Python {sys.version_info.major}.{sys.version_info.minor}"  # another one compiles the same code otherwise: not compared
_here: weakref.WeakKeyDictionary[Ledger, dict[str, Any]] = weakref.WeakKeyDictionary()
_servers: dict[str, dict[str, Any]] = {}


def require_same(
    ledger: Ledger, view: PrivateView | None, plan: str, things: Mapping[str, Any], tables: Mapping[str, Any], *, begun: bool
) -> None:
    """Raises PlanChanged where a plan that has begun is given other records, things or tables than it began with; else keeps theirs."""
    file = ledger.storage.file
    if file is not None:
        kept = _read(file)
    else:
        kept = _servers.setdefault(str(ledger.storage.url), {}) if ledger.storage.persistent else _here.setdefault(ledger, {})
    key = bytes.fromhex(kept.setdefault("key", system_entropy(32).hex()))
    given = {f"{name}{_UNDER}": thing_digest(thing, key) for name, thing in things.items()}
    views = {name: PrivateView.of(table, PrivacyUnit("record"), units_are_public=True) for name, table in tables.items()}
    if view is not None and ledger.storage.persistent:  # else one curator has the ledger, and its records
        views[f"{ledger.birth['role']} records"] = view
    given |= {name: digest for name, held in views.items() if (digest := table_digest(held, key)) is not None}
    plans = kept.setdefault("plans", {})
    before = plans.get(plan, {}) if begun else {}
    for name in given:
        if before.get(name, given[name]) != given[name]:
            raise PlanChanged(plan, name.removesuffix(_UNDER))
    if plans.get(plan) != (now := {**before, **given}):
        plans[plan] = now
        if file is not None:
            _write(file, kept)


def _beside(ledger: pathlib.Path) -> pathlib.Path:
    return ledger.with_name(f"{ledger.name}.fingerprints")


def _read(ledger: pathlib.Path) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError), _translated(ledger):
        found = json.loads(_beside(ledger).read_text())
        bytes.fromhex(found["key"])
        return dict(found)
    return {}


def _write(ledger: pathlib.Path, kept: Mapping[str, Any]) -> None:
    beside = _beside(ledger)
    new = beside.with_name(f"{beside.name}.{system_entropy(8).hex()}")
    with _translated(ledger):
        new.touch(mode=0o600, exist_ok=False)
        new.write_text(json.dumps(kept))
        new.replace(beside)  # whole or not at all


@contextlib.contextmanager
def _translated(ledger: pathlib.Path) -> Any:
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError):
        told = f"the file {_beside(ledger).name!r} beside the ledger cannot be read or written. Nothing was charged. Put it back, or "
        raise LedgerUnavailable(f"{told}delete it: then nothing tells whether a plan is resumed with what it began with.") from None
