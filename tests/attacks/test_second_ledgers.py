"""A second ledger over records that another program was charged for: each test is what a person in
a hurry runs twice.
"""

import os
import pathlib
import subprocess
import sys
import warnings

import pytest

import dpbo
from dpbo.curator.protected_records import protected_tables
from tests.attacks.marks import attack, slip

pytestmark = attack("A22")

PROGRAM = """
import sys
import warnings

import dpbo
import torch
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import ClippedMean

warnings.simplefilter("always")
ages = 100 * torch.rand(500, 1, generator=torch.Generator().manual_seed(0))
curator = dpbo.Curator(
    ages, unit="person", adjacency="replace-one", budget=dpbo.Budget(1.0, 1e-6), {given}
)
adult = ClippedMean(lambda _, records: records[:, 0] >= 18, score_range=(0, 1))
curator.release(adult, GaussianMechanism(20.0))
print(curator.statement().scope, curator.spent.mu)
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """Runs the program from a folder of its own, in this process, which forgets what it released
    before; with `process=True` in one of its own. Returns what it printed, warnings and errors."""

    monkeypatch.setenv("DPBO_STATE", str(tmp_path / "state"))

    def run(given="", folder=".", *, process=False):
        here = tmp_path / folder
        here.mkdir(exist_ok=True)
        program = PROGRAM.format(given=given)
        monkeypatch.chdir(here)
        if process:
            root = str(pathlib.Path(__file__).parents[2])
            monkeypatch.setenv("PYTHONPATH", root)
            subprocess.run([sys.executable, "-c", program])
        else:
            known = protected_tables.now()
            protected_tables.put_back([])
            with warnings.catch_warnings(record=True) as caught:
                try:
                    exec(compile(program, "program", "exec"), {})
                except dpbo.PrivacyError as error:
                    print(type(error).__name__, error, file=sys.stderr)
            protected_tables.put_back(known)
            for warning in caught:
                print(warning.message, file=sys.stderr)
        return capfd.readouterr()

    return run


@slip(
    "a script with `dataset=` is run twice, from two folders",
    "both share one ledger, and one budget",
)
def test_a_named_data_set_has_one_budget_from_any_folder(run):
    first = run("dataset='customers'", "monday", process=True)
    second = run("dataset='customers'", "tuesday", process=True)
    assert first.out.startswith("this machine only, ledger customers-")
    assert [second.err, first.err] == ["", ""]
    spent = [float(each.out.split()[-1]) for each in (first, second)]
    assert spent[1] == pytest.approx(spent[0] * 2**0.5)


@slip(
    "a script is run twice without `dataset=`",
    "the second run warns with what was spent before",
)
def test_a_second_run_in_memory_is_told_what_the_first_one_spent(run):
    assert run(process=True).err == ""
    assert "epsilon 1, delta 1e-06 in a ledger in memory" in run().err
    assert "epsilon 1, delta 1e-06 in each of 2 ledgers in memory" in run().err
    assert run("allow_repeated=True").err == ""


@slip(
    "a second file, or a second name, for the same table",
    "refused, unless `allow_repeated=True`; the statement then says so",
)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("ledger='r.db', dataset='a'", "monday"), ("ledger='r.db', dataset='a'", "tuesday")),
        (("ledger='r.db', dataset='a'", "."), ("ledger='s.db', dataset='a'", ".")),
        (("dataset='a'", "."), ("dataset='b'", ".")),
        (("", "."), ("dataset='a'", ".")),
    ],
    ids=["two folders", "two files", "two names", "memory, then a file"],
)
def test_a_second_ledger_over_the_same_table_is_refused(run, first, second):
    assert run(*first).err == ""
    found = run(*second)
    assert "UsageError Nothing was charged: this machine has already" in found.err
    given, folder = second
    allowed = run(f"{given}, allow_repeated=True", folder)
    assert allowed.out
    assert allowed.err == ""


@slip(
    "the file of the ledger is deleted to begin again",
    "refused, unless `allow_repeated=True`",
)
def test_a_ledger_that_was_deleted_does_not_begin_again(run, tmp_path):
    given = "dataset='a', ledger='r.db'"
    assert run(given).out
    for file in tmp_path.glob("r.db*"):
        file.unlink()
    assert "Nothing was charged" in run(given).err


def test_the_first_ledger_goes_on_after_a_run_in_memory_and_warns(run):
    assert run("dataset='a'").out
    assert run().out
    found = run("dataset='a'")
    assert found.out
    assert "in a ledger in memory" in found.err


def test_another_table_is_another_matter(run, monkeypatch):
    assert run("dataset='a'").out
    monkeypatch.setattr(f"{__name__}.PROGRAM", PROGRAM.replace("manual_seed(0)", "manual_seed(1)"))
    assert run("dataset='b'").err == ""


def test_a_folder_that_cannot_be_used_is_named(run, tmp_path, monkeypatch):
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("DPBO_STATE", str(tmp_path / "a file"))
    assert "DPBO_STATE" in run("dataset='a'").err
    assert run().out


def test_only_the_owner_reads_which_tables_were_charged(run):
    run("dataset='a'")
    folder = pathlib.Path(os.environ["DPBO_STATE"])
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "tables.db").stat().st_mode & 0o777 == 0o600
