"""One private choice under a name: reserved from a share of the cap, made once, afterwards read from the ledger.

Two instances: DP-GIBO's start, and the last step of `search_then_choose`.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from dpbo.accounting.planned import Planned
from dpbo.curator.curator import Curator
from dpbo.errors import BudgetExceeded, InputError, ReleaseLost
from dpbo.mechanisms.selection import SelectionMechanism
from dpbo.queries.query import Query


def affordable(curator: Curator, law: type[SelectionMechanism], share: Fraction) -> SelectionMechanism:
    """The choice of least noise that this share of the cap pays for."""
    multiplier = curator.accounting.multiplier(type(law(1.0).event()), 1, curator.ledger.cap * share)
    if multiplier is None:
        raise InputError("accounting", curator.accounting.name, "one that can pay for a private choice")
    return law(multiplier)


def require_left(curator: Curator, share: Fraction, what: str) -> None:
    """Raises BudgetExceeded where this share of the cap is not left, before any part of it is reserved. A plan has slots, and no shares."""
    if isinstance(curator.accounting, Planned):
        return
    total, cap, wanted = curator.ledger.head().total, curator.ledger.cap, curator.ledger.cap * share
    if not total + wanted <= cap:
        part = (total + wanted).first_beyond(cap)
        asked, spent, whole = (float(cost.parts[part]) for cost in (wanted, total, cap))
        raise BudgetExceeded(asked, whole - spent, whole, curator.accounting.unit, what, curator.ledger.account())


def reserve(curator: Curator, mechanism: SelectionMechanism, name: str, terms: Mapping[str, Any]) -> SelectionMechanism:
    """The plan of one slot; its mechanism as the ledger has it."""
    curator.bind(name, {}, begun=name in curator.ledger.head().used)
    return type(mechanism)(curator.reserve(name, mechanism.event(), slots=1, terms=terms).noise_multiplier)


def make(curator: Curator, query: Query, mechanism: SelectionMechanism, name: str, **details: Any) -> dict[str, Any]:
    """What the ledger holds of this choice, made now or earlier: its `value` is the index, `details` those of the time it was made.

    Raises:
        ReleaseLost: it was charged earlier, but what was drawn is lost.
    """
    if curator.ledger.head().used[name] == 0:
        curator.release_all([curator.evaluate(query, **details)], mechanism, name=name, plan=name)
    curator.deliver()
    values = curator.ledger.values(name)
    if not values:
        raise ReleaseLost(f"the choice {name!r} was charged but never delivered, and it is never drawn twice. Choose under another name.")
    return values[0]
