"""One private choice under a name: reserved from a share of the cap, made once, afterwards read from the ledger.

Two instances: DP-GIBO's start, and the last step of `search_then_choose`.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from dpbo.curator.curator import Curator
from dpbo.errors import InputError, ReleaseLost
from dpbo.mechanisms.selection import SelectionMechanism
from dpbo.queries.query import Query


def affordable(curator: Curator, law: type[SelectionMechanism], share: Fraction) -> SelectionMechanism:
    """The choice of least noise that this share of the cap pays for."""
    multiplier = curator.accounting.multiplier(type(law(1.0).event()), 1, curator.ledger.cap * share)
    if multiplier is None:
        raise InputError("accounting", curator.accounting.name, "one that can pay for a private choice")
    return law(multiplier)


def reserve(curator: Curator, mechanism: SelectionMechanism, name: str, terms: Mapping[str, Any]) -> SelectionMechanism:
    """The plan of one slot; its mechanism as the ledger has it."""
    return type(mechanism)(curator.reserve(name, mechanism.event(), slots=1, terms=terms).noise_multiplier)


def made(curator: Curator, name: str) -> dict[str, Any] | None:
    """What the ledger holds of this choice, or None where it was not made yet.

    Raises:
        ReleaseLost: it was charged, but what was drawn is lost.
    """
    values = curator.ledger.values(name)
    if not values and curator.ledger.head().used[name]:
        raise ReleaseLost(f"the choice {name!r} was charged but never delivered, and it is never drawn twice. Choose under another name.")
    return values[0] if values else None


def make(curator: Curator, query: Query, mechanism: SelectionMechanism, name: str, **details: Any) -> int:
    """The index chosen, now or earlier."""
    known = made(curator, name)
    if known is not None:
        return int(known["value"][0])
    handle = curator.evaluate(query, **details)
    return int(curator.release_all([handle], mechanism, name=name, plan=name)[0].value)
