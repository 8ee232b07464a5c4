"""The curator's server, asked over a socket: what it answers, what it refuses, what it never says;
and a search that asks it.
"""

import contextlib
import json
import logging
import threading
import time

import httpx
import pytest
import torch
import uvicorn

from dpbo import Budget
from dpbo.accounting import PureFilter
from dpbo.errors import (
    CuratorUnavailable,
    InputError,
    LedgerUnavailable,
    PrivateFailure,
    RemoteRefusal,
)
from dpbo.mechanisms.laplace import LaplaceMechanism
from dpbo.models.fixed_kernels import squared_exponential
from dpbo.papers.po_gp_ucb import Modeler, Outcomes, RemoteOutcomes, search, serve
from tests.attacks.marks import attack
from tests.setups import DOUBLE, owner

TOKEN = "a token of enough letters"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
SECRET = 0.123456789


def outcomes(outcome=lambda records: records["y"], **changed):
    records = {
        "rows": torch.zeros(6, 2, dtype=DOUBLE),
        "y": torch.full((6,), SECRET, dtype=DOUBLE),
    }
    curator = owner(records, budget=Budget(4.0, 0.0), accounting=PureFilter(), role="candidate")
    return Outcomes(curator, outcome, value_range=(0.0, 1.0), budget=0.5, **changed)


@contextlib.contextmanager
def served(app):
    """A real server on a port of its own."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=300) as web:
            yield web
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def client():
    """A client with the token, of a server that ends with the test."""
    with contextlib.ExitStack() as stack:

        def of(asked):
            web = stack.enter_context(served(serve(asked, token=TOKEN)))
            web.headers.update(HEADERS)
            return web

        yield of


def ask(web, row, request="q", **changed):
    return web.post("/value", json={"row": row, "request": request}, **changed)


def test_a_row_is_answered_once_and_the_same_question_again_for_free(client):
    asked = outcomes()
    web = client(asked)
    body = json.dumps({"request": "one", "row": 3})
    # plain enough for any client
    first = web.request("POST", "/value", content=body, headers={"Content-Type": "text/plain"})
    assert first.status_code == 200
    head = asked.curator.ledger.head().seq
    assert ask(web, 3, "one").json() == first.json()
    assert asked.curator.ledger.head().seq == head
    assert first.json()["row"] == 3
    assert first.json()["variance"] == pytest.approx(2 / 2.0**2)
    assert first.json()["value"] != SECRET
    assert asked.history()[0].value == first.json()["value"]
    told = web.get("/statement").json()
    assert told["adjacency"] == "replace-one"
    assert told["guarantee"]["epsilon"] == 4.0


def refusals():
    """Hostile bodies and tokens are in tests/attacks/test_doors.py."""
    yield lambda web: web.post("/value", content=b"x" * 5000), (413,)
    yield lambda web: ask(web, 6), (404,)
    yield lambda web: ask(web, 2, "x" * 201), (409,)
    # a repeated row
    yield lambda web: ask(web, 0, "another name"), (410,)
    # a name that was another row's
    yield lambda web: ask(web, 1, "first"), (409,)


def test_what_is_refused_is_refused_clearly_and_charges_nothing(client):
    asked = outcomes()
    web = client(asked)
    assert ask(web, 0, "first").status_code == 200
    before = asked.curator.ledger.head().hash
    for i, (question, status) in enumerate(refusals()):
        reply = question(web)
        assert reply.status_code in status, i
        assert str(SECRET) not in reply.text, i
        assert asked.curator.ledger.head().hash == before, i
    with pytest.raises(InputError, match="token"):
        serve(outcomes(), token="short")


def test_answers_end_where_their_limit_or_the_planned_repeats_of_a_row_do(client):
    web = client(outcomes(limit=2))
    assert [ask(web, row, f"{row}").status_code for row in range(3)] == [200, 200, 429]
    assert ask(web, 0, "0").status_code == 200, "what was answered is told again"
    web = client(outcomes(repeats=2))
    assert [ask(web, 4, f"{turn}").status_code for turn in range(3)] == [200, 200, 410]


def test_an_answer_that_was_charged_and_lost_is_gone(client, monkeypatch):
    asked = outcomes()
    web = client(asked)

    def dies(*_):
        raise RuntimeError(f"the disk holds {SECRET}")

    with monkeypatch.context() as patched:
        patched.setattr(LaplaceMechanism, "_sample", dies)
        assert ask(web, 1, "lost").status_code == 500
    assert ask(web, 1, "lost").status_code == 410
    assert ask(web, 1, "new").status_code == 410, "its row's one answer is spent"
    assert ask(web, 2, "other").status_code == 200


@attack("A21")
def test_a_failing_outcome_is_the_worst_one_and_no_word_of_it_gets_out(client, caplog, monkeypatch):
    def failing(records):
        raise RuntimeError(f"patient {SECRET}")

    with caplog.at_level(logging.DEBUG):
        reply = ask(client(outcomes(failing)), 1)
    assert reply.status_code == 200
    assert abs(reply.json()["value"]) < 20

    asked = outcomes()
    monkeypatch.setattr(asked, "value", lambda *_, **__: failing(None))
    with caplog.at_level(logging.DEBUG):
        broken = ask(client(asked), 1)
    assert broken.status_code == 500
    assert "RuntimeError" in caplog.text
    assert str(SECRET) not in broken.text + caplog.text


@attack("A21")
def test_a_failure_is_a_status_alone_and_a_drawn_answer_waits_for_the_same_question(
    client, monkeypatch
):
    asked = outcomes()
    web = client(asked)

    def failing(error):
        def fails(*_, **__):
            raise error

        return fails

    with monkeypatch.context() as patched:
        patched.setattr(
            asked, "value", failing(PrivateFailure("The private records were changed in place."))
        )
        reply = ask(web, 1)
    assert reply.status_code == 500
    assert "private" not in reply.text
    with monkeypatch.context() as patched:
        patched.setattr(
            asked.curator.ledger, "store", failing(LedgerUnavailable("at /home/them/private.db"))
        )
        replies = [ask(web, 1) for _ in range(2)]
    assert [reply.status_code for reply in replies] == [503, 503]
    assert all("private" not in reply.text for reply in replies)
    late = ask(web, 1)
    assert late.status_code == 200
    assert ask(web, 1).json() == late.json()
    assert len(asked.curator.ledger.charges("outcomes")) == 1


@pytest.fixture
def remote(client):
    """Given outcomes, those of a real server."""
    with contextlib.ExitStack() as stack:
        yield lambda asked: stack.enter_context(RemoteOutcomes(str(client(asked).base_url), TOKEN))


def modeler(rows=6, **changed):
    Z = torch.arange(rows, dtype=DOUBLE).unsqueeze(1)
    return Modeler(Z, kernel=squared_exponential(1.0), noise=0.1, **changed)


def test_a_search_ends_when_nothing_is_left_to_ask_and_by_an_error_when_refused(remote):
    """Whether the outcomes are here or elsewhere."""
    for of in (remote, lambda asked: asked):
        for asked, answers in (
            (outcomes(), 6),
            (outcomes(repeats=2), 12),
            (outcomes(limit=2), 2),
        ):
            repeats = asked.repeats > 1
            assert search(modeler(repeats=repeats), of(asked), steps=50).answers == answers
            assert len(asked.history()) == answers
        spent = outcomes()
        for row in (0, 3):
            spent.value(row, request=f"somebody's {row}")
        left = modeler()
        assert search(left, of(spent), steps=50).answers == 4
        assert sorted(dict(left.history)) == [1, 2, 4, 5], "rows spent elsewhere are left out"
    with pytest.raises(RemoteRefusal) as refused:
        search(modeler(9, history=[(row, 0.0) for row in range(6)]), remote(outcomes()), steps=9)
    assert refused.value.status == 404


@attack("A16")
def test_a_search_that_is_started_again_gets_the_same_answers_and_charges_nothing(remote):
    asked = outcomes(repeats=2)
    first = search(modeler(repeats=True), remote(asked), steps=4)
    charged = asked.curator.ledger.head().hash
    assert search(modeler(repeats=True), remote(asked), steps=4) == first
    assert asked.curator.ledger.head().hash == charged
    assert search(modeler(repeats=True), remote(asked), steps=7).answers == 7
    assert len(asked.history()) == 7
    search(modeler(repeats=True), remote(asked), steps=1, name="another")
    assert len(asked.history()) == 8


@attack("A13")
def test_minimising_is_maximising_the_negative(remote):
    asked = outcomes()
    least = modeler()
    found = search(least, remote(asked), steps=1, minimise=True)
    (answer,) = asked.history()
    assert least.history == [(0, -answer.value)]
    assert found.mean == pytest.approx(-float(least.model.mean[0]))
    assert found.average == pytest.approx(-float(least.model.mean.mean()))


def test_who_cannot_be_reached_is_said(monkeypatch):
    monkeypatch.setattr("dpbo.papers.po_gp_ucb.client._RETRIES", 0)
    with (
        RemoteOutcomes("http://127.0.0.1:1", TOKEN) as nobody,
        pytest.raises(CuratorUnavailable, match="cannot be reached"),
    ):
        nobody.statement()
