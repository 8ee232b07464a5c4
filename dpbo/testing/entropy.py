"""Repeatable noise, for tests only: the statement of a curator that uses it is void."""

import hashlib
from typing import Annotated

from dpbo.validation import at_least, checked


@checked
class SeededEntropy:
    """A stream of bytes that follows from a seed, by SHAKE-256 in counter mode: `Curator(...,
    entropy=SeededEntropy(0))`.

    Call it with a number of bytes, like `os.urandom`.

    Args:
        seed: any whole number; equal seeds give equal streams.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._calls = 0

    def __call__(self, size: Annotated[int, at_least(0, 2**28)]) -> bytes:
        self._calls += 1
        return hashlib.shake_256(f"dpbo test entropy {self._seed} {self._calls}".encode()).digest(
            size
        )
