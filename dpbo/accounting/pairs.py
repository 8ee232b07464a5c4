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
from scipy.special import ndtr, ndtri

from dpbo.accounting import poisson
from dpbo.events import Event, GaussianEvent, LaplaceEvent, PoissonGaussianEvent

Array = NDArray[np.float64]


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
        x = poisson.output_of(-edges[::-1] if self.reverse else edges, self.sigma, self.rate, self.relation)
        other = self._mixture(x, -1.0) if self.relation == "replace-one" else _normal_mass(x / self.sigma)
        up = self._mixture(x, 1.0)
        return (other[::-1], up[::-1]) if self.reverse else (up, other)

    def beyond(self, loss: float) -> float:
        x = float(poisson.output_of(np.array([-loss if self.reverse else loss]), self.sigma, self.rate, self.relation)[0])
        if self.reverse:
            return float(ndtr(x / self.sigma))
        return float((1 - self.rate) * ndtr(-x / self.sigma) + self.rate * ndtr((1 - x) / self.sigma))

    def variance(self) -> float:
        x = np.linspace(-8 * self.sigma, 8 * self.sigma + 1, 2000)
        grown = 0.0 if self.reverse else poisson.log_ratio(x, self.sigma, self.rate, "add-or-remove-one")
        weights, losses = np.exp(grown - x**2 / (2 * self.sigma**2)), self._loss(x)
        mean = np.average(losses, weights=weights)
        return float(np.average((losses - mean) ** 2, weights=weights))

    def _loss(self, x: Array) -> Array:
        return poisson.log_ratio(x, self.sigma, self.rate, self.relation)

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
