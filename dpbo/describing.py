"""A search in public words: what the ledger keeps, so that another search is not taken for this one."""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Mapping
from typing import Any

import numpy as np


def described_space(distributions: Mapping[str, Any]) -> dict[str, str]:
    """Each parameter's distribution or list."""
    return {name: _axis(spec) for name, spec in distributions.items()}


def described_estimator(estimator: Any) -> str:
    """Its class, and a digest of its parameters."""
    return f"{type(estimator).__name__} {_digest(_described(estimator))}"


def described_scoring(scoring: Any) -> str:
    """Its name; of the caller's own also a digest of its code, not of what that code calls."""
    if isinstance(scoring, str):
        return scoring
    return f"own {getattr(scoring, '__qualname__', type(scoring).__name__)} {_digest(_described(scoring))}"


def _axis(spec: Any) -> str:
    if hasattr(spec, "dist"):
        return f"{spec.dist.name}{tuple(map(_described, spec.args))}{_described(spec.kwds) if spec.kwds else ''}"
    if hasattr(spec, "ppf"):
        return f"{type(spec).__name__}{[f'{spec.ppf(q):.6g}' for q in (0.1, 0.3, 0.5, 0.7, 0.9)]}"
    return str([_described(value) for value in spec])


def _described(value: Any) -> str:
    """The same words in every process: no address, and no order that a process draws for itself."""
    match value:
        case np.generic():
            return repr(value.item())
        case int() | float() | str() | bool() | bytes() | None:
            return repr(value)
        case list() | tuple():
            return f"{type(value).__name__}{[_described(part) for part in value]}"
        case set() | frozenset():
            return f"{type(value).__name__}{sorted(map(_described, value))}"
        case Mapping():
            return f"{type(value).__name__}{sorted((_described(k), _described(v)) for k, v in value.items())}"
        case np.ndarray() if value.dtype.kind != "O":
            return f"array {value.dtype} {value.shape} {hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
        case np.ndarray():
            return _described(value.tolist())
        case object(get_params=_) if not isinstance(value, type):
            return f"{type(value).__qualname__} {_described(value.get_params(deep=False))}"
        case functools.partial():
            return f"partial {_described(value.func)} {_described(value.args)} {_described(value.keywords)}"
        case types.FunctionType():
            return f"{value.__module__}.{value.__qualname__} {_described(value.__code__)} {_described(value.__defaults__)}"
        case types.CodeType():
            return f"{value.co_code.hex()} {_described(value.co_consts)} {value.co_names}"
    return getattr(value, "__qualname__", type(value).__qualname__)


def _digest(words: str) -> str:
    return hashlib.sha256(words.encode()).hexdigest()[:16]
