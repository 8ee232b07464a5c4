"""A plan fixed in advance: what it holds, what it pays for, what it prints, and how it is
calibrated.
"""

import math

import pytest
import torch

from dpbo import Budget, PrivateObjective
from dpbo.accounting import Planned, calibrate, compose
from dpbo.accounting.filters import Cost
from dpbo.accounting.planned import accounting_named
from dpbo.errors import BudgetExceeded, InputError, LedgerMismatch, UsageError
from dpbo.events import (
    ExponentialEvent,
    GaussianEvent,
    LaplaceEvent,
    NotPrivateEvent,
    PoissonGaussianEvent,
)
from dpbo.mechanisms import ExponentialMechanism, GaussianMechanism, LaplaceMechanism
from dpbo.queries import QuantileUtilities
from tests.setups import DOUBLE, MEAN, of, owner

RECORDS = torch.linspace(0, 1, 500, dtype=DOUBLE)
CHOICE = QuantileUtilities(lambda _, r: r, candidates=[0.1, 0.5, 0.9], quantile=0.5)
PLAN = Planned([GaussianEvent(8.0, 3), ExponentialEvent(4.0, 2), LaplaceEvent(5.0)])


def make(accounting=PLAN, budget=None, **settings):
    budget = budget or Budget(6.0, 1e-6)
    return owner(RECORDS, budget=budget, accounting=accounting, **settings)


def test_each_event_has_its_own_slots():
    curator = make()
    for _ in range(3):
        curator.release(MEAN, GaussianMechanism(8.0))
    curator.release(CHOICE, ExponentialMechanism(4.0))
    with pytest.raises(BudgetExceeded, match="0 of 3 slots") as refused:
        curator.release(MEAN, GaussianMechanism(8.0))
    assert (refused.value.remaining, refused.value.budget) == (0, 3)
    with pytest.raises(InputError, match="Planned"):
        curator.release(MEAN, GaussianMechanism(9.0))
    curator.release(MEAN, LaplaceMechanism(5.0))
    curator.release(CHOICE, ExponentialMechanism(4.0))
    assert str(curator.ledger.verify().total) == str(curator.ledger.cap)


def test_the_statement_prints_the_whole_plan_from_the_start():
    curator = make()
    whole = compose(PLAN.events, delta=1e-6, refine=True)
    for released in (0, 1):
        statement = curator.statement()
        assert statement.guarantee.epsilon == whole.epsilon <= 6.0
        assert statement.guarantee.mu == whole.mu
        if not released:
            assert str(statement.spent) == "(0.0, 1e-06)-DP, 0.0-GDP"
            curator.release(MEAN, GaussianMechanism(8.0))
    assert statement.spent.epsilon == compose([GaussianEvent(8.0)], delta=1e-6, refine=True).epsilon
    pure = make(Planned([LaplaceEvent(2.0), ExponentialEvent(4.0)]), Budget(1.0, 0.0))
    assert str(pure.statement().guarantee).startswith("(1.000, 0.0)-DP"), "read at delta 0"


def test_a_plan_beyond_its_budget_is_refused_before_anything_exists(on_disk, tmp_path):
    for budget in (Budget(1.0, 1e-6), Budget(6.0, 0.0), Budget.gdp(0.3)):
        with pytest.raises(UsageError, match="events"):
            make(budget=budget, **on_disk)
    assert not (tmp_path / "l.db").exists()
    assert (
        make(budget=Budget.gdp(2.0, delta=1e-6)).statement().guarantee.mu
        == compose(PLAN.events, delta=0.0).mu
    )
    with pytest.raises(UsageError, match="mu"):
        make(
            Planned([PoissonGaussianEvent(2.0, rate=0.5, relation="replace-one")]), Budget.gdp(2.0)
        )


def test_it_is_found_again_by_its_name_and_no_other_plan_opens_its_ledger(on_disk):
    assert accounting_named(PLAN.name) == PLAN
    assert (
        Planned(
            [GaussianEvent(8.0), LaplaceEvent(5.0), GaussianEvent(8.0, 2), ExponentialEvent(4.0, 2)]
        )
        == PLAN
    )
    make(**on_disk).release(MEAN, GaussianMechanism(8.0))
    again = make(**on_disk)
    assert str(again.ledger.verify().total).split() == ["0", "1", "0"]
    with pytest.raises(LedgerMismatch, match="accounting"):
        make(Planned([GaussianEvent(8.0, 4)]), **on_disk)


def test_a_plan_carries_an_objective_and_its_final_release():
    curator = make(Planned([GaussianEvent(9.0, 4), GaussianEvent(12.0)]))
    objective = PrivateObjective(
        curator, lambda x, r: (r - x[0]).abs(), score_range=(0.0, 1.0), evaluations=4
    )
    assert objective.noise_multiplier == 9.0
    objective(torch.rand(4, 1, dtype=DOUBLE))
    curator.release(MEAN, GaussianMechanism(12.0))
    with pytest.raises(UsageError, match="as many slots"):
        PrivateObjective(
            make(), lambda x, r: r, score_range=(0.0, 1.0), evaluations=4, name="other"
        )


def test_a_share_of_a_plan_is_refused_before_anything_is_reserved():
    """It would change nothing, and the statement would declare it."""
    curator = make(Planned([GaussianEvent(10.0, 30)]))
    terms = of(score_range=(0.0, 1.0), evaluations=30)
    with pytest.raises(InputError, match=r"budget=0.1 .*1 with accounting=Planned"):
        PrivateObjective(curator, lambda x, r: r, budget=0.1, **terms)
    assert curator.ledger.head().kind == "birth"
    assert PrivateObjective(curator, lambda x, r: r, budget=1.0, **terms).noise_multiplier == 10.0


def test_calibration_finds_the_least_noise_beside_everything_else():
    budget = Budget(3.0, 1e-6)
    beside = Planned([ExponentialEvent(20.0, 30), LaplaceEvent(5.0)])
    multiplier = calibrate(budget, releases=20, accounting=beside)
    whole = Planned([*beside.events, GaussianEvent(multiplier, 20)])
    assert whole.composition(1e-6, refine=False).epsilon <= 3.0
    assert (
        compose([*beside.events, GaussianEvent(multiplier * (1 - 1e-4), 20)], delta=1e-6).epsilon
        > 3.0
    )
    assert multiplier < calibrate(budget, releases=20, share=0.5)
    make(whole, budget)
    mu = Budget.gdp(1.0)
    alone = calibrate(mu, releases=24, accounting=Planned([GaussianEvent(5.0)]))
    assert alone == pytest.approx(5.0, rel=1e-6)
    with pytest.raises(UsageError, match="events"):
        calibrate(Budget(0.1, 1e-6), releases=1, accounting=PLAN)
    with pytest.raises(InputError, match="share"):
        calibrate(budget, releases=1, accounting=beside, share=0.5)


def test_the_least_noise_is_found_in_few_steps_or_refused():
    """On either side of one; noise that costs nothing is not looked for without end; nothing fits
    beside a plan that takes all.
    """
    asked: list[float] = []
    plan = Planned([GaussianEvent(5.0)])

    def kind(multiplier, slots):
        asked.append(multiplier)
        assert len(asked) < 100
        return GaussianEvent(multiplier, slots)

    for least in (2.5e-6, 0.21, 1.0, 3.3):
        asked.clear()
        found = calibrate(
            Budget.gdp(math.hypot(1 / 5, 2 / least)), releases=4, accounting=plan, event=kind
        )
        assert least * (1 - 1e-12) <= found <= least * (1 + (1e-7 if least > 1e-3 else 1e-6))
    asked.clear()
    with pytest.raises(UsageError, match="the event costs next to nothing"):
        calibrate(
            Budget.gdp(1.0),
            releases=4,
            accounting=plan,
            event=lambda multiplier, slots: kind(multiplier, slots) and GaussianEvent(5.0, slots),
        )
    assert 1e-6 < min(asked) < 2e-6
    # within what another machine may round away
    used = (compose(plan.events, delta=0.0).mu or 0.0) * (1 - 5e-7)
    with pytest.raises(
        InputError, match=r"larger than the cost of the events in Planned.*Raise the budget"
    ):
        calibrate(Budget.gdp(used), releases=1, accounting=plan)


def test_a_plan_may_pass_its_budget_by_a_millionth_only_in_a_ledger_that_exists(
    on_disk, monkeypatch
):
    """Another machine may round differently by so much."""
    bound = PLAN.composition(1e-6, refine=False)
    kept = Budget(bound.epsilon, 1e-6)
    assert PLAN.cap(Budget(bound.epsilon / (1 + 0.9e-6), 1e-6)) == Cost.of(2, 3, 1)
    for beyond, reached in (
        (Budget(bound.epsilon / (1 + 1.1e-6), 1e-6), f"reach epsilon {bound.epsilon}"),
        (Budget.gdp(0.3), f"reach mu {bound.mu}.*budget's mu 0.3"),
    ):
        with pytest.raises(UsageError, match=reached):
            PLAN.cap(beyond)
    make(budget=kept, **on_disk).release(MEAN, GaussianMechanism(8.0))
    # a machine on which it reaches a little more
    monkeypatch.setattr(Planned, "fits", lambda plan, budget, *, room=0.0: room > 0.0)
    assert make(budget=kept, **on_disk).ledger.verify().seq == 2
    with pytest.raises(UsageError, match="reach epsilon"):
        make(budget=kept)


def test_mixed_relations_and_exact_answers_are_no_plan():
    relations = [
        PoissonGaussianEvent(2.0, rate=0.1, relation=relation)
        for relation in ("replace-one", "add-or-remove-one")
    ]
    for events, parameter in (
        (relations, "relation"),
        ([GaussianEvent(8.0), NotPrivateEvent()], "events"),
        ([], "events"),
        (["x"], "events"),
    ):
        with pytest.raises(InputError, match=parameter):
            Planned(events)  # type: ignore[arg-type]
    assert PLAN.cost_or_none(NotPrivateEvent()) == Cost.of(0, 0, 0)


def test_what_a_plan_says_without_a_delta():
    """Gaussians alone have only mu; pure events the pure sum, at delta 0; at a delta both have the
    bound there.
    """
    used = Cost.of(1)
    gaussian = Planned([GaussianEvent(4.0)])
    pure = Planned([LaplaceEvent(4.0)])
    at_none = gaussian.guarantee(used, None)
    at_delta = gaussian.guarantee(used, 1e-5)
    assert (at_none.mu, at_none.epsilon, at_none.delta) == (0.25, None, None)
    assert (pure.guarantee(used, None).epsilon, pure.guarantee(used, None).delta) == (0.25, 0.0)
    assert at_delta.epsilon == compose([GaussianEvent(4.0)], delta=1e-5, refine=True).epsilon
    assert at_delta.delta == pure.guarantee(used, 1e-5).delta == 1e-5


def test_of_events_of_one_kind_the_one_with_fewest_slots_that_suffice_is_taken():
    plan = Planned([GaussianEvent(8.0, 3), GaussianEvent(5.0, 7), GaussianEvent(6.0, 20)])
    whole = Cost.of(*(event.count for event in plan.events))
    found = [plan.multiplier(GaussianEvent, slots, whole) for slots in (1, 3, 4, 7, 8, 20, 21)]
    assert found == [8.0, 8.0, 5.0, 5.0, 6.0, 6.0, None]
    assert plan.multiplier(LaplaceEvent, 1, whole) is None
