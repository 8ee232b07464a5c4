"""mpmath's precision, set for a while by one thread at a time.

mpmath has one precision for the whole process. Of two threads that set it, the first to finish
would take digits from the other, whose decisions would then not be exact. (A caller's own thread
can still set mpmath's precision meanwhile.) Functions such as expm1 set it for a moment by
themselves, so they are called within `precision`, too.
"""

import contextlib
import threading
from collections.abc import Iterator

import mpmath

_lock = threading.RLock()


@contextlib.contextmanager
def precision(bits: int) -> Iterator[None]:
    """mpmath computes with `bits` bits meanwhile. Other threads wait."""
    with _lock, mpmath.workprec(bits):
        yield
