"""The private records, in whatever container they come.

Tensors, arrays, DataFrames and (nested) tuples or dicts of them, and lists of samples, can be
sliced; tensors and numeric arrays can be replaced by made-up numbers for public trials; anything
else with a length is only counted. A `Source` loads its records once per process, so workers on
other machines can load their own.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import uuid
from collections.abc import Callable, Hashable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpbo.errors import InputError, Unshown, UsageError
from dpbo.isolation import mute_warnings
from dpbo.privacy import PrivacyUnit
from dpbo.queries.integers import MOST_ROWS_PER_UNIT, MOST_UNITS
from dpbo.queries.products import require_true_products
from dpbo.records.labels import folded, numbered, of_several_kinds
from dpbo.validation import checked

if TYPE_CHECKING:
    from dpbo.records.form import Form

T = TypeVar("T")
_MADE_UP = 10  # records to try a score on, five of each class
# Rows of an array, to see whether it was changed.
_LOOKED_AT = 32
_MOST_PARTS = 4  # features, labels, groups, weights
_PLAIN = {int, float, bool, str, bytes, type(None)}
_loaded: dict[str, Any] = {}


@checked
class Source:
    """Private records that each process loads for itself.

    Args:
        load: picklable, without arguments. It must give the same records in the same order
            everywhere, because labels and positions refer to that order.
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
    """The private side, as queries see it (`dpbo.queries.query.View`). It may be pickled to trusted
    workers, never shown.

    Attributes:
        container: the records, or the Source that loads them.
        count: number of records.
        groups: unit index of each record, or None where each record is a unit.
        rows: number of records of each unit, or None.
        public_units: number of units where it is public, else None.
        earlier: what earlier answers left for this one.
        shard: whether other processes, other samples or other blocks hold further units.
        streamed_to: the device that the records come to block by block (streaming.py); None where
            they are scored where they lie.
        unfit: whether each record has a cell that the public form has no value for
            (form.py); None where none can have one.
        one_at_a_time: whether a score gets one record at a time.
    """

    container: Any = field(repr=False)
    count: int = field(repr=False)
    groups: Tensor | None = field(repr=False)
    rows: Tensor | None = field(repr=False)
    public_units: int | None
    earlier: tuple[Any, ...] = field(default=(), repr=False)
    shard: bool = False
    streamed_to: torch.device | None = None
    unfit: Tensor | None = field(default=None, repr=False)
    one_at_a_time: bool = False
    # shared by all views of these records, see `keep`
    _kept: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        records: Any,
        unit: PrivacyUnit,
        *,
        units_are_public: bool,
        shard: bool = False,
        streamed_to: torch.device | str | None = None,
        form: Form | None = None,
        one_at_a_time: bool = False,
    ) -> PrivateView:
        """A view of these records, cast to the public form if one is given. A shard may be empty.

        Raises InputError on parts or labels that do not fit.
        """
        count = count_records(_load(records))
        unfit = None
        if form is not None:
            in_form, marks = form.cast(_load(records))
            if isinstance(records, Source):
                records = Source(functools.partial(_load_in_form, records, form))
            else:
                records = in_form
            unfit = torch.from_numpy(marks) if form.may_be_unfit else None
            if count > 1 and marks.all() and not shard:
                raise UsageError(
                    "no record has the form of the public ones, so each would count as the worst:"
                    " a label must be one of the public labels, in the same words or numbers, such"
                    " as 1 and 0 in both tables, not 'yes' and 'no' in one; and where no public"
                    " whole number or bool is missing, none may be. Nothing was charged. Tell only"
                    " those who may see the records."
                )
        if one_at_a_time and not all(map(_can_be_taken, leaves(_load(records)))):
            raise InputError(
                "one_at_a_time", True, "False for records that cannot be taken one by one"
            )
        if count == 0 and units_are_public and not shard:
            raise InputError("records", type(records).__name__, "at least one record")
        groups, rows = (None, None) if unit.groups is None else _group(unit.groups, count)
        units = count if rows is None else len(rows)
        if units > MOST_UNITS:
            raise InputError("records", type(records).__name__, f"at most {MOST_UNITS} units")
        device = _device(records)
        if device.type == "meta":
            raise InputError("records", Unshown(records), "tensors that hold numbers")
        require_true_products(device)
        if groups is not None and rows is not None:
            groups, rows = groups.to(device), rows.to(device)
        if streamed_to is not None:
            if groups is not None:
                raise InputError(
                    "device",
                    str(streamed_to),
                    "left out where units are groups of records",
                    "Their rows may be in two blocks.",
                )
            if not all(map(is_dense, leaves(_load(records)))):
                remedy = "Convert arrays with torch.from_numpy."
                raise InputError(
                    "records",
                    type(records).__name__,
                    "a dense tensor, or a tuple or dict of these, with device=",
                    remedy,
                )
            try:
                streamed_to = torch.zeros(0, device=streamed_to).device  # with its index
            # torch raises the second where it has no CUDA
            except (RuntimeError, AssertionError) as cause:
                raise InputError(
                    "device", str(streamed_to), "'cpu' or a CUDA device that torch finds here"
                ) from cause
            if streamed_to.type not in ("cpu", "cuda"):
                raise InputError(
                    "device", str(streamed_to), "'cpu' or a CUDA device that torch finds here"
                )
            require_true_products(streamed_to)
        public_units = units if units_are_public else None
        return cls(
            records,
            count,
            groups,
            rows,
            public_units,
            shard=shard,
            streamed_to=streamed_to,
            unfit=unfit,
            one_at_a_time=one_at_a_time,
        )

    @classmethod
    def of_records(cls, records: Any) -> PrivateView:
        """A view of records each of which is a unit, as many as all may know."""
        return cls.of(records, PrivacyUnit("record"), units_are_public=True)

    @property
    def records(self) -> Any:
        """The records in their own container, loaded if they are a Source; arrays are read-only."""
        return read_only(self._loaded())

    def _loaded(self) -> Any:
        records = _load(self.container)
        if isinstance(self.container, Source) and count_records(records) != self.count:
            raise InputError(
                "records",
                self.container,
                "the same data everywhere",
                "Here it loaded another number of records.",
            )
        return records

    def versions(self) -> tuple[int, ...]:
        """Changes when a score changes records in place."""
        return versions(self._loaded())

    def versions_in_memory(self) -> tuple[int, ...]:
        """The same between evaluations, if the records are not a Source."""
        return () if isinstance(self.container, Source) else self.versions()

    def keep(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` makes of these records, kept in place of what was kept before; made again for
        another key or changed records.
        """
        key = (key, self.versions())
        found = self._kept.get("what")
        if found is None or found[0] is not self.container or found[1] != key:
            found = self._kept["what"] = (self.container, key, make())
        return cast(T, found[2])

    def __getstate__(self) -> dict[str, Any]:
        """For workers: tensors are sent as bytes, never as shared memory that a worker could write
        to.
        """
        if isinstance(self.container, Source):
            container = self.container
        else:
            container = map_leaves(self.container, _PackedTensor.pack)
        return {
            **vars(self),
            "container": container,
            "earlier": map_leaves(self.earlier, _PackedTensor.pack),
            "_kept": {},
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            packed = name in ("container", "earlier") and not isinstance(value, Source)
            object.__setattr__(
                self, name, map_leaves(value, _PackedTensor.unpack) if packed else value
            )

    @property
    def units(self) -> int:
        """Number of units; private under ADD_OR_REMOVE_ONE."""
        if self.rows is None:
            return self.count
        return len(self.rows)

    @property
    def device(self) -> torch.device:
        """The device that records are scored on: `streamed_to`, or that of the first tensor among
        them; the CPU without tensors.
        """
        if self.streamed_to is None:
            return _device(self._loaded())
        return self.streamed_to

    @property
    def can_take(self) -> bool:
        """Whether single records can be taken out."""
        return all(map(_can_be_taken, leaves(self._loaded())))

    @property
    def can_be_views(self) -> bool:
        """Whether blocks of the records are views: of dense tensors on the CPU, each a unit."""
        return self.groups is None and all(
            is_dense(part) and part.device.type == "cpu" for part in leaves(self._loaded())
        )

    def take(self, positions: Tensor | slice) -> Any:
        """The records at these positions, in the same container; of a slice, views where they can
        be.
        """
        _use_up_warning()

        def taken(part: Any) -> Any:
            # of a list only these samples are copied
            if isinstance(part, list):
                return _read_only(_rows(part, positions))
            return _rows(_read_only(part), positions)

        return map_leaves(self._loaded(), taken)

    def storages(self) -> frozenset[int]:
        """Where the records' tensors lie in memory."""
        return frozenset(
            part.untyped_storage().data_ptr()
            for part in leaves(self._loaded())
            if isinstance(part, Tensor)
        )

    def single(self, row: int) -> PrivateView:
        """A copy of one record, so that a score that writes into it changes nothing; that it is one
        is public.
        """
        unfit = None if self.unfit is None else self.unfit[row : row + 1]
        return PrivateView(
            copy.deepcopy(self.take(torch.tensor([row], device="cpu"))),
            1,
            None,
            None,
            1,
            unfit=unfit,
        )

    def made_up(self) -> Any | None:
        """A few random records with the dtypes and shapes of these, and of two classes; None where
        made-up cells mean nothing (DataFrames, text, lists, unknown containers).

        Whole numbers, and numbers beside a table of features, are 0 and 1 in turn, since labels may
        be either; others lie between them. They depend on no record, and are the same each time.
        """
        records = self.records
        parts = leaves(records)
        numeric = all(
            _is_array(part) and (isinstance(part, Tensor) or part.dtype.kind in "biuf")
            for part in parts
        )
        if isinstance(self.container, Source) or not numeric:
            return None
        rng = np.random.default_rng(0)
        features = any(part.ndim > 1 for part in parts)

        def made(part: Any) -> Any:
            shape = (_MADE_UP, *part.shape[1:])
            real = part.is_floating_point() if isinstance(part, Tensor) else part.dtype.kind == "f"
            numbers: NDArray[Any] = rng.integers(2, size=shape)
            if part.ndim == 1 and (features or not real):
                numbers = np.arange(_MADE_UP) % 2
            elif real:
                numbers = rng.random(shape)
            if isinstance(part, Tensor):
                device = self.streamed_to or part.device
                return torch.from_numpy(numbers).to(device=device, dtype=part.dtype)
            return numbers.astype(part.dtype)

        return map_leaves(records, made)


def count_records(records: Any) -> int:
    """Number of records. Raises InputError where the parts of a nested container have different
    lengths, or none.
    """
    _require_no_parts(records)
    lengths = set(map(_length, leaves(records)))
    if len(lengths) != 1:
        raise InputError(
            "records",
            type(records).__name__,
            "made of parts of one length",
            "Each part needs one row a record.",
        )
    return lengths.pop()


def _require_no_parts(records: Any) -> None:
    """Refuse a list of tables that belong together, such as [X, y]: a list is one of samples, and
    these would be two records."""
    if not isinstance(records, list) or not 2 <= len(records) <= _MOST_PARTS:
        return
    shapes = [tuple(getattr(part, "shape", ())) for part in records]
    # Samples of one kind, such as pictures of several sizes, have as many dimensions each.
    if () not in shapes and len(set(map(len, shapes))) > 1 and len({one[0] for one in shapes}) == 1:
        raise InputError(
            "records",
            Unshown(records),
            "a tuple where features and labels are tables of their own",
            "Give (X, y). A list has one sample a record, so [X, y] would be two records.",
        )


def read_only(records: Any) -> Any:
    """The same records with arrays read-only, so that most scores that write fail on public records
    already (tensors: see `versions`).

    Memory can be reached around it, so it is part of the assumption `score-per-record` that the
    score writes nowhere.
    """
    _use_up_warning()
    return map_leaves(records, _read_only)


def versions(records: Any) -> tuple[int, ...]:
    """Numbers that show in-place changes: torch's counters, one a tensor (inference tensors have
    none), summed over a list of samples and what these are made of; of an array and of the numbers
    of a table or sparse matrix a digest of some rows: `torch.from_numpy` makes a read-only array
    writable, and pandas 2 writes to a table by any of its views.
    """

    def version(part: Any) -> int:
        if isinstance(part, list):
            if _are_plain(part):
                return 0
            return sum(map(version, leaves(tuple(part))))
        if _is_data(part):
            return sum(map(version, leaves(_fields_of(part))))
        if isinstance(part, Tensor) and not part.is_inference():
            return part._version
        return 0

    def digest(part: Any) -> int:
        of_table = hasattr(part, "iloc")
        if not (of_table or _is_csr(part) or (isinstance(part, np.ndarray) and part.ndim)):
            return version(part)
        steps = slice(None, None, max(part.shape[0] // _LOOKED_AT, 1))
        if of_table:
            rows = part.iloc[steps]
            return _digest_of_table(rows if rows.ndim == 2 else rows.to_frame())
        rows = part[steps]
        if _is_csr(part):
            rows = rows.copy()
            # In this form whatever a library sorts in place.
            rows.sum_duplicates()
            rows.eliminate_zeros()
            rows = rows.data
        return hash((rows.tobytes(), _in_cells(rows)))

    return tuple(map(digest, leaves(records)))


def _digest_of_table(rows: Any) -> int:
    """Of its numbers, dates and arrays, dtype by dtype: several together would make an array of
    objects, whose bytes are addresses, and differ from one copy to the next.
    """
    digested = []
    dtypes = rows.dtypes
    for dtype in dict.fromkeys(dtypes):
        if isinstance(dtype, np.dtype):
            part = rows.loc[:, (dtypes == dtype).to_numpy()].to_numpy()
            digested.append(part.tobytes() if dtype.kind in "biufcmM" else _in_cells(part))
    return hash(tuple(digested))


def _in_cells(rows: Any) -> bytes:
    """The numbers of arrays that cells hold, such as embeddings."""
    if rows.dtype.kind != "O":
        return b""
    return b"".join(cell.tobytes() for cell in rows.flat if isinstance(cell, np.ndarray))


def leaves(records: Any) -> list[Any]:
    """The tensors, arrays and so on that a nested container is made of."""
    if isinstance(records, Mapping):
        records = tuple(records.values())
    if isinstance(records, tuple):
        return list(itertools.chain.from_iterable(map(leaves, records)))
    return [records]


def require_one_index(name: str, labels: Any, table_name: str, table: Any) -> None:
    """Raises UsageError where two pandas objects of one length have different indices: row by row,
    records would get the labels of others.
    """
    if not (hasattr(labels, "iloc") and hasattr(table, "iloc")):
        return
    if len(labels) == len(table) and not labels.index.equals(table.index):
        raise UsageError(
            f"the index of {name} is not that of {table_name}, so rows would get the labels of"
            " others. Join them by their index, as in groups.loc[X_val.index]; or where the rows of"
            " both are in one order, give arrays (groups.to_numpy())."
        )


def require_disjoint(groups: Any, groups_train: Any, trained: int) -> None:
    """Raises InputError where validation and training records share a label, or have labels of
    different kinds.

    Text that differs only in case, spaces or the form of letters is taken for the same label here.

    Args:
        groups, groups_train: labels of the validation and of the training records.
        trained: number of training records.
    """
    private, _ = numbered("groups", groups)
    public, places = numbered("groups_train", groups_train)
    if len(places) != trained:
        raise InputError(
            "groups_train",
            Unshown(groups_train),
            "one label for each training record, in the records' order",
        )
    if of_several_kinds((*private, *public)):
        remedy = "Convert both in one way: numbers by int, anything else by str."
        raise InputError(
            "groups_train", Unshown(groups_train), "of the same kind as `groups`", remedy
        )
    if not {folded(label) for label in private}.isdisjoint(map(folded, public)):
        remedy = "A unit whose other rows train the model is not protected. Split by group."
        raise InputError(
            "groups_train", type(groups_train).__name__, "without any label of `groups`", remedy
        )


def _group(labels: Any, count: int) -> tuple[Tensor, Tensor]:
    """Unit index of each record, and number of records of each unit."""
    _, units = numbered("groups", labels)
    if len(units) != count:
        raise InputError(
            "groups", Unshown(labels), "one label for each record, in the records' order"
        )
    rows = np.bincount(units)
    if rows.max(initial=0) > MOST_ROWS_PER_UNIT:
        raise InputError(
            "groups", Unshown(labels), f"labels of at most {MOST_ROWS_PER_UNIT} records each"
        )
    return torch.from_numpy(units), torch.from_numpy(rows)


@dataclass(frozen=True, eq=False)
class _PackedTensor:
    """A tensor's numbers on the way to a worker."""

    array: NDArray[Any] = field(repr=False)

    @classmethod
    def pack(cls, part: Any) -> Any:
        """Tensors that numpy can hold, packed; anything else as it is."""
        if not is_dense(part) or part.device.type != "cpu" or part.dtype is torch.bfloat16:
            return part
        return cls(part.detach().numpy().copy())

    @classmethod
    def unpack(cls, part: Any) -> Any:
        """What was packed."""
        if isinstance(part, cls):
            return torch.from_numpy(part.array)
        return part


def _load_in_form(source: Source, form: Form) -> Any:
    return form.cast(source.records())[0]


def _load(records: Any) -> Any:
    if not isinstance(records, Source):
        return records
    if (loaded := _none_if_raised(records.records)) is None:
        raise InputError(
            "records",
            records,
            "a Source that loads in this process",
            "Call its `load` directly to see why it fails.",
        )
    return loaded


def map_leaves(records: Any, change: Callable[[Any], Any]) -> Any:
    """The container with every leaf changed; a mapping stays of its kind where it can be copied and
    filled.
    """
    if isinstance(records, tuple):
        parts = [map_leaves(part, change) for part in records]
        if hasattr(records, "_fields"):
            return type(records)(*parts)
        return tuple(parts)
    if not isinstance(records, Mapping):
        return change(records)
    changed = {key: map_leaves(part, change) for key, part in records.items()}
    if type(records) is dict or not isinstance(records, MutableMapping):
        return changed
    filled = copy.copy(records)
    filled.update(changed)
    return filled


def _read_only(part: Any) -> Any:
    if isinstance(part, np.ndarray):
        view = part.view()
        view.flags.writeable = False
        return view
    if hasattr(part, "iloc"):
        return part.copy(deep=False)
    if isinstance(part, list):
        if _are_plain(part):
            return part.copy()
        return [map_leaves(sample, _read_only) for sample in part]
    if _is_data(part):
        copied = copy.copy(part)
        for name, value in _fields_of(part).items():
            object.__setattr__(copied, name, map_leaves(value, _read_only))
        return copied
    return part


def _are_plain(parts: list[Any]) -> bool:
    """Whether these are numbers or texts alone, such as a sample's tokens."""
    return {*map(type, parts)} <= _PLAIN


def _is_data(part: Any) -> bool:
    """Whether it is of a data class of the caller's, such as one sample of a list."""
    return dataclasses.is_dataclass(part) and not isinstance(part, (type, torch.nn.Module))


def _fields_of(sample: Any) -> dict[str, Any]:
    """What a data class's object has in its fields."""
    found = {}
    for each in dataclasses.fields(sample):
        if hasattr(sample, each.name):
            found[each.name] = getattr(sample, each.name)
    return found


@functools.cache
def _use_up_warning() -> None:
    """Torch warns, once a process, when it makes a tensor of a read-only array. A score that does
    so would show it, or fail by it.
    """
    array = np.zeros(1)
    array.flags.writeable = False
    with mute_warnings(UserWarning):
        torch.from_numpy(array)


def _device(records: Any) -> torch.device:
    return next(
        (part.device for part in leaves(records) if isinstance(part, Tensor)),
        torch.device("cpu"),
    )


def _can_be_taken(part: Any) -> bool:
    """Whether single records of this part can be taken."""
    return _is_array(part) or hasattr(part, "iloc") or _is_csr(part) or isinstance(part, list)


def is_dense(part: Any) -> bool:
    return isinstance(part, Tensor) and part.layout is torch.strided


def _is_array(part: Any) -> bool:
    return isinstance(part, (Tensor, np.ndarray)) and part.ndim > 0


def _is_csr(part: Any) -> bool:
    """Whether it is scipy's sparse matrix whose rows can be taken."""
    return getattr(part, "format", None) == "csr" and hasattr(part, "tocsr")


def _rows(part: Any, positions: Tensor | slice) -> Any:
    if isinstance(positions, slice):
        if hasattr(part, "iloc"):
            return part.iloc[positions].reset_index(drop=True)
        return part[positions]
    if isinstance(part, Tensor):
        return part[positions.to(part.device)]
    if isinstance(part, list):
        return [part[i] for i in positions.tolist()]
    places = positions.cpu().numpy()
    if hasattr(part, "iloc"):
        return part.iloc[places].reset_index(drop=True)
    return part[places]


def _length(part: Any) -> int:
    length = _none_if_raised(
        lambda: int(part.shape[0]) if hasattr(part, "shape") and len(part.shape) else len(part)
    )
    if length is None:
        remedy = "Wrap a loader in dpbo.Source."
        raise InputError(
            "records",
            type(part).__name__,
            "a tensor, array, DataFrame, or anything with a length",
            remedy,
        )
    if hasattr(type(part), "__iter__") and not hasattr(type(part), "__getitem__"):
        # The length of a DataLoader counts its batches, each of which would be taken for a record.
        raise InputError(
            "records",
            type(part).__name__,
            "a container that gives its records by their places, records[0] and so on",
            "Give the data set of a loader, loader.dataset, or wrap what loads it in dpbo.Source.",
        )
    return length


def _none_if_raised(work: Callable[[], T]) -> T | None:
    """What `work` returns, or None where it raised: an error that the records raise may show some
    of them.
    """
    try:
        return work()
    except Exception:
        return None
