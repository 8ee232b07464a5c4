"""A process that has imported everything and forks one run per line it is told; see test_killed.py.

A line: {"job", "url", "draws", "kill_at", "kill_after"}: which search, on which ledger, the file of draws, at which call into the curator's
files it kills itself (0: never), after how many seconds it is killed from outside (0: never). A line comes back: {"status", "calls",
"seconds", "history"}. Ledgers are opened after the fork.
"""

import json
import os
import pathlib
import signal
import sys
import threading
import time

import psycopg  # noqa: F401  imported before the fork, as all is
import torch

from dpbo import Adjacency, Budget, Curator, PrivacyUnit, PrivateObjective
from dpbo.curator.curator import Curator as Watched


def noted(draws, draw):
    """The curator's own draw, noted durably before it happens, so that nothing a run did can hide."""

    def first_noted(self, handle, *arguments):
        with pathlib.Path(draws).open("a") as file:
            file.write(handle.id + "\n")
            file.flush()
            os.fsync(file.fileno())
        return draw(self, handle, *arguments)

    return first_noted


def counter(kill_at):
    """Every call and return in the curator's folder is a point where the power may fail."""
    calls = [0]

    def count(frame, event, _argument):
        if event in ("call", "return") and f"{os.sep}curator{os.sep}" in frame.f_code.co_filename and frame.f_code.co_name != "_draw":
            calls[0] += 1
            if calls[0] == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    return count, calls


def score(x, records):
    return 1 - (records - x[0]).abs()


def small(url):
    """Six evaluations, in batches of two while they last."""
    curator = Curator(
        torch.linspace(0, 1, 500, dtype=torch.float64),
        unit=PrivacyUnit("record"),
        adjacency=Adjacency.REPLACE_ONE,
        budget=Budget(3.0, 1e-5),
        dataset=None if url is None else "killed",
        ledger=url,
    )
    objective = PrivateObjective(curator, score, score_range=(0.0, 1.0), evaluations=6, name="search")
    while objective.remaining:
        objective(torch.rand(min(2, objective.remaining), 1, dtype=torch.float64))
    return objective.history()


def main_job(url):
    """The main job as `python -m dpbo --ledger` runs it, with nine evaluations and the separate last one."""
    from dpbo.demo import split, tune_privately

    return tune_privately(split(0), Budget(3.0, 1e-5), evaluations=9, seed=0, ledger=url).history


def run(told, out):
    """One run in a forked child; never returns."""
    count, calls = counter(told["kill_at"])
    Watched._draw = noted(told["draws"], Watched._draw)  # type: ignore[method-assign]
    sys.setprofile(count)
    X, Y, _ = {"small": small, "main": main_job}[told["job"]](told["url"])
    sys.setprofile(None)
    os.write(out, json.dumps({"calls": calls[0], "history": {"X": X.tolist(), "Y": Y.tolist()}}).encode())
    os._exit(0)


def forked(told):
    """Run it, wait for its end, and say how it ended."""
    inside, outside = os.pipe()
    begun = time.monotonic()
    if (child := os.fork()) == 0:
        try:
            run(told, outside)
        finally:
            os._exit(1)
    os.close(outside)
    clock = threading.Timer(told["kill_after"], os.kill, (child, signal.SIGKILL))
    if told["kill_after"]:
        clock.start()
    with os.fdopen(inside) as pipe:
        said = pipe.read()
    clock.cancel()
    _, status = os.waitpid(child, 0)
    ended = {"status": os.waitstatus_to_exitcode(status), "seconds": time.monotonic() - begun}
    return {**ended, **(json.loads(said) if said else {})}


if __name__ == "__main__":
    small(None)  # whatever is imported late is imported now; this ledger is in memory and of no child
    for line in sys.stdin:
        print(json.dumps(forked(json.loads(line))), flush=True)
