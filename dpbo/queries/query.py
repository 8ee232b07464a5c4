"""Queries: questions about the private records, each with a proven bound on how far its answer can
move between neighbours.

A query is public and frozen. It holds functions, public numbers and handles of earlier answers,
never a private tensor. Arguments that the caller could change in place are copied when the query is
made: otherwise the noise could belong to another question than the one that was answered. Only the
curator calls `_evaluate`.
"""

from __future__ import annotations

import abc
import collections
import copy
import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from dpbo.errors import InputError
from dpbo.events import Event
from dpbo.privacy import Adjacency, RowChange
from dpbo.privacy import Sensitivity as Sensitivity

T = TypeVar("T")
# (offset, gain)
Affine = tuple[Sequence[float], float]
# a score, its first argument, and the ranges of its metrics
ScoreCall = tuple[Any, Any, Sequence[tuple[float, float]]]
# methods that tell of the question, and answer nothing
_FREE_TO_REPLACE = frozenset({"public_inputs", "fingerprint_parts"})


class View(Protocol):
    """The private records as a query's `_evaluate` sees them. A view lives inside the curator and
    its trusted workers.

    Attributes:
        records: the records as the user gave them to the curator.
        count: number of records.
        groups: unit index of each record (int64, shape `n`), or None when each record is a unit.
        rows: number of records of each unit (int64), or None when each record is a unit.
        units: number of units, private under ADD_OR_REMOVE_ONE.
        public_units: number of units where the adjacency makes it public, else None.
        shard: whether these are only some of the units, because other processes hold the rest.
        earlier: the `per_unit` values of the answers that the query names in `handles()`, in that
            order.
        device: the device that records are scored on; public.
        can_take: whether `take` can select single records.
        unfit: whether each record has a cell that the public form of its column has no value for
            (bool, on the CPU), or None where none can have one. A public cell stands in its place:
            such a record counts as the worst value, whatever is computed of it.
        one_at_a_time: whether a score gets one record at a time.

    """

    @property
    def records(self) -> Any: ...
    @property
    def count(self) -> int: ...
    @property
    def groups(self) -> Tensor | None: ...
    @property
    def rows(self) -> Tensor | None: ...
    @property
    def units(self) -> int: ...
    @property
    def public_units(self) -> int | None: ...
    @property
    def shard(self) -> bool: ...
    @property
    def earlier(self) -> Sequence[Any]: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def can_take(self) -> bool: ...
    @property
    def unfit(self) -> Tensor | None: ...
    @property
    def one_at_a_time(self) -> bool: ...
    def take(self, positions: Tensor) -> Any:
        """The records at these positions, in the records' own container."""

    def storages(self) -> frozenset[int]:
        """Data pointers of the records' tensors, to recognise a score that is a view of the
        records.
        """

    def keep(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make()` computed, kept until another key is asked for or the records change."""

    def single(self, row: int) -> View:
        """The view of one record."""


@dataclass(frozen=True, eq=False)
class IntegerSum:
    """An exact answer, private until noise is added.

    Attributes:
        numerators: int64, shape `k`; the answer is `numerators * quanta`.
        quanta: k public powers of two, each at most 2^-28 of the sensitivity, so that every noise
            has a coarser grid.
        per_unit: values of each unit, such as its losses, that later queries may use. They never
            leave the curator.
    """

    numerators: Tensor = field(repr=False)
    quanta: tuple[float, ...]
    per_unit: Any = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class Failure:
    """The evaluation failed on private records. Only the operator may see `kind`.

    `interruption` is what to raise where an interrupt or a time limit ended the evaluation.
    """

    kind: str = field(repr=False)
    interruption: BaseException | None = field(default=None, repr=False)


Outcome = IntegerSum | Failure


class Query(abc.ABC):
    """A question about the private records, with a proven bound on how far its answer can move.

    For a question of your own start from `UnitSum`: it takes a score of each record and its range,
    and makes the rest right. `ClippedMean` and `ClippedSum` take such a score as an argument. This
    class is for answers that no sum of scores gives, and its proof is yours. Implement four
    methods:

    - `sensitivity`: the bound for each adjacency. Prove it in the class's docstring, for all
      records of a unit together.
    - `_evaluate`: the exact answer. A unit's contribution must be clipped, made of whole numbers,
      and depend on its own records alone.
    - `affine`: how the published value follows from the noised sum.
    - `public_inputs`: the numbers that the user declares public.

    Every other method has a default. Under ADD_OR_REMOVE_ONE the number of units is private:
    nothing but the exact answer may depend on it. Check the result by subclassing
    `dpbo.testing.SumContract`, or `QueryContract` where the answer is no sum over units.

    `per_unit = True` declares that `_evaluate` makes one contribution of all records of a unit.
    Without it the curator refuses the query where units are groups of records, before anything is
    charged. The declaration is about code: a subclass that replaces any inherited method, except
    for abstract ones and `public_inputs`, declares it anew.

    Example::

        @dataclass(frozen=True, eq=False)
        class UnitsAbove(Query):
            "Units with a record above a threshold. One adds 0 or 1: at most 1 in every norm."

            per_unit = True
            threshold: float

            def sensitivity(self, adjacency):
                return Sensitivity(l1=1.0, l2=1.0, linf=1.0)

            def _evaluate(self, view, subject):
                above = (view.records > self.threshold).reshape(-1).long()
                if view.groups is not None:
                    units = torch.zeros(view.units, dtype=torch.int64)
                    above = units.index_add(0, view.groups, above).clamp(max=1)
                # the count itself, in fine steps
                return IntegerSum(above.sum().reshape(1) << 30, quanta=(2.0**-30,))

            def affine(self, units):
                return [0.0], 1.0

            def public_inputs(self):
                return {"threshold": self.threshold}

            def sums_over_units(self):
                return True
    """

    per_unit: ClassVar[bool] = False

    def fingerprint_parts(self) -> tuple[Any, ...]:
        """What tells this query from another of its type: its public inputs, and its fields if it
        is a data class.
        """
        return self.public_inputs(), *fields_of(self).values()

    @abc.abstractmethod
    def sensitivity(self, adjacency: Adjacency) -> Sensitivity:
        """Proven bound on the distance between the sums of two neighbours. Raises InputError for an
        adjacency it has no proof for.
        """

    @abc.abstractmethod
    def _evaluate(self, view: View, subject: Any) -> IntegerSum | Failure:
        """The exact answer on private records.

        Args:
            view: the records.
            subject: what `prepare` returned.
        """

    @abc.abstractmethod
    def affine(self, units: int | None) -> tuple[Sequence[float], float]:
        """(offset, gain): the published value is `offset + gain * sum`, and a choice compares
        these numbers. `units` is their number where it is public, else None.
        """

    @abc.abstractmethod
    def public_inputs(self) -> dict[str, Any]:
        """What the user declares public, as JSON values, for the ledger and the statement."""

    def release_event(self, event: Event, adjacency: Adjacency) -> Event:
        """The event that a release of this query is charged as, given the mechanism's."""
        return event

    def quanta(self, units: int | None) -> Sequence[float] | None:
        """Quanta of the exact answer; None where only the answer itself tells them. `units` is
        their number where it is public.
        """
        return None

    def data_assumptions(self) -> Mapping[str, str]:
        """Name -> what must hold of the data for `sensitivity` to be true. A release with any such
        assumption is conditional.
        """
        return {}

    def failure_probability(self) -> float:
        """Probability that `sensitivity` is false although the data assumptions hold. The statement
        adds up those of all releases.
        """
        return 0.0

    def needs_row_change(self) -> RowChange | None:
        """The row change that `sensitivity` assumes under BOUNDED_ROW_CHANGE; None: any."""
        return None

    def part(self) -> int | None:
        """Index of the one unit that the answer depends on; None if it depends on all. Queries of
        different parts compose in parallel.
        """
        return None

    def sums_over_units(self) -> bool:
        """Whether the answers on disjoint shards of the units add up to the answer on all, given
        the same `public_units`.
        """
        return False

    def rows_at_once(self) -> int | None:
        """How many records are asked at once where more lie in the CPU's memory as tensors; None:
        all. The answers on blocks must add up (`sums_over_units`), and no `per_unit` value is kept
        or used.
        """
        return None

    def prepare(self) -> Any:
        """Public work that comes before any private record is used, such as fitting a model.
        Returns the subject of `_evaluate`.
        """
        return None

    def try_on(self, device: torch.device) -> None:
        """Tries on public numbers what will add up the scores on this device: here its warnings are
        shown, and its errors are its own.
        """
        return None

    def probe(self, example: Any, count: int, subject: Any) -> None:
        """Tries the query on `count` public stand-in records. ScoreError if it cannot work."""
        return None

    def per_record_scores(self, subject: Any) -> Sequence[ScoreCall]:
        """(score, its first argument, the metrics' ranges) for each model or point that the user's
        score is called with on each record; the curator tests all of them on examples."""
        return ()

    def scores_one_at_a_time(self) -> bool:
        """Whether the user's code gets one record at a time where the curator says so, and sees no
        records otherwise.
        """
        return False

    def handles(self) -> Sequence[Any]:
        """Handles of earlier answers whose `per_unit` values this query uses."""
        return ()

    def require_public(self, adjacency: Adjacency) -> None:
        """Raises InputError if this adjacency needs a public number that the user did not give."""
        return None


def fields_of(query: Query) -> dict[str, Any]:
    """The fields of a query that is a data class, by name."""
    if not dataclasses.is_dataclass(query):
        return {}
    return {part.name: getattr(query, part.name) for part in dataclasses.fields(query)}


def require_per_unit(query: Query, *, grouped: bool) -> None:
    """Raises InputError where units are groups of records, and nobody declared that this query
    counts a unit's records together.
    """
    if grouped and not declares_per_unit(type(query)):
        remedy = (
            "Make it a subclass of dpbo.queries.UnitSum, or reduce each unit to one record first."
            " If its sensitivity is proven for all records of a unit together, set per_unit = True"
            " in its class."
        )
        raise InputError("query", type(query).__name__, "made for units of several records", remedy)


def declares_per_unit(kind: type[Query]) -> bool:
    """What `per_unit` says of this class: a declaration further up does not hold for a class that
    replaces code of its bases.
    """
    for place, base in enumerate(kind.__mro__):
        if "per_unit" in vars(base):
            return bool(vars(base)["per_unit"])
        inherited = kind.__mro__[place + 1 :]
        if any(_is_code(name, inherited) for name in vars(base)):
            return False
    return False


def _is_code(name: str, classes: Sequence[type]) -> bool:
    """Whether the first of the classes that has this name has code there which a subclass should
    leave as it is.
    """
    # names with two underscores are Python's and those of data classes
    if name.startswith("__") or name in _FREE_TO_REPLACE:
        return False
    found = next((vars(base)[name] for base in classes if name in vars(base)), None)
    return (callable(found) or hasattr(found, "__get__")) and not getattr(
        found, "__isabstractmethod__", False
    )


def copy_mutable(value: Any) -> Any:
    """A copy of each tensor and array, and of the lists, tuples and dicts around them. Anything
    else, such as a model, is not copied.
    """
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, np.ndarray):
        return value.copy()
    if type(value) in (list, tuple):
        return type(value)(map(copy_mutable, value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(copy_mutable, value))
    if type(value) in (dict, collections.OrderedDict):
        # with the attributes of a state_dict
        copied = copy.copy(value)
        copied.update({name: copy_mutable(part) for name, part in value.items()})
        return copied
    return value
