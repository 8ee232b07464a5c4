"""Ledgers that earlier versions wrote, row by row: they open, verify, state, resume and export, on both databases.

What those versions left open is not filled in: going on with it is refused in words.
"""

import json
import pathlib
from typing import Any

import pytest
import torch

from dpbo import Adjacency, Budget, Curator, PrivacyUnit, PrivateObjective, RowChange
from dpbo.__main__ import main
from dpbo.accounting import PureFilter
from dpbo.curator.ledger import Ledger
from dpbo.curator.reporting import compose_statement
from dpbo.curator.storage import Storage, table
from dpbo.errors import BudgetExceeded, LedgerMismatch
from dpbo.mechanisms import LaplaceMechanism

FOLDER = pathlib.Path(__file__).parent / "ledgers"
SEARCHES = ("56b15d1", "904b19b", "60b3ba1")
pytestmark = pytest.mark.attack("A16")


def restored(version, url):
    """The rows as they were, in an empty database; the ledger's URL."""
    rows = [json.loads(line) for line in (FOLDER / f"{version}.jsonl").read_text().splitlines()]
    with Storage(url).writing() as connection:
        connection.execute(table.insert(), [dict(zip(table.c.keys(), row, strict=True)) for row in rows])
    return url


def reopened(url):
    """The curator and plan of the three searches."""
    curator = Curator(
        torch.linspace(0, 1, 500, dtype=torch.float64),
        unit=PrivacyUnit("record"),
        adjacency=Adjacency.REPLACE_ONE,
        budget=Budget(3.0, 1e-5),
        dataset="old",
        ledger=url,
    )
    terms: dict[str, Any] = {"score_range": (0.0, 1.0), "evaluations": 6, "name": "search", "budget_share": 0.75}
    return curator, PrivateObjective(curator, lambda x, r: 1 - (r - x[0]).abs(), **terms)


def test_every_version_that_is_kept_is_tested():
    assert {file.stem for file in FOLDER.glob("*.jsonl")} == {*SEARCHES, "065a6f9"}


@pytest.mark.parametrize("version", SEARCHES)
def test_an_old_search_is_resumed_and_stays_within_its_budget(url, version):
    before = Ledger.existing(restored(version, url)).records()
    curator, objective = reopened(url)
    X, Y, Yvar = objective.history()
    assert X.tolist() == [[0.125], [0.25], [0.5]]
    assert Y.shape == Yvar.shape == (3, 1)
    assert objective.remaining == 3
    objective(torch.rand(3, 1, dtype=torch.float64))
    with pytest.raises(BudgetExceeded):
        objective(torch.rand(1, 1, dtype=torch.float64))
    chain = curator.ledger.records()
    assert chain[: len(before)] == before, "what was written stays as it was written"
    assert curator.ledger.verify(expect=before[-1].hash).seq == len(before) + 1
    assert curator.accounting.may_hold(curator.ledger.cap, curator.budget)
    assert objective.history()[0].shape == (6, 1)


@pytest.mark.parametrize(("version", "epsilon", "reserved"), [*((v, 1.743, 2.559) for v in SEARCHES), ("065a6f9", 2.0, 2.0)])
def test_an_old_ledger_states_what_it_stated_then(url, version, epsilon, reserved):
    """The figures are those that the version itself printed."""
    statement = compose_statement(Ledger.existing(restored(version, url)))
    assert statement.spent.epsilon == pytest.approx(epsilon, abs=1e-3)
    assert statement.reserved.epsilon == pytest.approx(reserved, abs=1e-3)
    assert statement.guarantee.epsilon == pytest.approx(6.0 if version == "065a6f9" else 3.0, rel=1e-9)
    assert statement.entries == 8
    assert statement.dataset in str(statement)


@pytest.mark.parametrize("version", [*SEARCHES, "065a6f9"])
def test_an_old_ledger_is_shown_verified_and_exported(tmp_path, capsys, version):
    url = restored(version, f"sqlite:///{tmp_path / 'l.db'}")
    assert [main(["ledger", action, url]) for action in ("verify", "show")] == [0, 0]
    capsys.readouterr()
    assert main(["ledger", "export", url]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    kept = [json.loads(line) for line in (FOLDER / f"{version}.jsonl").read_text().splitlines()]
    assert [line["hash"] for line in lines] == [row[5] for row in kept]


@pytest.mark.parametrize("version", SEARCHES)
def test_other_terms_for_an_old_ledger_are_refused_as_ever(url, version):
    restored(version, url)
    with pytest.raises(LedgerMismatch, match="role"):
        Curator(torch.zeros(500, dtype=torch.float64), unit=PrivacyUnit("record"), adjacency=Adjacency.REPLACE_ONE,
                budget=Budget(3.0, 1e-5), dataset="old", ledger=url, role="training")  # fmt: skip


def test_a_row_change_that_names_no_table_and_a_plan_that_counts_no_records_are_not_gone_on_with(url):
    restored("065a6f9", url)
    records = {"rows": torch.zeros(6, 2, dtype=torch.float64), "y": torch.zeros(6, dtype=torch.float64)}
    terms: dict[str, Any] = {
        "unit": PrivacyUnit("row"),
        "adjacency": Adjacency.BOUNDED_ROW_CHANGE,
        "budget": Budget(6.0, 0.0),
        "dataset": "old",
    }
    for named in ("rows", None):
        with pytest.raises(LedgerMismatch, match="row_change"):
            Curator(records if named else records["rows"], ledger=url, accounting=PureFilter(),
                    row_change=RowChange(0.5, diameter=2.0, table=named), **terms)  # fmt: skip
    ledger = Ledger.existing(url)
    with pytest.raises(LedgerMismatch, match="records"):
        ledger.reserve("y", LaplaceMechanism(1.0).event(), 2, {"value_range": [0.0, 1.0], "records": 6}, parallel=True)
    details = {"units": 6, "slots": [{"handle": "h", "query": "RowOutcome", "public": {}, "part": 1}]}
    with pytest.raises(LedgerMismatch, match="records"):
        ledger.charge("y", LaplaceMechanism(1.0).event(), details, "y")
    assert ledger.verify().seq == 7
