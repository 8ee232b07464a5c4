"""Dominating pairs: for each event two laws P and Q that are at least as easy to tell apart as any
two neighbouring data sets.

A pair gives the P- and Q-mass of its loss log P/Q between given edges and at its atoms; pld.py
composes pairs.

    Gaussian mu
        N(mu, 1) against N(0, 1): the loss is N(mu^2/2, mu^2) under P, N(-mu^2/2, mu^2) under Q
    Laplace e
        Lap(0, 1/e) against Lap(1, 1/e): half of P at loss e, e^-e half at -e, density between
    Response e
        losses e and -e: randomised response dominates every pure-e pair (Kairouz, Oh & Viswanath
        2015, Theorem 3.4)
    Poisson
        a Gaussian on a sum over a sample, with s = noise_multiplier and the sample rate q, in units
        of one norm bound. With M(c) = (1-q) N(0, s^2) + q N(c, s^2):
        add-or-remove-one    M(1) against N(0, s^2), and the reverse (Zhu, Dong & Wang 2022,
                             Theorem 11)
        replace-one          M(1) against M(-1): the old and the new contribution point away from
                             each other (the pair of dp_accounting; at q = 1 a Gaussian of twice
                             the shift)

In one dimension the log-likelihood ratio of each rises strictly with x, which gives the loss's law
in closed form.
"""

import abc
import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

Array = NDArray[np.float64]
# 1 + e^-40 is 1 in floats
_FAR = 40.0


def log_mixture(x: Array, sigma: float, rate: float, shift: float) -> Array:
    """log of ((1-q) N(0, s^2) + q N(shift, s^2)) / N(0, s^2) at x."""
    grown = np.log(rate) + (2 * shift * x - shift**2) / (2 * sigma**2)
    if rate == 1.0:
        return grown
    return np.logaddexp(np.log1p(-rate), grown)


def log_ratio(x: Array, sigma: float, rate: float, relation: str) -> Array:
    """The privacy loss of a Poisson-sampled Gaussian at output x."""
    return log_mixture(x, sigma, rate, 1.0) - (
        0.0 if relation == "add-or-remove-one" else log_mixture(x, sigma, rate, -1.0)
    )


def output_of(loss: Array, sigma: float, rate: float, relation: str) -> Array:
    """The output x that has this loss: the inverse of `log_ratio`. -inf where no output has so low
    a loss.
    """
    # logarithms of 0: at rate 1, and at a loss not above the least
    with np.errstate(divide="ignore"):
        if relation == "add-or-remove-one":
            # beyond _FAR, e^l is all there is in floats
            near = np.minimum(loss, _FAR)
            far = np.maximum(loss - _FAR, 0.0)
            # q e^((2x-1)/(2 s^2))
            grown = np.where(near < -0.5, np.exp(near) - (1 - rate), np.expm1(near) + rate)
            return 0.5 + sigma**2 * (np.log(np.maximum(grown, 0.0)) + far - np.log(rate))
        # sinh(x/s^2 - l/2) = (1-q)/q e^(1/(2 s^2)) sinh(l/2), whose logarithm does not overflow
        half = np.abs(loss) / 2
        log_sinh = (
            np.log1p(-rate)
            - np.log(rate)
            + 0.5 / sigma**2
            + half
            + np.log(-np.expm1(-2 * half) / 2)
        )
    inverse = np.where(
        log_sinh > _FAR, log_sinh + np.log(2.0), np.arcsinh(np.exp(np.minimum(log_sinh, _FAR)))
    )
    return np.sign(loss) * sigma**2 * (half + inverse)


@dataclass(frozen=True)
class Pair(abc.ABC):
    """Two laws P and Q, by the distribution of their loss log P/Q. All pairs are frozen, so equal
    events share one.
    """

    @abc.abstractmethod
    def span(self, tail: float) -> tuple[float, float]:
        """Losses (low, high) with P-mass of at most `tail` below and above; the ends of the loss
        where it is bounded.
        """

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """P- and Q-mass of the continuous part between neighbouring edges; none where all mass is
        at atoms.
        """
        return np.zeros(len(edges) - 1), np.zeros(len(edges) - 1)

    @abc.abstractmethod
    def beyond(self, loss: float) -> float:
        """P-mass above this loss; 0 above a bounded loss."""

    def atoms(self) -> list[tuple[float, float]]:
        """(loss, P-mass) of each atom."""
        return []

    @abc.abstractmethod
    def variance(self) -> float:
        """Approximate variance of the loss. It sets the grid; every grid is valid."""


@dataclass(frozen=True)
class GaussianPair(Pair):
    """All unsampled Gaussians of a plan as one: mu^2 is the sum of theirs."""

    mu: float

    def span(self, tail: float) -> tuple[float, float]:
        reach = -float(scipy.special.ndtri(tail)) * self.mu
        return self.mu**2 / 2 - reach, self.mu**2 / 2 + reach

    def masses(self, edges: Array) -> tuple[Array, Array]:
        return _normal_mass(edges / self.mu - self.mu / 2), _normal_mass(
            edges / self.mu + self.mu / 2
        )

    def beyond(self, loss: float) -> float:
        return float(scipy.special.ndtr(self.mu / 2 - loss / self.mu))

    def variance(self) -> float:
        return self.mu**2


@dataclass(frozen=True)
class PurePair(Pair):
    """A pair whose loss lies between -epsilon and epsilon."""

    epsilon: float

    def span(self, tail: float) -> tuple[float, float]:
        return -self.epsilon, self.epsilon

    def beyond(self, loss: float) -> float:
        return 0.0


@dataclass(frozen=True)
class ResponsePair(PurePair):
    """Randomised response."""

    def atoms(self) -> list[tuple[float, float]]:
        return [(self.epsilon, 1.0 - self.rare), (-self.epsilon, self.rare)]

    def variance(self) -> float:
        return 4.0 * self.epsilon**2 * self.rare * (1.0 - self.rare)

    @property
    def rare(self) -> float:
        """P-mass of the loss -epsilon."""
        return math.exp(-self.epsilon) / (1.0 + math.exp(-self.epsilon))


@dataclass(frozen=True)
class LaplacePair(PurePair):
    """The Laplace mechanism in one dimension, which dominates its l1 version: its loss is a sum
    over coordinates of shares of e.
    """

    def masses(self, edges: Array) -> tuple[Array, Array]:
        inside = edges.clip(-self.epsilon, self.epsilon)
        below = 0.5 * np.exp((inside - self.epsilon) / 2)
        above = 0.5 * np.exp(-(inside + self.epsilon) / 2)
        return np.diff(below), -np.diff(above)

    def atoms(self) -> list[tuple[float, float]]:
        return [(self.epsilon, 0.5), (-self.epsilon, 0.5 * math.exp(-self.epsilon))]

    def variance(self) -> float:
        return min(self.epsilon, 1.0) ** 2


@dataclass(frozen=True)
class PoissonPair(Pair):
    """A Poisson-sampled Gaussian; `reverse` exchanges P and Q, which matters under
    add-or-remove-one alone.
    """

    sigma: float
    rate: float
    relation: str
    reverse: bool

    def span(self, tail: float) -> tuple[float, float]:
        far = -float(scipy.special.ndtri(tail)) * self.sigma + 1.0
        low, high = self._loss(np.array([-far, far]))
        if self.reverse:
            return (-high, -low)
        return (low, high)

    def masses(self, edges: Array) -> tuple[Array, Array]:
        x = output_of(-edges[::-1] if self.reverse else edges, self.sigma, self.rate, self.relation)
        if self.relation == "replace-one":
            other = self._mixture(x, -1.0)
        else:
            other = _normal_mass(x / self.sigma)
        up = self._mixture(x, 1.0)
        if self.reverse:
            return (other[::-1], up[::-1])
        return (up, other)

    def beyond(self, loss: float) -> float:
        x = float(
            output_of(
                np.array([-loss if self.reverse else loss]), self.sigma, self.rate, self.relation
            )[0]
        )
        if self.reverse:
            return float(scipy.special.ndtr(x / self.sigma))
        return float(
            (1 - self.rate) * scipy.special.ndtr(-x / self.sigma)
            + self.rate * scipy.special.ndtr((1 - x) / self.sigma)
        )

    def variance(self) -> float:
        x = np.linspace(-8 * self.sigma, 8 * self.sigma + 1, 2000)
        grown = 0.0 if self.reverse else log_ratio(x, self.sigma, self.rate, "add-or-remove-one")
        weights = np.exp(grown - x**2 / (2 * self.sigma**2))
        losses = self._loss(x)
        mean = np.average(losses, weights=weights)
        return float(np.average((losses - mean) ** 2, weights=weights))

    def _loss(self, x: Array) -> Array:
        return log_ratio(x, self.sigma, self.rate, self.relation)

    def _mixture(self, x: Array, shift: float) -> Array:
        return (1 - self.rate) * _normal_mass(x / self.sigma) + self.rate * _normal_mass(
            (x - shift) / self.sigma
        )


def _normal_mass(edges: Array) -> Array:
    """Standard normal mass between neighbouring edges, from whichever tail is nearer."""
    below = np.diff(scipy.special.ndtr(edges))
    above = -np.diff(scipy.special.ndtr(-edges))
    return np.where(edges[:-1] > 0, above, below)
