"""What a ledger says where releases follow one another as they finish.

Where several workers, threads or processes each release when they are done, the order of their values, and every point that is proposed
from some values and not yet from others, follow from how long the scores took.
"""

from __future__ import annotations

from dpbo.curator.curator import Curator


def assume_durations_tell_nothing(curator: Curator) -> None:
    """Noted once, for every later statement; by all ranks together."""
    curator._books.note("assume", "durations-tell-nothing")
