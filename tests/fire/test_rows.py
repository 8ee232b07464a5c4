"""Rows changed by somebody who can write to the database, on both: every order but the one that was written is seen.

Whoever rewrites the whole chain by the rules is seen against a head that was kept elsewhere, and only there.
"""

import itertools
import json

import pytest
import sqlalchemy as sa

from dpbo.curator.chain import Record, dump
from dpbo.curator.ledger import Ledger, insert
from dpbo.curator.reporting import compose_statement
from dpbo.curator.storage import table
from dpbo.errors import LedgerCorrupt, LedgerError, LedgerMismatch, PrivacyError
from dpbo.events import GaussianEvent
from dpbo.testing.ledger_contract import BIRTH

EVENT = GaussianEvent(10.0)
pytestmark = pytest.mark.attack("A16")


@pytest.fixture
def ledger(url):
    """Birth, a plan, and two charges with their values: records 0 to 5."""
    made = Ledger(url, BIRTH)
    made.reserve("search", EVENT, 4, {})
    for number in range(2):
        made.store(made.charge("search", EVENT, {}, "search"), "search", [{"handle": str(number), "value": [0.5]}])
    return made


def refused(url):
    """Whether the chain does not hold."""
    try:
        Ledger.existing(url).verify()
    except LedgerError:
        return True
    return False


def rewrite(ledger, rows):
    """Put these rows in place of all others."""
    with ledger.storage.writing() as connection:
        connection.execute(sa.delete(table))
        connection.execute(table.insert(), rows)


def rows_of(ledger):
    return [{**vars(record), "body": dump(record.body)} for record in ledger.records()]


def damaged():
    """Names and functions from the rows to other rows."""
    yield from ((f"remove {n}", lambda rows, n=n: rows[:n] + rows[n + 1 :]) for n in range(5))
    yield from ((f"remove {n} and close the gap", lambda rows, n=n: renumbered(rows[:n] + rows[n + 1 :])) for n in range(5))
    yield from ((f"swap {a}, {b}", lambda rows, a=a, b=b: swapped(rows, a, b)) for a, b in itertools.combinations(range(6), 2))
    yield from ((f"repeat {n}", lambda rows, n=n: [*rows, {**rows[n], "seq": 6}]) for n in range(6))
    yield "move up", lambda rows: [{**row, "seq": row["seq"] + 1} for row in rows]
    yield "leave a gap", lambda rows: [*rows[:4], *({**row, "seq": row["seq"] + 1} for row in rows[4:])]
    yield "below zero", lambda rows: [*rows, {**rows[5], "seq": -1}]
    yield "birth alone is gone", lambda rows: rows[1:]


def renumbered(rows):
    return [{**row, "seq": seq} for seq, row in enumerate(rows)]


def swapped(rows, a, b):
    other = list(rows)
    other[a], other[b] = {**rows[b], "seq": a}, {**rows[a], "seq": b}
    return other


def test_rows_moved_removed_or_repeated_are_seen(ledger, measured):
    whole, tried = rows_of(ledger), 0
    for name, change in damaged():
        rewrite(ledger, change(whole))
        assert refused(ledger.storage.url), name
        tried += 1
    rewrite(ledger, whole)
    assert ledger.verify().seq == 5
    measured(tried)


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


@pytest.mark.parametrize("rehashed", [False, True])
def test_every_fact_of_every_record_is_under_its_hash(ledger, measured, rehashed):
    """Also where the changed record gets the hash that its new content asks for: the next one, or the head kept elsewhere, tells."""
    whole, head, tried = ledger.records(), ledger.head().hash, 0
    for seq, record in enumerate(whole):
        for path in leaves(record.body):
            body = with_leaf(record.body, path, "another")
            new = Record.following(whole[seq - 1] if seq else None, record.kind, record.name, body)
            row = {**vars(new if rehashed else record), "body": dump(body)}
            with ledger.storage.writing() as connection:
                connection.execute(sa.update(table).where(table.c.seq == seq).values(row))
            with pytest.raises(LedgerError):
                Ledger.existing(ledger.storage.url).verify(expect=head)
            tried += 1
        with ledger.storage.writing() as connection:
            connection.execute(sa.update(table).where(table.c.seq == seq).values({**vars(record), "body": dump(record.body)}))
    assert ledger.verify(expect=head).seq == 5
    measured(tried)


def test_a_chain_rewritten_by_the_rules_is_seen_against_a_head_kept_elsewhere_alone(ledger, url):
    head, chain = ledger.head().hash, list[Record]()
    for record in ledger.records():
        body = with_leaf(record.body, ("values", 0, "value", 0), 0.75) if record.kind == "value" else record.body
        chain.append(Record.following(chain[-1] if chain else None, record.kind, record.name, body))
    rewrite(ledger, [{**vars(record), "body": dump(record.body)} for record in chain])
    assert Ledger.existing(url).verify().seq == 5
    with pytest.raises(LedgerCorrupt, match="rewritten"):
        Ledger.existing(url).verify(expect=head)
    with pytest.raises(LedgerCorrupt, match="another copy"):
        ledger.head()  # which saw the other one


FORGED = [
    ("birth", {"schema": 1}),
    ("birth", {**BIRTH, "schema": 1, "budget": {}}),
    ("birth", {**BIRTH, "schema": 1, "accounting": "FreeFilter"}),
    ("birth", {**BIRTH, "schema": 1, "cap": "1/0"}),
    ("birth", {**BIRTH, "schema": 1, "cap": "1000"}),
    ("birth", {**BIRTH, "schema": 1, "cap": "1", "state": 7}),
    ("birth", {**BIRTH, "schema": 1, "cap": "1", "state": {"total": "x", "used": {}}}),
    ("birth", {**BIRTH, "schema": 1, "cap": "1", "state": {"total": "0 0", "used": {}}}),
    ("birth", {**BIRTH, "schema": 1, "cap": "1", "state": {"total": "0", "used": {"search": "y"}}}),
]


@pytest.mark.parametrize(("kind", "body"), FORGED)
def test_a_forged_birth_is_refused_in_words(url, kind, body):
    plain = Ledger(url, BIRTH)
    record = Record.following(None, kind, "", body)
    rewrite(plain, [{**vars(record), "body": dump(record.body)}])
    require_typed(url)


@pytest.mark.parametrize("kind", ["reserve", "charge", "value", "assume", "other"])
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"event": 7, "slots": "x", "terms": 7, "plan": 7, "entry": "x", "values": 7},
        {"event": {"mechanism": "new"}, "slots": 4, "terms": {}, "plan": None, "entry": 1, "values": [7]},
    ],
)
def test_forged_records_are_refused_in_words(ledger, kind, body):
    with ledger.storage.writing() as connection:
        insert(connection, Record.following(ledger._head(connection), kind, "search", {**body, "state": 7}))
    require_typed(ledger.storage.url)


def require_typed(url):
    """Reading, stating and going on raise typed errors, at the latest when the chain is verified."""
    with pytest.raises(LedgerError):
        Ledger.existing(url).verify()
    for call in (
        lambda: compose_statement(Ledger.existing(url)),
        lambda: Ledger(url, BIRTH).charge("release", EVENT, {}),
        lambda: Ledger(url, BIRTH).charge("search", EVENT, {}, "search"),
    ):
        with pytest.raises(PrivacyError):
            call()


def test_text_that_is_no_text_and_nesting_without_end(tmp_path):
    ledger = Ledger(str(tmp_path / "l.db"), BIRTH)
    ledger.charge("release", EVENT, {})
    for content in ("CAST(X'80ff' AS TEXT)", "X'80ff'", f"'{'[' * 100000}'", "7", "'{\"a\": NaN}'"):
        with ledger.storage.writing() as connection:
            connection.exec_driver_sql(f"UPDATE dpbo_ledger SET body = {content} WHERE seq = 1")
        for call in (ledger.verify, lambda: Ledger(str(tmp_path / "l.db"), BIRTH).charge("release", EVENT, {})):
            with pytest.raises(LedgerCorrupt):
                call()


def test_a_schema_of_a_later_version_is_refused_and_left_alone(url):
    plain = Ledger(url, BIRTH)
    record = Record.following(None, "birth", "", {"schema": 2, "what": "ever"})
    rewrite(plain, [{**vars(record), "body": json.dumps(record.body, sort_keys=True, separators=(",", ":"))}])
    for call in (lambda: Ledger.existing(url), lambda: Ledger(url, BIRTH)):
        with pytest.raises(LedgerMismatch, match="schema=2") as refused:
            call()
        assert refused.value.field == "schema"
