"""Where a ledger lies: any file name is the file; PostgreSQL with fingerprints of plans in the
operator's own folder, and one schema for all roles.
"""

import contextlib
import pathlib
import sqlite3
import stat
import urllib.parse

import pytest
import torch

from dpbo import PrivateObjective
from dpbo.errors import InputError, LedgerRolledBack, LedgerUnavailable, ReservationChanged
from dpbo.ledger.kept import file_of
from dpbo.ledger.ledger import Ledger
from tests.attacks.marks import attack
from tests.contracts.ledger_contract import BIRTH
from tests.setups import DOUBLE, charged, owner, point

RECORDS = torch.rand(100, 2, dtype=DOUBLE)


def score(x, records):
    return 1 - (records - x).abs().mean(1)


def other_score(x, records):
    return (records - x).abs().mean(1)


def objective(url, records=RECORDS, score=score):
    return PrivateObjective(
        owner(records, dataset="d", ledger=url),
        score,
        score_range=(0.0, 1.0),
        evaluations=3,
    )


@attack("A30")
def test_a_plan_on_a_server_is_resumed_with_what_it_began_with_alone(
    server, tmp_path, monkeypatch, caplog
):
    """Another process resumed it on other records without a word."""
    url = server.schema()
    objective(url)(point(0.5, 0.5))
    for changed in ({"records": RECORDS + 1}, {"score": other_score}):
        with pytest.raises(ReservationChanged, match=r"began with (an)?other"):
            objective(url, **changed)
    assert objective(url, RECORDS.flip(0)).remaining == 2
    (kept,) = (tmp_path / "state").glob("*.fingerprints")
    assert kept.name.startswith(f"postgresql-127.0.0.1-{server.port}-postgres-s")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "unchecked" not in caplog.text
    monkeypatch.setenv("DPBO_STATE", str(tmp_path / "another machine"))
    objective(url)
    assert "'objective': resumed unchecked, because postgresql-" in caplog.text
    (tmp_path / "no folder").touch()
    monkeypatch.setenv("DPBO_STATE", str(tmp_path / "no folder"))
    objective(server.schema())
    assert "Set DPBO_STATE to a folder" in caplog.text


@attack("A22", "A35")
def test_each_role_finds_the_same_ledger_or_none(server):
    """By search_path="$user" three roles had three ledgers, and three budgets, of one data set."""

    def url(role, options=""):
        given = f"&options={urllib.parse.quote(options)}" if options else ""
        place = f"127.0.0.1:{server.port}/postgres"
        return f"postgresql+psycopg://{role}@{place}?connect_timeout=10{given}"

    for role in ("ann", "bob"):
        server.ask(f"CREATE ROLE {role} LOGIN")
        server.ask(f"CREATE SCHEMA {role} AUTHORIZATION {role}")
        with pytest.raises(
            InputError,
            match=f"^ledger=.*names its schema, not the role's '{role}'.*search_path%3DNAME",
        ):
            Ledger(url(role), BIRTH)
    for options in (
        '-csearch_path="$user",public',
        "-csearch_path=$user",
        "-csearch_path=ann,bob",
        "-c search_path=a -c search_path=b",
    ):
        with pytest.raises(InputError, match="whose search_path is one schema"):
            Ledger(url("ann", options), BIRTH)
    server.ask("CREATE SCHEMA shared")
    for role in ("ann", "bob"):
        server.ask(f"GRANT ALL ON SCHEMA shared TO {role}")
        server.ask(
            f"ALTER DEFAULT PRIVILEGES FOR ROLE ann IN SCHEMA shared GRANT ALL ON TABLES TO {role}"
        )
    first = Ledger(url("ann", "-csearch_path=shared"), BIRTH)
    first.note("assume", "seen by all")
    assert Ledger(url("bob", "-c search_path=shared"), BIRTH).head() == first.head()
    assert first.storage.identity == f"postgresql 127.0.0.1:{server.port} postgres shared"
    Ledger(url("dpbo"), BIRTH)
    assert server.ask(
        "SELECT schemaname FROM pg_tables WHERE tablename = 'dpbo_entries' AND schemaname IN"
        " ('public', 'dpbo')"
    ) == [("public",)]
    server.ask("CREATE SCHEMA dpbo")
    with pytest.raises(InputError, match="not the role's 'dpbo'"):
        Ledger(url("dpbo"), BIRTH)


@attack("A22")
def test_a_server_that_was_restored_from_an_older_dump_is_refused_where_it_was_used(
    server, tmp_path, monkeypatch
):
    """What was charged since the dump was forgotten without a word, and its budget spent again."""
    url = server.schema()
    first = objective(url)
    schema = first.curator.ledger.storage.identity.split()[-1]
    first(point(0.25, 0.25))
    dumped = first.curator.ledger.head().seq
    first(point(0.5, 0.5))
    server.ask(f"DELETE FROM {schema}.dpbo_entries WHERE seq > {dumped}")
    with pytest.raises(LedgerRolledBack, match=r"lacks record .* an older copy"):
        objective(url)
    with pytest.raises(LedgerRolledBack):
        Ledger.open(url)
    monkeypatch.setenv("DPBO_STATE", str(tmp_path / "another machine"))
    assert objective(url).remaining == 2, "a machine that saw none of it cannot know"


@attack("A22")
def test_an_older_copy_is_seen_by_each_name_of_its_file(tmp_path):
    url = tmp_path / "l.db"
    link = tmp_path / "link.db"
    objective(str(url))
    link.symlink_to(url)
    older = url.read_bytes()
    objective(str(link))(point(0.5, 0.5))
    url.write_bytes(older)
    for name in (url, link):
        with pytest.raises(LedgerRolledBack):
            Ledger.open(str(name))


def _truncated(file):
    file.write_bytes(file.read_bytes()[:40])


def _folder(file):
    file.unlink()
    file.mkdir()


def _link(file):
    file.rename(file.with_name("elsewhere"))
    file.symlink_to(file.with_name("elsewhere"))


@pytest.mark.parametrize(
    ("spoil", "goes_on"),
    [
        pytest.param(lambda file: file.unlink(), True, id="deleted"),
        pytest.param(_truncated, False, id="truncated"),
        pytest.param(_folder, False, id="a folder"),
        pytest.param(_link, False, id="a link to itself elsewhere"),
    ],
)
@pytest.mark.parametrize("place", ["file", pytest.param("server", marks=pytest.mark.deep)])
@attack("A16", "A22")
def test_whatever_becomes_of_the_fingerprints_nothing_is_charged_twice(
    request, tmp_path, monkeypatch, place, spoil, goes_on
):
    monkeypatch.setenv("DPBO_STATE", str(tmp_path / "state"))
    url = str(tmp_path / "l.db") if place == "file" else request.getfixturevalue("server").schema()
    first = objective(url)
    x = point(0.5, 0.5)
    first(x)
    spoil(file_of(first.curator.ledger.storage))
    if goes_on:
        assert objective(url).remaining == 2
    else:
        with pytest.raises(
            LedgerUnavailable, match=r"Nothing was charged\. Put it back, or delete it"
        ):
            objective(url)
    first(x)
    assert first.remaining == 1, "the process that has the ledger open goes on"
    paid = charged(first.curator.ledger)
    assert len(paid) == len(set(paid)) == 2


NAMES = ["what?.db", "50%20off.db", "a#b.db", "käse.db", "a:b.db", "?/in.db"]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_name_is_the_files_name_whatever_is_in_it(name, tmp_path, monkeypatch):
    """Part of it was read as a URL's: another file was made, in another folder."""
    monkeypatch.chdir(tmp_path)
    pathlib.Path("?").mkdir()
    ledger = Ledger(name, BIRTH)
    assert (tmp_path / name).exists()
    assert ledger.storage.file == tmp_path / name
    assert Ledger.open(pathlib.Path(name)).head() == ledger.head()


def test_a_name_may_begin_with_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    Ledger("~/l.db", BIRTH)
    assert (tmp_path / "l.db").exists()


def test_another_programs_database_is_refused_and_left_as_it_was(tmp_path):
    """It got dpbo's tables without a word."""
    file = tmp_path / "patients.db"
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute("create table patients (name)")
        connection.commit()
    before = file.read_bytes()
    with pytest.raises(InputError, match=r"has other tables: patients"):
        Ledger(str(file), BIRTH)
    assert file.read_bytes() == before
