"""What a hidden run's output may hold, and its copy.

Pickling meets every object that an output holds, so each is looked at. These may leave:

- numbers, text, bytes, dates, paths, members of enumerations; NumPy's arrays, scalars and dtypes
- torch's tensors and parameters, of these very classes and without attributes: Opacus leaves each
  record's gradient in one
- containers; dataclasses and objects of the caller's classes, if their class has a name; objects of
  scikit-learn, SciPy's sparse matrices and pandas; generators of NumPy
- code by reference: what a module of the process has under its name, and functions that neither
  close over anything nor have defaults or attributes that are not plain
- modules that `rebuilt` made, with whatever their public copy had

Anything else does not, such as a trained module, a layer or a method of one, or an optimizer. What
these hold is met as well. A tensor that shows a part of its memory leaves without the rest.
"""

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import io
import pathlib
import pickle
import sys
import types
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from dpbo.dpsgd.reached import PLAIN, is_own_class
from dpbo.dpsgd.trained import is_rebuilt
from dpbo.errors import InputError

_VALUES: tuple[Any, ...] = (
    *PLAIN,
    bytearray,
    array.array,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.tzinfo,
    decimal.Decimal,
    fractions.Fraction,
    enum.Enum,
    pathlib.PurePath,
    uuid.UUID,
    range,
    slice,
    types.EllipsisType,
    pickle.PickleBuffer,
    np.ndarray,
    np.generic,
    np.dtype,
    np.ufunc,
    np.random.RandomState,
    np.random.Generator,
    np.random.BitGenerator,
    np.random.SeedSequence,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.UntypedStorage,
    torch.TypedStorage,
)
_CONTAINERS = (
    dict,
    list,
    tuple,
    set,
    frozenset,
    collections.deque,
    types.MappingProxyType,
    types.SimpleNamespace,
)
_LIBRARIES = ("sklearn.", "scipy.sparse.", "pandas.")


class _Pickler(pickle.Pickler):
    """Pickles code by reference: that of a notebook or of a function has no name.

    Args:
        buffer: takes the pickle.
        of_rebuilt: what is pickled is a module that was rebuilt.
    """

    def __init__(self, buffer: io.BytesIO, *, of_rebuilt: bool) -> None:
        super().__init__(buffer, protocol=pickle.HIGHEST_PROTOCOL)
        self.kept = list[Any]()
        self._of_rebuilt = of_rebuilt
        self._places = dict[int, int]()

    def persistent_id(self, thing: Any) -> int | None:
        if type(thing) in PLAIN:
            return None
        if isinstance(thing, nn.Module) and is_rebuilt(thing) and not self._of_rebuilt:
            if id(thing) not in self._places:
                self._places[id(thing)] = self._keep(copied_by_pickle(thing, of_rebuilt=True))
            return self._places[id(thing)]
        if not (_is_safe(thing) if self._of_rebuilt else _may_leave(thing)):
            remedy = (
                "dpbo.dpsgd.releasable lists what may leave. Of a module that was trained, return"
                " session.released()."
            )
            raise InputError("output", type(thing).__name__, "of what may leave", remedy)
        is_code = isinstance(thing, (types.FunctionType, types.ModuleType, type))
        if is_code and not getattr(thing, "__closure__", None):
            return self._keep(thing)
        return None

    def _keep(self, thing: Any) -> int:
        self.kept.append(thing)
        return len(self.kept) - 1

    def reducer_override(self, thing: Any) -> Any:
        if (
            isinstance(thing, torch.Tensor)
            and thing.layout is torch.strided
            and thing.untyped_storage().nbytes() != thing.nbytes
        ):
            alone = (
                thing.detach()
                .clone(memory_format=torch.contiguous_format)
                .requires_grad_(thing.requires_grad)
            )
            kept = alone
            if type(thing) is nn.Parameter:
                kept = nn.Parameter(alone, thing.requires_grad)
            return kept.__reduce_ex__(pickle.HIGHEST_PROTOCOL)  # type: ignore[no-untyped-call]
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO, kept: Sequence[Any]) -> None:
        super().__init__(buffer)
        self._kept = kept

    def persistent_load(self, place: int) -> Any:
        return self._kept[place]


def copied_by_pickle(output: Any, *, of_rebuilt: bool = False) -> Any:
    """A copy made from a pickle, with functions, classes and modules by reference.

    Raises InputError where something in it may not leave, whatever the output's own code raises,
    and pickle where there is none of it.
    """
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, of_rebuilt=of_rebuilt)
    pickler.dump(output)
    buffer.seek(0)
    return _Unpickler(buffer, pickler.kept).load()


def _is_safe(thing: Any) -> bool:
    """Whether a thing within a rebuilt module is as it was made: the caller may have put others
    there.
    """
    if isinstance(thing, torch.Tensor):
        return _is_bare(thing)
    return not isinstance(thing, nn.Module) or is_rebuilt(thing)


def _may_leave(thing: Any) -> bool:
    """Whether the thing itself may leave, if what it holds may."""
    kind = type(thing)
    if isinstance(thing, torch.Tensor):
        return _is_bare(thing)
    if isinstance(thing, nn.Module):
        return False
    if isinstance(thing, type):
        return _is_bound(thing)
    if kind is types.FunctionType:
        return _is_bound(thing) or _is_plain_function(thing)
    if kind is types.BuiltinFunctionType:
        return thing.__self__ is None or isinstance(thing.__self__, (types.ModuleType, type))
    if isinstance(thing, (types.ModuleType, *_VALUES, *_CONTAINERS)):
        return True
    return (
        is_own_class(kind)
        or dataclasses.is_dataclass(kind)
        or f"{kind.__module__}.".startswith(_LIBRARIES)
        or _is_bound(thing)
    )


def _is_bare(tensor: torch.Tensor) -> bool:
    """Whether it is of torch's own class and has no attributes."""
    return type(tensor) in (torch.Tensor, nn.Parameter) and not vars(tensor)


def _is_bound(thing: Any) -> bool:
    """Whether a module of the process has it under its name."""
    found: Any = sys.modules.get(getattr(thing, "__module__", None) or "")
    for name in getattr(thing, "__qualname__", "").split("."):
        found = getattr(found, name, None)
    return found is thing


def _is_plain_function(function: types.FunctionType) -> bool:
    values = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return (
        not function.__closure__
        and not vars(function)
        and all(type(value) in PLAIN for value in values)
    )
