"""What an event costs under each notion of privacy: pure epsilon, mu^2 of Gaussian DP, rho of zCDP, Renyi DP at one order.

Exact fractions where the number is rational; floats rounded up otherwise; None where the event has no finite cost.

    event, one slot           pure    mu^2                            rho                    Renyi at order a
    Gaussian, M               -       1/M^2                           1/(2 M^2)              a/(2 M^2)
    Laplace, M = 1/e          e       (2 Phi^-1(e^e/(1 + e^e)))^2     e - 1 + exp(-e)        Mironov 2017, Table II
    l2-Laplace, M = 1/e       e       as every pure e                 e^2/2                  that of randomised response
    exponential, M = 2/e      e       as every pure e/2               e^2/8                  min(a e^2/8, as every pure e)
    permute-and-flip, M=2/e   e       as every pure e                 e^2/2                  that of randomised response
    Poisson Gaussian          -       -                               -                      by quadrature (poisson.py)
    private selection         of pure runs; mu, rho as every pure e                          selected.py
    several roles             the largest over the roles of each column's sum

Any pure e is mu-GDP with mu = 2 Phi^-1(e^e/(1 + e^e)) (Dong, Roth & Su 2022, Proposition 2.12 with randomised response as the worst
case). The Laplace rho is its Kullback-Leibler divergence: D_a / a falls with a, so its supremum over a > 1 is the limit at 1 (checked on a
grid in the tests; Harrison & Manurangsi 2025).

The exponential mechanism's loss lies in [t - e, t] for some t, for every pair of neighbours. By convexity no hockey-stick exceeds that of
the two-point pair with losses t and t - e: P = (p, 1-p) against Q = (q, 1-q), whose log-odds differ by logit p - logit q = e. A trade-off
curve with one kink lies above that of N(0,1) against N(mu,1) iff the kink does: iff mu >= Phi^-1(p) - Phi^-1(q). Phi^-1 of the logistic
function is odd and, away from zero, ever flatter, so this difference is largest where logit p = -logit q = e/2: half of what any pure e
needs (a grid over t in the tests).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar
from scipy.special import erfinv, ndtri

from dpbo.accounting import pairs, selected
from dpbo.accounting.gdp import rounded_up
from dpbo.events import (  # fmt: skip
    Event,
    ExponentialEvent,
    GaussianEvent,
    L2LaplaceEvent,
    LaplaceEvent,
    PermuteAndFlipEvent,
    PoissonGaussianEvent,
    RolesEvent,
    SelectionEvent,
)

# ========== MERGED Renyi and zero-concentrated DP read as (epsilon, delta).
#
# (a, r)-RDP is (r + c(a, delta), delta)-DP with c(a, delta) = log((a-1)/a) - (log delta + log a)/(a-1) (Canonne, Kamath & Steinke 2020,
# Proposition 12), and rho-zCDP is (a, a rho)-RDP for every a > 1. Each order gives a valid bound, so a search over orders can only be
# loose.
#

_UP = 1.0 + 1e-12


def conversions(orders: NDArray[np.float64], delta: float) -> NDArray[np.float64]:
    """c(order, delta) of several orders, rounded up."""
    if delta == 0.0:  # no order says anything there
        return np.full_like(orders, math.inf)
    values = np.log1p(-1.0 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1.0)
    return values + np.abs(values) * 1e-14


def conversion(order: float, delta: float) -> float:
    """c(order, delta) of one."""
    return float(conversions(np.array([float(order)]), delta)[0])


def epsilon_of_rho(rho: float, delta: float) -> float:
    """Smallest epsilon over all orders at which rho-zCDP is (epsilon, delta)-DP, rounded up."""
    if rho <= 0.0:
        return 0.0
    if delta == 0.0:
        return math.inf

    def at(log_excess: float) -> float:
        order = 1.0 + math.exp(log_excess)
        return order * rho + conversion(order, delta)

    best = minimize_scalar(at, bounds=(-30.0, 30.0), method="bounded", options={"xatol": 1e-12})
    return max(min(float(best.fun), at(0.5 * math.log(math.log(1 / delta) / rho))) * _UP, 0.0)


def rho_within(epsilon: float, delta: float) -> float:
    """Largest rho that is (epsilon, delta)-DP by this conversion, rounded down."""
    ceiling = 1.0
    while epsilon_of_rho(ceiling, delta) < epsilon:
        ceiling *= 2.0
    floor = ceiling
    while epsilon_of_rho(floor, delta) > epsilon:
        floor, ceiling = floor / 2.0, floor  # so near to each other that a search ends soon, however small they are
    rho = float(brentq(lambda r: epsilon_of_rho(r, delta) - epsilon, floor, ceiling, xtol=1e-300, rtol=1e-13))
    step = 1e-12
    while epsilon_of_rho(rho, delta) > epsilon:
        rho, step = rho / (1.0 + step), 2.0 * step
    return rho


_LARGEST = 400  # above this no mu is worth having
_UP_profiles = 1.0 + 2.0**-40  # covers the rounding of the few float operations below

Curve = NDArray[np.float64]


def pure(event: Event) -> Fraction | None:
    """Pure epsilon of all slots, by basic composition."""
    match event:
        case LaplaceEvent() | L2LaplaceEvent():
            return event.slots / Fraction(event.noise_multiplier)
        case ExponentialEvent() | PermuteAndFlipEvent():
            return 2 * event.slots / Fraction(event.noise_multiplier)
        case SelectionEvent():
            parts = [pure(one) for one in event.run()]
            if None in parts or event.spread != (1.0, 1.0):
                return None
            best = selected.pure(event.law, rounded_up(sum((part for part in parts if part is not None), Fraction(0))))
            return event.slots * Fraction(best) if math.isfinite(best) else None
        case RolesEvent():
            return _worst_role(event, pure)
    return None


def _worst_role(event: RolesEvent, cost: Callable[[Event], Fraction | None]) -> Fraction | None:
    """The largest over the roles of a cost that adds; None where a role's event has none."""
    sums = []
    for role in event.roles:
        parts = [cost(one) for one in event.of(role)]
        if None in parts:
            return None
        sums.append(sum((part for part in parts if part is not None), Fraction(0)))
    return max(sums)


def mu_squared(event: Event) -> Fraction | None:
    """Sum over slots of the squared GDP parameter."""
    if isinstance(event, GaussianEvent):
        return event.slots / Fraction(event.noise_multiplier) ** 2
    if isinstance(event, RolesEvent):
        return _worst_role(event, mu_squared)
    one = pure(event.repeated(1))
    if one is None or one > _LARGEST:
        return None
    return event.slots * _mu_squared_of(one / 2 if isinstance(event, ExponentialEvent) else one)


def rho(event: Event) -> Fraction | None:
    """Sum over slots of the zCDP parameter (Bun & Steinke 2016)."""
    match event:
        case GaussianEvent() | ExponentialEvent():  # of the exponential, epsilon = 2 / M: epsilon^2 / 8
            return event.slots / (2 * Fraction(event.noise_multiplier) ** 2)
        case LaplaceEvent():
            return event.slots * Fraction(_laplace_kl(1.0 / event.noise_multiplier) * _UP_profiles)
        case RolesEvent():
            return _worst_role(event, rho)
    one = pure(event.repeated(1))
    return None if one is None else event.slots * one**2 / 2


def renyi(event: Event, order: float) -> Fraction | None:
    """Renyi divergence bound of the given order (above 1), all slots."""
    if isinstance(event, GaussianEvent):
        return event.slots * Fraction(order) / (2 * Fraction(event.noise_multiplier) ** 2)
    if isinstance(event, RolesEvent):
        return _worst_role(event, lambda one: renyi(one, order))
    curve = renyi_curve(event.repeated(1), np.array([float(order)]))
    return None if curve is None else event.slots * Fraction(float(curve[0]))


def renyi_curve(event: Event, orders: Curve) -> Curve | None:
    """Renyi divergence bounds of several orders, all slots, in floats rounded up."""
    match event:
        case RolesEvent():
            found = _worst_curve(event, orders)
            if found is None:
                return None
            return found * _UP_profiles
        case GaussianEvent():
            one = orders / (2 * event.noise_multiplier**2)
        case LaplaceEvent():
            one = _laplace_renyi(1.0 / event.noise_multiplier, orders)
        case ExponentialEvent():
            one = np.minimum(orders / (2 * event.noise_multiplier**2), _pure_renyi(2.0 / event.noise_multiplier, orders))
        case PermuteAndFlipEvent():
            one = _pure_renyi(2.0 / event.noise_multiplier, orders)
        case L2LaplaceEvent():
            one = _pure_renyi(1.0 / event.noise_multiplier, orders)
        case PoissonGaussianEvent():
            one = pairs.renyi(event.noise_multiplier, event.rate, event.relation, orders)
        case SelectionEvent():
            found = _selected_renyi(event, orders)
            if found is None:
                return None
            one = found
        case _:
            return None
    return event.slots * one * _UP_profiles


def _worst_curve(event: RolesEvent, orders: Curve) -> Curve | None:
    """The largest over the roles, at each order."""
    curves = {role: [renyi_curve(one, orders) for one in event.of(role)] for role in event.roles}
    if any(curve is None for role in curves.values() for curve in role):
        return None
    return np.max([sum((c for c in role if c is not None), np.zeros_like(orders)) for role in curves.values()], axis=0)


def _selected_renyi(event: SelectionEvent, orders: Curve) -> Curve | None:
    """Of one selection: the lesser of what follows from its runs' Renyi bounds and from their pure epsilon."""
    from dpbo.accounting.dominating import base_of  # which asks this module what single events cost

    if event.spread != (1.0, 1.0):  # by its profile alone
        return None
    run, best = event.run(), pure(event.repeated(1))
    if any(renyi_curve(one, orders) is None for one in run):
        return None

    def run_curve(at: Curve) -> Curve:
        return sum((curve for one in run if (curve := renyi_curve(one, at)) is not None), np.zeros_like(at))

    by_runs = selected.renyi(event.law, run_curve, orders, lambda: base_of(run))
    found = by_runs if best is None else np.minimum(by_runs, _pure_renyi(float(best), orders))
    return found if np.isfinite(found).all() else None


def _mu_squared_of(epsilon: Fraction) -> Fraction:
    """(2 Phi^-1(1 / (1 + e^epsilon)))^2 = 8 erfinv(tanh(epsilon / 2))^2, by whichever form loses no digits; checked in mpmath."""
    e = float(epsilon)
    root = math.sqrt(8.0) * float(erfinv(math.tanh(e / 2))) if e < 1.0 else 2.0 * float(ndtri(1.0 / (1.0 + math.exp(e))))
    return Fraction(root**2 * _UP_profiles)


def _pure_renyi(epsilon: float, orders: Curve) -> Curve:
    """Largest divergence of any pure-epsilon pair, randomised response: log((e^(a e) + e^((1-a) e)) / (1 + e^e)) / (a - 1).

    What cancels is added; the last digits are the caller's to round up."""
    grown = orders * epsilon + np.log1p(np.exp((1 - 2 * orders) * epsilon))
    value = (grown - epsilon - math.log1p(math.exp(-epsilon))) / (orders - 1)
    slack = 1e-15 * (1 + orders * epsilon) * (1 + 1 / (orders - 1))
    return np.minimum(np.maximum(value, 0.0) + slack, epsilon)


def _laplace_kl(epsilon: float) -> float:
    """epsilon - 1 + exp(-epsilon), without cancellation for small epsilon."""
    if epsilon > 1e-2:
        return epsilon + math.expm1(-epsilon)
    return epsilon**2 / 2 * (1 - epsilon / 3 * (1 - epsilon / 4 * (1 - epsilon / 5 * (1 - epsilon / 6))))


def _laplace_renyi(epsilon: float, orders: Curve) -> Curve:
    """log(a/(2a-1) e^((a-1)e) + (a-1)/(2a-1) e^(-a e)) / (a-1), at most epsilon; rounded as the response's."""
    first = np.log(orders / (2 * orders - 1)) + (orders - 1) * epsilon
    second = np.log((orders - 1) / (2 * orders - 1)) - orders * epsilon
    value = np.logaddexp(first, second) / (orders - 1)
    return np.minimum(np.maximum(value, 0.0) + 1e-15 * (1 + 1 / (orders - 1)), epsilon)
