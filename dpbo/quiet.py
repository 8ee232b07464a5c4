"""Warnings muted in every thread of the process.

`warnings.catch_warnings` puts back the filters that it found, so of two threads the first to leave would give the second one its voice
back, and the last could leave the process mute. Filters are counted here instead: put in front by all that enter, taken out by the last
that leaves. A warning that is ignored leaves no trace in a module's registry either. (A library's own catch_warnings in one thread can
still undo the filter for another: warnings on private records reach the operator then, nobody else.)
"""

from __future__ import annotations

import collections
import contextlib
import threading
import warnings
from collections.abc import Iterator

_MARK = "(?:muted by dpbo)?"  # begins every text, and is nobody else's filter
_lock = threading.Lock()
_inside: collections.Counter[type[Warning]] = collections.Counter()


@contextlib.contextmanager
def quietly(*categories: type[Warning]) -> Iterator[None]:
    """No warning of these categories, by default none at all, is shown, raised or remembered meanwhile, in any thread."""
    for category in categories or (Warning,):
        _count(category, 1)
    try:
        yield
    finally:
        for category in categories or (Warning,):
            _count(category, -1)


def _count(category: type[Warning], change: int) -> None:
    with _lock:
        _inside[category] += change
        if change > 0:
            warnings.filterwarnings("ignore", _MARK, category)
        elif _inside[category] == 0:
            warnings.filters[:] = [f for f in warnings.filters if not (f[2] is category and _is_ours(f))]  # type: ignore[index]


def _is_ours(item: tuple[object, ...]) -> bool:
    return getattr(item[1], "pattern", None) == _MARK
