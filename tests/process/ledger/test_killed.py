"""kill -9 at any point of a run: every drawn release is charged, none is drawn twice, and the run
goes on to its end.

A process runs a small private search and dies at its k-th call into the files of the curator and
the ledger, from birth to the last store, or by the clock, which also hits the database's own code
in the middle of a commit. `make audit` adds two hundred random points, of a seed that
DPBO_FIRE_SEED sets and a failure prints, and a few points of a run with two reservations.
"""

import functools
import json
import multiprocessing
import os
import pathlib
import random
import signal
import sys
import threading
import time

import pytest
import torch

from dpbo import Curator
from dpbo.ledger.ledger import Ledger
from tests.attacks.marks import attack
from tests.process.ledger.runs import make, search
from tests.setups import DOUBLE, charged, stored

SEED = int(os.environ.get("DPBO_FIRE_SEED", "20261121"))
SLOTS = {"small": 6, "with last": 10}
RANDOM = [("sqlite", chunk, 15) for chunk in range(10)] + [
    ("postgresql", chunk, 10) for chunk in range(5)
]
pytestmark = attack("A16")


def small(url, evaluations=6, budget=1.0):
    """Evaluations in batches of two while they last."""
    objective = search(make(url, dataset=url and "killed"), evaluations, budget=budget)
    while objective.remaining:
        objective(torch.rand(min(2, objective.remaining), 1, dtype=DOUBLE))
    return objective.history()


def with_last(url):
    """Nine evaluations, and the best one's anew, of which each has its share of the budget."""
    X, Y, Yvar = small(url, 9, budget=0.9)
    last = search(make(url, dataset="killed"), 1, "last", budget=0.1)
    if last.remaining:
        last(X[Y[:, 0].argmax()].unsqueeze(0))
    return X, Y, Yvar


def searched(job, url, draws, kill_at, out):
    """The whole run; every call and return in the files of the curator and of the ledger is a point
    where it may kill itself.

    Writes how many points it passed and what it found. Draws are noted durably before they happen,
    so that nothing that a run did can hide.
    """
    calls = 0
    draw = Curator._draw

    def noted(self, handle, *arguments):
        with pathlib.Path(draws).open("a") as file:
            file.write(handle.id + "\n")
            file.flush()
            os.fsync(file.fileno())
        return draw(self, handle, *arguments)

    def count(frame, event, _argument):
        nonlocal calls
        if (
            event in ("call", "return")
            and pathlib.Path(frame.f_code.co_filename).parent.name in ("curator", "ledger")
            and frame.f_code.co_name != "_draw"
        ):
            calls += 1
            if calls == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    Curator._draw = noted  # type: ignore[method-assign]
    sys.setprofile(count)
    X, Y, _ = {"small": small, "with last": with_last}[job](url)
    sys.setprofile(None)
    pathlib.Path(out).write_text(json.dumps({"calls": calls, "X": X.tolist(), "Y": Y.tolist()}))


def run(job, url, draws, *, kill_at=0, kill_after=0.0):
    """Run it in a process of its own: its exit code, its seconds, and what it wrote.

    Args:
        draws: the file in which draws are noted.
        kill_at: at which call into the curator's files it kills itself; 0: never.
        kill_after: after how many seconds it is killed from outside; 0: never.
    """
    out = draws.with_suffix(".json")
    out.unlink(missing_ok=True)
    process = multiprocessing.get_context("forkserver").Process(
        target=searched, args=(job, url, str(draws), kill_at, str(out))
    )
    begun = time.monotonic()
    process.start()
    clock = threading.Timer(kill_after, process.kill)
    if kill_after:
        clock.start()
    process.join(300)
    clock.cancel()
    ended = {"status": process.exitcode, "seconds": time.monotonic() - begun}
    return {
        **ended,
        **(json.loads(out.read_text()) if out.exists() and process.exitcode == 0 else {}),
    }


@pytest.fixture
def place(request, tmp_path):
    """`place(database)`: where the next ledger and its file of draws may be."""
    made = iter(range(10**6))

    def new(database):
        number = next(made)
        url = (
            str(tmp_path / f"{number}.db")
            if database == "sqlite"
            else request.getfixturevalue("server").schema()
        )
        return url, tmp_path / f"{number}.draws"

    return new


@pytest.fixture
def calls(place):
    """`calls(database, job)`: into the curator, of an undisturbed run."""
    return functools.cache(lambda database, job: undisturbed(job, *place(database))["calls"])


def undisturbed(job, url, draws):
    done = run(job, url, draws)
    assert done["status"] == 0
    return done


@pytest.mark.parametrize(
    ("database", "job", "shares"),
    [
        ("sqlite", "small", [0.1, 0.4, 0.6, 0.9]),
        pytest.param("sqlite", "small", [n / 7 for n in range(8)], marks=pytest.mark.deep),
        pytest.param("postgresql", "small", [0.2, 0.6, 0.9], marks=pytest.mark.deep),
        pytest.param("sqlite", "with last", [0.35, 0.6, 0.97], marks=pytest.mark.deep),
    ],
)
def test_a_killed_run_goes_on_and_its_ledger_is_whole(
    place, calls, measured, database, job, shares
):
    for share in shares:
        die_and_go_on(job, *place(database), kill_at=1 + int(share * (calls(database, job) - 1)))
    measured(len(shares))


@pytest.mark.deep
@pytest.mark.parametrize(("database", "chunk", "points"), RANDOM)
def test_a_run_killed_at_random_points(place, calls, measured, database, chunk, points):
    rng = random.Random(f"{SEED} {database} {chunk}")
    for _ in range(points):
        die_and_go_on("small", *place(database), kill_at=rng.randint(1, calls(database, "small")))
    measured(points)


@pytest.mark.deep
@pytest.mark.parametrize(("database", "points"), [("sqlite", 40), ("postgresql", 20)])
def test_a_run_killed_by_the_clock(place, measured, database, points):
    rng = random.Random(f"{SEED} {database} clock")
    killed = 0
    for _ in range(4 * points):
        # each time: a shared machine's pace changes
        seconds = undisturbed("small", *place(database))["seconds"]
        killed += die_and_go_on(
            "small", *place(database), kill_after=rng.uniform(0.02, 1.0) * seconds
        )
        if killed == points:
            break
    assert killed == points, "most of them were still running"
    measured(points)


def die_and_go_on(job, url, draws, **when):
    """Whether it was killed; asserts all that must hold after the run that follows.

    A server that is asked again after a wait makes a run's calls some more or fewer: it may end
    before the last of those once counted.
    """
    killed = run(job, url, draws, **when)
    ended = killed["status"] == 0 and (
        "kill_after" in when or when["kill_at"] - 8 < killed["calls"] < when["kill_at"]
    )
    assert killed["status"] == -9 or ended, (SEED, when, killed)
    done = run(job, url, draws)
    assert done["status"] == 0, (SEED, when, done)

    ledger = Ledger.open(url)
    ledger.verify()
    paid = charged(ledger)
    drawn = draws.read_text().split()

    assert len(drawn) == len(set(drawn)), (SEED, when, "a handle was drawn twice")
    assert set(drawn) <= set(paid), (SEED, when, "noise was drawn without a charge")
    assert set(stored(ledger)) <= set(drawn), (SEED, when)
    assert len(paid) == len(set(paid)) == SLOTS[job], (
        SEED,
        when,
        "the plan is used up, no more and no less",
    )
    kinds = [record.kind for record in ledger.records()]
    assert kinds.count("charge") - kinds.count("value") <= 1, (
        SEED,
        when,
        "at most the one release in flight is lost",
    )
    values = ledger.values("search")
    assert done["X"] == [value["details"]["x"] for value in values]
    assert done["Y"] == [value["value"] for value in values]
    return killed["status"] == -9
