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

from dpbo.accounting import gdp
from dpbo.errors import InputError
from dpbo.events import GaussianEvent
from dpbo.privacy import Budget

_GRAIN = 1 << 128
_LONGEST = 512


class Filter(abc.ABC):
    """Additive costs under fully adaptive composition; see each subclass for its theorem."""

    @abc.abstractmethod
    def cost(self, event: GaussianEvent) -> Fraction:
        """What the event takes from the cap, exactly."""

    @abc.abstractmethod
    def cap(self, budget: Budget) -> Fraction:
        """What the budget holds. Raises InputError where this filter cannot serve the budget."""

    @abc.abstractmethod
    def mu(self, cost: Fraction) -> float:
        """The GDP parameter of everything that cost this much, rounded up."""

    @property
    def name(self) -> str:
        """How the ledger and the statement call it."""
        return type(self).__name__


@dataclass(frozen=True)
class GDPFilter(Filter):
    """Gaussian DP with cost mu^2: adaptively chosen mu_1, mu_2, ... stopped before their squares pass mu^2 are mu-GDP.

    Source: Smith & Thakurta 2022, "Fully Adaptive Composition for Gaussian Differential Privacy" (each event is fixed before its
    noise is drawn, as the curator does). For a plan fixed in advance it is the exact composition, so nothing is given away.
    """

    def cost(self, event: GaussianEvent) -> Fraction:
        return event.slots / Fraction(event.noise_multiplier) ** 2

    def cap(self, budget: Budget) -> Fraction:
        return Fraction(_mu_of(budget)) ** 2

    def mu(self, cost: Fraction) -> float:
        root = math.sqrt(cost)
        while Fraction(root) ** 2 < cost:
            root = math.nextafter(root, math.inf)
        return root

    def epsilon(self, cost: Fraction, delta: float) -> float:
        """Epsilon at delta of everything that cost this much, rounded up."""
        return gdp.epsilon_at(self.mu(cost), delta)


def added(total: Fraction, cost: Fraction) -> Fraction:
    """total + cost, exact while its denominator is short (always for a few distinct events), else up to a multiple of 2^-128."""
    exact = total + cost
    return exact if exact.denominator.bit_length() <= _LONGEST else Fraction(math.ceil(exact * _GRAIN), _GRAIN)


def _mu_of(budget: Budget) -> float:
    if budget.epsilon is None or budget.delta is None:
        return budget.mu or 0.0
    if budget.delta == 0.0:
        raise InputError("delta", budget.delta, "above 0 for Gaussian noise", "No Gaussian release is pure; choose e.g. 1e-6.")
    return gdp.mu_within(budget.epsilon, budget.delta)


def filter_named(name: str) -> GDPFilter:
    """The filter that a ledger was born with."""
    if name != GDPFilter().name:
        raise InputError("accounting", name, "GDPFilter", "Was this ledger written by a newer dpbo?")
    return GDPFilter()
