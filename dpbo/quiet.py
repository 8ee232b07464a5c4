"""Warnings muted in every thread of the process.

`warnings.catch_warnings` puts back the filters that it found, so of two threads the first to leave would give the second one its voice
back, and the last could leave the process mute. Those inside are known here: filters are put in front by all that enter, taken out by the
last that leaves. A warning that is ignored leaves no trace in a module's registry either. (A library's own catch_warnings in one thread can
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
_inside: collections.defaultdict[type[Warning], set[object]] = collections.defaultdict(set)


@contextlib.contextmanager
def quietly(*categories: type[Warning]) -> Iterator[None]:
    """No warning of these categories, by default none at all, is shown, raised or remembered meanwhile, in any thread."""
    own = object()
    try:
        for category in categories or (Warning,):
            _enter(category, own)
        yield
    finally:
        for category in categories or (Warning,):
            _leave(category, own)


def _enter(category: type[Warning], who: object) -> None:
    with _lock:
        _inside[category].add(who)
        warnings.filterwarnings("ignore", _MARK, category)


def _leave(category: type[Warning], who: object) -> None:
    """Also where an interrupt came before it had entered, or had done so wholly."""
    with _lock:
        _inside[category].discard(who)
        if not _inside[category]:
            warnings.filters[:] = [f for f in warnings.filters if not (f[2] is category and _is_ours(f))]  # type: ignore[index]


def _is_ours(item: tuple[object, ...]) -> bool:
    return getattr(item[1], "pattern", None) == _MARK
