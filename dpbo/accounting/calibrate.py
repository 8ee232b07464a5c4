"""From a budget to noise: the smallest multiplier with which `releases` equal releases fit."""

from __future__ import annotations

from fractions import Fraction

from dpbo.accounting.filters import Accounting, EventKind, GDPFilter
from dpbo.accounting.planned import Planned
from dpbo.checking import checked
from dpbo.errors import InputError
from dpbo.events import GaussianEvent
from dpbo.privacy import Budget, require_count


@checked
def calibrate(
    budget: Budget,
    *,
    releases: int,
    share: float | Fraction = 1,
    accounting: Accounting | None = None,
    event: EventKind = GaussianEvent,
) -> float:
    """Smallest noise multiplier with which `releases` equal releases together stay within `share` of the budget.

    For Gaussians under GDPFilter this is sqrt(releases / share) / mu. Whatever the filter, it is the least float whose exact cost
    fits, so the way back (cost of the releases -> epsilon) never passes the budget.

        calibrate(budget, releases=30, accounting=Planned([ExponentialEvent(20.0, 5)]))      beside five choices, for one plan of both

    Args:
        budget: what may be spent in all.
        releases: how many slots the plan has.
        share: part of the cap this plan takes, in (0, 1]; decimal, so that 0.9 and 0.1 add to 1.
        accounting: the filter, GDPFilter() if omitted; or Planned with everything else that will be released.
        event: whose noise, GaussianEvent or LaplaceEvent; of a Poisson-sampled Gaussian a partial with its rate and relation.

    Raises:
        InputError: a number outside its range, a mechanism that the filter cannot pay for, or an event that costs next to nothing.
    """
    chosen, part = accounting if accounting is not None else GDPFilter(), exact_share(share)
    slots = require_count("releases", releases)
    if isinstance(chosen, Planned):
        return chosen.least_beside(budget, event, slots, part)
    multiplier = chosen.multiplier(event, slots, chosen.cap(budget) * part)
    if multiplier is None:
        raise InputError("mechanism", event(1.0, 1).mechanism, f"one that {chosen.name} can pay for", "See dpbo.accounting for others.")
    return multiplier


def parts_of(accounting: Accounting, whole: Fraction, share: Fraction) -> tuple[Fraction, Fraction]:
    """`share` of the whole, and the rest. Under a plan each is the whole, as it lists what either takes: no share changes that."""
    return (whole, whole) if isinstance(accounting, Planned) else (whole * share, whole * (1 - share))


def exact_share(share: float | Fraction, name: str = "budget_share") -> Fraction:
    """A share as the decimal the user wrote (0.9 is 9/10, not the float next to it), in (0, 1]."""
    if not isinstance(share, (int, float, Fraction)) or isinstance(share, bool) or not 0 < share <= 1:
        raise InputError(name, share, "in (0, 1]")
    return Fraction(str(share))
