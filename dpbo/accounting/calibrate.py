"""From a budget to noise: the smallest multiplier with which `releases` equal releases fit."""

from __future__ import annotations

import math
from fractions import Fraction

from dpbo.accounting.filters import Filter, GDPFilter
from dpbo.errors import InputError
from dpbo.events import GaussianEvent
from dpbo.privacy import Budget, require_count


def calibrate(budget: Budget, *, releases: int, share: float | Fraction = 1, accounting: Filter | None = None) -> float:
    """Smallest noise multiplier with which `releases` Gaussian releases together stay within `share` of the budget.

    Under GDPFilter this is sqrt(releases / share) / mu, rounded up until the exact costs fit, so the way back
    (cost of the releases -> epsilon) never passes the budget.

    Args:
        budget: what may be spent in all.
        releases: how many slots the plan has.
        share: part of the cap (of mu^2) this plan takes, in (0, 1]; decimal, so that 0.9 and 0.1 add to 1.
        accounting: the filter, GDPFilter() if omitted.

    Raises:
        InputError: a number outside its range.
    """
    chosen = accounting if accounting is not None else GDPFilter()
    available = chosen.cap(budget) * exact_share(share)
    one_slot = available / require_count("releases", releases)
    multiplier = 1.0 / math.sqrt(one_slot)
    while chosen.cost(GaussianEvent(multiplier, releases)) > available:
        multiplier = math.nextafter(multiplier, math.inf)
    return multiplier


def exact_share(share: float | Fraction) -> Fraction:
    """A share as the decimal the user wrote (0.9 is 9/10, not the float next to it), in (0, 1]."""
    value = share if isinstance(share, Fraction) else Fraction(str(share)) if isinstance(share, (int, float)) else Fraction(0)
    if not 0 < value <= 1:
        raise InputError("budget_share", share, "in (0, 1]")
    return value
