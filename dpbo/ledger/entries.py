"""The one table of a ledger: its columns, and how an entry is hashed."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from dpbo.accounting.filters import Cost
from dpbo.errors import InputError, LedgerCorrupt, LedgerMismatch
from dpbo.events import Event, event_from_json
from dpbo.ledger.birth import EVALUATIONS, FAILURE_PROBABILITY, IN_ALL, OF_EACH_ROW

# Values of JSON by name.
Json = Mapping[str, Any]
ORIGIN = "0" * 64


def _of_those(condition: str) -> dict[str, Any]:
    """An index of few entries: every index that an entry is in writes another page."""
    return dict.fromkeys(("sqlite_where", "postgresql_where"), sa.text(condition))


metadata = sa.MetaData()
table = sa.Table(
    "dpbo_entries",
    metadata,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    # birth, reserve, charge, value, or a note: assume, void
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("name", sa.String(200), nullable=False),
    # of a charge and of its value
    sa.Column("reservation", sa.String(200)),
    # slots that the reservation has used with this charge, or filled with this value
    sa.Column("used", sa.Integer, nullable=False),
    # of a value: the charge that it answers, which it does once
    sa.Column("answers", sa.Integer),
    sa.Column("body", sa.Text, nullable=False),
    # cost of everything reserved or charged up to here
    sa.Column("total", sa.Text, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
    sa.Index("dpbo_entries_named", "kind", "name", **_of_those("reservation IS NULL")),
    sa.Index("dpbo_entries_counted", "reservation", "kind", "seq", "used"),
    sa.Index("dpbo_entries_answers", "answers", unique=True, **_of_those("answers IS NOT NULL")),
)
# Most entries leave the total as it was.
_cost = functools.lru_cache(maxsize=16)(Cost.read)
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def dump(value: Any) -> str:
    """Canonical JSON: one text for one value, so that hashes are stable."""
    return _encode(value)


def digest(previous: str, *columns: Any) -> str:
    """The hash of an entry: of its predecessor's hash and its own columns but the last."""
    return hashlib.sha256(dump([previous, *columns]).encode()).hexdigest()


@dataclass(frozen=True)
class Record:
    """One entry. `body` is public: it holds promises, costs and released values; never a private
    number.
    """

    seq: int
    kind: str
    name: str
    reservation: str | None
    used: int
    answers: int | None
    body: dict[str, Any]
    total: Cost
    hash: str

    @classmethod
    def stored(cls, *columns: Any) -> Record:
        """An entry as the table holds it. Raises LedgerCorrupt where it cannot be read."""
        seq, kind, name, reservation, used, answers, body, total, hash = columns
        try:
            held = dict(json.loads(body))
            return cls(seq, kind, name, reservation, used, answers, held, _cost(total), hash)
        except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError):
            raise LedgerCorrupt(f"record {seq} cannot be read: it was changed.") from None

    @property
    def event(self) -> Event:
        """The event of one slot of a reservation, or of all slots of a charge."""
        return event_from_json(self.body["event"])

    def columns(self) -> dict[str, Any]:
        """As the table holds it."""
        return {**vars(self), "body": dump(self.body), "total": str(self.total)}

    def to_json(self) -> dict[str, Any]:
        """As `python -m dpbo ledger export` prints it."""
        return {**vars(self), "total": str(self.total)}


@dataclass(frozen=True)
class Reserved:
    """Budget that is set aside under a name.

    Attributes:
        name: under which it is resumed.
        event: one slot's.
        slots: how many there are; of a parallel reservation, for each part of the records.
        terms: the public facts that it was made with.
        parallel: whether each part of the records has its own slots (`Curator.reserve`).
        limit: how many releases of a parallel reservation there may be in all; None for no limit.
    """

    name: str
    event: Event
    slots: int
    terms: Json = field(repr=False)
    parallel: bool = False
    limit: int | None = None

    @classmethod
    def of(cls, name: str, body: Json) -> Reserved:
        """From the body of its entry."""
        held = {key: body[key] for key in ("slots", "terms", "parallel", "limit")}
        return cls(name, event_from_json(body["event"]), **held)

    @property
    def releases(self) -> int:
        """How many releases there may be in all."""
        if not self.parallel:
            return self.slots
        if self.limit is not None:
            return self.limit
        return self.slots * int(self.terms["records"])

    def to_json(self) -> dict[str, Any]:
        """The body of its entry."""
        held = {**vars(self), "event": self.event.to_json(), "terms": dict(self.terms)}
        del held["name"]
        return held

    def public_inputs(self) -> dict[str, Any]:
        """What was declared public when it was made, and how many releases it has."""
        counts: dict[str, Any] = {EVALUATIONS: self.slots}
        if self.parallel:
            counts = {OF_EACH_ROW: self.slots, IN_ALL: self.limit or "all rows"}
        return {**counts, **self.terms, **counts}

    def require_declared(self, slots: list[Json]) -> None:
        """Raises InputError for releases under data assumptions that the reservation did not state
        from the start, or that may fail with a larger probability than it did.
        """
        undeclared = set[str]()
        for slot in slots:
            undeclared.update(slot.get("assumptions", {}))
        undeclared.difference_update(self.terms.get("assumptions") or {})
        if undeclared:
            raise InputError(
                "reservation",
                ", ".join(sorted(undeclared)),
                "reserved for releases under these data assumptions",
                "Reserve it with terms={'assumptions': dict(query.data_assumptions())}.",
            )
        probability = max((slot.get(FAILURE_PROBABILITY, 0.0) for slot in slots), default=0.0)
        if probability > self.terms.get(FAILURE_PROBABILITY, 0.0):
            raise InputError(
                "reservation",
                self.name,
                f"reserved for releases that fail with probability {probability!r}, though the"
                " assumptions hold",
                "Reserve it with terms={'assumptions': ..., 'failure_probability':"
                " query.failure_probability()}.",
            )

    def require_same(self, wanted: Reserved) -> None:
        """Raises LedgerMismatch, naming the first term that differs; the event comes last, because
        it often follows from the others.

        A noise multiplier that another machine computed may differ in its last digits.
        """
        mine = self.event
        given = wanted.event
        close = math.isclose(mine.noise_multiplier, given.noise_multiplier, rel_tol=1e-9)
        same = close and dataclasses.replace(given, noise_multiplier=mine.noise_multiplier) == mine
        terms = [
            (term, self.terms.get(term), wanted.terms.get(term))
            for term in {**wanted.terms, **self.terms}
        ]
        compared: list[tuple[str, Any, Any]] = [
            ("evaluations", self.slots, wanted.slots),
            ("parallel", self.parallel, wanted.parallel),
            ("limit", self.limit, wanted.limit),
            *terms,
            ("event", mine, mine if same else given),
        ]
        remedy = (
            f"The reservation {self.name!r} exists: resume it with the terms that it was made with,"
            " or choose another name."
        )
        for term, old, new in compared:
            if old != new:
                raise LedgerMismatch(term, old, new, remedy)
