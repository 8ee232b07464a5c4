"""kill -9 at any point of a run: every drawn release is charged, none is drawn twice, and the run goes on to its end.

The child runs a small private search (or, at a few points, the main job) and dies at its k-th call into the curator's files, from birth to
the last store, or by the clock, which also hits the database's own code in the middle of a commit. Twenty points are spread evenly; two
hundred more (`make audit`) are random, of a seed that DPBO_FIRE_SEED sets and a failure prints.
"""

import json
import os
import pathlib
import random
import subprocess
import sys
from typing import Any

import pytest

from dpbo.curator.ledger import Ledger

CHILD = pathlib.Path(__file__).parent / "killed_child.py"
SEED = int(os.environ.get("DPBO_FIRE_SEED", "20261121"))
SLOTS = {"small": 6, "main": 10}
SHARES = [("sqlite", "small", n / 13) for n in range(14)] + [("postgresql", "small", n / 5) for n in range(6)]
MAIN = [pytest.param("sqlite", "main", share, marks=[] if share == 0.6 else pytest.mark.deep) for share in (0.35, 0.6, 0.97)]
RANDOM = [("sqlite", chunk, 15) for chunk in range(10)] + [("postgresql", chunk, 10) for chunk in range(5)]
pytestmark = pytest.mark.attack("A16")


class Forks:
    """The process that forks runs, and how long an undisturbed run is."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._told, self._said = self._process.stdin, self._process.stdout
        self._whole: dict[tuple[str, str], dict[str, Any]] = {}

    def run(self, job, url, draws, *, kill_at=0, kill_after=0.0):
        told = {"job": job, "url": url, "draws": str(draws), "kill_at": kill_at, "kill_after": kill_after}
        self._told.write(json.dumps(told) + "\n")
        self._told.flush()
        return json.loads(self._said.readline())

    def whole(self, database, job, place):
        """An undisturbed run, kept: its number of calls into the curator, and its seconds."""
        if (database, job) not in self._whole:
            self._whole[database, job] = self.undisturbed(job, *place())
        return self._whole[database, job]

    def undisturbed(self, job, url, draws):
        told = self.run(job, url, draws)
        assert told["status"] == 0
        return told

    def close(self):
        self._told.close()
        self._process.wait(timeout=60)
        self._said.close()


@pytest.fixture(scope="module")
def forks():
    running = Forks()
    yield running
    running.close()


@pytest.fixture
def place(request, tmp_path):
    """`place(database)`: where the next ledger and its file of draws may be."""
    made = iter(range(10**6))

    def new(database):
        number = next(made)
        url = str(tmp_path / f"{number}.db") if database == "sqlite" else request.getfixturevalue("server").schema()
        return url, tmp_path / f"{number}.draws"

    return new


@pytest.mark.parametrize(("database", "job", "share"), [*SHARES, *MAIN])
def test_a_killed_run_goes_on_and_its_ledger_is_whole(forks, place, database, job, share):
    calls = forks.whole(database, job, lambda: place(database))["calls"]
    die_and_go_on(forks, job, *place(database), kill_at=1 + int(share * (calls - 1)))


@pytest.mark.deep
@pytest.mark.parametrize(("database", "chunk", "points"), RANDOM)
def test_a_run_killed_at_random_points(forks, place, measured, database, chunk, points):
    calls, rng = forks.whole(database, "small", lambda: place(database))["calls"], random.Random(f"{SEED} {database} {chunk}")
    for _ in range(points):
        die_and_go_on(forks, "small", *place(database), kill_at=rng.randint(1, calls))
    measured(points)


@pytest.mark.deep
@pytest.mark.parametrize(("database", "points"), [("sqlite", 40), ("postgresql", 20)])
def test_a_run_killed_by_the_clock(forks, place, measured, database, points):
    rng, killed = random.Random(f"{SEED} {database} clock"), 0
    for _ in range(4 * points):
        seconds = forks.undisturbed("small", *place(database))["seconds"]  # each time: a shared machine's pace changes
        killed += die_and_go_on(forks, "small", *place(database), kill_after=rng.uniform(0.02, 1.0) * seconds)
        if killed == points:
            break
    assert killed == points, "most of them were still running"
    measured(points)


def die_and_go_on(forks, job, url, draws, **when):
    """Whether it was killed; asserts all that must hold after the run that follows.

    A server that is asked again after a wait makes a run's calls some more or fewer: it may end before the last of those once counted.
    """
    killed = forks.run(job, url, draws, **when)
    ended = killed["status"] == 0 and ("kill_after" in when or when["kill_at"] - 8 < killed["calls"] < when["kill_at"])
    assert killed["status"] == -9 or ended, (SEED, when, killed)
    done = forks.run(job, url, draws)
    assert done["status"] == 0, (SEED, when, done)

    ledger = Ledger.existing(url)
    ledger.verify()
    records = ledger.records()
    charged = [slot["handle"] for record in records if record.kind == "charge" for slot in record.body["slots"]]
    stored = [value["handle"] for record in records if record.kind == "value" for value in record.body["values"]]
    drawn = draws.read_text().split()

    assert len(drawn) == len(set(drawn)), (SEED, when, "a handle was drawn twice")
    assert set(drawn) <= set(charged), (SEED, when, "noise was drawn without a charge")
    assert set(stored) <= set(drawn), (SEED, when)
    assert len(charged) == len(set(charged)) == SLOTS[job], (SEED, when, "the plan is used up, no more and no less")
    kinds = [record.kind for record in records]
    assert kinds.count("charge") - kinds.count("value") <= 1, (SEED, when, "at most the one release in flight is lost")
    history, values = done["history"], ledger.values("search")
    assert history["X"] == [value["details"]["x"] for value in values]
    assert history["Y"] == [value["value"] for value in values]
    return killed["status"] == -9
