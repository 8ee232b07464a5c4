"""The contract of choice mechanisms: draws follow the exact output distribution, which is as
private as the event says.

Subclass `ChoiceContract`, give `mechanism` and `probabilities`, and every test below is
inherited. The distribution is compared with many draws, for close and distant utilities, few
candidates and hundreds; up to a million are tried. On small utility vectors, with every candidate
moved by none or all of the sensitivity, its privacy loss and its Renyi divergence are computed
exactly and compared with what is charged.
"""

import abc
import itertools
import math
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import chisquare

from dpbo.accounting import event_costs, renyi
from dpbo.mechanisms.choice import LEVELS, ChoiceDistribution, ChoiceMechanism
from dpbo.privacy import Sensitivity
from dpbo.testing.entropy import SeededEntropy
from tests.contracts.mechanism_contract import LEVEL

# numbers of candidates
_MANY = (101, 1001, 10_007, 100_003, 1_000_003)
_QUANTUM = 2.0**-20
_ORDERS = (1.0001, 1.5, 2.0, 4.0, 16.0, 64.0)


class ChoiceContract(abc.ABC):
    """Tests of a mechanism that publishes the index of a chosen candidate.

    Inherit from it to get tests for your own choice mechanism; define `covers`, `mechanism` and
    `probabilities`::

        class TestExponential(ChoiceContract):
            covers = ExponentialMechanism

            def mechanism(self, epsilon):
                return ExponentialMechanism.of(epsilon)

            def probabilities(self, distances, rate):
                weights = np.exp(-rate * distances)
                return weights / weights.sum()
    """

    covers: ClassVar[type[ChoiceMechanism]]

    @abc.abstractmethod
    def mechanism(self, epsilon: float) -> ChoiceMechanism:
        """The mechanism under test, at this epsilon."""

    @abc.abstractmethod
    def probabilities(self, distances: NDArray[np.int64], rate: float) -> NDArray[np.float64]:
        """The exact probability that the mechanism chooses each candidate, shape `n`.

        A level is the whole number `utility // width` with the law's `width`: the mechanism
        compares candidates by their levels alone.

        Args:
            distances: how many levels each candidate lies below the best one, shape `n`; 0 for the
                best.
            rate: the law's `rate`, the decay of a candidate's chance per level.
        """

    def test_it_draws_its_law(self) -> None:
        distribution = self._law(1.5)
        utilities = np.array([0, -1, -1, -40, -90, 0, -300]) * distribution.width
        expected = self.probabilities(-utilities // distribution.width, float(distribution.rate))
        seen = np.bincount(self._draw(1.5, utilities, 20_000, seed=1), minlength=len(utilities))
        assert chisquare(seen, 20_000 * expected).pvalue > LEVEL
        wrong = self.probabilities(-utilities // distribution.width, 0.7 * float(distribution.rate))
        assert chisquare(seen, 20_000 * wrong).pvalue <= LEVEL, "the test has no power"

    def test_it_is_purely_private_as_its_event_says(self) -> None:
        for epsilon in (0.1, 1.0, 3.0):
            promised = event_costs.pure(self.mechanism(epsilon).event())
            assert promised is not None
            assert float(promised) <= epsilon
            largest = max(float(np.abs(np.log(p / q)).max()) for p, q in self._neighbours(epsilon))
            assert largest <= float(promised) * (1 + 1e-9)
            assert largest >= 0.5 * float(promised), "the hunt found no bad pair"

    def test_no_order_diverges_further_than_is_charged(self) -> None:
        for epsilon in (0.1, 1.0, 3.0):
            event = self.mechanism(epsilon).event()
            for order in _ORDERS:
                charged = renyi.cost(event, order)
                assert charged is not None
                largest = max(
                    float(logsumexp(order * np.log(p) + (1 - order) * np.log(q))) / (order - 1)
                    for p, q in self._neighbours(epsilon)
                )
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
        rng = np.random.default_rng(5)
        for linf, quantum, count in itertools.product(
            (0.3, 1.0, 10.0), (2.0**-20, 2.0**-31), (1, 2, 3, 4, 9, 1000)
        ):
            distribution = self.mechanism(0.5).distribution(
                Sensitivity.of_linf(linf, count), [quantum] * count
            )
            most = math.floor(linf / quantum)
            utilities = rng.integers(-(2**45), 2**45, size=4_000)
            moved = utilities + rng.choice([-most, most], size=4_000)
            assert (
                np.abs(utilities // distribution.width - moved // distribution.width).max()
                <= distribution.moves
            )
            assert distribution.width * distribution.moves <= 1.05 * most + distribution.width, (
                "coarser than it need be"
            )

    def test_hundreds_of_candidates_near_and_far(self) -> None:
        """Levels thousands apart at a small epsilon stay within reach, as pure privacy demands."""
        distribution = self._law(0.05)
        rng = np.random.default_rng(6)
        distances = np.concatenate(
            [[0], rng.integers(0, 3000, size=199), rng.integers(3000, 20_000, size=100)]
        )
        expected = self.probabilities(distances, float(distribution.rate))
        seen = np.bincount(
            self._draw(0.05, -distances * distribution.width, 20_000, seed=7),
            minlength=len(distances),
        )
        order = np.argsort(-expected)
        bins = np.searchsorted(np.cumsum(expected[order]), np.linspace(0, 1, 30)[1:-1])

        def grouped(counts: NDArray[Any]) -> NDArray[Any]:
            return np.array([part.sum() for part in np.split(counts[order], bins)])

        likely = grouped(20_000 * expected)
        assert chisquare(grouped(seen), likely * 20_000 / likely.sum()).pvalue > LEVEL

    def test_among_many_near_equal_candidates_the_best_is_seldom_chosen(
        self,
    ) -> None:
        """One neighbour makes all N equal, where each has probability 1/N. So the best one, in any
        place, has at most e^epsilon / N.
        """
        for count in _MANY:
            for place in (0, count // 2, count - 1):
                utilities = np.zeros(count, dtype=np.int64)
                utilities[place] = self._law(1.0).width
                chosen = self._draw(1.0, utilities, 8, seed=9).tolist()
                assert chosen.count(place) <= 3, f"the best of {count} candidates"
                assert len(set(chosen)) > 3, f"few of {count} candidates are ever chosen"
                utilities[place] = 2**60
                assert set(self._draw(1.0, utilities, 2, seed=10).tolist()) == {place}, (
                    f"not the best by far of {count} candidates"
                )

    def test_extreme_words_are_decided(self) -> None:
        """The highest and lowest words leave a tail open: more bits decide, and nothing fails after
        the charge.
        """
        counts = np.zeros(LEVELS, dtype=np.int64)
        counts[[0, 3, LEVELS - 1]] = [1, 10**12, 5]
        for first in (0, 1, (1 << 64) - 1, (1 << 64) - (1 << 10), 1 << 63):
            source = SeededEntropy(8)
            words = iter([first.to_bytes(8, "little") * 3])

            def entropy(
                size: int, words: Iterator[bytes] = words, source: SeededEntropy = source
            ) -> bytes:
                if size <= 24:
                    return next(words, source(24))[:size]
                return source(size)

            chosen = self.mechanism(1.0).choose(counts, self._law(1.0).rate, entropy)
            assert counts[chosen] > 0

    def _neighbours(self, epsilon: float) -> Iterator[tuple[Any, Any]]:
        """Laws before and after every candidate's utility moves by none or all of the
        sensitivity.
        """
        distribution = self._law(epsilon)
        s = distribution.moves
        for start in ([0, 0, 0], [0, s, s], [0, 2 * s, 5 * s], [0, s // 2, 3 * s], [0, 0, 9 * s]):
            before = self.probabilities(np.array(start), float(distribution.rate))
            for shift in itertools.product((-s, 0, s), repeat=len(start)):
                after = np.array(start) + np.array(shift)
                yield (
                    before,
                    self.probabilities(
                        np.minimum(after - after.min(), LEVELS - 1), float(distribution.rate)
                    ),
                )

    def _law(self, epsilon: float) -> ChoiceDistribution:
        return self.mechanism(epsilon).distribution(Sensitivity.of_linf(1.0, 3), [_QUANTUM] * 3)

    def _draw(
        self, epsilon: float, utilities: NDArray[np.int64], draws: int, seed: int
    ) -> NDArray[np.int64]:
        mechanism = self.mechanism(epsilon)
        distribution = self._law(epsilon)
        entropy = SeededEntropy(seed)
        return np.array(
            [
                int(mechanism._sample(utilities, [_QUANTUM], distribution, entropy)[0])
                for _ in range(draws)
            ]
        )
