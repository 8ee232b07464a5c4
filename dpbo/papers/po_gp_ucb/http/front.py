"""What faces the network: it knows the token and the period, and hands each question on. It holds
no record, and imports no curator.

`python -m dpbo.papers.po_gp_ucb.http.front` is the process that `serve` starts. It reads its
settings as a line of JSON; then it writes each question as a line, and reads its answer as one.
When the curator's process ends, it ends, too.
"""

import asyncio
import hmac
import json
import math
import os
import queue
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TextIO

from dpbo.extras import needs

with needs("http"):
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

# the status, and the content
Reply = tuple[int, dict[str, Any]]
# of {"row": ..., "request": ...}, or of {} for the statement
Ask = Callable[[dict[str, Any]], Reply]

CANNOT_BEGIN = 3
"""The exit status of this process where the port is not free, or the host no address of this
machine.
"""

_MOST_BYTES = 4096
_MOST_WAITING = 100


class _Refused(Exception):
    """A question that gets a status instead of an answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def facing(ask: Ask, *, token: str, every: float) -> Starlette:
    """The ASGI application that hands valid questions to `ask`, one at a time, each for a whole
    number of periods.
    """
    turns = _Queue(every)

    async def value(request: Request) -> Response:
        async def answer() -> Reply:
            question = await _question(request)
            return await turns.run(lambda: ask(question))

        return await _reply(request, token, answer)

    async def statement(request: Request) -> Response:
        return await _reply(request, token, lambda: turns.run(lambda: ask({})))

    return Starlette(
        routes=[
            Route("/value", value, methods=["POST"]),
            Route("/statement", statement, methods=["GET"]),
        ]
    )


class _Queue:
    """Runs one job at a time, each for a whole number of periods."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def run(self, work: Callable[[], Any]) -> Any:
        """The result or exception of `work`, at the end of its period."""
        if self._waiting >= _MOST_WAITING:
            raise _Refused(503, "too many questions are waiting; ask again later")
        self._waiting += 1
        try:
            # a client that disconnects does not shorten the queue
            return await asyncio.shield(self._run_alone(work))
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
                # At least one: within a tick of a coarse clock no time passes, and an answer that
                # left at once would tell so.
                periods = max(math.ceil(elapsed / self._every), 1)
                await asyncio.sleep(periods * self._every - elapsed)


async def _reply(request: Request, token: str, answer: Callable[[], Awaitable[Reply]]) -> Response:
    """The answer, or why there is none."""
    try:
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise _Refused(401, "give the token: 'Authorization: Bearer ...'")
        status, content = await answer()
    except _Refused as refused:
        status, content = error(refused.status, "Refused", str(refused))
    except ClientDisconnect:
        status, content = error(
            400, "Refused", "the connection was closed before the question was complete"
        )
    return JSONResponse(content, status_code=status)


async def _question(request: Request) -> dict[str, Any]:
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
        raise _Refused(
            400, 'ask with {"row": a whole number, "request": a name of your own for this question}'
        )
    row = question["row"]
    name = question["request"]
    if isinstance(row, bool) or not isinstance(row, int) or not isinstance(name, str):
        raise _Refused(400, "row must be a whole number, request a text")
    return question


def error(status: int, kind: str, message: str) -> Reply:
    """An error as it is sent: the name of its type, and its text."""
    return status, {"error": kind, "message": message}


def main(questions: TextIO, answers: TextIO) -> None:
    """Serve until interrupted, or until `answers` ends."""
    settings = json.loads(answers.readline())
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def receive() -> None:
        for line in answers:
            lines.put(line)
        # the curator's process is gone: whoever waits may ask again when there is another
        os._exit(1)

    def ask(question: dict[str, Any]) -> Reply:
        questions.write(json.dumps(question) + "\n")
        questions.flush()
        status, content = json.loads(lines.get())
        return status, content

    threading.Thread(target=receive, daemon=True).start()
    application = facing(ask, token=settings["token"], every=settings["every"])
    try:
        uvicorn.run(
            application,
            host=settings["host"],
            port=settings["port"],
            log_level="warning",
            access_log=False,
        )
    except SystemExit:
        # how uvicorn ends when it cannot begin
        raise SystemExit(CANNOT_BEGIN) from None


if __name__ == "__main__":
    main(sys.stdout, sys.stdin)
