"""The tables that a function of the caller's takes, so that protected rows among them are found.

Its bytecode is read, and nothing of the caller's is called. A variable that is loaded and then
followed by attributes, and by subscripts and slices whose keys are constants or other variables,
stands for what these give, as in `X[:300]`, `data["train"]` and `self.train`. A variable that is
used otherwise, such as one that is passed on, stands for all that it holds: a table, a container's
parts, an object's attributes, or an estimator's parameters and the methods of its class.

Looked at are the variables of the function's module and of the functions around it, its defaults,
what a method or a partial is bound to, methods of objects, and other functions of its module. A
table that is made while the function runs, or that a function of another module names, is not seen.
"""

import contextlib
import dis
import functools
import inspect
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch.utils.data import Dataset

from dpbo.fingerprint import attributes, closed_over, is_own, methods, nested_code, slots
from dpbo.records.opaque import Opaque

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_NOT_LOOKED_INTO = (*_PLAIN, types.ModuleType, type, Opaque)
_CONTAINERS: Any = (list, tuple, dict)
# How a named tuple and an object with slots have their attributes.
_FIELDS: Any = (types.MemberDescriptorType, type(inspect.FullArgSpec.args))
# In place of an attribute that the class computes.
_COMPUTED = property()
_BINDING = ("STORE_FAST", "STORE_DEREF", "STORE_GLOBAL", "STORE_NAME")
# A longer list is of samples.
_MOST_TABLES = 64
_UNREAD = ("EXTENDED_ARG", "NOP", "COPY")


def named_tables(function: Any, whole: Sequence[Any] = ()) -> Iterator[tuple[str, Any]]:
    """Each table that a function takes, and the variable that leads to it.

    Args:
        whole: tables that are given as they are, however few of their rows the function takes.
    """
    # The last says whether it is an object's attribute: those of attributes are not looked at.
    left: list[tuple[str, Any, bool]] = [("", function, False)]
    home: Any = None
    # Kept, so that no other thing gets its id.
    seen: dict[Any, Any] = {}
    while left:
        name, part, is_attribute = left.pop()
        called, given, keywords = _unbound(part if seen else _as_method(part))
        key = tuple(map(id, (called, *given, *keywords.values())))
        # What an object of dpbo's holds, such as a search's trainer, is compared where it gets it.
        ours = type(part).__module__.startswith("dpbo.") and not isinstance(part, tuple)
        if isinstance(part, _NOT_LOOKED_INTO) or ours or key in seen:
            continue
        seen[key] = part
        if _is_table(part) or _are_records(part):
            yield name, part
        elif isinstance(called, types.FunctionType):
            home = home or called.__globals__
            space = called.__globals__
            if space is not home and not is_own(called):
                space = {}
            arguments = _arguments(called, given, keywords)
            found = _taken(called, arguments, space, whole)
            left += [(each, value, False) for each, value in found]
        elif called is not part:
            left += [(name, each, False) for each in (called, *given, *keywords.values())]
        elif hasattr(type(part), "get_params"):
            used = [*part.get_params(deep=False).values()]
            used += [types.MethodType(each, part) for each in methods(type(part))]
            left += [(name, each, False) for each in used]
            left += [(f"{name}.{each}", value, True) for each, value in attributes(part).items()]
        elif isinstance(part, (Mapping, list, tuple)):
            items = part.values() if isinstance(part, Mapping) else part
            left += [(name, value, is_attribute) for value in items]
        elif not is_attribute:
            own = attributes(part) | {each.__name__: has for each, has in slots(part).items()}
            left += [(f"{name}.{each}", value, True) for each, value in own.items()]


def _is_table(part: Any) -> bool:
    return hasattr(type(part), "shape") or isinstance(part, Dataset)


def _are_records(part: Any) -> bool:
    """Whether it is a list of texts or numbers, one a record, or of samples: of more than there are
    tables in a list of tables."""
    if not isinstance(part, list) or not part:
        return False
    return isinstance(part[0], _PLAIN) or len(part) > _MOST_TABLES


def _as_method(thing: Any) -> Any:
    """What runs when an object is called, as its method."""
    call = inspect.getattr_static(type(thing), "__call__", None)
    return types.MethodType(call, thing) if isinstance(call, types.FunctionType) else thing


def _unbound(part: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The function of methods and partials, and the arguments that they give it."""
    given: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}
    while isinstance(part, (types.MethodType, functools.partial)):
        if isinstance(part, types.MethodType):
            given = (part.__self__, *given)
            part = part.__func__
        else:
            given = (*part.args, *given)
            keywords = part.keywords | keywords
            part = part.func
    return part, given, keywords


def _arguments(
    function: types.FunctionType, given: tuple[Any, ...], keywords: dict[str, Any]
) -> dict[str, Any]:
    """The values of a function's parameters, as far as they are known before it is called."""
    try:
        signature = inspect.signature(function, follow_wrapped=False)
        bound = signature.bind_partial(*given, **keywords)
    except (TypeError, ValueError):
        return {}
    bound.apply_defaults()
    return dict(bound.arguments)


def _taken(
    function: types.FunctionType,
    arguments: dict[str, Any],
    space: dict[str, Any],
    whole: Sequence[Any],
) -> Iterator[tuple[str, Any]]:
    """What a function's code takes of each variable that it loads; functions of other modules are
    left out.

    Args:
        arguments: known values of its parameters.
        space: variables of its module.
        whole: as in `named_tables`.
    """
    outer = function.__code__
    enclosing = dict(closed_over(function)) | arguments
    for code in nested_code(outer):
        # Those that functions within it use are loaded to make these, too.
        local = {name: has for name, has in arguments.items() if name not in code.co_cellvars}
        hidden = code.co_cellvars if code is not outer else ()
        cells = {name: has for name, has in enclosing.items() if name not in hidden}
        known = {"FAST": local if code is outer else {}, "DEREF": cells, "GLOBAL": space}
        lines = [*_lines(code)]
        bound = {line.argval for line in lines if line.opname in _BINDING}
        read = _Reader(lines, known, bound, whole)
        for place, line in enumerate(lines):
            names = read.variables(line)
            if line.argval not in names or lines[place + 1].opname == "STORE_ATTR":
                continue
            name, value = read.chain(place, names[line.argval])
            of_a_module = names is space and isinstance(value, types.FunctionType)
            if not of_a_module or value.__globals__ is space:
                yield name, value


class _Line(NamedTuple):
    """An instruction."""

    opname: str
    argval: Any


def _lines(code: types.CodeType) -> Iterator[_Line]:
    """The instructions of compiled code; one of two variables, as in Python 3.13, is two."""
    for line in dis.get_instructions(code):
        names = [line.opname]
        values = [line.argval]
        if isinstance(line.argval, tuple) and line.opname != "LOAD_CONST":
            names = re.findall("[A-Z]+_FAST", line.opname)
            values = [*line.argval]
        for name, value in zip(names, values, strict=False):
            yield _Line(name, value)


class _Reader:
    """Follows what instructions take of a variable.

    Args:
        lines: the instructions.
        known: the values of variables, by the kind of their instruction.
        bound: variables that the instructions bind: as keys they may have other values.
        whole: as in `named_tables`.
    """

    def __init__(
        self,
        lines: list[_Line],
        known: dict[str, dict[str, Any]],
        bound: set[str],
        whole: Sequence[Any],
    ) -> None:
        self._lines = lines
        self._known = known
        self._bound = bound
        self._whole = whole

    def variables(self, line: _Line) -> dict[str, Any]:
        """Among which an instruction loads one; none where it loads none."""
        if line.opname == "LOAD_NAME":
            return self._known["GLOBAL"]
        if line.opname.startswith("LOAD_"):
            for kind, names in self._known.items():
                if kind in line.opname:
                    return names
        return {}

    def chain(self, place: int, value: Any) -> tuple[str, Any]:
        """What the attributes and subscripts after the load of a variable give, as far as they are
        known, and a name for it. Of a table that is always a table."""
        name = self._lines[place].argval
        found = (name, value)
        stack = [value]
        # Where a step fails, what was found before stands.
        with contextlib.suppress(Exception):
            for line in self._lines[place + 1 :]:
                if any(stack[0] is each for each in self._whole):
                    break
                if line.opname in _UNREAD:
                    continue
                if not self._step(line, stack):
                    break
                if len(stack) > 1:
                    continue
                name += f".{line.argval}" if line.argval else "[...]"
                # `iloc` is all of a table, and its shape tells how many records there are.
                if _is_table(stack[0]) or not _is_table(found[1]):
                    found = (name, stack[0])
        return found

    def _step(self, line: _Line, stack: list[Any]) -> bool:
        """Do what an instruction does; False where it takes the variable as it is."""
        names = self.variables(line)
        if line.opname == "LOAD_CONST":
            stack.append(line.argval)
        elif line.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            stack.append(_attribute(stack.pop(), line.argval))
        elif line.opname in ("BUILD_SLICE", "BUILD_TUPLE") and len(stack) > line.argval:
            parts = stack[-line.argval :]
            stack[-line.argval :] = [slice(*parts) if "SLICE" in line.opname else tuple(parts)]
        elif line.opname == "BINARY_SUBSCR" and len(stack) > 1:
            stack[-2:] = [_item(*stack[-2:])]
        elif line.opname == "BINARY_SLICE" and len(stack) > 2:
            stack[-3:] = [_item(stack[-3], slice(*stack[-2:]))]
        elif line.argval in names and line.argval not in self._bound:
            stack.append(names[line.argval])
        else:
            return False
        return True


def _attribute(holder: Any, name: str) -> Any:
    """An attribute of an object. Raises where code of the caller's would compute it, and for a
    method of a table or of a library's that is not written in Python."""
    if isinstance(holder, types.ModuleType):
        return vars(holder)[name]
    found = inspect.getattr_static(holder, name, _COMPUTED)
    own = attributes(holder)
    if isinstance(holder, type) or (name in own and own[name] is found):
        return found
    if isinstance(found, types.FunctionType) and not _is_table(holder):
        return types.MethodType(found, holder)
    if isinstance(found, _FIELDS):
        return found.__get__(holder)
    if isinstance(found, staticmethod):
        return found.__func__
    if not hasattr(type(found), "__get__"):
        return found
    if is_own(type(holder)):
        raise AttributeError(name)
    value = getattr(holder, name)
    if callable(value) and getattr(value, "__self__", None) is holder:
        raise AttributeError(name)
    return value


def _item(holder: Any, key: Any) -> Any:
    """A part of a container or table. Raises where code of the caller's would find it."""
    for kind in _CONTAINERS:
        if isinstance(holder, kind):
            # A dict that has it not may make it.
            if kind is dict and not dict.__contains__(holder, key):
                raise KeyError
            return kind.__getitem__(holder, key)
    if is_own(type(holder)) or isinstance(holder, Dataset):
        raise TypeError
    return holder[key]
