"""A handle: a random name for an answer that stays with the curator."""

import json
import uuid
from collections.abc import Mapping
from typing import Any, NoReturn, Self

from dpbo.errors import OpacityError
from dpbo.queries.query import Query
from dpbo.validation import checked, require_json


class Opaque:
    """No tensor, no array, no pickle; copying gives the same object, because there is one budget
    and one answer.
    """

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _memo: Any) -> Self:
        return self

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        self._refuse(
            "pickled",
            "For workers use objective.submit(x, executor), or make a Curator in each process, with"
            " one ledger file.",
        )

    def __array__(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        self._refuse("turned into an array")

    def __float__(self) -> NoReturn:
        # other libraries ask for it, such as Ax for a trial's data
        self._refuse("turned into a number")

    def item(self) -> NoReturn:
        """Refused: only `release` lets a number out."""
        self._refuse("read")

    def _refuse(
        self, what: str, remedy: str = "Use curator.release(...), or objective.release(handle)."
    ) -> NoReturn:
        raise OpacityError(f"a {type(self).__name__} is opaque and cannot be {what}. {remedy}")


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
