"""Whether this code runs within a run of a private selection, which must leave no trace.

A module of its own: ledgers load no torch.
"""

import contextvars

in_hidden_run = contextvars.ContextVar("in_hidden_run", default=False)
