"""The quick way for a number of a module, of a class, or for a default: what a sabotaged module would hold is put into the live one.

The sabotaged file runs once more, as a module that nobody imports. Whatever value of it differs is bound in the live module, in the live
classes, in the defaults of live functions, and under the same name in every other module that imported it.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

_VALUES = (int, float, str, tuple, list, set, frozenset, dict, Fraction, np.ndarray)


def rebinding_of(module: types.ModuleType, code: types.CodeType) -> list[Callable[[], None]]:
    """What makes the live module's values those that `code` makes; nothing where no value differs. Raises what `code` raises."""
    twin = types.ModuleType(module.__name__)
    twin.__dict__.update(__file__=module.__file__, __package__=module.__package__)
    exec(code, twin.__dict__)
    return [change for name, new in list(vars(twin).items()) for change in _changes(module, name, vars(module).get(name), new)]


def _changes(module: types.ModuleType, name: str, old: Any, new: Any) -> Iterator[Callable[[], None]]:
    if isinstance(new, _VALUES):
        if not _alike(old, new):
            holders = (other for key, other in list(sys.modules.items()) if key.partition(".")[0] == "dpbo" and name in vars(other))
            yield from (_bind(vars(holder), name, new) for holder in holders if _alike(vars(holder)[name], old))
    elif isinstance(new, type) and new.__module__ == module.__name__:
        for attribute, value in list(vars(new).items()):
            own = vars(old).get(attribute)
            if isinstance(value, _VALUES) and not attribute.startswith("__") and not _alike(own, value):
                yield _attribute(old, attribute, value)
            yield from _defaults(own, value)
    else:
        yield from _defaults(old, new)


def _defaults(old: Any, new: Any) -> Iterator[Callable[[], None]]:
    """Of functions, under whatever wraps them."""
    for own, other in zip(functions(old), functions(new), strict=False):
        if not _alike(own.__defaults__ or (), other.__defaults__ or ()):
            yield _attribute(own, "__defaults__", other.__defaults__)
        if not _alike(own.__kwdefaults__ or {}, other.__kwdefaults__ or {}):
            yield _attribute(own, "__kwdefaults__", other.__kwdefaults__)


def functions(candidate: Any) -> Iterator[types.FunctionType]:
    """The function itself, and those under whatever wraps it."""
    while candidate is not None:
        if isinstance(candidate, types.FunctionType):
            yield candidate
        candidate = next((getattr(candidate, n) for n in ("__func__", "__wrapped__", "func") if hasattr(candidate, n)), None)


def _alike(old: Any, new: Any) -> bool:
    if isinstance(new, np.ndarray):
        return isinstance(old, np.ndarray) and np.array_equal(old, new)
    if isinstance(new, (tuple, list)):
        return type(old) is type(new) and len(old) == len(new) and all(map(_alike, old, new))
    if isinstance(new, dict):
        return isinstance(old, dict) and old.keys() == new.keys() and all(_alike(old[key], new[key]) for key in new)
    return old is new or not isinstance(new, _VALUES) or (type(old) is type(new) and bool(old == new))


def _bind(names: dict[str, Any], name: str, value: Any) -> Callable[[], None]:
    return lambda: names.update({name: value})


def _attribute(holder: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(holder, name, value)
