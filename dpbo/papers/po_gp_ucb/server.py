"""The curator's outcomes over HTTP, for a modeler elsewhere.

    POST /value  {"row": 17, "request": "8c1f..."}  ->  {"row": 17, "value": 0.42, "variance": 0.01}
    GET  /statement                                 ->  the statement's fields

    uvicorn.run(serve(outcomes, token=token), host="127.0.0.1", port=8765)

Each question carries the token (`Authorization: Bearer ...`) and a name. Asked again by that name
it gets the same answer and is charged once, so either side may be killed at any moment and started
again. Whatever is refused charges nothing: 400 malformed, 401 without the token, 404 no such row,
409 a name used for another row, 410 a row that has no further answer, 413 too long, 429 no answers
left, 503 the ledger is unavailable. The text of an error within an outcome is not sent.

Transport is not encrypted: bind to the loopback address and put a TLS proxy in front. How long a
reply takes may depend on the records: the assumption `timing-not-observed` covers everybody who can
reach the port.
"""

import asyncio
import hmac
import json
import logging
from collections.abc import Callable
from typing import Any

from dpbo.errors import BudgetExceeded, InputError, LedgerUnavailable, ReleaseLost, Unshown
from dpbo.extras import needs
from dpbo.papers.po_gp_ucb.curator_side import Outcomes
from dpbo.validation import checked

with needs("http"):
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

_LOG = logging.getLogger(__name__)
_MOST_BYTES = 4096


@checked
def serve(outcomes: Outcomes, *, token: str) -> Starlette:
    """The ASGI application that answers for these outcomes, for uvicorn or any other server; one
    process a ledger.

    Args:
        outcomes: the outcomes to serve.
        token: access token of at least 16 characters; everyone who has it may ask.

    Raises:
        InputError: a token that is too short.
        MissingLibrary: the extra `http` is not installed.
    """
    if len(token) < 16:
        raise InputError(
            "token",
            Unshown(token),
            "at least 16 characters",
            "For example secrets.token_urlsafe().",
        )
    expected = f"Bearer {token}".encode()
    # one question at a time
    turn = asyncio.Lock()

    def require_token(request: Request) -> None:
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), expected):
            raise HTTPException(401, "give the token: 'Authorization: Bearer ...'")

    async def value(request: Request) -> Response:
        require_token(request)
        row, name = await _question(request)
        async with turn:
            return await run_in_threadpool(
                lambda: _reply(lambda: vars(outcomes.value(row, request=name)))
            )

    async def statement(request: Request) -> Response:
        require_token(request)
        async with turn:
            return await run_in_threadpool(
                lambda: _reply(lambda: json.loads(outcomes.curator.statement().to_json()))
            )

    async def refusal(_: Request, refused: Exception) -> Response:
        assert isinstance(refused, HTTPException)
        return JSONResponse({"message": refused.detail}, refused.status_code)

    return Starlette(
        routes=[
            Route("/value", value, methods=["POST"]),
            Route("/statement", statement, methods=["GET"]),
        ],
        exception_handlers={HTTPException: refusal},
    )


async def _question(request: Request) -> tuple[int, str]:
    """The row and the name of a question."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise HTTPException(413, f"a question has at most {_MOST_BYTES} bytes")
    try:
        question = json.loads(body)
    except (ValueError, RecursionError):
        question = None
    match question:
        case {"row": int(row), "request": str(name)} if len(question) == 2 and row is not True:
            return row, name
    raise HTTPException(
        400, 'ask with {"row": a whole number, "request": a name of your own for this question}'
    )


def _reply(answer: Callable[[], dict[str, Any]]) -> Response:
    """The answer. Raises HTTPException, never an error whose traceback would hold private
    frames.
    """
    try:
        return JSONResponse(answer())
    except LedgerUnavailable:
        status = 503
        told = "the ledger is unavailable; ask again later by the same name"
    except InputError as refused:
        status = 404 if refused.parameter == "row" else 409
        told = str(refused)
    except BudgetExceeded as refused:
        status = 429 if refused.unit == "answers" else 410
        told = str(refused)
    except ReleaseLost as lost:
        status = 410
        told = str(lost)
    except Exception as failed:
        # its text may be private
        _LOG.error("a question failed: %s", type(failed).__name__)
        status = 500
        told = "the question failed; the operator's log has the type of the error"
    raise HTTPException(status, told)
