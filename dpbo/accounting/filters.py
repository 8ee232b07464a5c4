"""Privacy filters: how much each event costs, and how much a budget holds, when releases are chosen
adaptively.

A filter refuses the first release that would pass its cap, so the cap is the guarantee whatever the
analyst does and whenever they stop. Costs and caps are exact fractions: sums have no rounding
error. One filter is chosen when the ledger is created; the minimum over several filters is not a
filter.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, ClassVar, Self

from dpbo.accounting import event_costs, gdp, renyi
from dpbo.accounting.gdp import root_up, rounded_up
from dpbo.accounting.roots import least_scale
from dpbo.errors import InputError
from dpbo.events import Event
from dpbo.privacy import Budget, BudgetOrShare, exact_share
from dpbo.statement import Guarantee
from dpbo.validation import Delta, Within, checked, checked_constructor

# of (noise_multiplier, slots): an event's class, or a partial of one that needs more
EventKind = Callable[..., Event]
# The least noise multiplier of an event; one over it is the largest.
_LEAST = 1e-100
# A sum of costs whose denominator has more bits is rounded up to a multiple of 1 / _GRAIN.
_LONGEST = 512
_GRAIN = 1 << 128
# orders that `filter_within` tries; every one gives a valid filter
_ORDERS = (1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 128.0, 256.0)
# two machines' caps of one budget differ by less, by rounding
_ANOTHER_MACHINE = 1 + Fraction(1, 10**9)


@dataclass(frozen=True)
class Cost:
    """What is added up against a cap: one exact number for a filter, one number of slots a planned
    event for a plan.

    Costs are added and compared part by part. A sum is exact while its denominator is short (always
    for a few distinct events); a longer one is rounded up to a multiple of 2^-128.
    """

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
        return Cost(tuple(_shortened(a + b) for a, b in self.beside(other)))

    def __le__(self, other: Cost) -> bool:
        return all(a <= b for a, b in self.beside(other))

    def __mul__(self, share: Fraction) -> Cost:
        return Cost(tuple(part * share for part in self.parts))

    @property
    def zero(self) -> Cost:
        """Zero in every part."""
        return self * Fraction(0)

    def beside(self, other: Cost) -> Iterator[tuple[Fraction, Fraction]]:
        """Each part with the other's. Raises ValueError where one has more of them."""
        return zip(self.parts, other.parts, strict=True)

    def first_beyond(self, cap: Cost) -> int:
        """Index of the first part that is above the cap's."""
        return next(i for i, (a, b) in enumerate(self.beside(cap)) if a > b)


def _shortened(part: Fraction) -> Fraction:
    """The same number, rounded up where its denominator is long."""
    if part.denominator.bit_length() <= _LONGEST:
        return part
    return Fraction(math.ceil(part * _GRAIN), _GRAIN)


class Accounting(abc.ABC):
    """What is added up, and what the sum guarantees.

    Attributes:
        unit: what is added, in words.
        events: every event that may be charged, under a plan; otherwise empty.
        cap_is_budget: whether a total within the cap is within the budget. Under a plan the
            statement computes its guarantee instead.
    """

    unit: ClassVar[str]
    events: tuple[Event, ...] = ()
    cap_is_budget: ClassVar[bool] = True

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Its name in the ledger and the statement, which `accounting_named` reads."""

    @abc.abstractmethod
    def cost_or_none(self, event: Event) -> Cost | None:
        """The cost of an event, or None where this accounting cannot pay for it. Events without
        noise cost nothing.
        """

    @abc.abstractmethod
    def cap(self, budget: Budget) -> Cost:
        """The largest total that the budget allows. Raises InputError where this accounting cannot
        serve the budget.
        """

    @abc.abstractmethod
    def may_hold(self, cap: Cost, budget: Budget) -> bool:
        """Whether a ledger of this budget may have been created with this cap, perhaps on a machine
        that rounds differently.
        """

    @abc.abstractmethod
    def guarantee(self, cost: Cost, delta: float | None) -> Guarantee:
        """What events of this total cost guarantee, at this delta; rounded up."""

    @abc.abstractmethod
    def multiplier(self, kind: EventKind, slots: int, available: Cost) -> float | None:
        """The least noise multiplier with which this many slots cost at most `available`; None
        where this kind cannot be paid.
        """

    @checked
    def cost(self, event: Event) -> Cost:
        """The cost of an event. Raises InputError where this accounting cannot pay for it."""
        cost = self.cost_or_none(event)
        if cost is None:
            raise InputError(
                "mechanism",
                event.mechanism,
                f"one that {self.name} can pay for",
                "See dpbo.accounting for others.",
            )
        return cost


def budget_cost(budget: BudgetOrShare, accounting: Accounting, cap: Cost) -> Cost:
    """What a budget costs under this accounting: that of a `Budget`, or a share in (0, 1] of the
    cap.

    Raises:
        InputError: a share outside (0, 1], or a Budget that this accounting cannot serve.
    """
    if isinstance(budget, Budget):
        return accounting.cap(budget)
    return cap * exact_share(budget)


class Filter(Accounting):
    """One additive cost under fully adaptive composition; see each subclass for its theorem."""

    @property
    def name(self) -> str:
        return type(self).__name__

    @abc.abstractmethod
    def cost_amount(self, event: Event) -> Fraction | None:
        """The event's cost as one number, or None where this filter cannot pay for it."""

    @abc.abstractmethod
    def cap_amount(self, budget: Budget) -> Fraction:
        """The cap as one number."""

    @abc.abstractmethod
    def guarantee_of(self, total: Fraction, delta: float | None) -> Guarantee:
        """What events of this total guarantee, at this delta."""

    @checked
    def cost_or_none(self, event: Event) -> Cost | None:
        amount = Fraction(0) if event.free else self.cost_amount(event)
        # no release gives budget back
        if amount is None:
            return None
        return Cost.of(max(amount, Fraction(0)))

    @checked
    def cap(self, budget: Budget) -> Cost:
        return Cost.of(self.cap_amount(budget))

    def may_hold(self, cap: Cost, budget: Budget) -> bool:
        return len(cap.parts) == 1 and cap <= self.cap(budget) * _ANOTHER_MACHINE

    @checked
    def guarantee(self, cost: Cost, delta: Delta | None) -> Guarantee:
        return self.guarantee_of(cost.parts[0], delta)

    def multiplier(self, kind: EventKind, slots: int, available: Cost) -> float | None:
        if self.cost_amount(kind(1.0, slots)) is None:
            return None

        def fits(multiplier: float) -> bool:
            # of hardly any noise it may know no cost
            cost = self.cost_or_none(kind(multiplier, slots))
            return cost is not None and cost <= available

        return max(least_scale(fits, least=2.0 * _LEAST, most=0.5 / _LEAST), _LEAST)


@checked_constructor
@dataclass(frozen=True)
class GDPFilter(Filter):
    """Gaussian DP with cost mu^2, which adds up under any adaptive choice.

    Releases of adaptively chosen mu_1, mu_2, ... that stop before their squares pass mu^2 are
    mu-GDP.

    Source: Smith & Thakurta 2022, "Fully Adaptive Composition for Gaussian Differential Privacy"
    (each event is fixed before its noise is drawn, as the curator does). For Gaussians fixed in
    advance it is the exact composition, so nothing is given away.
    """

    unit: ClassVar[str] = "mu^2"

    cost_amount = staticmethod(event_costs.mu_squared)

    def cap_amount(self, budget: Budget) -> Fraction:
        if budget.epsilon is None or budget.delta is None:
            return Fraction(budget.mu or 0.0) ** 2
        if budget.delta == 0.0:
            remedy = (
                "Choose e.g. 1e-6, or PureFilter() with LaplaceMechanism: no Gaussian release has"
                " delta 0."
            )
            raise InputError("delta", budget.delta, "above 0 for GDPFilter", remedy)
        return Fraction(gdp.mu_within(budget.epsilon, budget.delta)) ** 2

    def guarantee_of(self, total: Fraction, delta: float | None) -> Guarantee:
        mu = root_up(total)
        return Guarantee(mu, None if delta is None else gdp.epsilon_at(mu, delta), delta)


@checked_constructor
@dataclass(frozen=True)
class PureFilter(Filter):
    """Pure epsilon, which adds up under any adaptive choice (Rogers, Roth, Ullman & Vadhan 2016,
    Theorem 3.6). Serves any delta.

    Choose it where delta must be 0, or where few answers are released, all with Laplace noise or by
    private choices: at delta 1e-6 up to about 20 Laplace releases, or 5 by the exponential
    mechanism, need less noise than under any other filter. It cannot pay for Gaussian noise, which
    has no pure epsilon.
    """

    unit: ClassVar[str] = "epsilon"

    cost_amount = staticmethod(event_costs.pure)

    def cap_amount(self, budget: Budget) -> Fraction:
        return Fraction(_epsilon_of(budget, self.name))

    def guarantee_of(self, total: Fraction, delta: float | None) -> Guarantee:
        return Guarantee(None, rounded_up(total), 0.0)


@checked_constructor
@dataclass(frozen=True)
class ZCDPFilter(Filter):
    """Zero-concentrated DP with cost rho, which adds up under any adaptive choice (Whitehouse,
    Ramdas, Rogers & Wu 2023, Theorem 1).

    Choose it where many answers are released with Laplace noise or by private choices: at delta
    1e-6 they need about 15 % less noise than under GDPFilter, while Gaussian releases need about 7
    % more. Epsilon at delta is computed from rho by minimising over Renyi orders.
    """

    unit: ClassVar[str] = "rho"

    cost_amount = staticmethod(event_costs.rho)

    def cap_amount(self, budget: Budget) -> Fraction:
        return Fraction(
            renyi.rho_within(_epsilon_of(budget, self.name), _delta_of(budget, self.name))
        )

    def guarantee_of(self, total: Fraction, delta: float | None) -> Guarantee:
        return Guarantee(
            None, None if delta is None else renyi.epsilon_of_rho(rounded_up(total), delta), delta
        )


@checked_constructor
@dataclass(frozen=True)
class RDPFilter(Filter):
    """Renyi DP at one order, fixed when the ledger is created, which adds up under any adaptive
    choice (Feldman & Zrnic 2021, Theorem 4.3).

    Args:
        order: above 1 and at most 1e6; around 1 + 2 log(1/delta) / epsilon is best for Gaussians.
    """

    order: Annotated[
        float, Within("a number above 1 and at most 1e6", lambda order: 1.0 < order <= 1e6)
    ]
    unit: ClassVar[str] = "Renyi divergence"

    @property
    def name(self) -> str:
        return f"RDPFilter({self.order!r})"

    def cost_amount(self, event: Event) -> Fraction | None:
        return renyi.cost(event, self.order)

    def cap_amount(self, budget: Budget) -> Fraction:
        epsilon = _epsilon_of(budget, self.name)
        delta = _delta_of(budget, self.name)
        cap = Fraction(epsilon) - Fraction(renyi.conversion(self.order, delta))
        if cap <= 0:
            raise InputError(
                "order",
                self.order,
                f"large enough for epsilon {epsilon:g} at delta {delta:g}",
                "Try a larger order.",
            )
        return cap

    def guarantee_of(self, total: Fraction, delta: float | None) -> Guarantee:
        if delta is None:
            epsilon = None
        elif total == 0:
            # a divergence of 0 is that of equal distributions
            epsilon = 0.0
        else:
            epsilon = max(float(total) + renyi.conversion(self.order, delta), 0.0) * (1 + 1e-15)
        return Guarantee(None, epsilon, delta)


def filter_within(events: Sequence[tuple[Event, int]], budget: Budget) -> Filter | None:
    """The filter under which so many of each event spend the least share of the budget; None where
    they pass it under every filter. An RDPFilter only where no other would do.

    It is computed from public events, and says what another choice would have paid for. Whoever
    chooses a ledger's filter after its releases has no filter: the minimum over several is none.
    """
    plain: list[Filter] = [GDPFilter(), ZCDPFilter(), PureFilter()]
    ordered: list[Filter] = list(map(RDPFilter, _ORDERS))
    # an order is one more thing to choose: only where the plain ones refuse
    for candidates in (plain, ordered):
        shares = [_share(each, events, budget) for each in candidates]
        if min(shares) <= 1:
            return candidates[shares.index(min(shares))]
    return None


def _share(
    candidate: Filter, events: Sequence[tuple[Event, int]], budget: Budget
) -> Fraction | float:
    """What the events spend of the budget; infinite where the filter cannot say."""
    try:
        cap = candidate.cap_amount(budget)
    except InputError:
        # it cannot serve this budget
        return math.inf
    spent = Fraction(0)
    for event, times in events:
        cost = candidate.cost_or_none(event)
        if cost is None:
            return math.inf
        spent += cost.parts[0] * times
    return spent / cap


def _epsilon_of(budget: Budget, name: str) -> float:
    if budget.epsilon is None:
        raise InputError(
            "budget",
            budget.mu,
            f"given as epsilon and delta for {name}",
            "Use Budget(epsilon, delta).",
        )
    return budget.epsilon


def _delta_of(budget: Budget, name: str) -> float:
    if not budget.delta:
        raise InputError(
            "delta", budget.delta, f"above 0 for {name}", "Choose e.g. 1e-6, or PureFilter()."
        )
    return budget.delta
