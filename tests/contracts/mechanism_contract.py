"""Contracts of mechanisms that add noise, and the assertions that they use.

Subclass `MechanismContract` (or `VectorContract`, where the noise is one vector), give `mechanism`
and the noise's distribution function, and every test below is inherited: the noise follows this
distribution and visibly no other, on vectors of many widths and on answers of every size; no
coordinate shares its noise with another; values are whole multiples of a public grid, and
neighbours have equal supports. Draws use a seeded source, so outcomes are fixed.
"""

import abc
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from scipy.special import logsumexp

from dpbo.accounting import event_costs, renyi
from dpbo.errors import InputError
from dpbo.events import Event
from dpbo.mechanisms.additive import AdditiveMechanism
from dpbo.mechanisms.mechanism import AdditiveDistribution
from dpbo.privacy import Sensitivity
from dpbo.testing.entropy import SeededEntropy
from dpbo.validation import checked

LEVEL = 1e-6
# standard errors that a correlation may be off by, where some 10^5 are looked at
_SIGMAS = 6.0
_DRAWS = 20_000
_VECTOR_DRAWS = 4_000
_FEW_DRAWS = 64
_QUANTUM = 2.0**-30
_VALUES = [
    sign * ((1 << bits) + 12_345) for bits in (0, 28, 41, *range(49, 62)) for sign in (1, -1)
]

_ORDERS = (1.0001, 1.5, 2.0, 4.0, 16.0)

Cdf = Callable[[NDArray[np.float64]], Any]
Samples = NDArray[np.floating[Any]] | torch.Tensor | Sequence[float]


@checked
def assert_law(samples: Samples, cdf: Cdf) -> None:
    """Asserts that samples may come from a distribution, by a Kolmogorov-Smirnov test at level
    1e-6.

    On a seeded source the outcome is fixed; on real entropy a true distribution fails once in a
    million runs. Pair it with `assert_not_law` on distributions of 0.7 and 1.3 times the scale.
    With 20,000 samples a scale 10 % off is rejected practically always (distance 0.024 for the
    normal distribution).

    Args:
        samples: numbers, shape `n`.
        cdf: the distribution function, on arrays.

    Raises:
        AssertionError: names the p-value.
    """
    p = _p_value(samples, cdf)
    assert p > LEVEL, f"{len(samples)} samples reject the law: p = {p:.3g} <= {LEVEL:g}"


@checked
def assert_not_law(samples: Samples, cdf: Cdf) -> None:
    """Asserts that samples cannot come from a distribution: shows that `assert_law` on the same
    samples has power. Arguments as there.
    """
    p = _p_value(samples, cdf)
    assert p <= LEVEL, (
        f"{len(samples)} samples do not reject this law: p = {p:.3g} > {LEVEL:g}; the test has no"
        " power"
    )


def _p_value(samples: Samples, cdf: Cdf) -> float:
    values = np.asarray(
        samples.detach().cpu().double() if isinstance(samples, torch.Tensor) else samples
    )
    if values.ndim != 1 or not len(values) or values.dtype.kind not in "biuf":
        raise InputError("samples", values.shape, "numbers, of one dimension, at least one")
    return float(stats.kstest(values, cdf).pvalue)


def _assert_charged(cdf: Cdf, event: Event) -> None:
    """Asserts that values a sensitivity apart, with noise of this symmetric law at the event's
    scale, are told apart no better than one slot of the event is charged for in each notion of
    privacy; and, so that the hunt has power, half as well in one.
    """
    scale = float(event.noise_multiplier)
    # Ten scales, and 100 steps or more in one sensitivity.
    steps = max(8000, math.ceil(1000.0 * scale))
    # Below 0 the distribution function loses few digits.
    below = np.asarray(cdf(np.linspace(-10.0 * scale, 0.0, steps + 1)))
    cells = np.diff(below)
    cells = np.concatenate([cells, cells[::-1]])
    quantiles = stats.norm.ppf(below)
    quantiles = np.concatenate([quantiles[:-1], -quantiles[::-1]])
    # One sensitivity in steps, rounded down.
    moved = math.floor(steps / (10.0 * scale))
    p, q = cells[moved:], cells[:-moved]
    p, q = p[(p > 0) & (q > 0)], q[(p > 0) & (q > 0)]
    gap = float(np.nanmax(quantiles[moved:] - quantiles[:-moved]))
    found = {
        "pure epsilon": (float(np.abs(np.log(p / q)).max()), event_costs.pure(event)),
        "mu^2": (gap**2, event_costs.mu_squared(event)),
    }
    divergences = [
        float(logsumexp(order * np.log(p) + (1 - order) * np.log(q))) / (order - 1)
        for order in _ORDERS
    ]
    rates = [divergence / order for divergence, order in zip(divergences, _ORDERS, strict=True)]
    found["rho"] = max(rates), event_costs.rho(event)
    for order, divergence in zip(_ORDERS, divergences, strict=True):
        found[f"Renyi divergence of order {order}"] = divergence, renyi.cost(event, order)
    shares = []
    for name, (measured, charged) in found.items():
        if charged is not None:
            shares.append(measured / float(charged))
            assert shares[-1] <= 1 + 1e-6, (
                f"{name} is {measured:.4g}; {float(charged):.4g} is charged"
            )
    assert max(shares) >= 0.5, "charged is more than twice what the law gives away"


class _NoiseContract(abc.ABC):
    covers: ClassVar[type[AdditiveMechanism]]
    norm: ClassVar[str]
    _draws: ClassVar[int] = _DRAWS
    _dimension: ClassVar[int] = 1
    _widths: ClassVar[Sequence[int]] = (*range(1, 34), 64, 99, 100, 128, 257)

    @abc.abstractmethod
    def mechanism(self) -> AdditiveMechanism:
        """The mechanism under test."""

    def _draw(
        self, distribution: AdditiveDistribution, value: Any, draws: int, entropy: SeededEntropy
    ) -> NDArray[np.int64]:
        """Independent draws of a vector around a value, shape `draws x d`."""
        mechanism = self.mechanism()
        d = len(distribution.scale)
        values = np.broadcast_to(np.asarray(value, dtype=np.int64), d)
        return np.array(
            [mechanism._sample(values, [_QUANTUM] * d, distribution, entropy) for _ in range(draws)]
        )

    def _law(self, dimension: int) -> AdditiveDistribution:
        """The law for a vector of which each coordinate may move by 1."""
        return self.mechanism().distribution(self._sensitivity(dimension), [_QUANTUM] * dimension)

    def _sensitivity(self, dimension: int) -> Sensitivity:
        return Sensitivity.of_linf(1.0, dimension)

    def test_noise_is_at_least_what_the_event_charges_for(self) -> None:
        """In every coordinate the multiple of the sensitivity that the event states, no less and
        not 0.1 % more, at every width.
        """
        mechanism = self.mechanism()
        for width in self._widths:
            sensitivity = Sensitivity(
                7.0, 3.0, 2.0, (1.0, 0.25, 0.5)[:width] + (0.3,) * (width - 3)
            )
            distribution = mechanism.distribution(sensitivity, [_QUANTUM] * width)
            for scale, unit in zip(distribution.scale, sensitivity.scale, strict=True):
                least = mechanism.event().noise_multiplier * getattr(sensitivity, self.norm) * unit
                assert least <= scale <= 1.001 * least, f"at {width} coordinates"

    def test_several_slots_are_charged_as_several(self) -> None:
        one = self.mechanism().event()
        five = self.mechanism().event(5)
        assert (one.count, five.count) == (1, 5)
        assert five == one.repeated(5)

    def test_low_bits_of_the_output_do_not_depend_on_the_value(self) -> None:
        """Trailing zeros of the released integers have one distribution, whatever the value
        (precision attacks).
        """
        for value, seed in ((0, 6), (1 << 30, 7), (1, 8)):
            drawn = self._draw(self._law(self._dimension), value, self._draws, SeededEntropy(seed))
            for bits in (1, 2, 4):
                assert np.abs(
                    np.mean(drawn % 2**bits == 0, axis=0) - 0.5**bits
                ).max() < 5.5 * 0.5 / np.sqrt(self._draws)

    def test_noise_comes_from_the_entropy_and_from_all_of_it(self) -> None:
        source = SeededEntropy(10)
        sources = (SeededEntropy(10), source, source, SeededEntropy(11))
        first, same, *others = (
            self._draw(self._law(self._dimension), 0, 50, each).tolist() for each in sources
        )
        assert first == same
        for other in others:
            assert not {*map(str, first)} & {*map(str, other)}


def _less(drawn: NDArray[np.int64], value: int, grid: float) -> NDArray[np.float64]:
    """The noise in what was drawn around a value in quanta, subtracted in whole numbers."""
    steps = round(grid / _QUANTUM)
    noise: NDArray[np.float64] = (drawn - value // steps).astype(np.float64) - value % steps / steps
    return noise * grid


def _repeated(distribution: AdditiveDistribution, draws: int) -> AdditiveDistribution:
    """The law of many independent draws at once."""
    return AdditiveDistribution(
        distribution.name,
        distribution.scale * draws,
        distribution.std * draws,
        distribution.grid * draws,
    )


class MechanismContract(_NoiseContract):
    """The contract of a mechanism whose noise is independent in each coordinate. Inherit as a
    pytest class.

    Attributes:
        covers: the class under test.
        norm: "l1" or "l2", the sensitivity that the noise is a multiple of.
    """

    @abc.abstractmethod
    def cdf(self, noise: NDArray[np.float64], scale: float) -> Any:
        """Distribution function of the noise at this scale parameter."""

    def test_law_is_accepted_and_wrong_scales_are_rejected(self) -> None:
        distribution = self._law(1)
        noise = self._draw(distribution, 0, _DRAWS, SeededEntropy(1)) * distribution.grid[0]
        law = self._cdf_at(distribution.scale[0])
        assert_law(noise, law)
        for wrong in (0.7, 1.3):
            assert_not_law(wrong * noise, law)

    def test_noise_is_added_to_the_exact_value(self) -> None:
        """To every value that a sum can have, of either sign, and all of it."""
        distribution = self._law(1)
        for value in _VALUES:
            drawn = self._draw(distribution, value, 1000, SeededEntropy(2))
            noise = _less(drawn, value, distribution.grid[0])
            assert_law(noise, self._cdf_at(distribution.scale[0]))

    def test_vectors_of_every_width_get_the_noise_of_their_event(self) -> None:
        """Each coordinate's noise has the scale that the event states, and no two coordinates of a
        vector share theirs, or its size.
        """
        mechanism = self.mechanism()
        entropy = SeededEntropy(15)
        for width in self._widths:
            distribution = self._law(width)
            scale = mechanism.event().noise_multiplier * getattr(
                self._sensitivity(width), self.norm
            )
            draws = max(_FEW_DRAWS, 1000 // width)
            drawn = super()._draw(distribution, 0, draws, entropy)
            # uniform, if it is this law
            shares = np.asarray(self.cdf(drawn * np.asarray(distribution.grid), scale))
            assert_law(shares.reshape(-1), stats.uniform.cdf)
            if width > 1:
                for values in (shares, np.abs(shares - 0.5)):
                    found = np.corrcoef(values.T)[np.triu_indices(width, 1)]
                    assert np.abs(found).max() < _SIGMAS / np.sqrt(draws), (
                        f"two of {width} coordinates go together"
                    )

    def test_values_are_whole_multiples_of_a_grid_that_the_data_do_not_move(self) -> None:
        distribution = self._law(1)
        for value in (0, 1, -(2**40) + 1):
            assert self._draw(distribution, value, 100, SeededEntropy(3)).dtype == np.int64

    def test_supports_of_neighbours_are_equal(self) -> None:
        """On a coarse grid (four steps a scale): every cell likely under one neighbour occurs under
        the other.
        """
        grid = 0.5
        distribution = AdditiveDistribution("coarse", (4 * grid,), (4 * grid,), (grid,))
        neighbour = round(grid / _QUANTUM)
        seen = self._draw(distribution, 0, 200_000, SeededEntropy(4)).tolist()
        seen_there = self._draw(distribution, neighbour, 200_000, SeededEntropy(5)).tolist()
        likely = [step for step in range(-40, 41) if 200_000 * self._cell(step, grid) >= 30]
        assert len(likely) > 20
        assert set(likely) <= set(seen) & set(seen_there)

    def test_its_law_tells_neighbours_apart_as_far_as_is_charged(self) -> None:
        event = self.mechanism().event()
        _assert_charged(lambda x: self.cdf(x, event.noise_multiplier), event)

    def test_each_coordinate_has_its_own_scale(self) -> None:
        distribution = self.mechanism().distribution(
            Sensitivity(7.0, 3.0, 2.0, (1.0, 0.3)), [_QUANTUM] * 2
        )
        half = _DRAWS // 2
        mixed = _repeated(distribution, half)
        drawn = self.mechanism()._sample(
            np.zeros(2 * half, np.int64), [_QUANTUM] * 2 * half, mixed, SeededEntropy(14)
        )
        for j in (0, 1):
            noise = drawn[j::2] * distribution.grid[j]
            assert_law(noise, self._cdf_at(distribution.scale[j]))

    def test_coordinates_are_independent(self) -> None:
        """Neither the noises of a long vector nor their sizes are correlated, however far apart;
        nor mirrored.
        """
        distribution = self._law(1)
        noise = _less(
            self._draw(distribution, 0, _DRAWS, SeededEntropy(13)), 0, distribution.grid[0]
        )
        shares = np.asarray(self.cdf(noise, distribution.scale[0]))
        for values in (shares - 0.5, np.abs(shares - 0.5) - 0.25):
            spectrum = np.fft.rfft(values / values.std(), 2 * _DRAWS)
            # the sum of products at each lag
            lagged = np.fft.irfft(np.abs(spectrum) ** 2)[1 : _DRAWS - 100]
            assert np.abs(lagged / np.sqrt(_DRAWS - np.arange(1, _DRAWS - 100))).max() < _SIGMAS
            mirrored = float(np.corrcoef(values, values[::-1])[0, 1])
            assert abs(mirrored) < 2 * _SIGMAS / np.sqrt(_DRAWS)

    def _cdf_at(self, scale: float) -> Cdf:
        return lambda noise: self.cdf(noise, scale)

    def _cell(self, step: int, grid: float) -> float:
        ends = np.array([step - 0.5, step + 0.5]) * grid
        low, high = self.cdf(ends, 4 * grid) if step <= 0 else self.cdf(-ends[::-1], 4 * grid)
        return float(high - low)

    def _draw(
        self, distribution: AdditiveDistribution, value: Any, draws: int, entropy: SeededEntropy
    ) -> NDArray[np.int64]:
        """Independent draws of a number, shape `draws`: the coordinates of one vector."""
        values = np.full(draws, value, dtype=np.int64)
        return self.mechanism()._sample(
            values, [_QUANTUM] * draws, _repeated(distribution, draws), entropy
        )


class VectorContract(_NoiseContract):
    """The contract of a mechanism whose noise is one vector: its radius, a uniform direction, exact
    draws. Inherit as a pytest class.
    """

    norm = "l2"
    _draws = _VECTOR_DRAWS
    _dimension = 2
    _widths = range(1, 13)

    @abc.abstractmethod
    def radius(self, radius: NDArray[np.float64], dimension: int) -> Any:
        """Distribution function of the noise's length, at scale 1."""

    def test_the_radius_has_its_law_and_wrong_scales_are_rejected(self) -> None:
        for dimension in self._widths:
            draws = _VECTOR_DRAWS if dimension in (1, 3, 12) else _VECTOR_DRAWS // 8
            lengths = np.linalg.norm(self._noise(dimension, seed=dimension, draws=draws), axis=1)
            law = functools.partial(self.radius, dimension=dimension)
            assert_law(lengths, law)
            for wrong in (0.7, 1.3) if draws == _VECTOR_DRAWS else ():
                assert_not_law(wrong * lengths, law)

    def test_its_law_tells_neighbours_apart_as_far_as_is_charged(self) -> None:
        """In one dimension, where the noise is its length with either sign."""
        event = self.mechanism().event()

        def cdf(noise: NDArray[np.float64]) -> Any:
            return (1.0 - self.radius(-noise / event.noise_multiplier, 1)) / 2.0

        _assert_charged(cdf, event)

    def test_the_direction_is_uniform(self) -> None:
        """In three dimensions each coordinate of a uniform direction is uniform; and no direction
        goes with a long radius.
        """
        noise = self._noise(3, seed=20)
        lengths = np.linalg.norm(noise, axis=1)
        for j in range(3):
            assert_law(noise[:, j] / lengths, stats.uniform(-1, 2).cdf)
            assert abs(
                float(np.corrcoef(lengths, np.abs(noise[:, j]) / lengths)[0, 1])
            ) < 5.5 / np.sqrt(_VECTOR_DRAWS)
        for i, j in itertools.combinations(range(3), 2):
            assert abs(float(np.corrcoef(noise[:, i], noise[:, j])[0, 1])) < 5.5 * 2 / np.sqrt(
                _VECTOR_DRAWS
            )

    def test_the_stated_standard_deviation_is_that_of_each_coordinate(self) -> None:
        for dimension in (1, 5):
            noise = self._noise(dimension, seed=30 + dimension)
            assert np.allclose(noise.std(axis=0), self.mechanism().std(dimension), rtol=0.15)

    def test_noise_is_added_to_the_exact_value_with_each_coordinate_s_scale(self) -> None:
        distribution = self.mechanism().distribution(
            Sensitivity(9.0, 2.0, 2.0, (1.0, 0.25)), [_QUANTUM] * 2
        )
        for value, other in itertools.pairwise(_VALUES):
            drawn = self._draw(distribution, [value, other], _FEW_DRAWS, SeededEntropy(40))
            first = _less(drawn[:, 0], value, distribution.grid[0]) / distribution.scale[0]
            second = _less(drawn[:, 1], other, distribution.grid[1]) / distribution.scale[1]
            assert_law(np.hypot(first, second), lambda r: self.radius(r, 2))

    def test_what_64_bits_decide_more_bits_decide_alike(self) -> None:
        """The quick path against the slow one on the same words, and words that leave a tail
        open.
        """
        distribution = self._law(3)
        fractions = np.array([0.0, 0.25, 0.75])
        scale = np.array(distribution.scale) / np.array(distribution.grid)
        for seed in range(40):
            quick = self.mechanism().noise(fractions, scale, SeededEntropy(seed))
            assert quick.tolist() == self.slowly(fractions, scale, SeededEntropy(seed)).tolist()
        for word in (0, (1 << 64) - 1, 1 << 63, (1 << 63) - 1):
            words = iter([word.to_bytes(8, "little") * 6])
            source = SeededEntropy(70)
            drawn = self.mechanism().noise(
                fractions,
                scale,
                lambda size, w=words, s=source: next(w, None) or s(size),  # type: ignore[misc]
            )
            assert np.abs(drawn).max() < 2**40

    @abc.abstractmethod
    def slowly(
        self, fractions: NDArray[np.float64], scale: NDArray[np.float64], entropy: SeededEntropy
    ) -> NDArray[np.int64]:
        """The same draw by the exact path alone."""

    def _noise(self, dimension: int, seed: int, draws: int = _VECTOR_DRAWS) -> NDArray[np.float64]:
        """Draws at scale 1."""
        distribution = self._law(dimension)
        return (
            self._draw(distribution, 0, draws, SeededEntropy(seed))
            * np.array(distribution.grid)
            / np.array(distribution.scale)
        )
