"""A query: what is asked of the private records, with a proven bound on how far the answer can move.

It is public and frozen: a callable, public numbers, opaque handles; never a private tensor. What its caller could alter in place it copies
when it is made (copies.py), so noise is always for the question that was answered. `ClippedMean` asks for an average score,
`ClippedSum` for a total. Only the curator calls `_evaluate`, and gets exact integers back.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
import torch

from dpbo.events import Event
from dpbo.privacy import Adjacency, RowChange, Sensitivity
from dpbo.validation import checked

# ========== MERGED A question keeps what it was asked with: altered in place between evaluation and release, a list of the caller's would
# give the exact
# answer of one question the noise of another.
#


def own(value: Any) -> Any:
    """A copy of every tensor and array, and of the lists, tuples and dicts around them; anything else, such as a model, is itself."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, np.ndarray):
        return value.copy()
    if type(value) in (list, tuple):
        return type(value)(map(own, value))
    if type(value) is dict:
        return {name: own(part) for name, part in value.items()}
    return value


class View(Protocol):
    """The private side as a query's `_evaluate` sees it. It lives inside the curator and inside its trusted workers.

    Attributes:
        records: whatever the user handed to the curator.
        count: number of records.
        groups: unit index of each record (int64, shape `n`), or None when each record is a unit.
        rows: number of records of each unit (int64), or None when each record is a unit.
        units: number of units, private under ADD_OR_REMOVE_ONE.
        public_units: number of units where the adjacency makes it public (all but ADD_OR_REMOVE_ONE), else None.
        shard: whether there are further units, with other processes or outside a sample, so that what fails on all here may still be few.
        kept: what each of the question's `handles()` left with the curator, in that order.
        device: where the records are, or the CPU; public.
        can_take: whether `take(positions)` can pick single records.
        storages: where the records' tensors lie in memory; a score that writes there is found by their versions.
        only: the view of one record alone.
        sampled: a fresh sample of the units, each taken by itself with probability `rate`; `public_units` stays that of all.
    """

    @property
    def records(self) -> Any: ...
    @property
    def count(self) -> int: ...
    @property
    def groups(self) -> torch.Tensor | None: ...
    @property
    def rows(self) -> torch.Tensor | None: ...
    @property
    def units(self) -> int: ...
    @property
    def public_units(self) -> int | None: ...
    @property
    def shard(self) -> bool: ...
    @property
    def kept(self) -> Sequence[Any]: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def can_take(self) -> bool: ...
    def take(self, positions: torch.Tensor) -> Any: ...
    def storages(self) -> frozenset[int]: ...
    def sampled(self, rate: float) -> View: ...
    def only(self, row: int) -> View: ...


@dataclass(frozen=True, eq=False)
class IntegerSum:
    """An exact answer: `numerators * quanta`, with int64 numerators on any device and public power-of-two quanta. Private until noised.

    `kept` stays with the curator for later questions and never leaves it.
    """

    numerators: torch.Tensor = field(repr=False)
    quanta: tuple[float, ...]
    kept: Any = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class Failure:
    """The evaluation failed on private records; `kind` is for the operator alone."""

    kind: str = field(repr=False)


@checked
class Query(abc.ABC):
    """One question. Subclasses clip their own input and prove `sensitivity` in their docstring."""

    _hooks: ClassVar[frozenset[str]] = frozenset({
        "affine", "charged", "chunk", "lattices", "moves", "probe", "quanta", "require_public", "resolution", "scale", "sensitivity",
        "squared", "summed", "variance_within",
    })  # fmt: skip

    @abc.abstractmethod
    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        """Proven bound on the movement of the released sum between neighbours."""

    @abc.abstractmethod
    def _evaluate(self, view: View, subject: Any) -> IntegerSum | Failure:
        """The exact answer; `subject` is what `prepare` returned."""

    @abc.abstractmethod
    def affine(self, units: int | None) -> tuple[Sequence[float], float]:
        """(offset, gain): the published value is offset + gain * released sum. Public post-processing."""

    @abc.abstractmethod
    def public_inputs(self) -> dict[str, Any]:
        """The numbers this query takes on trust from its user, as JSON values, for the ledger and the statement."""

    def scale(self, adjacency: Adjacency) -> Sensitivity:
        """What a noise multiplier multiplies: the sensitivity, except where the event counts otherwise."""
        return self.sensitivity(adjacency)

    def charged(self, event: Event, adjacency: Adjacency) -> Event:
        """The event of this question's release, given the mechanism's own."""
        return event

    def variance_within(self, units: int | None) -> Sequence[float] | float:
        """Public bound on the variance that the published value has before any noise, as from sampling."""
        return 0.0

    def data_assumptions(self) -> Mapping[str, str]:
        """Name -> what must hold of the data for `sensitivity` to be true. With any, the release is conditional."""
        return {}

    def failure_probability(self) -> float:
        """How likely `sensitivity` is false even under the data assumptions; the statement adds up those of all releases."""
        return 0.0

    def needs_row_change(self) -> RowChange | None:
        """For which BOUNDED_ROW_CHANGE alone `sensitivity` holds; None where a record may change at will."""
        return None

    def part(self) -> int | None:
        """The one unit on whose record alone the answer depends; None where it depends on all. For parallel plans."""
        return None

    def adds_up(self) -> bool:
        """Whether the answer over all units is the sum of those over disjoint shards of them, given the same `public_units`."""
        return False

    def prepare(self) -> Any:
        """The public part of the work (fitting a model), done before any private record is touched."""
        return None

    def probe(self, example: Any, count: int, subject: Any) -> None:
        """Try the question on `count` public stand-in records; raises ScoreError where it cannot work."""
        return None

    def scored(self, subject: Any) -> tuple[Any, Any, Sequence[tuple[float, float]]] | None:
        """(score, what it scores, ranges of its metrics) where the caller's own score is asked for each record, which examples can test."""
        return None

    def handles(self) -> Sequence[Any]:
        """Handles of earlier answers that this question builds on."""
        return ()

    def require_public(self, adjacency: Adjacency) -> None:
        """Raises InputError where this relation needs a public number that was not given."""
        return None
