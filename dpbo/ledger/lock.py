"""A lock that a forked process does not wait for."""

import os
import threading
from typing import Any

from dpbo.errors import LedgerUnavailable


class ProcessLock:
    """A lock that the thread which holds it may take again. In a process that was forked from the
    one that made it, a thread may hold it that is not there, so taking it raises LedgerUnavailable.
    """

    def __init__(self) -> None:
        self._home = os.getpid()
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if os.getpid() != self._home:
            raise LedgerUnavailable(
                "this ledger was opened by another process, from which this one was forked. Open it"
                " again here."
            )
        self._lock.acquire()

    def __exit__(self, *_: Any) -> None:
        self._lock.release()
