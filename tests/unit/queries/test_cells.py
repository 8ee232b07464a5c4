"""Shares of cells under the query contract, and released."""

import pytest
import torch

from dpbo import Budget, PrivacyUnit, PrivateObjective
from dpbo.queries import CellMeans
from dpbo.testing.query_contract import SumContract
from tests.attacks.marks import attack
from tests.contracts.bases import tries
from tests.setups import DOUBLE, owner, point

CELLS = torch.tensor([0.0, 0.0, 1.0, 2.0, torch.nan, 7.0, -1.0, 0.5, 2.0, 2.0], dtype=DOUBLE)


@tries(50)
@attack("A4", "A5", "A9")
class TestCellMeans(SumContract):
    covers = CellMeans

    def query(self, score):
        def named(subject, records):
            cell = score(subject, records)[:, 0].floor().clamp(0, 3)
            # of no cell
            return cell.where(cell != 2, -5)

        return CellMeans(named, cells=4, divisor=10)


@tries(30)
class TestCellMeansInBatches(SumContract):
    covers = CellMeans

    def query(self, score):
        return CellMeans(
            lambda s, r: iter(score(s, r)[:, 0].floor().clamp(0, 1).split(2)), cells=2, divisor=10
        )


def make(records, **changed):
    return owner(records, **{"budget": Budget.gdp(100.0), **changed})


@attack("A20")
def test_an_objective_over_cells_has_their_noise_and_a_units_records_share_one_vote():
    groups = [0, 0, 0, 0, 1, 1, 2, 2, 2, 2]
    objective = PrivateObjective(
        make(CELLS, unit=PrivacyUnit("patient", groups=groups)),
        CellMeans(lambda x, r: r, cells=3),
        evaluations=1,
    )
    Y, _ = objective(point(0.0))
    assert Y[0].tolist() == pytest.approx([0.5 / 3, 0.25 / 3, (0.25 + 0.5) / 3], abs=0.05)
    objective = PrivateObjective(make(CELLS), CellMeans(lambda x, r: r, cells=3), evaluations=1)
    Y, Yvar = objective(point(0.0))
    assert Y[0].tolist() == pytest.approx([0.2, 0.1, 0.3], abs=0.05)
    assert Yvar[0].sqrt().tolist() == pytest.approx([2**0.5 / 100 / 10] * 3, rel=1e-6), (
        "sqrt 2, not the box's sqrt 3"
    )
    assert "cells 3" in str(objective.curator.statement())
