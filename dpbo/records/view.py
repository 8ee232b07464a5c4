"""The private records, in whatever container they come.

Tensors, arrays, DataFrames and (nested) tuples or dicts of them, and lists of samples, can be
sliced; tensors and numeric arrays can be replaced by made-up numbers for public trials; anything
else with a length is only counted. A `Source` loads its records once per process, so workers on
other machines can load their own.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpbo.errors import InputError, Unshown, UsageError
from dpbo.privacy import PrivacyUnit
from dpbo.queries.integers import MOST_UNITS
from dpbo.queries.products import require_true_products
from dpbo.records.containers import (
    can_be_taken,
    count_records,
    is_array,
    is_dense,
    leaves,
    map_leaves,
    read_only,
    read_only_part,
    rows_at,
    use_up_warning,
    versions,
)
from dpbo.records.form import Form
from dpbo.records.labels import units_of
from dpbo.records.sources import Source, load

T = TypeVar("T")
_MADE_UP = 10  # records to try a score on, five of each class


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
        count = count_records(load(records))
        unfit = None
        if form is not None:
            in_form, marks = form.cast(load(records))
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
        if one_at_a_time and not all(map(can_be_taken, leaves(load(records)))):
            raise InputError(
                "one_at_a_time", True, "False for records that cannot be taken one by one"
            )
        if count == 0 and units_are_public and not shard:
            raise InputError("records", type(records).__name__, "at least one record")
        groups, rows = (None, None) if unit.groups is None else units_of(unit.groups, count)
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
            if not all(map(is_dense, leaves(load(records)))):
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
        records = load(self.container)
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
        return all(map(can_be_taken, leaves(self._loaded())))

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
        use_up_warning()

        def taken(part: Any) -> Any:
            # of a list only these samples are copied
            if isinstance(part, list):
                return read_only_part(rows_at(part, positions))
            return rows_at(read_only_part(part), positions)

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
            is_array(part) and (isinstance(part, Tensor) or part.dtype.kind in "biuf")
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


def _device(records: Any) -> torch.device:
    return next(
        (part.device for part in leaves(records) if isinstance(part, Tensor)),
        torch.device("cpu"),
    )
