"""A server that goes away: sessions ended, connections cut around COMMIT, power lost. The curator
that was open goes on afterwards.
"""

import contextlib
import random
import threading
import time

import pytest
import torch

from dpbo.errors import BudgetExceeded, LedgerUnavailable, ReleaseLost
from dpbo.ledger.ledger import Ledger
from tests.attacks.marks import attack
from tests.process.ledger.proxy import Proxy
from tests.process.ledger.runs import make, search
from tests.setups import DOUBLE, MEAN, NOISE

COMMIT = b"COMMIT\0"  # not READ COMMITTED
pytestmark = attack("A16")


@pytest.fixture
def proxy(server):
    between = Proxy(server.port)
    yield between
    between.close()


@pytest.mark.parametrize("word", [b"INSERT INTO dpbo_entries", b"LOCK TABLE"])
def test_a_connection_cut_before_the_charge_is_written_charges_nothing(server, proxy, drawn, word):
    curator = make(url := server.schema(port=proxy.port))
    handle = curator.evaluate(MEAN)
    proxy.arm(word, "before")
    with pytest.raises(LedgerUnavailable) as refused:
        curator.release(handle, NOISE)
    assert (proxy.cuts, refused.value.uncertain, drawn.handles) == (1, False, [])
    first, again = (curator.release(handle, NOISE) for _ in range(2))
    assert first.lattice == again.lattice, "the same handle, charged now for the first time"
    drawn.require_sound(url)


@pytest.mark.parametrize(("when", "lost"), [("before", 0), ("after", 1)])
def test_a_commit_without_an_answer_is_looked_up_and_never_drawn_twice(
    server, proxy, drawn, when, lost
):
    """Before: COMMIT never arrived, so the handle is released later. After: it is charged, so it is
    lost, and so said.
    """
    curator = make(url := server.schema(port=proxy.port))
    handle = curator.evaluate(MEAN)
    proxy.arm(COMMIT, when)
    with pytest.raises(LedgerUnavailable) as unsure:
        curator.release(handle, NOISE)
    assert (proxy.cuts, unsure.value.uncertain, drawn.handles) == (1, True, [])
    assert curator.ledger.charged(handle.id) is bool(lost)
    if lost:
        with pytest.raises(ReleaseLost):
            curator.release(handle, NOISE)
    else:
        curator.release(handle, NOISE)
    curator.release(curator.evaluate(MEAN), NOISE)
    drawn.require_sound(url, lost=lost)


def test_a_commit_that_is_still_under_way_is_waited_for(server, proxy, drawn):
    """The answer is lost while the server is still busy: who looked at once would not see the
    charge, and charge it again.
    """
    curator = make(url := server.schema(port=proxy.port))
    with curator.ledger.storage.writing() as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM"
            " pg_sleep(1.5); RETURN NULL; END $$"
        )
        connection.exec_driver_sql(
            "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON dpbo_entries DEFERRABLE INITIALLY"
            " DEFERRED FOR EACH ROW WHEN (NEW.kind = 'charge') EXECUTE FUNCTION slow()"
        )
    handle = curator.evaluate(MEAN)
    proxy.arm(COMMIT, "at once")
    with pytest.raises(LedgerUnavailable) as unsure:
        curator.release(handle, NOISE)
    assert (proxy.cuts, unsure.value.uncertain) == (1, True)
    with pytest.raises(ReleaseLost):
        curator.release(handle, NOISE)
    drawn.require_sound(url, lost=1)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_value_that_was_not_stored_is_kept_and_delivered_later(
    server, proxy, drawn, monkeypatch, when
):
    curator = make(url := server.schema(port=proxy.port))
    handle = curator.evaluate(MEAN)
    charge = Ledger.charge

    def charge_and_arm(*arguments, **named):
        entry = charge(*arguments, **named)
        proxy.arm(COMMIT, when)
        return entry

    monkeypatch.setattr(Ledger, "charge", charge_and_arm)
    with pytest.raises(LedgerUnavailable):
        curator.release(handle, NOISE)
    monkeypatch.undo()
    assert (proxy.cuts, len(drawn.handles)) == (1, 1)
    release = curator.release(handle, NOISE)
    records = drawn.require_sound(url)
    assert [record.kind for record in records] == ["birth", "charge", "value"]
    assert records[-1].body["values"][0]["value"] == release.value.tolist(), (
        "what was drawn the first time"
    )


def test_a_server_that_is_down_charges_nothing_and_work_goes_on_when_it_is_back(server, drawn):
    curator = make(url := server.schema())
    handle = curator.evaluate(MEAN)
    server.stop()
    try:
        for call in (
            lambda: curator.release(handle, NOISE),
            curator.statement,
            lambda: make(url),
            lambda: Ledger.open(url),
        ):
            with pytest.raises(LedgerUnavailable) as refused:
                call()
            assert not refused.value.uncertain
    finally:
        server.start()
    assert drawn.handles == []
    curator.release(handle, NOISE)
    drawn.require_sound(url)


def test_a_locked_ledger_is_named_and_charges_nothing(server, drawn):
    curator = make(url := server.schema(settings="-clock_timeout=200"))
    handle = curator.evaluate(MEAN)
    with Ledger.open(url).storage.writing(), pytest.raises(LedgerUnavailable, match="lock"):
        curator.release(handle, NOISE)
    assert drawn.handles == []
    curator.release(handle, NOISE)
    drawn.require_sound(url)


@pytest.mark.parametrize("crashes", [1, pytest.param(12, marks=pytest.mark.deep)])
def test_a_crashed_server_keeps_every_charge_it_answered_for(server, drawn, measured, crashes):
    """kill -9 of all its processes while releases go on, though the server was told to answer
    before it syncs.
    """
    curator = make(url := server.schema(settings="-csynchronous_commit=off"))
    objective = search(curator, 20_000)
    rng = random.Random(crashes)
    answered = []
    ended = threading.Event()

    def release():
        while not ended.is_set():
            # a fast machine may use up the plan
            with contextlib.suppress(LedgerUnavailable, BudgetExceeded):
                objective(torch.rand(2, 1, dtype=DOUBLE))
                answered.append(curator.ledger.head().seq)

    runner = threading.Thread(target=release)
    runner.start()
    try:
        for _ in range(crashes):
            time.sleep(rng.uniform(0.3, 0.8))
            server.crash()
            server.restart()
    finally:
        ended.set()
        runner.join()
    with contextlib.suppress(LedgerUnavailable, BudgetExceeded):
        objective(torch.rand(2, 1, dtype=DOUBLE))  # what was drawn and not yet stored
    records = Ledger.open(url).verify()
    assert records.seq >= max(answered, default=0), "what was answered for is there"
    kept = Ledger.open(url).records()
    lost = sum(len(r.body["slots"]) for r in kept if r.kind == "charge") - sum(
        len(r.body["values"]) for r in kept if r.kind == "value"
    )
    assert lost <= 2 * crashes, "at most the one release in flight each time"
    drawn.require_sound(url, lost=lost)
    measured(len(answered))
