"""The Poisson-sampled Gaussian: the pair of output laws that dominates it, under both relations, and its Renyi divergence.

With s = noise_multiplier and the sample rate q, in units of one unit's norm bound, everything but the one unit fixed:
    add-or-remove-one:  (1-q) N(0, s^2) + q N(1, s^2)  against  N(0, s^2), and the reverse (Zhu, Dong & Wang 2022, Theorem 11)
    replace-one:        (1-q) N(0, s^2) + q N(1, s^2)  against  (1-q) N(0, s^2) + q N(-1, s^2): the old and the new contribution
                        point away from each other (dp_accounting's pair; unsampled, q = 1, it is a Gaussian of twice the shift).
In one dimension each log-likelihood ratio rises strictly with x, which gives the loss's law in closed form.
"""

from __future__ import annotations

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
    """Trapezoids on an analytic integrand, in steps of a sixteenth of its narrowest feature: exact but for float rounding."""
    step = min(sigma, 2 * sigma**2 / np.sqrt(order)) / 16
    reach = 2 * order + 12 * sigma
    x = np.arange(-reach, reach + step, step)
    normal = -(x**2) / (2 * sigma**2) - np.log(sigma * np.sqrt(2 * np.pi))
    up = normal + _log_mixture(x, sigma, rate, 1.0)
    other = normal if relation == "add-or-remove-one" else normal + _log_mixture(x, sigma, rate, -1.0)
    both = [logsumexp(order * p + (1 - order) * q) for p, q in ((up, other), (other, up))]
    return float(max(max(both) + np.log(step), 0.0) / (order - 1) + 1e-15 * (1 + 1 / (order - 1)))


def _log_mixture(x: Array, sigma: float, rate: float, shift: float) -> Array:
    """log of ((1-q) N(0, s^2) + q N(shift, s^2)) / N(0, s^2) at x."""
    grown = np.log(rate) + (2 * shift * x - shift**2) / (2 * sigma**2)
    return grown if rate == 1.0 else np.logaddexp(np.log1p(-rate), grown)
