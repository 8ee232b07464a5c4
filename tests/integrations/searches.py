"""A small private search for the tests of Optuna and Ax, and a worker of it in a process of its own.

python -m tests.integrations.searches JOB STORAGE LEDGER NAME
    work:    wait for another worker of the same job, then optimise until nothing is left
    die:     kill itself once the third value is released, before Optuna hears of it
    resume:  print how many values the study did not have
"""

import os
import pathlib
import signal
import sys
import time

import scipy.stats
import torch

from dpbo import Adjacency, Budget, Curator, PrivacyUnit, PrivateObjective, Space

SPACE = Space(rate=scipy.stats.loguniform(1e-3, 1e1), shift=scipy.stats.uniform(-1, 2))
RECORDS = torch.linspace(0.2, 0.6, 400, dtype=torch.float64)


def score(x, records):
    """Best where the rate is near 0.1 and the shift near 0."""
    return 1 - (records - x[0]).abs() - 0.2 * (x[1] - 0.5).abs()


def curator(ledger=None, records=RECORDS, **settings):
    return Curator(
        records,
        unit=PrivacyUnit("record"),
        adjacency=Adjacency.REPLACE_ONE,
        budget=Budget(3.0, 1e-5),
        dataset="searches",
        ledger=ledger,
        **settings,
    )


def objective(owner=None, evaluations=6, **settings):
    return PrivateObjective(owner or curator(), score, score_range=(0.0, 1.0), evaluations=evaluations, name="search", **settings)


def main(job, storage, ledger, name):
    import optuna

    from dpbo.integrations.optuna import NoiseAwareSampler, TrialObjective

    class Dying(TrialObjective):
        def _released(self, study, handle):
            told = super()._released(study, handle)
            if self.objective.remaining <= self.objective.evaluations - 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return told

    def slow(x):
        time.sleep(0.1)
        return x

    sampler = NoiseAwareSampler(SPACE, initial=5)
    study = optuna.load_study(study_name="search", storage=storage, sampler=sampler, pruner=optuna.pruners.NopPruner())
    private = (Dying if job == "die" else TrialObjective)(objective(curator(ledger), evaluations=8, fit=slow), SPACE)
    if job != "die":
        ready = pathlib.Path(ledger).parent / f"{job} {name}"
        ready.touch()
        while len(list(ready.parent.glob(f"{job} *"))) < 2:
            time.sleep(0.01)
    if job == "resume":
        print(private.resume(study))
    else:
        study.optimize(private)


if __name__ == "__main__":
    main(*sys.argv[1:])
