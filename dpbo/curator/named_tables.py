"""The tables that a function of the caller's names, so that protected rows among them are found.

Looked at are the variables of its module and of the functions around it that its code names, its
defaults, what a method or a partial is bound to, and other functions of its module that it names;
in them tables, containers of tables, and the attributes of objects. A table that is made while the
function runs, or that belongs to another module, is not seen.
"""

import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import Dataset

from dpbo.curator.handle import Opaque

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_NOT_LOOKED_INTO = (*_PLAIN, types.ModuleType, type, Opaque)


def named_tables(function: Any) -> Iterator[tuple[str, Any]]:
    """Each table that a function names, and the variable that leads to it."""
    # The last says whether it is an object's attribute: those of attributes are not looked at.
    left: list[tuple[str, Any, bool]] = [("", function, False)]
    # Kept, so that no other thing gets its id.
    seen: dict[int, Any] = {}
    while left:
        name, part, is_attribute = left.pop()
        if isinstance(part, _NOT_LOOKED_INTO) or id(part) in seen:
            continue
        seen[id(part)] = part
        if hasattr(part, "shape") or isinstance(part, Dataset) or _are_cells(part):
            yield name, part
        elif isinstance(part, types.FunctionType):
            left += [(each, value, False) for each, value in _variables(part)]
        elif isinstance(part, types.MethodType):
            left += [("", part.__func__, False), ("self", part.__self__, False)]
        elif isinstance(part, functools.partial):
            left += [("", each, False) for each in (part.func, part.args, part.keywords)]
        elif isinstance(part, (Mapping, list, tuple)):
            items = part.values() if isinstance(part, Mapping) else part
            left += [(name, value, is_attribute) for value in items]
        elif not is_attribute:
            own = getattr(part, "__dict__", {})
            left += [(f"{name}.{each}", value, True) for each, value in own.items()]


def _are_cells(part: Any) -> bool:
    """Whether it is a list of texts or numbers, one a record."""
    return isinstance(part, list) and bool(part) and isinstance(part[0], _PLAIN)


def _variables(function: types.FunctionType) -> list[tuple[str, Any]]:
    """The variables that a function's code names, and its defaults; functions of other modules are
    left out."""
    space = function.__globals__
    found = [("", each) for each in function.__defaults__ or ()]
    found += (function.__kwdefaults__ or {}).items()
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    # An empty one is not assigned yet.
    found += [(name, cell.cell_contents) for name, cell in cells if cell != types.CellType()]
    codes = [function.__code__]
    for code in codes:
        found += [(name, space[name]) for name in code.co_names if name in space]
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return [each for each in found if getattr(each[1], "__globals__", space) is space]
