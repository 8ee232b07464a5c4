"""A private search, then a private choice: right, private, resumable."""

from fractions import Fraction
from typing import Any

import pytest
import torch

from dpbo.accounting import PureFilter
from dpbo.algorithms import search_then_choose
from dpbo.curator.curator import Curator
from dpbo.errors import BudgetExceeded, LedgerMismatch
from dpbo.privacy import Adjacency, Budget, PrivacyUnit
from dpbo.testing import SeededEntropy

TERMS: dict[str, Any] = {
    "unit": PrivacyUnit("record"),
    "adjacency": Adjacency.REPLACE_ONE,
    "budget": Budget(2.0, 1e-6),
}
GRID = torch.linspace(0.0, 1.0, 61, dtype=torch.float64).unsqueeze(1)
RECORDS = torch.rand(4000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
CALL: dict[str, Any] = {"score_range": (0.0, 1.0), "evaluations": 12, "initial": 5, "finalists": 6}


def score(x, records):
    """The mean is least far from 1 at x = 0.7."""
    return 1.0 - (x[0] - 0.7).abs() - 0.1 * records


def searched(curator, **changed):
    return search_then_choose(curator, score, GRID, **{**CALL, **changed})


def test_finds_the_best_and_says_which():
    chosen = searched(Curator(RECORDS, **TERMS, entropy=SeededEntropy(3)))
    assert abs(float(chosen.x) - 0.7) <= 0.05
    assert torch.equal(chosen.x, GRID[chosen.index])
    assert chosen.index in chosen.finalists
    assert len(set(chosen.finalists)) == 6
    assert chosen.X.shape == (12, 1)
    assert chosen.Y.shape == chosen.Yvar.shape == (12, 1)


def test_spends_its_share_and_no_more():
    pure: dict[str, Any] = {"budget": Budget(2.0, 0.0), "accounting": PureFilter()}
    curator = Curator(RECORDS, **{**TERMS, **pure})
    searched(curator, budget=0.5)
    spent = curator.ledger.verify().total
    assert curator.ledger.cap * Fraction(499, 1000) <= spent <= curator.ledger.cap * Fraction(1, 2)
    before = curator.ledger.head().seq
    with pytest.raises(BudgetExceeded):
        searched(curator, budget=0.6, search_share=0.5, name="more")
    assert curator.ledger.head().seq == before, "nothing was reserved"
    searched(curator, budget=0.5, name="a second")
    with pytest.raises(BudgetExceeded):
        searched(curator, budget=0.5, name="a third")


def test_asked_again_it_costs_nothing_and_goes_on_where_it_stopped(tmp_path):
    terms = {**TERMS, "dataset": "d", "ledger": str(tmp_path / "ledger.db")}

    class Stop(Exception):
        pass

    calls = []

    def failing(x):
        calls.append(x)
        if len(calls) == 8:
            raise Stop
        return x

    with pytest.raises(Stop):
        searched(Curator(RECORDS, **terms), fit=failing)
    first = searched(Curator(RECORDS, **terms), fit=failing)
    assert len(first.X) == 12
    head = Curator(RECORDS, **terms).ledger.head().seq
    again = searched(Curator(RECORDS, **terms), fit=failing)
    assert (again.index, again.finalists) == (first.index, first.finalists)
    assert Curator(RECORDS, **terms).ledger.head().seq == head
    for changed in ({"finalists": 7}, {"seed": 1}, {"beta": 3.0}, {"initial": 4}):
        with pytest.raises(LedgerMismatch):
            searched(Curator(RECORDS, **terms), fit=failing, **changed)
    with pytest.raises(LedgerMismatch, match="candidates"):
        search_then_choose(Curator(RECORDS, **terms), score, GRID + 1.0, fit=failing, **CALL)
