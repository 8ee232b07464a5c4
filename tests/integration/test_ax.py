"""Ax over a private objective: nothing overspent, nothing told but releases, nothing paid for
lost.
"""

import contextlib
import importlib
import logging
from typing import Any

import pytest
import torch

from dpbo import Space
from dpbo.errors import BudgetExceeded, InputError, LedgerUnavailable, PrivateFailure
from dpbo.integrations.ax import ClientObjective
from dpbo.testing import replay
from tests.attacks.marks import attack
from tests.integration.searches import (
    CANARY,
    RECORDS,
    SPACE,
    TERMS,
    curator,
    failing_score,
    objective,
    released,
    score,
)
from tests.integration.test_wording import SPECS
from tests.setups import DOUBLE

Client = importlib.import_module("ax.api.client").Client
# a stalled line search, which BoTorch tries again
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    for name in [name for name in logging.root.manager.loggerDict if name.split(".")[0] == "ax"]:
        monkeypatch.setattr(logging.getLogger(name), "disabled", True)


def a_loop(evaluations=6, space=SPACE, constraints=(), private=None, **settings):
    private = private or objective(evaluations=evaluations, **settings)
    return ClientObjective(private, space, Client(random_seed=1), parameter_constraints=constraints)


def summary(loop):
    """Ax's own table of trials, a dict each."""
    return loop.client.summarize().to_dict("records")


def statuses(loop):
    return [trial["trial_status"] for trial in summary(loop)]


def assert_told(loop, evaluations):
    """Ax has the ledger's values, and the standard errors with which it was told them."""
    completed = [trial for trial in summary(loop) if trial["trial_status"] == "COMPLETED"]
    values = [value for value, _ in released(loop).values()]
    assert sorted(trial["score"] for trial in completed) == pytest.approx(sorted(values), rel=1e-9)
    assert len(completed) == evaluations
    (variance,) = {variance for _, variance in released(loop).values()}
    assert sems(loop) == pytest.approx([variance**0.5] * evaluations)


def sems(loop):
    return loop.client._experiment.lookup_data().df["sem"].tolist()


def test_a_run_ends_when_the_plan_is_used_up():
    loop = a_loop()
    loop.run()
    assert_told(loop, 6)
    assert statuses(loop) == ["COMPLETED"] * 6, "none too many, none that failed"
    assert loop.ask(5) == {}, "with nothing left nothing is proposed"
    assert len(statuses(loop)) == 6
    for x, trial in zip(loop.objective.history()[0], summary(loop), strict=True):
        shown = {name: trial[name] for name in SPACE.names}
        assert SPACE.decode(x) == pytest.approx(shown, rel=1e-9)
    assert loop.recommended().params.keys() == {"rate", "shift"}


def test_step_by_step():
    loop = a_loop(evaluations=3)
    asked = loop.ask(2)
    first, second = asked
    with pytest.raises(InputError, match=f"the handle of trial {second}"):
        loop.tell(second, loop.objective.evaluate(asked[first]))
    handles = {index: loop.objective.evaluate(x) for index, x in asked.items()}
    assert loop.objective.remaining == 3, "nothing is charged yet"
    assert len(loop.ask(2)) == 1, "what is running is paid for in advance"
    assert loop.ask(2) == {}
    for index in (second, first):
        loop.tell(index, handles[index])
    with pytest.raises(InputError, match="has no value yet"):
        loop.tell(first, handles[first])
    loop.run()
    assert_told(loop, 3)


def test_a_new_client_is_told_what_the_ledger_has():
    first = a_loop()
    (index,) = first.ask()
    handle = first.objective.evaluate(first._running[index])
    # as if the process had died before Ax was told
    first.objective.release(handle)
    again = a_loop(private=first.objective)
    assert_told(again, 1)
    again.run(2)
    assert_told(again, 3)
    assert first.resume() == 3
    assert first.resume() == 0
    with pytest.raises(InputError, match="without an experiment"):
        ClientObjective(first.objective, SPACE, first.client)


def test_the_last_slot_lost_to_another_process():
    loop = a_loop(evaluations=2)
    ((index, x),) = loop.ask().items()
    handle = loop.objective.evaluate(x)
    loop.objective(SPACE.sample(2, seed=0))
    with pytest.raises(BudgetExceeded):
        loop.tell(index, handle)
    assert statuses(loop) == ["ABANDONED"]
    loop.run()
    assert loop.resume() == 2, "what the other released is learned from the ledger"
    assert_told(loop, 2)


def test_a_value_that_the_ledger_could_not_store_is_not_paid_for_again(monkeypatch):
    loop = a_loop(4)
    store = loop.objective.curator.ledger.store
    failures = iter([False, True])

    def failing(*arguments):
        if next(failures, False):
            raise LedgerUnavailable("the disk is full")
        return store(*arguments)

    monkeypatch.setattr(loop.objective.curator.ledger, "store", failing)
    with pytest.raises(LedgerUnavailable, match="disk is full"):
        loop.run()
    loop.run()
    assert_told(loop, 4)
    assert len({tuple(x) for x in loop.objective.history()[0].tolist()}) == 4, "no point twice"


def test_a_fit_that_raises_ends_its_trial_at_no_charge():
    def fit(x):
        raise ValueError("no such rate")

    loop = a_loop(fit=fit)
    for _ in range(2):
        with pytest.raises(ValueError, match="no such rate"):
            loop.run()
    assert statuses(loop) == ["ABANDONED"] * 2
    assert loop.objective.remaining == 6


def test_constraints_hold_for_proposals_and_for_the_recommendation():
    private = objective(evaluations=6)
    private(SPACE.sample(3, seed=0))
    outside = int((private.history()[0][:, 1] > 0.5).sum())
    assert outside, "shift above 0"
    loop = a_loop(private=private, constraints=["shift <= 0"])
    assert len(summary(loop)) == 3 - outside
    loop.run()
    assert all(trial["shift"] <= 1e-9 for trial in summary(loop))
    assert loop.recommended().params["shift"] <= 1e-9


def test_every_kind_of_parameter():
    space = Space(**SPECS)
    seen: list[Any] = []

    def fit(x):
        seen.append(space.decode(x))
        return torch.tensor([0.4, 0.5], dtype=DOUBLE)

    loop = a_loop(4, space, fit=fit)
    loop.run()
    for shown, parameters in zip(summary(loop), seen, strict=True):
        for name in ("depth", "layers", "batch", "kernel", "flag"):
            assert shown[name] == parameters[name]
        assert shown["sizes"] == repr(parameters["sizes"])
        assert shown["C"] == pytest.approx(parameters["C"], rel=1e-9)


@attack("A6", "A7", "A21")
def test_replay_of_an_experiment():
    neighbour = RECORDS.clone()
    neighbour[200] = 0.0

    def run(owner, records):
        loop = a_loop(5, owner=owner)
        loop.run()
        return repr((summary(loop), sems(loop), loop.recommended().params))

    assert len(replay(run, RECORDS, neighbour, **TERMS)) == 5


@attack("A21")
def test_a_failing_score_leaves_nothing_private_behind(tmp_path, capfd):
    file = tmp_path / "client.json"
    loop = a_loop(3, owner=curator(records=RECORDS + float(CANARY)), score=failing_score)
    for _ in range(2):
        with pytest.raises(PrivateFailure):
            loop.run()
    assert statuses(loop) == ["RUNNING"], "tried again by the next run"
    assert loop.objective.remaining == 3
    loop.client.save_to_json_file(str(file))
    for word in (CANARY, "PrivateFailure"):
        assert word not in file.read_text() + "".join(capfd.readouterr())


@attack("A7", "A21")
def test_no_proposal_follows_a_private_failure():
    """Where it did, points told of the records."""

    def broken(x, records):
        # Made-up records are fewer.
        if float(x[0]) > 0.5 and len(records) == 400 and bool((records > 0.1).any()):
            raise ValueError
        return score(x, records)

    points = []
    for records in (RECORDS, RECORDS.clamp(max=0.1)):
        loop = a_loop(4, owner=curator(records=records), score=broken)
        for _ in range(3):
            with contextlib.suppress(PrivateFailure):
                loop.run()
        points.append([(trial["rate"], trial["shift"]) for trial in summary(loop)])
    shorter, longer = sorted(points, key=len)
    assert shorter == longer[: len(shorter)]
    assert len(shorter) < len(longer) == 4, "the score failed on one of them"
