"""Renyi divergence bounds of events, and how Renyi and zero-concentrated DP are read as (epsilon,
delta).

(a, r)-RDP is (r + c(a, delta), delta)-DP with c(a, delta) = log((a-1)/a) - (log delta + log
a)/(a-1) (Canonne, Kamath & Steinke 2020, Proposition 12), and rho-zCDP is (a, a rho)-RDP for every
a > 1. Every order gives a valid bound, so a search over orders is loose at worst.
"""

import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from dpbo.accounting import event_costs, selection_bounds
from dpbo.accounting.dominating_pairs import log_mixture
from dpbo.accounting.roots import moved_until, rising_root
from dpbo.accounting.selection_pairs import run_profiles
from dpbo.events import (
    DiscreteLaplaceEvent,
    Event,
    ExponentialEvent,
    GaussianEvent,
    L2LaplaceEvent,
    LaplaceEvent,
    OneOfEvent,
    PermuteAndFlipEvent,
    PoissonGaussianEvent,
    RolesEvent,
    SelectionEvent,
    ThresholdedExponentialEvent,
)

Array = NDArray[np.float64]
# covers the rounding of the few float operations of a curve
_UP = 1.0 + 2.0**-40
# covers that of a reading
_UP_READ = 1.0 + 1e-12
# covers that of a quadrature
_UP_SAMPLED = 1.0 + 1e-9
# orders at which a sampled Gaussian is integrated
_LEAST_ORDER = 1.001
_MOST_ORDER = 128.0
# to either side; only order / s^2 in the hundreds needs more, and there the divergence is too large
# to be of use
_MOST_STEPS = 2**17


def cost(event: Event, order: float) -> Fraction | None:
    """Renyi divergence bound of all slots at one order above 1, as an exact number; None where
    there is none.
    """
    if isinstance(event, GaussianEvent):
        return event.count * Fraction(order) / (2 * Fraction(event.noise_multiplier) ** 2)
    if isinstance(event, RolesEvent | OneOfEvent):
        return event_costs.largest(event, lambda one: cost(one, order))
    one = curve(event.repeated(1), np.array([float(order)]))
    if one is None:
        return None
    return event.count * Fraction(float(one[0]))


def curve(event: Event, orders: Array) -> Array | None:
    """Renyi divergence bounds of all slots at several orders, in floats rounded up; None where
    there are none.
    """
    match event:
        case RolesEvent() | OneOfEvent():
            worst = np.zeros_like(orders)
            for events in event.alternatives():
                together = total_curve(events, orders)
                if together is None:
                    return None
                worst = np.maximum(worst, together)
            return worst * _UP
        case GaussianEvent():
            one = orders / (2 * event.noise_multiplier**2)
        case LaplaceEvent():
            one = _laplace(1.0 / event.noise_multiplier, orders)
        case ExponentialEvent():
            one = np.minimum(
                orders / (2 * event.noise_multiplier**2),
                _response(2.0 / event.noise_multiplier, orders),
            )
        case PermuteAndFlipEvent() | ThresholdedExponentialEvent():
            one = _response(2.0 / event.noise_multiplier, orders)
        case L2LaplaceEvent() | DiscreteLaplaceEvent():
            one = _response(1.0 / event.noise_multiplier, orders)
        case PoissonGaussianEvent():
            one = sampled_gaussian(event.noise_multiplier, event.rate, event.relation, orders)
        case SelectionEvent():
            if (found := _selection(event, orders)) is None:
                return None
            one = found
        case _:
            return None
    return event.count * one * _UP


def total_curve(events: Sequence[Event], orders: Array) -> Array | None:
    """The sum of the events' curves at these orders, or None where one has none."""
    return event_costs.total((curve(event, orders) for event in events), np.zeros_like(orders))


def _selection(event: SelectionEvent, orders: Array) -> Array | None:
    """One selection: the lesser of what follows from its runs' Renyi bounds and from their pure
    epsilon.
    """
    # only its profile is bounded
    if event.spread != (1.0, 1.0):
        return None
    run = event.run()
    best = event_costs.pure(event.repeated(1))

    def run_curve(at: Array) -> Any:
        return total_curve(run, at)

    if run_curve(orders[:1]) is None:
        return None
    found = selection_bounds.renyi(event.run_count, run_curve, orders, lambda: run_profiles(run))
    if best is not None:
        found = np.minimum(found, _response(float(best), orders))
    if np.isfinite(found).all():
        return found
    return None


def _response(epsilon: float, orders: Array) -> Array:
    """Largest divergence of any pure-epsilon pair, randomised response: log((e^(a e) + e^((1-a) e))
    / (1 + e^e)) / (a - 1).

    A slack covers the digits that cancel; the caller rounds up the last ones.
    """
    grown = orders * epsilon + np.log1p(np.exp((1 - 2 * orders) * epsilon))
    value = (grown - epsilon - math.log1p(math.exp(-epsilon))) / (orders - 1)
    slack = 1e-15 * (1 + orders * epsilon) * (1 + 1 / (orders - 1))
    return np.minimum(np.maximum(value, 0.0) + slack, epsilon)


def _laplace(epsilon: float, orders: Array) -> Array:
    """log(a/(2a-1) e^((a-1)e) + (a-1)/(2a-1) e^(-a e)) / (a-1), at most epsilon; rounded as in
    `_response`.
    """
    first = np.log(orders / (2 * orders - 1)) + (orders - 1) * epsilon
    second = np.log((orders - 1) / (2 * orders - 1)) - orders * epsilon
    value = np.logaddexp(first, second) / (orders - 1)
    return np.minimum(np.maximum(value, 0.0) + 1e-15 * (1 + 1 / (orders - 1)), epsilon)


def sampled_gaussian(sigma: float, rate: float, relation: str, orders: Array) -> Array:
    """Divergences of a Poisson-sampled Gaussian (pairs in dominating_pairs.py), the larger of both
    directions.

    Below order 1.001, where differences lose digits, that of order 1.001: divergence rises with the
    order. Above order 128, and where so little noise would need too large a grid, that of the
    unsampled Gaussian. It is a bound: each law of the sampled pair is q times its law of the
    unsampled one plus (1-q) N(0, s^2), and divergence is jointly quasi-convex (van Erven &
    Harremoes 2014, Theorem 13).
    """
    shift = 1.0 if relation == "add-or-remove-one" else 2.0
    unsampled = orders * shift**2 / (2 * sigma**2)
    if rate == 1.0:
        return unsampled
    sampled = [
        _quadrature(sigma, rate, relation, max(a, _LEAST_ORDER)) if a <= _MOST_ORDER else np.inf
        for a in orders.tolist()
    ]
    return np.minimum(np.array(sampled) * _UP_SAMPLED, unsampled)


# A statement reads one curve at a dozen deltas.
@functools.lru_cache(maxsize=1 << 14)
def _quadrature(sigma: float, rate: float, relation: str, order: float) -> float:
    """Trapezoids on an analytic integrand, in steps of a sixteenth of its narrowest feature: exact
    but for float rounding. Infinite where these are too many.

    With l the log-ratio, E_Q[e^(a l)] - 1 is integrated as E_Q[e^(a l) - 1 - a (e^l - 1)], whose
    terms are not negative, so that a small divergence keeps its digits.
    """
    step = 2.0 ** math.floor(math.log2(min(sigma, 2 * sigma**2 / math.sqrt(order)) / 16))
    reach = math.ceil((2 * order + 12 * sigma) / step)
    if reach > _MOST_STEPS:
        return math.inf
    x = step * np.arange(-reach, reach + 1, dtype=np.float64)
    normal = -(x**2) / (2 * sigma**2) - math.log(sigma * math.sqrt(2 * math.pi))
    up = log_mixture(x, sigma, rate, 1.0)
    if relation == "add-or-remove-one":
        pairs = [(up, np.zeros_like(x)), (np.zeros_like(x), up)]
    else:
        # the other direction is its mirror image
        pairs = [(up, log_mixture(x, sigma, rate, -1.0))]
    excess = max(_log_sum(normal + q + _log_gain(p - q, order)) for p, q in pairs) + math.log(step)
    return float(np.logaddexp(0.0, excess)) / (order - 1)


def _log_sum(logs: Array) -> float:
    """The logarithm of a sum, from the logarithms of its terms."""
    # finite where all terms are 0
    top = max(float(logs.max()), -1e300)
    with np.errstate(divide="ignore"):
        return top + float(np.log(np.exp(logs - top).sum()))


def _log_gain(loss: Array, order: float) -> Array:
    """log(e^(a l) - 1 - a (e^l - 1)), which is not negative before the logarithm."""
    a = order
    small = np.abs(loss) * order < 3e-3
    tiny = loss**2 * (
        a * (a - 1) / 2
        + loss * ((a**3 - a) / 6 + loss * ((a**4 - a) / 24 + loss * (a**5 - a) / 120))
    )
    capped = np.minimum(loss, 30.0 / a)
    middle = np.where(small, tiny, np.expm1(a * capped) - a * np.expm1(capped))
    large = np.maximum(loss, 30.0 / a)
    far = a * large + np.log1p(-(a * np.exp(-(a - 1) * large) + (1 - a) * np.exp(-a * large)))
    with np.errstate(divide="ignore"):
        return np.where(loss > 30.0 / a, far, np.log(np.maximum(middle, 0.0)))


def conversions(orders: Array, delta: float) -> Array:
    """c(order, delta) at several orders, rounded up; infinite at delta = 0."""
    if delta == 0.0:
        return np.full_like(orders, math.inf)
    values = np.log1p(-1.0 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1.0)
    return values + np.abs(values) * 1e-14


def conversion(order: float, delta: float) -> float:
    """c(order, delta) at one order."""
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

    best = scipy.optimize.minimize_scalar(
        at, bounds=(-30.0, 30.0), method="bounded", options={"xatol": 1e-12}
    )
    return max(min(float(best.fun), at(0.5 * math.log(math.log(1 / delta) / rho))) * _UP_READ, 0.0)


def rho_within(epsilon: float, delta: float) -> float:
    """Largest rho that is (epsilon, delta)-DP by this conversion, rounded down."""
    answer = rising_root(lambda rho: epsilon_of_rho(rho, delta) - epsilon)
    return moved_until(answer, lambda rho: epsilon_of_rho(rho, delta) <= epsilon, up=False)
