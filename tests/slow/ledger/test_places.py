"""PostgreSQL: fingerprints of plans in the operator's own folder, and one schema for all roles."""

import stat
import urllib.parse

import pytest
import torch

from dpbo import Curator, PrivateObjective
from dpbo.curator.ledger import Ledger
from dpbo.errors import InputError, PlanChanged
from dpbo.testing.ledger_contract import BIRTH
from tests.attacks.test_holes_search import TERMS

RECORDS = torch.rand(100, 2, dtype=torch.float64)


def score(x, records):
    return 1 - (records - x).abs().mean(1)


def other_score(x, records):
    return (records - x).abs().mean(1)


def objective(url, records=RECORDS, score=score):
    return PrivateObjective(Curator(records, **TERMS, dataset="d", ledger=url), score, score_range=(0.0, 1.0), evaluations=3)


@pytest.mark.attack("A30")
def test_a_plan_on_a_server_is_resumed_with_what_it_began_with_alone(server, tmp_path, monkeypatch, caplog):
    """Another process resumed it on other records without a word."""
    url = server.schema()
    objective(url)(torch.full((1, 2), 0.5, dtype=torch.float64))
    for changed in ({"records": RECORDS + 1}, {"score": other_score}):
        with pytest.raises(PlanChanged, match=r"began with (an)?other"):
            objective(url, **changed)
    assert objective(url, RECORDS.flip(0)).remaining == 2
    (kept,) = (tmp_path / "state" / "dpbo").iterdir()
    assert kept.name.startswith(f"postgresql-127.0.0.1-{server.port}-postgres-s")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "unchecked" not in caplog.text
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
    objective(url)
    assert "'objective': resumed unchecked, because postgresql-" in caplog.text
    (tmp_path / "no folder").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "no folder"))
    objective(server.schema())
    assert "Set XDG_STATE_HOME to a folder" in caplog.text


@pytest.mark.attack("A22", "A35")
def test_each_role_finds_the_same_ledger_or_none(server):
    """By search_path="$user" three roles had three ledgers, and three budgets, of one data set."""

    def url(role, options=""):
        given = f"&options={urllib.parse.quote(options)}" if options else ""
        return f"postgresql+psycopg://{role}@127.0.0.1:{server.port}/postgres?connect_timeout=10{given}"

    for role in ("ann", "bob"):
        server.ask(f"CREATE ROLE {role} LOGIN")
        server.ask(f"CREATE SCHEMA {role} AUTHORIZATION {role}")
        with pytest.raises(InputError, match=f"^ledger=.*schema '{role}' for this role.*search_path%3DNAME"):
            Ledger(url(role), BIRTH)
    for options in ('-csearch_path="$user",public', "-csearch_path=$user", "-csearch_path=ann,bob", "-c search_path=a -c search_path=b"):
        with pytest.raises(InputError, match="whose search_path is one schema"):
            Ledger(url("ann", options), BIRTH)
    server.ask("CREATE SCHEMA shared")
    for role in ("ann", "bob"):
        server.ask(f"GRANT ALL ON SCHEMA shared TO {role}")
        server.ask(f"ALTER DEFAULT PRIVILEGES FOR ROLE ann IN SCHEMA shared GRANT ALL ON TABLES TO {role}")
    first = Ledger(url("ann", "-csearch_path=shared"), BIRTH)
    first.note("assume", "seen by all")
    assert Ledger(url("bob", "-c search_path=shared"), BIRTH).head() == first.head()
    assert first.storage.identity == f"postgresql 127.0.0.1:{server.port} postgres shared"
    Ledger(url("dpbo"), BIRTH)
    assert server.ask("SELECT schemaname FROM pg_tables WHERE tablename = 'dpbo_ledger' AND schemaname IN ('public', 'dpbo')") == [
        ("public",)
    ]
    server.ask("CREATE SCHEMA dpbo")
    with pytest.raises(InputError, match="schema 'dpbo' for this role"):
        Ledger(url("dpbo"), BIRTH)
