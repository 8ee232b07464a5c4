"""Studies of records with several roles: each role is composed by itself, and the guarantee is that
of the worst one.
"""

import dataclasses
import math

import pytest
import torch

from dpbo import PrivateObjective
from dpbo.accounting import GDPFilter, Planned, PureFilter, RDPFilter, ZCDPFilter, compose
from dpbo.accounting.calibration import convert_adjacency
from dpbo.dpsgd.selection import NoisedScore, selection_event
from dpbo.errors import InputError
from dpbo.events import (
    ExponentialEvent,
    GaussianEvent,
    LaplaceEvent,
    PoissonGaussianEvent,
    RolesEvent,
    event_from_json,
)
from dpbo.mechanisms import GaussianMechanism
from dpbo.privacy import Adjacency
from dpbo.queries import ClippedMean
from dpbo.run_counts import PoissonRuns
from tests.setups import of, owner

STEPS = PoissonGaussianEvent(2.0, 50, rate=0.1, relation="add-or-remove-one")
SCORE = GaussianEvent(3.0)
TRIAL = RolesEvent(costs=(("training", (STEPS,)), ("validation", (SCORE,))))


def test_each_role_is_composed_by_itself_and_the_worst_counts():
    both = compose([TRIAL.repeated(7)], delta=1e-6).epsilon
    assert both == max(
        compose([event.repeated(event.count * 7)], delta=1e-6).epsilon for event in (STEPS, SCORE)
    )
    assert both < compose([STEPS.repeated(350), SCORE.repeated(7)], delta=1e-6).epsilon, (
        "no record pays for both"
    )
    # events without roles count for every role
    common = LaplaceEvent(4.0)
    expected = max(compose([event, common], delta=1e-6).epsilon for event in (STEPS, SCORE))
    assert compose([TRIAL, common], delta=1e-6).epsilon == expected
    plan = Planned([TRIAL.repeated(5)])
    assert (
        plan.composition(1e-6).epsilon
        == compose([STEPS.repeated(250)], delta=1e-6, refine=True).epsilon
    )


def test_roles_that_take_turns_being_the_worst_are_not_added_up():
    turns = [
        RolesEvent(costs=((role, (GaussianEvent(1.0),)),)) for role in ("training", "validation")
    ]
    assert compose(turns, delta=1e-6).epsilon == compose([GaussianEvent(1.0)], delta=1e-6).epsilon
    mixed = RolesEvent(costs=(("a", (LaplaceEvent(1.0),)), ("b", (GaussianEvent(1.0),))))
    assert math.isinf(compose([mixed], delta=0.0).epsilon), (
        "at delta 0 only the pure role is bounded"
    )


def test_filters_charge_the_largest_of_the_roles():
    event = RolesEvent(
        costs=(("a", (LaplaceEvent(2.0), ExponentialEvent(8.0))), ("b", (LaplaceEvent(1.25),))),
        count=3,
    )
    # .8 against .5 + .25
    assert PureFilter().cost(event) == PureFilter().cost(LaplaceEvent(1.25, 3))
    gaussian = RolesEvent(
        costs=(("a", (GaussianEvent(2.0), GaussianEvent(2.0))), ("b", (GaussianEvent(1.5),)))
    )
    for accounting in (GDPFilter(), ZCDPFilter(), RDPFilter(4.0)):
        # 2/4 against 1/2.25
        assert accounting.cost(gaussian) == accounting.cost(GaussianEvent(2.0, 2))
    assert GDPFilter().cost_or_none(TRIAL) is None, "sampled steps have no GDP price"
    assert RDPFilter(8.0).cost(TRIAL).parts[0] >= max(
        RDPFilter(8.0).cost(e).parts[0] for e in (STEPS, SCORE)
    )


def test_json_keeps_it_and_a_relation_is_converted_inside_it():
    scaled = dataclasses.replace(TRIAL, noise_multiplier=1.5, count=4)
    assert event_from_json(scaled.to_json()) == scaled
    assert scaled.of("training") == (
        PoissonGaussianEvent(3.0, 200, rate=0.1, relation="add-or-remove-one"),
    )
    assert scaled.of("no such role") == ()
    replaced = convert_adjacency(TRIAL, Adjacency.ADD_OR_REMOVE_ONE, Adjacency.REPLACE_ONE)
    assert replaced.relations() == {"replace-one"}
    assert dict(replaced.costs)["validation"] == (GaussianEvent(1.5),)


def test_one_curator_pays_under_one_role_alone():
    spent = [
        RolesEvent(2.0, costs=((role, (GaussianEvent(1.0),)),))
        for role in ("validation", "candidate")
    ]
    curator = owner(torch.arange(50.0), accounting=Planned(spent))
    asked = of(score_range=(0.0, 1.0), role="candidate")

    def score(_, records):
        return records / 50

    before = curator.ledger.head().hash
    with pytest.raises(InputError, match="role='candidate'"):
        curator.release(ClippedMean(score, **asked), GaussianMechanism(2.0))
    with pytest.raises(InputError, match="role='candidate'"):
        PrivateObjective(curator, ClippedMean(score, **asked), evaluations=1)
    inner = NoisedScore(score, (0.0, 1.0), GaussianMechanism(2.0), {"role": "candidate"})
    with pytest.raises(InputError, match="role='candidate'"):
        selection_event(curator, run_count=PoissonRuns(3.0), score=inner)
    assert curator.ledger.head().hash == before, "refused before anything is written"
    curator.release(ClippedMean(score, **{**asked, "role": "validation"}), GaussianMechanism(2.0))
