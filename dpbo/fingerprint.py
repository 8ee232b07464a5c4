"""One digest of the content of a value, to tell whether two values are the same.

`fingerprint(value)` walks through numbers, text, tensors, arrays, containers, data classes and
functions. `detail` says how closely it looks at functions and at objects of other kinds:

    "names"       functions by their names, other objects by their types: do all ranks ask for the
                  same?
    "code"        functions by their code and defaults, estimators by their parameters: is this
                  reservation the one in the ledger? Tensors, bound objects, data classes and what a
                  function refers to stay out: they may be private, and the ledger is public.
    "references"  the caller's own functions and classes by their code, constants and bases, and by
                  what they refer to: functions, numbers, text, tables, and lists, dicts and sets
                  that they do not fill themselves; also in other modules of the caller's, and
                  in namespaces such as argparse makes, where code names these as variables.
                  Torch modules by their parameters, buffers and mode, the caller's own objects by
                  their attributes, estimators by their parameters, libraries by names: does a
                  reservation go on with what it began with?
    "content"     everything that can be reached: code with closures, the order of mappings, pickles
                  of other objects: did two runs do the same in public?

A class may define `fingerprint_parts()`, which returns what is compared instead of its fields. It
is not used for "content".
"""

import argparse
import contextlib
import dataclasses
import datetime
import dis
import enum
import functools
import hashlib
import io
import itertools
import numbers
import pathlib
import pickle
import sys
import sysconfig
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

Detail = Literal["names", "code", "references", "content"]
LIBRARIES = (
    *(sysconfig.get_paths()[name] for name in ("purelib", "platlib", "stdlib")),
    f"{pathlib.Path(__file__).parent}/",
)
_CONTAINERS = (list, dict, set, frozenset)
# Items of lists, dicts and sets that a walk looks at. A longer one counts by its length.
_MOST_ITEMS = 10_000
_VARIABLES = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF")
_LOADING = (*_VARIABLES, "LOAD_ATTR")
# Containers and objects within one another. A deeper one counts by its type.
_DEEPEST = 100
_METHODS = (types.FunctionType, staticmethod, classmethod)
_FILLING = frozenset(
    {
        "add",
        "append",
        "appendleft",
        "clear",
        "discard",
        "extend",
        "insert",
        "pop",
        "popitem",
        "remove",
        "setdefault",
        "update",
    }
)
_CONSTANTS = (
    numbers.Number,
    str,
    bytes,
    type(None),
    datetime.date,
    datetime.time,
    datetime.timedelta,
)


def fingerprint(
    value: Any,
    *,
    detail: Detail = "names",
    key: bytes = b"",
    size: int = 32,
) -> bytes:
    """The BLAKE2b digest of a value's content: the same in every process, whatever the order of
    sets.

    Args:
        value: what to look at. Tensors and arrays count with their dtype, shape and every bit.
        detail: how closely to look at functions and other objects, as the module's text says.
        key: at most 64 secret bytes, where the content is private.
        size: bytes of the digest, at most 32.
    """
    return _Walk(detail, key).digest(value)[:size]


class Reached:
    """A value that counts, in a fingerprint, with everything lasting that its code refers to.

    Ranks compare by it what they evaluate.
    """

    def __init__(self, value: Any) -> None:
        self._value = value

    def fingerprint_parts(self) -> tuple[bytes]:
        """The digest, computed when it is asked for."""
        # A rank that raised here would leave the others waiting.
        try:
            return (fingerprint(self._value, detail="references"),)
        except Exception as error:
            return (type(error).__name__.encode(),)


def describe_estimator(estimator: Any) -> str:
    """Class of an estimator and a digest of its parameters, as text for the ledger."""
    return f"{type(estimator).__name__} {_code_digest(estimator)}"


def describe_scoring(scoring: Any) -> str:
    """Name of a scoring, as text for the ledger; of the caller's own also a digest of its code, not
    of what that code calls.
    """
    if isinstance(scoring, str):
        return scoring
    if hasattr(scoring, "_score_func"):
        # What scikit-learn's make_scorer makes names its function and settings.
        return str(scoring)
    return f"own {getattr(scoring, '__qualname__', type(scoring).__name__)} {_code_digest(scoring)}"


def _code_digest(value: Any) -> str:
    return fingerprint(value, detail="code", size=8).hex()


class _Walk:
    """A tree of digests: every value's is a hash of its kind, its own bytes and the digests of its
    parts.
    """

    def __init__(self, detail: Detail, key: bytes) -> None:
        self.detail = detail
        self.key = key
        # Functions and classes met so far; None while one is being looked at.
        self.functions: dict[Any, bytes | None] = {}
        # Containers and objects that are being looked at.
        self.within = set[int]()
        self.changed: dict[type, set[str]] = {}
        self.items_left = _MOST_ITEMS

    def join(self, kind: str, *parts: Any, raw: bytes = b"") -> bytes:
        """The hash of a kind, of bytes and of the digests of parts."""
        hashed = hashlib.blake2b(key=self.key, digest_size=32)
        for content in (kind.encode(), raw):
            hashed.update(len(content).to_bytes(8, "little"))
            hashed.update(content)
        for part in parts:
            hashed.update(self.digest(part))
        return hashed.digest()

    def object(self, value: Any, *parts: Any, raw: bytes = b"") -> bytes:
        """`join` under the name of the value's type; where references count, with the methods of
        the caller's own classes.
        """
        kind = type(value)
        return self.join(
            kind.__qualname__,
            *([kind] if self.detail == "references" and is_own(kind) else []),
            *parts,
            raw=raw,
        )

    def digest(self, value: Any) -> bytes:
        if isinstance(value, np.generic) and value.dtype.kind in "biufcSU":
            number = value.item()
            # A long double has no Python type.
            value = value if isinstance(number, np.generic) else number
        if isinstance(value, enum.Enum):
            return self.object(value, raw=value.name.encode())
        if isinstance(value, _CONSTANTS) and not isinstance(value, np.generic):
            return self.join(type(value).__qualname__, raw=repr(value).encode())
        if isinstance(value, Tensor) and self.detail != "code":
            flat = value.detach().cpu().to_dense().resolve_conj().resolve_neg().reshape(-1)
            return self.join(
                f"{type(value).__qualname__} {value.dtype} {tuple(value.shape)}",
                raw=flat.view(torch.uint8).numpy().tobytes(),
            )
        if isinstance(value, (np.ndarray, np.generic)):
            kind = f"{type(value).__qualname__} {value.dtype} {value.shape}"
            if value.dtype.hasobject:
                return self.join(kind, *value.reshape(-1).tolist())
            return self.join(kind, raw=value.tobytes())
        if self.detail != "content" and hasattr(type(value), "fingerprint_parts"):
            return self.object(value, *value.fingerprint_parts())
        own_function = isinstance(value, types.FunctionType) and is_own(value)
        if (
            self.detail in ("code", "references")
            and (callable(value) or isinstance(value, _METHODS))
            and hasattr(value, "__wrapped__")
            and not own_function
        ):
            # Such as by torch.no_grad().
            return self.join("wrapped", value.__wrapped__)
        if isinstance(value, (types.FunctionType, type)):
            return self.remembered(value)
        if isinstance(value, functools.partial):
            return self.join("partial", value.func, value.args, value.keywords)
        if isinstance(value, types.MethodType) and self.detail in ("references", "content"):
            return self.join("method", value.__func__, value.__self__)
        if isinstance(value, types.CodeType):
            return self.code(value)
        if self.detail == "references" and hasattr(type(value), "iloc"):
            cells = [column.to_numpy() for column in columns_of(value)]
            return self.join("table", [*getattr(value, "columns", ())], *cells)
        if self.detail == "references" and hasattr(type(value), "tocsr"):
            rows = value.tocsr()
            return self.join("sparse", rows.shape, rows.indptr, rows.indices, rows.data)
        if self.detail in ("code", "references") and hasattr(type(value), "get_params"):
            return self.object(value, value.get_params(deep=False))
        if dataclasses.is_dataclass(value) and self.detail != "code":
            return self.object(
                value,
                *((part.name, getattr(value, part.name)) for part in dataclasses.fields(value)),
            )
        if isinstance(value, (Mapping, list, tuple, range, set, frozenset)):
            return self.items(value)
        if self.detail == "content":
            return self.object(value, raw=_pickled(value))
        if self.detail == "references" and isinstance(value, torch.nn.Module):
            settings = [self.settings(layer) for layer in value.modules()]
            return self.object(
                value, value.state_dict(), [*value.buffers()], settings, raw=repr(value).encode()
            )
        if self.detail == "references" and is_own(type(value)):
            changed = self.changed_by(type(value))
            in_slots = {member.__name__: part for member, part in slots(value).items()}
            held = {**in_slots, **attributes(value)}.items()
            lasting = {name: part for name, part in held if self.lasts(part, name, changed)}
            return self.once(value, lambda: self.object(value, lasting))
        return self.object(value, raw=_name(value) if callable(value) else b"")

    def items(self, value: Any) -> bytes:
        """The digest of a container."""
        if self.detail == "references" and isinstance(value, _CONTAINERS):
            if len(value) > self.items_left:
                return self.object(value, len(value))
            self.items_left -= len(value)
        if isinstance(value, Mapping) and self.detail == "content":
            return self.object(value, *itertools.chain.from_iterable(value.items()))
        if isinstance(value, Mapping):
            pairs = self.once(
                value,
                lambda: b"".join(
                    sorted(self.digest(name) + self.digest(part) for name, part in value.items())
                ),
            )
            return self.object(value, raw=pairs)
        if isinstance(value, (set, frozenset)):
            return self.object(value, raw=b"".join(sorted(map(self.digest, value))))
        return self.once(value, lambda: self.object(value, *value))

    def once(self, value: Any, look: Callable[[], bytes]) -> bytes:
        """What `look` gives; within itself, and deep within others, a value counts by its type."""
        if id(value) in self.within or len(self.within) > _DEEPEST:
            return self.join("within itself", raw=_name(type(value)))
        self.within.add(id(value))
        try:
            return look()
        finally:
            self.within.remove(id(value))

    def lasts(self, value: Any, name: str, changed: Collection[str]) -> bool:
        """Whether what a name is bound to counts: a container only where the caller's code does not
        fill it.
        """
        if isinstance(value, _CONTAINERS):
            return name not in changed
        return _lasts(value) or (
            self.detail == "references"
            and (isinstance(value, torch.nn.Module) or is_own(type(value)))
        )

    def changed_by(self, kind: type) -> set[str]:
        """`_changed_by`, computed once."""
        if kind not in self.changed:
            self.changed[kind] = _changed_by(kind)
        return self.changed[kind]

    def settings(self, layer: torch.nn.Module) -> list[tuple[str, Any]]:
        """The attributes of a layer that count, but for its parameters, buffers, layers and
        hooks.
        """
        changed = self.changed_by(type(layer))
        held = []
        for name, part in sorted(vars(layer).items()):
            own = name[0] != "_" and name not in changed
            if _lasts(part) or (own and isinstance(part, _CONTAINERS)):
                held.append((name, part))
        return held

    def remembered(self, value: Any) -> bytes:
        """The digest of a function or class, computed once; within itself it counts by its name."""
        library = self.detail == "references" and not is_own(value)
        if (
            self.detail == "names"
            or library
            or (isinstance(value, type) and self.detail != "references")
        ):
            return self.join(type(value).__qualname__, raw=_name(value))
        if value not in self.functions:
            self.functions[value] = None
            self.functions[value] = self.source(value)
        return self.functions[value] or self.join("within itself", raw=_name(value))

    def source(self, value: Any) -> bytes:
        """The digest of a function from its code and what that uses, or of a class from its
        methods.
        """
        if isinstance(value, type):
            changed = self.changed_by(value)
            held = {}
            for member, part in _members(value):
                constant = member not in changed and self.lasts(part, member, changed)
                if constant or isinstance(part, _METHODS):
                    held[member] = part
            return self.join("class", held, value.__bases__)
        name = b"" if self.detail == "references" else _name(value)
        code = self.code(value.__code__, value.__doc__)
        used = [] if self.detail == "code" else [*self.used(value)]
        return self.join("function", code, value.__defaults__, value.__kwdefaults__, used, raw=name)

    def used(self, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
        """What a function's code refers to outside itself: what it closes over, and for
        "references" also what it names.
        """
        if self.detail == "content":
            yield from _closed_over(function)
            return
        bound, changed = _bound_and_changed(function.__code__)
        for name, value in [*_closed_over(function), *names(function)]:
            within, _, plain = name.rpartition(".")
            counts = within and name in changed
            if plain not in bound and not counts and self.lasts(value, plain, changed):
                yield name, value

    def code(self, code: types.CodeType, doc: str | None = None) -> bytes:
        """The digest of compiled code, without the function's docstring."""
        if doc is not None and code.co_consts[:1] == (doc,):
            constants = code.co_consts[1:]
        else:
            constants = code.co_consts
        return self.join("code", code.co_names, constants, raw=code.co_code)


def columns_of(table: Any) -> list[Any]:
    """The columns of a pandas DataFrame, each a Series; a Series is its only one."""
    if table.ndim == 1:
        return [table]
    return [table.iloc[:, place] for place in range(table.shape[1])]


def names(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function's code names in its module, in other modules of the caller's, and in
    namespaces such as argparse makes.
    """
    named = set[str]()
    for code in nested_code(function.__code__):
        named.update(code.co_names)
    waiting = [("", function.__globals__)]
    closed_over = [*_closed_over(function)]
    waiting += [(f"{name}.", vars(value)) for name, value in closed_over if _is_namespace(value)]
    looked_into = set[int]()
    while waiting:
        prefix, namespace = waiting.pop()
        for name in sorted(named & namespace.keys()):
            value = namespace[name]
            yield f"{prefix}{name}", value
            if _is_namespace(value) and id(value) not in looked_into:
                looked_into.add(id(value))
                waiting.append((f"{prefix}{name}.", vars(value)))


def _is_namespace(value: Any) -> bool:
    """Whether code names what it uses of it, attribute by attribute."""
    if isinstance(value, types.ModuleType):
        return is_own_module(value)
    return isinstance(value, (types.SimpleNamespace, argparse.Namespace))


def _closed_over(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables of enclosing functions that a function's code uses."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        # It may not be assigned yet.
        with contextlib.suppress(ValueError):
            yield name, cell.cell_contents


def nested_code(code: types.CodeType) -> Iterator[types.CodeType]:
    """Compiled code, and that of the functions that it makes."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested_code(constant)


def _bound_and_changed(code: types.CodeType) -> tuple[set[str], set[str]]:
    """The variables of other scopes that code binds, and names of what it changes.

    The latter are attributes that it binds, also with the variable that they are bound to
    ("settings.calls"), and variables and attributes whose content it changes: the instructions of
    `seen.append(x)`, `held[key] = x` or `del self.held[key]` that load what is changed begin at the
    same place of the source as the one that changes it.
    """
    bound = set[str]()
    changed = set[str]()
    for each in nested_code(code):
        lines = [*dis.get_instructions(each)]
        places = set[tuple[int | None, int | None]]()
        for line in lines:
            fills = line.opname in ("LOAD_METHOD", "LOAD_ATTR") and line.argval in _FILLING
            if fills or line.opname in ("STORE_SUBSCR", "DELETE_SUBSCR"):
                places.add(_start(line))
        variables = {_start(line): line.argval for line in lines if line.opname in _VARIABLES}
        for line in lines:
            if line.opname == "STORE_ATTR" and _start(line) in variables:
                changed.add(f"{variables[_start(line)]}.{line.argval}")
            if line.opname in ("STORE_DEREF", "STORE_GLOBAL"):
                bound.add(line.argval)
            elif line.opname == "STORE_ATTR" or (
                line.opname in _LOADING and _start(line) in places
            ):
                changed.add(line.argval)
    return bound, changed


def _start(line: dis.Instruction) -> tuple[int | None, int | None]:
    assert line.positions is not None
    return line.positions.lineno, line.positions.col_offset


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """The functions and constants of a class."""
    for name, part in vars(kind).items():
        if isinstance(part, property):
            yield name, part.fget
        elif isinstance(part, _METHODS) or not name.startswith("__"):
            yield name, part


def _changed_by(kind: type) -> set[str]:
    """Names of attributes that methods of a class change, but for those that make an object."""
    changed = set[str]()
    for each in filter(is_own, kind.__mro__):
        for name, part in _members(each):
            function = getattr(part, "__func__", part)
            if name != "__init__" and isinstance(function, types.FunctionType):
                changed.update(_bound_and_changed(function.__code__)[1])
    return changed


def _lasts(value: Any) -> bool:
    """Functions, classes, tables, numbers, text and tuples of these; not other objects, which may
    change as code runs.
    """
    if isinstance(value, tuple):
        return all(map(_lasts, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return bool(type(value).__dataclass_params__.frozen)  # type: ignore[attr-defined]
    plain = bool, int, float, complex, str, bytes, np.generic, np.ndarray, Tensor
    return isinstance(value, (*plain, functools.partial, types.FunctionType, type)) or hasattr(
        type(value), "iloc"
    )


def is_own_module(module: Any) -> bool:
    """Whether a module is the caller's own: the main program, or one in a file that is no
    library's.
    """
    file = attributes(module).get("__file__")
    return module is sys.modules.get("__main__") or (
        isinstance(file, str) and not file.startswith(LIBRARIES)
    )


def attributes(thing: Any) -> dict[str, Any]:
    """An object's own attributes, without the code that it may have for reading them."""
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    if isinstance(found, dict):
        return found
    return {}


def slots(thing: Any) -> dict[Any, Any]:
    """What an object has in its slots, by their descriptors."""
    found = {}
    for kind in type(thing).__mro__ if hasattr(type(thing), "__slots__") else ():
        for member in vars(kind).values() if vars(kind).get("__slots__") else ():
            if type(member) is types.MemberDescriptorType:
                with contextlib.suppress(AttributeError):
                    found[member] = member.__get__(thing)
    return found


def is_own(thing: Any) -> bool:
    """Whether a function or class is the caller's own: neither Python's, nor an installed
    library's, nor dpbo's.
    """
    name = getattr(thing, "__module__", None) or ""
    code = getattr(thing, "__code__", None)
    file = getattr(sys.modules.get(name), "__file__", None) if code is None else code.co_filename
    return name != "builtins" and not (file or "").startswith(LIBRARIES)


def _name(thing: Any) -> bytes:
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', '')}".encode()


class _Pickler(pickle.Pickler):
    """Pickles tensors by their content: torch's own pickle of a storage differs every time."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, Tensor):
            return bytes, (fingerprint(thing, detail="content"),)
        return NotImplemented


def _pickled(thing: Any) -> bytes:
    """The pickle; of what has none, the name of its type."""
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(thing)
    except Exception:
        return _name(type(thing))
    return buffer.getvalue()
