"""A private search that kills itself; see test_killed.py. Arguments: which search, ledger, file of draws, call to die at (0: never)."""

import json
import os
import pathlib
import signal
import sys

import torch

from dpbo import Adjacency, Budget, Curator, PrivacyUnit, PrivateObjective
from dpbo.curator.curator import Curator as Watched

job, ledger, draws, kill_at = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
calls = 0


def count(frame, event, _argument):
    """Every call and return in the curator's folder is a point where the power may fail."""
    global calls
    if event in ("call", "return") and f"{os.sep}curator{os.sep}" in frame.f_code.co_filename and frame.f_code.co_name != "_draw":
        calls += 1
        if calls == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def noted(self, handle, *arguments):
    """The curator's own draw, noted durably before it happens."""
    with pathlib.Path(draws).open("a") as file:
        file.write(handle.id + "\n")
        file.flush()
        os.fsync(file.fileno())
    return draw(self, handle, *arguments)


draw, Watched._draw = Watched._draw, noted  # type: ignore[method-assign]


def score(x, records):
    return 1 - (records - x[0]).abs()


def small():
    """Six evaluations, in batches of two while they last."""
    curator = Curator(
        torch.linspace(0, 1, 500, dtype=torch.float64),
        unit=PrivacyUnit("record"),
        adjacency=Adjacency.REPLACE_ONE,
        budget=Budget(3.0, 1e-5),
        dataset="killed",
        ledger=ledger,
    )
    objective = PrivateObjective(curator, score, score_range=(0.0, 1.0), evaluations=6, name="search")
    while objective.remaining:
        objective(torch.rand(min(2, objective.remaining), 1, dtype=torch.float64))
    return objective.history()


def main_job():
    """The main job as `python -m dpbo --ledger` runs it, with nine evaluations and the separate last one."""
    from dpbo.demo import split, tune_privately

    return tune_privately(split(0), Budget(3.0, 1e-5), evaluations=9, seed=0, ledger=ledger).history


sys.setprofile(count)
X, Y, _ = {"small": small, "main": main_job}[job]()
sys.setprofile(None)
print(json.dumps({"calls": calls, "history": {"X": X.tolist(), "Y": Y.tolist()}}))
