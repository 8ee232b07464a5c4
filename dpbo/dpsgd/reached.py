"""What code and objects of the caller's lead to: one walk, for what is put back and what is
compared.

`process_state` puts back what hidden runs reach, and `rebuilding` compares what a module reaches.
Nothing here calls the caller's code. What a thing leads to:

- a mapping, list, tuple, set or deque: its items
- a bytearray or an `array.array`: its bytes
- a function: what it closes over and its defaults; a method or a partial: its object, its arguments
- a class of the caller's: its attributes, and its bases
- a count, or an iterator of a list, tuple, text or range: where it stands
- any other object but a module or a logger: its attributes and its slots

Other iterators and generators hide where they stand (`is_opaque`). Objects of extensions have
parts that nobody else can read.
"""

import array
import collections
import contextlib
import functools
import itertools
import logging
import operator
import sys
import types
from collections.abc import Iterable
from typing import Any

from dpbo.fingerprint import attributes, is_own, is_own_module, names, slots

PLAIN = (type(None), bool, int, float, complex, str, bytes)
BYTES = (bytearray, array.array)
NEXT: Any = type(itertools.count().__next__)
_CONTAINERS: tuple[Any, ...] = (list, tuple, set, frozenset, collections.deque)
_ITERATED: tuple[Any, ...] = ([], (), "", b"", range(0), range(1 << 70))
ITERATORS = tuple(type(iter(kind)) for kind in _ITERATED)
# Opacus writes these on parameters.
_OF_OPACUS = frozenset(
    {"grad_sample", "summed_grad", "_forward_counter", "_current_grad_sample", "_norm_sample"}
)


def parts(thing: Any) -> list[Any]:
    """What is inside a thing, as the module's text says."""
    kind = type(thing)
    if kind in PLAIN or issubclass(kind, (types.ModuleType, logging.Logger)):
        return []
    if issubclass(kind, type):
        if is_own_class(thing):
            return [*vars(thing).values(), *thing.__bases__]
        return []
    own = [value for name, value in attributes(thing).items() if name not in _OF_OPACUS]
    return [*_inside(thing, kind), *own, *slots(thing).values()]


def _inside(thing: Any, kind: type) -> Iterable[Any]:
    """What is inside beside attributes."""
    if issubclass(kind, dict):
        return list(itertools.chain.from_iterable(dict.items(thing)))
    for container in _CONTAINERS:
        if issubclass(kind, container):
            items = [*container.__iter__(thing)]
            return [len(items), *items]
    if kind in BYTES:
        return [bytes(thing)]
    if kind is types.FunctionType:
        return [
            *(thing.__closure__ or ()),
            *(thing.__defaults__ or ()),
            *(thing.__kwdefaults__ or {}).values(),
        ]
    if kind is types.MethodType:
        return [thing.__func__, thing.__self__]
    if kind in (NEXT, types.BuiltinFunctionType):
        return [thing.__self__]
    if kind is types.CellType:
        # It may be empty.
        with contextlib.suppress(ValueError):
            return [thing.cell_contents]
    if issubclass(kind, functools.partial):
        return [thing.func, thing.args, thing.keywords]
    if kind is itertools.count:
        return [repr(thing)]
    if kind in ITERATORS:
        return [operator.length_hint(thing)]
    return []


def named(function: Any) -> list[Any]:
    """What the code of a function of the caller's names in its module, and in other modules of the
    caller's.
    """
    if is_own(function):
        return [value for _, value in names(function)]
    return []


def is_own_class(kind: type) -> bool:
    """Whether a class is of one of these modules."""
    return is_own_module(sys.modules.get(kind.__module__))


def is_opaque(thing: Any) -> bool:
    """Whether it is an iterator that hides where it stands. Files are none: nobody puts files
    back.
    """
    kind = type(thing)
    if kind in (itertools.count, *ITERATORS) or is_own_class(kind) or hasattr(kind, "fileno"):
        return False
    return hasattr(kind, "__next__") or hasattr(kind, "__anext__")
