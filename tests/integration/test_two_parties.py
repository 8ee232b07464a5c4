"""The two example programs as two real processes, killed at any moment: nothing is charged or drawn
twice.
"""

import collections
import contextlib
import random
import runpy
import sys
import time
from typing import Any

import pytest

from dpbo.errors import RemoteRefusal
from dpbo.ledger import Ledger
from dpbo.papers.po_gp_ucb import RemoteOutcomes, read_release
from tests.attacks.marks import attack
from tests.integration.processes import free_port, started
from tests.setups import ROOT


def program(name, *arguments):
    """An example, as from a shell."""
    sys.argv = [name, *arguments]
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")


class Parties:
    """The two programs in one folder."""

    def __init__(self, folder):
        self.folder = folder
        self.port = str(free_port())
        self.owner: Any = None
        self.modeler: Any = None

    def own(self):
        arguments = ("release", "token", self.port)
        self.owner = started(self.folder, "owner.log", program, "data_owner.py", *arguments)
        until(self.statement, self.owner, self.folder / "owner.log")

    def model(self, steps):
        arguments = ("release", "token", f"http://127.0.0.1:{self.port}", str(steps))
        self.modeler = started(self.folder, "modeler.log", program, "modeler.py", *arguments)

    def statement(self):
        token = (self.folder / "token").read_text()
        with RemoteOutcomes(f"http://127.0.0.1:{self.port}", token, timeout=60) as asked:
            return asked.statement()

    def charges(self):
        """The charged slots of outcomes."""
        ledger = Ledger.open(str(self.folder / "patients.db"))
        return [slot for record in ledger.charges("outcomes") for slot in record.body["slots"]]

    def last_line(self):
        return (self.folder / "modeler.log").read_text().splitlines()[-1]


def until(tried, process, log):
    """Tries again until it works."""
    end = time.monotonic() + 300
    while process.is_alive() and time.monotonic() < end:
        with contextlib.suppress(OSError, RemoteRefusal, AssertionError):
            return tried()
        time.sleep(0.02)
    raise AssertionError(log.read_text())


def kill(process):
    if process is not None:
        process.kill()
        process.join()


@pytest.fixture
def parties(tmp_path):
    both = Parties(tmp_path)
    yield both
    kill(both.modeler)
    kill(both.owner)


@attack("A16", "A21")
@pytest.mark.parametrize("kills", [2, pytest.param(8, marks=pytest.mark.deep)])
def test_either_side_may_be_killed_at_any_moment(parties, kills):
    steps = 20 * (kills + 1)
    moment = random.Random(time.time_ns())
    parties.own()
    rows, _ = read_release(parties.folder / "release")
    for turn in range(kills):
        parties.model(steps)

        def more(asked=20 * turn + 5):
            assert len(parties.charges()) >= asked

        until(more, parties.modeler, parties.folder / "modeler.log")
        time.sleep(0.05 * moment.random())
        kill(parties.modeler if turn % 2 else parties.owner)
        if not turn % 2:
            parties.modeler.join()
            parties.own()
    parties.model(steps)
    parties.modeler.join(timeout=300)
    assert parties.modeler.exitcode == 0, (parties.folder / "modeler.log").read_text()
    told = parties.last_line()
    assert f"{steps} answers" in told
    assert told.startswith(("Row", "Nothing was found"))
    charged = parties.charges()
    ledger = Ledger.open(str(parties.folder / "patients.db"))
    drawn = ledger.values("outcomes")
    for name in ("part", "details"):
        counted = collections.Counter(str(slot[name]) for slot in charged)
        assert max(counted.values()) == 1, "one answer a row, one charge a question"
    assert len(charged) - len(drawn) <= kills, "at most what was under way is lost"
    assert len(ledger.charges("rows")) == 1
    assert ledger.used() == {"rows": 1, "outcomes": 1}
    assert read_release(parties.folder / "release")[0].Z.equal(rows.Z), "drawn once"
    # again, for nothing
    parties.model(steps)
    parties.modeler.join(timeout=300)
    assert parties.last_line() == told
    assert parties.charges() == charged
    assert (
        "noise 0.5 a coordinate on rows of norm up to 25: the best row can be found"
        in (parties.folder / "owner.log").read_text()
    )
    assert parties.statement()["adjacency"] == "bounded-row-change"
    assert (parties.folder / "token").stat().st_mode & 0o077 == 0, "for its owner alone"
    names = sorted(file.name for file in (parties.folder / "release").iterdir())
    assert names == ["release.json", "rows.npz", "statement.json", "statement.txt"]
