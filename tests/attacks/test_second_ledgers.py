"""A second ledger over records that another program was charged for: each test is what a person in
a hurry runs twice.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from sklearn.tree import DecisionTreeClassifier

import dpbo
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import ClippedMean
from dpbo.records.protected_records import RepeatedRecordsWarning, protected_tables
from tests.attacks.marks import attack, slip
from tests.setups import of, owner

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
OF_A = "Go on with the ledger of 'a': give that dataset=, and in ledger= its file or URL"


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
    state = os.environ["DPBO_STATE"]
    assert first.out.startswith(f"this machine only, ledger {state}/customers-")
    assert [second.err, first.err] == ["", ""]
    spent = [float(each.out.split()[-1]) for each in (first, second)]
    assert spent[1] == pytest.approx(spent[0] * 2**0.5)


@slip(
    "a script is run twice without `dataset=`",
    "the second run warns with what was spent before",
)
def test_a_second_run_in_memory_is_told_what_the_first_one_spent(run):
    assert run().err == ""
    told = run().err
    assert "epsilon 1, delta 1e-06 in a ledger in memory" in told
    assert "Give every later run the same dataset=, and the first of them allow_repeated" in told
    assert "epsilon 1, delta 1e-06 in each of 2 ledgers in memory" in run().err
    assert run("allow_repeated=True").err == ""
    assert run("dataset='a', allow_repeated=True").err == ""
    assert "Go on with this ledger alone" in run("dataset='a'").err


@slip(
    "a second file, or a second name, for the same table",
    "refused, unless `allow_repeated=True`; the statement then says so",
)
@pytest.mark.parametrize(
    ("first", "second", "remedy"),
    [
        (("ledger='r.db', dataset='a'", "monday"), ("ledger='r.db', dataset='a'", "tuesday"), OF_A),
        (("ledger='r.db', dataset='a'", "."), ("ledger='s.db', dataset='a'", "."), OF_A),
        (("dataset='a'", "."), ("dataset='b'", "."), OF_A),
        (("", "."), ("dataset='a'", "."), "the first of them allow_repeated=True, too"),
    ],
    ids=["two folders", "two files", "two names", "memory, then a file"],
)
def test_a_second_ledger_over_the_same_table_is_refused(run, first, second, remedy):
    assert run(*first).err == ""
    found = run(*second)
    assert "UsageError Nothing was charged: this machine has already" in found.err
    assert remedy in found.err
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
    assert "move what this one holds there" in run("dataset='a'").err
    assert run().out


@slip(
    "the user's state folder is moved, or a ledger's file",
    "its ledgers go on where they are found; a copy of one is refused",
)
def test_a_ledger_that_was_moved_goes_on_and_a_copy_does_not(run, tmp_path, monkeypatch):
    spent = [run("dataset='a'").out.split()[-1]]
    moved = (tmp_path / "state").rename(tmp_path / "moved")
    monkeypatch.setenv("DPBO_STATE", str(moved))
    again = run("dataset='a'")
    assert again.err == ""
    for file in moved.glob("a-*.db*"):
        file.rename(tmp_path / file.name.replace(file.name.partition(".")[0], "other"))
    third = run("dataset='a', ledger='other.db'")
    assert third.err == ""
    spent += [again.out.split()[-1], third.out.split()[-1]]
    first = float(spent[0])
    assert [*map(float, spent)] == pytest.approx([first, first * 2**0.5, first * 3**0.5])
    for file in tmp_path.glob("other.db*"):
        shutil.copy(file, tmp_path / file.name.replace("other", "copy"))
    assert "Nothing was charged" in run("dataset='a', ledger='copy.db'").err


@slip(
    "`DPBO_STATE` is a relative path, so that each working folder has ledgers of its own",
    "refused by name",
)
def test_a_relative_folder_of_the_state_is_refused(run, monkeypatch):
    monkeypatch.setenv("DPBO_STATE", "state")
    for given in ("dataset='a'", ""):
        assert "InputError DPBO_STATE='state' is not allowed" in run(given).err


def test_without_a_home_a_ledger_in_memory_goes_on_and_a_named_one_asks_for_a_folder(
    run, monkeypatch, caplog
):
    """As in a container whose user has no entry: every Curator ended in a RuntimeError."""
    for variable in ("DPBO_STATE", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    assert run().out
    assert "a second ledger over the same records would not be noticed" in caplog.text
    assert "LedgerUnavailable" in (found := run("dataset='a'").err)
    assert "DPBO_STATE" in found


def test_only_the_owner_reads_which_tables_were_charged(run):
    run("dataset='a'")
    folder = pathlib.Path(os.environ["DPBO_STATE"])
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "tables.db").stat().st_mode & 0o777 == 0o600


def cell(score, seed, **where):
    """One evaluation of a notebook's score."""
    records = torch.randn(50, 2, generator=torch.Generator().manual_seed(seed))
    objective = dpbo.PrivateObjective(
        owner(records, **where), score, score_range=(0.0, 1.0), evaluations=3, progress=False
    )
    return objective(torch.full((1, 1), 0.5, dtype=torch.float64))


def with_a_typo(x, rows):
    return rows.undefined()


def test_a_reservation_of_which_nothing_was_charged_counts_nothing(recwarn):
    """A score with a typo was refused uncharged; run again, it was told of another ledger."""
    with pytest.raises(dpbo.PrivacyError, match="undefined"):
        cell(with_a_typo, 1)
    cell(lambda x, rows: rows[:, 0], 1)
    assert not [each for each in recwarn if each.category is RepeatedRecordsWarning]
    cell(lambda x, rows: rows[:, 0], 1)
    assert [each for each in recwarn if each.category is RepeatedRecordsWarning]


def test_a_corrected_score_goes_on_under_its_name_until_something_is_charged(on_disk):
    """The whole budget was locked for values that were never released."""
    with pytest.raises(dpbo.PrivacyError, match="undefined"):
        cell(with_a_typo, 2, **on_disk)
    cell(lambda x, rows: rows[:, 0], 2, **on_disk)
    with pytest.raises(dpbo.LedgerMismatch, match="another score"):
        cell(lambda x, rows: rows[:, 1], 2, **on_disk)


def test_a_finished_run_that_is_resumed_still_protects_its_records(on_disk):
    """It charges nothing more: its exact score came out, and another budget was told of nothing."""
    X = np.random.default_rng(4).normal(size=(300, 2))
    y = (X[:, 0] > 0).astype(int)
    tree = DecisionTreeClassifier(random_state=0)
    for _ in range(2):
        protected_tables.put_back([])
        privacy = dpbo.Privacy(**on_disk)
        settings = of(budget=dpbo.Budget(5.0, 1e-6), n_iter=2, strategy="choice")
        search = dpbo.DPSearch(tree, {"max_depth": [1, 2]}, privacy=privacy, **settings)
        search.fit(X[:100], y[:100], X[100:], y[100:])
        with pytest.raises(dpbo.InputError, match="free of records"):
            search.score(X[100:], y[100:])


def test_two_threads_with_two_budgets_are_told():
    """Both looked before either was charged."""
    records = torch.randn(60, 2, generator=torch.Generator().manual_seed(5))
    mean = ClippedMean(lambda _, rows: rows[:, 0], score_range=(0.0, 1.0))
    curators = [owner(records), owner(records)]
    handles = [curator.evaluate(mean) for curator in curators]
    both = threading.Barrier(2)

    class Waiting(GaussianMechanism):
        def distribution(self, *arguments):
            both.wait(60)
            return super().distribution(*arguments)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with ThreadPoolExecutor(2) as pool:
            jobs = [
                pool.submit(curator.release, handle, Waiting(20.0))
                for curator, handle in zip(curators, handles, strict=True)
            ]
            assert all(job.result().value.isfinite().all() for job in jobs)
    assert [each for each in caught if each.category is RepeatedRecordsWarning]
