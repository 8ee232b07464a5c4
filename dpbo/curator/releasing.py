"""The parts of a release that follow from its question and mechanism alone: what it states, what it
costs, and how an answer is noised.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpbo.curator.handle import Handle
from dpbo.errors import InputError, UsageError
from dpbo.mechanisms.choice import ChoiceMechanism
from dpbo.mechanisms.mechanism import Affine, Entropy, Mechanism, NoiseDistribution
from dpbo.queries.query import IntegerSum, Query

_MOST_STEPS = 1 << 61


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


def noised(
    query: Query,
    answer: IntegerSum,
    distribution: NoiseDistribution,
    mechanism: Mechanism,
    entropy: Entropy,
    *,
    units: int | None,
) -> tuple[Any, Tensor, Tensor]:
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
    value, variance = map(torch.from_numpy, published)
    return drawn, value, variance


def require_expressible(
    query: Query,
    quanta: Sequence[float],
    distribution: NoiseDistribution,
    mechanism: Mechanism,
    units: int | None,
) -> None:
    """Refuse before the charge what could not be kept after it, or an error of a user's query would
    lose what was paid for.

    Raises:
        InputError: offsets too large for whole numbers.
        UsageError: the query's public part does not give one finite number for each of its numbers.
    """
    affine = query.affine(units)
    if isinstance(mechanism, ChoiceMechanism):
        # a choice may be among 10^8 candidates
        if any(affine[0]):
            _steps(affine, quanta)
        return
    with np.errstate(all="ignore"):
        value, variance = mechanism.publish(
            np.zeros(len(quanta), dtype=np.int64), distribution, affine
        )
    for found in (value, variance):
        if found.shape != (len(quanta),) or not np.isfinite(found).all():
            raise UsageError(
                f"affine of {type(query).__name__} must give a finite value and variance for each"
                f" of its {len(quanta)} numbers."
            )


def _with_offsets(numerators: Tensor, quanta: Sequence[float], affine: Affine) -> Tensor:
    """The utilities with their public offsets, in quanta: added here, once, after the sum over all
    parts of the records. Neighbours have the same offsets, so their utilities differ as before.
    """
    if not any(affine[0]):
        return numerators
    return numerators + torch.tensor(_steps(affine, quanta), device=numerators.device)


def _steps(affine: Affine, quanta: Sequence[float]) -> list[int]:
    """Offsets in quanta, at most 2^61: a sum is at most as much, and both together fit int64."""
    offsets, gain = affine
    steps = []
    for offset, quantum in zip(offsets, quanta, strict=True):
        unit = gain * quantum
        if not abs(offset) <= unit * _MOST_STEPS:
            allowed = f"numbers from {-unit * _MOST_STEPS:g} to {unit * _MOST_STEPS:g}"
            raise InputError("offsets", offset, allowed)
        steps.append(round(offset / unit))
    return steps
