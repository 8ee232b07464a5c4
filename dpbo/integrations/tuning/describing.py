"""A search in public words: what the ledger keeps, so that another search is not taken for this one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any


def described_space(distributions: Mapping[str, Any]) -> dict[str, str]:
    """Each parameter's distribution or list."""
    return {name: _described(spec) for name, spec in distributions.items()}


def described_estimator(estimator: Any) -> str:
    """Its class, and a digest of those of its parameters that are plain."""
    plain = {name: repr(value) for name, value in sorted(estimator.get_params(deep=True).items()) if _is_plain(value)}
    return f"{type(estimator).__name__} {hashlib.sha256(repr(plain).encode()).hexdigest()[:16]}"


def described_scoring(scoring: Any) -> str:
    """Its name, also of the caller's own."""
    return scoring if isinstance(scoring, str) else f"own {getattr(scoring, '__qualname__', type(scoring).__name__)}"


def _described(spec: Any) -> str:
    if hasattr(spec, "dist"):
        return f"{spec.dist.name}{spec.args}{spec.kwds or ''}"
    return str([value if _is_plain(value) else type(value).__name__ for value in spec])


def _is_plain(value: Any) -> bool:
    return isinstance(value, (int, float, str, bool, type(None)))
