"""The command line: the main job, planning, and looking at a ledger."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from dpbo import Budget, Curator
from dpbo.__main__ import main


def printed(*arguments):
    """Exit status, what a command prints, and what it says of errors."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = main(list(map(str, arguments)))
    return status, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A small main job with a ledger, a picture and a JSON file: its folder, and what it printed."""
    folder = tmp_path_factory.mktemp("job")
    status, out, err = printed("--candidates", 6, "--ledger", folder / "l.db", "--plot", folder / "p.png", "--json", folder / "o.json")
    assert status == 0
    assert err == "", "silent where there is no terminal"
    return folder, out


def test_the_main_job_reports_what_it_should(job):
    folder, out = job
    result = json.loads((folder / "o.json").read_text())
    default, free, openly, private = result["accuracies"].values()
    assert private > max(default, free) - 0.03
    assert openly > default
    assert 0 <= result["estimate"] <= 1
    assert abs(result["estimate"] - private) < 6 * result["standard error"] + 0.03
    assert result["statement"]["guarantee"]["epsilon"] == pytest.approx(1.0)
    assert "(1.000, 0.0)-DP" in out
    assert "could be shown only because these records are public" in out
    assert (folder / "p.png").stat().st_size > 10_000


def test_a_reader_who_leaves_early_is_no_traceback(job):
    """As a user runs it: a process of its own."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "dpbo", "ledger", "export", str(job[0] / "l.db")]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_the_ledger_can_be_shown_verified_and_exported(job):
    file = job[0] / "l.db"
    status, out, _ = printed("ledger", "export", file)
    records = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert [r["kind"] for r in records].count("charge") == 2
    assert printed("ledger", "verify", file, "--expect", records[-1]["hash"])[0] == 0
    status, _, err = printed("ledger", "verify", file, "--expect", "0" * 64)
    assert status == 1
    assert "LedgerCorrupt" in err
    released = [value["value"][0] for record in records if record["kind"] == "value" for value in record["body"]["values"]]
    _, out, _ = printed("ledger", "show", file)
    assert all(f"       {value:.4g}" in out for value in released)
    assert "Budget: epsilon 1" in out
    assert "with reservations 100.0% (shares of epsilon); a further budget of epsilon 0.0 is left." in out
    for action in ("show", "form"):
        status, out, _ = printed("ledger", action, file)
        assert status == 0
        assert "(1.000, 0.0)-DP" in out


@pytest.mark.deep
def test_running_again_finds_it_done_and_charges_nothing(job):
    folder, first = job
    _, again, _ = printed("--candidates", 6, "--ledger", folder / "l.db")
    assert again == first, "and the head has not moved"


def test_bad_input_is_one_line_and_exit_1(tmp_path):
    records, budget = np.zeros((9, 1)), Budget(1.0, 1e-6)
    Curator(records, unit="record", adjacency="replace-one", budget=budget, dataset="others", ledger=tmp_path / "l.db")
    (tmp_path / "x.db").write_text("not a database " * 100)
    for arguments, message in {
        ("--ledger", tmp_path / "l.db"): "LedgerMismatch",
        ("--epsilon", "0"): "epsilon",
        ("--delta", "1.5"): "delta",
        ("--seed", "-1"): "seed",
        ("ledger", "show", "/nowhere/l.db"): "no ledger",
        ("ledger", "verify", tmp_path / "x.db"): "LedgerCorrupt",
        ("plan", "--units", "0"): "units",
    }.items():
        status, _, err = printed(*arguments)
        assert status == 1, arguments
        assert message in err
        assert len(err.splitlines()) == 1, err


def test_the_plan_table_is_the_one_the_readme_shows():
    status, out, _ = printed("plan")
    assert status == 0
    table = "\n".join(line for line in out.splitlines() if line.startswith("|"))
    assert table in (pathlib.Path(__file__).parents[2] / "docs/choosing.md").read_text()
