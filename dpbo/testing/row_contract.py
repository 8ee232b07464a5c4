"""The contract of a query about single rows: a neighbour's changed row moves its own block or outcome alone, and no further than declared.

Subclass, give `query` and the class it `covers`, and every test below is inherited. Rows are drawn with NaN, infinities, huge and tiny
numbers; under BOUNDED_ROW_CHANGE the other row lies within the declared distance, in exact fractions.
"""

from __future__ import annotations

import abc
import math
from fractions import Fraction
from typing import Any, ClassVar

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpbo.curator.records import PrivateView
from dpbo.privacy import Adjacency, PrivacyUnit, RowChange
from dpbo.queries.query import IntegerSum, Query
from dpbo.testing.distances import moved, require_within

_SETTINGS = settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow])
_WILD = [math.nan, math.inf, -math.inf, 1.7e308, -1.7e308, 1e100, 5e-324, 0.0, -0.0, 0.1, 1 / 3]

Row = list[float]


class RowContract(abc.ABC):
    """Inherit as a pytest class. Records are a table `n x width` of float64."""

    covers: ClassVar[type[Query]]
    width: ClassVar[int] = 2
    row_change: ClassVar[RowChange] = RowChange(0.75, diameter=10.0)

    @abc.abstractmethod
    def query(self, row_change: RowChange | None, row: int) -> Query:
        """The query under test, about row `row` where it is about one. With `row_change`, for that relation, else for REPLACE_ONE."""

    @_SETTINGS
    @given(st.data())
    def test_any_other_row_moves_its_own_answer_alone_and_within_the_sensitivity(self, data: st.DataObject) -> None:
        rows = data.draw(st.lists(self._row(), min_size=1, max_size=5))
        changed, asked = (data.draw(st.integers(0, len(rows) - 1)) for _ in range(2))
        neighbour = [*rows[:changed], data.draw(self._row()), *rows[changed + 1 :]]
        self._compare(rows, neighbour, changed, self.query(None, asked), Adjacency.REPLACE_ONE)

    @_SETTINGS
    @given(st.data())
    def test_a_row_that_moves_in_reach_does_so_too(self, data: st.DataObject) -> None:
        rows = data.draw(st.lists(self._row(), min_size=1, max_size=5))
        changed, asked = (data.draw(st.integers(0, len(rows) - 1)) for _ in range(2))
        step = data.draw(st.lists(st.floats(-1.0, 1.0), min_size=self.width, max_size=self.width))
        length = math.hypot(*step) or 1.0
        share = data.draw(st.sampled_from([1.0, 0.5, 1e-3, 1e-12])) * self.row_change.norm / length
        other = [x + share * dx for x, dx in zip(rows[changed], step, strict=True)]
        if _in_reach(rows[changed], other, self.row_change.norm):
            neighbour = [*rows[:changed], other, *rows[changed + 1 :]]
            self._compare(rows, neighbour, changed, self.query(self.row_change, asked), Adjacency.BOUNDED_ROW_CHANGE)

    def test_the_bound_is_attained(self) -> None:
        for row_change, adjacency in ((None, Adjacency.REPLACE_ONE), (self.row_change, Adjacency.BOUNDED_ROW_CHANGE)):
            query, reached = self.query(row_change, 0), 0.0
            length = 1e9 if row_change is None else row_change.norm * (1 - 2.0**-50)
            for angle in range(720):
                x = [0.5 * length * math.cos(math.pi * angle / 720), 0.5 * length * math.sin(math.pi * angle / 720)]
                x += [0.0] * (self.width - 2)
                ends = [_answer(query, [[sign * number for number in x]]) for sign in (1, -1)]
                one, other = (end.numerators.tolist() for end in ends)
                reached = max(reached, math.sqrt(moved(one, other, ends[0].quanta, query.sensitivity(adjacency))[1]))
            assert reached >= 0.99 * query.sensitivity(adjacency).l2

    def _compare(self, rows: list[Row], neighbour: list[Row], changed: int, query: Query, adjacency: Adjacency) -> None:
        before, after = _answer(query, rows), _answer(query, neighbour)
        declared = query.sensitivity(adjacency)
        assert before.quanta == after.quanta, "neighbours must live on one lattice"
        one, other = before.numerators.tolist(), after.numerators.tolist()
        require_within(one, other, before.quanta, declared, "the answer")
        block = declared.block or len(one)
        own = {changed} if declared.block else {0} if query.part() == changed else set[int]()
        assert {i // block for i, (x, y) in enumerate(zip(one, other, strict=True)) if x != y} <= own, "another row's answer moved"

    def _row(self) -> st.SearchStrategy[Row]:
        number = st.one_of(st.floats(-8.0, 8.0), st.floats(allow_nan=True, allow_infinity=True), st.sampled_from(_WILD))
        return st.lists(number, min_size=self.width, max_size=self.width)


def _in_reach(row: Row, other: Row, norm: float) -> bool:
    if not all(map(math.isfinite, [*row, *other])):
        return False
    return sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(row, other, strict=True)) <= Fraction(norm) ** 2


def _answer(query: Query, rows: list[Row]) -> IntegerSum:
    view = PrivateView.of(torch.tensor(rows, dtype=torch.float64), PrivacyUnit("row"), units_are_public=True)
    answer: Any = query._evaluate(view, query.prepare())
    assert isinstance(answer, IntegerSum), answer
    return answer
