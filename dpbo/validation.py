"""Validation of arguments by their annotations: a wrong argument raises an InputError that names it
and says what is allowed.

    @checked
    def chain(count: Count) -> Tensor: ...

    # Both are refused before the body runs.
    chain("5")
    chain(0)

`checked` wraps a function, or the constructor, `__call__` and public methods of a class, except
overrides of another library's methods. `checked_constructor` wraps only the constructor of a class,
such as a query, whose other public methods dpbo calls; methods that users call are decorated one by
one. A missing or unknown argument is Python's own TypeError, with a note of what a call takes.

What is checked: the type; the range, where the annotation has a `Within`; that numbers are not NaN
and fit 64 bits, that tensors are dense and real, and that texts are valid Unicode. The elements of
a tensor are read only for a range, those of a long sequence only in part.

What the body receives: numbers of other libraries (np.int64, np.float32, Fraction, 0-d arrays and
tensors) as Python's own, an int as a float where only floats are allowed, a list as a tuple where
only tuples are, and a vector as a tuple of numbers.
"""

import contextlib
import enum
import functools
import inspect
import itertools
import json
import math
import numbers
import os
import sys
import types
import typing
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, TypeVar, Union

import numpy as np

from dpbo.errors import InputError, Unshown

S = TypeVar("S")
K = TypeVar("K", bound=type)
Test = Callable[[Any], bool]
# Elements of a sequence that are checked; longer sequences are checked where they are used.
_ELEMENTS = 256
_INT = 2**63
_Hints = tuple[list[tuple[int, str, Any]], dict[str, Any]]
_PACKAGE = __file__.rpartition("/")[0] + "/"


@dataclass(frozen=True)
class Within:
    """A range, added to a type by `Annotated[type, Within(...)]`.

    Args:
        allowed: the range in words; completes "the argument must be ...".
        test: whether a value of the right type is in the range.
        remedy: what to do instead, as a sentence.
    """

    allowed: str
    test: Test
    remedy: str = ""

    def __repr__(self) -> str:
        # In the signatures that `help` shows.
        return self.allowed


def printable(text: str) -> str:
    """One line of printable characters, for a terminal, a page or a form: what `str.isprintable`
    does not allow stands as its escape. Such are control codes, line ends, zero-width characters
    and those that turn the direction of what follows: a name of these could clear a screen and
    print a guarantee.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def is_finite_float64(tensor: Any) -> bool:
    """Whether a tensor is of float64 and has finite numbers alone."""
    return str(tensor.dtype) == "torch.float64" and bool(tensor.isfinite().all())


# One object for one range: what an annotation means is remembered by it.
@functools.cache
def at_least(least: int, most: int = 2**31) -> Within:
    """The whole numbers from `least` to `most`."""
    return Within(f"a whole number from {least} to {most}", lambda value: least <= value <= most)


@functools.cache
def between(least: float, most: float) -> Within:
    """The numbers from `least` to `most`, both included."""
    return Within(f"a number from {least:g} to {most:g}", lambda value: least <= value <= most)


@functools.cache
def one_of(*words: str) -> Within:
    """One of these words."""
    return Within(" or ".join(map(repr, words)), lambda value: value in words)


Finite = Annotated[float, Within("a finite number", lambda value: math.isfinite(value))]
Positive = Annotated[float, Within("a finite number above 0", lambda value: 0.0 < value < math.inf)]
NotNegative = Annotated[
    float, Within("a finite number of at least 0", lambda value: 0.0 <= value < math.inf)
]
Probability = Annotated[float, Within("in (0, 1)", lambda value: 0.0 < value < 1.0)]
Delta = Annotated[float, Within("in [0, 1)", lambda value: 0.0 <= value < 1.0)]
Risk = Annotated[float, between(1e-6, 0.5)]
Count = Annotated[int, at_least(1)]
Index = Annotated[int, at_least(0)]
Seed = Annotated[
    int,
    Within(
        f"a whole number from 0 to {2**63 - 1}",
        lambda value: 0 <= value <= 2**63 - 1,
        "Any will do, such as 0: it makes public draws repeatable, and is never of the noise.",
    ),
]
Name = Annotated[
    str,
    Within(
        "a word of 1 to 200 printable letters",
        lambda value: 0 < len(value) <= 200 and value.isprintable(),
    ),
]
PRINTABLE = "of printable characters alone"
Dtype = Annotated[
    Any, Within("torch.float64, as all points of dpbo", lambda value: str(value) == "torch.float64")
]
ScoreRange = Annotated[
    tuple[float, float],
    Within(
        "a pair (lower, upper) of numbers with lower < upper, within 1e100 of zero and at least"
        " 1e-100 apart",
        lambda ends: max(abs(ends[0]), abs(ends[1])) <= 1e100 and ends[1] - ends[0] >= 1e-100,
        "Swap the ends if they are reversed; rescale the score if they are too large or too close.",
    ),
]

_TO_TENSOR = "Use torch.as_tensor(X, dtype=torch.float64)"
POINTS = Within(
    "a float64 tensor, finite, of shape q x d, with one row and one column or more",
    lambda X: X.ndim == 2 and 0 not in X.shape and is_finite_float64(X),
    f"{_TO_TENSOR}, and X.unsqueeze(0) for one point.",
)
POINT = Within(
    "a float64 tensor, finite, of shape d, with one number or more",
    lambda x: x.ndim == 1 and len(x) > 0 and is_finite_float64(x),
    "Use torch.as_tensor(x, dtype=torch.float64).",
)
FINITE = Within("finite numbers", lambda value: bool(value.isfinite().all()))
FLOATS = Within(
    "a tensor of a floating-point dtype, finite",
    lambda value: value.is_floating_point() and bool(value.isfinite().all()),
    f"{_TO_TENSOR}.",
)


def checked(subject: S) -> S:
    """The same function or class, which raises InputError for arguments that its annotations do not
    allow.
    """
    if not isinstance(subject, type):
        return _guarded(subject, None)
    libraries = [
        base
        for base in subject.__mro__[1:]
        if base is not object and not base.__module__.startswith("dpbo.")
    ]
    for name, member in list(vars(subject).items()):
        private = name.startswith("_") and name not in ("__init__", "__call__")
        inherited = name != "__init__" and any(name in vars(base) for base in libraries)
        if private or inherited:
            continue
        if isinstance(member, (classmethod, staticmethod)):
            setattr(subject, name, type(member)(_guarded(member.__func__, None)))
        elif inspect.isfunction(member):
            setattr(subject, name, _guarded(member, subject))
    return subject


def checked_constructor(kind: K) -> K:
    """The same class, whose constructor raises InputError for arguments that its annotations do not
    allow.
    """
    kind.__init__ = _guarded(kind.__init__, kind)  # type: ignore[misc]
    return kind


def named_settings(kind: K) -> K:
    """The same class, whose constructor says what it takes where a call does not fit: of a
    scikit-learn estimator, which stores its settings unchecked.
    """
    made: Any = kind.__init__  # type: ignore[misc]

    @functools.wraps(made)
    def constructed(*args: Any, **settings: Any) -> None:
        try:
            made(*args, **settings)
        except TypeError as error:
            _add_usage(error, made, inspect.signature(made), kind, settings)
            raise

    kind.__init__ = constructed  # type: ignore[misc]
    return kind


def _guarded(function: Any, owner: type | None) -> Any:
    signature = inspect.signature(function)
    if set(signature.parameters) <= {"self", "cls"}:
        return function
    # At the first call: annotations name later classes.
    resolved: _Hints | None = None

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        nonlocal resolved
        if resolved is None:
            resolved = _hints(function, owner)
        places, hints = resolved
        given = list(args)
        for place, name, hint in places:
            if place < len(args):
                given[place] = require(name, args[place], hint)
        for name, value in kwargs.items():
            if name in hints:
                kwargs[name] = require(name, value, hints[name])
        try:
            return function(*given, **kwargs)
        except TypeError as error:
            # raised by the call, not in the function
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                _add_usage(error, function, signature, owner, kwargs)
            raise

    return guarded


def _add_usage(
    error: TypeError, function: Any, signature: inspect.Signature, owner: Any, given: Any
) -> None:
    """Note what a call takes. The `_not_taken` of a class says of names that others have what to
    write instead.
    """
    error.add_note(_usage(function, signature, owner))
    not_taken: dict[str, str] = getattr(owner, "_not_taken", {})
    for name, reason in not_taken.items():
        if name in given:
            error.add_note(f"{name}: {reason}")


def _usage(function: Any, signature: inspect.Signature, owner: type | None) -> str:
    """What a call of this function takes."""
    needed: list[str] = []
    known: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls") or parameter.kind is parameter.VAR_POSITIONAL:
            continue
        name = parameter.name
        if parameter.kind is parameter.KEYWORD_ONLY:
            name += "="
        elif parameter.kind is parameter.VAR_KEYWORD:
            name = f"{name} by their names"
        (needed if parameter.default is parameter.empty else known).append(name)
    told = f"{function.__qualname__.removesuffix('.__init__')} takes"
    if needed:
        told += f" {', '.join(needed)}"
    if known:
        told += f"{', and' * bool(needed)} if you wish {', '.join(known)}"
    return f"{told}. {getattr(owner, '_remedy', '')}".rstrip()


@functools.cache
def _hints(function: Any, owner: type | None) -> _Hints:
    """The annotations of positional parameters, each with its place and name, and of all by their
    names.
    """
    parameters = inspect.signature(function).parameters.values()
    # A dataclass's constructor; its fields may come from several modules.
    generated = function.__code__.co_filename == "<string>"
    # what it returns is not checked, and may be a class of a library that is not loaded yet
    arguments = {name: hint for name, hint in function.__annotations__.items() if name != "return"}
    subject: Any = types.SimpleNamespace(
        __annotations__=arguments, __globals__=function.__globals__
    )
    hints = typing.get_type_hints(owner if generated else subject, include_extras=True)
    plain = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    named = {p.name: hints[p.name] for p in plain if hints.get(p.name, Any) is not Any}
    positional = [
        (place, p.name, named[p.name])
        for place, p in enumerate(plain)
        if p.name in named and p.kind is not p.KEYWORD_ONLY
    ]
    return positional, named


def require(name: str, value: Any, hint: Any) -> Any:
    """The value as a checked function receives it. Raises InputError where it does not have the
    type, or is outside the range.

    Where a text is allowed the error does not show the value, which may be a password.
    """
    own = _own(value, hint)
    if not _test(hint)(own):
        allowed, remedy = _allowed(own, hint)
        # what torch makes unless it is told
        if "float64" in allowed and str(getattr(own, "dtype", "")) == "torch.float32":
            remedy = f"Use {name}.double()."
        shown = Unshown(value) if str in _alternatives(hint) else value
        raise InputError(name, shown, allowed, remedy)
    return own


def require_settings(estimator: Any) -> None:
    """Checks the attributes of a scikit-learn estimator against the annotations of its constructor,
    which stores them unchecked.
    """
    owner: type = type(estimator)
    for name, hint in _hints(type(estimator).__init__, owner)[1].items():
        require(name, getattr(estimator, name), hint)


def require_json(name: str, value: Any) -> None:
    """Raises InputError unless a mapping holds JSON values only, so that the ledger can store
    it.
    """
    try:
        json.dumps(dict(value), allow_nan=False, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        raise InputError(
            name,
            value,
            "JSON values by name: words, finite numbers, lists and dicts of them",
            "Use .tolist().",
        ) from None


@contextlib.contextmanager
def named_file(name: str, path: str | os.PathLike[str], allowed: str) -> Iterator[None]:
    """What the system says of a file that the caller named, as an InputError of the argument that
    names it.
    """
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(name, str(path), f"{allowed} ({type(error).__name__})") from None


def warn(text: str, category: type[Warning]) -> None:
    """Warns at the line outside dpbo that led here, however many wrappers are in between."""
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level += 1
        frame = frame.f_back
    warnings.warn(text, category, stacklevel=level)


@functools.cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """The origin and the arguments of a generic type. typing's own functions take microseconds."""
    return typing.get_origin(hint), typing.get_args(hint)


@functools.cache
def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of a union; the one type of any other annotation."""
    origin, parts = _parts(hint)
    if isinstance(hint, TypeVar):
        return _alternatives(hint.__bound__)
    if origin is Annotated:
        return _alternatives(parts[0])
    if origin in (Union, types.UnionType):
        return tuple(itertools.chain.from_iterable(map(_alternatives, parts)))
    return (hint,)


def _own(value: Any, hint: Any) -> Any:
    """The value with numbers as Python's own and sequences as tuples, where the annotation asks for
    these; else the value itself.
    """
    if type(value) in (float, str, bool, types.NoneType, dict):
        return value
    kinds = _alternatives(hint)
    if type(value) is int:
        if int in kinds or float not in kinds:
            return value
        return _number(value, kinds)
    if isinstance(value, (numbers.Real, np.bool_)):
        if Fraction in kinds and isinstance(value, Fraction):
            return value
        return _number(value, kinds)
    if hasattr(value, "ndim"):
        takes_tables = (
            kind in (Any, object)
            or _parts(kind)[1] == (Any,)
            or hasattr(_parts(kind)[0] or kind, "ndim")
            for kind in kinds
        )
        if any(takes_tables) or not _dense(value):
            return value
        if value.ndim == 0:
            return _number(value.item(), kinds)
    sequences = _sequences(hint)
    if (
        any(map(_has_numbers, sequences))
        and getattr(value, "ndim", 0) == 1
        and hasattr(value, "tolist")
    ):
        value = tuple(value.tolist())
    if not sequences or type(value) not in (tuple, list):
        return value
    parts = itertools.chain.from_iterable(map(_elements, sequences))
    element: Any = Union[tuple(parts) or (Any,)]  # noqa: UP007
    if any(_own(part, element) is not part for part in value[:_ELEMENTS]):
        value = type(value)(_own(part, element) for part in value)
    if all(_parts(kind)[0] is tuple for kind in sequences):
        return tuple(value)
    return value


@functools.cache
def _sequences(hint: Any) -> tuple[Any, ...]:
    """The alternatives that are sequences of something."""
    return tuple(
        kind for kind in _alternatives(hint) if _parts(kind)[0] in (tuple, Sequence, Collection)
    )


@functools.cache
def _has_numbers(hint: Any) -> bool:
    """Whether the elements are numbers, or sequences of numbers."""
    return any(
        not {int, float}.isdisjoint(_alternatives(part)) or _has_numbers(part)
        for part in _elements(hint)
    )


@functools.cache
def _elements(hint: Any) -> list[Any]:
    """The types of the elements of a sequence; a function has none."""
    origin, parts = _parts(hint)
    if origin is Callable:
        return []
    return [part for part in parts if part is not ...]


def _number(value: Any, kinds: tuple[Any, ...]) -> Any:
    if isinstance(value, (bool, np.bool_)):
        if bool in kinds:
            return bool(value)
        return value
    try:
        if int in kinds and isinstance(value, numbers.Integral):
            return int(value)
        if float in kinds:
            return float(value)
        return value
    except (OverflowError, ValueError):
        return value


@functools.cache
def _test(hint: Any) -> Test:
    """A function that says whether a value has the type, and is in the range: an annotation is read
    once, and tested often.
    """
    if (test := _TESTS.get(hint)) is not None:
        return test
    origin, parts = _parts(hint)
    if isinstance(hint, TypeVar):
        return _test(object if hint.__bound__ is None else hint.__bound__)
    if origin is Annotated:
        typed = _test(parts[0])
        ranges = [within.test for within in parts[1:]]
        return lambda value: typed(value) and all(inside(value) for inside in ranges)
    if origin in (Union, types.UnionType):
        tests = list(map(_test, parts))
        return lambda value: any(test(value) for test in tests)
    kind: Any = origin or hint
    if not isinstance(kind, type) or hint is Any:
        return _test(object)
    if kind is type:
        return lambda value: (
            isinstance(value, type)
            and all(not isinstance(part, type) or issubclass(value, part) for part in parts)
        )
    if kind is Callable:
        return callable
    if kind is tuple or kind is Collection or issubclass(kind, Sequence):
        return lambda value: _is_sequence(value, kind, parts)
    if issubclass(kind, Mapping):
        key, item = map(_test, parts or (object, object))
        return lambda value: (
            isinstance(value, Mapping) and all(key(k) and item(v) for k, v in value.items())
        )
    if vars(kind).get("_is_protocol", False):
        needed = [name for name in vars(kind) if name == "__call__" or not name.startswith("_")]
        return lambda value: all(hasattr(value, name) for name in needed)
    return lambda value: isinstance(value, kind) and _dense(value)


def _is_sequence(value: Any, kind: Any, parts: tuple[Any, ...]) -> bool:
    if parts == (Any,) and getattr(value, "ndim", 0) > 0:
        # A table, whose elements are its rows.
        return _dense(value)
    if not isinstance(value, Sequence if issubclass(kind, Sequence) else Collection) or isinstance(
        value, (str, bytes, Mapping)
    ):
        return False
    if kind is tuple and parts and parts[-1] is not ...:
        return len(value) == len(parts) and all(
            _test(part)(item) for item, part in zip(value, parts, strict=True)
        )
    return not parts or all(map(_test(parts[0]), itertools.islice(value, _ELEMENTS)))


def _dense(value: Any) -> bool:
    """False for tensors that are sparse, complex or without storage; True for everything else."""
    if not hasattr(value, "layout"):
        return True
    return (
        str(value.layout) == "torch.strided"
        and not value.is_complex()
        and value.device.type != "meta"
    )


def _is_number(value: Any) -> bool:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return (
        plain and value == value and (isinstance(value, float) or abs(value) <= sys.float_info.max)
    )


_TESTS: dict[Any, Test] = {
    float: _is_number,
    int: lambda value: (
        isinstance(value, int) and not isinstance(value, bool) and -_INT <= value < _INT
    ),
    bool: lambda value: isinstance(value, bool),
    str: lambda value: (
        isinstance(value, str)
        and (value.isascii() or not any(0xD800 <= ord(letter) < 0xE000 for letter in value))
    ),
    object: lambda _: True,
    types.NoneType: lambda value: value is None,
    None: lambda value: value is None,
}
_WORDS = {
    float: "a number (an int or a float, not NaN)",
    int: "a whole number (an int)",
    bool: "True or False",
    str: "a text of valid Unicode",
    types.NoneType: "None",
    Any: "anything",
}


def _allowed(value: Any, hint: Any) -> tuple[str, str]:
    """What is allowed instead of a value that does not fit, and the remedy."""
    origin, parts = _parts(hint)
    if origin is Annotated:
        within = next(
            (one for one in parts[1:] if _test(parts[0])(value) and not one.test(value)), parts[1]
        )
        return within.allowed, within.remedy
    if origin in (Union, types.UnionType):
        told, remedies = zip(*(_allowed(value, part) for part in parts), strict=True)
        return " or ".join(dict.fromkeys(told)), "".join(remedies)
    return _words(hint), getattr(hint, "_remedy", "")


def _words(hint: Any) -> str:
    """What a type allows."""
    origin, parts = _parts(hint)
    kind = origin or hint
    if kind in _WORDS:
        return _WORDS[kind]
    if origin is Annotated:
        return str(hint.__metadata__[0].allowed)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_words, parts))
    if kind is Callable:
        return "callable"
    if kind is type and parts:
        return f"a class of {getattr(parts[0], '__name__', parts[0])}"
    if not isinstance(kind, type):
        return str(kind)
    if kind is tuple and parts and parts[-1] is not ...:
        return f"({', '.join(map(_words, parts))})"
    if issubclass(kind, Mapping):
        return "a mapping"
    if kind is tuple or issubclass(kind, Sequence):
        if parts:
            return f"a sequence of ({_words(parts[0])})"
        return "a sequence"
    if isinstance(kind, enum.EnumMeta):
        return " or ".join(f"{kind.__name__}.{member}" for member in kind.__members__)
    if kind.__name__ == "Tensor":
        return "a dense real tensor"
    known = kind.__module__.partition(".")[0] in ("builtins", "dpbo", "torch")
    # Other libraries have several classes of one name.
    name = kind.__name__ if known else f"{kind.__module__}.{kind.__name__}"
    return f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"
