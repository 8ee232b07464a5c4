"""What records of older versions of schema 1 meant where they did not say it. What is stored, and every hash, stays as it was written.

Only what those versions themselves computed or implied is filled in. What they left open stays open, so that going on with it is refused:
a row change that names no table, a parallel plan that does not say how many records it was made for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpbo.accounting.planned import accounting_named
from dpbo.privacy import Budget

_OF_SLOTS = frozenset({"handle", "query"})
_OF_VALUES = frozenset({"handle", "value", "variance", "law", "lattice"})


def upgraded(birth: Mapping[str, Any]) -> dict[str, Any]:
    """A birth with its cap. The first versions kept none, and computed it from the budget each time they opened the ledger."""
    if "cap" in birth:
        return dict(birth)
    return {**birth, "cap": str(accounting_named(birth["accounting"]).cap(Budget.from_json(birth["budget"])))}


def upgraded_slot(slot: Mapping[str, Any]) -> dict[str, Any]:
    """A charge's slot with its public inputs. The first versions kept them, and the caller's details, beside the question's name."""
    return dict(slot) if isinstance(slot.get("public"), Mapping) else _gathered(slot, _OF_SLOTS, "public")


def upgraded_value(value: Mapping[str, Any]) -> dict[str, Any]:
    """A released value with the caller's details, such as x. The first versions kept them beside the value."""
    return dict(value) if isinstance(value.get("details"), Mapping) else _gathered(value, _OF_VALUES, "details")


def _gathered(kept: Mapping[str, Any], own: frozenset[str], under: str) -> dict[str, Any]:
    return {name: kept[name] for name in kept if name in own} | {under: {name: kept[name] for name in kept if name not in own}}
