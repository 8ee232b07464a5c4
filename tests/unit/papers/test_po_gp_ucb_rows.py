"""Row tables and outcomes: their contracts, noise row by row, and releases through the curator."""

import math

import numpy as np
import pytest
import torch

from dpbo import Adjacency, Budget, Curator, PrivacyUnit, RowChange
from dpbo.accounting import PureFilter
from dpbo.errors import BudgetExceeded, InputError, LedgerMismatch, UsageError
from dpbo.events import DeclassifiedEvent
from dpbo.mechanisms import GaussianMechanism, L2LaplaceMechanism, LaplaceMechanism
from dpbo.papers.po_gp_ucb import RowTable
from dpbo.papers.po_gp_ucb.rows import RowOutcome
from dpbo.queries import ClippedMean
from dpbo.testing.query_contract import RowContract, require_within
from tests.attacks.marks import attack
from tests.contracts.bases import exact_sum, tries
from tests.setups import DOUBLE, EXACT
from tests.unit.papers.test_po_gp_ucb_curator_side import rows_of

CHANGE = RowChange(1.0, diameter=50.0)
OF_ROWS = RowChange(1.0, diameter=50.0, table="rows")
SHEAR = torch.tensor([[1.0, 0.3, 2.0], [-2.0, 0.1, 0.5]], dtype=DOUBLE)


@tries(40)
@attack("A5", "A9")
class TestTable(RowContract):
    covers = RowTable

    def query(self, row_change, row):
        return RowTable((0.0, 0.0), 5.0, row_change=row_change)


@tries(40)
@attack("A5", "A9")
class TestProjectedTable(RowContract):
    covers = RowTable

    def query(self, row_change, row):
        return RowTable((0.0, 0.0), 5.0, row_change=row_change, projection=SHEAR)


@tries(40)
class TestShiftedTableOfManyColumns(RowContract):
    covers = RowTable
    width = 4

    def query(self, row_change, row):
        return RowTable((1e-3, 0.7, -0.1, 2.0), 5.0, row_change=row_change)


@tries(40)
@attack("A5", "A9")
class TestOutcome(RowContract):
    covers = RowOutcome

    def query(self, row_change, row):
        return RowOutcome(lambda records: 100.0 * records[0, 0], row=row, value_range=(-2.0, 5.0))


def curator(records, **changed):
    terms = {
        "unit": PrivacyUnit("row"),
        "budget": Budget(8.0, 0.0),
        "accounting": PureFilter(),
        "role": "candidate",
        "adjacency": CHANGE,
    }
    return Curator(records, **{**terms, **changed})


def test_the_gaussian_is_that_of_one_row_however_many_there_are():
    X = rows_of(5000, 2)
    table = RowTable((0.0, 0.0), 25.0, row_change=CHANGE)
    few, many = (
        curator(X[:n], budget=Budget(3.0, 1e-6), accounting=None)
        .release(table, GaussianMechanism(2.0))
        .distribution
        for n in (10, 5000)
    )
    assert few == many
    assert few.scale == pytest.approx((2.0, 2.0))


def test_rows_beyond_the_ball_are_drawn_onto_it_and_broken_ones_to_the_centre():
    X = torch.tensor(
        [[1e308, 0.0], [3.0, 4.0], [float("nan"), 0.0], [0.0, -float("inf")], [1.0, 30.0]],
        dtype=DOUBLE,
    )
    found = curator(X).release(RowTable((1.0, 0.0), 25.0, row_change=CHANGE), EXACT).value
    wanted = torch.tensor(
        [[26.0, 0.0], [3.0, 4.0], [1.0, 0.0], [1.0, 0.0], [1.0, 25.0]], dtype=DOUBLE
    )
    torch.testing.assert_close(found, wanted, atol=1e-7, rtol=0)


def test_whole_numbers_that_float64_does_not_tell_apart_stay_within_the_sensitivity():
    change = RowChange(2.0, diameter=2000.0)
    table = RowTable((2.0**60,), 1000.0, row_change=change)
    near = RowTable((float(2**53 - 10),), 1000.0, row_change=change)
    for query, base in ((table, 2**60 + 127), (near, 2**53 - 1), (near, 2**53 + 1)):
        one, other = (exact_sum(query, torch.tensor([[base + step]])) for step in (0, 2))
        declared = query.sensitivity(Adjacency.BOUNDED_ROW_CHANGE)
        require_within(
            one.numerators.tolist(), other.numerators.tolist(), one.quanta, declared, "the row"
        )


def numerators_of(table, rows):
    return exact_sum(table, rows).numerators.reshape(len(rows), -1).tolist()


@attack("A5")
def test_rows_of_every_kind_of_number_count_the_same_beside_rows_of_other_kinds():
    for center in ((0.0, 0.0), (2.0**60, 2.0**55)):
        table = RowTable(center, 1.0)
        for row in ([2**53 + 1, 2**53 - 1], [-(2**60) - 1, 3]):
            alone = numerators_of(table, [row, [0, 0]])[0]
            for other in ([0.5, 0], [None, 0], [True, False], [np.uint16(7), 0], [2**63, 1]):
                assert numerators_of(table, [row, other])[0] == alone, (center, row, other)
    rows = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]], dtype=DOUBLE)
    table = RowTable((0.5, 0.25), 1.0)
    for kind in (torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32):
        assert numerators_of(table, rows.to(kind)) == numerators_of(table, rows), kind


def test_the_relation_is_about_one_table():
    records = {"rows": rows_of(5, 2), "salary": rows_of(5, 2, seed=1)}
    private = curator(records, adjacency=OF_ROWS)
    with pytest.raises(InputError, match="row_change"):
        private.evaluate(
            RowTable((0.0, 0.0), 25.0, row_change=RowChange(1.0, diameter=50.0, table="salary"))
        )
    with pytest.raises(InputError, match="table"):
        RowTable((0.0, 0.0), 25.0, row_change=OF_ROWS, table="salary")
    assert "a row of 'rows' moves by at most 1, which is 2.00 % of the diameter 50" in str(
        private.statement()
    )


def test_other_records_do_not_take_the_places_of_a_parallel_plan(on_disk):
    ask(tabled(**on_disk), 1)
    assert "records-keep-their-places" in tabled(**on_disk).statement().assumptions
    with pytest.raises(LedgerMismatch, match="units"):
        tabled(n=5, **on_disk)


def test_a_limit_holds_over_all_who_charge(on_disk):
    several = [
        curator({"rows": rows_of(6, 2), "y": torch.zeros(6, dtype=DOUBLE)}, **on_disk)
        for _ in range(2)
    ]
    for private in several:
        private.reserve(
            "y", LaplaceMechanism.of(1.0).event(), slots=2, terms={}, parallel=True, limit=2
        )
    ask(several[0], 1)
    ask(several[1], 2)
    with pytest.raises(BudgetExceeded, match="answers"):
        ask(several[0], 3)
    several[0].ledger.verify()


def test_parallel_plans_need_public_places():
    for terms in (
        {"adjacency": Adjacency.ADD_OR_REMOVE_ONE},
        {"adjacency": Adjacency.REPLACE_ONE, "unit": PrivacyUnit("p", groups=[0, 0, 1])},
    ):
        private = curator(rows_of(3, 2), **terms)
        with pytest.raises(InputError, match="parallel"):
            private.reserve("y", LaplaceMechanism.of(1.0).event(), slots=1, terms={}, parallel=True)


class Careless(ClippedMean):
    """Says that its exact answer is free, and not why."""

    def release_event(self, event, adjacency):
        return DeclassifiedEvent(count=event.count)


def test_exact_answers_are_unbounded_without_a_reason_and_each_reason_is_told():
    private = curator(rows_of(5, 2), allow_conditional=True)
    private.release(Careless(lambda _, r: r[:, 0], score_range=(0.0, 1.0)), EXACT)
    statement = private.statement()
    assert statement.void
    assert statement.lines[0] == "not bounded"
    private = curator(rows_of(5, 2), allow_conditional=True)
    for reason in ("they are in a register", "their owners agreed"):
        query = RowOutcome(
            lambda records: records[0, 0], row=1, value_range=(0.0, 1.0), declassified=reason
        )
        private.release(query, EXACT)
    told = private.statement().assumptions["outcomes-declassified"]
    assert "they are in a register" in told
    assert "their owners agreed" in told
    assert "conditional-allowed" not in private.statement().assumptions


def test_an_outcome_is_looked_at_once_and_writes_into_a_copy():
    records = [torch.full((2,), 5.0) for _ in range(4)]
    calls = list[int]()

    def writing(taken):
        calls.append(1)
        taken[0].clamp_(max=3.0)
        raise RuntimeError

    private = curator(records)
    for row in (1, 2):
        private.evaluate(RowOutcome(writing, row=row, value_range=(0.0, 1.0)))
    assert len(calls) == 2
    assert all(record.tolist() == [5.0, 5.0] for record in records)


def outcome(records):
    return records["y"]


def tabled(n=6, **changed):
    X = rows_of(n, 2)
    made = curator({"rows": X, "y": torch.arange(n, dtype=DOUBLE) / n}, **changed)
    made.reserve(
        "y",
        LaplaceMechanism.of(1.0).event(),
        slots=2,
        terms={"value_range": [0.0, 1.0]},
        parallel=True,
    )
    return made


def ask(private, *rows):
    handles = [
        private.evaluate(RowOutcome(outcome, row=row, value_range=(0.0, 1.0))) for row in rows
    ]
    return private.release_all(handles, LaplaceMechanism.of(1.0), name="y", reservation="y")


def test_a_parallel_plan_refuses_questions_about_everybody():
    private = tabled()
    handle = private.evaluate(ClippedMean(lambda _, r: r["y"], score_range=(0.0, 1.0)))
    with pytest.raises(InputError, match="part"):
        private.release_all([handle], LaplaceMechanism.of(1.0), name="y", reservation="y")
    assert private.ledger.used() == {"y": 0}


def test_declassified_outcomes_are_exact_and_conditional():
    X = rows_of(6, 2)
    reason = "returns of finished loans are published"
    query = RowOutcome(
        lambda records: records["y"], row=2, value_range=(0.0, 1.0), declassified=reason
    )
    records = {"rows": X, "y": torch.arange(6, dtype=DOUBLE) / 8}
    refused = curator(records)
    with pytest.raises(InputError, match="outcomes-declassified"):
        refused.release(query, EXACT)
    private = curator(records, allow_conditional=True, adjacency=OF_ROWS)
    private.release(RowTable((0.0, 0.0), 25.0, row_change=OF_ROWS), L2LaplaceMechanism.of(3.0))
    assert float(private.release(query, EXACT).value) == 0.25
    statement = private.statement()
    assert statement.lines[0] == "not bounded"
    assert statement.lines[1].startswith("(8.000, 0.0)-DP")
    assert reason in str(statement)
    assert not statement.void
    with pytest.raises(InputError, match="declassified"):
        private.release(query, LaplaceMechanism.of(1.0))
    with pytest.raises(InputError, match="declassified"):
        private.release(RowOutcome(lambda records: 0.0, row=2, value_range=(0.0, 1.0)), EXACT)


class Sealed:
    """Records that can be counted and no more."""

    def __len__(self):
        return 3


def outcome_of(outcome, row=1):
    """What is released about this row of three before noise, as a number."""
    question = RowOutcome(outcome, row=row, value_range=(-1.0, 3.0), worst=0.5)
    found = exact_sum(question, [0.1, 0.2, 0.3])
    assert found.quanta == question.quanta()
    (offset,), gain = question.affine(3)
    return offset + gain * int(found.numerators[0]) * found.quanta[0]


def test_an_outcome_is_that_of_its_row_in_whatever_shape_and_clipped():
    for shaped in (
        lambda r: r[0],
        lambda r: r,
        torch.tensor,
        lambda r: torch.tensor([r]),
        lambda r: iter([r]),
    ):
        assert [outcome_of(shaped, row) for row in range(3)] == pytest.approx([0.1, 0.2, 0.3])
    assert (outcome_of(lambda _: 1e9), outcome_of(lambda _: -1e9)) == pytest.approx((3.0, -1.0))


def raising(records):
    raise ValueError(f"secret {records}")


@attack("A6")
def test_what_is_no_single_number_counts_as_was_said_and_says_nothing():
    for broken in (
        lambda _: [1.0, 2.0],
        lambda _: None,
        lambda _: math.nan,
        lambda _: "1.0",
        raising,
    ):
        assert outcome_of(broken) == pytest.approx(0.5)
        private = curator(rows_of(5, 2), allow_conditional=True)
        query = RowOutcome(broken, row=1, value_range=(-3.0, 1.0), declassified="a test")
        assert float(private.release(query, EXACT).value) == -3.0


def test_a_row_that_cannot_be_taken_out_is_refused():
    """Otherwise all such outcomes would be the worst one, at the price of true ones."""
    with pytest.raises(InputError, match="records"):
        exact_sum(RowOutcome(len, row=1, value_range=(0.0, 1.0)), Sealed())
    with pytest.raises(InputError, match="row"):
        outcome_of(len, row=3)


def test_relations_that_a_row_or_its_curator_does_not_keep_are_refused():
    grouped = PrivacyUnit("p", groups=[0, 0, 1, 1, 2])
    about_one = RowOutcome(outcome, row=1, value_range=(0.0, 1.0))
    for make in (
        lambda: RowChange(2.0, diameter=1.0),
        lambda: RowChange(1e-9, diameter=1.0),
        lambda: RowTable((0.0,), 30.0, row_change=CHANGE),
        lambda: RowTable((0.0, 0.0), 1.0).sensitivity(Adjacency.BOUNDED_ROW_CHANGE),
        lambda: curator(rows_of(5, 2), adjacency=Adjacency.BOUNDED_ROW_CHANGE),
        lambda: curator(rows_of(5, 2), unit=grouped),
        lambda: curator(rows_of(5, 2)).evaluate(
            RowTable((0.0, 0.0), 25.0, row_change=RowChange(2.0, diameter=50.0))
        ),
        lambda: curator(rows_of(5, 2), adjacency=Adjacency.REPLACE_ONE, unit=grouped).evaluate(
            about_one
        ),
    ):
        with pytest.raises(UsageError):
            make()
