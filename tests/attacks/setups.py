"""Set-ups that attacks share: hidden runs, a training loop, and those of all tests."""

import scipy.stats
import torch
from torch import nn

from dpbo import Budget, Space
from dpbo.accounting import Planned
from dpbo.dpsgd import private_selection
from dpbo.events import SelectionEvent
from dpbo.run_counts import FixedRuns
from tests.setups import DOUBLE as DOUBLE
from tests.setups import EXACT as EXACT
from tests.setups import FIRST_MEAN as FIRST_MEAN
from tests.setups import MEAN as MEAN
from tests.setups import NOISE as NOISE
from tests.setups import TERMS as TERMS
from tests.setups import first_column as first_column
from tests.setups import itself as itself
from tests.setups import kinds as kinds
from tests.setups import of as of
from tests.setups import owner as owner
from tests.setups import point as point

RATES = Space(lr=scipy.stats.uniform(0.0, 1.0))


def owner_of_runs(records, base, runs=2, **changed):
    """A curator whose budget pays for the best of so many hidden runs, each of which spends
    `base`.
    """
    event = SelectionEvent(base=base, run_count=FixedRuns(runs))
    return owner(
        records,
        **{
            "budget": Budget(1e4, 1e-6),
            "allow_repeated": True,
            "accounting": Planned([event]),
            **changed,
        },
    )


def best_run(curator, train, base, runs=2, space=RATES):
    return private_selection(curator, train, space=space, run_count=FixedRuns(runs), base=base)


def fit(module, optimizer, loader, loss=nn.functional.cross_entropy):
    """One pass of training over batches of records and labels."""
    for rows, labels in loader:
        optimizer.zero_grad()
        loss(module(rows), labels).backward()
        optimizer.step()
    return module


def right(model, records):
    """Whether each label is the one that the model finds likeliest."""
    with torch.no_grad():
        return model(records[0]).argmax(1) == records[1]
