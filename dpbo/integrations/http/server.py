"""The curator as a small HTTP server: a protocol of two methods, for a modeler elsewhere.

    POST /value        {"row": 17, "request": "8c1f..."}   ->  {"row": 17, "value": 0.42, "variance": 0.01}
    GET  /statement                                        ->  the statement's fields

Every question carries a token (`Authorization: Bearer ...`) and a name of its own: asked again by that name it gets the same answer
and is charged once, so either side may be killed at any moment. The ledger is the log. Errors are JSON with the typed error's words: 400
malformed, 401 no or a wrong token, 404 no such row, 409 a row asked too often or a name used twice, 410 charged but lost, 413 too long,
429 no answers left, 503 ledger out of reach or too many questions waiting; none of them charges anything.

How long an outcome takes may depend on its record, and a modeler has a clock. So whatever passes the door (token, form) waits in one line,
one question is worked on at a time, and each takes a whole number of periods of `every` seconds, one where it can: only an outcome slower
than a period shows. Failures on private records give a status alone. Transport is not encrypted here: bind to loopback, or put a TLS proxy
in front. One process serves a ledger.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dpbo.errors import BudgetExceeded, InputError, LedgerUnavailable, ReleaseLost
from dpbo.papers.po_gp_ucb.curator_side import Outcomes
from dpbo.privacy import require_positive
from dpbo.validation import checked

_LONGEST = 4096
_LONGEST_LINE = 100
_LOG = logging.getLogger(__name__)


class _Refused(Exception):
    """A question that is answered by a status alone."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@checked
def application(outcomes: Outcomes, *, token: str, every: float = 0.1) -> Starlette:
    """The server, for uvicorn or any other ASGI server; one process and ledger a data set.

    Args:
        outcomes: what is asked about.
        token: of 16 letters or more; whoever has it may ask.
        every: seconds of a period; at most one answer leaves in each.

    Raises:
        InputError: an argument outside its range.
    """
    if not isinstance(token, str) or len(token) < 16:
        raise InputError("token", "too short", "of 16 letters or more", "For example secrets.token_urlsafe().")
    require_positive("every", every)

    line = _Line(every)

    async def value(request: Request) -> Response:
        async def asked() -> Any:
            row, name = _question(await _body(request))
            return await line.through(lambda: vars(outcomes.value(row, request=name)))

        return await _replied(request, token, asked)

    async def statement(request: Request) -> Response:
        return await _replied(request, token, lambda: line.through(lambda: json.loads(outcomes.curator.statement().to_json())))

    return Starlette(routes=[Route("/value", value, methods=["POST"]), Route("/statement", statement, methods=["GET"])])


class _Line:
    """One piece of work at a time, each a whole number of periods long, whatever it does."""

    def __init__(self, every: float) -> None:
        self._every, self._turn, self._waiting = every, asyncio.Lock(), 0

    async def through(self, work: Callable[[], Any]) -> Any:
        """What `work` returns or raises, at the end of its periods."""
        if self._waiting >= _LONGEST_LINE:
            raise _Refused(503, "too many questions are waiting; ask again later")
        self._waiting += 1
        try:
            return await asyncio.shield(self._worked(work))  # who hangs up does not move the line
        finally:
            self._waiting -= 1

    async def _worked(self, work: Callable[[], Any]) -> Any:
        async with self._turn:
            loop = asyncio.get_running_loop()
            start = loop.time()
            try:
                return await run_in_threadpool(work)
            finally:
                elapsed = loop.time() - start
                await asyncio.sleep(math.ceil(elapsed / self._every) * self._every - elapsed)


def serve(outcomes: Outcomes, *, token: str, host: str = "127.0.0.1", port: int = 8765, every: float = 0.1) -> None:
    """Serve until interrupted."""
    import uvicorn

    uvicorn.run(application(outcomes, token=token, every=every), host=host, port=port, log_level="warning", access_log=False)


async def _replied(request: Request, token: str, answer: Callable[[], Awaitable[Any]]) -> Response:
    """What `answer` gives, or the error's reply: no traceback, which would hold private frames, reaches anybody."""
    try:
        _require_token(request, token)
        return JSONResponse(await answer())
    except _Refused as refused:
        return _error(refused.status, "Refused", str(refused))
    except ClientDisconnect:
        return _error(400, "Refused", "the question broke off")
    except LedgerUnavailable:
        return _error(503, "LedgerUnavailable", "the ledger is out of reach; ask again later by the same name")
    except (InputError, BudgetExceeded, ReleaseLost) as error:
        return _error(_status(error), type(error).__name__, str(error))
    except Exception as error:  # whatever it is, it may be private
        _LOG.error("a question failed inside: %s", type(error).__name__)
        return _error(500, "Failed", "the question failed inside; the operator's log has the kind of failure")


def _require_token(request: Request, token: str) -> None:
    given = request.headers.get("authorization", "")
    if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
        raise _Refused(401, "give the token: 'Authorization: Bearer ...'")


async def _body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LONGEST:
            raise _Refused(413, f"a question has at most {_LONGEST} bytes")
    return body


def _question(body: bytes) -> tuple[int, str]:
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        asked = None
    if not isinstance(asked, dict) or set(asked) != {"row", "request"}:
        raise _Refused(400, 'ask with {"row": a whole number, "request": a name of your own for this question}')
    row, name = asked["row"], asked["request"]
    if isinstance(row, bool) or not isinstance(row, int) or not isinstance(name, str):
        raise _Refused(400, "row is a whole number, request a text")
    return row, name


def _status(error: InputError | BudgetExceeded | ReleaseLost) -> int:
    if isinstance(error, InputError):
        return {"row": 404, "request": 409}.get(error.parameter, 400)
    if isinstance(error, BudgetExceeded):
        return 429 if error.unit == "answers" else 409
    return 410


def _error(status: int, kind: str, message: str) -> Response:
    return JSONResponse({"error": kind, "message": message}, status_code=status)
