"""One digest of the content of a value, to tell whether two values are the same.

`fingerprint(value)` walks through numbers, text, tensors, arrays, containers, data classes and
functions. `detail` says how closely it looks at functions and at objects of other kinds:

    "names"       functions by their names, other objects by their types: do all ranks ask for the
                  same?
    "code"        functions by their code and defaults, estimators by their parameters: is this
                  reservation the one in the ledger? Tensors, bound objects, data classes and what a
                  function refers to stay out: they may be private, and the ledger is public.
    "references"  the caller's own functions by their code, constants and defaults, and by what they
                  close over or name, also in other modules of the caller's and in namespaces such
                  as argparse makes: functions, numbers, text, tables; not variables that they bind
                  anew, nor lists, dicts and sets, which they may fill. The caller's own classes by
                  their functions and constants, objects of these by their attributes, torch modules
                  by their parameters and buffers, estimators by their parameters, libraries by
                  names: does a reservation go on with what it began with?
    "content"     code with closures, the order of mappings, pickles of other objects: did two runs
                  do the same in public?

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
import pickle
import site
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

Detail = Literal["names", "code", "references", "content"]
LIBRARIES = (
    *(f"{sysconfig.get_paths()[name]}/" for name in ("purelib", "platlib", "stdlib")),
    *(f"{folder}/" for folder in (*site.getsitepackages(), site.getusersitepackages())),
    # Such as those of `pip install --target`, on PYTHONPATH.
    *(f"{folder}/" for folder in sys.path if folder and any(Path(folder).glob("*.dist-info"))),
    f"{Path(__file__).parent}/",
)
# What folders of libraries are called, wherever they lie.
_LIBRARY_FOLDERS = frozenset({"site-packages", "dist-packages"})
_CHANGING = (list, dict, set, types.ModuleType)
_BINDING = ("STORE_GLOBAL", "STORE_DEREF", "STORE_ATTR")
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
        # Values that are being looked at, by identity.
        self.within = set[int]()

    def join(self, kind: str, *parts: Any, raw: bytes = b"") -> bytes:
        """The hash of a kind, of bytes and of the digests of parts."""
        hashed = hashlib.blake2b(key=self.key, digest_size=32)
        for content in (kind.encode(), raw):
            hashed.update(len(content).to_bytes(8, "little"))
            hashed.update(content)
        for part in parts:
            hashed.update(self.digest(part))
        return hashed.digest()

    def digest(self, value: Any) -> bytes:
        if isinstance(value, np.generic) and value.dtype.kind in "biufcSU":
            number = value.item()
            # A long double has no Python type.
            value = value if isinstance(number, np.generic) else number
        kind = type(value).__qualname__
        if isinstance(value, enum.Enum):
            return self.join(kind, raw=value.name.encode())
        if isinstance(value, _CONSTANTS) and not isinstance(value, np.generic):
            return self.join(kind, raw=repr(value).encode())
        if id(value) in self.within:
            return self.join("within itself", raw=_name(type(value)))
        self.within.add(id(value))
        try:
            return self.parts(value, kind)
        finally:
            self.within.remove(id(value))

    def parts(self, value: Any, kind: str) -> bytes:
        """The digest of a value that is no constant."""
        references = self.detail == "references"
        if isinstance(value, Tensor) and self.detail != "code":
            flat = value.detach().cpu().to_dense().resolve_conj().resolve_neg().reshape(-1)
            # of an expanded tensor the stride is 0, which has no view as bytes
            dense = flat.clone(memory_format=torch.contiguous_format)
            content = dense.view(torch.uint8).numpy().tobytes()
            return self.join(f"{kind} {value.dtype} {tuple(value.shape)}", raw=content)
        if isinstance(value, (np.ndarray, np.generic)):
            array = f"{kind} {value.dtype} {value.shape}"
            if value.dtype.hasobject:
                return self.join(array, *value.reshape(-1).tolist())
            return self.join(array, raw=value.tobytes())
        if isinstance(value, types.CodeType):
            return self.join("code", value.co_names, value.co_consts, raw=value.co_code)
        if self.detail != "content" and hasattr(type(value), "fingerprint_parts"):
            return self.join(kind, *value.fingerprint_parts())
        if hasattr(value, "__wrapped__") and self.detail in ("code", "references"):
            # Such as by torch.no_grad().
            return self.join("wrapped", value.__wrapped__)
        if isinstance(value, (types.FunctionType, type)):
            return self.code(value, kind)
        if isinstance(value, functools.partial):
            return self.join("partial", value.func, value.args, value.keywords)
        if isinstance(value, types.MethodType) and self.detail in ("references", "content"):
            return self.join("method", value.__func__, value.__self__)
        if isinstance(value, Mapping) and self.detail != "content":
            return self.join(kind, raw=b"".join(sorted(map(self.digest, value.items()))))
        if isinstance(value, Mapping):
            return self.join(kind, *value.items())
        if isinstance(value, (set, frozenset)):
            return self.join(kind, raw=b"".join(sorted(map(self.digest, value))))
        if isinstance(value, (list, tuple, range)):
            return self.join(kind, *value)
        own = [type(value)] if references else []
        if hasattr(type(value), "get_params") and self.detail in ("code", "references"):
            return self.join(kind, *own, value.get_params(deep=False))
        if references and hasattr(type(value), "iloc"):
            cells = [column.to_numpy() for column in columns_of(value)]
            return self.join("table", [*getattr(value, "columns", ())], *cells)
        if dataclasses.is_dataclass(value) and self.detail != "code":
            fields = ((part.name, getattr(value, part.name)) for part in dataclasses.fields(value))
            return self.join(kind, *own, *fields)
        if references and isinstance(value, torch.nn.Module):
            # Its text tells the settings of layers.
            held = [*value.named_parameters(), *value.named_buffers()]
            return self.join(kind, *own, value.training, *held, raw=repr(value).encode())
        if self.detail == "content":
            return self.join(kind, raw=_pickled(value))
        if references and is_own(type(value)):
            lasting = _lasting(attributes(value).items(), methods(type(value)))
            return self.join(kind, *own, lasting)
        return self.join(kind, raw=_name(value) if callable(value) else b"")

    def code(self, value: Any, kind: str) -> bytes:
        """The digest of a function from its code and what that uses, or of a class from its
        functions, constants and bases.
        """
        references = self.detail == "references"
        by_name = not is_own(value) if references else isinstance(value, type)
        if by_name or self.detail == "names":
            return self.join(kind, raw=_name(value))
        if isinstance(value, type):
            members = _lasting(_members(value), methods(value))
            return self.join("class", members, value.__bases__)
        code = value.__code__
        if value.__doc__ is not None and code.co_consts[:1] == (value.__doc__,):
            code = code.replace(co_consts=(None, *code.co_consts[1:]))
        used = dict(closed_over(value)) if self.detail == "content" else {}
        if references:
            used = _lasting([*closed_over(value), *names(value)], [value])
        return self.join("function", code, value.__defaults__, value.__kwdefaults__, used)


class _Search(_Walk):
    """Looks for an object of these kinds among what code refers to; no digest comes of it."""

    def __init__(self, kinds: tuple[type, ...]) -> None:
        super().__init__("references", b"")
        self.kinds = kinds
        self.found = False

    def digest(self, value: Any) -> bytes:
        self.found = self.found or isinstance(value, self.kinds)
        if isinstance(value, (Tensor, np.ndarray)) or hasattr(type(value), "iloc"):
            return b""
        return super().digest(value)


def refers_to(value: Any, kinds: tuple[type, ...]) -> bool:
    """Whether what counts in a fingerprint of "references" holds an object of these kinds."""
    search = _Search(kinds)
    search.digest(value)
    return search.found


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
    cells = [*closed_over(function)]
    waiting += [(f"{name}.", vars(value)) for name, value in cells if _is_namespace(value)]
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


def closed_over(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
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


def _lasting(
    held: Iterable[tuple[str, Any]], functions: Iterable[types.FunctionType]
) -> dict[str, Any]:
    """What names are bound to, without lists, dicts and sets, which code may fill, and without the
    names that the functions' code binds.
    """
    codes = itertools.chain.from_iterable(nested_code(each.__code__) for each in functions)
    lines = itertools.chain.from_iterable(map(dis.get_instructions, codes))
    bound = {line.argval for line in lines if line.opname in _BINDING}
    return {
        name: part
        for name, part in held
        if name.rpartition(".")[2] not in bound and not isinstance(part, _CHANGING)
    }


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """The functions and constants of a class."""
    for name, part in vars(kind).items():
        # Of a property, or of a static or class method.
        function = getattr(part, "fget", None) or getattr(part, "__func__", part)
        if isinstance(function, types.FunctionType) or not name.startswith("__"):
            yield name, function


def methods(kind: type) -> list[types.FunctionType]:
    """The functions of a class, and of its bases of the caller's, that do not make an object."""
    members = itertools.chain.from_iterable(map(_members, filter(is_own, kind.__mro__)))
    return [
        part
        for name, part in members
        if isinstance(part, types.FunctionType) and name != "__init__"
    ]


def is_own_module(module: Any) -> bool:
    """Whether a module is the caller's own: the main program, or one in a file that is no
    library's.
    """
    file = attributes(module).get("__file__")
    return module is sys.modules.get("__main__") or (
        isinstance(file, str) and not _of_library(file)
    )


def _of_library(file: str) -> bool:
    """Whether a file is Python's, an installed library's or dpbo's."""
    return file.startswith(LIBRARIES) or not _LIBRARY_FOLDERS.isdisjoint(Path(file).parts)


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
    file = getattr(sys.modules.get(name), "__file__", None)
    if isinstance(thing, types.FunctionType):
        file = thing.__code__.co_filename
    return name not in sys.builtin_module_names and not _of_library(file or "")


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
