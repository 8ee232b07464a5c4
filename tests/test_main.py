"""The command line: the main job, planning, and looking at a ledger."""

import json
import os
import subprocess
import sys

import pytest

from dpbo.__main__ import main


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A small main job with a ledger, a picture and a JSON file, run as users run it."""
    folder = tmp_path_factory.mktemp("job")
    command = [
        sys.executable,
        "-m",
        "dpbo",
        "--evaluations",
        "10",
        "--ledger",
        folder / "l.db",
        "--plot",
        folder / "p.png",
        "--json",
        folder / "o.json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder, done


def test_the_main_job_reports_what_it_should(job):
    folder, done = job
    result = json.loads((folder / "o.json").read_text())
    assert result["test accuracy, recommended"] > result["test accuracy, default SVC()"] + 0.02
    assert abs(result["validation accuracy (private estimate)"] - result["test accuracy, recommended"]) < 0.06
    assert 0 <= result["validation accuracy (private estimate)"] <= 1
    assert len(result["history"]["X"]) == 10
    assert result["statement"]["guarantee"]["epsilon"] == pytest.approx(3.0)
    assert "(3.000, 1e-05)-DP" in done.stdout
    assert "true" not in done.stdout
    assert (folder / "p.png").stat().st_size > 10_000
    assert done.stderr == "", "silent where there is no terminal"


@pytest.mark.parametrize("action", ["export", "form"])
def test_a_reader_who_leaves_early_is_no_traceback(job, action):
    folder, _ = job
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "dpbo", "ledger", action, str(folder / "l.db")]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_the_ledger_can_be_shown_verified_and_exported(job, capsys):
    folder, _ = job
    file = str(folder / "l.db")
    assert main(["ledger", "export", file]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [r["kind"] for r in records].count("charge") == 11
    assert main(["ledger", "verify", file, "--expect", records[-1]["hash"]]) == 0
    assert main(["ledger", "verify", file, "--expect", "0" * 64]) == 1
    assert "LedgerCorrupt" in capsys.readouterr().err
    for action in ("show", "form"):
        assert main(["ledger", action, file]) == 0
        assert "(3.000, 1e-05)-DP" in capsys.readouterr().out


def test_another_program_recomputes_epsilon_from_the_export(job, capsys):
    """dp_accounting composes the exported charges to the budget's epsilon."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    main(["ledger", "export", str(job[0] / "l.db")])
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    for line in capsys.readouterr().out.splitlines():
        record = json.loads(line)
        if record["kind"] == "charge":
            event = record["body"]["event"]
            accountant.compose(dp_accounting.GaussianDpEvent(event["noise_multiplier"]), event["slots"])
    assert accountant.get_epsilon(1e-5) == pytest.approx(3.0, rel=1e-3)


def test_running_again_finds_it_done_and_charges_nothing(job):
    folder, first = job
    again = subprocess.run(
        [sys.executable, "-m", "dpbo", "--evaluations", "10", "--ledger", folder / "l.db"], capture_output=True, text=True
    )
    assert again.stdout.splitlines()[:3] == first.stdout.splitlines()[:3]
    assert again.stdout.splitlines()[-1] == first.stdout.splitlines()[-1], "the head has not moved"


def test_other_terms_for_the_same_ledger_are_refused(job, capsys):
    assert main(["--evaluations", "11", "--ledger", str(job[0] / "l.db")]) == 1
    assert "LedgerMismatch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epsilon", "0"], "epsilon"),
        (["--delta", "1.5"], "delta"),
        (["--evaluations", "0"], "evaluations"),
        (["ledger", "show", "/nowhere/l.db"], "no ledger"),
        (["plan", "--units", "0"], "units"),
    ],
)
def test_bad_input_is_one_line_and_exit_1(arguments, message, capsys):
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_file_that_is_no_ledger_is_named(tmp_path, capsys):
    (tmp_path / "x.db").write_text("not a database " * 100)
    assert main(["ledger", "verify", str(tmp_path / "x.db")]) == 1
    assert "LedgerCorrupt" in capsys.readouterr().err


def test_the_plan_table_is_the_one_the_readme_shows(capsys):
    import pathlib

    assert main(["plan"]) == 0
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    readme = (pathlib.Path(__file__).parents[1] / "README.md").read_text()
    assert "\n".join(table) in readme


def test_revealing_voids_the_statement(capsys):
    assert main(["--evaluations", "9", "--reveal-for-demo"]) == 0
    out = capsys.readouterr().out
    assert "validation accuracy, true" in out
    assert "test accuracy, non-private BO" in out
    assert "VOID: --reveal-for-demo" in out
