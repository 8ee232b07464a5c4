"""What a curator is born with: checked before anything is written, and kept in the ledger's first record."""

from __future__ import annotations

import dataclasses
from typing import Any

from dpbo.accounting.filters import Accounting
from dpbo.errors import InputError
from dpbo.privacy import Adjacency, Budget, PrivacyUnit, RowChange

ROLES = ("validation", "training", "candidate")


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
) -> dict[str, Any]:
    """The ledger's first record."""
    terms = {
        "dataset": dataset or "",
        "unit": unit.name,
        "grouped": unit.groups is not None,
        "adjacency": adjacency.value,
        "budget": budget.to_json(),
        "accounting": accounting.name,
        "role": role,
    }
    return terms if row_change is None else {**terms, "row_change": dataclasses.asdict(row_change)}
