"""Whether this code runs within a run of a private selection, which must leave no trace, and which
trainings the run may still begin.

A module of its own: ledgers load no torch.
"""

import contextvars
from typing import Any

in_hidden_run: contextvars.ContextVar[list[Any] | None] = contextvars.ContextVar(
    "in_hidden_run", default=None
)
"""None outside hidden runs; else, for each training that the selection's `base` names and that no
`Session` of this run has begun, the configurations that it may take.
"""
