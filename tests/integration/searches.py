"""A small private search for the tests of Optuna and Ax, and `main`, a worker of it in a process of
its own, whose job is one of

    die:     kill itself once the third value is released, before Optuna hears of it
    resume:  beside another worker of the same job, print how many values the study did not have,
             then optimise until nothing is left
"""

import os
import pathlib
import signal
import time
from typing import Any

import scipy.stats
import torch

from dpbo import Adjacency, Budget, Curator, PrivacyUnit, PrivateObjective, Space

SPACE = Space(rate=scipy.stats.loguniform(1e-3, 1e1), shift=scipy.stats.uniform(-1, 2))
TERMS: dict[str, Any] = {
    "unit": PrivacyUnit("record"),
    "adjacency": Adjacency.REPLACE_ONE,
    "budget": Budget(3.0, 1e-5),
}
CANARY = "73.0625"
RECORDS = torch.linspace(0.2, 0.6, 400, dtype=torch.float64)


def score(x, records):
    """Best where the rate is near 0.1 and the shift near 0."""
    return 1 - (records - x[0]).abs() - 0.2 * (x[1] - 0.5).abs()


def failing_score(x, records):
    """Says what it saw where there are real records, which are those that `CANARY` was added to:
    made-up ones are below 1.
    """
    if float(records.min()) > 1:
        raise ValueError(f"seen: {records.tolist()}, {CANARY}")
    return records


def curator(ledger=None, records=RECORDS, **settings):
    # A name alone would keep the ledger for the next test.
    dataset = None if ledger is None else "searches"
    return Curator(records, **TERMS, dataset=dataset, ledger=ledger, **settings)


def objective(owner=None, evaluations=6, **settings):
    asked = {"score": score, "score_range": (0.0, 1.0), "name": "search", **settings}
    return PrivateObjective(owner or curator(), evaluations=evaluations, **asked)


def released(private):
    """What `private`, which wraps an objective, has released."""
    return released_by(private.objective.curator.ledger)


def released_by(ledger):
    """Value and variance of each release, by handle."""
    return {
        value["handle"]: (value["value"][0], value["variance"][0])
        for value in ledger.values("search")
    }


def meet(folder, place):
    """Wait until another worker is as far as this one."""
    (folder / place).touch()
    while len(list(folder.glob(f"{place.split()[0]} *"))) < 2:
        time.sleep(0.01)


def main(job, storage, ledger, name):
    import optuna

    from dpbo.integrations.optuna import NoiseAwareSampler, TrialObjective

    def released_then_killed(handle):
        value = PrivateObjective.release(private.objective, handle)
        if private.objective.remaining <= private.objective.evaluations - 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return value

    def slow(x):
        time.sleep(0.1)
        return x

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = NoiseAwareSampler(SPACE, initial=5)
    opened = optuna.storages.RDBStorage(storage)
    study = optuna.load_study(
        study_name="search", storage=opened, sampler=sampler, pruner=optuna.pruners.NopPruner()
    )
    private = TrialObjective(objective(curator(ledger), evaluations=8, fit=slow), SPACE)
    if job == "die":
        private.objective.release = released_then_killed  # type: ignore[method-assign]
    else:
        meet(pathlib.Path(ledger).parent, f"resuming {name}")
        print(private.resume(study), flush=True)
        meet(pathlib.Path(ledger).parent, f"working {name}")
    study.optimize(private)
    opened.remove_session()
    opened.engine.dispose()
