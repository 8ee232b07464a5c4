"""Contracts of queries: pytest classes whose tests search for neighbours that move an answer
further than the query declares.

Subclass `SumContract` (or `QueryContract`, where the answer is not a sum over units; `RowContract`,
where it is about single rows), give `query` and the class it `covers`, and every test below is
inherited. Hypothesis draws records with NaN, infinities, huge and tiny numbers, in float32 and
float64, with and without groups, under both adjacencies; other tests try units of every size, and
many units. Answers are compared as exact fractions. Units of several records are tried where the
query declares `per_unit`: the curator refuses others there.
"""

import abc
import dataclasses
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import torch

from dpbo.extras import needs
from dpbo.privacy import Adjacency, PrivacyUnit, RowChange, Sensitivity
from dpbo.queries.query import IntegerSum, Query, declares_per_unit
from dpbo.records.view import PrivateView

with needs("testing"):
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

Row = list[float]
# the records of one unit, m numbers each
Unit = list[Row]
Distances = tuple[Fraction, Fraction, Fraction]

# `scale` and the norms are floats; the mechanisms' own rounding covers 2^-48
_SLACK = 1 + Fraction(1, 2**50)
_SETTINGS = settings(
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)
_ROW_SETTINGS = settings(_SETTINGS, max_examples=200)
# numbers of records of one unit, and of units
_SIZES = (*range(1, 41), 63, 64, 65, 100, 128, 400, 1025)
_COUNTS = (1, 2, 3, 33, 1001)
_ENDS = (-1e30, 1e30, math.nan)
# a record on which the score raises an exception
_RAISES = 12345.0
_NUMBERS = st.one_of(
    st.floats(-2.0, 12.0),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from(
        [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 1e38, -1e38, 1e-300, 0.1, 1 / 3]
    ),
).filter(lambda number: number != _RAISES)
_ROW_NUMBERS = st.one_of(
    st.floats(-8.0, 8.0),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from(
        [math.nan, math.inf, -math.inf, 1.7e308, -1.7e308, 1e100, 5e-324, 0.0, -0.0, 0.1, 1 / 3]
    ),
)


def moved(
    before: Sequence[int], after: Sequence[int], quanta: Sequence[float], declared: Sensitivity
) -> Distances:
    """l1, squared l2 and linf distance of two lattice vectors, or tables, divided by the
    sensitivity's `scale`.
    """
    rows = 1 if declared.block is None else len(before) // declared.block
    units = declared.scale * (len(before) // len(declared.scale))
    scaled = []
    for x, y, q, unit in zip(before, after, [*quanta] * rows, units, strict=True):
        scaled.append(abs(Fraction(x - y)) * Fraction(q) / Fraction(unit))
    return sum(scaled, Fraction(0)), sum((s * s for s in scaled), Fraction(0)), max(scaled)


def require_within(
    before: Sequence[int],
    after: Sequence[int],
    quanta: Sequence[float],
    declared: Sensitivity,
    what: str,
) -> None:
    """Raises AssertionError if an answer, in whole numbers of `quanta`, moved further than
    declared, or in more than one block.

    The error calls the answer `what`, and names the norm.
    """
    if declared.block is not None:
        places = np.flatnonzero(np.not_equal(before, after))
        blocks = len(np.unique(places // declared.block))
        assert blocks <= 1, (
            f"{what} moved in {blocks} blocks, but the declared sensitivity is about a change"
            " in one"
        )
    l1, l2_squared, linf = moved(before, after, quanta, declared)
    bounds = {
        "the l1 norm": (l1, Fraction(declared.l1)),
        "the squared l2 norm": (l2_squared, Fraction(declared.l2) ** 2),
        "the linf norm": (linf, Fraction(declared.linf)),
    }
    for norm, (distance, bound) in bounds.items():
        text = (
            f"{what} moved by {float(distance):.6g} in {norm}, but the declared sensitivity allows"
            f" only {float(bound):.6g}"
        )
        assert distance <= bound * _SLACK**2, text


class QueryContract(abc.ABC):
    """Tests of a query about a score of each record: neighbours, units of many sizes, records on
    which the score fails, and order.

    Inherit from it to get tests for your own query. One that takes its score as an argument passes
    on the one it is given; one that has a score of its own leaves it unused, and takes the drawn
    records, a tensor `n x metrics`::

        class TestUnitsAbove(QueryContract):
            covers = UnitsAbove

            def query(self, score):
                return UnitsAbove(threshold=5.0)

    Attributes:
        covers: the class under test.
        metrics: number of columns of the drawn records, which is the number of scores of each.
        adjacencies: the adjacencies that the query is tested under.
    """

    covers: ClassVar[type[Query]]
    metrics: ClassVar[int] = 1
    adjacencies: ClassVar[Sequence[Adjacency]] = (
        Adjacency.REPLACE_ONE,
        Adjacency.ADD_OR_REMOVE_ONE,
    )

    @abc.abstractmethod
    def query(self, score: Callable[[Any, Any], Any]) -> Query:
        """The query under test with this score, which returns the drawn records themselves."""

    def records(self, rows: torch.Tensor) -> Any:
        """The drawn rows, `n x metrics`, as the records that the query takes; by default as they
        are.
        """
        return rows

    @_SETTINGS
    @given(st.data())
    def test_neighbours_stay_within_the_declared_sensitivity(self, data: st.DataObject) -> None:
        units, dtype = self._draw(data)
        victim = data.draw(st.integers(0, len(units) - 1))
        query = self.query(_identity)
        for adjacency in self.adjacencies:
            neighbour = units[:victim] + units[victim + 1 :]
            if adjacency is not Adjacency.ADD_OR_REMOVE_ONE:
                neighbour.append(data.draw(self._unit(4 if self._per_unit() else 1)))
            if neighbour:
                public = len(units) if adjacency is Adjacency.REPLACE_ONE else None
                before = self._of_units(query, units, dtype, public)
                after = self._of_units(query, neighbour, dtype, public)
                _require_within(before, after, query.sensitivity(adjacency))

    def test_a_unit_of_any_size_stays_within_the_declared_sensitivity(self) -> None:
        """1 to 40 records and some numbers above, at one end of the range or NaN, in the place of
        one record, very many, or none.
        """
        query = self.query(_identity)
        sizes = _SIZES if self._per_unit() else (1,)
        others = [self._alike(end, 1) for end in _ENDS[:2]]
        units = [self._alike(end, size) for size, end in itertools.product(sizes, _ENDS)]
        for adjacency in self.adjacencies:
            public = None if adjacency is Adjacency.ADD_OR_REMOVE_ONE else len(others) + 1
            answers = [
                self._of_units(query, [*others, unit], torch.float64, public) for unit in units
            ]
            if public is None:
                few = [self._of_units(query, others, torch.float64, None)]
            else:
                few = [*answers[: len(_ENDS)], *answers[-len(_ENDS) :]]
            for before in few:
                for after in answers:
                    _require_within(before, after, query.sensitivity(adjacency))

    def test_one_of_many_units_stays_within_the_declared_sensitivity(self) -> None:
        """The first or the last of up to a thousand units goes from one end of the range to the
        other, or away.
        """
        query = self.query(_identity)
        for count, rows in itertools.product(_COUNTS, (1, 2) if self._per_unit() else (1,)):
            ends = torch.tensor(_ENDS[:2], dtype=torch.float64, device="cpu").repeat(
                count // 2 + 1
            )[:count]
            records = ends.repeat_interleave(rows).unsqueeze(1).repeat(1, self.metrics)
            labels = np.arange(count).repeat(rows)
            for adjacency in self.adjacencies:
                public = None if adjacency is Adjacency.ADD_OR_REMOVE_ONE else count
                before = self._answer(query, records, labels, public)
                for unit in {0, count - 1}:
                    victim = labels == unit
                    if public is not None:
                        after = self._answer(
                            query,
                            torch.where(torch.from_numpy(victim)[:, None], -records, records),
                            labels,
                            public,
                        )
                    elif count > 1:
                        after = self._answer(
                            query, records[torch.from_numpy(~victim)], labels[~victim], public
                        )
                    else:
                        continue
                    _require_within(before, after, query.sensitivity(adjacency))

    @_SETTINGS
    @given(st.data())
    def test_a_record_that_breaks_the_score_is_confined_to_its_unit(
        self, data: st.DataObject
    ) -> None:
        """A neighbour whose record raises moves the answer no further than any other."""
        units, dtype = self._draw(data)
        victim = data.draw(st.integers(0, len(units) - 1))
        poisoned = [*units[:victim], *units[victim + 1 :], self._alike(_RAISES, 1)]
        if len(units) > 1:
            query = self.query(_raising)
            before = self._of_units(query, units, dtype, len(units))
            after = self._of_units(query, poisoned, dtype, len(units))
            _require_within(before, after, query.sensitivity(Adjacency.REPLACE_ONE))

    @_SETTINGS
    @given(st.data())
    def test_order_does_not_change_a_bit(self, data: st.DataObject) -> None:
        units, dtype = self._draw(data)
        records, labels = _flat(units, dtype)
        rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
        order = rng.permutation(len(labels))
        query = self.query(_identity)
        straight = self._answer(query, records, labels, len(units))
        permuted = self._answer(query, records[torch.from_numpy(order)], labels[order], len(units))
        assert straight.numerators.tolist() == permuted.numerators.tolist()

    def _per_unit(self) -> bool:
        """Whether the query may be asked about units of several records."""
        return declares_per_unit(type(self.query(_identity)))

    def _draw(self, data: st.DataObject) -> tuple[list[Unit], torch.dtype]:
        grouped = self._per_unit() and data.draw(st.booleans())
        units = data.draw(st.lists(self._unit(4 if grouped else 1), min_size=1, max_size=6))
        return units, data.draw(st.sampled_from([torch.float32, torch.float64]))

    def _unit(self, most_rows: int) -> st.SearchStrategy[Unit]:
        row = st.lists(_NUMBERS, min_size=self.metrics, max_size=self.metrics)
        different = st.lists(row, min_size=1, max_size=most_rows)
        if most_rows == 1:
            return different
        return st.builds(operator.mul, different, st.sampled_from([1, 1, 1, 2, 3, 20]))

    def _alike(self, number: float, rows: int) -> Unit:
        """A unit of records that are one number throughout."""
        return [[number] * self.metrics] * rows

    def _of_units(
        self, query: Query, units: list[Unit], dtype: torch.dtype, public_units: int | None
    ) -> IntegerSum:
        return self._answer(query, *_flat(units, dtype), public_units)

    def _answer(
        self,
        query: Query,
        rows: torch.Tensor,
        labels: np.ndarray[Any, Any],
        public_units: int | None,
    ) -> IntegerSum:
        return _answer(query, self.records(rows), labels, public_units)


class SumContract(QueryContract):
    """`QueryContract` for an answer that is a sum over units: in addition shards add up, and a
    single unit attains the bound.

    For a `UnitSum`, for example::

        class TestCountAbove(SumContract):
            covers = CountAbove

            def query(self, score):
                return CountAbove(threshold=5.0)
    """

    def test_worst_case_attains_the_sensitivity(self) -> None:
        """Units of one record or many at the two ends of the range differ by the whole bound, up to
        the lattice's rounding.
        """
        query = self.query(_identity)
        sensitivity = query.sensitivity(Adjacency.REPLACE_ONE)
        sizes = (1, 8, _SIZES[-1]) if self._per_unit() else (1,)
        answers = []
        for end, rows in itertools.product(_ENDS[:2], sizes):
            answers.append(self._of_units(query, [self._alike(end, rows)], torch.float64, 1))
        reached = max(_squared_l2(a, b, sensitivity) for a, b in itertools.combinations(answers, 2))
        assert math.sqrt(reached) >= 0.999 * sensitivity.l2

    @_SETTINGS
    @given(st.data())
    def test_shards_of_units_add_up_to_the_same_bits(self, data: st.DataObject) -> None:
        units, dtype = self._draw(data)
        cut = data.draw(st.integers(0, len(units)))
        query = self.query(_identity)
        whole = self._of_units(query, units, dtype, len(units)).numerators
        total = torch.zeros_like(whole)
        for part in (units[:cut], units[cut:]):
            if part:
                total += self._of_units(query, part, dtype, len(units)).numerators
        assert whole.tolist() == total.tolist()


class RowContract(abc.ABC):
    """Tests of a query about single rows: a changed row moves its own block or outcome alone, and
    no further than declared.

    Inherit from it to get tests for your own query; define `covers` and `query`. Under
    BOUNDED_ROW_CHANGE the changed row lies within the declared distance, in exact fractions.

    Attributes:
        covers: the class under test.
        width: number of columns of the drawn table `n x width`, float64.
        row_change: the bounded change of a row that the query is tested under besides REPLACE_ONE.
    """

    covers: ClassVar[type[Query]]
    width: ClassVar[int] = 2
    row_change: ClassVar[RowChange] = RowChange(0.75, diameter=10.0)

    @abc.abstractmethod
    def query(self, row_change: RowChange | None, row: int) -> Query:
        """The query under test; `row` is the row it is about, if it is about one. `row_change` is
        None for REPLACE_ONE.
        """

    @_ROW_SETTINGS
    @given(st.data())
    def test_another_row_moves_its_own_answer_alone_and_within_the_sensitivity(
        self, data: st.DataObject
    ) -> None:
        rows, changed, row = self._draw(data)
        self._compare(
            rows, data.draw(self._row()), changed, self.query(None, row), Adjacency.REPLACE_ONE
        )

    @_ROW_SETTINGS
    @given(st.data())
    def test_a_row_that_moves_in_reach_does_so_too(self, data: st.DataObject) -> None:
        rows, changed, row = self._draw(data)
        step = data.draw(st.lists(st.floats(-1.0, 1.0), min_size=self.width, max_size=self.width))
        length = math.hypot(*step) or 1.0
        share = data.draw(st.sampled_from([1.0, 0.5, 1e-3, 1e-12])) * self.row_change.norm / length
        other = [x + share * dx for x, dx in zip(rows[changed], step, strict=True)]
        finite = all(map(math.isfinite, [*rows[changed], *other]))
        pairs = zip(rows[changed], other, strict=True)
        if (
            finite
            and sum((Fraction(a) - Fraction(b)) ** 2 for a, b in pairs)
            <= Fraction(self.row_change.norm) ** 2
        ):
            self._compare(
                rows, other, changed, self.query(self.row_change, row), Adjacency.BOUNDED_ROW_CHANGE
            )

    def test_the_bound_is_attained(self) -> None:
        for row_change, adjacency in (
            (None, Adjacency.REPLACE_ONE),
            (self.row_change, Adjacency.BOUNDED_ROW_CHANGE),
        ):
            query = self.query(row_change, 0)
            sensitivity = query.sensitivity(adjacency)
            reached = Fraction(0)
            length = 1e9 if row_change is None else row_change.norm * (1 - 2.0**-50)
            for angle in range(720):
                x = [
                    0.5 * length * math.cos(math.pi * angle / 720),
                    0.5 * length * math.sin(math.pi * angle / 720),
                ]
                x += [0.0] * (self.width - 2)
                end = _of_rows(query, [x])
                opposite = _of_rows(query, [[-number for number in x]])
                reached = max(reached, _squared_l2(end, opposite, sensitivity))
            assert math.sqrt(reached) >= 0.99 * sensitivity.l2

    def _draw(self, data: st.DataObject) -> tuple[list[Row], int, int]:
        """Rows, the place of the one that changes, and of the one that the query is about."""
        rows = data.draw(st.lists(self._row(), min_size=1, max_size=5))
        return (
            rows,
            data.draw(st.integers(0, len(rows) - 1)),
            data.draw(st.integers(0, len(rows) - 1)),
        )

    def _compare(
        self, rows: list[Row], other: Row, changed: int, query: Query, adjacency: Adjacency
    ) -> None:
        before = _of_rows(query, rows)
        after = _of_rows(query, [*rows[:changed], other, *rows[changed + 1 :]])
        declared = query.sensitivity(adjacency)
        _require_within(before, after, declared)
        places = (before.numerators != after.numerators).nonzero().flatten()
        places = places // (declared.block or len(before.numerators))
        own = {changed} if declared.block else {0} if query.part() == changed else set[int]()
        assert {*places.tolist()} <= own, "another row's answer moved"

    def _row(self) -> st.SearchStrategy[Row]:
        return st.lists(_ROW_NUMBERS, min_size=self.width, max_size=self.width)


def _identity(_subject: Any, records: Any) -> Any:
    return records


def _raising(_subject: Any, records: Any) -> Any:
    if bool((records == _RAISES).any()):
        raise RuntimeError("a record that the score cannot take")
    return records


def _flat(units: list[Unit], dtype: torch.dtype) -> tuple[torch.Tensor, np.ndarray[Any, Any]]:
    rows = list(itertools.chain.from_iterable(units))
    labels = np.repeat(np.arange(len(units)), list(map(len, units)))
    return torch.tensor(rows, dtype=torch.float64, device="cpu").to(dtype), labels


def _answer(
    query: Query, records: Any, labels: np.ndarray[Any, Any], public_units: int | None
) -> IntegerSum:
    # units of one row each: no groups
    groups = labels if len(np.unique(labels)) < len(labels) else None
    view = PrivateView.of(records, PrivacyUnit("unit", groups=groups), units_are_public=False)
    answer = query._evaluate(dataclasses.replace(view, public_units=public_units), query.prepare())
    assert isinstance(answer, IntegerSum), answer
    return answer


def _require_within(a: IntegerSum, b: IntegerSum, declared: Sensitivity) -> None:
    assert a.quanta == b.quanta, (
        f"two neighbours' answers must lie on one lattice, but their quanta are {a.quanta} and"
        f" {b.quanta}"
    )
    require_within(a.numerators.tolist(), b.numerators.tolist(), a.quanta, declared, "the answer")


def _squared_l2(a: IntegerSum, b: IntegerSum, declared: Sensitivity) -> Fraction:
    """How far apart two answers lie, by `moved`."""
    return moved(a.numerators.tolist(), b.numerators.tolist(), a.quanta, declared)[1]


def _of_rows(query: Query, rows: list[Row]) -> IntegerSum:
    return _answer(
        query,
        torch.tensor(rows, dtype=torch.float64, device="cpu"),
        np.arange(len(rows)),
        len(rows),
    )
