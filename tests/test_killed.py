"""kill -9 at twenty points of a run: every drawn release is charged, none is drawn twice, and the run goes on to its end.

The child runs a small private search (or, at a few points, the main job) and kills itself at its k-th call into the curator's files, spread
from birth to the last store. It notes each draw in a side file, synced before the noise is drawn, so that nothing it did can hide.
"""

import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

from dpbo.curator.ledger import Ledger

CHILD = pathlib.Path(__file__).parent / "killed_child.py"
SLOTS = {"small": 6, "main": 10}
POINTS = [("small", point / 19) for point in range(20)] + [("main", share) for share in (0.35, 0.6, 0.97)]


def run(job, folder, kill_at):
    command = [sys.executable, str(CHILD), job, str(folder / "l.db"), str(folder / "draws"), str(kill_at)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})


@functools.cache
def calls(job):
    """How many calls into the curator an undisturbed run makes."""
    with tempfile.TemporaryDirectory() as folder:
        done = run(job, pathlib.Path(folder), 0)
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout)["calls"])


@pytest.mark.parametrize(("job", "share"), POINTS)
@pytest.mark.attack("A16")
def test_a_killed_run_goes_on_and_its_ledger_is_whole(tmp_path, job, share):
    killed = run(job, tmp_path, 1 + int(share * (calls(job) - 1)))
    assert killed.returncode == -9, killed.stdout + killed.stderr
    done = run(job, tmp_path, 0)
    assert done.returncode == 0, done.stderr

    ledger = Ledger.existing(str(tmp_path / "l.db"))
    ledger.verify()
    records = ledger.records()
    charged = [slot["handle"] for record in records if record.kind == "charge" for slot in record.body["slots"]]
    stored = [value["handle"] for record in records if record.kind == "value" for value in record.body["values"]]
    drawn = (tmp_path / "draws").read_text().split()

    assert len(drawn) == len(set(drawn)), "a handle was drawn twice"
    assert set(drawn) <= set(charged), "noise was drawn without a charge"
    assert set(stored) <= set(drawn)
    assert len(charged) == len(set(charged)) == SLOTS[job], "the plan is used up, no more and no less"
    kinds = [record.kind for record in records]
    assert kinds.count("charge") - kinds.count("value") <= 1, "at most the one release in flight is lost"
    history, values = json.loads(done.stdout)["history"], ledger.values("search")
    assert history["X"] == [value["details"]["x"] for value in values]
    assert history["Y"] == [value["value"] for value in values]
