"""What an event costs under each notion of privacy: pure epsilon, mu^2 of Gaussian DP, rho of zCDP, Renyi DP at one order.

Exact fractions where the number is rational; floats rounded up otherwise; None where the event has no finite cost.

    event, one slot     pure    mu^2                            rho                    Renyi at order a
    Gaussian, M         -       1/M^2                           1/(2 M^2)              a/(2 M^2)
    Laplace, M = 1/e    e       (2 Phi^-1(e^e/(1 + e^e)))^2     e - 1 + exp(-e)        Mironov 2017, Table II
    exponential, M=2/e  e       as every pure e                 e^2/8                  min(a e^2/8, as every pure e)
    permute-and-flip    e       as every pure e                 e^2/2                  that of randomised response

Any pure e is mu-GDP with mu = 2 Phi^-1(e^e/(1 + e^e)) (Dong, Roth & Su 2022, Proposition 2.12 with randomised response as the worst
case). The Laplace rho is its Kullback-Leibler divergence: D_a / a falls with a, so its supremum over a > 1 is the limit at 1 (checked on a
grid in the tests; Harrison & Manurangsi 2025).
"""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath

from dpbo.events import Event, ExponentialEvent, GaussianEvent, LaplaceEvent, PermuteAndFlipEvent

_LARGEST = 400  # above this no mu is worth having
_UP = 1.0 + 2.0**-40  # covers the rounding of the few float operations below


def pure(event: Event) -> Fraction | None:
    """Pure epsilon of all slots, by basic composition."""
    match event:
        case LaplaceEvent():
            return event.slots / Fraction(event.noise_multiplier)
        case ExponentialEvent() | PermuteAndFlipEvent():
            return 2 * event.slots / Fraction(event.noise_multiplier)
    return None


def mu_squared(event: Event) -> Fraction | None:
    """Sum over slots of the squared GDP parameter."""
    match event:
        case GaussianEvent():
            return event.slots / Fraction(event.noise_multiplier) ** 2
    one = pure(event.repeated(1))
    return None if one is None or one > _LARGEST else event.slots * _mu_squared_of(one)


def rho(event: Event) -> Fraction | None:
    """Sum over slots of the zCDP parameter (Bun & Steinke 2016)."""
    match event:
        case GaussianEvent():
            return event.slots / (2 * Fraction(event.noise_multiplier) ** 2)
        case LaplaceEvent():
            return event.slots * Fraction(_laplace_kl(1.0 / event.noise_multiplier) * _UP)
        case ExponentialEvent():
            return event.slots / (2 * Fraction(event.noise_multiplier) ** 2)
    one = pure(event.repeated(1))
    return None if one is None else event.slots * one**2 / 2


def renyi(event: Event, order: float) -> Fraction | None:
    """Renyi divergence bound of the given order (above 1), all slots."""
    match event:
        case GaussianEvent():
            return event.slots * Fraction(order) / (2 * Fraction(event.noise_multiplier) ** 2)
        case LaplaceEvent():
            return event.slots * Fraction(_laplace_renyi(1.0 / event.noise_multiplier, order) * _UP)
    one, concentrated = pure(event.repeated(1)), rho(event.repeated(1))
    if one is None or concentrated is None:
        return None
    return event.slots * min(one, Fraction(order) * concentrated, Fraction(_pure_renyi(float(one), order) * _UP))


def _mu_squared_of(epsilon: Fraction) -> Fraction:
    """(2 Phi^-1(e^epsilon / (1 + e^epsilon)))^2 = 8 erfinv(tanh(epsilon / 2))^2, in digits enough that tanh is not 1."""
    with mpmath.workdps(250):
        root = mpmath.erfinv(mpmath.tanh(mpmath.mpf(epsilon.numerator) / epsilon.denominator / 2))
        return Fraction(float(8 * root**2) * _UP)


def _pure_renyi(epsilon: float, order: float) -> float:
    """Largest divergence of any pure-epsilon pair, randomised response: log((e^(a e) + e^((1-a) e)) / (1 + e^e)) / (a - 1)."""
    grown = order * epsilon + math.log1p(math.exp((1 - 2 * order) * epsilon))
    value = (grown - epsilon - math.log1p(math.exp(-epsilon))) / (order - 1)
    return min(max(value, 0.0) + 1e-15 * (1 + order * epsilon) * (1 + 1 / (order - 1)), epsilon)


def _laplace_kl(epsilon: float) -> float:
    """epsilon - 1 + exp(-epsilon), without cancellation for small epsilon."""
    if epsilon > 1e-2:
        return epsilon + math.expm1(-epsilon)
    return epsilon**2 / 2 * (1 - epsilon / 3 * (1 - epsilon / 4 * (1 - epsilon / 5 * (1 - epsilon / 6))))


def _laplace_renyi(epsilon: float, order: float) -> float:
    """log(a/(2a-1) e^((a-1)e) + (a-1)/(2a-1) e^(-a e)) / (a-1), at most epsilon."""
    first = math.log(order / (2 * order - 1)) + (order - 1) * epsilon
    second = math.log((order - 1) / (2 * order - 1)) - order * epsilon
    top = max(first, second)
    value = (top + math.log(math.exp(first - top) + math.exp(second - top))) / (order - 1)
    return min(max(value, 0.0) + 1e-15 * (1 + 1 / (order - 1)), epsilon)
