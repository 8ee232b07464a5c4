"""The contract of a mechanism whose noise is one vector: its radius's law, a uniform direction, exact draws, a public grid.

Subclass, give `mechanism` and the law of the radius, and every test below is inherited. Draws use a seeded source, so outcomes are fixed.
"""

from __future__ import annotations

import abc
import itertools
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpbo.mechanisms.additive import AdditiveMechanism
from dpbo.mechanisms.mechanism import NoiseLaw
from dpbo.privacy import Sensitivity
from dpbo.testing.entropy import SeededEntropy
from dpbo.testing.statistics import assert_law, assert_not_law

_DRAWS = 4_000
_QUANTUM = 2.0**-30


class VectorContract(abc.ABC):
    """Inherit as a pytest class."""

    covers: ClassVar[type[AdditiveMechanism]]

    @abc.abstractmethod
    def mechanism(self) -> AdditiveMechanism:
        """The mechanism under test."""

    @abc.abstractmethod
    def radius(self, radius: NDArray[np.float64], dimension: int) -> Any:
        """Distribution function of the noise's length, at scale 1."""

    def test_the_radius_has_its_law_and_wrong_scales_are_rejected(self) -> None:
        for dimension in (1, 3, 12):
            lengths = np.linalg.norm(self._noise(dimension, seed=dimension), axis=1)
            assert_law(lengths, lambda r, d=dimension: self.radius(r, d))  # type: ignore[misc]
            for wrong in (0.7, 1.3):
                assert_not_law(wrong * lengths, lambda r, d=dimension: self.radius(r, d))  # type: ignore[misc]

    def test_the_direction_is_uniform(self) -> None:
        """In three dimensions each coordinate of a uniform direction is uniform; and no direction goes with a long radius."""
        noise = self._noise(3, seed=20)
        lengths = np.linalg.norm(noise, axis=1)
        for j in range(3):
            assert_law(noise[:, j] / lengths, stats.uniform(-1, 2).cdf)
            assert abs(float(np.corrcoef(lengths, np.abs(noise[:, j]) / lengths)[0, 1])) < 5.5 / np.sqrt(_DRAWS)
        for i, j in itertools.combinations(range(3), 2):
            assert abs(float(np.corrcoef(noise[:, i], noise[:, j])[0, 1])) < 5.5 * 2 / np.sqrt(_DRAWS)

    def test_the_stated_standard_deviation_is_that_of_each_coordinate(self) -> None:
        for dimension in (1, 5):
            noise = self._noise(dimension, seed=30 + dimension)
            assert np.allclose(noise.std(axis=0), self.mechanism().std(dimension), rtol=0.15)

    def test_noise_is_added_to_the_exact_value_with_each_coordinate_s_scale(self) -> None:
        law = self.mechanism().law(Sensitivity(9.0, 2.0, 2.0, (1.0, 0.25)), [_QUANTUM] * 2)
        value = np.array([12_345 << 28, -(7 << 30)])
        drawn = self._draw(value, law, seed=40) * np.array(law.grid) - value * _QUANTUM
        assert_law(np.linalg.norm(drawn / np.array(law.scale), axis=1), lambda r: self.radius(r, 2))

    def test_noise_is_at_least_what_the_event_charges_for(self) -> None:
        mechanism, sensitivity = self.mechanism(), Sensitivity(7.0, 3.0, 2.0, (1.0, 0.25))
        law = mechanism.law(sensitivity, [_QUANTUM] * 2)
        for scale, unit in zip(law.scale, sensitivity.scale, strict=True):
            least = mechanism.event().noise_multiplier * sensitivity.l2 * unit
            assert least <= scale <= 1.001 * least
        assert mechanism.event(5) == mechanism.event().repeated(5)

    def test_low_bits_of_the_output_do_not_depend_on_the_value(self) -> None:
        law = self._law(2)
        for value in (0, 1 << 30, 1):
            drawn = self._draw(np.array([value, value]), law, seed=50 + value % 7)
            for bits in (1, 2, 4):
                assert np.abs(np.mean(drawn % 2**bits == 0, axis=0) - 0.5**bits).max() < 5.5 * 0.5 / np.sqrt(_DRAWS)

    def test_the_noise_comes_from_the_entropy_and_from_all_of_it(self) -> None:
        law = self._law(4)
        draws = [self._draw(np.zeros(4, np.int64), law, seed, count=20).tolist() for seed in (60, 60, 61)]
        assert draws[0] == draws[1]
        assert not {tuple(d) for d in draws[0]} & {tuple(d) for d in draws[2]}

    def test_what_64_bits_decide_more_bits_decide_alike(self) -> None:
        """The quick path against the slow one on the same words, and words that leave a tail open."""
        law = self._law(3)
        fractions, scale = np.array([0.0, 0.25, 0.75]), np.array(law.scale) / np.array(law.grid)
        for seed in range(40):
            quick = self.mechanism().noise(fractions, scale, SeededEntropy(seed))
            assert quick.tolist() == self.slowly(fractions, scale, SeededEntropy(seed)).tolist()
        for word in (0, (1 << 64) - 1, 1 << 63, (1 << 63) - 1):
            words = iter([word.to_bytes(8, "little") * 6])
            source = SeededEntropy(70)
            drawn = self.mechanism().noise(fractions, scale, lambda size, w=words, s=source: next(w, None) or s(size))  # type: ignore[misc]
            assert np.abs(drawn).max() < 2**40

    @abc.abstractmethod
    def slowly(self, fractions: NDArray[np.float64], scale: NDArray[np.float64], entropy: SeededEntropy) -> NDArray[np.int64]:
        """The same draw by the exact path alone."""

    def _law(self, dimension: int) -> NoiseLaw:
        return self.mechanism().law(Sensitivity(float(dimension), 1.0, 1.0, (1.0,) * dimension), [_QUANTUM] * dimension)

    def _noise(self, dimension: int, seed: int) -> NDArray[np.float64]:
        """Draws at scale 1."""
        law = self._law(dimension)
        return self._draw(np.zeros(dimension, np.int64), law, seed) * np.array(law.grid) / np.array(law.scale)

    def _draw(self, value: NDArray[np.int64], law: NoiseLaw, seed: int, count: int = _DRAWS) -> NDArray[np.int64]:
        mechanism, entropy = self.mechanism(), SeededEntropy(seed)
        return np.array([mechanism._sample(value, [_QUANTUM] * len(value), law, entropy) for _ in range(count)])
