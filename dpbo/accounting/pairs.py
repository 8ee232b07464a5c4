"""Dominating pairs: for each event two laws P and Q such that no neighbours are easier to tell apart, as the law of the loss log P/Q.

A pair gives the P- and the Q-mass of the loss between given edges and at its atoms; pld.py composes them.
    Gaussian mu        N(mu, 1) against N(0, 1): the loss is N(mu^2/2, mu^2) under P, N(-mu^2/2, mu^2) under Q
    Laplace e          Lap(0, 1/e) against Lap(1, 1/e): half of P at loss e, e^-e half at -e, density between
    Response e         every pure-e pair is dominated by randomised response: losses e and -e (Kairouz, Oh & Viswanath 2015, Theorem 3.4)
    Poisson            poisson.py; under add-or-remove-one in both directions, each a pair of its own
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtr, ndtri

from dpbo.events import Event, GaussianEvent, LaplaceEvent, PoissonGaussianEvent

# ========== MERGED The Poisson-sampled Gaussian: the pair of output laws that dominates it, under both relations, and its Renyi divergence.
#
# With s = noise_multiplier and the sample rate q, in units of one unit's norm bound, everything but the one unit fixed:
#     add-or-remove-one:  (1-q) N(0, s^2) + q N(1, s^2)  against  N(0, s^2), and the reverse (Zhu, Dong & Wang 2022, Theorem 11)
#     replace-one:        (1-q) N(0, s^2) + q N(1, s^2)  against  (1-q) N(0, s^2) + q N(-1, s^2): the old and the new contribution
#                         point away from each other (dp_accounting's pair; unsampled, q = 1, it is a Gaussian of twice the shift).
# In one dimension each log-likelihood ratio rises strictly with x, which gives the loss's law in closed form.
#

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


@dataclass(frozen=True)
class Pair(abc.ABC):
    """Two laws, by the law of their log-likelihood ratio. All are frozen, so equal events share one pair."""

    @abc.abstractmethod
    def span(self, tail: float) -> tuple[float, float]:
        """Losses between which all but `tail` of P lies on either side; exactly all where the loss is bounded."""

    @abc.abstractmethod
    def masses(self, edges: Array) -> tuple[Array, Array]:
        """P- and Q-mass of the continuous part between neighbouring edges."""

    @abc.abstractmethod
    def beyond(self, loss: float) -> float:
        """P-mass above this loss; 0 above a bounded loss."""

    def atoms(self) -> list[tuple[float, float]]:
        """(loss, P-mass) of each atom."""
        return []

    @abc.abstractmethod
    def variance(self) -> float:
        """Of the loss, roughly: it sets the grid, and any grid is valid."""


@dataclass(frozen=True)
class GaussianPair(Pair):
    """All unsampled Gaussians of a plan together: their mu add in squares."""

    mu: float

    def span(self, tail: float) -> tuple[float, float]:
        reach = -float(ndtri(tail)) * self.mu
        return self.mu**2 / 2 - reach, self.mu**2 / 2 + reach

    def masses(self, edges: Array) -> tuple[Array, Array]:
        return _normal_mass(edges / self.mu - self.mu / 2), _normal_mass(edges / self.mu + self.mu / 2)

    def beyond(self, loss: float) -> float:
        return float(ndtr(self.mu / 2 - loss / self.mu))

    def variance(self) -> float:
        return self.mu**2


@dataclass(frozen=True)
class ResponsePair(Pair):
    """Randomised response."""

    epsilon: float

    def span(self, tail: float) -> tuple[float, float]:
        return -self.epsilon, self.epsilon

    def masses(self, edges: Array) -> tuple[Array, Array]:
        return np.zeros(len(edges) - 1), np.zeros(len(edges) - 1)

    def beyond(self, loss: float) -> float:
        return 0.0

    def atoms(self) -> list[tuple[float, float]]:
        return [(self.epsilon, 1.0 - self.rare), (-self.epsilon, self.rare)]

    def variance(self) -> float:
        return 4.0 * self.epsilon**2 * self.rare * (1.0 - self.rare)

    @property
    def rare(self) -> float:
        """P-mass of the loss -epsilon."""
        return math.exp(-self.epsilon) / (1.0 + math.exp(-self.epsilon))


@dataclass(frozen=True)
class LaplacePair(Pair):
    """The Laplace mechanism in one dimension, which dominates its l1 version: its loss is a sum over coordinates of shares of e."""

    epsilon: float

    def span(self, tail: float) -> tuple[float, float]:
        return -self.epsilon, self.epsilon

    def masses(self, edges: Array) -> tuple[Array, Array]:
        inside = edges.clip(-self.epsilon, self.epsilon)
        below, above = 0.5 * np.exp((inside - self.epsilon) / 2), 0.5 * np.exp(-(inside + self.epsilon) / 2)
        return np.diff(below), -np.diff(above)

    def beyond(self, loss: float) -> float:
        return 0.0

    def atoms(self) -> list[tuple[float, float]]:
        return [(self.epsilon, 0.5), (-self.epsilon, 0.5 * math.exp(-self.epsilon))]

    def variance(self) -> float:
        return min(self.epsilon, 1.0) ** 2


@dataclass(frozen=True)
class PoissonPair(Pair):
    """A Poisson-sampled Gaussian; `reverse` exchanges P and Q, which matters under add-or-remove-one alone."""

    sigma: float
    rate: float
    relation: str
    reverse: bool

    def span(self, tail: float) -> tuple[float, float]:
        far = -float(ndtri(tail)) * self.sigma + 1.0
        low, high = self._loss(np.array([-far, far]))
        return (-high, -low) if self.reverse else (low, high)

    def masses(self, edges: Array) -> tuple[Array, Array]:
        x = output_of(-edges[::-1] if self.reverse else edges, self.sigma, self.rate, self.relation)
        other = self._mixture(x, -1.0) if self.relation == "replace-one" else _normal_mass(x / self.sigma)
        up = self._mixture(x, 1.0)
        return (other[::-1], up[::-1]) if self.reverse else (up, other)

    def beyond(self, loss: float) -> float:
        x = float(output_of(np.array([-loss if self.reverse else loss]), self.sigma, self.rate, self.relation)[0])
        if self.reverse:
            return float(ndtr(x / self.sigma))
        return float((1 - self.rate) * ndtr(-x / self.sigma) + self.rate * ndtr((1 - x) / self.sigma))

    def variance(self) -> float:
        x = np.linspace(-8 * self.sigma, 8 * self.sigma + 1, 2000)
        grown = 0.0 if self.reverse else log_ratio(x, self.sigma, self.rate, "add-or-remove-one")
        weights, losses = np.exp(grown - x**2 / (2 * self.sigma**2)), self._loss(x)
        mean = np.average(losses, weights=weights)
        return float(np.average((losses - mean) ** 2, weights=weights))

    def _loss(self, x: Array) -> Array:
        return log_ratio(x, self.sigma, self.rate, self.relation)

    def _mixture(self, x: Array, shift: float) -> Array:
        return (1 - self.rate) * _normal_mass(x / self.sigma) + self.rate * _normal_mass((x - shift) / self.sigma)


def pair_of(event: Event, *, reverse: bool, pure: float | None) -> Pair | None:
    """The pair that dominates one slot, or None where there is none. `pure`: the slot's pure epsilon, if it has one."""
    match event:
        case GaussianEvent():
            return GaussianPair(1.0 / event.noise_multiplier)
        case LaplaceEvent():
            return LaplacePair(1.0 / event.noise_multiplier)
        case PoissonGaussianEvent():
            two_sided = event.relation == "add-or-remove-one"
            return PoissonPair(event.noise_multiplier, event.rate, event.relation, reverse and two_sided)
    return None if pure is None else ResponsePair(pure)


def _normal_mass(edges: Array) -> Array:
    """Standard normal mass between neighbouring edges, from whichever tail is nearer."""
    below, above = np.diff(ndtr(edges)), -np.diff(ndtr(-edges))
    return np.where(edges[:-1] > 0, above, below)
