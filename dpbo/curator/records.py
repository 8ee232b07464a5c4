"""The private records, in whatever container they came: how many there are, how to take some, how to imitate them publicly.

Tensors, arrays, DataFrames and (nested) tuples or dicts of them, and lists of samples, can be sliced; tensors and numeric arrays can be
imitated by zeros; anything else with a length is only counted. A `Source` loads its records once per process, so workers on other
machines can load their own.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Hashable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch

from dpbo.curator.entropy import bernoulli
from dpbo.curator.labels import as_values, folded, is_missing, kind_of
from dpbo.errors import InputError
from dpbo.privacy import PrivacyUnit
from dpbo.queries.integers import MOST_ROWS_PER_UNIT, MOST_UNITS
from dpbo.validation import checked

T = TypeVar("T")
PROBED = 5
_loaded: dict[str, Any] = {}


@checked
class Source:
    """Private records that each process loads for itself by `load()`, a picklable callable without arguments.

    It must give the same records in the same order everywhere: labels and positions refer to that order.
    """

    def __init__(self, load: Callable[[], Any]) -> None:
        if not callable(load):
            raise InputError("load", load, "a callable without arguments")
        self._load = load
        self._key = uuid.uuid4().hex

    def records(self) -> Any:
        """The records, loaded at most once in each process. For the curator and its workers."""
        if self._key not in _loaded:
            _loaded[self._key] = self._load()
        return _loaded[self._key]


@dataclass(frozen=True, eq=False)
class PrivateView:
    """The private side, as queries see it (queries.query.View). It may be pickled to trusted workers, never shown."""

    held: Any = field(repr=False)
    count: int = field(repr=False)
    groups: torch.Tensor | None = field(repr=False)
    rows: torch.Tensor | None = field(repr=False)
    public_units: int | None
    kept: tuple[Any, ...] = field(default=(), repr=False)
    shard: bool = False

    @classmethod
    def of(cls, records: Any, unit: PrivacyUnit, *, units_are_public: bool, shard: bool = False) -> PrivateView:
        """Swallow the records. Raises InputError on parts or labels that do not fit. A shard may be empty."""
        count = count_records(_opened(records))
        if count == 0 and units_are_public and not shard:
            raise InputError("records", type(records).__name__, "at least one record")
        groups, rows = (None, None) if unit.groups is None else _grouped(unit.groups, count)
        units = count if rows is None else len(rows)
        if units > MOST_UNITS:
            raise InputError("records", type(records).__name__, f"at most {MOST_UNITS} units")
        device = next((part.device for part in leaves(records) if isinstance(part, torch.Tensor)), torch.device("cpu"))
        if device.type == "meta":
            raise InputError("records", "on the meta device", "tensors that hold numbers")
        if groups is not None and rows is not None:
            groups, rows = groups.to(device), rows.to(device)
        return cls(records, count, groups, rows, units if units_are_public else None, shard=shard)

    @property
    def records(self) -> Any:
        """The records in their own container, loaded if they are a Source; arrays are lent read-only."""
        return guarded(self._own())

    def _own(self) -> Any:
        records = _opened(self.held)
        if isinstance(self.held, Source) and count_records(records) != self.count:
            raise InputError("records", type(self.held).__name__, "the same data everywhere", "Here it loaded another number of records.")
        return records

    def versions(self) -> tuple[int, ...]:
        """Changes when a score changes a tensor in place."""
        return versions(self._own())

    def __getstate__(self) -> dict[str, Any]:
        """For workers: tensors travel as bytes, never as shared memory that a worker could write to."""
        held = self.held if isinstance(self.held, Source) else _mapped(self.held, _packed)
        return {**vars(self), "held": held, "kept": _mapped(self.kept, _packed)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            packed = name in ("held", "kept") and not isinstance(value, Source)
            object.__setattr__(self, name, _mapped(value, _unpacked) if packed else value)

    @property
    def units(self) -> int:
        """Number of units: private under ADD_OR_REMOVE_ONE."""
        return self.count if self.rows is None else len(self.rows)

    @property
    def device(self) -> torch.device:
        """Of the first tensor among the records."""
        return next((part.device for part in leaves(self._own()) if isinstance(part, torch.Tensor)), torch.device("cpu"))

    @property
    def can_take(self) -> bool:
        """Whether single records can be taken out."""
        return all(_is_array(part) or hasattr(part, "iloc") or _is_csr(part) or isinstance(part, list) for part in leaves(self._own()))

    def take(self, positions: torch.Tensor) -> Any:
        """The records at these positions, in the same container."""
        return _mapped(self.records, lambda part: _rows(part, positions))

    def storages(self) -> frozenset[int]:
        """Where the records' tensors lie in memory."""
        return frozenset(part.untyped_storage().data_ptr() for part in leaves(self._own()) if isinstance(part, torch.Tensor))

    def sampled(self, rate: float) -> PrivateView:
        """A fresh Poisson sample of the units, by the system's entropy; its rows in record order. It is a shard: there are others."""
        taken = torch.from_numpy(bernoulli(self.units, rate))
        if self.groups is None or self.rows is None:
            positions, groups, rows = taken.nonzero()[:, 0], None, None
        else:
            mask = taken.to(self.groups.device)
            positions = mask[self.groups].nonzero()[:, 0]
            groups, rows = (mask.cumsum(0) - 1)[self.groups[positions]], self.rows[mask]
        taken_ones = _mapped(self.records, lambda part: _rows(part, positions))
        return PrivateView(taken_ones, len(positions), groups, rows, self.public_units, shard=True)

    def only(self, row: int) -> PrivateView:
        """One record alone, copied, so that whoever writes into it changes nothing; that it is one is public."""
        return PrivateView(copy.deepcopy(self.take(torch.tensor([row]))), 1, None, None, 1)

    def zeros(self) -> Any | None:
        """`PROBED` zero records of the same kind; None where zeros mean nothing (DataFrames, labels, unknown containers)."""
        records = self.records
        if isinstance(self.held, Source) or not all(_is_numeric(part) for part in leaves(records)):
            return None
        return _mapped(records, _zeros)


def count_records(records: Any) -> int:
    """Number of records. Raises InputError where the parts of a nested container disagree or have no length."""
    lengths = {_length(part) for part in leaves(records)}
    if len(lengths) != 1:
        raise InputError("records", type(records).__name__, "made of parts of one length", "Each part needs one row a record.")
    return lengths.pop()


def guarded(records: Any) -> Any:
    """The same records, arrays read-only, so that most writing scores fail on public records already (tensors: see `versions`).

    It is no wall: memory can be reached around it, so that the score writes nowhere is part of the assumption `score-per-record`.
    """
    return _mapped(records, _read_only)


def versions(records: Any) -> tuple[int, ...]:
    """torch's counters of in-place changes, one a tensor (inference tensors have none), summed over a list of samples."""
    return tuple(sum(map(_version, part)) if isinstance(part, list) else _version(part) for part in leaves(records))


def _version(part: Any) -> int:
    return part._version if isinstance(part, torch.Tensor) and not part.is_inference() else 0


def _packed(part: Any) -> Any:
    return _Packed(part.detach().numpy().copy()) if isinstance(part, torch.Tensor) and _has_array(part) else part


def _unpacked(part: Any) -> Any:
    return torch.from_numpy(part.array) if isinstance(part, _Packed) else part


def _has_array(part: torch.Tensor) -> bool:
    return part.device.type == "cpu" and part.layout is torch.strided and part.dtype is not torch.bfloat16


@dataclass(frozen=True, eq=False)
class _Packed:
    """A tensor's numbers on the way to a worker."""

    array: np.ndarray[Any, Any] = field(repr=False)


def _opened(records: Any) -> Any:
    if not isinstance(records, Source):
        return records
    if (loaded := _quietly(records.records)) is None:
        raise InputError("records", "Source", "a Source that loads in this process", "Call what it loads by, to see why it fails.")
    return loaded


def _grouped(labels: Any, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    flat = as_values("groups", labels)
    if len(flat) != count:
        raise InputError("groups", type(labels).__name__, "one label a record, in the records' order")
    if flat.dtype.kind in "Of" and any(map(is_missing, flat.tolist())):
        raise InputError("groups", "a missing label", "present for every record", "Give records without a label one of their own.")
    codes = _codes(flat)
    rows = np.bincount(codes)
    if rows.max(initial=0) > MOST_ROWS_PER_UNIT:
        raise InputError("groups", "a label", f"on at most {MOST_ROWS_PER_UNIT} records")
    return torch.from_numpy(codes), torch.from_numpy(rows)


def require_disjoint(groups: Any, groups_train: Any, trained: int) -> None:
    """Raises InputError where validation records and the `trained` training records share a label, or have labels of different kinds.

    Text that differs only in case, spaces or the form of letters is taken for the same label here.
    """
    private, public = (as_values(name, labels).tolist() for name, labels in (("groups", groups), ("groups_train", groups_train)))
    if len(public) != trained:
        raise InputError("groups_train", type(groups_train).__name__, "one label a training record, in the records' order")
    if len({kind_of(label) for label in (*private, *public) if not is_missing(label)}) > 1:
        remedy = "Convert both in one way: numbers by int, anything else by str."
        raise InputError("groups_train", "labels of another kind than `groups`", "comparable with `groups`", remedy)
    if not {folded(label) for label in private}.isdisjoint(map(folded, public)):
        remedy = "A unit whose other rows train the model is not protected. Split by group."
        raise InputError("groups_train", type(groups_train).__name__, "without any label of `groups`", remedy)


def _codes(labels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Unit index of each record."""
    if labels.dtype.kind != "O":
        return np.unique(labels, return_inverse=True)[1].astype(np.int64)
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(label, len(seen)) for label in labels], dtype=np.int64)


def leaves(records: Any) -> list[Any]:
    """The tensors, arrays and so on that a nested container is made of."""
    if isinstance(records, Mapping):
        return [leaf for part in records.values() for leaf in leaves(part)]
    if isinstance(records, tuple):
        return [leaf for part in records for leaf in leaves(part)]
    return [records]


def _mapped(records: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(records, Mapping):
        return _rebuilt(records, {key: _mapped(part, change) for key, part in records.items()})
    if isinstance(records, tuple):
        parts = [_mapped(part, change) for part in records]
        return type(records)(*parts) if hasattr(records, "_fields") else tuple(parts)
    return change(records)


def _rebuilt(original: Mapping[Any, Any], parts: dict[Any, Any]) -> Any:
    """A mapping of the original's own kind where it can be copied and filled, else a dict."""
    if isinstance(original, MutableMapping) and type(original) is not dict:
        twin = copy.copy(original)
        twin.update(parts)
        return twin
    return parts


def _read_only(part: Any) -> Any:
    if isinstance(part, np.ndarray):
        face = part.view()
        face.flags.writeable = False
        return face
    if hasattr(part, "iloc"):
        return part.copy(deep=False)
    return [_read_only(sample) for sample in part] if isinstance(part, list) else part


def _is_array(part: Any) -> bool:
    return isinstance(part, (torch.Tensor, np.ndarray)) and part.ndim > 0


def _is_csr(part: Any) -> bool:
    """Of scipy's sparse matrices, the one whose rows can be taken."""
    return getattr(part, "format", None) == "csr" and hasattr(part, "tocsr")


def _is_numeric(part: Any) -> bool:
    return _is_array(part) and (isinstance(part, torch.Tensor) or part.dtype.kind in "biuf")


def _zeros(part: Any) -> Any:
    shape = (PROBED, *part.shape[1:])
    return part.new_zeros(shape) if isinstance(part, torch.Tensor) else np.zeros(shape, part.dtype)


def _rows(part: Any, positions: torch.Tensor) -> Any:
    if isinstance(part, torch.Tensor):
        return part[positions.to(part.device)]
    if isinstance(part, list):
        return [part[i] for i in positions.tolist()]
    places = positions.cpu().numpy()
    return part.iloc[places] if hasattr(part, "iloc") else part[places]


def _length(part: Any) -> int:
    length = _quietly(lambda: int(part.shape[0]) if hasattr(part, "shape") and len(part.shape) else len(part))
    if length is None:
        remedy = "Wrap a loader in dpbo.Source."
        raise InputError("records", type(part).__name__, "a tensor, array, DataFrame, or anything with a length", remedy)
    return length


def _quietly(work: Callable[[], T]) -> T | None:
    """What `work` returns, or None where it raised: an error that the records raise may hold some, as may every error raised beside it."""
    try:
        return work()
    except Exception:
        return None
