"""Descriptors 1 and 2 lead nowhere for a while: what C code, subprocesses and sys.__stdout__ write past Python's sys.stdout."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator

_STANDARD = (1, 2)


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """What the whole process and the children it starts write there meanwhile is thrown away. A closed one is closed again afterwards."""
    nowhere: list[int] = []
    kept: list[tuple[int, int]] = []
    _flush()  # what was written before goes where it was meant to
    try:
        while not nowhere or nowhere[-1] <= max(_STANDARD):  # closed ones are taken by the way, else a copy would come to lie there
            nowhere.append(os.open(os.devnull, os.O_RDWR))
        for number in set(_STANDARD).difference(nowhere):
            kept.append((number, os.dup(number)))
            os.dup2(nowhere[-1], number)
        yield
    finally:
        try:
            _flush()
        finally:
            for number, copy in kept:
                os.dup2(copy, number)
            for number in (*nowhere, *(copy for _, copy in kept)):
                os.close(number)


def _flush() -> None:
    """Empties Python's and C's buffers to where the descriptors lead now."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):  # it is None, closed or broken
            stream.flush()  # type: ignore[union-attr]
    with contextlib.suppress(Exception):  # where C's library is not found like this
        ctypes.CDLL(None).fflush(None)
