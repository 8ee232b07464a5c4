"""The contract of every selection mechanism: its exact output law, enumerated, is what it draws and is as private as its event says.

Subclass, give `mechanism` and its law, and every test below is inherited. On small utility vectors all neighbours are enumerated, so the
privacy tests are exact: pure epsilon, and the Renyi divergence that is charged, at several orders.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import chisquare

from dpbo.accounting import profiles
from dpbo.mechanisms.selection import LEVELS, SelectionLaw, SelectionMechanism
from dpbo.privacy import Sensitivity
from dpbo.testing.entropy import SeededEntropy
from dpbo.testing.statistics import LEVEL

_UNIT = Sensitivity(4.0, 2.0, 1.0)
_QUANTUM = 2.0**-20
_ORDERS = (1.0001, 1.5, 2.0, 4.0, 16.0, 64.0)


class SelectionContract(abc.ABC):
    """Inherit as a pytest class."""

    covers: ClassVar[type[SelectionMechanism]]

    @abc.abstractmethod
    def mechanism(self, epsilon: float) -> SelectionMechanism:
        """The mechanism under test."""

    @abc.abstractmethod
    def probabilities(self, distances: NDArray[np.int64], rate: float) -> NDArray[np.float64]:
        """Its exact law, given each candidate's distance below the best in levels."""

    def test_it_draws_its_law(self) -> None:
        law = self._law(1.5)
        utilities = np.array([0, -1, -1, -40, -90, 0, -300]) * law.width
        expected = self.probabilities(-utilities // law.width, float(law.rate))
        seen = np.bincount(self._draw(1.5, utilities, 20_000, seed=1), minlength=len(utilities))
        assert chisquare(seen, 20_000 * expected).pvalue > LEVEL
        wrong = self.probabilities(-utilities // law.width, 0.7 * float(law.rate))
        assert chisquare(seen, 20_000 * wrong).pvalue <= LEVEL, "the test has no power"

    def test_it_is_purely_private_as_its_event_says(self) -> None:
        for epsilon in (0.1, 1.0, 3.0):
            promised = profiles.pure(self.mechanism(epsilon).event())
            assert promised is not None
            assert float(promised) <= epsilon
            largest = max(float(np.abs(np.log(p / q)).max()) for p, q in self._neighbours(epsilon))
            assert largest <= float(promised) * (1 + 1e-9)
            assert largest >= 0.5 * float(promised), "the hunt found no bad pair"

    def test_no_order_diverges_further_than_is_charged(self) -> None:
        for epsilon in (0.1, 1.0, 3.0):
            event = self.mechanism(epsilon).event()
            for order in _ORDERS:
                charged = profiles.renyi(event, order)
                assert charged is not None
                largest = max(_renyi(p, q, order) for p, q in self._neighbours(epsilon))
                assert largest <= float(charged) * (1 + 1e-6)

    def test_the_best_wins_when_nothing_is_near(self) -> None:
        utilities = np.array([-(2**60), 2**60, -(2**61)])
        assert set(self._draw(5.0, utilities, 50, seed=2).tolist()) == {1}

    def test_equal_candidates_are_chosen_alike(self) -> None:
        seen = np.bincount(self._draw(1.0, np.full(10, 12345), 10_000, seed=3), minlength=10)
        assert chisquare(seen).pvalue > LEVEL

    def test_one_candidate_is_chosen(self) -> None:
        assert set(self._draw(0.1, np.array([7]), 5, seed=4).tolist()) == {0}

    def test_neighbours_move_levels_by_no_more_than_the_law_says(self) -> None:
        law, rng = self._law(0.5), np.random.default_rng(5)
        most = int(_UNIT.linf / _QUANTUM)
        utilities = rng.integers(-(2**40), 2**40, size=2000)
        moved = utilities + rng.integers(-most, most + 1, size=2000)
        assert np.abs(utilities // law.width - moved // law.width).max() <= law.moves

    def _neighbours(self, epsilon: float) -> Iterator[tuple[Any, Any]]:
        """Laws before and after every candidate's utility moves by none or all of the sensitivity."""
        law = self._law(epsilon)
        s = law.moves
        for start in ([0, 0, 0], [0, s, s], [0, 2 * s, 5 * s], [0, s // 2, 3 * s], [0, 0, 9 * s]):
            before = self.probabilities(np.array(start), float(law.rate))
            for shift in itertools.product((-s, 0, s), repeat=len(start)):
                after = np.array(start) + np.array(shift)
                yield before, self.probabilities(np.minimum(after - after.min(), LEVELS - 1), float(law.rate))

    def _law(self, epsilon: float) -> SelectionLaw:
        return self.mechanism(epsilon).law(_UNIT, [_QUANTUM] * 3)

    def _draw(self, epsilon: float, utilities: NDArray[np.int64], draws: int, seed: int) -> NDArray[np.int64]:
        mechanism, law, entropy = self.mechanism(epsilon), self._law(epsilon), SeededEntropy(seed)
        return np.array([int(mechanism._sample(utilities, [_QUANTUM], law, entropy)[0]) for _ in range(draws)])


def _renyi(p: NDArray[np.float64], q: NDArray[np.float64], order: float) -> float:
    return float(logsumexp(order * np.log(p) + (1 - order) * np.log(q))) / (order - 1)
