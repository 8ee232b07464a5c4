"""A handle: a random name for an answer that stays with the curator."""

import json
import uuid
from collections.abc import Mapping
from typing import Any

from dpbo.queries.query import Query
from dpbo.records.opaque import Opaque
from dpbo.validation import checked, require_json


@checked
class Handle(Opaque):
    """Names one evaluation: a random id, its question, and public details such as the point x. The
    answer stays with the curator.

    Attributes:
        reservation: name of the reservation that it was made for; None for any.
    """

    def __init__(
        self,
        query: Query,
        details: Mapping[str, Any],
        name: str | None = None,
        reservation: str | None = None,
    ) -> None:
        require_json("details", details)
        self.reservation = reservation
        self._id = name or uuid.uuid4().hex
        self._query = query
        # read anew for each caller, who may change what they get
        self._details = json.dumps(dict(details))

    @property
    def id(self) -> str:
        """The name under which the ledger knows it."""
        return self._id

    def fingerprint_parts(self) -> tuple[str]:
        """Ranks compare handles by their ids (`dpbo.fingerprint`)."""
        return (self.id,)

    @property
    def query(self) -> Query:
        """The question that was asked."""
        return self._query

    @property
    def details(self) -> dict[str, Any]:
        """What the ledger keeps with its release."""
        details: dict[str, Any] = json.loads(self._details)
        return details

    def __repr__(self) -> str:
        kind = type(self.query).__name__
        return f"<Handle {self.id[:8]} of a {kind}: opaque, see release()>"
