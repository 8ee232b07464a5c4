"""Privacy filters: how much each event costs, and how much a budget holds, when releases are chosen adaptively.

A filter refuses the first release that would pass its cap, so the cap is the guarantee whatever the analyst does and whenever they
stop. Costs and caps are exact fractions, so no sum drifts: a plan that fits on paper fits here.
One filter is named when the ledger is born; the minimum over several filters is not a filter.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from dpbo.accounting import gdp, profiles, rdp
from dpbo.errors import InputError
from dpbo.events import Event
from dpbo.privacy import Budget
from dpbo.statement import Guarantee

_GRAIN = 1 << 128
_LONGEST = 512


class Filter(abc.ABC):
    """Additive costs under fully adaptive composition; see each subclass for its theorem. `unit` names what is added up."""

    unit: ClassVar[str]

    @abc.abstractmethod
    def price(self, event: Event) -> Fraction | None:
        """What the event takes from the cap, or None where this filter cannot pay for it."""

    @abc.abstractmethod
    def cap(self, budget: Budget) -> Fraction:
        """What the budget holds. Raises InputError where this filter cannot serve the budget."""

    @abc.abstractmethod
    def guarantee(self, cost: Fraction, delta: float | None) -> Guarantee:
        """Of everything that cost this much, read at this delta; rounded up."""

    def cost(self, event: Event) -> Fraction:
        """`price`, or InputError naming what this filter can pay for."""
        price = self.price(event)
        if price is None:
            raise InputError("mechanism", event.mechanism, f"one that {self.name} can pay for", "See dpbo.accounting for others.")
        return price

    @property
    def name(self) -> str:
        """How the ledger and the statement call it; `filter_named` finds it again."""
        return type(self).__name__


@dataclass(frozen=True)
class GDPFilter(Filter):
    """Gaussian DP with cost mu^2: adaptively chosen mu_1, mu_2, ... stopped before their squares pass mu^2 are mu-GDP.

    Source: Smith & Thakurta 2022, "Fully Adaptive Composition for Gaussian Differential Privacy" (each event is fixed before its
    noise is drawn, as the curator does). For Gaussians fixed in advance it is the exact composition, so nothing is given away.
    """

    unit: ClassVar[str] = "mu^2"

    def price(self, event: Event) -> Fraction | None:
        return profiles.mu_squared(event)

    def cap(self, budget: Budget) -> Fraction:
        if budget.epsilon is None or budget.delta is None:
            return Fraction(budget.mu or 0.0) ** 2
        if budget.delta == 0.0:
            remedy = "No Gaussian release is pure; choose e.g. 1e-6, or PureFilter() with LaplaceMechanism."
            raise InputError("delta", budget.delta, "above 0 for GDPFilter", remedy)
        return Fraction(gdp.mu_within(budget.epsilon, budget.delta)) ** 2

    def guarantee(self, cost: Fraction, delta: float | None) -> Guarantee:
        mu = math.sqrt(cost)
        while Fraction(mu) ** 2 < cost:
            mu = math.nextafter(mu, math.inf)
        return Guarantee(mu, None if delta is None else gdp.epsilon_at(mu, delta), delta)


@dataclass(frozen=True)
class PureFilter(Filter):
    """Pure epsilon, which adds up under any adaptive choice (Rogers, Roth, Ullman & Vadhan 2016, Theorem 3.6). Serves any delta."""

    unit: ClassVar[str] = "epsilon"

    def price(self, event: Event) -> Fraction | None:
        return profiles.pure(event)

    def cap(self, budget: Budget) -> Fraction:
        return Fraction(_epsilon_of(budget, self.name))

    def guarantee(self, cost: Fraction, delta: float | None) -> Guarantee:
        epsilon = float(cost)
        return Guarantee(None, epsilon if Fraction(epsilon) >= cost else math.nextafter(epsilon, math.inf), 0.0)


@dataclass(frozen=True)
class ZCDPFilter(Filter):
    """Zero-concentrated DP with cost rho, which adds up under any adaptive choice (Whitehouse, Ramdas, Rogers & Wu 2023, Theorem 1).

    Read at delta by the best Renyi order.
    """

    unit: ClassVar[str] = "rho"

    def price(self, event: Event) -> Fraction | None:
        return profiles.rho(event)

    def cap(self, budget: Budget) -> Fraction:
        return Fraction(rdp.rho_within(_epsilon_of(budget, self.name), _delta_of(budget, self.name)))

    def guarantee(self, cost: Fraction, delta: float | None) -> Guarantee:
        return Guarantee(None, None if delta is None else rdp.epsilon_of_rho(float(cost) * (1 + 1e-15), delta), delta)


@dataclass(frozen=True)
class RDPFilter(Filter):
    """Renyi DP at one order, fixed at birth, which adds up under any adaptive choice (Feldman & Zrnic 2021, Theorem 4.3).

    Args:
        order: above 1; around 1 + 2 log(1/delta) / epsilon is best for Gaussians.
    """

    order: float
    unit: ClassVar[str] = "of Renyi divergence"

    def __post_init__(self) -> None:
        if not isinstance(self.order, (int, float)) or not 1.0 < self.order <= 1e6:
            raise InputError("order", self.order, "a number above 1 and at most 1e6")

    @property
    def name(self) -> str:
        return f"RDPFilter({float(self.order)!r})"

    def price(self, event: Event) -> Fraction | None:
        return profiles.renyi(event, self.order)

    def cap(self, budget: Budget) -> Fraction:
        epsilon, delta = _epsilon_of(budget, self.name), _delta_of(budget, self.name)
        cap = Fraction(epsilon) - Fraction(rdp.conversion(self.order, delta))
        if cap <= 0:
            raise InputError("order", self.order, f"large enough for epsilon {epsilon:g} at delta {delta:g}", "Try a larger order.")
        return cap

    def guarantee(self, cost: Fraction, delta: float | None) -> Guarantee:
        epsilon = None if delta is None else max(float(cost) + rdp.conversion(self.order, delta), 0.0) * (1 + 1e-15)
        return Guarantee(None, epsilon, delta)


def added(total: Fraction, cost: Fraction) -> Fraction:
    """total + cost, exact while its denominator is short (always for a few distinct events), else up to a multiple of 2^-128."""
    exact = total + cost
    return exact if exact.denominator.bit_length() <= _LONGEST else Fraction(math.ceil(exact * _GRAIN), _GRAIN)


def filter_named(name: str) -> Filter:
    """The filter that a ledger was born with."""
    for known in (GDPFilter(), PureFilter(), ZCDPFilter()):
        if name == known.name:
            return known
    if name.startswith("RDPFilter(") and name.endswith(")"):
        return RDPFilter(float(name.removeprefix("RDPFilter(").removesuffix(")")))
    raise InputError("accounting", name, "a filter of dpbo.accounting", "Was this ledger written by a newer dpbo?")


def _epsilon_of(budget: Budget, name: str) -> float:
    if budget.epsilon is None:
        raise InputError("budget", budget.mu, f"given as epsilon and delta for {name}", "Use Budget(epsilon, delta).")
    return budget.epsilon


def _delta_of(budget: Budget, name: str) -> float:
    if not budget.delta:
        raise InputError("delta", budget.delta, f"above 0 for {name}", "Choose e.g. 1e-6, or PureFilter().")
    return budget.delta
