"""A reservation prices its noise, is resumed by its name, and never draws twice."""

import re

import pytest
import torch

from dpbo import Adjacency, Budget, PrivacyUnit
from dpbo.accounting import GDPFilter, PureFilter, RDPFilter, ZCDPFilter
from dpbo.errors import (
    BudgetExceeded,
    InputError,
    LedgerMismatch,
    ReservationChanged,
    UsageError,
)
from dpbo.mechanisms import (
    GaussianMechanism,
    LaplaceMechanism,
    PermuteAndFlipMechanism,
)
from dpbo.papers.po_gp_ucb.rows import RowOutcome
from dpbo.queries import CandidateScores, ClippedMean
from tests.setups import DOUBLE, owner

RECORDS = torch.linspace(0, 1, 200, dtype=DOUBLE)


def score(_, records):
    return records


QUERY = ClippedMean(score, score_range=(0.0, 1.0))


def make(records=RECORDS, **changes):
    return owner(records, **{"budget": Budget.gdp(2.0, delta=1e-5), **changes})


def reserve(curator, noise=GaussianMechanism, **changes):
    settings = {
        "slots": 3,
        "budget": 0.5,
        "query": QUERY,
        "given": {"score": score},
        "terms": {"seed": 0},
    }
    return curator.reserve("search", noise, **{**settings, **changes})


def test_a_class_of_mechanisms_gets_the_least_noise_that_the_budget_pays_for():
    reservation = reserve(make())
    assert reservation.mechanism == GaussianMechanism(reservation.event.noise_multiplier)
    assert reservation.mechanism.noise_multiplier == pytest.approx((3 / 0.5) ** 0.5 / 2.0)
    assert reservation.noise_std.item() == pytest.approx(
        reservation.mechanism.noise_multiplier / 200
    )
    assert reservation.curator.statement().public_inputs["search"]["budget"] == "1/2"


def test_of_several_classes_the_first_that_the_accounting_pays_for_is_taken():
    pure = make(accounting=PureFilter(), budget=Budget(1.0, 0.0))
    assert isinstance(
        reserve(pure, (GaussianMechanism, LaplaceMechanism)).mechanism, LaplaceMechanism
    )
    with pytest.raises(UsageError, match=r"PureFilter cannot pay .*\. Take another mechanism\.$"):
        reserve(make(accounting=PureFilter(), budget=Budget(1.0, 0.0)))
    with pytest.raises(UsageError, match=r"or give the Curator accounting=GDPFilter\(\)\.$"):
        reserve(make(accounting=PureFilter(), budget=Budget(1.0, 1e-6)))


def test_what_cannot_be_reserved_takes_nothing():
    curator = make()
    with pytest.raises(InputError, match="budget"):
        reserve(curator, budget=None)
    with pytest.raises(InputError, match="divisor"):
        reserve(make(adjacency=Adjacency.ADD_OR_REMOVE_ONE))
    with pytest.raises(BudgetExceeded):
        reserve(curator, GaussianMechanism(0.1))
    assert curator.ledger.head().kind == "birth"


def test_a_session_reads_what_an_earlier_one_released_and_goes_on(on_disk):
    first = reserve(make(**on_disk))
    assert not first.begun
    rows = [first.release(QUERY, step=step) for step in range(2)]
    again = reserve(make(**on_disk))
    assert again.begun
    assert [again.release(QUERY, step=step) for step in range(2)] == rows
    assert (again.used, again.remaining, again.lost) == (2, 1, 0)
    last = again.release(QUERY, step=2)
    assert again.values == [*rows, last]
    with pytest.raises(BudgetExceeded):
        again.release(QUERY)


TINY = [Budget(1e-9, 1e-6), Budget(1e-3, 0.0), Budget(1e-3, 1e-300)]
HUGE = [Budget(300.0, 1e-6), Budget(1e12, 0.0)]


@pytest.mark.parametrize("budget", [*TINY, *HUGE], ids=str)
@pytest.mark.parametrize("accounting", [GDPFilter(), PureFilter(), ZCDPFilter(), RDPFilter(8.0)])
@pytest.mark.parametrize("kind", [GaussianMechanism, LaplaceMechanism, PermuteAndFlipMechanism])
def test_noise_that_follows_from_the_budget_is_drawn_or_the_budget_is_named(
    budget, accounting, kind
):
    """An error never names the noise multiplier, which nobody wrote."""
    choice = CandidateScores(score, range(3), score_range=(0.0, 1.0))
    query = choice if kind is PermuteAndFlipMechanism else QUERY
    told = ""
    try:
        curator = make(budget=budget, accounting=accounting)
        reserve(curator, kind, slots=1000, budget=1.0, query=query)
    except UsageError as error:
        told = str(error)
    assert re.match(
        "$|the budget is too small: .* Raise epsilon|[A-Za-z]+ cannot pay for|(delta|order)=", told
    )


def test_other_terms_things_or_records_do_not_resume_it(on_disk):
    reserve(make(**on_disk)).release(QUERY)
    for changed, error in (
        ({"terms": {"seed": 1}}, LedgerMismatch),
        ({"budget": 0.25}, LedgerMismatch),
        ({"slots": 2}, LedgerMismatch),
        ({"given": {"score": lambda _, records: 1 - records}}, ReservationChanged),
    ):
        with pytest.raises(error):
            reserve(make(**on_disk), **changed)
    with pytest.raises(ReservationChanged, match="other validation records"):
        reserve(make(RECORDS.flip(0) / 2, **on_disk))


def test_records_that_belong_together_otherwise_are_other_records(on_disk):
    pairs = torch.arange(200) // 2

    def grouped(labels, order):
        unit = PrivacyUnit("person", groups=labels[order])
        return make(RECORDS[order], unit=unit, **on_disk)

    as_they_were = torch.arange(200)
    released = reserve(grouped(pairs, as_they_were)).release(QUERY)
    with pytest.raises(ReservationChanged, match="other validation records"):
        reserve(grouped(torch.arange(200) % 100, as_they_were))
    # in another order, and under other names
    resumed = reserve(grouped(-pairs, torch.arange(199, -1, -1)))
    assert resumed.release(QUERY) == released


@pytest.mark.parametrize(
    ("asked", "later"),
    [({"x": [0.5]}, {"x": [0.25]}), ({"x": None}, {"x": [0.5]}), ({}, {"x": 1}), ({"x": 1}, {})],
)
def test_what_one_question_released_does_not_answer_another(asked, later, on_disk):
    row = reserve(make(**on_disk)).release(QUERY, **asked)
    resumed = reserve(make(**on_disk))
    with pytest.raises(LedgerMismatch, match="details of release 1 of 'search'"):
        resumed.release(QUERY, **later)
    # the slot is asked for again
    assert resumed.release(QUERY, **asked) == row
    assert resumed.used == 1


def test_the_slots_of_a_parallel_reservation_have_no_order():
    """One by one, the second part's value was charged and stored, and said to be lost."""
    curator = owner(torch.arange(10.0).reshape(10, 1) / 10, budget=Budget.gdp(1.0))

    def question(row):
        return RowOutcome(lambda rows: float(rows[0, 0]), row=row, value_range=(0.0, 1.0))

    reservation = curator.reserve(
        "rows", GaussianMechanism, slots=1, budget=0.5, query=question(0), parallel=True
    )
    with pytest.raises(UsageError, match="have no order"):
        reservation.release(question(0))
    assert not reservation.used
    reservation.release_all([curator.evaluate(question(row)) for row in range(3)])
    assert len(reservation.values) == 3
    assert reservation.lost == 0
