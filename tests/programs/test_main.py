"""The command line: the main job, and looking at a ledger."""

import contextlib
import io
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
import scipy.stats
import torch

import dpbo
from dpbo import Budget
from dpbo.__main__ import EXIT_STATUS, main
from dpbo.errors import InputError
from dpbo.ledger import Ledger
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import ClippedMean
from tests.setups import DOUBLE, ROOT, TERMS, owner, point


def printed(*arguments):
    """Exit status, what a command prints, and what it says of errors."""
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        status = main(list(map(str, arguments)))
    return status, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A small main job with a ledger, a picture and a JSON file: its folder, and what it
    printed.
    """
    folder = tmp_path_factory.mktemp("job")
    status, out, err = printed(
        "--candidates",
        3,
        "--ledger",
        folder / "l.db",
        "--plot",
        folder / "p.png",
        "--json",
        folder / "o.json",
    )
    assert status == 0
    assert err == "", "silent where there is no terminal"
    return folder, out


def test_the_main_job_reports_what_it_should(job):
    folder, out = job
    result = json.loads((folder / "o.json").read_text())
    default, free, openly, private = result["accuracies"].values()
    assert private > max(default, free) - 0.03
    assert openly > default
    exact = private - default
    # of other records than the gain is about
    assert 0.0 <= result["gain at least"] < exact + 0.05
    assert result["recommendation"] in out
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
    charges = [r["kind"] for r in records].count("charge")
    told = json.loads((job[0] / "o.json").read_text())["recommendation"]
    assert charges == 2 or "default model was kept" in told, "a candidate, and its test"
    assert printed("ledger", "verify", file, "--expect", records[-1]["hash"])[0] == 0
    status, out, _ = printed("ledger", "verify", file)
    assert (status, "newest record that this user's programs have seen" in out) == (0, True)
    status, _, err = printed("ledger", "verify", file, "--expect", "0" * 64)
    assert status == 6
    assert "LedgerRolledBack" in err
    released = [
        value["value"][0]
        for record in records
        if record["kind"] == "value"
        for value in record["body"]["values"]
    ]
    _, out, _ = printed("ledger", "show", file)
    assert all(f"       {value:.4g}" in out for value in released)
    assert "Budget: epsilon 1" in out
    assert (
        "with reservations 100.0% (shares of epsilon); a further budget of epsilon 0.0 is left."
        in out
    )
    for action in ("show", "form"):
        status, out, _ = printed("ledger", action, file)
        assert status == 0
        assert "(1.000, 0.0)-DP" in out


@pytest.mark.deep
def test_running_again_finds_it_done_and_charges_nothing(job):
    folder, first = job
    _, again, _ = printed("--candidates", 3, "--ledger", folder / "l.db")
    assert again == first, "and the head has not moved"


def test_bad_input_is_one_line_and_its_own_exit_status(tmp_path):
    records = np.zeros((9, 1))
    budget = Budget(1.0, 1e-6)
    owner(records, budget=budget, dataset="others", ledger=tmp_path / "l.db")
    (tmp_path / "x.db").write_text("not a database " * 100)
    # A link to itself: whether there is a file is not to be seen.
    loop = tmp_path / "loop.db"
    loop.symlink_to(loop)
    for arguments, (expected, message) in {
        ("--ledger", tmp_path / "l.db"): (8, "LedgerMismatch"),
        ("--epsilon", "0"): (2, "--epsilon 0.0 is not allowed: --epsilon must"),
        ("ledger", "show", "a\0b"): (2, "FILE_OR_URL <str>"),
        ("report", tmp_path / "l.db", "--output", tmp_path / "no" / "r.html"): (2, "--output"),
        ("ledger", "show", "/nowhere/l.db"): (4, "no ledger"),
        ("ledger", "verify", tmp_path / "x.db"): (5, "LedgerCorrupt"),
        ("ledger", "verify", tmp_path / "l.db", "--expect", "0" * 64): (6, "LedgerRolledBack"),
        ("ledger", "show", "postgresql+psycopg://nobody@127.0.0.1:1/none"): (
            7,
            "LedgerUnavailable",
        ),
        ("ledger", "show", loop): (7, "LedgerUnavailable"),
    }.items():
        status, _, err = printed(*arguments)
        assert status == expected, (arguments, err)
        assert message in err
        assert len(err.splitlines()) == 1, err


def test_the_arguments_of_other_commands_are_refused_with_2(tmp_path):
    for arguments, message in {
        ("--json", "o.json", "ledger", "show", "l.db"): "ledger show FILE_OR_URL --json",
        ("ledger", "verify", "l.db", "--json"): "ledger show",
        ("ledger", "burn", "l.db"): "invalid choice",
    }.items():
        with contextlib.redirect_stderr(io.StringIO()) as err, pytest.raises(SystemExit) as ended:
            main(list(arguments))
        assert ended.value.code == 2
        assert message in err.getvalue()


def test_the_page_of_errors_lists_every_exit_status():
    page = (ROOT / "docs/errors.md").read_text()
    rows = re.findall(r"^\| ([1-9]) \| (`.*?`) \|", page, flags=re.MULTILINE)
    listed = {name: int(status) for status, names in rows for name in re.findall(r"`(\w+)`", names)}
    assert listed == {kind.__name__: status for kind, status in EXIT_STATUS.items()}


def opened(url, **settings):
    return owner(np.zeros((999, 1)), dataset="d", ledger=url, **settings)


def objective_of(curator, **settings):
    return dpbo.PrivateObjective(
        curator,
        lambda x, records: torch.zeros(len(records)),
        score_range=(0, 1),
        evaluations=3,
        budget=0.5,
        **settings,
    )


def test_a_ledger_is_shown_as_json(tmp_path):
    url = str(tmp_path / "l.db")
    points = torch.tensor([[0.0], [1.0]], dtype=DOUBLE)
    curator = opened(url)
    objective = objective_of(curator)
    Y, Yvar = objective(points)
    ledger = Ledger.open(url)
    ledger.charge(
        "lost",
        curator.ledger.reservation(objective.name).event,
        {"slots": [{}]},
        objective.name,
    )
    status, out, _ = printed("ledger", "show", url, "--json")
    shown = json.loads(out)
    assert status == 0
    assert shown["dpbo"] == dpbo.__version__
    assert [(r["seq"], r["kind"], r["name"], r["hash"]) for r in shown["records"]] == [
        (r.seq, r.kind, r.name, r.hash) for r in ledger.records()
    ]
    values = [value for record in shown["records"] for value in record["values"]]
    assert [value["value"] for value in values] == Y.tolist()
    assert [value["noise"] for value in values] == Yvar.sqrt().tolist()
    assert [value["x"] for value in values] == points.tolist()
    assert [record["kind"] for record in shown["records"] if record["lost"]] == ["charge"]
    assert shown["records"][-1]["lost"]
    assert shown["budget"]["reserved_share"] == pytest.approx(0.5)
    assert shown["budget"]["spent_share"] == pytest.approx(0.5)
    assert 0 < shown["budget"]["epsilon_left"] < 3
    assert shown["statement"] == json.loads(curator.statement().to_json())


def test_a_ledger_is_shown_a_part_at_a_time(tmp_path, monkeypatch):
    """A long one never stands in memory at once, and others may write between two parts."""
    monkeypatch.setattr("dpbo.ledger.ledger._AT_ONCE", 2)
    url = str(tmp_path / "l.db")
    objective = objective_of(opened(url))
    ledger = Ledger.open(url)
    objective(point(0.0))
    read = ledger.each()
    found = [next(read)]
    objective(point(1.0))
    found += read
    assert found == ledger.records()[: len(found)]
    assert [record.kind for record in found].count("value") == 1
    monkeypatch.setattr(Ledger, "records", None)
    for arguments in (["show"], ["show", "--json"], ["export"]):
        assert printed("ledger", arguments[0], url, *arguments[1:])[0] == 0, arguments


def test_records_say_who_writes_them_if_the_operator_does(tmp_path, monkeypatch):
    url = str(tmp_path / "l.db")

    def release(curator):
        query = ClippedMean(lambda _, records: records[:, 0], score_range=(0.0, 1.0))
        curator.release(curator.evaluate(query), GaussianMechanism(10.0))

    release(opened(url, allow_repeated=True))
    monkeypatch.setenv("DPBO_RUN_BY", "Ada, 2026-11-26")
    curator = opened(url, allow_repeated=True)
    monkeypatch.setenv("DPBO_RUN_BY", "later")
    release(curator)
    _, out, _ = printed("ledger", "show", url, "--json")
    by = [record["run_by"] for record in json.loads(out)["records"] if record["kind"] == "value"]
    assert by == [None, "Ada, 2026-11-26"]
    _, out, _ = printed("ledger", "show", url)
    assert out.count("from here on by Ada, 2026-11-26") == 1
    assert printed("ledger", "verify", url)[0] == 0
    assert curator.statement().entries == len(curator.ledger.records())
    monkeypatch.setenv("DPBO_RUN_BY", "a\nb")
    with pytest.raises(InputError, match="DPBO_RUN_BY=<str> is not allowed"):
        opened(url, allow_repeated=True)


def test_help_and_version_name_the_command_as_it_was_called(monkeypatch, capsys):
    for called, name in (("/usr/bin/dpbo", "dpbo"), ("/x/dpbo/__main__.py", "python -m dpbo")):
        monkeypatch.setattr(sys, "argv", [called])
        with pytest.raises(SystemExit):
            main(["ledger", "--help"])
        assert capsys.readouterr().out.startswith(f"usage: {name} ledger ")
        with pytest.raises(SystemExit):
            main(["--version"])
        assert capsys.readouterr().out == f"dpbo {dpbo.__version__}\n"


def test_a_cut_end_that_nothing_tells_of_has_a_status_of_its_own(tmp_path):
    """A copy from another machine, without the file that keeps its newest record."""
    curator = dpbo.Curator(
        torch.rand(50, 1), **{**TERMS, "dataset": "d", "ledger": str(tmp_path / "l.db")}
    )
    adults = ClippedMean(lambda _, rows: rows[:, 0], score_range=(0.0, 1.0))
    curator.release(adults, GaussianMechanism(20.0))
    copy = tmp_path / "elsewhere" / "l.db"
    copy.parent.mkdir()
    shutil.copy(tmp_path / "l.db", copy)
    with sqlite3.connect(copy) as cut:
        cut.execute("DELETE FROM dpbo_entries WHERE seq = (SELECT max(seq) FROM dpbo_entries)")
    status, out, _ = printed("ledger", "verify", copy)
    assert status == 9
    assert "the hash in the last line of a statement" in out
    head = str(curator.statement()).split("hash is ")[1][:64]
    assert printed("ledger", "verify", copy, "--expect", head)[0] == 6


def test_show_names_the_parameters_of_a_released_point(tmp_path):
    space = dpbo.Space(C=scipy.stats.loguniform(1e-2, 1e3), kind=["linear", "rbf"])
    curator = dpbo.Curator(
        torch.rand(500, 1), **{**TERMS, "dataset": "d", "ledger": str(tmp_path / "l.db")}
    )
    objective = dpbo.PrivateObjective(
        curator,
        lambda x, rows: rows[:, 0],
        score_range=(0.0, 1.0),
        evaluations=2,
        space=space,
        progress=False,
    )
    X = space.sample(2, seed=0)
    objective(X)
    _, out, _ = printed("ledger", "show", tmp_path / "l.db")
    for x in X:
        point = space.decode(x)
        assert f"   at C={point['C']:.4g}, kind={point['kind']!r}" in out
