"""What a ledger is made for, and what may be stated of the reservations in it."""

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

from dpbo.accounting.filters import Accounting, Cost
from dpbo.accounting.planned import accounting_named
from dpbo.errors import InputError, UsageError
from dpbo.events import Event
from dpbo.privacy import Adjacency, Budget, RowChange
from dpbo.validation import checked

ROLES = ("validation", "training", "candidate")
# What the ledger counts of a reservation, and the statement shows.
EVALUATIONS = "evaluations"
OF_EACH_ROW = "evaluations of each row"
IN_ALL = "in all at most"
COUNTED = (EVALUATIONS, OF_EACH_ROW, IN_ALL)
# Of one release under a reservation.
FAILURE_PROBABILITY = "failure_probability"
_STATED = ("assumptions", FAILURE_PROBABILITY, "attested", "parallel", "records", "role", *COUNTED)


@checked
@dataclass(frozen=True, kw_only=True)
class Birth:
    """What a ledger is made for: its first record. It is opened again only for the same.

    Args:
        dataset: name of what is protected; empty for a ledger in memory whose records have no name.
        unit: what a protected unit is called.
        grouped: whether a unit is all records with one label.
        adjacency: the relation under which every event is counted.
        budget: the cap on everything that is charged.
        accounting: the filter that guards the cap, or a `Planned`.
        role: what the records are for: "validation", "training" or "candidate".
        row_change: how far a row moves; under BOUNDED_ROW_CHANGE, and only there.
        units: the number of units where it is public.
        one_at_a_time: whether every score gets one record at a time.
        federated: whether it is one of the ledgers of ranks that do not trust each other, which
            show one another all entries.

    Raises:
        InputError: an accounting that is not dpbo's, an unknown role, or a row change that does not
            go with the relation.
    """

    dataset: str
    unit: str
    grouped: bool
    adjacency: Adjacency
    budget: Budget
    accounting: Accounting
    role: str = ROLES[0]
    row_change: RowChange | None = None
    units: int | None = None
    one_at_a_time: bool = False
    federated: bool = False

    def __post_init__(self) -> None:
        # The ledger keeps its name alone.
        accounting_named(self.accounting.name)
        if self.role not in ROLES:
            raise InputError("role", self.role, f"one of {ROLES}")
        bounded = self.adjacency is Adjacency.BOUNDED_ROW_CHANGE
        if bounded != (self.row_change is not None):
            raise InputError(
                "adjacency",
                self.adjacency.value,
                "a RowChange where a row may only move so far",
                "For example RowChange(1.0, diameter=50.0).",
            )
        if bounded and self.grouped:
            raise UsageError(
                "a unit is one row under BOUNDED_ROW_CHANGE: omit groups, or use REPLACE_ONE."
            )

    def cap(self) -> Cost:
        """What the budget holds. Raises InputError where the accounting cannot serve it, or lists
        events of another relation.
        """
        for event in self.accounting.events:
            self.require_relation(event)
        return self.accounting.cap(self.budget)

    def require_relation(self, event: Event) -> None:
        """Raises InputError where the event is counted under another relation than the ledger's."""
        if not event.relations() <= {self.adjacency.value}:
            allowed = f"the ledger's own, {self.adjacency.value!r}"
            raise InputError(
                "relation",
                sorted(event.relations()),
                allowed,
                "See dpbo.accounting.calibration.convert_adjacency.",
            )

    def require_role(self, role: str | None) -> None:
        """Raises InputError where a question names another role than its records have: a record's
        cost would be divided over two roles.
        """
        if role not in (None, self.role):
            allowed = f"{self.role!r}, the role of this curator's records"
            raise InputError(
                "role", role, allowed, "Leave it out, and the release counts for every role."
            )

    def to_json(self) -> dict[str, Any]:
        """As the ledger keeps it."""
        row_change = None if self.row_change is None else dataclasses.asdict(self.row_change)
        typed = {
            "adjacency": self.adjacency.value,
            "budget": self.budget.to_json(),
            "accounting": self.accounting.name,
        }
        return {**vars(self), **typed, "row_change": row_change}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """From a first record. Raises KeyError, TypeError or ValueError where it is not one."""
        # Ledgers of before say nothing of it.
        body = {"federated": False, **body}
        held = {field.name: body[field.name] for field in dataclasses.fields(cls)}
        held["adjacency"] = Adjacency(body["adjacency"])
        held["budget"] = Budget.from_json(body["budget"])
        held["accounting"] = accounting_named(body["accounting"])
        held["row_change"] = None if body["row_change"] is None else RowChange(**body["row_change"])
        return cls(**held)


def reservation_terms(
    own: Mapping[str, Any], given: Mapping[str, Any], also: Collection[str] = ()
) -> dict[str, Any]:
    """A reservation's terms: its own, and those that its caller adds. Raises InputError where one
    of these would hide what dpbo states.

    Args:
        own: what the algorithm states of its reservation.
        given: what the caller adds.
        also: names that such a reservation may state, though this one does not.
    """
    reserved = {*own, *_STATED, *also}
    if taken := sorted(reserved & {*map(str, given)}):
        remedy = "dpbo states these itself: leave them out, or give what you mean another name."
        raise InputError(
            "terms", ", ".join(taken), f"of other names than {', '.join(sorted(reserved))}", remedy
        )
    return {**given, **own}


def require_reservation_terms(terms: Mapping[str, Any], units: int | None) -> None:
    """Raises InputError where a statement could not be made of a reservation's terms, or would be
    wrong.
    """
    if taken := sorted({*COUNTED, "parallel"} & set(terms)):
        raise InputError(
            "terms",
            ", ".join(taken),
            f"of other names than {', '.join((*COUNTED, 'parallel'))}",
            "The ledger counts them.",
        )
    if terms.get("role", ROLES[0]) not in ROLES:
        raise InputError(
            "terms['role']", terms["role"], f"one of {ROLES}", "Give other facts another name."
        )
    if terms.get("records", units) != units:
        raise InputError(
            "terms['records']", terms["records"], "omitted, or this curator's own number of units"
        )
    conditions = terms.get("assumptions") or {}
    if not isinstance(conditions, Mapping) or not all(
        isinstance(text, str) for text in conditions.values()
    ):
        allowed = "what must hold, by the assumption's name"
        raise InputError(
            "terms['assumptions']", conditions, allowed, "Give dict(query.data_assumptions())."
        )
    probability = terms.get(FAILURE_PROBABILITY, 0.0)
    if (
        not isinstance(probability, (int, float))
        or not 0.0 <= probability <= 1.0
        or (probability and not conditions)
    ):
        allowed = "in [0, 1] beside assumptions, and omitted otherwise"
        raise InputError(
            f"terms['{FAILURE_PROBABILITY}']",
            probability,
            allowed,
            "Give query.failure_probability().",
        )
