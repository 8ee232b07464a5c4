"""The curator's server, asked over a socket: what it answers, what it refuses, what it never says;
and a search that asks it.
"""

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import pathlib
import selectors
import threading
import time
from typing import Any

import httpx
import pytest
import torch
import uvicorn

from dpbo import Budget
from dpbo.accounting import PureFilter
from dpbo.errors import InputError, LedgerUnavailable, PrivateFailure, RemoteRefusal
from dpbo.mechanisms.laplace import LaplaceMechanism
from dpbo.models.fixed_kernels import squared_exponential
from dpbo.papers.po_gp_ucb import Modeler, Outcomes
from dpbo.papers.po_gp_ucb.http import RemoteCurator, application, search
from dpbo.papers.po_gp_ucb.http.server import serve
from tests.attacks.marks import attack
from tests.integration.processes import free_port, started
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

        def of(asked, **changed):
            web = stack.enter_context(
                served(application(asked, token=TOKEN, **{"every": 0.001, **changed}))
            )
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
    yield lambda web: ask(web, -1), (404,)
    yield lambda web: ask(web, 10**30), (404,)
    yield lambda web: ask(web, 2, "x" * 201), (409,)
    yield lambda web: web.get("/value"), (405,)
    yield lambda web: web.post("/statement"), (405,)
    yield lambda web: web.get("/other"), (404,)
    # a repeated row
    yield lambda web: ask(web, 0, "another name"), (409,)
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
    for wrong in ({"token": "short"}, {"token": TOKEN, "every": 0.0}, {"token": 7}):
        with pytest.raises(InputError):
            application(outcomes(), **wrong)


def test_answers_end_where_their_limit_or_the_planned_repeats_of_a_row_do(client):
    web = client(outcomes(limit=2))
    assert [ask(web, row, f"{row}").status_code for row in range(3)] == [200, 200, 429]
    assert ask(web, 0, "0").status_code == 200, "what was answered is told again"
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


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time goes on only where it sleeps, or where a test sets it on: what is asked on
    it takes the same on any machine.
    """

    def __init__(self):
        selector = selectors.DefaultSelector()
        self.now = 0.0
        self._select = selector.select
        selector.select = self._asleep  # type: ignore[method-assign]
        super().__init__(selector)

    def time(self):
        return self.now

    def _asleep(self, timeout=None):
        """None sleeps until a thread calls; so does nobody else, for one job runs at a time."""
        ready = self._select(None if timeout is None else 0)
        if timeout and not ready:
            self.now += timeout
        return ready


@pytest.fixture
def clock():
    loop = Clock()
    yield loop
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def lasting(clock, seconds):
    """Outcomes that take so long. The first call is a probe's, which no question waits for."""

    def outcome(records):
        clock.now += seconds
        return 0.5

    return outcomes(outcome)


def replied(clock, app, *asked):
    """When each of the questions (method, path, settings), all sent at once and in this order, is
    answered: seconds from there.
    """

    async def all_of_them():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://curator", headers=HEADERS
        ) as web:
            start = clock.now

            async def reply(method, path, settings):
                await web.request(method, path, **settings)
                return clock.now - start

            return await asyncio.gather(*(reply(*question) for question in asked))

    return clock.run_until_complete(all_of_them())


def value(row):
    return "POST", "/value", {"json": {"row": row, "request": f"{row}"}}


STATEMENT: tuple[str, str, dict[str, Any]] = ("GET", "/statement", {})


@attack("A3")
def test_replies_leave_at_whole_multiples_of_a_public_time(clock):
    """Also what is answered within a tick of the clock, what is refused, and what takes longer than
    one period.
    """
    for seconds, periods in ((0.0, 1), (0.01, 1), (0.3, 1), (0.45, 2)):
        app = application(lasting(clock, seconds), token=TOKEN, every=0.4)
        # probes have run
        replied(clock, app, value(0))
        for asked, whole in ((value(1), periods), (value(1), 1), (value(99), 1), (STATEMENT, 1)):
            assert replied(clock, app, asked) == pytest.approx([0.4 * whole]), (seconds, asked)


@attack("A3")
def test_nobody_learns_from_the_statement_how_long_an_outcome_takes(clock):
    """The statement waits in the same queue, and answers come one a period."""
    for seconds in (0.01, 0.15):
        app = application(lasting(clock, seconds), token=TOKEN, every=0.4)
        # probes have run
        replied(clock, app, value(0))
        assert replied(clock, app, value(1), value(2), STATEMENT) == pytest.approx([0.4, 0.8, 1.2])


def holds_the_interpreter(_records):
    """Waits for a byte without letting another thread run, as a call into a library may that
    computes for long.
    """
    pipe = os.open("finish", os.O_RDWR)
    byte = ctypes.create_string_buffer(1)
    pathlib.Path("holding").touch()
    ctypes.PyDLL(None).read(pipe, byte, 1)
    return 0.5


def serving(port):
    serve(outcomes(holds_the_interpreter), token=TOKEN, port=port, every=0.02)


@attack("A3")
def test_replies_that_wait_for_no_turn_do_not_wait_for_an_outcome_either(tmp_path):
    """Who has no token could measure how long an outcome holds the interpreter, if both were in one
    process.
    """
    os.mkfifo(tmp_path / "finish")
    port = free_port()
    curator = started(tmp_path, "serve.log", serving, port)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=20) as web:
            _until(lambda: web.get("/statement"), curator)
            answers: list[httpx.Response] = []
            asking = threading.Thread(target=lambda: answers.append(ask(web, 0, headers=HEADERS)))
            asking.start()
            _until((tmp_path / "holding").stat, curator)
            # until it has begun to read
            time.sleep(0.1)
            for hostile in (
                lambda: web.get("/statement"),
                lambda: web.get("/other"),
                lambda: ask(web, 0),
                lambda: web.put("/value"),
            ):
                assert hostile().status_code in (401, 404, 405)
            assert not answers
            (tmp_path / "finish").write_bytes(b"1")
            asking.join()
            assert answers[0].status_code == 200, answers[0].text
        curator.terminate()
        curator.join()
        assert curator.exitcode == 0, "a signal ends both processes"
    finally:
        curator.kill()
        curator.join()


def _until(tried, process):
    """Tries again until it works."""
    end = time.monotonic() + 120
    while process.is_alive() and time.monotonic() < end:
        with contextlib.suppress(OSError, httpx.TransportError):
            tried()
            return
        time.sleep(0.02)
    raise AssertionError("the server did not start")


@pytest.fixture
def remote(client):
    """Given outcomes, the remote curator of a real server."""
    with contextlib.ExitStack() as stack:
        yield lambda asked: stack.enter_context(RemoteCurator(str(client(asked).base_url), TOKEN))


@pytest.fixture
def found(remote, tmp_path):
    """Given outcomes, the answers of a search of at most 50 steps among their six rows."""

    def searched(asked, rows=6, journal="j", steps=50, minimise=False, **changed):
        Z = torch.arange(rows, dtype=DOUBLE).unsqueeze(1)
        modeler = Modeler(Z, kernel=squared_exponential(1.0), noise=0.1, **changed)
        return (
            search(
                modeler, remote(asked), steps=steps, journal=tmp_path / journal, minimise=minimise
            ),
            modeler,
        )

    return searched


def test_a_search_ends_when_nothing_is_left_to_ask_and_by_an_error_when_refused(found):
    for asked, journal, repeats in (
        (outcomes(), "once", False),
        (outcomes(repeats=2), "twice", True),
    ):
        answers, _ = found(asked, journal=journal, repeats=repeats)
        assert sorted(answer.row for answer in answers) == sorted([*range(6)] * (1 + repeats))
    asked = outcomes()
    for row in (0, 3):
        asked.value(row, request=f"somebody's {row}")
    answers, _ = found(asked)
    assert sorted(answer.row for answer in answers) == [
        1,
        2,
        4,
        5,
    ], "rows spent elsewhere are left out"
    assert found(asked)[0] == answers
    assert len(found(outcomes(limit=2), journal="limited")[0]) == 2
    with pytest.raises(RemoteRefusal) as refused:
        found(outcomes(), rows=9, journal="beyond", history=[(row, 0.0) for row in range(6)])
    assert (refused.value.status, refused.value.gone) == (404, False)


@attack("A13")
def test_minimising_is_maximising_the_negative(found):
    (answer,), modeler = found(outcomes(), steps=1, minimise=True)
    assert modeler.history == [(0, -answer.value)]
