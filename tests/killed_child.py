"""A small private search that kills itself; see test_killed.py."""

import json
import os
import pathlib
import signal
import sys

import torch

from dpbo import Adjacency, Budget, Curator, PrivacyUnit, PrivateObjective
from dpbo.curator.curator import Curator as Watched

ledger, draws, kill_at = sys.argv[1], sys.argv[2], int(sys.argv[3])
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


sys.setprofile(count)
curator = Curator(
    torch.linspace(0, 1, 500, dtype=torch.float64),
    unit=PrivacyUnit("record"),
    adjacency=Adjacency.REPLACE_ONE,
    budget=Budget(3.0, 1e-5),
    dataset="killed",
    ledger=ledger,
)
objective = PrivateObjective(curator, score, score_range=(0.0, 1.0), evaluations=6, name="search")
while objective.remaining >= 2:
    objective(torch.rand(2, 1, dtype=torch.float64))
while objective.remaining:
    objective(torch.rand(1, 1, dtype=torch.float64))
X, Y, _ = objective.history()
sys.setprofile(None)
print(json.dumps({"calls": calls, "history": {"X": X.tolist(), "Y": Y.tolist()}}))
