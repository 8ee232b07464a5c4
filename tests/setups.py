"""Set-ups that tests share: a curator's terms, scores and questions, and what a ledger holds."""

import itertools
import pathlib
import types
from typing import Any

import torch

from dpbo import Budget, Curator
from dpbo.ledger.entries import ORIGIN, Record, digest, dump
from dpbo.mechanisms import GaussianMechanism, NoNoise
from dpbo.queries import ClippedMean
from dpbo.testing import SeededEntropy

ROOT = pathlib.Path(__file__).parents[1]
DOUBLE = torch.float64
TERMS: dict[str, Any] = {"unit": "record", "adjacency": "replace-one", "budget": Budget(3.0, 1e-6)}
EXACT = NoNoise(allow_not_private=True)
NOISE = GaussianMechanism(20.0)


def of(**settings):
    """Settings by name, of any type."""
    return settings


def seeded_system():
    """What takes the place of `os` and `ssl` in dpbo.entropy: the system's entropy as a fixed
    stream. `system_entropy` stays the same function, so statements are not void.
    """
    entropy = SeededEntropy(0)
    return {
        "os": types.SimpleNamespace(urandom=entropy),
        "ssl": types.SimpleNamespace(RAND_add=lambda *_: None, RAND_bytes=entropy),
    }


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


def box(dimension):
    """The bounds of the unit cube."""
    return torch.tensor([[0.0] * dimension, [1.0] * dimension], dtype=DOUBLE)


def kinds(curator):
    """The kinds of the ledger's records, in their order."""
    return [record.kind for record in curator.ledger.records()]


def following(head, kind, name, body, **columns):
    """The record that stands after `head` by the rules, whoever writes it."""
    plain = {"reservation": None, "used": 0, "answers": None, "total": "0"}
    if head is not None:
        plain["total"] = str(head.total)
    held = {"kind": kind, "name": name, **plain, "body": dump(body), **columns}
    order = ("kind", "name", "reservation", "used", "answers", "body", "total")
    row = (0 if head is None else head.seq + 1, *(held[name] for name in order))
    return Record.stored(*row, digest(ORIGIN if head is None else head.hash, *row))


def charges(ledger):
    """The bodies of a ledger's charges, in their order."""
    return [record.body for record in ledger.records() if record.kind == "charge"]


def charged(ledger):
    """The handles of all slots that a ledger charged, in their order."""
    return [slot["handle"] for charge in charges(ledger) for slot in charge["slots"]]


def stored(ledger):
    """The handles of all values that a ledger holds, in their order."""
    values = [record.body["values"] for record in ledger.records() if record.kind == "value"]
    return [value["handle"] for value in itertools.chain(*values)]


def steps_charged(ledger):
    """How many slots, or steps of training, the charges pay for."""
    return sum(charge["event"]["count"] for charge in charges(ledger))


def subclasses(kind):
    """The class and all below it."""
    return {kind}.union(*map(subclasses, kind.__subclasses__()))
