"""The ledger's storages under the ledger contract; tests/process/ledger holds PostgreSQL to it."""

import pytest

from dpbo.events import GaussianEvent
from dpbo.ledger.ledger import Ledger
from tests.attacks.marks import attack
from tests.contracts.ledger_contract import BIRTH, LedgerContract

EVENT = GaussianEvent(40.0)


@attack("A16", "A22")
class TestSQLiteFile(LedgerContract):
    @pytest.fixture
    def url(self, tmp_path):
        return f"sqlite:///{tmp_path / 'ledger.db'}"


class TestMemory:
    """In memory every Ledger is its own, so only what needs no reopening applies."""

    test_cap = LedgerContract.test_charges_add_up_to_the_cap_and_not_beyond
    test_plan = LedgerContract.test_a_reservation_takes_its_slots_from_the_budget_at_once

    @pytest.fixture
    def url(self):
        return None


@attack("A16")
def test_values_are_listed_across_processes_from_where_an_earlier_call_ended(tmp_path):
    first = Ledger(url := str(tmp_path / "l.db"), BIRTH)
    first.reserve("plan", EVENT, 9, {})
    second = Ledger(url, BIRTH)
    for number, ledger in enumerate((first, second, second, first)):
        known = len(first.values("plan"))
        entry = ledger.charge("any name", EVENT.repeated(2), {}, "plan")
        ledger.store(entry, "any name", [{"value": [number]}, {"value": [-number]}])
        assert [value["value"] for value in first.values("plan", skip=known)] == [
            [number],
            [-number],
        ]
    assert first.values("plan") == second.values("plan")
    assert len(first.charges("plan")) == 4
