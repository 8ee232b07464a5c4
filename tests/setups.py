"""Set-ups that tests share: a curator's terms, scores and questions, and what a ledger holds."""

import pathlib
from typing import Any

import torch

from dpbo import Budget, Curator
from dpbo.mechanisms import GaussianMechanism, NoNoise
from dpbo.queries import ClippedMean

ROOT = pathlib.Path(__file__).parents[1]
DOUBLE = torch.float64
TERMS: dict[str, Any] = {"unit": "record", "adjacency": "replace-one", "budget": Budget(3.0, 1e-6)}
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
