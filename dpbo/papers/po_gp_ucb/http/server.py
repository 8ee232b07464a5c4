"""The curator as a small HTTP server: a protocol of two methods, for a modeler elsewhere.

    POST /value  {"row": 17, "request": "8c1f..."}  ->  {"row": 17, "value": 0.42, "variance": 0.01}
    GET  /statement                                 ->  the statement's fields

Every question carries a token (`Authorization: Bearer ...`) and a name of its own. Asked again by
that name it gets the same answer and is charged once, so either side may be killed at any moment.
The ledger is the log. Errors are JSON with the typed error's text: 400 malformed, 401 missing or
wrong token, 404 no such row, 409 a row asked too often or a name used twice, 410 charged but lost,
413 too long, 429 no answers left, 503 ledger unavailable or too many questions waiting. No error
charges anything.

How long an outcome takes may depend on its record, and a modeler has a clock. So valid questions
wait in one queue, one is worked on at a time, and each takes a whole number of periods of `every`
seconds, usually one: the reply to a question shows only an outcome slower than a period. Other
replies wait for nothing, such as 401s, which need no token. In the process that evaluates they
would be late while an outcome holds the interpreter. So `serve` faces the network from a process of
its own, which holds no records (front.py). What is left is the load on processors, caches and disks
that both processes share: `timing-not-observed`.

Failures on private records give a status only. Transport is not encrypted here: bind to loopback,
or put a TLS proxy in front. One process evaluates for a ledger.
"""

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

from dpbo.errors import (
    BudgetExceeded,
    InputError,
    LedgerUnavailable,
    ReleaseLost,
    Unshown,
    UsageError,
)
from dpbo.extras import needs
from dpbo.papers.po_gp_ucb.curator_side import Outcomes
from dpbo.validation import Positive, checked

with needs("http"):
    from starlette.applications import Starlette

    from dpbo.papers.po_gp_ucb.http.front import CANNOT_BEGIN, Reply, error, facing

_LOG = logging.getLogger(__name__)


@checked
def application(outcomes: Outcomes, *, token: str, every: Positive = 0.1) -> Starlette:
    """The ASGI application, for uvicorn or any other server; one process and one ledger a data set.

    It evaluates in the server's own process. There, whoever sends requests without a token can
    measure how long an outcome holds Python's interpreter: use it where nobody but the modeler
    reaches the server and outcomes take equally long, and `serve` elsewhere.

    Args:
        outcomes: the outcomes to serve.
        token: access token of at least 16 characters; everyone who has it may ask.
        every: length of a period in seconds; at most one answer leaves in each.

    Raises:
        InputError: an argument outside its range.
    """
    _require_token(token)
    return facing(lambda question: _answered(outcomes, question), token=token, every=every)


@checked
def serve(
    outcomes: Outcomes,
    *,
    token: str,
    host: str = "127.0.0.1",
    port: int = 8765,
    every: Positive = 0.1,
) -> None:
    """Serve until interrupted: another process faces the network, and this one evaluates.

    Arguments as in `application`.

    Raises:
        InputError: an argument outside its range, a port that is not free, or a host that is no
            address of this machine.
        MissingLibrary: the extra `http` is not installed.
    """
    _require_token(token)
    command = [sys.executable, "-m", "dpbo.papers.po_gp_ucb.http.front"]
    paths = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": paths}
    front = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    answering = threading.Thread(target=_answer_all, args=(outcomes, front))
    with _ended_by_signals(front):
        _send(front, {"token": token, "host": host, "port": port, "every": every})
        answering.start()
        while front.poll() is None:
            # an interrupt has reached the other process, too, which ends when all is answered
            with contextlib.suppress(KeyboardInterrupt):
                front.wait()
        answering.join()
    for pipe in (front.stdin, front.stdout):
        # a broken pipe: questions or answers that nobody reads any more
        with contextlib.suppress(BrokenPipeError):
            pipe.close()  # type: ignore[union-attr]
    if front.returncode == CANNOT_BEGIN:
        raise _not_free(host, port)
    if front.returncode > 0:
        # it has said why
        raise SystemExit(front.returncode)


def require_address(host: str, port: int) -> None:
    """Raises InputError where nobody could listen now."""
    try:
        # Of a port beyond 65,535 the lookup would make another one.
        family, kind, protocol, _, place = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[
            0
        ]
        with socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((place[0], port, *place[2:]))
    except (OSError, OverflowError):
        raise _not_free(host, port) from None


def _not_free(host: str, port: int) -> InputError:
    allowed = f"a free port of the address {host!r} of this machine"
    return InputError("port", port, allowed, "Choose another port, or another host.")


def _require_token(token: str) -> None:
    if len(token) < 16:
        raise InputError(
            "token",
            Unshown(token),
            "at least 16 characters",
            "For example secrets.token_urlsafe().",
        )


def _answer_all(outcomes: Outcomes, front: subprocess.Popen[str]) -> None:
    """Answers what the process before the network asks, line by line, until it ends."""
    assert front.stdout is not None
    try:
        for line in front.stdout:
            _send(front, _answered(outcomes, json.loads(line)))
    finally:
        # without answers it would keep everybody waiting
        front.terminate()


def _send(front: subprocess.Popen[str], message: Any) -> None:
    assert front.stdin is not None
    # a broken pipe: it has ended
    with contextlib.suppress(BrokenPipeError):
        front.stdin.write(json.dumps(message) + "\n")
        front.stdin.flush()


@contextlib.contextmanager
def _ended_by_signals(front: subprocess.Popen[str]) -> Iterator[None]:
    """A signal that ends this process ends the other one first, which lets it answer what was
    asked.
    """
    if threading.current_thread() is not threading.main_thread():
        # only the main thread may ask for signals
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: front.terminate())
    try:
        yield
    finally:
        front.terminate()
        signal.signal(signal.SIGTERM, before)


def _answered(outcomes: Outcomes, question: dict[str, Any]) -> Reply:
    """The answer, or the error as JSON: a traceback would hold private frames, so none is sent."""
    try:
        if not question:
            return 200, json.loads(outcomes.curator.statement().to_json())
        return 200, dict(vars(outcomes.value(question["row"], request=question["request"])))
    except LedgerUnavailable:
        return error(
            503, "LedgerUnavailable", "the ledger is unavailable; ask again later by the same name"
        )
    except InputError as refused:
        return error(
            {"row": 404, "request": 409}.get(refused.parameter, 400), "InputError", str(refused)
        )
    except UsageError as refused:
        return error(400, "UsageError", str(refused))
    except BudgetExceeded as refused:
        return error(429 if refused.unit == "answers" else 409, "BudgetExceeded", str(refused))
    except ReleaseLost as lost:
        return error(410, "ReleaseLost", str(lost))
    except Exception as failed:
        # its text may be private
        _LOG.error("a question failed: %s", type(failed).__name__)
        return error(
            500, "Failed", "the question failed; the operator's log has the type of the error"
        )
