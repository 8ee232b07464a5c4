"""From a budget to noise: the smallest multiplier with which `releases` equal releases fit."""

from __future__ import annotations

import math
from fractions import Fraction

from dpbo.accounting.filters import Filter, GDPFilter
from dpbo.errors import InputError
from dpbo.events import Event, GaussianEvent
from dpbo.privacy import Budget, require_count


def calibrate(
    budget: Budget,
    *,
    releases: int,
    share: float | Fraction = 1,
    accounting: Filter | None = None,
    event: type[Event] = GaussianEvent,
) -> float:
    """Smallest noise multiplier with which `releases` equal releases together stay within `share` of the budget.

    For Gaussians under GDPFilter this is sqrt(releases / share) / mu. Whatever the filter, it is the least float whose exact cost
    fits, so the way back (cost of the releases -> epsilon) never passes the budget.

    Args:
        budget: what may be spent in all.
        releases: how many slots the plan has.
        share: part of the cap this plan takes, in (0, 1]; decimal, so that 0.9 and 0.1 add to 1.
        accounting: the filter, GDPFilter() if omitted.
        event: whose noise, GaussianEvent or LaplaceEvent.

    Raises:
        InputError: a number outside its range, or a mechanism that the filter cannot pay for.
    """
    chosen = accounting if accounting is not None else GDPFilter()
    return least_multiplier(chosen.cap(budget) * exact_share(share), releases=releases, accounting=chosen, event=event)


def least_multiplier(available: Fraction, *, releases: int, accounting: Filter, event: type[Event]) -> float:
    """Smallest float with which so many releases cost no more than `available`, by bisection down to neighbouring floats."""
    require_count("releases", releases)

    def fits(multiplier: float) -> bool:
        return accounting.cost(event(multiplier, releases)) <= available

    high = 1.0
    while not fits(high):
        high *= 2.0
    low = high / 2.0
    while fits(low):
        low /= 2.0
    while (middle := (low + high) / 2.0) not in (low, high):
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def exact_share(share: float | Fraction) -> Fraction:
    """A share as the decimal the user wrote (0.9 is 9/10, not the float next to it), in (0, 1]."""
    finite = isinstance(share, (int, float, Fraction)) and math.isfinite(share)
    value = Fraction(str(share)) if finite else Fraction(0)
    if not 0 < value <= 1:
        raise InputError("budget_share", share, "in (0, 1]")
    return value
