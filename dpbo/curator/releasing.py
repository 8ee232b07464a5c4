"""The parts of a release that follow from its question and mechanism alone: what it states, what it
costs, and how an answer is noised.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dpbo.curator.handle import Handle
from dpbo.errors import UsageError
from dpbo.events import Event
from dpbo.mechanisms.choice import ChoiceMechanism
from dpbo.mechanisms.mechanism import Affine, Entropy, Mechanism, NoiseDistribution
from dpbo.privacy import Adjacency
from dpbo.queries.query import IntegerSum, Query


def conditions_of(query: Query) -> dict[str, str]:
    """The data assumptions of a query.

    One that may fail without any has that its declared sensitivity holds.
    """
    named = dict(query.data_assumptions())
    if query.failure_probability() and not named:
        named["declared-sensitivity"] = (
            "the sensitivity that the query declares is true, except with the probability that it"
            " states"
        )
    return named


def terms_of(query: Query) -> dict[str, Any]:
    """What a reservation for this question states."""
    stated = {
        "assumptions": conditions_of(query),
        "failure_probability": query.failure_probability(),
    }
    return {**query.public_inputs(), **{name: value for name, value in stated.items() if value}}


def slot_of(handle: Handle, query: Query) -> dict[str, Any]:
    """What the ledger keeps of a handle that is charged."""
    slot = {
        "handle": handle.id,
        "query": type(query).__name__,
        "public": query.public_inputs(),
        "details": handle.details,
        "part": query.part(),
        "assumptions": conditions_of(query) or None,
        "failure_probability": query.failure_probability() or None,
    }
    return {name: value for name, value in slot.items() if value is not None}


def event_of(queries: Sequence[Query], mechanism: Mechanism, adjacency: Adjacency) -> Event:
    """What the joint release costs. Raises UsageError if its questions are charged differently."""
    plain = mechanism.event(len(queries))
    first, *others = [query.release_event(plain, adjacency) for query in queries]
    if any(event != first for event in others):
        raise UsageError(
            "the handles must be charged alike: release sampled and other questions separately."
        )
    return first


def noised(
    query: Query,
    answer: IntegerSum,
    distribution: NoiseDistribution,
    mechanism: Mechanism,
    entropy: Entropy,
    *,
    units: int | None,
) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """What was drawn, the value that it stands for, and the value's variance.

    Whatever the caller has set for devices and numpy's errors: an error now would lose what was
    charged, and one of underflow, or a warning, would tell of records.
    """
    with torch.device("cpu"), np.errstate(all="ignore"):
        affine = query.affine(units)
        numerators = answer.numerators
        if isinstance(mechanism, ChoiceMechanism):
            numerators = _with_offsets(numerators, answer.quanta, affine)
        drawn = mechanism._sample(numerators, answer.quanta, distribution, entropy)
        published = mechanism.publish(drawn, distribution, affine)
        sampled = np.asarray(query.sampling_variance(units), dtype=np.float64)
    value, variance = map(torch.from_numpy, published)
    return drawn, value, variance + torch.from_numpy(sampled)


def _with_offsets(
    numerators: torch.Tensor, quanta: Sequence[float], affine: Affine
) -> torch.Tensor:
    """The utilities with their public offsets, in quanta: added here, once, after the sum over all
    parts of the records. Neighbours have the same offsets, so their utilities differ as before.
    """
    offsets, gain = affine
    if not any(offsets):
        return numerators
    # A sum is at most 2^61 quanta; with as much again it stays in int64.
    most = 1 << 61
    steps = [
        min(max(round(offset / (gain * quantum)), -most), most)
        for offset, quantum in zip(offsets, quanta, strict=True)
    ]
    return numerators + torch.tensor(steps, device=numerators.device)
