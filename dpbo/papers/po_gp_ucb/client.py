"""Outcomes that a curator elsewhere serves, asked for over HTTP; nothing here is private."""

from typing import Any, Self

from dpbo.errors import CuratorUnavailable, InputError, RemoteRefusal, Unshown
from dpbo.extras import needs
from dpbo.papers.po_gp_ucb.curator_side import Answer
from dpbo.validation import checked

with needs("http"):
    import httpx

# of connecting: half a minute in all
_RETRIES = 6


@checked
class RemoteOutcomes:
    """The outcomes that a curator serves; a context manager that closes the connection.

        with RemoteOutcomes("http://127.0.0.1:8765", token) as outcomes:
            print(search(modeler, outcomes, steps=50))

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
                transport=httpx.HTTPTransport(retries=_RETRIES),
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
        """The outcome of a row, as `Outcomes.value`; the same request always gets the same answer.

        Raises:
            RemoteRefusal: the curator refused the question.
            CuratorUnavailable: it cannot be reached, or cannot reach its ledger.
        """
        return Answer(**self._ask("POST", "/value", json={"row": row, "request": request}))

    def statement(self) -> dict[str, Any]:
        """The fields of the statement. Raises as `value`."""
        return self._ask("GET", "/statement")

    def _ask(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        try:
            reply = self._client.request(method, path, **arguments)
        except httpx.TransportError as error:
            told = f"the curator cannot be reached: {type(error).__name__}"
            raise CuratorUnavailable(0, told) from error
        try:
            content = dict(reply.json())
        except (ValueError, TypeError):
            content = {}
        if reply.status_code == 200 and content:
            return content
        refusal = CuratorUnavailable if reply.status_code == 503 else RemoteRefusal
        raise refusal(reply.status_code, str(content.get("message", "no reason given")))
