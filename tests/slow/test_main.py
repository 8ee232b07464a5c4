"""The command line: the main job, planning, and looking at a ledger."""

import contextlib
import io
import json
import operator
import os
import pathlib
import re
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch

import dpbo
from dpbo import Budget
from dpbo.__main__ import EXIT_STATUS, main
from dpbo.errors import InputError
from dpbo.ledger import Ledger
from dpbo.mechanisms import GaussianMechanism
from dpbo.papers.po_gp_ucb import Outcomes
from dpbo.papers.po_gp_ucb.http import client
from dpbo.papers.po_gp_ucb.http.server import serve
from dpbo.queries import ClippedMean
from tests.setups import DOUBLE, EXACT, ROOT, owner, point


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
    to_nowhere = (
        "--token-file",
        tmp_path / "token",
        "--length-scale",
        1,
        "--journal",
        tmp_path / "j",
    )
    for arguments, (expected, message) in {
        ("--ledger", tmp_path / "l.db"): (8, "LedgerMismatch"),
        ("--epsilon", "0"): (2, "epsilon"),
        ("--delta", "1.5"): (2, "delta"),
        ("--seed", "-1"): (2, "seed"),
        ("plan", "--units", "0"): (2, "units"),
        ("report", tmp_path / "l.db", "--output", tmp_path / "no" / "r.html"): (2, "--output"),
        ("plan", "--units", 100, "--epsilons", 1, "--plot", tmp_path / "p.no"): (2, "--plot"),
        ("model", tmp_path, "--curator", "http://127.0.0.1:1", *to_nowhere): (2, "FOLDER"),
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


def test_two_parties_end_with_the_same_exit_statuses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(client, "_PAUSES", ())
    pathlib.Path("t.csv").write_text("a,y\n" + "1,0\n" * 20)
    table = [
        "--columns",
        "a",
        "--radius",
        2,
        "--row-change",
        1,
        "--epsilon",
        8,
        "--outcome",
        "y",
        "--outcome-range",
        0,
        1,
    ]
    curate = ["curate", "t.csv", *table, "--dataset", "d", "--ledger", "l.db", "--out", "release"]
    model = [
        "model",
        "release",
        "--curator",
        "http://127.0.0.1:1",
        "--length-scale",
        1,
        "--journal",
        "j",
        "--token-file",
        "token",
    ]
    served = ["--token-file", "made", "--serve"]
    for wrong, flag in (
        (["--out", "t.csv"], "--out"),
        (["--out", "/proc/release"], "--out"),
        (["--radius", "nan"], "--radius"),
        (["--length-scale", "0"], "--length-scale"),
        ([*served, "0", "--every", "0"], "--every"),
        ([*served, "99999999"], "--serve"),
        ([*served, "0", "--host", "999.9.9.9"], "--serve"),
    ):
        status, _, err = printed(*curate, *wrong)
        assert status == 2, err
        assert f"InputError: {flag}" in err
        assert not (tmp_path / "l.db").exists(), "nothing is charged"
    assert printed(*curate)[0] == 0
    status, _, err = printed(*model)
    assert (status, "--token-file" in err) == (2, True), err
    pathlib.Path("token").write_text("t" * 20)
    pathlib.Path("token").chmod(0o600)
    for arguments, expected, message in (
        (model, 7, "CuratorUnavailable"),
        ([*curate, "--name", "again"], 3, "BudgetExceeded"),
        ([*curate, "--epsilon", 9], 8, "LedgerMismatch"),
        ([*curate, "--serve", 0, "--token-file", "no/token"], 2, "--token-file"),
    ):
        status, _, err = printed(*arguments)
        assert status == expected, err
        assert err.startswith(message) or message in err


def test_a_port_that_is_taken_is_an_error_of_the_argument(tmp_path):
    """The server ends its process with a status of its own, which here would say that the budget is
    used up.
    """
    curator = owner(
        {"rows": np.zeros((3, 1)), "y": np.zeros(3)}, unit="row", budget=Budget(1.0, 1e-6)
    )
    outcomes = Outcomes(
        curator, operator.itemgetter("y"), value_range=(0.0, 1.0), repeats=1, budget=0.5
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match="port") as refused:
            serve(outcomes, token="t" * 20, port=taken.getsockname()[1])
    assert refused.value.parameter == "port"


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
    for arguments in (["show"], ["show", "--json"], ["metrics"], ["export"]):
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
    for refused in ("a\nb", "x" * 201):
        monkeypatch.setenv("DPBO_RUN_BY", refused)
        with pytest.raises(InputError, match="DPBO_RUN_BY=<str> is not allowed"):
            opened(url, allow_repeated=True)


def test_metrics_are_one_line_of_json(tmp_path):
    url = str(tmp_path / "l.db")
    curator = opened(url)
    objective = objective_of(curator, name="tuning")
    objective(torch.zeros(2, 1, dtype=DOUBLE))
    status, out, _ = printed("ledger", "metrics", url)
    told = json.loads(out)
    assert (status, out.count("\n")) == (0, 1)
    assert (told["released"], told["lost"], told["dataset"]) == (2, 0, "d")
    assert told["reservations"] == {"tuning": {"slots": 3, "used": 2}}
    assert told["reserved_share"] == pytest.approx(0.5)
    assert told["head"] == curator.ledger.head().hash
    assert told["guarantee"] == curator.statement().stated()
    mean = ClippedMean(lambda _, records: records, score_range=(0, 1))
    curator.release(mean, EXACT)
    _, out, _ = printed("ledger", "metrics", url)
    assert json.loads(out)["guarantee"].startswith("none, because this statement is void")


def test_help_and_version_name_the_command_as_it_was_called(monkeypatch):
    for called, name in (
        ("/usr/bin/dpbo", "dpbo"),
        ("C:/scripts/dpbo.exe", "dpbo"),
        ("/x/dpbo/__main__.py", "python -m dpbo"),
    ):
        monkeypatch.setattr(sys, "argv", [called])
        for arguments, text in (
            (["--help"], f"usage: {name} ["),
            (["ledger", "--help"], f"usage: {name} ledger "),
        ):
            with (
                contextlib.redirect_stdout(io.StringIO()) as out,
                pytest.raises(SystemExit) as ended,
            ):
                main(arguments)
            assert ended.value.code == 0
            assert out.getvalue().startswith(text)
        with contextlib.redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit):
            main(["--version"])
        assert out.getvalue() == f"dpbo {dpbo.__version__}\n"
