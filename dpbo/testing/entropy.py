"""Noise that can be repeated, for tests only: a curator that uses it says that its statement is void."""

from __future__ import annotations

import hashlib
from typing import Annotated

from dpbo.validation import at_least, checked


@checked
class SeededEntropy:
    """A stream of bytes fixed by `seed` (SHAKE-256 in counter mode). Instances are called like the system's source."""

    def __init__(self, seed: int) -> None:
        self._seed, self._calls = seed, 0

    def __call__(self, size: Annotated[int, at_least(0, 2**28)]) -> bytes:
        self._calls += 1
        return hashlib.shake_256(f"dpbo test entropy {self._seed} {self._calls}".encode()).digest(size)
