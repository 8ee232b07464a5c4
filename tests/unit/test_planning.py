"""Planning: its numbers are those that the objective and the choice then have; its picture is a
picture.
"""

import math
import warnings

import pytest
import scipy.stats
import torch

import dpbo
from dpbo import Budget, PrivateObjective
from dpbo.__main__ import main
from dpbo.gibo import DPGIBO
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


def test_the_command_recommends_and_draws(capsys, tmp_path):
    arguments = [
        "plan",
        "--units",
        "1000",
        "20000",
        "--epsilons",
        "1",
        "3",
        "--points",
        "40",
        "--dimension",
        "4",
    ]
    assert main(arguments) == 0
    assert "| 20,000 | bo" in capsys.readouterr().out
    assert (
        main(["plan", "--units", "1000", "--epsilons", "1", "--dimension", "4", "--share", "1"])
        == 0
    )
    assert "| strategy | releases |" in capsys.readouterr().out
    assert main(["plan", "--dimension", "0"]) == 2
    assert (
        main(
            [
                "plan",
                "--units",
                "1000",
                "--epsilons",
                "1",
                "3",
                "--dimension",
                "2",
                "--range",
                "0",
                "50",
            ]
        )
        == 0
    )
    table, _, plans = capsys.readouterr().out.partition("Recommended")
    wide = strategies(dpbo.plan(1000, Budget(3.0, 1e-6), score_range=(0.0, 50.0)))["bo"]
    assert f" {wide.noise:.2g} |" in table, "in the units of the range"
    assert "in the units of a score in [0, 50]" in table
    assert f"bo {wide.detectable_difference:.2g}" in plans
    pytest.importorskip("matplotlib")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (
            main(
                ["plan", "--units", "5000", "--epsilons", "1", "--plot", str(tmp_path / "plan.png")]
            )
            == 0
        )
    assert (tmp_path / "plan.png").stat().st_size > 10_000


def test_errors_of_the_command_line_name_what_was_typed(capsys, tmp_path):
    curate = [
        "curate",
        "t.csv",
        "--columns",
        "a",
        "--radius",
        "1",
        "--epsilon",
        "1",
        "--outcome",
        "y",
        "--outcome-range",
        "0",
        "1",
    ]
    curate += ["--dataset", "d", "--ledger", str(tmp_path / "l.db"), "--out", str(tmp_path)]
    for arguments, flag in (
        (["plan", "--epsilons", "-1"], "--epsilons -1.0 is not allowed: --epsilons must"),
        (["plan", "--at-delta", "2"], "--at-delta 2.0"),
        (["plan", "--points", "0"], "--points 0"),
        (["plan", "--range", "1", "0"], "--range (1.0, 0.0)"),
        (["plan", "--units", "0"], "--units 0"),
        (["plan", "--share", "2"], "--share 2.0"),
        (["--candidates", "0"], "--candidates 0"),
        (["plan", "--dimension", "0"], "--dimension 0"),
        (["--epsilon", "-1"], "--epsilon -1.0"),
        (["--seed", "-1"], "--seed -1"),
        (["ledger", "show", "a\0b"], "FILE_OR_URL <str>"),
        ([*curate, "--serve", "1"], "--token-file None"),
        (curate, "DATA='t.csv'"),
    ):
        assert main(arguments) == 2
        told = capsys.readouterr()
        assert told.err.startswith(f"InputError: {flag}"), told.err
        assert "deviation" not in told.out or "| 500 |" in told.out, "no header without its table"


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
