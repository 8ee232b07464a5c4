"""Curator and modeler as two real processes over a socket, killed at any moment: no charge is lost
and no noise is drawn twice.
"""

import collections
import csv
import json
import math
import pathlib
import random
import time

import numpy as np
import pytest
import torch

from dpbo.__main__ import main
from dpbo.errors import InputError, RemoteRefusal
from dpbo.ledger import Ledger
from dpbo.papers.po_gp_ucb import read_release
from dpbo.papers.po_gp_ucb.http import RemoteCurator
from dpbo.papers.po_gp_ucb.http.client import Journal
from dpbo.papers.po_gp_ucb.http.tables import read_columns
from tests.attacks.marks import attack
from tests.integration.processes import free_port, started

BETWEEN = 6
TABLE = [
    "--columns",
    "a",
    "b",
    "--outcome",
    "y",
    "--outcome-range",
    "0",
    "1",
    "--row-change",
    "1",
    "--epsilon",
    "8",
]
FILES = ["--dataset", "test", "--ledger", "private.db", "--out", "release"]
CENTRED = ["--center", "0", "20", "--scale", "1", "2", "--radius", "15"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path, 150)
    return tmp_path


def write_table(place, rows):
    rng = random.Random(0)
    with (place / "table.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["a", "b", "y"])
        for _ in range(rows):
            a = rng.uniform(-10, 10)
            b = rng.uniform(0, 40)
            lines.writerow([a, b, math.exp(-((a - 3) ** 2 + (b / 2 - 8) ** 2) / 60)])


def curating(place, port):
    served = ["--serve", str(port), "--token-file", "token", "--every", "0.02"]
    return started(
        place, "curate.log", main, ["curate", "table.csv", *TABLE, *CENTRED, *FILES, *served]
    )


def modeling(place, port, steps):
    options = [
        "--curator",
        f"http://127.0.0.1:{port}",
        "--token-file",
        "token",
        "--length-scale",
        "5",
        "--journal",
        "journal.jsonl",
    ]
    return started(
        place, "model.log", held_back, ["model", "release", *options, "--steps", str(steps)]
    )


def held_back(arguments):
    """`main`, whose modeler has asked no more questions than the file `allowed` has bytes: it is at
    work when it is to be killed.
    """
    ask = Journal.ask

    def asks(journal, row):
        while len(journal.questions) >= pathlib.Path("allowed").stat().st_size:
            time.sleep(0.01)
        return ask(journal, row)

    Journal.ask = asks  # type: ignore[method-assign]
    return main(arguments)


def allow(place, questions):
    with (place / "allowed").open("ab") as file:
        file.truncate(questions)


def answering(place, seconds=180):
    """A curator that answers, its port and its statement; where another program takes the free port
    first, on another.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        port = free_port()
        curator = curating(place, port)
        while curator.is_alive() and time.monotonic() < end:
            try:
                with RemoteCurator(
                    f"http://127.0.0.1:{port}", (place / "token").read_text().strip(), timeout=10
                ) as asked:
                    return curator, port, asked.statement()
            except (OSError, RemoteRefusal):
                time.sleep(0.1)
        kill(curator)
    raise AssertionError((place / "curate.log").read_text())


def wait_for_lines(path, count, seconds=180):
    """Until the journal has so many: a question and its answer are two."""
    end = time.monotonic() + seconds
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < end, (path.parent / "model.log").read_text()
        time.sleep(0.01)


def kill(process):
    process.kill()
    process.join()


@attack("A16")
@pytest.mark.parametrize(
    ("kills", "steps"), [(2, 24), pytest.param(12, 140, marks=pytest.mark.deep)]
)
def test_either_side_may_be_killed_at_any_moment(place, kills, steps):
    rng = random.Random(time.time_ns())
    curator, port, statement = answering(place)
    table = (place / "release" / "rows.npz").read_bytes()
    allow(place, 0)
    modeler = modeling(place, port, steps)
    try:
        for turn in range(kills):
            allow(place, BETWEEN * (turn + 2) - 1)
            wait_for_lines(place / "journal.jsonl", 2 * BETWEEN * (turn + 1))
            time.sleep(0.1 * rng.random())
            assert modeler.is_alive(), "still at work"
            if turn % 2:
                kill(modeler)
                modeler = modeling(place, port, steps)
            else:
                kill(curator)
                curator = curating(place, port)
        allow(place, 10**6)
        modeler.join(timeout=300)
        assert modeler.exitcode == 0, (place / "model.log").read_text()
    finally:
        kill(curator)
        kill(modeler)
    _require_accounts(place, kills, steps)
    assert (place / "release" / "rows.npz").read_bytes() == table, "the rows were drawn once"
    assert statement["adjacency"] == "bounded-row-change"
    assert statement["guarantee"]["epsilon"] == 8.0
    assert (place / "token").stat().st_mode & 0o077 == 0, "for its owner alone"


def _require_accounts(place, kills, steps):
    """Every answer was charged once, drawn once and is what the modeler holds; at most one a
    row.
    """
    ledger = Ledger.open(str(place / "private.db"))
    ledger.verify()
    charges = [slot for record in ledger.charges("outcomes") for slot in record.body["slots"]]
    drawn = {value["details"]["request"]: value for value in ledger.values("outcomes")}
    journal = Journal(place / "journal.jsonl")
    assert len(journal.answers) == steps
    assert max(collections.Counter(slot["part"] for slot in charges).values()) == 1
    assert max(collections.Counter(slot["details"]["request"] for slot in charges).values()) == 1
    assert {name: (answer.row, answer.value) for name, answer in journal.answers.items()} == {
        name: (value["details"]["row"], value["value"][0])
        for name, value in drawn.items()
        if name in journal.answers
    }
    assert set(drawn) <= set(journal.questions), "nothing was answered that was not asked"
    lost = len(charges) - len(drawn)
    assert lost <= kills, "at most what was under way when the curator died"
    assert len(ledger.charges("rows")) == 1
    assert ledger.used() == {"rows": 1, "outcomes": 1}


@attack("A21")
def test_the_release_holds_what_the_modeler_needs_and_nothing_private(place):
    # their mean squared length is known to 5 %
    write_table(place, 1000)
    assert main(["curate", "table.csv", *TABLE, *CENTRED, *FILES]) == 0
    rows, facts = read_release(place / "release")
    X = (read_columns(place / "table.csv", ["a", "b"]) - torch.tensor([0.0, 20.0])) / torch.tensor(
        [1.0, 2.0]
    )
    noise = (rows.Z - X).square().mean()
    assert float(noise) == pytest.approx(rows.variance, rel=0.4)
    assert rows.variance == pytest.approx(3 / 4.0**2)
    assert facts["columns"] == ["a", "b"]
    assert "3.34 % of the diameter 30" in (place / "release" / "statement.txt").read_text()
    assert json.loads((place / "release" / "statement.json").read_text())["unit"] == "row"
    names = sorted(file.name for file in (place / "release").iterdir())
    assert names == ["release.json", "rows.npz", "statement.json", "statement.txt"]


@attack("A21")
@pytest.mark.usefixtures("seeded_noise")
def test_without_a_given_centre_nothing_is_taken_off(place):
    assert main(["curate", "table.csv", *TABLE, "--radius", "50", *FILES]) == 0
    rows, facts = read_release(place / "release")
    X = read_columns(place / "table.csv", ["a", "b"])
    assert (facts["center"], facts["scale"]) == (None, None)
    assert float((rows.Z - X).mean(0).abs().max()) < 6 * (rows.variance / 150) ** 0.5, (
        "the table's own mean, about 20, is private"
    )


def test_other_columns_or_units_are_refused_under_the_same_ledger(place):
    # the last of an option given twice counts
    def curate(*changed, code):
        assert (
            main(
                [
                    "curate",
                    "table.csv",
                    *TABLE,
                    "--radius",
                    "15",
                    "--scale",
                    "1",
                    "2",
                    *FILES,
                    *changed,
                ]
            )
            == code
        )

    def kept():
        return (place / "release" / "release.json").read_bytes(), Ledger.open(
            str(place / "private.db")
        ).head().hash

    curate("--outcome-range", "1", "0", code=2)
    assert Ledger.open(str(place / "private.db")).head().kind == "birth", (
        "refused before anything was reserved"
    )
    curate(code=0)
    before = kept()
    for changed in (("--scale", "2", "1"), ("--columns", "b", "a"), ("--outcome", "a")):
        curate(*changed, code=8)
    (place / "table.csv").write_text(
        "".join((place / "table.csv").read_text().splitlines(keepends=True)[:-5])
    )
    curate(code=8)
    assert kept() == before


def test_a_journal_cut_off_in_a_line_goes_on_from_the_line_before(tmp_path):
    journal = Journal(tmp_path / "j")
    name = journal.ask(3)
    whole = (tmp_path / "j").read_bytes()
    (tmp_path / "j").write_bytes(whole + b'{"told": 0.3, "vari')
    again = Journal(tmp_path / "j")
    assert again.open() == [name]
    again.skip(name)
    assert Journal(tmp_path / "j").open() == []


@attack("A21")
def test_tables_from_every_format_and_no_cell_in_any_error(place):
    wanted = read_columns(place / "table.csv", ["y", "a"])
    np.savez(place / "t.npz", y=wanted[:, 0].numpy(), a=wanted[:, 1].numpy())
    assert torch.equal(read_columns(place / "t.npz", ["y", "a"]), wanted)
    (place / "u.csv").write_text("a,b\n1,secret\n,2\n")
    broken = read_columns(place / "u.csv", ["a", "b"])
    assert broken.isnan().tolist() == [[False, True], [True, False]]
    (place / "v.npz").write_bytes(b"secret")
    (place / "release.json").write_text('{"secret": 1}')
    (place / "w.txt").write_text("secret")
    for name, columns in (
        ("u.csv", ["c"]),
        ("v.npz", ["a"]),
        ("w.txt", ["a"]),
        ("none.csv", ["a"]),
    ):
        with pytest.raises(InputError) as refused:
            read_columns(place / name, columns)
        assert "secret" not in str(refused.value)
    with pytest.raises(InputError, match="folder") as refused:
        read_release(place)
    assert "secret" not in str(refused.value)
