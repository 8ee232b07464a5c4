"""The ledger's storages under the ledger contract; PostgreSQL is under it in tests/slow/ledger."""

import pytest

from dpbo.testing.ledger_contract import LedgerContract


@pytest.mark.attack("A16", "A22")
class TestSQLiteFile(LedgerContract):
    @pytest.fixture
    def url(self, tmp_path):
        return f"sqlite:///{tmp_path / 'ledger.db'}"


class TestMemory:
    """In memory every Ledger is its own, so only what needs no reopening applies."""

    test_cap = LedgerContract.test_charges_add_up_to_the_cap_and_not_beyond
    test_plan = LedgerContract.test_a_plan_takes_its_slots_from_the_budget_at_once

    @pytest.fixture
    def url(self):
        return None
