"""Sabotaged cells, and the guard that must see each."""

import dataclasses
from typing import Any

from dpbo.queries import cells
from tests.queries.test_cells import TestCellMeans
from tests.testing.test_sabotage import must_fail


def test_records_that_count_in_several_cells_are_seen(monkeypatch):
    contract: Any = TestCellMeans()
    contract.test_neighbours_stay_within_the_declared_sensitivity()
    honest = cells.OneCell._rows
    monkeypatch.setattr(cells.OneCell, "_rows", lambda self, batch: honest(self, batch).double().cumsum(1))
    must_fail(contract.test_neighbours_stay_within_the_declared_sensitivity)


def test_a_sensitivity_as_if_a_record_left_its_cell_for_none_is_seen(monkeypatch):
    contract: Any = TestCellMeans()
    honest = cells.CellMeans.sensitivity
    monkeypatch.setattr(cells.CellMeans, "sensitivity", lambda self, adjacency: dataclasses.replace(honest(self, adjacency), l2=1.0))
    must_fail(contract.test_neighbours_stay_within_the_declared_sensitivity)
