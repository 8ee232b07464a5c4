"""An exported ledger is enough for another program: dp_accounting recomputes every epsilon from its
lines alone.
"""

import json
import math
from typing import Any

import dp_accounting
import pytest
import torch
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant

from dpbo import Adjacency, Budget, PrivateObjective
from dpbo.__main__ import main
from dpbo.accounting import Planned
from dpbo.events import (
    ExponentialEvent,
    GaussianEvent,
    LaplaceEvent,
    PermuteAndFlipEvent,
    PoissonGaussianEvent,
)
from dpbo.mechanisms import (
    ExponentialMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    PermuteAndFlipMechanism,
)
from dpbo.queries import QuantileUtilities
from tests.setups import DOUBLE, MEAN, owner

CHOICE = QuantileUtilities(lambda _, r: r, candidates=[0.1, 0.5, 0.9], quantile=0.5)
EVENTS = (
    GaussianEvent(9.0, 6),
    LaplaceEvent(8.0, 2),
    ExponentialEvent(10.0, 2),
    PermuteAndFlipEvent(10.0, 1),
)
SAMPLED = PoissonGaussianEvent(3.0, 2, rate=0.25, relation="replace-one")


def exported(tmp_path, capsys, accounting):
    """The lines that `ledger export` prints after every kind of release that this accounting pays
    for.
    """
    url = str(tmp_path / "l.db")
    curator = owner(
        torch.linspace(0, 1, 400, dtype=DOUBLE),
        budget=Budget(20.0, 1e-6),
        dataset="d",
        ledger=url,
        accounting=accounting,
    )
    if accounting.cost_or_none(GaussianEvent(9.0)) is not None and not isinstance(
        accounting, Planned
    ):
        share = 0.1
        PrivateObjective(
            curator, lambda x, r: r, score_range=(0.0, 1.0), evaluations=4, budget=share
        )(torch.rand(3, 1).double())
    releases = [
        (MEAN, GaussianMechanism(9.0)),
        (MEAN, LaplaceMechanism(8.0)),
        (CHOICE, ExponentialMechanism(10.0)),
        (CHOICE, PermuteAndFlipMechanism(10.0)),
    ]
    for query, mechanism in releases:
        if (
            accounting.cost_or_none(query.release_event(mechanism.event(), Adjacency.REPLACE_ONE))
            is not None
        ):
            curator.release(query, mechanism)
    if accounting.cost_or_none(SAMPLED) is not None:
        # As DP-SGD charges its steps.
        curator.ledger.charge("steps", SAMPLED, {})
    statement = curator.statement()
    assert main(["ledger", "export", url]) == 0
    return statement, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def theirs(event):
    """dp_accounting's event for one slot of ours, in units of its own relation; None for a choice,
    which it does not know.
    """
    noise = event["noise_multiplier"]
    match event["mechanism"]:
        case "gaussian":
            return dp_accounting.GaussianDpEvent(noise)
        case "laplace":
            return dp_accounting.LaplaceDpEvent(noise)
        # (2 / M)^2 / 8-zCDP
        case "exponential":
            return dp_accounting.ZCDpEvent(0.5 / noise**2)
        case "permute-and-flip":
            return dp_accounting.dp_event.RandomizedResponseDpEvent(
                2 / (1 + math.exp(2 / noise)), 2
            )
        case "poisson-gaussian":
            return dp_accounting.PoissonSampledDpEvent(
                event["rate"], dp_accounting.GaussianDpEvent(noise)
            )
    raise AssertionError(event)


def charged(lines):
    return [line["body"]["event"] for line in lines if line["kind"] == "charge"]


def test_a_planned_ledger(tmp_path, capsys):
    """One PLD of unsampled events as they are, and of sampled ones under replace-one; the printed
    bound is never above it.
    """
    plan = Planned([*EVENTS, SAMPLED])
    statement, lines = exported(tmp_path, capsys, plan)
    planned = json.loads(lines[0]["body"]["accounting"].removeprefix("Planned(").removesuffix(")"))
    total: Any = None
    for event in planned:
        relation = (
            NeighboringRelation.REPLACE_ONE
            if event["mechanism"] == "poisson-gaussian"
            else NeighboringRelation.ADD_OR_REMOVE_ONE
        )
        if event["mechanism"] in ("exponential", "permute-and-flip"):
            relation = NeighboringRelation.REPLACE_ONE
            event = {**event, "mechanism": "permute-and-flip"}
        accountant = PLDAccountant(relation, value_discretization_interval=5e-4)
        # its count is ignored for randomised response
        for _ in range(event["count"]):
            accountant.compose(theirs(event))
        total = accountant._pld if total is None else total.compose(accountant._pld)
    reference = total.get_epsilon_for_delta(1e-6)
    assert statement.guarantee.epsilon <= reference * (1 + 1e-3)
    assert plan.composition(1e-6).pld == pytest.approx(reference, rel=0.02)
