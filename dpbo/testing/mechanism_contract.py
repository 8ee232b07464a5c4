"""The contract of every mechanism that adds noise: its law with power to see a wrong one, whole multiples of a public grid, equal supports.

Subclass, give `mechanism` and its law's cdf, and every test below is inherited. Draws use a seeded source, so outcomes are fixed.
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpbo.mechanisms.additive import AdditiveMechanism
from dpbo.mechanisms.mechanism import NoiseLaw
from dpbo.privacy import Sensitivity
from dpbo.testing.entropy import SeededEntropy
from dpbo.testing.statistics import assert_law, assert_not_law

_DRAWS = 20_000
_UNIT = Sensitivity(1.0, 1.0, 1.0)
_QUANTUM = 2.0**-30


class MechanismContract(abc.ABC):
    """Inherit as a pytest class."""

    covers: ClassVar[type[AdditiveMechanism]]
    norm: ClassVar[str]  # "l1" or "l2": the sensitivity that the noise is a multiple of

    @abc.abstractmethod
    def mechanism(self) -> AdditiveMechanism:
        """The mechanism under test."""

    @abc.abstractmethod
    def cdf(self, noise: NDArray[np.float64], scale: float) -> Any:
        """Its law's distribution function, at this scale parameter."""

    def test_law_is_accepted_and_wrong_scales_are_rejected(self) -> None:
        law = self.mechanism().law(_UNIT, [_QUANTUM])
        noise = self._draw(law, value=0, draws=_DRAWS, seed=1) * law.grid[0]
        assert_law(noise, lambda x: self.cdf(x, law.scale[0]))
        for wrong in (0.7, 1.3):
            assert_not_law(wrong * noise, lambda x: self.cdf(x, law.scale[0]))

    def test_noise_is_added_to_the_exact_value(self) -> None:
        law = self.mechanism().law(_UNIT, [_QUANTUM])
        value = 12_345 << 28
        noise = self._draw(law, value, _DRAWS, seed=2) * law.grid[0] - value * _QUANTUM
        assert_law(noise, lambda x: self.cdf(x, law.scale[0]))

    def test_noise_is_at_least_what_the_event_charges_for(self) -> None:
        """In every coordinate the multiple of the sensitivity that the event states, no less and not 0.1 % more."""
        mechanism = self.mechanism()
        sensitivity = Sensitivity(7.0, 3.0, 2.0, (1.0, 0.25))
        law = mechanism.law(sensitivity, [_QUANTUM] * 2)
        for scale, unit in zip(law.scale, sensitivity.scale, strict=True):
            least = mechanism.event().noise_multiplier * getattr(sensitivity, self.norm) * unit
            assert least <= scale <= 1.001 * least

    def test_several_slots_are_charged_as_several(self) -> None:
        one, five = self.mechanism().event(), self.mechanism().event(5)
        assert (one.slots, five.slots) == (1, 5)
        assert five == one.repeated(5)

    def test_values_are_whole_multiples_of_a_grid_that_the_data_do_not_move(self) -> None:
        law = self.mechanism().law(_UNIT, [_QUANTUM])
        for value in (0, 1, -(2**40) + 1):
            assert self._draw(law, value, 100, seed=3).dtype == np.int64

    def test_supports_of_neighbours_are_equal(self) -> None:
        """On a coarse grid (four steps a scale): every cell likely under one neighbour occurs under the other."""
        grid = 0.5
        law = NoiseLaw("coarse", (4 * grid,), (4 * grid,), (grid,))
        seen = [set(self._draw(law, value, 200_000, seed).tolist()) for value, seed in ((0, 4), (round(grid / _QUANTUM), 5))]
        likely = [step for step in range(-40, 41) if 200_000 * self._cell(step, grid) >= 30]
        assert len(likely) > 20
        assert set(likely) <= seen[0] & seen[1]

    def test_low_bits_of_the_output_do_not_depend_on_the_value(self) -> None:
        """Trailing zeros of the released integers have one distribution, whatever the value (precision attacks)."""
        law = self.mechanism().law(_UNIT, [_QUANTUM])
        shares = [
            [np.mean(self._draw(law, value, _DRAWS, seed) % 2**bits == 0) for bits in (1, 2, 4)]
            for value, seed in ((0, 6), (1 << 30, 7), (1, 8))
        ]
        expected = np.array([0.5, 0.25, 0.0625])
        assert np.abs(np.array(shares) - expected).max() < 5.5 * 0.5 / np.sqrt(_DRAWS)

    def test_noise_comes_from_the_entropy_and_from_all_of_it(self) -> None:
        law = self.mechanism().law(_UNIT, [_QUANTUM])
        draws = [self._draw(law, 0, 50, seed).tolist() for seed in (10, 10, 11)]
        assert draws[0] == draws[1]
        assert not set(draws[0]) & set(draws[2])
        source = SeededEntropy(12)
        many = NoiseLaw(law.name, law.scale * 50, law.std * 50, law.grid * 50)
        first, second = (self.mechanism()._sample(np.zeros(50, np.int64), [_QUANTUM] * 50, many, source) for _ in range(2))
        assert not set(first.tolist()) & set(second.tolist())

    def test_each_coordinate_has_its_own_scale(self) -> None:
        law = self.mechanism().law(Sensitivity(7.0, 3.0, 2.0, (1.0, 0.3)), [_QUANTUM] * 2)
        half = _DRAWS // 2
        mixed = NoiseLaw(law.name, law.scale * half, law.std * half, law.grid * half)
        drawn = self.mechanism()._sample(np.zeros(2 * half, np.int64), [_QUANTUM] * 2 * half, mixed, SeededEntropy(14))
        for j in (0, 1):
            assert_law(drawn[j::2] * law.grid[j], lambda x, j=j: self.cdf(x, law.scale[j]))  # type: ignore[misc]

    def test_coordinates_are_independent(self) -> None:
        """Neither the noises nor their sizes are correlated, next door or half a vector apart."""
        noise = self._draw(self.mechanism().law(_UNIT, [_QUANTUM]), 0, _DRAWS, seed=13).astype(float)
        for values in (noise, np.abs(noise)):
            for lag in (1, 2, 3, _DRAWS // 2, _DRAWS // 3):
                assert abs(float(np.corrcoef(values[lag:], values[:-lag])[0, 1])) < 5.5 / np.sqrt(_DRAWS - lag)
        assert abs(float(np.corrcoef(noise, noise[::-1])[0, 1])) < 2 * 5.5 / np.sqrt(_DRAWS)

    def _cell(self, step: int, grid: float) -> float:
        ends = np.array([step - 0.5, step + 0.5]) * grid
        low, high = self.cdf(ends, 4 * grid) if step <= 0 else self.cdf(-ends[::-1], 4 * grid)
        return float(high - low)

    def _draw(self, law: NoiseLaw, value: int, draws: int, seed: int) -> NDArray[np.int64]:
        many = NoiseLaw(law.name, law.scale * draws, law.std * draws, law.grid * draws)
        return self.mechanism()._sample(np.full(draws, value, dtype=np.int64), [_QUANTUM] * draws, many, SeededEntropy(seed))
