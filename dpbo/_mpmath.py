"""Blocks of many digits, for one thread at a time.

mpmath has one precision for the whole process. Of two threads, each in a block of its own, the first to leave would take digits from the
other, and what is decided there would not be exact. (A caller's own thread that sets mpmath's precision meanwhile does so still.)
Some functions, such as expm1, set it for a moment by themselves, so they are called in a block, too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import mpmath

_turn = threading.RLock()


@contextlib.contextmanager
def precision(bits: int) -> Iterator[None]:
    """mpmath computes with so many bits meanwhile."""
    with _turn, mpmath.workprec(bits):
        yield
