"""kill -9 at twenty points of a run: every drawn release is charged, none is drawn twice, and the run goes on to its end.

The child runs a small private search and kills itself at its k-th call into the curator's files, spread from birth to the last store.
It notes each draw in a side file, synced before the noise is drawn, so that nothing it did can hide.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from dpbo.curator.ledger import Ledger

POINTS = 20
CHILD = pathlib.Path(__file__).parent / "killed_child.py"


def run(folder, kill_at):
    command = [sys.executable, str(CHILD), str(folder / "l.db"), str(folder / "draws"), str(kill_at)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """How many calls into the curator an undisturbed run makes."""
    done = run(tmp_path_factory.mktemp("whole"), 0)
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout)["calls"])


@pytest.mark.parametrize("point", range(POINTS))
def test_a_killed_run_goes_on_and_its_ledger_is_whole(tmp_path, calls, point):
    killed = run(tmp_path, 1 + point * (calls - 1) // (POINTS - 1))
    assert killed.returncode == -9, killed.stdout + killed.stderr
    done = run(tmp_path, 0)
    assert done.returncode == 0, done.stderr

    ledger = Ledger.existing(str(tmp_path / "l.db"))
    ledger.verify()
    charged, stored = [], []
    for record in ledger.records():
        if record.kind == "charge":
            charged += [slot["handle"] for slot in record.body["slots"]]
        if record.kind == "value":
            stored += [value["handle"] for value in record.body["values"]]
    drawn = (tmp_path / "draws").read_text().split()

    assert len(drawn) == len(set(drawn)), "a handle was drawn twice"
    assert set(drawn) <= set(charged), "noise was drawn without a charge"
    assert set(stored) <= set(drawn)
    assert len(charged) == len(set(charged)) == 6, "the plan is used up, no more and no less"
    kinds = [record.kind for record in ledger.records()]
    assert kinds.count("charge") - kinds.count("value") <= 1, "at most the one release in flight is lost"
    history = json.loads(done.stdout)["history"]
    assert len(history["X"]) == len(history["Y"]) == len(stored)
    values = [value for r in ledger.records() if r.kind == "value" for value in r.body["values"]]
    assert history["X"] == [value["details"]["x"] for value in values]
    assert history["Y"] == [value["value"] for value in values]
