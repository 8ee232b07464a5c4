"""The curator as a small HTTP server: a protocol of two methods, for a modeler elsewhere.

    POST /value        {"row": 17, "request": "8c1f..."}   ->  {"row": 17, "value": 0.42, "variance": 0.01}
    GET  /statement                                        ->  the statement's fields

Every question carries a token (`Authorization: Bearer ...`) and a name of its own. Asked again by that name it gets the same answer and is
charged once, so either side may be killed at any moment. The ledger is the log. Errors are JSON with the typed error's text: 400 malformed,
401 missing or wrong token, 404 no such row, 409 a row asked too often or a name used twice, 410 charged but lost, 413 too long, 429 no
answers left, 503 ledger unavailable or too many questions waiting. No error charges anything.

How long an outcome takes may depend on its record, and a modeler has a clock. So valid questions wait in one queue, one is worked on at a
time, and each takes a whole number of periods of `every` seconds, usually one: only an outcome slower than a period can be noticed.
Failures on private records give a status only. Transport is not encrypted here: bind to loopback, or put a TLS proxy in front. One process
serves a ledger.
"""

import asyncio
import hmac
import json
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

from dpbo.errors import BudgetExceeded, InputError, LedgerUnavailable, ReleaseLost
from dpbo.extras import needs
from dpbo.papers.po_gp_ucb.curator_side import Outcomes
from dpbo.validation import Positive, checked

with needs("http"):
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

_MOST_BYTES = 4096
_MOST_WAITING = 100
_LOG = logging.getLogger(__name__)


class _Refused(Exception):
    """A question that gets a status instead of an answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@checked
def application(outcomes: Outcomes, *, token: str, every: Positive = 0.1) -> Starlette:
    """The ASGI application, for uvicorn or any other server; one process and one ledger a data set.

    Args:
        outcomes: the outcomes to serve.
        token: access token of at least 16 characters; everyone who has it may ask.
        every: length of a period in seconds; at most one answer leaves in each.

    Raises:
        InputError: an argument outside its range.
    """
    if len(token) < 16:
        raise InputError("token", "too short", "at least 16 characters", "For example secrets.token_urlsafe().")
    queue = _Queue(every)

    async def value(request: Request) -> Response:
        async def answer() -> Any:
            row, name = await _question(request)
            return await queue.run(lambda: vars(outcomes.value(row, request=name)))

        return await _reply(request, token, answer)

    async def statement(request: Request) -> Response:
        return await _reply(request, token, lambda: queue.run(lambda: json.loads(outcomes.curator.statement().to_json())))

    return Starlette(routes=[Route("/value", value, methods=["POST"]), Route("/statement", statement, methods=["GET"])])


class _Queue:
    """Runs one job at a time, each for a whole number of periods."""

    def __init__(self, every: float) -> None:
        self._every, self._turn, self._waiting = every, asyncio.Lock(), 0

    async def run(self, work: Callable[[], Any]) -> Any:
        """The result or exception of `work`, at the end of its period."""
        if self._waiting >= _MOST_WAITING:
            raise _Refused(503, "too many questions are waiting; ask again later")
        self._waiting += 1
        try:
            return await asyncio.shield(self._run_alone(work))  # a client that disconnects does not shorten the queue
        finally:
            self._waiting -= 1

    async def _run_alone(self, work: Callable[[], Any]) -> Any:
        async with self._turn:
            loop = asyncio.get_running_loop()
            start = loop.time()
            try:
                return await run_in_threadpool(work)
            finally:
                elapsed = loop.time() - start
                # At least one: within a tick of a coarse clock no time passes, and an answer that left at once would tell so.
                periods = max(math.ceil(elapsed / self._every), 1)
                await asyncio.sleep(periods * self._every - elapsed)


def serve(outcomes: Outcomes, *, token: str, host: str = "127.0.0.1", port: int = 8765, every: float = 0.1) -> None:
    """Serve until interrupted.

    Raises:
        InputError: the port is not free, or the host no address of this machine. MissingLibrary: the extra `http` is not installed.
    """
    served = application(outcomes, token=token, every=every)
    try:
        uvicorn.run(served, host=host, port=port, log_level="warning", access_log=False)
    except SystemExit:  # how uvicorn ends when it cannot begin; its own status would be that of another error here
        remedy = "Choose another port, or another host."
        raise InputError("port", port, f"a free port of the address {host!r} of this machine", remedy) from None


async def _reply(request: Request, token: str, answer: Callable[[], Awaitable[Any]]) -> Response:
    """The answer, or the error as JSON: a traceback would hold private frames, so none is sent."""
    try:
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise _Refused(401, "give the token: 'Authorization: Bearer ...'")
        return JSONResponse(await answer())
    except _Refused as refused:
        return _error(refused.status, "Refused", str(refused))
    except ClientDisconnect:
        return _error(400, "Refused", "the connection was closed before the question was complete")
    except LedgerUnavailable:
        return _error(503, "LedgerUnavailable", "the ledger is unavailable; ask again later by the same name")
    except InputError as error:
        return _error({"row": 404, "request": 409}.get(error.parameter, 400), "InputError", str(error))
    except BudgetExceeded as error:
        return _error(429 if error.unit == "answers" else 409, "BudgetExceeded", str(error))
    except ReleaseLost as error:
        return _error(410, "ReleaseLost", str(error))
    except Exception as error:  # its text may be private
        _LOG.error("a question failed: %s", type(error).__name__)
        return _error(500, "Failed", "the question failed; the operator's log has the type of the error")


async def _question(request: Request) -> tuple[int, str]:
    """The row and the name of a question."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise _Refused(413, f"a question has at most {_MOST_BYTES} bytes")
    try:
        question = json.loads(body)
    except (ValueError, RecursionError):
        question = None
    if not isinstance(question, dict) or set(question) != {"row", "request"}:
        raise _Refused(400, 'ask with {"row": a whole number, "request": a name of your own for this question}')
    row, name = question["row"], question["request"]
    if isinstance(row, bool) or not isinstance(row, int) or not isinstance(name, str):
        raise _Refused(400, "row must be a whole number, request a text")
    return row, name


def _error(status: int, kind: str, message: str) -> Response:
    return JSONResponse({"error": kind, "message": message}, status_code=status)
