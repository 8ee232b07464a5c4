"""The curator's server, asked over a socket: what it answers, what it refuses, what it never says."""

import contextlib
import json
import logging
import math
import threading
import time

import httpx
import pytest
import torch
import uvicorn

from dpbo import Adjacency, Budget, Curator, PrivacyUnit
from dpbo.accounting import PureFilter
from dpbo.algorithms.outsourced import Outcomes
from dpbo.errors import InputError, LedgerUnavailable, PrivateFailure
from dpbo.integrations import application
from dpbo.mechanisms.laplace import LaplaceMechanism

TOKEN = "a token of enough letters"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
SECRET = 0.123456789


def outcomes(outcome=lambda records: records["y"], **changed):
    records = {"rows": torch.zeros(6, 2, dtype=torch.float64), "y": torch.full((6,), SECRET, dtype=torch.float64)}
    curator = Curator(
        records,
        unit=PrivacyUnit("row"),
        adjacency=Adjacency.REPLACE_ONE,
        budget=Budget(4.0, 0.0),
        accounting=PureFilter(),
        role="candidate",
    )
    return Outcomes(curator, outcome, value_range=(0.0, 1.0), budget_share=0.5, **changed)


@contextlib.contextmanager
def served(app):
    """A real server on a port of its own."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as web:
            yield web
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def client():
    """A client with the token, of a server that ends with the test."""
    with contextlib.ExitStack() as stack:

        def of(asked, **changed):
            web = stack.enter_context(served(application(asked, token=TOKEN, **{"every": 0.001, **changed})))
            web.headers.update(HEADERS)
            return web

        yield of


def ask(web, row, request="q", **changed):
    return web.post("/value", json={"row": row, "request": request}, **changed)


def test_a_row_is_answered_once_and_the_same_question_again_for_free(client):
    asked = outcomes()
    web = client(asked)
    first = ask(web, 3, "one")
    assert first.status_code == 200
    head = asked.curator.ledger.head().seq
    assert ask(web, 3, "one").json() == first.json()
    assert asked.curator.ledger.head().seq == head
    assert first.json()["row"] == 3
    assert first.json()["variance"] == pytest.approx(2 / 2.0**2)
    assert first.json()["value"] != SECRET
    assert asked.history()[0].value == first.json()["value"]


def test_the_statement(client):
    told = client(outcomes()).get("/statement").json()
    assert told["adjacency"] == "replace-one"
    assert told["guarantee"]["epsilon"] == 4.0


MALFORMED = [b"", b"row", b"[]", b"3", b"{}", b'{"row": 1}', b'{"row": 1, "request": 2}', b'{"row": true, "request": "a"}',
             b'{"row": 1.0, "request": "a"}', b'{"row": "1", "request": "a"}', b'{"row": 1, "request": "a", "more": 0}', b"\xff\xfe",
             b"[" * 4000, b'{"row": 1e400, "request": "a"}', b'{"row": 1, "request": ""}', b'{"row": 1, "request": null}']  # fmt: skip


def refusals():
    yield from ((lambda web, body=body: web.post("/value", content=body), (400, 409)) for body in MALFORMED)
    yield lambda web: web.post("/value", content=b"x" * 5000), (413,)
    yield lambda web: ask(web, 6), (404,)
    yield lambda web: ask(web, -1), (404,)
    yield lambda web: ask(web, 10**30), (404,)
    yield lambda web: ask(web, 2, "x" * 201), (409,)
    yield lambda web: ask(web, 2, headers={"Authorization": ""}), (401,)
    yield lambda web: ask(web, 2, headers={"Authorization": "Bearer another token of letters"}), (401,)
    yield lambda web: ask(web, 2, headers={"Authorization": b"Bearer \xff\xfe"}), (401,)
    yield lambda web: web.get("/statement", headers={"Authorization": ""}), (401,)
    yield lambda web: web.get("/value"), (405,)
    yield lambda web: web.post("/statement"), (405,)
    yield lambda web: web.get("/other"), (404,)
    yield lambda web: ask(web, 0, "another name"), (409,)  # a repeated row
    yield lambda web: ask(web, 1, "first"), (409,)  # a name that was another row's


@pytest.mark.parametrize(("question", "status"), list(refusals()))
def test_what_is_refused_is_refused_clearly_and_charges_nothing(client, question, status):
    asked = outcomes()
    web = client(asked)
    assert ask(web, 0, "first").status_code == 200
    before = asked.curator.ledger.head().hash
    reply = question(web)
    assert reply.status_code in status
    assert str(SECRET) not in reply.text
    assert asked.curator.ledger.head().hash == before


def test_without_any_header_nothing_is_told():
    with served(application(outcomes(), token=TOKEN)) as web:
        assert web.get("/statement").status_code == 401


def test_the_limit_of_answers(client):
    web = client(outcomes(limit=2))
    assert [ask(web, row, f"{row}").status_code for row in range(3)] == [200, 200, 429]
    assert ask(web, 0, "0").status_code == 200, "what was answered is told again"


def test_rows_may_be_asked_as_often_as_was_planned(client):
    web = client(outcomes(repeats=2))
    assert [ask(web, 4, f"{turn}").status_code for turn in range(3)] == [200, 200, 409]


def test_an_answer_that_was_charged_and_lost_is_gone(client, monkeypatch):
    asked = outcomes()
    web = client(asked)

    def dies(*_):
        raise RuntimeError(f"the disk holds {SECRET}")

    with monkeypatch.context() as patched:
        patched.setattr(LaplaceMechanism, "_sample", dies)
        assert ask(web, 1, "lost").status_code == 500
    assert ask(web, 1, "lost").status_code == 410
    assert ask(web, 1, "new").status_code == 409, "its row's one answer is spent"
    assert ask(web, 2, "other").status_code == 200


@pytest.mark.attack("A21")
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


def test_what_no_typed_error_covers_is_told_by_a_status_alone(client, monkeypatch):
    asked = outcomes()
    web = client(asked)
    for failure in (PrivateFailure("The private records were changed in place."), LedgerUnavailable("at /home/them/private.db")):

        def failing(*_, failure=failure, **__):
            raise failure

        monkeypatch.setattr(asked, "value", failing)
        reply = ask(web, 1)
        assert reply.status_code in (500, 503)
        assert "private" not in reply.text


def test_who_asks_again_later_by_the_same_name_gets_what_was_drawn(client, monkeypatch):
    asked = outcomes()
    web = client(asked)

    def away(*_):
        raise LedgerUnavailable("at /home/them/private.db")

    with monkeypatch.context() as patched:
        patched.setattr(asked.curator.ledger, "store", away)
        assert [ask(web, 1).status_code for _ in range(2)] == [503, 503]
    late = ask(web, 1)
    assert late.status_code == 200
    assert ask(web, 1).json() == late.json()
    assert len(asked.curator.ledger.charges("outcomes")) == 1


def test_nobody_learns_from_the_statement_how_long_an_outcome_takes(client):
    """Slow outcomes and many repeats behind them: the statement takes whole periods, too, and answers come one a period.

    A busy machine only adds, at random; what leaks shows in every try. So the try that is nearest to whole periods is judged.
    """

    def slow(records):
        time.sleep(0.15)
        return 0.5

    web = client(outcomes(slow), every=0.4)
    took = min((_together(web, rows) for rows in ((0, 1), (2, 3), (4, 5))), key=_beyond_whole)
    assert took["statement"] > 2.5, "behind both answers"
    assert _beyond_whole(took) < 0.35, took


def _together(web, rows):
    """Two questions and the statement, one shortly after the other: the periods from the first question to each answer."""
    took: dict[str, float] = {}

    def timed(name, question):
        question()
        took[name] = (time.monotonic() - start) / 0.4

    threads = [threading.Thread(target=timed, args=(f"row {row}", lambda row=row: ask(web, row, f"{row}"))) for row in rows]
    threads += [threading.Thread(target=timed, args=("statement", lambda: web.get("/statement")))]
    start = time.monotonic()
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    return took


def _beyond_whole(took):
    """The most by which an answer came after a whole number of periods, counted from a twentieth of one before."""
    return max((periods + 0.05) % 1.0 for periods in took.values())


@pytest.mark.attack("A3")
def test_replies_leave_at_whole_multiples_of_a_public_time(client):
    web = client(outcomes(), every=0.4)
    for question in (lambda: ask(web, 1), lambda: ask(web, 99), lambda: web.get("/statement")):
        waited = [_periods(question, 0.4) for _ in range(3)]
        assert min(waited) >= 1.0 - 1e-3
        assert min(periods - math.floor(periods + 1e-3) for periods in waited) < 0.5, "soon after the multiple; a busy machine adds"


def _periods(question, every):
    start = time.monotonic()
    question()
    return (time.monotonic() - start) / every


def test_short_tokens_and_times_are_refused():
    for wrong in ({"token": "short"}, {"token": TOKEN, "every": 0.0}, {"token": 7}):
        with pytest.raises(InputError):
            application(outcomes(), **wrong)


def test_the_protocol_is_plain_enough_for_any_client(client):
    reply = client(outcomes()).request(
        "POST", "/value", content=json.dumps({"request": "a", "row": 2}), headers={"Content-Type": "text/plain"}
    )
    assert isinstance(reply, httpx.Response)
    assert reply.status_code == 200


def test_an_outcome_slower_than_a_period_leaves_at_the_next_one(client):
    """0.45 s of work and periods of 0.3 s: the answer takes two, or three on a slow machine, and nothing in between: the best of three."""

    def slow(records):
        time.sleep(0.45)
        return 0.5

    web = client(outcomes(slow), every=0.3)
    ask(web, 0, "probes have run")
    took = [_periods(lambda row=row: ask(web, row, f"timed {row}"), 0.3) for row in (1, 2, 3)]
    assert min(took) > 1.9
    assert min((periods + 0.2) % 1.0 for periods in took) < 0.5, took
