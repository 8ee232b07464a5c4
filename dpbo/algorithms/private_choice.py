"""A named private choice: its budget is reserved, the choice is made once, and later calls read it from the ledger."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, TypeVar

from dpbo.accounting.calibration import budget_cost, exact_share
from dpbo.accounting.planned import Planned
from dpbo.curator.curator import Curator
from dpbo.errors import BudgetExceeded, InputError, ReleaseLost
from dpbo.mechanisms.additive import AdditiveMechanism
from dpbo.mechanisms.choice import ChoiceMechanism
from dpbo.privacy import Budget
from dpbo.queries.query import Query

Kind = TypeVar("Kind", bound=AdditiveMechanism | ChoiceMechanism)


def share_of_cap(curator: Curator, budget: Budget | float | Fraction) -> Fraction:
    """A budget as an exact share of the curator's, to be divided further. Raises InputError for a Budget under `Planned`."""
    if not isinstance(budget, Budget):
        return exact_share(budget)
    if isinstance(curator.accounting, Planned):
        remedy = "The list of Planned says what each release takes: leave `budget` at 1."
        raise InputError("budget", str(budget), "1 with accounting=Planned(...)", remedy)
    cap = curator.ledger.cap
    cost = budget_cost(budget, curator.accounting, cap)
    return max(part / whole for part, whole in zip(cost.parts, cap.parts, strict=True) if whole)


def affordable(curator: Curator, kind: type[Kind], budget: Budget | float | Fraction, releases: int = 1) -> Kind:
    """The mechanism of this kind with the least noise that a `Budget`, or a share in (0, 1] of the curator's, pays for."""
    accounting = curator.accounting
    multiplier = accounting.multiplier(type(kind(1.0).event()), releases, budget_cost(budget, accounting, curator.ledger.cap))
    if multiplier is None:
        raise InputError("accounting", accounting.name, f"one that can pay for {kind.__name__}", "For example GDPFilter().")
    return kind(multiplier)


def require_left(curator: Curator, budget: Budget | float | Fraction, what: str) -> None:
    """Raises BudgetExceeded if `budget` is not left. Under `Planned`, which counts slots, nothing is checked."""
    if isinstance(curator.accounting, Planned):
        return
    total, cap = curator.ledger.head().total, curator.ledger.cap
    wanted = budget_cost(budget, curator.accounting, cap)
    if not total + wanted <= cap:
        part = (total + wanted).first_beyond(cap)
        requested, spent, whole = (float(cost.parts[part]) for cost in (wanted, total, cap))
        raise BudgetExceeded(requested, whole - spent, whole, curator.accounting.unit, what, curator.ledger.account())


def reserve(curator: Curator, mechanism: Kind, name: str, terms: Mapping[str, Any]) -> Kind:
    """Reserve the choice, or find its reservation in the ledger; returns the mechanism with the noise multiplier that the ledger holds."""
    curator.bind(name, {}, begun=name in curator.ledger.used())
    return type(mechanism)(curator.reserve(name, mechanism.event(), slots=1, terms=terms).noise_multiplier)


def make(curator: Curator, query: Query, mechanism: ChoiceMechanism, name: str, **details: Any) -> dict[str, Any]:
    """Make the reserved choice, or read it if it was made earlier; returns the ledger's row, whose `value` lists the chosen index.

    Raises ReleaseLost if the choice was charged earlier, but its value was never stored.
    """
    if curator.ledger.used()[name] == 0:
        curator.release_all([curator.evaluate(query, **details)], mechanism, name=name, plan=name)
    curator.deliver()
    values = curator.ledger.values(name)
    if not values:
        raise ReleaseLost(f"the choice {name!r} was charged but never delivered, and it is never drawn twice. Choose under another name.")
    return values[0]
