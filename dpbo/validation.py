"""Arguments are checked against their annotations: the signature says what is allowed, and a wrong argument gets an InputError.

    @checked
    def chain(count: Count) -> Tensor: ...          chain("5") and chain(0) are refused by name, before the body runs

`checked` takes a function or a class, of which it wraps `__init__`, `__call__` and the public methods, but for its `_hooks`, which dpbo
calls, with what it has checked. Overrides of another library's methods keep that library's manners. A wrong number of arguments,
or an unknown name, is Python's own TypeError. Where a text is asked for, what was given is not shown: it may be a password.
Beside the type: a number is not NaN and fits 64 bits, a tensor is dense and real, a text is valid Unicode. `Within` adds a range.
Numbers of other libraries (np.int64, np.float32, Fraction) reach the body as Python's own, alone or in a tuple or list of numbers, and a
vector as a tuple where a sequence is asked for; so does the number of an array or a tensor without a dimension.
No element of a tensor is looked at unless a range asks for it, and few of a long sequence.
"""

from __future__ import annotations

import enum
import functools
import inspect
import itertools
import json
import math
import numbers
import sys
import types
import typing
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, TypeVar, Union

import numpy as np

from dpbo.errors import InputError, Unshown

S = TypeVar("S")
_ELEMENTS = 256  # of a sequence are looked at; longer ones are checked where they are used
_INT = 2**63
_PACKAGE = __file__.rpartition("/")[0] + "/"
_OWN = (int, float, bool, str, types.NoneType)


@dataclass(frozen=True)
class Within:
    """A range beside a type, in words and as a test of a value that has the type."""

    allowed: str
    test: Callable[[Any], bool]
    remedy: str = ""


def at_least(least: int, most: int = 2**31) -> Within:
    """Of a whole number."""
    return Within(f"a whole number from {least} to {most}", lambda value: least <= value <= most)


Finite = Annotated[float, Within("a finite number", lambda value: math.isfinite(value))]
Positive = Annotated[float, Within("a finite number above 0", lambda value: 0.0 < value < math.inf)]
NotNegative = Annotated[float, Within("a finite number of at least 0", lambda value: 0.0 <= value < math.inf)]
Probability = Annotated[float, Within("in (0, 1)", lambda value: 0.0 < value < 1.0)]
Delta = Annotated[float, Within("in [0, 1)", lambda value: 0.0 <= value < 1.0)]
Count = Annotated[int, at_least(1)]
Index = Annotated[int, at_least(0)]
Seed = Annotated[int, at_least(0, 2**63 - 1)]
Name = Annotated[str, Within("a word of 1 to 200 letters", lambda value: 0 < len(value) <= 200)]


def points(value: Any) -> bool:
    """Whether a tensor is `q x d`, q and d at least 1, float64 and finite."""
    return value.ndim == 2 and 0 not in value.shape and str(value.dtype) == "torch.float64" and bool(value.isfinite().all())


_TO_TENSOR = "Use torch.as_tensor(X, dtype=torch.float64)"
POINTS = Within("a float64 tensor, finite, of shape q x d", points, f"{_TO_TENSOR}, and X.unsqueeze(0) for one point.")
FINITE = Within("finite numbers", lambda value: bool(value.isfinite().all()))
FLOATS = Within(
    "a tensor of a floating-point dtype, finite",
    lambda value: value.is_floating_point() and bool(value.isfinite().all()),
    f"{_TO_TENSOR}.",
)


def checked(subject: S) -> S:
    """The same function or class, which refuses what its annotations do not allow."""
    if not isinstance(subject, type):
        return _guarded(subject)
    hooks = frozenset[str]().union(*(vars(base).get("_hooks", ()) for base in subject.__mro__))
    for name, member in list(vars(subject).items()):
        if (name.startswith("_") and name not in ("__init__", "__call__")) or name in hooks or _foreign(subject, name):
            continue
        if isinstance(member, (classmethod, staticmethod)):
            setattr(subject, name, type(member)(_guarded(member.__func__)))
        elif inspect.isfunction(member):
            setattr(subject, name, _guarded(member, subject))
    return subject


def _foreign(owner: type, name: str) -> bool:
    """Whether another library calls this method by its own rules."""
    outside = (base for base in owner.__mro__[1:] if base is not object and not base.__module__.startswith("dpbo."))
    return name != "__init__" and any(name in vars(base) for base in outside)


def _guarded(function: Any, owner: type | None = None) -> Any:
    if set(inspect.signature(function).parameters) <= {"self", "cls"}:
        return function

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        names, hints = _hints(function, owner)
        given = list(args)
        try:
            for place, (name, value) in enumerate(zip(names, args, strict=False)):
                if (hint := hints.get(name)) is not None:
                    given[place] = _accepted(name, value, hint)
            for name, value in kwargs.items():
                if (hint := hints.get(name)) is not None:
                    kwargs[name] = _accepted(name, value, hint)
        except InputError as refused:
            if (tell := getattr(args[0] if args else None, "_tell_ranks", None)) is not None:
                tell(function.__name__, kwargs, refused)
            raise
        return function(*given, **kwargs)

    return guarded


def _accepted(name: str, value: Any, hint: Any) -> Any:
    """The value as the body gets it. Raises InputError."""
    own = value if type(value) in _OWN else _own(value, hint)
    if (told := _refusal(own, hint)) is not None:
        raise InputError(name, Unshown(value) if str in _asked(hint) else value, *told)
    return own


def warn(text: str, category: type[Warning]) -> None:
    """Warns at the line outside dpbo that led here, however many wrappers are in between."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


def _own(value: Any, hint: Any) -> Any:
    """A number of another library as Python's own where a number is asked for, also those of a tuple or list; else the value itself."""
    if type(value) in _OWN:
        return value
    asked = _asked(hint)
    if isinstance(value, (numbers.Real, np.bool_)):
        return value if Fraction in asked and isinstance(value, Fraction) else _number(value, asked)
    if getattr(value, "ndim", None) == 0 and not any(_is_table(part) for part in asked) and _dense(value):
        return _number(value.item(), asked)
    elements = [part for part in asked if _parts(part)[0] in (tuple, Sequence, Collection) and _of_numbers(part)]
    if not elements:
        return value
    if getattr(value, "ndim", 0) == 1 and hasattr(value, "tolist") and _dense(value) and not any(_is_table(part) for part in asked):
        return tuple(value.tolist())  # a vector for a sequence of numbers
    if type(value) not in (tuple, list) or all(type(part) in _OWN for part in value[:_ELEMENTS]):
        return value
    within = tuple(part for of in elements for part in _parts(of)[1] if part is not ...)
    return type(value)(_own(part, Union[within]) for part in value) if within else value  # noqa: UP007


def _is_table(hint: Any) -> bool:
    """Whether an array or a tensor is taken as it is."""
    return hint in (Any, object) or _parts(hint)[1] == (Any,) or hasattr(_parts(hint)[0] or hint, "ndim")


@functools.cache
def _of_numbers(hint: Any) -> bool:
    """Whether numbers are asked for somewhere inside."""
    return any(not {int, float}.isdisjoint(_asked(part)) or _of_numbers(part) for part in _parts(hint)[1] if part is not ...)


def _number(value: Any, asked: tuple[Any, ...]) -> Any:
    if isinstance(value, (bool, np.bool_)):
        return bool(value) if bool in asked else value
    try:
        if int in asked and isinstance(value, numbers.Integral):
            return int(value)
        return float(value) if float in asked else value
    except (OverflowError, ValueError):
        return value


@functools.cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """What a generic is made of: typing's own answer takes microseconds."""
    return typing.get_origin(hint), typing.get_args(hint)


@functools.cache
def _asked(hint: Any) -> tuple[Any, ...]:
    """The types of which one is asked for."""
    if isinstance(hint, TypeVar):
        return _asked(hint.__bound__)
    if _parts(hint)[0] is Annotated:
        return _asked(_parts(hint)[1][0])
    if _parts(hint)[0] in (Union, types.UnionType):
        return tuple(kind for part in _parts(hint)[1] for kind in _asked(part))
    return (hint,)


@functools.cache
def _hints(function: Any, owner: type | None) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Names of the positional arguments, and what is asked of each argument."""
    parameters = inspect.signature(function).parameters.values()
    generated = function.__code__.co_filename == "<string>"  # a dataclass writes its constructor, from fields of several modules perhaps
    hints = typing.get_type_hints(owner if generated else function, include_extras=True)
    plain = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    positional = tuple(p.name for p in plain if p.kind is not p.KEYWORD_ONLY)
    return positional, {p.name: hints[p.name] for p in plain if hints.get(p.name, Any) is not Any}


def require(name: str, value: Any, hint: Any) -> None:
    """Raises InputError where `value` does not have the type, or is not within the range."""
    told = _refusal(value, hint)
    if told is not None:
        raise InputError(name, value, *told)


def require_settings(estimator: Any) -> None:
    """The same for what a constructor kept without looking, as scikit-learn's do."""
    for name, hint in _hints(type(estimator).__init__, None)[1].items():
        require(name, _own(getattr(estimator, name), hint), hint)


def require_json(name: str, value: Any) -> None:
    """Raises InputError unless a mapping is of JSON values: it is to be kept in the ledger."""
    try:
        json.dumps(dict(value), allow_nan=False, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        raise InputError(name, value, "JSON values by name: words, finite numbers, lists and dicts of them", "Use .tolist().") from None


def _refusal(value: Any, hint: Any) -> tuple[str, str] | None:
    """(what is allowed, remedy), or None where the value is."""
    if (kind := _KINDS.get(hint)) is not None and kind(value):
        return None
    if _parts(hint)[0] is Annotated:
        base, *ranges = _parts(hint)[1]
        if not _fits(value, base):
            return ranges[0].allowed, ranges[0].remedy
        return next(((within.allowed, within.remedy) for within in ranges if not within.test(value)), None)
    if _parts(hint)[0] in (Union, types.UnionType):
        refusals = [_refusal(value, part) for part in _parts(hint)[1]]
        return None if None in refusals else (" or ".join(dict.fromkeys(r[0] for r in refusals if r)), "".join(r[1] for r in refusals if r))
    return None if _fits(value, hint) else (_words(hint), getattr(hint, "_remedy", ""))


def _fits(value: Any, hint: Any) -> bool:
    hint = hint.__bound__ or Any if isinstance(hint, TypeVar) else hint
    origin, parts = _parts(hint)
    if origin in (Annotated, Union, types.UnionType):
        return _refusal(value, hint) is None
    kind: Any = origin or hint
    if hint is not Any and isinstance(kind, type):
        if kind in _KINDS:
            return _KINDS[kind](value)
        if kind is type:
            return isinstance(value, type) and all(not isinstance(part, type) or issubclass(value, part) for part in parts)
        if kind is tuple or kind is Collection or issubclass(kind, Sequence):
            return _sequence(value, parts, Sequence if issubclass(kind, Sequence) else Collection, fixed=kind is tuple)
        if issubclass(kind, Mapping):
            return isinstance(value, Mapping) and (not parts or all(_fits(k, parts[0]) and _fits(v, parts[1]) for k, v in value.items()))
        if kind is Callable:
            return callable(value)
        if vars(kind).get("_is_protocol", False):
            return all(hasattr(value, name) for name in vars(kind) if name == "__call__" or not name.startswith("_"))
        return isinstance(value, kind) and _dense(value)
    return hint is not None or value is None


def _sequence(value: Any, parts: tuple[Any, ...], kind: Any, *, fixed: bool) -> bool:
    if parts == (Any,) and getattr(value, "ndim", 0) > 0:
        return _dense(value)  # a table, of which each row is an element
    if not isinstance(value, kind) or isinstance(value, (str, bytes, Mapping)):
        return False
    if fixed and parts and parts[-1] is not ...:
        return len(value) == len(parts) and all(map(_fits, value, parts))
    return not parts or all(_fits(part, parts[0]) for part in itertools.islice(value, _ELEMENTS))


def _dense(value: Any) -> bool:
    """Whether it is no tensor, or one of real numbers that all are stored."""
    if not hasattr(value, "layout"):
        return True
    return str(value.layout) == "torch.strided" and not value.is_complex() and value.device.type != "meta"


def _real(value: Any) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return not math.isnan(float(value))
    except OverflowError:
        return False


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_INT <= value < _INT


def _text(value: Any) -> bool:
    return isinstance(value, str) and (value.isascii() or not any(0xD800 <= ord(letter) < 0xE000 for letter in value))


_KINDS: dict[Any, Callable[[Any], bool]] = {
    float: _real,
    int: _whole,
    bool: lambda value: isinstance(value, bool),
    str: _text,
    object: lambda _: True,
    types.NoneType: lambda value: value is None,
}
_WORDS = {
    float: "a number (an int or a float, not NaN)",
    int: "a whole number (an int)",
    bool: "True or False",
    str: "a text of valid Unicode",
    types.NoneType: "None",
}


def _words(hint: Any) -> str:
    origin, parts = _parts(hint)
    if origin is Annotated:
        return parts[0] if isinstance(parts[0], str) else hint.__metadata__[0].allowed
    if origin in (Union, types.UnionType):
        return " or ".join(map(_words, parts))
    kind = origin or hint
    if hint is Any:
        return "anything"
    if kind is tuple and parts and parts[-1] is not ...:
        return f"({', '.join(map(_words, parts))})"
    if isinstance(kind, type) and kind not in (tuple, type) and issubclass(kind, Mapping):
        return "a mapping"
    if kind is tuple or (isinstance(kind, type) and issubclass(kind, Sequence) and kind not in _WORDS):
        return f"a sequence of ({_words(parts[0])})" if parts else "a sequence"
    if kind is Callable or getattr(kind, "__name__", "") == "Callable":
        return "callable"
    if getattr(kind, "__name__", "") == "Tensor":
        return "a dense real tensor"
    if kind is type and parts:
        return f"a class of {getattr(parts[0], '__name__', parts[0])}"
    if isinstance(kind, enum.EnumMeta):
        return " or ".join(f"{kind.__name__}.{member}" for member in kind.__members__)
    return _WORDS.get(kind, f"{'an' if kind.__name__[0] in 'AEIO' else 'a'} {kind.__name__}") if isinstance(kind, type) else str(kind)
