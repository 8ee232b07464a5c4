"""Rows changed by somebody who can write to the database, on both: every order but the one that was
written is seen.

Whoever rewrites the whole chain by the rules is seen against a head that was kept elsewhere, and
only there.
"""

import contextlib
import itertools
import sqlite3

import pytest
import sqlalchemy as sa

from dpbo.curator.statements import compose_statement
from dpbo.errors import LedgerCorrupt, LedgerError, LedgerMismatch
from dpbo.events import GaussianEvent
from dpbo.ledger.entries import Record, dump, table
from dpbo.ledger.kept import file_of
from dpbo.ledger.ledger import Ledger
from tests.attacks.marks import attack
from tests.contracts.ledger_contract import BIRTH
from tests.setups import following

EVENT = GaussianEvent(10.0)
pytestmark = attack("A16")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.deep)])
def url(request, tmp_path):
    """Tampering is found by the chain, which is the same on both databases: PostgreSQL in the deep
    run.
    """
    return (
        f"sqlite:///{tmp_path / 'l.db'}"
        if request.param == "sqlite"
        else request.getfixturevalue("server").schema()
    )


@pytest.fixture
def ledger(url):
    """Birth, a plan, and two charges with their values: records 0 to 5."""
    made = Ledger(url, BIRTH)
    made.reserve("search", EVENT, 4, {})
    for number in range(2):
        made.store(
            made.charge("search", EVENT, {}, "search"),
            "search",
            [{"handle": str(number), "value": [0.5]}],
        )
    return made


def rewrite(ledger, rows):
    """Put these rows in place of all others."""
    with ledger.storage.writing() as connection:
        connection.execute(sa.delete(table))
        connection.execute(table.insert(), rows)
    place = file_of(ledger.storage)
    if place is not None:
        # it tells of the newest record
        place.unlink(missing_ok=True)


def row_of(record):
    return record.columns()


def rows_of(ledger):
    return [row_of(record) for record in ledger.records()]


def rehashed(head, record, body):
    """The record with another body, and the hash that this asks for after `head`."""
    columns = row_of(record)
    kept = {name: columns[name] for name in ("reservation", "used", "answers", "total")}
    return following(head, record.kind, record.name, body, **kept)


def renumbered(rows):
    return [{**row, "seq": seq} for seq, row in enumerate(rows)]


def swapped(rows, a, b):
    other = list(rows)
    other[a] = {**rows[b], "seq": a}
    other[b] = {**rows[a], "seq": b}
    return other


def test_rows_moved_removed_or_repeated_are_seen(ledger, url, measured):
    rows = rows_of(ledger)
    up = [{**row, "seq": row["seq"] + 1} for row in rows]
    damaged = [up, [*rows[:4], *up[4:]], [*rows, {**rows[4], "seq": -1}]]
    damaged += [rows[:n] + rows[n + 1 :] for n in range(5)]
    damaged += [renumbered(rows[:n] + rows[n + 1 :]) for n in range(5)]
    # the database itself refuses a second value for one charge
    damaged += [[*rows, {**rows[n], "seq": 6}] for n in range(6) if rows[n]["kind"] != "value"]
    damaged += [swapped(rows, a, b) for a, b in itertools.combinations(range(6), 2)]
    for other in damaged:
        rewrite(ledger, other)
        with pytest.raises(LedgerError):
            print([(row["seq"], row["kind"]) for row in other], Ledger.open(url).verify())
    rewrite(ledger, rows)
    assert ledger.verify().seq == 5
    measured(len(damaged))


def leaves(value, path=()):
    """Every place in a JSON value that holds no further ones."""
    if isinstance(value, dict) and value:
        return [leaf for key in value for leaf in leaves(value[key], (*path, key))]
    if isinstance(value, list) and value:
        return [leaf for index, part in enumerate(value) for leaf in leaves(part, (*path, index))]
    return [path]


def with_leaf(value, path, other):
    """The value with something else in one place."""
    if not path:
        return other
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = with_leaf(value[path[0]], path[1:], other)
    return copied


def test_every_fact_of_every_record_is_under_its_hash(ledger, url, measured):
    """Also where the changed record gets the hash that its new content asks for: the next one, or
    the head kept elsewhere, tells.
    """
    whole = ledger.records()
    head = ledger.head().hash
    tried = 0
    for seq, record in enumerate(whole):
        for path in leaves(record.body):
            body = with_leaf(record.body, path, "another")
            for row in (
                record,
                rehashed(whole[seq - 1] if seq else None, record, body),
            ):
                with ledger.storage.writing() as connection:
                    connection.execute(
                        sa.update(table)
                        .where(table.c.seq == seq)
                        .values({**row_of(row), "body": dump(body)})
                    )
                with pytest.raises(LedgerError):
                    Ledger.open(url).verify(expect=head)
                tried += 1
        with ledger.storage.writing() as connection:
            connection.execute(sa.update(table).where(table.c.seq == seq).values(row_of(record)))
    assert ledger.verify(expect=head).seq == 5
    measured(tried)


def test_the_predecessor_is_under_the_hash(ledger, url):
    """A record made anew by the rules, and its hash put into the next one."""
    rows = rows_of(ledger)
    chain = ledger.records()
    rows[2] = row_of(rehashed(chain[1], chain[2], {**chain[2].body, "units": 7}))
    rewrite(ledger, rows)
    with pytest.raises(LedgerCorrupt, match="record 3 was changed"):
        Ledger.open(url).verify()


def test_a_chain_rewritten_by_the_rules_is_seen_against_a_head_kept_elsewhere_alone(ledger, url):
    head = ledger.head().hash
    chain = list[Record]()
    for record in ledger.records():
        body = (
            with_leaf(record.body, ("values", 0, "value", 0), 0.75)
            if record.kind == "value"
            else record.body
        )
        chain.append(rehashed(chain[-1] if chain else None, record, body))
    rewrite(ledger, [row_of(record) for record in chain])
    assert Ledger.open(url).verify().seq == 5
    with pytest.raises(LedgerCorrupt, match="rewritten"):
        Ledger.open(url).verify(expect=head)
    with pytest.raises(LedgerCorrupt, match="another copy"):
        ledger.head()  # which saw the other one


def test_text_that_is_no_text_and_nesting_without_end(tmp_path):
    ledger = Ledger(str(tmp_path / "l.db"), BIRTH)
    ledger.charge("release", EVENT, {})
    for content in ("CAST(X'80ff' AS TEXT)", "X'80ff'", f"'{'[' * 100000}'", "7", "'{\"a\": NaN}'"):
        with ledger.storage.writing() as connection:
            connection.exec_driver_sql(f"UPDATE dpbo_entries SET body = {content} WHERE seq = 1")
        for call in (
            ledger.verify,
            lambda: compose_statement(Ledger.open(str(tmp_path / "l.db"))),
            lambda: ledger.records(),
        ):
            with pytest.raises(LedgerCorrupt):
                call()


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside one of today's"])
def test_a_ledger_of_the_first_schema_is_refused_and_left_as_it_was(tmp_path, beside):
    file = tmp_path / "l.db"
    if beside:
        Ledger(str(file), BIRTH)
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE dpbo_ledger (seq INTEGER PRIMARY KEY, body TEXT)")
        connection.commit()
    before = file.read_bytes()
    for call in (lambda: Ledger.open(str(file)), lambda: Ledger(str(file), BIRTH)):
        with pytest.raises(LedgerMismatch, match=r"schema=1.*the dpbo version that wrote it"):
            call()
    assert file.read_bytes() == before


def test_a_schema_of_a_later_version_is_refused(ledger, url):
    rewrite(ledger, [row_of(following(None, "birth", "", {"schema": 3, "what": "ever"}))])
    for call in (lambda: Ledger.open(url), lambda: Ledger(url, BIRTH)):
        with pytest.raises(LedgerMismatch, match="schema=3"):
            call()
