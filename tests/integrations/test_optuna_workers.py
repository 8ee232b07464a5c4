"""Several processes on one study and one ledger: nothing overspent, nothing lost to a kill, nothing told that was not released."""

import os
import pathlib
import subprocess
import sys

import optuna
import pytest
from optuna.trial import TrialState

from dpbo.curator.ledger import Ledger
from dpbo.integrations.optuna import TrialObjective
from tests.integrations.searches import SPACE, curator, objective

ROOT = pathlib.Path(__file__).parents[2]


def shared(folder):
    """A study in one file and the name of a ledger in another."""
    storage = f"sqlite:///{folder / 'study.db'}"
    study = optuna.create_study(storage=storage, study_name="search", direction="maximize", pruner=optuna.pruners.NopPruner())
    return study, storage, str(folder / "ledger.db")


def started(job, storage, ledger, name):
    command = [sys.executable, "-m", "tests.integrations.searches", job, storage, ledger, name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment)


def ended(*workers):
    """What each printed, and how it ended."""
    outputs = [worker.communicate(timeout=300) for worker in workers]
    return [(output, worker.returncode) for (output, _), worker in zip(outputs, workers, strict=True)], [error for _, error in outputs]


def told(study):
    trials = study.get_trials(states=(TrialState.COMPLETE,))
    return sorted((t.user_attrs["entry"], t.value, t.user_attrs["yvar"]) for t in trials)


def released(ledger):
    return sorted((value["handle"], value["value"][0], value["variance"][0]) for value in Ledger.existing(ledger).values("search"))


def slots(ledger):
    books = Ledger.existing(ledger)
    books.verify()
    return sum(record.body["event"]["slots"] for record in books.charges("search"))


@pytest.mark.attack("A16")
def test_two_processes_share_one_plan(tmp_path):
    study, storage, ledger = shared(tmp_path)
    results, errors = ended(*(started("work", storage, ledger, name) for name in ("a", "b")))
    assert [code for _, code in results] == [0, 0], errors
    assert slots(ledger) == 8
    assert told(study) == released(ledger)
    assert len(told(study)) == 8
    states = [trial.state for trial in study.trials]
    assert set(states) <= {TrialState.COMPLETE, TrialState.PRUNED}, "whoever came too late ended quietly"
    assert states.count(TrialState.PRUNED) <= 2, "one trial a worker at most"
    assert all(len(trial.params) == 2 for trial in study.get_trials(states=(TrialState.COMPLETE,)))
    assert len({tuple(trial.params.items()) for trial in study.get_trials(states=(TrialState.COMPLETE,))}) == 8


@pytest.mark.attack("A16")
def test_a_killed_worker_loses_nothing_that_was_paid_for(tmp_path):
    study, storage, ledger = shared(tmp_path)
    ((_, code),), errors = ended(started("die", storage, ledger, "a"))
    assert code == -9, errors
    assert len(released(ledger)) == 3
    assert len(told(study)) == 2, "the third was never told"
    results, errors = ended(*(started("resume", storage, ledger, name) for name in ("a", "b")))
    assert [code for _, code in results] == [0, 0], errors
    assert sorted(int(printed) for printed, _ in results) == [0, 1], "two who resume at once bring it back once"
    assert told(study) == released(ledger)
    study.optimize(TrialObjective(objective(curator(ledger), evaluations=8), SPACE))
    assert slots(ledger) == 8
    assert told(study) == released(ledger)
