"""The Poisson-sampled Gaussian: the pair of output laws that dominates it, under both relations, and its Renyi divergence.

With s = noise_multiplier and the sample rate q, in units of one unit's norm bound, everything but the one unit fixed:
    add-or-remove-one:  (1-q) N(0, s^2) + q N(1, s^2)  against  N(0, s^2), and the reverse (Zhu, Dong & Wang 2022, Theorem 11)
    replace-one:        (1-q) N(0, s^2) + q N(1, s^2)  against  (1-q) N(0, s^2) + q N(-1, s^2): the old and the new contribution
                        point away from each other (dp_accounting's pair; unsampled, q = 1, it is a Gaussian of twice the shift).
In one dimension each log-likelihood ratio rises strictly with x, which gives the loss's law in closed form.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

Array = NDArray[np.float64]
_LEAST_ORDER, _MOST_ORDER = 1.001, 128.0
_MOST_STEPS = 2**17  # to either side; more only where order / s^2 is in the hundreds, whose divergence nobody can use
_UP = 1.0 + 1e-9
_FAR = 40.0  # 1 + e^-40 is 1 in floats


def log_ratio(x: Array, sigma: float, rate: float, relation: str) -> Array:
    """The privacy loss at output x."""
    return _log_mixture(x, sigma, rate, 1.0) - (0.0 if relation == "add-or-remove-one" else _log_mixture(x, sigma, rate, -1.0))


def output_of(loss: Array, sigma: float, rate: float, relation: str) -> Array:
    """The output x that has this loss: the inverse of `log_ratio`. -inf where no output has so low a loss."""
    with np.errstate(divide="ignore"):  # of no unit, or all, in the sample; of a loss at or below the least
        if relation == "add-or-remove-one":
            near, far = np.minimum(loss, _FAR), np.maximum(loss - _FAR, 0.0)  # beyond it, e^l is all there is in floats
            grown = np.where(near < -0.5, np.exp(near) - (1 - rate), np.expm1(near) + rate)  # q e^((2x-1)/(2 s^2))
            return 0.5 + sigma**2 * (np.log(np.maximum(grown, 0.0)) + far - np.log(rate))
        half = np.abs(loss) / 2  # sinh(x/s^2 - l/2) = (1-q)/q e^(1/(2 s^2)) sinh(l/2), whose logarithm does not overflow
        log_sinh = np.log1p(-rate) - np.log(rate) + 0.5 / sigma**2 + half + np.log(-np.expm1(-2 * half) / 2)
    inverse = np.where(log_sinh > _FAR, log_sinh + np.log(2.0), np.arcsinh(np.exp(np.minimum(log_sinh, _FAR))))
    return np.sign(loss) * sigma**2 * (half + inverse)


def renyi(sigma: float, rate: float, relation: str, orders: Array) -> Array:
    """Renyi divergences, the larger of both directions.

    Below order 1.001, where differences lose digits, that of order 1.001: divergence rises with the order. Above order 128, and where so
    little noise would need too large a grid, that of the unsampled Gaussian. It is a bound: each law of the sampled pair is q times its law
    of the unsampled one plus (1-q) N(0, s^2), and divergence is jointly quasi-convex (van Erven & Harremoes 2014, Theorem 13).
    """
    shift = 1.0 if relation == "add-or-remove-one" else 2.0
    unsampled = orders * shift**2 / (2 * sigma**2)
    if rate == 1.0:
        return unsampled
    sampled = [_quadrature(sigma, rate, relation, max(a, _LEAST_ORDER)) if a <= _MOST_ORDER else np.inf for a in orders]
    return np.minimum(np.array(sampled) * _UP, unsampled)


def _quadrature(sigma: float, rate: float, relation: str, order: float) -> float:
    """Trapezoids on an analytic integrand, in steps of a sixteenth of its narrowest feature: exact but for float rounding. Infinite where
    these are too many.

    With l the log-ratio, E_Q[e^(a l)] - 1 is integrated as E_Q[e^(a l) - 1 - a (e^l - 1)], whose terms are not negative, so that a small
    divergence keeps its digits.
    """
    step = 2.0 ** math.floor(math.log2(min(sigma, 2 * sigma**2 / math.sqrt(order)) / 16))
    reach = math.ceil((2 * order + 12 * sigma) / step)
    if reach > _MOST_STEPS:
        return math.inf
    x = step * np.arange(-reach, reach + 1, dtype=np.float64)
    normal = -(x**2) / (2 * sigma**2) - math.log(sigma * math.sqrt(2 * math.pi))
    up = _log_mixture(x, sigma, rate, 1.0)
    other = np.zeros_like(x) if relation == "add-or-remove-one" else _log_mixture(x, sigma, rate, -1.0)
    pairs = ((up, other), (other, up))
    excess = max(float(logsumexp(normal + q + _log_gain(p - q, order))) for p, q in pairs) + math.log(step)
    return float(np.logaddexp(0.0, excess)) / (order - 1)


def _log_gain(loss: Array, order: float) -> Array:
    """log(e^(a l) - 1 - a (e^l - 1)), which is not negative before the logarithm."""
    a, small = order, np.abs(loss) * order < 3e-3
    tiny = loss**2 * (a * (a - 1) / 2 + loss * ((a**3 - a) / 6 + loss * ((a**4 - a) / 24 + loss * (a**5 - a) / 120)))
    capped = np.minimum(loss, 30.0 / a)
    middle = np.where(small, tiny, np.expm1(a * capped) - a * np.expm1(capped))
    large = np.maximum(loss, 30.0 / a)
    far = a * large + np.log1p(-(a * np.exp(-(a - 1) * large) + (1 - a) * np.exp(-a * large)))
    with np.errstate(divide="ignore"):
        return np.where(loss > 30.0 / a, far, np.log(np.maximum(middle, 0.0)))


def _log_mixture(x: Array, sigma: float, rate: float, shift: float) -> Array:
    """log of ((1-q) N(0, s^2) + q N(shift, s^2)) / N(0, s^2) at x."""
    grown = np.log(rate) + (2 * shift * x - shift**2) / (2 * sigma**2)
    return grown if rate == 1.0 else np.logaddexp(np.log1p(-rate), grown)
