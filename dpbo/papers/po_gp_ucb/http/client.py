"""The client of the curator's HTTP server, and a search that can be killed and continued.

    with RemoteCurator("http://127.0.0.1:8765", token) as curator:
        answers = search(modeler, curator, steps=50, journal="search.jsonl")

Each question has a name and is written to the journal before it is sent. After a kill, the search
repeats its last question by the same name, and the curator gives the answer that it drew the first
time. Nothing here is private, and nothing here imports the curator.
"""

import json
import os
import pathlib
import time
import uuid
from typing import Any, Self

from dpbo.errors import CuratorUnavailable, InputError, RemoteRefusal, Unshown
from dpbo.extras import needs
from dpbo.papers.po_gp_ucb.curator_side import Answer
from dpbo.papers.po_gp_ucb.modeler import Modeler
from dpbo.validation import Count, checked

with needs("http"):
    import httpx

_NO_ANSWERS_LEFT = 429
_UNAVAILABLE = 503
_PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


@checked
class RemoteCurator:
    """A curator's server; a context manager that closes the connection.

    Args:
        url: the server's URL.
        token: the access token.
        timeout: seconds to wait for an answer.
    """

    def __init__(self, url: str, token: str, *, timeout: float = 600.0) -> None:
        try:
            self._client = httpx.Client(
                base_url=url,
                headers={"Authorization": f"Bearer {token}"},
                timeout=timeout,
                trust_env=False,
            )
        except httpx.InvalidURL:
            raise InputError(
                "url", Unshown(url), "the URL of a server", "For example http://127.0.0.1:8000."
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def value(self, row: int, *, request: str) -> Answer:
        """The outcome of a row; the same request always gets the same answer. Raises
        RemoteRefusal.
        """
        content = self._request("POST", "/value", json={"row": row, "request": request})
        return Answer(content["row"], content["value"], content["variance"])

    def statement(self) -> dict[str, Any]:
        """The fields of the statement. Raises RemoteRefusal."""
        return self._request("GET", "/statement")

    def _request(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        """Send until a reply comes. A question has a name, so sending it again charges nothing."""
        for pause in (*_PAUSES, None):
            try:
                reply = self._client.request(method, path, **arguments)
                break
            except httpx.TransportError as error:
                if pause is None:
                    raise CuratorUnavailable(
                        0,
                        type(error).__name__,
                        f"the curator cannot be reached: {type(error).__name__}",
                    ) from error
                time.sleep(pause)
        try:
            content = dict(reply.json())
        except (ValueError, TypeError):
            content = {}
        if reply.status_code != 200 or not content:
            refusal = CuratorUnavailable if reply.status_code == _UNAVAILABLE else RemoteRefusal
            raise refusal(
                reply.status_code,
                str(content.get("error", "")),
                str(content.get("message", "no reason given")),
            )
        return content


class Journal:
    """A search's questions and answers, one JSON object a line, each on disk before the next
    step.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = pathlib.Path(path)
        self.questions: dict[str, int] = {}
        self.answers: dict[str, Answer] = {}
        self.skipped: set[str] = set()
        try:
            self._path.open("a").close()
            content = self._path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            # the last line was cut off: it is removed, so that the next one starts cleanly
            if len(whole) < len(content):
                with self._path.open("r+b") as file:
                    file.truncate(len(whole))
            for line in whole.splitlines():
                self._take(json.loads(line))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                "journal", str(path), "a journal of a search, or a new file that can be written"
            ) from error

    def ask(self, row: int) -> str:
        """Note a question and return its name."""
        name = uuid.uuid4().hex
        self._write({"ask": row, "request": name})
        return name

    def answer(self, request: str, answer: Answer) -> None:
        """Note an answer."""
        self._write({"value": answer.value, "variance": answer.variance, "request": request})

    def skip(self, request: str) -> None:
        """Note that a question will have no answer."""
        self._write({"skipped": True, "request": request})

    def open(self) -> list[str]:
        """Names of the questions without an answer, in order."""
        return [
            name for name in self.questions if name not in self.answers and name not in self.skipped
        ]

    def _write(self, entry: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._take(entry)

    def _take(self, entry: dict[str, Any]) -> None:
        name = entry["request"]
        if "ask" in entry:
            self.questions[name] = entry["ask"]
        elif "value" in entry:
            self.answers[name] = Answer(self.questions[name], entry["value"], entry["variance"])
        else:
            self.skipped.add(name)


@checked
def search(
    modeler: Modeler,
    curator: RemoteCurator,
    *,
    steps: Count,
    journal: str | os.PathLike[str],
    minimise: bool = False,
) -> list[Answer]:
    """Ask until `steps` rows are answered, or no row or answer is left. Continues what the journal
    holds.

    Args:
        modeler: proposes rows and learns from answers; with `minimise` it learns the negatives.
        curator: answers the questions.
        steps: number of answers.
        journal: file of questions and answers.

    Returns:
        All answers, in order.

    Raises:
        RemoteRefusal: a question was refused, other than because its row has no answers left or its
            answer was lost.
    """
    record = Journal(journal)
    sign = -1.0 if minimise else 1.0
    for answer in record.answers.values():
        modeler.tell(answer.row, sign * answer.value)
    for name in record.skipped:
        modeler.skip(record.questions[name])
    while len(record.answers) < steps and (record.open() or modeler.left):
        name = next(iter(record.open()), None) or record.ask(modeler.ask())
        try:
            answer = curator.value(record.questions[name], request=name)
        except RemoteRefusal as refusal:
            if refusal.status == _NO_ANSWERS_LEFT:
                break
            if not refusal.gone:
                raise
            record.skip(name)
            modeler.skip(record.questions[name])
            continue
        record.answer(name, answer)
        modeler.tell(answer.row, sign * answer.value)
    return list(record.answers.values())
