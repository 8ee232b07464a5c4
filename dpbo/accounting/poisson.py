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
_MOST_ORDER = 128.0
_UP = 1.0 + 1e-9


def log_ratio(x: Array, sigma: float, rate: float, relation: str) -> Array:
    """The privacy loss at output x."""
    return _log_mixture(x, sigma, rate, 1.0) - (0.0 if relation == "add-or-remove-one" else _log_mixture(x, sigma, rate, -1.0))


def output_of(loss: Array, sigma: float, rate: float, relation: str) -> Array:
    """The output x that has this loss: the inverse of `log_ratio`. -inf where no output has so low a loss."""
    if relation == "add-or-remove-one":
        with np.errstate(divide="ignore"):
            return 0.5 + sigma**2 * np.log(np.maximum(np.expm1(loss) + rate, 0.0) / rate)
    size = np.abs(loss)  # u = e^(x/s^2) solves  q c u^2 + (1-q)(1 - e^l) u - e^l q c = 0,  c = e^(-1/(2 s^2))
    c, b = rate * np.exp(-0.5 / sigma**2), (1 - rate) * np.expm1(size)
    return np.sign(loss) * sigma**2 * np.log((b + np.sqrt(b**2 + 4 * c**2 * np.exp(size))) / (2 * c))


def renyi(sigma: float, rate: float, relation: str, orders: Array) -> Array:
    """Renyi divergences, the larger of both directions; above order 128 that of the unsampled Gaussian (divergence is quasi-convex)."""
    shift = 1.0 if relation == "add-or-remove-one" else 2.0
    unsampled = orders * shift**2 / (2 * sigma**2)
    if rate == 1.0:
        return unsampled
    sampled = [_quadrature(sigma, rate, relation, a) if a <= _MOST_ORDER else np.inf for a in orders]
    return np.minimum(np.array(sampled) * _UP, unsampled)


def _quadrature(sigma: float, rate: float, relation: str, order: float) -> float:
    """Trapezoids on an analytic integrand, in steps of a sixteenth of its narrowest feature: exact but for float rounding.

    With l the log-ratio, E_Q[e^(a l)] - 1 is integrated as E_Q[e^(a l) - 1 - a (e^l - 1)], whose terms are not negative, so that a small
    divergence keeps its digits.
    """
    step = 2.0 ** math.floor(math.log2(min(sigma, 2 * sigma**2 / math.sqrt(order)) / 16))
    reach = math.ceil((2 * order + 12 * sigma) / step)
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
