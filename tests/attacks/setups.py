"""Set-ups that attacks share: a curator's terms, a question, hidden runs, a training loop, and what
a ledger holds.
"""

from typing import Any

import scipy.stats
import torch
from torch import nn

from dpbo import Budget, Curator, Space
from dpbo.accounting import Planned
from dpbo.dpsgd import private_selection
from dpbo.events import SelectionEvent
from dpbo.mechanisms import GaussianMechanism, NoNoise
from dpbo.queries import ClippedMean
from dpbo.run_counts import FixedRuns

DOUBLE = torch.float64
TERMS: dict[str, Any] = {"unit": "record", "adjacency": "replace-one", "budget": Budget(3.0, 1e-6)}
RATES = Space(lr=scipy.stats.uniform(0.0, 1.0))
EXACT = NoNoise(allow_not_private=True)
NOISE = GaussianMechanism(20.0)


def of(**settings):
    """Settings by name, of any type."""
    return settings


def first_column(_, records):
    return records[:, 0]


def itself(_, records):
    return records


FIRST_MEAN = ClippedMean(first_column, score_range=(0.0, 1.0))
MEAN = ClippedMean(itself, score_range=(0.0, 1.0))


def owner(records, **changed):
    """A curator of records of which one may be replaced."""
    return Curator(records, **{**TERMS, **changed})


def point(*coordinates):
    """One row of coordinates, as an objective takes them."""
    return torch.tensor([coordinates], dtype=DOUBLE)


def kinds(curator):
    """The kinds of the ledger's records, in their order."""
    return [record.kind for record in curator.ledger.records()]


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
