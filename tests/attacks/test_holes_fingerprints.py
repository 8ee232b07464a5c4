"""The file of fingerprints that lost plans, and a ledger that was put back: each attack won once."""

import json
import pathlib
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch

from dpbo import Curator
from dpbo.__main__ import main
from dpbo.curator.ledger import Ledger
from dpbo.errors import LedgerRolledBack, LedgerUnavailable, PlanChanged
from dpbo.mechanisms import GaussianMechanism, L2LaplaceMechanism
from dpbo.papers.po_gp_ucb import Outcomes, release_rows
from dpbo.queries import ClippedMean
from tests.attacks.test_holes_search import TERMS
from tests.unit.papers.test_po_gp_ucb_curator_side import rows_of, terms
from tests.unit.papers.test_po_gp_ucb_curator_side import table as row_table

RECORDS = torch.rand(50, 2, dtype=torch.float64)
QUERY, NOISE = ClippedMean(lambda _, r: r[:, 0], score_range=(0, 1)), GaussianMechanism(60.0)


def curator(file):
    return Curator(RECORDS, **TERMS, dataset="d", ledger=str(file))


@pytest.mark.attack("A30", "A16")
def test_plans_that_several_writers_begin_at_once_are_all_kept(tmp_path):
    """Six processes lost 4 of 36 plans, which were then resumed unchecked. Each thread has a ledger of its own, as a process has."""
    writers, plans = 6, 6
    owners, together = [curator(tmp_path / "l.db") for _ in range(writers)], Barrier(writers)

    def begin(number):
        together.wait()
        for plan in range(plans):
            owners[number].bind(f"{number} {plan}", {}, begun=False)

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(begin, range(writers)))
    kept = tmp_path / "l.db.fingerprints"
    assert sum(f'"{number} {plan}"' in kept.read_text() for number in range(writers) for plan in range(plans)) == writers * plans
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["l.db", "l.db.fingerprints"], "no drafts are left"


@pytest.mark.attack("A16")
def test_an_older_copy_of_the_ledger_is_refused_until_it_is_taken_on_purpose(tmp_path, capsys):
    """It was continued without a word, and what it had released was paid for once more."""
    file, kept = tmp_path / "l.db", tmp_path / "l.db.fingerprints"
    owner = curator(file)
    owner.release(QUERY, NOISE)
    shutil.copy(file, tmp_path / "old.db")
    newest = owner.release(QUERY, NOISE) and owner.ledger.head()
    whole = file.read_bytes()
    del owner
    shutil.copy(tmp_path / "old.db", file)
    for call in (lambda: curator(file), lambda: Ledger.open(str(file))):
        with pytest.raises(LedgerRolledBack, match=f"lacks record {newest.seq}, .*delete l.db.fingerprints"):
            call()
    assert main(["ledger", "verify", str(file)]) == 6
    assert "LedgerRolledBack: the ledger lacks" in capsys.readouterr().err
    file.unlink()
    with pytest.raises(LedgerRolledBack):
        curator(file)  # a new ledger in its place is an older one, too
    assert file.read_bytes() != whole
    file.write_bytes(whole)
    assert curator(file).ledger.head() == newest
    shutil.copy(tmp_path / "old.db", file)
    kept.unlink()
    curator(file).release(QUERY, NOISE)
    assert Ledger.open(str(file)).head().seq == newest.seq


@pytest.mark.attack("A16")
def test_whoever_writes_last_is_kept_and_a_file_that_cannot_be_read_is_not_passed_over(tmp_path):
    file, kept = tmp_path / "l.db", tmp_path / "l.db.fingerprints"
    first, second = curator(file), curator(file)
    second.bind("plan", {}, begun=False)
    first.release(QUERY, NOISE)
    second.release(QUERY, NOISE)
    line, _, rest = kept.read_text().partition("\n")
    assert line.split() == [str(second.ledger.head().seq), second.ledger.head().hash]
    assert "plan" in json.loads(rest)["plans"]
    kept.write_text(line[:30])
    with pytest.raises(LedgerUnavailable, match=r"'l.db.fingerprints', .* cannot be read or written"):
        curator(pathlib.Path(file))


@pytest.mark.attack("A16")
def test_the_newest_record_is_not_written_through_a_link(tmp_path, caplog):
    """A link in the place of the file made the curator write into another ledger's file."""
    owner = curator(tmp_path / "l.db")
    target = tmp_path / "other.db.fingerprints"
    target.write_text(f"{'-':>20} {'-':>64}\n{{}}")
    kept = tmp_path / "l.db.fingerprints"
    kept.unlink()
    kept.symlink_to(target)
    owner.release(QUERY, NOISE)
    assert target.read_text().split() == ["-", "-", "{}"]
    assert "an older copy of the ledger would not be noticed" in caplog.text


@pytest.mark.attack("A16")
def test_a_link_in_the_place_of_the_fingerprints_is_refused(tmp_path):
    curator(tmp_path / "l.db")
    kept = tmp_path / "l.db.fingerprints"
    kept.rename(tmp_path / "elsewhere")
    kept.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LedgerUnavailable, match="cannot be read or written, or is a link"):
        curator(tmp_path / "l.db")


def rows_and_outcomes(order):
    return {"rows": rows_of(40)[order], "y": rows_of(40)[:, 0].sigmoid()[order]}


@pytest.mark.attack("A30", "A35")
def test_a_table_in_another_order_does_not_answer_a_record_again(tmp_path):
    """Sorted anew in six sessions, a table answered one record six times: answers are counted by place."""
    where: dict[str, Any] = {"dataset": "d", "ledger": str(tmp_path / "l.db")}
    mechanism, budget = L2LaplaceMechanism.of(2.0), 0.4

    def outcome(record):
        return record["y"]

    def begin(order, answer=outcome):
        owner = Curator(rows_and_outcomes(order), **terms(), **where)
        asked = Outcomes(owner, answer, value_range=(0.0, 1.0), budget=budget)
        released = release_rows(owner, row_table(), mechanism)
        return asked, released

    asked, released = begin(torch.arange(40))
    first = asked.value(7, request="a")
    for order in (torch.arange(40).flip(0), torch.arange(40).roll(1)):
        with pytest.raises(PlanChanged, match=r"'outcomes' began with another order of the records, .*counted by their places"):
            begin(order)
        with pytest.raises(PlanChanged, match="another order of the records"):
            release_rows(Curator(rows_and_outcomes(order), **terms(), **where), row_table(), mechanism)
    with pytest.raises(PlanChanged, match="began with other candidate records"):
        begin(torch.zeros(40, dtype=torch.long))
    with pytest.raises(PlanChanged, match="began with another outcome"):
        begin(torch.arange(40), lambda record: 1 - record["y"])
    again, same = begin(torch.arange(40))
    assert (again.value(7, request="a"), same.Z.tolist()) == (first, released.Z.tolist())
