"""The contract of every query: hypothesis hunts neighbours that move it further than it declares.

Subclass, give `query` and the class it `covers`, and every test below is inherited. Records are drawn with NaN, infinities, huge and tiny
numbers, in float32 and float64, with and without groups, on both adjacencies; answers are compared as exact fractions.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpbo.curator.records import PrivateView
from dpbo.privacy import Adjacency, PrivacyUnit, Sensitivity
from dpbo.queries.query import IntegerSum, Query
from dpbo.testing.distances import moved, require_within

Unit = list[list[float]]  # rows of one unit, m numbers each

_SETTINGS = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow])
_POISON = 12345.0
_NUMBERS = st.one_of(
    st.floats(-2.0, 12.0),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 1e38, -1e38, 1e-300, 0.1, 1 / 3]),
).filter(lambda number: number != _POISON)


class QueryContract(abc.ABC):
    """Inherit as a pytest class. `metrics` is the number of columns that the drawn records have."""

    covers: ClassVar[type[Query]]
    metrics: ClassVar[int] = 1
    adjacencies: ClassVar[Sequence[Adjacency]] = (Adjacency.REPLACE_ONE, Adjacency.ADD_OR_REMOVE_ONE)

    @abc.abstractmethod
    def query(self, score: Callable[[Any, Any], Any]) -> Query:
        """The query under test over this score, which returns the drawn records themselves."""

    @_SETTINGS
    @given(st.data())
    def test_neighbours_stay_within_the_declared_sensitivity(self, data: st.DataObject) -> None:
        units, dtype = self._draw(data)
        victim = data.draw(st.integers(0, len(units) - 1))
        query = self.query(_identity)
        for adjacency in self.adjacencies:
            neighbour = self._neighbour(data, units, victim, adjacency)
            if neighbour:
                public = len(units) if adjacency is Adjacency.REPLACE_ONE else None
                before, after = (self._answer(query, data_set, dtype, public) for data_set in (units, neighbour))
                _require_within(before, after, query.sensitivity(adjacency))

    @_SETTINGS
    @given(st.data())
    def test_a_record_that_breaks_the_score_is_confined_to_its_unit(self, data: st.DataObject) -> None:
        """A neighbour whose record raises moves the answer no further than any other."""
        units, dtype = self._draw(data)
        victim = data.draw(st.integers(0, len(units) - 1))
        poisoned = [*units[:victim], *units[victim + 1 :], [[_POISON] * self.metrics]]
        if len(units) > 1:
            query = self.query(_raising)
            before, after = (self._answer(query, data_set, dtype, len(units)) for data_set in (units, poisoned))
            _require_within(before, after, query.sensitivity(Adjacency.REPLACE_ONE))

    @_SETTINGS
    @given(st.data())
    def test_order_does_not_change_a_bit(self, data: st.DataObject) -> None:
        units, dtype = self._draw(data)
        records, labels = _flat(units, dtype)
        order = torch.tensor(data.draw(st.permutations(range(len(labels)))))
        query = self.query(_identity)
        straight, permuted = (_evaluated(query, records[o], labels[o.numpy()], len(units)) for o in (torch.arange(len(labels)), order))
        assert straight.numerators.tolist() == permuted.numerators.tolist()

    def _draw(self, data: st.DataObject) -> tuple[list[Unit], torch.dtype]:
        grouped = data.draw(st.booleans())
        units = data.draw(st.lists(self._unit(4 if grouped else 1), min_size=1, max_size=6))
        return units, data.draw(st.sampled_from([torch.float32, torch.float64]))

    def _unit(self, most_rows: int) -> st.SearchStrategy[Unit]:
        row = st.lists(_NUMBERS, min_size=self.metrics, max_size=self.metrics)
        return st.lists(row, min_size=1, max_size=most_rows)

    def _neighbour(self, data: st.DataObject, units: list[Unit], victim: int, adjacency: Adjacency) -> list[Unit]:
        rest = units[:victim] + units[victim + 1 :]
        return rest if adjacency is Adjacency.ADD_OR_REMOVE_ONE else [*rest, data.draw(self._unit(4))]

    def _answer(self, query: Query, units: list[Unit], dtype: torch.dtype, public_units: int | None) -> IntegerSum:
        return _evaluated(query, *_flat(units, dtype), public_units)


class SumContract(QueryContract):
    """The contract of a query whose answer is a sum over units: shards add up, and one unit alone attains the bound."""

    def test_worst_case_attains_the_sensitivity(self) -> None:
        """The bound is tight: units of one row or many at the two ends of the range differ by all of it, up to the lattice's rounding."""
        query = self.query(_identity)
        sensitivity = query.sensitivity(Adjacency.REPLACE_ONE)
        extremes = [[[[end] * self.metrics] * rows] for end in (1e30, -1e30) for rows in (1, 8)]
        answers = [self._answer(query, unit, torch.float64, 1) for unit in extremes]
        reached = max(moved(a.numerators.tolist(), b.numerators.tolist(), a.quanta, sensitivity)[1] for a in answers for b in answers)
        assert math.sqrt(reached) >= 0.999 * sensitivity.l2

    @_SETTINGS
    @given(st.data())
    def test_shards_of_units_add_up_to_the_same_bits(self, data: st.DataObject) -> None:
        units, dtype = self._draw(data)
        cut = data.draw(st.integers(0, len(units)))
        query = self.query(_identity)
        whole = self._answer(query, units, dtype, len(units))
        shards = [self._answer(query, part, dtype, len(units)).numerators for part in (units[:cut], units[cut:]) if part]
        assert whole.numerators.tolist() == torch.stack(shards).sum(0).tolist()


def _identity(_subject: Any, records: Any) -> Any:
    return records


def _raising(_subject: Any, records: Any) -> Any:
    if bool((records == _POISON).any()):
        raise RuntimeError("a record that the score cannot take")
    return records


def _flat(units: list[Unit], dtype: torch.dtype) -> tuple[torch.Tensor, np.ndarray[Any, Any]]:
    rows = [row for unit in units for row in unit]
    labels = [index for index, unit in enumerate(units) for _ in unit]
    return torch.tensor(rows, dtype=torch.float64).to(dtype), np.array(labels)


def _evaluated(query: Query, records: torch.Tensor, labels: np.ndarray[Any, Any], public_units: int | None) -> IntegerSum:
    groups = labels if len(set(labels.tolist())) < len(labels) else None  # units of one row each: no groups
    view = PrivateView.of(records, PrivacyUnit("unit", groups=groups), units_are_public=False)
    answer = query._evaluate(dataclasses.replace(view, public_units=public_units), query.prepare())
    assert isinstance(answer, IntegerSum), answer
    return answer


def _require_within(a: IntegerSum, b: IntegerSum, declared: Sensitivity) -> None:
    assert a.quanta == b.quanta, "neighbours must live on one lattice"
    require_within(a.numerators.tolist(), b.numerators.tolist(), a.quanta, declared, "the answer")
