"""The modeler's end of the curator's HTTP server, and a search that survives being killed.

    with RemoteCurator("http://127.0.0.1:8765", token) as curator:
        answers = search(modeler, curator, steps=50, journal="search.jsonl")

Each question is named and written to the journal before it is sent. Killed anywhere, the search repeats its last question by the same name,
which the curator answers with what it drew then. Nothing here is private, and nothing here imports the curator.
"""

from __future__ import annotations

import json
import os
import pathlib
import time
import uuid
from collections.abc import Iterator
from typing import Any, Self

import httpx

from dpbo.errors import BudgetExceeded, InputError, PrivacyError, Unshown
from dpbo.papers.po_gp_ucb.curator_side import Answer
from dpbo.papers.po_gp_ucb.modeler import Modeler
from dpbo.privacy import require_count
from dpbo.validation import checked

_EMPTY = 429
_PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


class RemoteRefusal(PrivacyError):
    """The curator refused a question.

    Attributes:
        status: HTTP status, or 0 where the curator could not be reached.
        kind: name of the error there.
        gone: whether that row will have no answer (its own were given before, or one was lost), and the search goes on without it.
    """

    def __init__(self, status: int, kind: str, message: str) -> None:
        self.status, self.kind = status, kind
        self.gone = status == 410 or (status == 409 and kind == BudgetExceeded.__name__)
        super().__init__(f"the curator answered {status}: {message}" if status else message)


@checked
class RemoteCurator:
    """A curator at a URL; a context manager, which closes the connection.

    Args:
        url: of its server.
        token: that it gave.
        timeout: seconds for an answer.
    """

    def __init__(self, url: str, token: str, *, timeout: float = 600.0) -> None:
        try:
            self._client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=timeout, trust_env=False)
        except httpx.InvalidURL:
            raise InputError("url", Unshown(url), "the URL of a server", "For example http://127.0.0.1:8000.") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def value(self, row: int, *, request: str) -> Answer:
        """The outcome of a row; by the same request always the same answer. Raises RemoteRefusal."""
        told = self._told("POST", "/value", json={"row": row, "request": request})
        return Answer(told["row"], told["value"], told["variance"])

    def statement(self) -> dict[str, Any]:
        """The fields of the statement. Raises RemoteRefusal."""
        return self._told("GET", "/statement")

    def _told(self, method: str, path: str, **content: Any) -> dict[str, Any]:
        reply = self._reply(method, path, **content)
        try:
            told = dict(reply.json())
        except (ValueError, TypeError):
            told = {}
        if reply.status_code != 200 or not told:
            raise RemoteRefusal(reply.status_code, str(told.get("error", "")), str(told.get("message", "no reason given")))
        return told

    def _reply(self, method: str, path: str, **content: Any) -> httpx.Response:
        """Asked again after a pause where the line breaks: a question has a name, so it is answered and charged once."""
        for pause in (*_PAUSES, None):
            try:
                return self._client.request(method, path, **content)
            except httpx.TransportError as error:
                if pause is None:
                    raise RemoteRefusal(0, type(error).__name__, f"the curator cannot be reached: {type(error).__name__}") from error
                time.sleep(pause)
        raise AssertionError("the last pause is none")


class Journal:
    """What was asked and told, one JSON object a line, each on disk before the next step."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = pathlib.Path(path)
        self.asked: dict[str, int] = {}
        self.told: dict[str, Answer] = {}
        self.skipped: set[str] = set()
        try:
            self._path.open("a").close()
            for entry in self._entries():
                self._take(entry)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError("journal", str(path), "a journal of a search, or a new file that can be written") from error

    def ask(self, row: int) -> str:
        """Note a question; returns its name."""
        name = uuid.uuid4().hex
        self._write({"ask": row, "request": name})
        return name

    def tell(self, request: str, answer: Answer) -> None:
        """Note an answer."""
        self._write({"told": answer.value, "variance": answer.variance, "request": request})

    def skip(self, request: str) -> None:
        """Note that a question will have no answer."""
        self._write({"skipped": True, "request": request})

    def open(self) -> list[str]:
        """Questions without an answer, in order."""
        return [name for name in self.asked if name not in self.told and name not in self.skipped]

    def _write(self, entry: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._take(entry)

    def _take(self, entry: dict[str, Any]) -> None:
        name = entry["request"]
        if "ask" in entry:
            self.asked[name] = entry["ask"]
        elif "told" in entry:
            self.told[name] = Answer(self.asked[name], entry["told"], entry["variance"])
        else:
            self.skipped.add(name)

    def _entries(self) -> Iterator[dict[str, Any]]:
        """All whole lines; a last one that was cut off is taken away, so that the next one starts afresh."""
        content = self._path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            with self._path.open("r+b") as file:
                file.truncate(len(whole))
        yield from (json.loads(line) for line in whole.splitlines())


@checked
def search(
    modeler: Modeler, curator: RemoteCurator, *, steps: int, journal: str | os.PathLike[str], minimise: bool = False
) -> list[Answer]:
    """Ask until so many rows have been told, or no row or answer is left; continues what the journal holds. All answers.

    With `minimise` the modeler is told the values' negatives.

    Raises:
        RemoteRefusal: a question was refused for another reason than that its row was asked before or its answer lost.
    """
    require_count("steps", steps)
    kept, sign = Journal(journal), -1.0 if minimise else 1.0
    for answer in kept.told.values():
        modeler.tell(answer.row, sign * answer.value)
    for name in kept.skipped:
        modeler.skip(kept.asked[name])
    while len(kept.told) < steps and (kept.open() or modeler.left):
        name = next(iter(kept.open()), None) or kept.ask(modeler.ask())
        try:
            answer = curator.value(kept.asked[name], request=name)
        except RemoteRefusal as refusal:
            if refusal.status == _EMPTY:
                break
            if not refusal.gone:
                raise
            kept.skip(name)
            modeler.skip(kept.asked[name])
            continue
        kept.tell(name, answer)
        modeler.tell(answer.row, sign * answer.value)
    return list(kept.told.values())
