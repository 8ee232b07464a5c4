"""Ctrl-C on private records, told from a KeyboardInterrupt that a score raises.

Ctrl-C is a signal: it says nothing of the records and ends the program, whatever the score makes of it. An exception of the same name that
a score raises on one record would tell of that record: it is confined like every other exception.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_heard = threading.local()


@contextlib.contextmanager
def hearing_ctrl_c() -> Iterator[None]:
    """Within this `ctrl_c_came` tells whether the signal interrupted the work. That happens to the main thread alone."""
    handler = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not callable(handler):  # the signal is ignored, or ends the process without an exception
        yield
        return

    def heard(number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except BaseException:
            _heard.signal = True
            raise

    _heard.signal = False
    try:
        signal.signal(signal.SIGINT, heard)
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        _heard.signal = False


def ctrl_c_came() -> bool:
    """Whether the signal came in the `hearing_ctrl_c` that this thread is within."""
    return getattr(_heard, "signal", False)
