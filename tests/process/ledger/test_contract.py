"""PostgreSQL under the whole ledger contract, and what is a server's own: births, creators,
durability and dropped connections.
"""

import concurrent.futures
from typing import Any

import pytest

from dpbo.errors import InputError
from dpbo.events import GaussianEvent
from dpbo.ledger.ledger import Ledger
from tests.attacks.marks import attack
from tests.contracts.ledger_contract import BIRTH, LedgerContract

pytestmark = attack("A16")
EVENT = GaussianEvent(40.0)


class TestPostgreSQL(LedgerContract):
    @pytest.fixture
    def url(self, server):
        return server.schema()


def test_births_at_once_are_one_birth_and_no_charge_overwrites_another(url):
    """Each makes the table, the index and the first record, if it is the first; CREATE TABLE IF NOT
    EXISTS alone is a race on a server.
    """
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        ledgers = list(pool.map(lambda _: Ledger(url, BIRTH), range(8)))
        assert len({ledger.head().hash for ledger in ledgers}) == 1
        charged = [
            entry
            for _ in range(4)
            for entry in pool.map(lambda ledger: ledger.charge("release", EVENT, {}), ledgers)
        ]
    assert sorted(charged) == list(range(1, 33))


def test_a_charge_is_on_disk_though_the_server_answers_early_by_default(server):
    """synchronous_commit=off loses the last commits in a crash; the ledger's own transactions
    switch it on.
    """
    ledger = Ledger(server.schema(settings="-csynchronous_commit=off"), BIRTH)
    with ledger.storage.writing() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
        assert connection.exec_driver_sql("SHOW lock_timeout").scalar() == "30s"
    with ledger.storage.reading() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "off", (
            "so the test tests something"
        )


def test_a_charge_is_on_disk_with_its_folder_on_sqlite(tmp_path):
    """3 is EXTRA: with FULL, a power cut may bring the journal back, whose folder was not synced,
    and roll the last charge back.
    """
    ledger = Ledger(str(tmp_path / "l.db"), BIRTH)
    with ledger.storage.writing() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 3
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "delete", (
            "which EXTRA is about"
        )


def test_a_connection_that_the_server_dropped_between_charges_is_made_anew(server):
    ledger = Ledger(server.schema(), BIRTH)
    ledger.charge("release", GaussianEvent(4.0), {})
    server.cut()
    assert ledger.charge("release", GaussianEvent(4.0), {}) == 2


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 201, 7])
def test_names_that_some_database_cannot_keep_are_refused_by_all(url, name):
    ledger = Ledger(url, BIRTH)
    calls: dict[str, Any] = {
        "name=": lambda: ledger.charge(name, GaussianEvent(4.0), {}),
        "name": lambda: ledger.reserve(name, GaussianEvent(4.0), 2, {}),
        "text": lambda: ledger.note("void", name),
    }
    for parameter, call in calls.items():
        with pytest.raises(InputError, match=parameter):
            call()
    assert ledger.head().seq == 0
    assert ledger.charge("µ" * 200, GaussianEvent(4.0), {}) == 1
