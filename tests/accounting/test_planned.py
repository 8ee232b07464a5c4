"""A plan fixed in advance: what it holds, what it pays for, what it prints, and how it is calibrated."""

import functools
import math

import pytest
import torch

from dpbo import Adjacency, Budget, Curator, PrivacyUnit, PrivateObjective
from dpbo.accounting import Planned, PureFilter, calibrate, compose
from dpbo.accounting.known import accounting_named
from dpbo.errors import BudgetExceeded, InputError, LedgerMismatch
from dpbo.events import ExponentialEvent, GaussianEvent, LaplaceEvent, NotPrivateEvent, PoissonGaussianEvent
from dpbo.mechanisms import ExponentialMechanism, GaussianMechanism, LaplaceMechanism
from dpbo.queries import ClippedMean, QuantileUtilities

RECORDS = torch.linspace(0, 1, 500, dtype=torch.float64)
MEAN = ClippedMean(lambda _, r: r, score_range=(0.0, 1.0))
CHOICE = QuantileUtilities(lambda _, r: r, candidates=[0.1, 0.5, 0.9], quantile=0.5)
PLAN = Planned([GaussianEvent(8.0, 3), ExponentialEvent(4.0, 2), LaplaceEvent(5.0)])


def make(accounting=PLAN, budget=None, **settings):
    budget = budget or Budget(6.0, 1e-6)
    return Curator(RECORDS, unit=PrivacyUnit("record"), adjacency=Adjacency.REPLACE_ONE, budget=budget, accounting=accounting, **settings)


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
    assert curator.statement().guarantee.epsilon == whole.epsilon <= 6.0
    assert curator.statement().guarantee.mu == whole.mu
    assert str(curator.statement().spent) == "(0.0, 1e-06)-DP, 0.0-GDP"
    curator.release(MEAN, GaussianMechanism(8.0))
    assert curator.statement().guarantee.epsilon == whole.epsilon
    assert curator.statement().spent.epsilon == compose([GaussianEvent(8.0)], delta=1e-6, refine=True).epsilon


def test_a_plan_beyond_its_budget_is_refused_before_anything_exists(tmp_path):
    for budget in (Budget(1.0, 1e-6), Budget(6.0, 0.0), Budget.gdp(0.3)):
        with pytest.raises(InputError, match="events"):
            make(budget=budget, dataset="d", ledger=str(tmp_path / "l.db"))
    assert not (tmp_path / "l.db").exists()
    assert make(budget=Budget.gdp(2.0, delta=1e-6)).statement().guarantee.mu == compose(PLAN.events, delta=0.0).mu
    with pytest.raises(InputError, match="mu"):
        make(Planned([PoissonGaussianEvent(2.0, rate=0.5, relation="replace-one")]), Budget.gdp(2.0))


def test_a_pure_plan_is_read_at_delta_zero():
    curator = make(Planned([LaplaceEvent(2.0), ExponentialEvent(4.0)]), Budget(1.0, 0.0))
    assert str(curator.statement().guarantee).startswith("(1.000, 0.0)-DP")


def test_it_is_found_again_by_its_name_and_no_other_plan_opens_its_ledger(tmp_path):
    assert accounting_named(PLAN.name) == PLAN
    assert Planned([GaussianEvent(8.0), LaplaceEvent(5.0), GaussianEvent(8.0, 2), ExponentialEvent(4.0, 2)]) == PLAN
    terms = {"dataset": "d", "ledger": str(tmp_path / "l.db")}
    make(**terms).release(MEAN, GaussianMechanism(8.0))
    again = make(**terms)
    assert str(again.ledger.verify().total).split() == ["0", "1", "0"]
    with pytest.raises(LedgerMismatch, match="accounting"):
        make(Planned([GaussianEvent(8.0, 4)]), **terms)


def test_a_plan_carries_an_objective_and_its_final_release():
    curator = make(Planned([GaussianEvent(9.0, 4), GaussianEvent(12.0)]))
    objective = PrivateObjective(curator, lambda x, r: (r - x[0]).abs(), score_range=(0.0, 1.0), evaluations=4)
    assert objective.noise_multiplier == 9.0
    objective(torch.rand(4, 1, dtype=torch.float64))
    curator.release(MEAN, GaussianMechanism(12.0))
    with pytest.raises(InputError, match="as many slots"):
        PrivateObjective(make(), lambda x, r: r, score_range=(0.0, 1.0), evaluations=4, name="other")


def test_calibration_finds_the_least_noise_beside_everything_else():
    budget, beside = Budget(3.0, 1e-6), Planned([ExponentialEvent(20.0, 30), LaplaceEvent(5.0)])
    multiplier = calibrate(budget, releases=20, accounting=beside)
    whole = Planned([*beside.events, GaussianEvent(multiplier, 20)])
    assert whole.composition(1e-6, refine=False).epsilon <= 3.0
    assert compose([*beside.events, GaussianEvent(multiplier * (1 - 1e-4), 20)], delta=1e-6).epsilon > 3.0
    assert multiplier < calibrate(budget, releases=20, share=0.5)
    make(whole, budget)
    mu = Budget.gdp(1.0)
    alone = calibrate(mu, releases=24, accounting=Planned([GaussianEvent(5.0)]))
    assert alone == pytest.approx(5.0, rel=1e-6)
    with pytest.raises(InputError, match="events"):
        calibrate(Budget(0.1, 1e-6), releases=1, accounting=PLAN)
    with pytest.raises(InputError, match="share"):
        calibrate(budget, releases=1, accounting=beside, share=0.5)


def test_sampled_steps_are_calibrated_by_a_partial():
    step = functools.partial(PoissonGaussianEvent, rate=0.05, relation="replace-one")
    budget = Budget(4.0, 1e-5)
    multiplier = calibrate(budget, releases=200, accounting=Planned([GaussianEvent(20.0)]), event=step)
    plan = Planned([GaussianEvent(20.0), step(multiplier, 200)])
    assert 3.99 < plan.composition(1e-5).epsilon <= 4.0


@pytest.mark.parametrize("events", [[], [NotPrivateEvent()], ["gaussian"]])
def test_what_is_no_plan_is_refused(events):
    with pytest.raises(InputError, match="events"):
        Planned(events)


def test_a_plan_gives_more_than_the_best_filter():
    """Five choices and thirty Gaussians: the filter pays each choice as if it came alone."""
    plan = Planned([GaussianEvent(10.0, 30), ExponentialEvent(10.0, 50)])
    filtered = sum(float(PureFilter().cost(e).parts[0]) for e in [ExponentialEvent(10.0, 50)])
    assert plan.composition(1e-6).epsilon < filtered
    assert math.isfinite(plan.composition(1e-6).gdp)
