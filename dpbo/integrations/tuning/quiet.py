"""Warnings given on private records, muted in every thread that scores: they can tell of a record, as "unknown category" does.

`warnings.catch_warnings` puts back the filters that it found, so of two threads the first to leave would give the second one its voice
back, and the last could leave the process mute. One filter is counted here instead: put in front by all that enter, taken out by the last
that leaves. A warning that is ignored leaves no trace in a module's registry either.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator

_ANY = "(?:on private records)?"  # begins every text, and is nobody else's filter
_lock = threading.Lock()
_inside = 0


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """No warning is shown, raised or remembered meanwhile, in any thread."""
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def _count(change: int) -> None:
    global _inside  # the list of filters is the process's, and so is the count
    with _lock:
        _inside += change
        if change > 0:
            warnings.filterwarnings("ignore", _ANY)
        elif _inside == 0:
            warnings.filters[:] = [item for item in warnings.filters if getattr(item[1], "pattern", None) != _ANY]  # type: ignore[index]
