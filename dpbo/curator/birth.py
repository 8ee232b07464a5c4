"""What a curator and its plans are born with: checked before anything is written, and kept in the ledger."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from dpbo.accounting.filters import Accounting
from dpbo.errors import InputError
from dpbo.privacy import Adjacency, Budget, PrivacyUnit, RowChange

ROLES = ("validation", "training", "candidate")
COUNTED = EVALUATIONS, OF_EACH_ROW, IN_ALL = "evaluations", "evaluations of each row", "in all at most"  # the statement's own, of a plan
_OWN = ("assumptions", "attested", "parallel", "records", "role", *COUNTED)


def require_terms(unit: Any, adjacency: Any, budget: Any, dataset: str | None, ledger: str | None, role: str) -> None:
    """Raises InputError, naming the argument."""
    if not isinstance(unit, PrivacyUnit):
        raise InputError("unit", unit, "a PrivacyUnit", "For example PrivacyUnit('record').")
    if not isinstance(adjacency, Adjacency):
        raise InputError("adjacency", adjacency, "an Adjacency", "For example Adjacency.REPLACE_ONE.")
    if not isinstance(budget, Budget):
        raise InputError("budget", budget, "a Budget", "For example Budget(epsilon=3.0, delta=1e-6).")
    if ledger is not None and not dataset:
        raise InputError("dataset", dataset, "the name of what is protected, with a persistent ledger")
    if not isinstance(role, str) or role not in ROLES:
        raise InputError("role", role, f"one of {ROLES}")


def require_own_role(asked: str | None, own: str) -> None:
    """Raises InputError where a question names another role than its records have: what one record pays would be shared out over two."""
    if asked not in (None, own):
        raise InputError("role", asked, f"{own!r}, that of this curator's records", "Leave it out, and the release counts for every role.")


def plan_terms(own: Mapping[str, Any], given: Mapping[str, Any], *, known: bool, also: Collection[str] = ()) -> dict[str, Any]:
    """A plan's terms: its own, and those its caller adds. Raises InputError where one of these would hide, or pass for, what dpbo states.

    Args:
        known: whether the ledger has the plan. Then its terms are compared as a whole, also those that earlier versions let a caller name.
        also: names of what such a plan may state, though this one does not.
    """
    reserved = {*own, *(() if known else (*_OWN, *also))}
    if taken := sorted(reserved & {*map(str, given)}):
        remedy = "What is stated of the plan is stated without you: leave it out, or give what you mean another name."
        raise InputError("terms", ", ".join(taken), f"of other names than {', '.join(sorted(reserved))}", remedy)
    return {**given, **own}


def require_plan_terms(terms: Mapping[str, Any], units: int | None) -> None:
    """Raises InputError where a statement could not be made of them, or would tell what is not so of the plan."""
    if taken := sorted({*COUNTED, "parallel"} & set(terms)):
        raise InputError("terms", ", ".join(taken), f"of other names than {', '.join((*COUNTED, 'parallel'))}", "The ledger counts them.")
    if terms.get("role", ROLES[0]) not in ROLES:
        raise InputError("terms", f"role {terms['role']!r}", f"with one of {ROLES} as role", "Say what else there is by another name.")
    if terms.get("records", units) != units:
        raise InputError("terms", "records", "without records, or with this curator's own number of units")
    conditions = terms.get("assumptions") or {}
    if not isinstance(conditions, Mapping) or not all(isinstance(text, str) for text in conditions.values()):
        raise InputError("terms", "assumptions", "with assumptions that name each what must hold", "Give dict(query.data_assumptions()).")


def require_row_change(row_change: Any, adjacency: Adjacency, unit: PrivacyUnit) -> None:
    """Raises InputError where the relation and its radius do not go together."""
    bounded = adjacency is Adjacency.BOUNDED_ROW_CHANGE
    if bounded and not isinstance(row_change, RowChange):
        raise InputError("row_change", row_change, "a RowChange under BOUNDED_ROW_CHANGE", "For example RowChange(1.0, diameter=50.0).")
    if not bounded and row_change is not None:
        raise InputError("row_change", row_change, f"omitted under {adjacency.name}", "Use Adjacency.BOUNDED_ROW_CHANGE.")
    if bounded and unit.groups is not None:
        raise InputError("groups", "labels", "omitted under BOUNDED_ROW_CHANGE", "A row is a record there; use REPLACE_ONE for groups.")


def birth(
    unit: PrivacyUnit,
    adjacency: Adjacency,
    budget: Budget,
    dataset: str | None,
    accounting: Accounting,
    role: str,
    row_change: RowChange | None,
    units: int | None,
) -> dict[str, Any]:
    """The ledger's first record. `units`: how many there are where that is public; then they are part of the promise."""
    terms = {
        "dataset": dataset or "",
        "unit": unit.name,
        "grouped": unit.groups is not None,
        "adjacency": adjacency.value,
        "budget": budget.to_json(),
        "accounting": accounting.name,
        "role": role,
    }
    terms |= {} if units is None else {"units": units}
    return terms if row_change is None else {**terms, "row_change": dataclasses.asdict(row_change)}
