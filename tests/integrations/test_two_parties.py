"""Curator and modeler as two real processes over a socket, killed at any moment: no charge is lost and no noise is drawn twice."""

import collections
import csv
import json
import math
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from dpbo.__main__ import main
from dpbo.algorithms.outsourced import read_release
from dpbo.curator import Ledger
from dpbo.errors import InputError
from dpbo.integrations import RemoteCurator, RemoteRefusal
from dpbo.integrations.asking import Journal
from dpbo.integrations.tables import read_columns

ROWS, STEPS, KILLS, BETWEEN = 150, 80, 4, 6


@pytest.fixture
def place(tmp_path):
    write_table(tmp_path, ROWS)
    return tmp_path


def write_table(place, rows):
    rng = random.Random(0)
    with (place / "table.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["a", "b", "y"])
        for _ in range(rows):
            a, b = rng.uniform(-10, 10), rng.uniform(0, 40)
            lines.writerow([a, b, math.exp(-((a - 3) ** 2 + (b / 2 - 8) ** 2) / 60)])


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def started(place, *arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error:::dpbo"}
    with (place / f"{arguments[0]}.log").open("a") as log:
        return subprocess.Popen([sys.executable, "-m", "dpbo", *arguments], cwd=place, env=environment, stdout=log, stderr=log)


def curating(place, port, *more):
    rows = ["--columns", "a", "b", "--center", "0", "20", "--scale", "1", "2", "--radius", "15", "--row-change", "1", "--epsilon", "8"]
    outcome = ["--outcome", "y", "--outcome-range", "0", "1", "--dataset", "test", "--ledger", "private.db", "--out", "release"]
    served = ["--serve", str(port), "--token-file", "token", "--every", "0.02"]
    return started(place, "curate", "table.csv", *rows, *outcome, *served, *more)


def modeling(place, port):
    return started(
        place, "model", "release", "--curator", f"http://127.0.0.1:{port}", "--token-file", "token", "--length-scale", "5",
        "--steps", str(STEPS), "--journal", "journal.jsonl",
    )  # fmt: skip


def answering(place):
    """A curator that answers, its port and its statement; another program may take a free port first: then on another."""
    for _ in range(5):
        port = free_port()
        curator = curating(place, port)
        try:
            return curator, port, wait_for_answers(place, port, curator)
        except AssertionError:
            if curator.poll() is None:  # silent, which no other port would mend
                kill(curator)
                raise
    raise AssertionError((place / "curate.log").read_text())


def wait_for_answers(place, port, process, seconds=180):
    """Until the curator answers, or its process has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            with RemoteCurator(f"http://127.0.0.1:{port}", (place / "token").read_text().strip(), timeout=10) as curator:
                return curator.statement()
        except (OSError, RemoteRefusal):
            time.sleep(0.1)
    raise AssertionError((place / "curate.log").read_text())


def wait_for_lines(path, count, seconds=180):
    """Until the journal has so many: a question and its answer are two."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.01)
    raise AssertionError((path.parent / "model.log").read_text())


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.attack("A16")
def test_either_side_may_be_killed_at_any_moment(place):
    rng = random.Random(time.time_ns())
    curator, port, _ = answering(place)
    table = (place / "release" / "rows.npz").read_bytes()
    modeler = modeling(place, port)
    try:
        for turn in range(KILLS):
            wait_for_lines(place / "journal.jsonl", 2 * BETWEEN * (turn + 1))
            time.sleep(0.1 * rng.random())
            assert modeler.poll() is None, "still at work"
            if turn % 2:
                kill(modeler)
                modeler = modeling(place, port)
            else:
                kill(curator)
                curator = curating(place, port)
        assert modeler.wait(timeout=180) == 0, (place / "model.log").read_text()
    finally:
        for process in (curator, modeler):
            process.kill()
            process.wait()
    _require_accounts(place)
    assert (place / "release" / "rows.npz").read_bytes() == table, "the rows were drawn once"


def _require_accounts(place):
    """Every answer was charged once, drawn once and is what the modeler holds; at most one a row."""
    ledger = Ledger.existing(str(place / "private.db"))
    ledger.verify()
    charges = [slot for record in ledger.charges("outcomes") for slot in record.body["slots"]]
    drawn = {value["details"]["request"]: value for value in ledger.values("outcomes")}
    journal = Journal(place / "journal.jsonl")
    assert len(journal.told) == STEPS
    assert max(collections.Counter(slot["part"] for slot in charges).values()) == 1
    assert max(collections.Counter(slot["details"]["request"] for slot in charges).values()) == 1
    assert {name: (answer.row, answer.value) for name, answer in journal.told.items()} == {
        name: (value["details"]["row"], value["value"][0]) for name, value in drawn.items() if name in journal.told
    }
    assert set(drawn) <= set(journal.asked), "nothing was answered that was not asked"
    lost = len(charges) - len(drawn)
    assert lost <= KILLS, "at most what was under way when the curator died"
    assert len(ledger.charges("rows")) == 1
    assert ledger.head().used == {"rows": 1, "outcomes": 1}


@pytest.mark.attack("A21")
def test_the_release_holds_what_the_modeler_needs_and_nothing_private(place):
    write_table(place, 1000)  # their mean squared length is known to 5 %
    curator, _, statement = answering(place)
    kill(curator)
    rows, facts = read_release(place / "release")
    X = (read_columns(place / "table.csv", ["a", "b"]) - torch.tensor([0.0, 20.0])) / torch.tensor([1.0, 2.0])
    noise = (rows.Z - X).square().mean()
    assert float(noise) == pytest.approx(rows.variance, rel=0.4)
    assert rows.variance == pytest.approx(3 / 4.0**2)
    assert facts["columns"] == ["a", "b"]
    assert statement["adjacency"] == "bounded-row-change"
    assert statement["guarantee"]["epsilon"] == 8.0
    assert "3.34 % of the diameter 30" in (place / "release" / "statement.txt").read_text()
    assert json.loads((place / "release" / "statement.json").read_text())["unit"] == "row"
    assert (place / "token").stat().st_mode & 0o077 == 0, "for its owner alone"
    names = sorted(file.name for file in (place / "release").iterdir())
    assert names == ["release.json", "rows.npz", "statement.json", "statement.txt"]


@pytest.mark.attack("A21")
@pytest.mark.usefixtures("seeded_noise")
def test_without_a_given_centre_nothing_is_taken_off(place, monkeypatch):
    monkeypatch.chdir(place)
    options = "--columns a b --outcome y --outcome-range 0 1 --radius 50 --row-change 1 --epsilon 8 --dataset test --ledger private.db"
    assert main(["curate", "table.csv", *options.split(), "--out", "release"]) == 0
    rows, facts = read_release(place / "release")
    X = read_columns(place / "table.csv", ["a", "b"])
    assert (facts["center"], facts["scale"]) == (None, None)
    assert float((rows.Z - X).mean(0).abs().max()) < 6 * (rows.variance / ROWS) ** 0.5, "the table's own mean, about 20, is private"


def test_other_columns_or_units_are_refused_under_the_same_ledger(place, monkeypatch):
    monkeypatch.chdir(place)

    def curate(*changed, code):
        options = {"--columns": ["a", "b"], "--scale": ["1", "2"], "--outcome": ["y"], "--outcome-range": ["0", "1"]}
        options |= {changed[0]: list(changed[1:])} if changed else {}
        flat = [word for name, values in options.items() for word in (name, *values)]
        rest = ["--radius", "15", "--row-change", "1", "--epsilon", "8", "--dataset", "test", "--ledger", "private.db", "--out", "release"]
        assert main(["curate", "table.csv", *flat, *rest]) == code

    curate("--outcome-range", "1", "0", code=1)
    assert Ledger.existing(str(place / "private.db")).head().kind == "birth", "refused before anything was reserved"
    curate(code=0)
    before = (place / "release" / "release.json").read_bytes(), Ledger.existing(str(place / "private.db")).head().hash
    for changed in (("--scale", "2", "1"), ("--columns", "b", "a"), ("--outcome", "a")):
        curate(*changed, code=1)
    (place / "table.csv").write_text("".join((place / "table.csv").read_text().splitlines(keepends=True)[:-5]))
    curate(code=1)
    assert ((place / "release" / "release.json").read_bytes(), Ledger.existing(str(place / "private.db")).head().hash) == before


def test_a_journal_cut_off_in_a_line_goes_on_from_the_line_before(tmp_path):
    journal = Journal(tmp_path / "j")
    name = journal.ask(3)
    whole = (tmp_path / "j").read_bytes()
    (tmp_path / "j").write_bytes(whole + b'{"told": 0.3, "vari')
    again = Journal(tmp_path / "j")
    assert again.open() == [name]
    again.skip(name)
    assert Journal(tmp_path / "j").open() == []


@pytest.mark.attack("A21")
def test_tables_from_every_format_and_no_cell_in_any_error(place):
    wanted = read_columns(place / "table.csv", ["y", "a"])
    np.savez(place / "t.npz", y=wanted[:, 0].numpy(), a=wanted[:, 1].numpy())
    assert torch.equal(read_columns(place / "t.npz", ["y", "a"]), wanted)
    (place / "u.csv").write_text("a,b\n1,secret\n,2\n")
    broken = read_columns(place / "u.csv", ["a", "b"])
    assert broken.isnan().tolist() == [[False, True], [True, False]]
    (place / "v.npz").write_bytes(b"secret")
    (place / "w.txt").write_text("secret")
    for name, columns in (("u.csv", ["c"]), ("v.npz", ["a"]), ("w.txt", ["a"]), ("none.csv", ["a"])):
        with pytest.raises(InputError) as refused:
            read_columns(place / name, columns)
        assert "secret" not in str(refused.value)


def test_a_folder_without_a_release_is_refused(tmp_path):
    with pytest.raises(InputError, match="folder"):
        read_release(tmp_path)
    (tmp_path / "release.json").write_text("{}")
    with pytest.raises(InputError, match="folder"):
        read_release(pathlib.Path(tmp_path))
