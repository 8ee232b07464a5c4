"""Whether this code runs within a run of a private selection, which must leave no trace, and what
the run has drawn.

A module of its own: ledgers load no torch.
"""

import collections
import contextvars
from collections.abc import Callable
from typing import Any

in_hidden_run: contextvars.ContextVar[collections.Counter[Any] | None] = contextvars.ContextVar(
    "in_hidden_run", default=None
)
"""None outside hidden runs; else how many slots the run has drawn, by what gives the event of one
under an adjacency.
"""


def note_drawn(event: Callable[[Any], Any], slots: int = 1) -> None:
    """In a hidden run, count noise that is drawn for protected records: the selection's event must
    pay for it.

    Args:
        event: `event(adjacency)`; equal ones are counted together.
        slots: how often.
    """
    drawn = in_hidden_run.get()
    if drawn is not None:
        drawn[event] += slots
