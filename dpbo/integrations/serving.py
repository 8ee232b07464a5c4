"""The curator as a small HTTP server: a protocol of two methods, for a modeler elsewhere.

    POST /value        {"row": 17, "request": "8c1f..."}   ->  {"row": 17, "value": 0.42, "variance": 0.01}
    GET  /statement                                        ->  the statement's fields

Every question carries a token (`Authorization: Bearer ...`) and a name of its own: asked again by that name it gets the same answer
and is charged once, so either side may be killed at any moment. The ledger is the log. Errors are JSON with the typed error's words: 400
malformed, 401 no or a wrong token, 404 no such row, 409 a row asked too often or a name used twice, 410 charged but lost, 413 too long,
429 no answers left, 503 ledger out of reach; none of them charges anything.

How long an outcome takes may depend on its record, and a modeler has a clock: answers and errors leave at whole multiples of `every`
seconds after their question, so that only an outcome slower than that shows. Transport is not encrypted here: bind to loopback, or put a
TLS proxy in front.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dpbo.algorithms.outsourced.curating import Outcomes
from dpbo.errors import BudgetExceeded, InputError, LedgerUnavailable, PrivacyError, ReleaseLost
from dpbo.privacy import require_positive

_LONGEST = 4096
_LOG = logging.getLogger(__name__)
_REPLIES: tuple[tuple[type[PrivacyError], int], ...] = ((ReleaseLost, 410), (LedgerUnavailable, 503))


class _Refused(Exception):
    """A question that is answered by a status alone."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def application(outcomes: Outcomes, *, token: str, every: float = 0.1) -> Starlette:
    """The server, for uvicorn or any other ASGI server; one process and ledger a data set.

    Args:
        outcomes: what is asked about.
        token: of 16 letters or more; whoever has it may ask.
        every: seconds; replies about rows leave at whole multiples of it.

    Raises:
        InputError: an argument outside its range.
    """
    if not isinstance(token, str) or len(token) < 16:
        raise InputError("token", "too short", "of 16 letters or more", "For example secrets.token_urlsafe().")
    require_positive("every", every)

    async def value(request: Request) -> Response:
        loop = asyncio.get_running_loop()
        start = loop.time()
        reply = await _replied(request, token, lambda: _value(request, outcomes))
        elapsed = loop.time() - start
        await asyncio.sleep(math.ceil(elapsed / every) * every - elapsed)
        return reply

    async def statement(request: Request) -> Response:
        return await _replied(request, token, lambda: _statement(outcomes))

    return Starlette(routes=[Route("/value", value, methods=["POST"]), Route("/statement", statement, methods=["GET"])])


def serve(outcomes: Outcomes, *, token: str, host: str = "127.0.0.1", port: int = 8765, every: float = 0.1) -> None:
    """Serve until interrupted."""
    import uvicorn

    uvicorn.run(application(outcomes, token=token, every=every), host=host, port=port, log_level="warning", access_log=False)


async def _replied(request: Request, token: str, answer: Any) -> Response:
    """What `answer` gives, or the error's reply: no traceback, which would hold private frames, reaches anybody."""
    try:
        _require_token(request, token)
        return JSONResponse(await answer())
    except _Refused as refused:
        return _error(refused.status, "Refused", str(refused))
    except ClientDisconnect:
        return _error(400, "Refused", "the question broke off")
    except PrivacyError as error:
        return _error(_status(error), type(error).__name__, str(error))
    except Exception as error:  # whatever it is, it may be private
        _LOG.error("a question failed inside: %s", type(error).__name__)
        return _error(500, "Failed", "the question failed inside; the operator's log has the kind of failure")


async def _value(request: Request, outcomes: Outcomes) -> dict[str, Any]:
    row, name = _question(await _body(request))
    answer = await run_in_threadpool(outcomes.value, row, request=name)
    return {"row": answer.row, "value": answer.value, "variance": answer.variance}


async def _statement(outcomes: Outcomes) -> Any:
    return json.loads((await run_in_threadpool(outcomes.curator.statement)).to_json())


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


def _status(error: PrivacyError) -> int:
    if isinstance(error, InputError):
        return {"row": 404, "request": 409}.get(error.parameter, 400)
    if isinstance(error, BudgetExceeded):
        return 429 if error.unit == "answers" else 409
    return next((status for kind, status in _REPLIES if isinstance(error, kind)), 500)


def _error(status: int, kind: str, message: str) -> Response:
    return JSONResponse({"error": kind, "message": message}, status_code=status)
