"""Ledgers on both databases: SQLite in a file, and PostgreSQL on a server that the session
starts.
"""

import os

import pytest

from tests.process.ledger import runs


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    """Where fingerprints of plans on a server are kept; ledgers know nothing of one another, as in
    tests/conftest.py."""
    (tmp_path / "state" / "tables.db").mkdir(parents=True)
    monkeypatch.setenv("DPBO_STATE", str(tmp_path / "state"))


@pytest.fixture(scope="session")
def server():
    """A running PostgreSQL. Skips where it is not installed, and fails there in CI."""
    # not above: it needs psycopg, and the tests on SQLite do not
    from tests.process.ledger import postgres

    home = postgres.programs()
    if home is None:
        reason = "PostgreSQL is not installed: apt-get install postgresql"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    running = postgres.Server(home)
    yield running
    running.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """Where an empty ledger may be born, on each database in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'l.db'}"
    return request.getfixturevalue("server").schema()


@pytest.fixture
def drawn(monkeypatch):
    """Every handle that is drawn while the test runs."""
    return runs.Drawn(monkeypatch)
