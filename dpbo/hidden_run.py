"""Whether this code runs within a run of a private selection, which must leave no trace, and what
the run has drawn.

A module of its own: ledgers load no torch.
"""

import collections
import contextvars
from typing import Any

in_hidden_run: contextvars.ContextVar[collections.Counter[Any] | None] = contextvars.ContextVar(
    "in_hidden_run", default=None
)
"""None outside hidden runs; else how often the run has drawn what."""


def note_drawn(what: Any) -> None:
    """In a hidden run, count noise that is drawn for protected records: the selection's event must
    pay for it.

    Args:
        what: a `birth.Drawn` of a ledger's; or, of a training whose records no ledger knows,
            `what(adjacency)`, which gives the event. Equal ones are counted together.
    """
    drawn = in_hidden_run.get()
    if drawn is not None:
        drawn[what] += 1
