"""Planning: its numbers are those that the objective and the choice then have; its picture is a
picture.
"""

import math

import pytest
import scipy.stats
import torch

import dpbo
from dpbo import Budget, PrivateObjective
from dpbo.gibo import DPGIBO
from dpbo.planning import noise_table
from tests.setups import box, of, owner

BUDGET = Budget(1.0, 1e-6)


def strategies(plan):
    return {strategy.name: strategy for strategy in plan.strategies}


def curator(units, budget):
    zeros = torch.zeros(units)
    return owner(zeros, budget=budget)


def test_the_noise_is_the_one_that_objectives_then_have():
    budget = Budget(5.0, 1e-5)
    plan = dpbo.plan(400, budget, evaluations=12, score_range=(-3.0, 1.0), final_share=0.2)
    owner = curator(400, budget)
    terms = of(score_range=(-3.0, 1.0))
    search = PrivateObjective(owner, lambda x, r: r, evaluations=12, name="a", budget=0.8, **terms)
    final = PrivateObjective(owner, lambda x, r: r, evaluations=1, name="b", budget=0.2, **terms)
    assert strategies(plan)["bo"].noise == pytest.approx(search.noise_std.item(), rel=1e-6)
    assert plan.final_noise == pytest.approx(final.noise_std.item(), rel=1e-6)


def test_the_noise_of_a_gradient_is_the_one_that_a_run_then_has():
    bounds = box(3)
    terms = of(bounds=bounds, iterations=10, batch_size=4, clip=1.0)
    gibo = DPGIBO(curator(5000, BUDGET), lambda x, r: r, budget=0.9, **terms)
    remark = strategies(dpbo.plan(5000, BUDGET, evaluations=40, dimension=3))["gibo"].remark
    assert f"10 steps; a gradient's noise is {gibo.rho:.2g} times its clip" in remark


def test_the_detectable_difference_is_wrong_one_time_in_twenty():
    plan = strategies(dpbo.plan(1000, BUDGET, evaluations=20))
    gap = plan["bo"].detectable_difference
    noise = plan["bo"].noise
    assert 0.5 * math.erfc(gap / (noise * math.sqrt(2)) / math.sqrt(2)) == pytest.approx(0.05)
    epsilon = float(plan["choice"].remark.split()[1].rstrip(";"))
    assert 0.5 * math.exp(
        -epsilon * 1000 * plan["choice"].detectable_difference / 2
    ) == pytest.approx(0.05, rel=0.1)


def test_which_strategy_is_recommended():
    for units, dimension, fits in (
        (50_000, 4, "bo"),
        (50_000, 12, "bo"),
        (1000, 4, "choice"),
        (50, 4, "none"),
        (1200, 10, "gibo"),
    ):
        plan = dpbo.plan(units, BUDGET, evaluations=44, dimension=dimension)
        assert plan.recommended == fits
        assert f"Recommended: {fits}" in str(plan)


def test_what_no_strategy_can_do_is_said():
    plan = strategies(dpbo.plan(1000, Budget(0.01, 1e-6), evaluations=5, dimension=9))
    assert "needs 10 model fits" in plan["gibo"].remark
    assert math.isinf(plan["choice"].detectable_difference)
    plan = strategies(dpbo.plan(2, BUDGET, evaluations=5, score_range=(-1.0, 0.0)))
    assert math.isinf(plan["bo"].detectable_difference)
    assert math.isinf(plan["choice"].detectable_difference)
    assert "within 1 of the best" in plan["choice"].remark


def test_the_table_of_noise_is_the_page_s_and_in_the_units_of_a_given_range():
    plan = dpbo.plan(1000, Budget(3.0, 1e-6), score_range=(0.0, 50.0))
    terms = of(delta=1e-6, evaluations=30)
    wide = noise_table([1000], [3.0], share=0.9, score_range=(0.0, 50.0), **terms)
    assert f" {strategies(plan)['bo'].noise:.2g} |" in wide
    half = noise_table([500], [0.5], share=0.9, **terms)
    assert half.splitlines()[-1] == "| 500 | 9.3 |", "as on docs/choosing.md"


def test_the_detectable_gain_is_that_of_the_default_searchs_test_and_falls_with_the_units():
    budget = dpbo.Budget(1.0, 1e-6)
    plan = dpbo.plan(1000, budget, score_range=(-1.0, 1.0), risk=0.05)
    assert plan.detectable_gain == pytest.approx(2 * 0.5 * math.log(1.25 / 0.05) / (1000 * 0.5))
    assert plan.units_for(plan.detectable_gain / 3) == 3000
    assert "finds a gain of 0.0065 over your model" in str(plan), "a bound, rounded up: 0.00644"
    more = dpbo.plan(plan.units_for(0.002), budget, score_range=(-1.0, 1.0), risk=0.05)
    assert more.detectable_gain == pytest.approx(0.002, rel=1e-3)
    gaussian = dpbo.plan(1000, dpbo.Budget.gdp(0.5)).detectable_gain
    noise = scipy.stats.norm(scale=0.5 * math.sqrt(2) / 0.5 / 1000)
    assert noise.sf(noise.isf(0.1) - gaussian) == pytest.approx(0.8, rel=1e-6)
