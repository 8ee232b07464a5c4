"""Privacy filters: how much each event costs, and how much a budget holds, when releases are chosen adaptively.

A filter refuses the first release that would pass its cap, so the cap is the guarantee whatever the analyst does and whenever they
stop. Costs and caps are exact fractions, so no sum drifts: a plan that fits on paper fits here.
One filter is named when the ledger is born; the minimum over several filters is not a filter.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Self

from dpbo.accounting import gdp, profiles
from dpbo.accounting.gdp import root_up, rounded_up
from dpbo.errors import InputError
from dpbo.events import Event
from dpbo.privacy import Budget
from dpbo.statement import Guarantee
from dpbo.validation import Delta, checked, require

# ========== MERGED Costs: what is added up against a cap. One exact fraction for a privacy filter, one number of slots a planned event
# for a plan.

_GRAIN = 1 << 128
_LONGEST = 512


@dataclass(frozen=True)
class Cost:
    """A vector of exact numbers, added and compared part by part."""

    parts: tuple[Fraction, ...]

    @classmethod
    def of(cls, *parts: Fraction | int) -> Self:
        """The cost with these parts."""
        return cls(tuple(map(Fraction, parts)))

    @classmethod
    def read(cls, text: str) -> Self:
        """The cost that `str` wrote."""
        return cls.of(*map(Fraction, text.split(" ")))

    def __str__(self) -> str:
        return " ".join(map(str, self.parts))

    def __add__(self, other: Cost) -> Cost:
        return Cost(tuple(_added(a, b) for a, b in zip(self.parts, other.parts, strict=True)))

    def __le__(self, other: Cost) -> bool:
        return all(a <= b for a, b in zip(self.parts, other.parts, strict=True))

    def __mul__(self, share: Fraction) -> Cost:
        return Cost(tuple(part * share for part in self.parts))

    @property
    def nothing(self) -> Cost:
        """Zero in every part."""
        return self * Fraction(0)

    def first_beyond(self, cap: Cost) -> int:
        """Which part passes the cap first."""
        return next(i for i, (a, b) in enumerate(zip(self.parts, cap.parts, strict=True)) if a > b)


def _added(total: Fraction, cost: Fraction) -> Fraction:
    """Exact while the denominator is short (always for a few distinct events), else up to a multiple of 2^-128."""
    exact = total + cost
    return exact if exact.denominator.bit_length() <= _LONGEST else Fraction(math.ceil(exact * _GRAIN), _GRAIN)


_ANOTHER_MACHINE = 1 + Fraction(1, 10**9)

EventKind = Callable[..., Event]  # of (noise_multiplier, slots): an event's class, or a partial of one that needs more


@checked
class Accounting(abc.ABC):
    """What is added up and what the sum guarantees. `unit` names what is added."""

    unit: ClassVar[str]
    events: tuple[Event, ...] = ()  # of a plan, all that may ever be charged
    cap_is_budget: ClassVar[bool] = True  # the cap was rounded down from the budget, so what stays within it keeps the budget

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """How the ledger and the statement call it; `accounting_named` finds it again."""

    @abc.abstractmethod
    def price(self, event: Event) -> Cost | None:
        """What the event takes from the cap, or None where this accounting cannot pay for it."""

    @abc.abstractmethod
    def cap(self, budget: Budget) -> Cost:
        """What the budget holds. Raises InputError where this accounting cannot serve it."""

    @abc.abstractmethod
    def may_hold(self, cap: Cost, budget: Budget) -> bool:
        """Whether a ledger of this budget may have been born with this cap, on a machine that rounds differently."""

    @abc.abstractmethod
    def guarantee(self, cost: Cost, delta: float | None) -> Guarantee:
        """Of everything that cost this much, read at this delta; rounded up."""

    @abc.abstractmethod
    def multiplier(self, kind: EventKind, slots: int, available: Cost) -> float | None:
        """The least noise multiplier of so many slots that `available` pays for; None where this kind cannot be paid."""

    def cost(self, event: Event) -> Cost:
        """`price`, or InputError naming what can be paid. Releases without noise cost nothing: no budget could pay."""
        price = self.price(event)
        if price is None:
            raise InputError("mechanism", event.mechanism, f"one that {self.name} can pay for", "See dpbo.accounting for others.")
        return price


@checked
class Filter(Accounting):
    """One additive cost under fully adaptive composition; see each subclass for its theorem."""

    _hooks: ClassVar[frozenset[str]] = frozenset({"holds", "may_hold", "multiplier", "reading", "toll"})

    @property
    def name(self) -> str:
        return type(self).__name__

    @abc.abstractmethod
    def toll(self, event: Event) -> Fraction | None:
        """The event's cost as one number, or None."""

    @abc.abstractmethod
    def holds(self, budget: Budget) -> Fraction:
        """The cap as one number."""

    @abc.abstractmethod
    def reading(self, total: Fraction, delta: float | None) -> Guarantee:
        """The guarantee of this total."""

    def price(self, event: Event) -> Cost | None:
        toll = Fraction(0) if event.free else self.toll(event)
        return None if toll is None else Cost.of(max(toll, Fraction(0)))  # no release gives budget back

    def cap(self, budget: Budget) -> Cost:
        return Cost.of(self.holds(budget))

    def may_hold(self, cap: Cost, budget: Budget) -> bool:
        return len(cap.parts) == 1 and cap <= self.cap(budget) * _ANOTHER_MACHINE

    def guarantee(self, cost: Cost, delta: float | None) -> Guarantee:
        if delta is not None:
            require("delta", delta, Delta)
        return self.reading(cost.parts[0], delta)

    def multiplier(self, kind: EventKind, slots: int, available: Cost) -> float | None:
        """By bisection down to neighbouring floats."""
        if self.toll(kind(1.0, slots)) is None:
            return None

        def fits(multiplier: float) -> bool:
            return self.cost(kind(multiplier, slots)) <= available

        high = 1.0
        while not fits(high):
            high *= 2.0
        low = high / 2.0
        while fits(low):
            low /= 2.0
        while (middle := (low + high) / 2.0) not in (low, high):
            low, high = (low, middle) if fits(middle) else (middle, high)
        return high


@checked
@dataclass(frozen=True)
class GDPFilter(Filter):
    """Gaussian DP with cost mu^2: adaptively chosen mu_1, mu_2, ... stopped before their squares pass mu^2 are mu-GDP.

    Source: Smith & Thakurta 2022, "Fully Adaptive Composition for Gaussian Differential Privacy" (each event is fixed before its
    noise is drawn, as the curator does). For Gaussians fixed in advance it is the exact composition, so nothing is given away.
    """

    unit: ClassVar[str] = "mu^2"

    def toll(self, event: Event) -> Fraction | None:
        return profiles.mu_squared(event)

    def holds(self, budget: Budget) -> Fraction:
        if budget.epsilon is None or budget.delta is None:
            return Fraction(budget.mu or 0.0) ** 2
        if budget.delta == 0.0:
            remedy = "No Gaussian release is pure; choose e.g. 1e-6, or PureFilter() with LaplaceMechanism."
            raise InputError("delta", budget.delta, "above 0 for GDPFilter", remedy)
        return Fraction(gdp.mu_within(budget.epsilon, budget.delta)) ** 2

    def reading(self, total: Fraction, delta: float | None) -> Guarantee:
        mu = root_up(total)
        return Guarantee(mu, None if delta is None else gdp.epsilon_at(mu, delta), delta)


@checked
@dataclass(frozen=True)
class PureFilter(Filter):
    """Pure epsilon, which adds up under any adaptive choice (Rogers, Roth, Ullman & Vadhan 2016, Theorem 3.6). Serves any delta."""

    unit: ClassVar[str] = "epsilon"

    def toll(self, event: Event) -> Fraction | None:
        return profiles.pure(event)

    def holds(self, budget: Budget) -> Fraction:
        return Fraction(_epsilon_of(budget, self.name))

    def reading(self, total: Fraction, delta: float | None) -> Guarantee:
        return Guarantee(None, rounded_up(total), 0.0)


@checked
@dataclass(frozen=True)
class ZCDPFilter(Filter):
    """Zero-concentrated DP with cost rho, which adds up under any adaptive choice (Whitehouse, Ramdas, Rogers & Wu 2023, Theorem 1).

    Read at delta by the best Renyi order.
    """

    unit: ClassVar[str] = "rho"

    def toll(self, event: Event) -> Fraction | None:
        return profiles.rho(event)

    def holds(self, budget: Budget) -> Fraction:
        return Fraction(profiles.rho_within(_epsilon_of(budget, self.name), _delta_of(budget, self.name)))

    def reading(self, total: Fraction, delta: float | None) -> Guarantee:
        return Guarantee(None, None if delta is None else profiles.epsilon_of_rho(rounded_up(total), delta), delta)


@checked
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

    def toll(self, event: Event) -> Fraction | None:
        return profiles.renyi(event, self.order)

    def holds(self, budget: Budget) -> Fraction:
        epsilon, delta = _epsilon_of(budget, self.name), _delta_of(budget, self.name)
        cap = Fraction(epsilon) - Fraction(profiles.conversion(self.order, delta))
        if cap <= 0:
            raise InputError("order", self.order, f"large enough for epsilon {epsilon:g} at delta {delta:g}", "Try a larger order.")
        return cap

    def reading(self, total: Fraction, delta: float | None) -> Guarantee:
        epsilon = None if delta is None else max(float(total) + profiles.conversion(self.order, delta), 0.0) * (1 + 1e-15)
        return Guarantee(None, epsilon, delta)


def _epsilon_of(budget: Budget, name: str) -> float:
    if budget.epsilon is None:
        raise InputError("budget", budget.mu, f"given as epsilon and delta for {name}", "Use Budget(epsilon, delta).")
    return budget.epsilon


def _delta_of(budget: Budget, name: str) -> float:
    if not budget.delta:
        raise InputError("delta", budget.delta, f"above 0 for {name}", "Choose e.g. 1e-6, or PureFilter().")
    return budget.delta
