"""What a user sees of a run while it runs: bars and log lines, of public facts alone."""

import io
import logging
import re
import sys

import torch

from dpbo import Budget, PrivateObjective, progress
from dpbo.__main__ import main
from dpbo.papers.em import DPKMeans
from tests.setups import DOUBLE, first_column, owner, point


class Terminal(io.StringIO):
    def isatty(self):
        return True


def objective(tmp_path, records, **changed):
    curator = owner(records, dataset="patients", ledger=str(tmp_path / "l.db"))
    return PrivateObjective(curator, first_column, score_range=(0.0, 1.0), evaluations=4, **changed)


def test_bars_count_on_a_terminal_and_show_no_times(tmp_path, monkeypatch):
    """How long private scores take may depend on the records: a bar shows no time, rate or
    estimate.
    """
    records = torch.rand(2000, 2, dtype=DOUBLE, generator=torch.Generator().manual_seed(71))
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    objective(tmp_path, records)(torch.zeros(4, 1, dtype=DOUBLE))
    objective(tmp_path, records)
    points = torch.rand(3000, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(72))
    DPKMeans(4, budget=Budget(1.0, 1e-6), radius=2.0, max_iter=9, random_state=0).fit(points)
    shown = terminal.getvalue()
    for counted in ("objective: 4/4", "k-means: 9/9"):
        assert counted in shown, (counted, shown)
    assert not re.search(r"\d:\d\d|it/s|s/it|\?", shown), shown


def test_the_log_says_what_was_reserved_released_resumed_and_lost_and_no_value(
    tmp_path, caplog, capsys, monkeypatch
):
    monkeypatch.setenv("DPBO_STATE", str(tmp_path))
    records = torch.rand(2000, 2, dtype=DOUBLE, generator=torch.Generator().manual_seed(73))
    caplog.set_level(logging.INFO, "dpbo")
    first = objective(tmp_path, records)
    Y, _ = first(point(0.0))
    ledger = first.curator.ledger
    slot = first.curator.ledger.charges("objective")[0].body["slots"][0]
    lost = {"units": 2000, "slots": [{**slot, "handle": "0" * 32}]}
    assert [record.levelname for record in caplog.records] == ["INFO"] * 2
    # a process killed here leaves this
    ledger.charge("objective", ledger.reservation("objective").event, lost, "objective")
    objective(tmp_path, records)
    assert caplog.records[-1].levelname == "WARNING"
    resumed = "values resumed: 1, lost: 1 (charged, but never delivered), evaluations left: 2"
    for line in (
        "'objective': reserved 4 releases",
        "'objective': released 1 of 4",
        f"'objective': {resumed}",
    ):
        assert line in caplog.text
    assert f"{Y.item():.3g}" not in caplog.text
    assert main(["ledger", "show", str(tmp_path / "l.db")]) == 0
    shown = capsys.readouterr().out
    assert [line.endswith("  value lost") for line in shown.splitlines() if " charge " in line] == [
        False,
        True,
    ]
    assert "Charges without a value: 1." in shown
