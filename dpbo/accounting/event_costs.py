"""What one event costs in the notions of privacy that add up: pure epsilon, mu^2 of Gaussian DP,
rho of zCDP. renyi.py has Renyi DP.

Exact fractions where the number is rational, otherwise floats rounded up; None where the event has
no finite cost.

    event, one slot           pure   mu^2          rho               Renyi at order a (renyi.py)
    Gaussian, M               -      1/M^2         1/(2 M^2)         a/(2 M^2)
    Laplace, M = 1/e          e      pure e        e - 1 + exp(-e)   Mironov 2017, Table II
    l2-Laplace, M = 1/e       e      pure e        e^2/2             randomised response
    discrete Laplace, M = 1/e e      pure e        e^2/2             randomised response
    exponential, M = 2/e      e      pure e/2      e^2/8             min(a e^2/8, pure e)
    permute-and-flip, M=2/e   e      pure e        e^2/2             randomised response
    Poisson Gaussian          -      -             -                 by quadrature
    private selection         *      pure e        pure e            selection_bounds.py
    several roles, one of     the largest over the roles, or candidates, of each column's sum

    pure e: what holds for every pure e;   *: where the runs are pure

Any pure e is mu-GDP with mu = 2 Phi^-1(e^e/(1 + e^e)) (Dong, Roth & Su 2022, Proposition 2.12 with
randomised response as the worst case). The Laplace rho is its Kullback-Leibler divergence: D_a / a
falls with a, so its supremum over a > 1 is the limit at 1 (checked on a grid in the tests; Harrison
& Manurangsi 2025).

The exponential mechanism's loss lies in [t - e, t] for some t, for every pair of neighbours. By
convexity no hockey-stick exceeds that of the two-point pair with losses t and t - e: P = (p, 1-p)
against Q = (q, 1-q), whose log-odds differ by logit p - logit q = e. A trade-off curve with one
kink lies above that of N(0,1) against N(mu,1) iff the kink does: iff mu >= Phi^-1(p) - Phi^-1(q).
Phi^-1 of the logistic function is odd and, away from zero, ever flatter, so this difference is
largest where logit p = -logit q = e/2: half of what any pure e needs (a grid over t in the tests).
"""

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, TypeVar

import scipy
from numpy.typing import NDArray

from dpbo.accounting import selection_bounds
from dpbo.accounting.gdp import rounded_up
from dpbo.events import (
    DiscreteLaplaceEvent,
    Event,
    ExponentialEvent,
    GaussianEvent,
    L2LaplaceEvent,
    LaplaceEvent,
    OneOfEvent,
    PermuteAndFlipEvent,
    RolesEvent,
    SelectionEvent,
    ThresholdedExponentialEvent,
)

# pure epsilon above which no mu is computed
_LARGEST = 400
# covers the rounding of the few float operations below
_UP = 1.0 + 2.0**-40
C = TypeVar("C", Fraction, NDArray[Any])


def total(parts: Iterable[C | None], zero: C) -> C | None:
    """The sum, or None where a part is None."""
    for part in parts:
        if part is None:
            return None
        zero = zero + part
    return zero


def largest(
    event: RolesEvent | OneOfEvent, cost: Callable[[Event], Fraction | None]
) -> Fraction | None:
    """The largest over the roles, or the candidates, of a cost that adds; None where an event of
    one has none.
    """
    worst = Fraction(0)
    for events in event.alternatives():
        together = total(map(cost, events), Fraction(0))
        if together is None:
            return None
        worst = max(worst, together)
    return worst


def pure(event: Event) -> Fraction | None:
    """Pure epsilon of all slots, by basic composition."""
    match event:
        case LaplaceEvent() | L2LaplaceEvent() | DiscreteLaplaceEvent():
            return event.count / Fraction(event.noise_multiplier)
        case ExponentialEvent() | PermuteAndFlipEvent() | ThresholdedExponentialEvent():
            return 2 * event.count / Fraction(event.noise_multiplier)
        case SelectionEvent():
            run = total(map(pure, event.run()), Fraction(0))
            if run is None or event.spread != (1.0, 1.0):
                return None
            best = selection_bounds.pure(event.run_count, rounded_up(run))
            if math.isfinite(best):
                return event.count * Fraction(best)
            return None
        case RolesEvent() | OneOfEvent():
            return largest(event, pure)
    return None


def mu_squared(event: Event) -> Fraction | None:
    """Sum over slots of the squared GDP parameter."""
    if isinstance(event, GaussianEvent):
        return event.count / Fraction(event.noise_multiplier) ** 2
    if isinstance(event, RolesEvent | OneOfEvent):
        return largest(event, mu_squared)
    one = pure(event.repeated(1))
    if one is None or one > _LARGEST:
        return None
    # (2 Phi^-1(1 / (1 + e^epsilon)))^2 = 8 erfinv(tanh(epsilon / 2))^2, by the form that loses no
    # digits; checked in mpmath
    e = float(one / 2 if isinstance(event, ExponentialEvent) else one)
    if e < 1.0:
        root = math.sqrt(8.0) * float(scipy.special.erfinv(math.tanh(e / 2)))
    else:
        root = 2.0 * float(scipy.special.ndtri(1.0 / (1.0 + math.exp(e))))
    return event.count * Fraction(root**2 * _UP)


def rho(event: Event) -> Fraction | None:
    """Sum over slots of the zCDP parameter (Bun & Steinke 2016)."""
    match event:
        # the exponential's epsilon is 2 / M: epsilon^2 / 8
        case GaussianEvent() | ExponentialEvent():
            return event.count / (2 * Fraction(event.noise_multiplier) ** 2)
        case LaplaceEvent():
            return event.count * Fraction(_laplace_kl(1.0 / event.noise_multiplier) * _UP)
        case RolesEvent() | OneOfEvent():
            return largest(event, rho)
    one = pure(event.repeated(1))
    if one is None:
        return None
    return event.count * one**2 / 2


def _laplace_kl(epsilon: float) -> float:
    """epsilon - 1 + exp(-epsilon), without cancellation for small epsilon."""
    if epsilon > 1e-2:
        return epsilon + math.expm1(-epsilon)
    return (
        epsilon**2
        / 2
        * (1 - epsilon / 3 * (1 - epsilon / 4 * (1 - epsilon / 5 * (1 - epsilon / 6))))
    )
