"""The privacy loss distribution of many events, composed by one Fourier transform an event, with
every error on the safe side.

Each loss is split between its two neighbours on a common grid so that both its P- and its Q-mass
are kept: the hockey-stick curve becomes the chord through its values at the grid points, so it only
rises (Doroshenko et al. 2022), and the loss's variance grows by about h^2/6. Masses are tilted by
e^(lambda loss) before the transform, so that the tail where delta is read off carries the relative
precision of float64; what the finite window cuts off (Chernoff), what lies beyond each grid, and
the transform's rounding are added to delta.

With k slots and loss variance V in all, the grid h = sqrt(6 a V / k) inflates the variance by the
share a, and about 800 sqrt(k) points (a = 1e-4) hold 16 standard deviations: k = 1,000 takes 26,000
points, an event one transform of those.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from dpbo.accounting.dominating_pairs import Pair

Array = NDArray[np.float64]
# (losses, deltas)
Reading = tuple[Array, Array]
# what the window cuts off is below e^-35 of the tilted mass
_CUT = 35.0
# share of delta given to what lies beyond the grids
_TAIL = 1e-4
# for larger losses only the other bounds are used
_FURTHEST = 600.0
_MOST_POINTS = 1 << 22
# inflation of the variance, where a profile is read
_FINE = 3e-5
# beyond it float64 cannot represent the tail's mass under the tilt
_LARGEST_EXPONENT = 600.0
_ROUNDING = 2.0**-51
# powers below e^-80 are left out of a transform
_DEAD = 80.0


@dataclass(frozen=True)
class _Discrete:
    """One pair on the grid: P-mass at `first`, `first + 1`, ... times h, and P-mass at an infinite
    loss.
    """

    first: int
    masses: Array
    infinite: float
    count: int


def epsilon(pairs: Mapping[Pair, int], delta: float, *, inflation: float = 1e-4) -> float:
    """Smallest epsilon that these pairs, each so many times, have at this delta > 0: an upper
    bound, or infinite.

    Args:
        inflation: share by which discretisation may inflate the loss's variance; smaller is tighter
            and slower.
    """
    # in floats: losses that are tiny, or all but certain
    if variance(pairs) == 0.0:
        return _furthest(pairs, delta)
    read = _reading(pairs, delta, inflation)
    if read is None:
        return math.inf
    return _crossing(*read, delta)


def variance(pairs: Mapping[Pair, int]) -> float:
    """Approximate variance of the sum of all losses."""
    return sum(pair.variance() * count for pair, count in pairs.items())


def _furthest(pairs: Mapping[Pair, int], delta: float) -> float:
    """The sum of all losses' upper ends, if the total loss exceeds it with probability delta at
    most; else infinite.
    """
    tail = _TAIL * delta / max(sum(pairs.values()), 1)
    ends = [(pair, pair.span(tail)[1], count) for pair, count in pairs.items()]
    if sum(pair.beyond(end) * count for pair, end, count in ends) > delta:
        return math.inf
    return sum(end * count for _, end, count in ends) * (1 + 1e-12)


def readings(pairs: Mapping[Pair, int], targets: Sequence[float]) -> list[Reading]:
    """(losses, deltas) of the composition, one for each target delta and most precise there; each
    is an upper bound everywhere.
    """
    found = (_reading(pairs, target, _FINE) for target in targets)
    return [one for one in found if one is not None]


def _reading(pairs: Mapping[Pair, int], delta: float, inflation: float) -> Reading | None:
    """(losses, deltas) of the composition around delta; None where floats cannot hold them."""
    tilted = _tilted(pairs, delta, inflation)
    if tilted is None:
        return None
    return _curve(tilted, delta)


def chords(read: Sequence[Reading], epsilons: Array) -> Array:
    """Upper bounds on delta at rising epsilons: the least of several readings.

    Each is convex in e^epsilon, so its chords bound it between grid points, and falls, so its last
    value bounds it beyond.
    """
    bound = np.ones_like(epsilons)
    for losses, deltas in read:
        there = np.interp(epsilons, losses, np.arange(len(losses), dtype=np.float64))
        j = np.minimum(there.astype(np.int64), len(losses) - 2)
        share = np.clip(
            np.expm1(epsilons - losses[j]) / np.expm1(losses[j + 1] - losses[j]), 0.0, 1.0
        )
        chord = np.where(epsilons < losses[0], 1.0, deltas[j] + share * (deltas[j + 1] - deltas[j]))
        bound = np.minimum(bound, chord * (1 + 1e-12))
    return bound


def _tilted(pairs: Mapping[Pair, int], delta: float, inflation: float) -> _Tilted | None:
    """The composition, tilted for reading around delta, on the finest grid that fits; None where
    losses are too large for floats.
    """
    total = sum(pairs.values())
    tail = _TAIL * delta / total
    spans = [pair.span(tail) for pair in pairs]
    if np.abs(spans).max() > _FURTHEST:
        return None
    step = max(
        math.sqrt(6 * inflation * variance(pairs) / total),
        max(high - low for low, high in spans) / _MOST_POINTS,
    )
    while True:
        tilted = _Tilted(
            [_discretised(pair, count, step, tail) for pair, count in pairs.items()], step, delta
        )
        if tilted.points <= _MOST_POINTS:
            return tilted
        step *= 2.0


def _discretised(pair: Pair, count: int, step: float, tail: float) -> _Discrete:
    """A pair on the grid: each loss is split between its two neighbours so that its P- and Q-mass
    are kept.
    """
    low, high = pair.span(tail)
    first = math.floor(low / step)
    last = math.ceil(high / step) + 1
    edges = step * np.arange(first, last + 1, dtype=np.float64)
    p, q = pair.masses(edges)
    # the mean of e^(edge - loss) in the cell, times p
    scaled = q * np.exp(edges[:-1])
    right = np.clip((p - scaled) / -math.expm1(-step), 0.0, p)
    masses = np.zeros(len(edges))
    masses[:-1] += p - right
    masses[1:] += right
    for loss, mass in pair.atoms():
        cell = math.floor(loss / step)
        share = -math.expm1(cell * step - loss) / -math.expm1(-step)
        masses[cell - first] += mass * (1 - share)
        masses[cell - first + 1] += mass * share
    infinite = pair.beyond(float(edges[-1]))
    # what lies below the grid moves up to its end
    masses[0] += max(1.0 - infinite - masses.sum(), 0.0)
    return _Discrete(first, masses, infinite, count)


class _Tilted:
    """All pairs, tilted so that losses around delta's tail are typical: log moments, and the window
    of the composition.
    """

    def __init__(self, parts: list[_Discrete], step: float, delta: float) -> None:
        self.parts = parts
        self.step = step
        self.counts = np.array([part.count for part in parts], dtype=np.float64)
        self._starts = np.cumsum([0, *(len(part.masses) for part in parts[:-1])])
        self._losses = step * np.concatenate(
            [part.first + np.arange(len(part.masses)) for part in parts]
        )
        self._masses = np.concatenate([part.masses for part in parts])
        self._ends = {
            1.0: np.maximum.reduceat(self._losses, self._starts),
            -1.0: np.minimum.reduceat(self._losses, self._starts),
        }
        self._lengths = np.diff([*self._starts, len(self._losses)])
        spread = max(math.sqrt(max(self.moments(0.0)[2], 0.0)), step)
        # twice a Gaussian's best
        ends = math.log(1e-3 / spread), math.log(2 * math.sqrt(-2 * math.log(delta)) / spread)

        def chernoff(log_tilt: float) -> float:
            return (self.log_moment(math.exp(log_tilt)) - math.log(delta)) * math.exp(-log_tilt)

        self.tilt = math.exp(
            scipy.optimize.minimize_scalar(
                chernoff, bounds=ends, method="bounded", options={"xatol": 0.05}
            ).x
        )
        self.level, self.mean, variance = self.moments(self.tilt)
        self.deviation = math.sqrt(max(variance, step**2))
        # smaller losses are of no use at this delta
        self.least = self.mean - 8 * self.deviation - 8 / self.tilt
        self.first, self.points = self._window()

    def moments(self, tilt: float) -> tuple[float, float, float]:
        """log M, mean and variance of the composed loss under the tilt."""
        weights, level = self._weights(tilt)
        sums = [
            np.add.reduceat(weights * power, self._starts)
            for power in (1.0, self._losses, self._losses**2)
        ]
        means = sums[1] / sums[0]
        squares = sums[2] / sums[0]
        logs = np.log(sums[0]) + level
        return (
            float(self.counts @ logs),
            float(self.counts @ means),
            float(self.counts @ (squares - means**2)),
        )

    def log_moment(self, tilt: float) -> float:
        """The first of `moments`."""
        weights, level = self._weights(tilt)
        return float(self.counts @ (np.log(np.add.reduceat(weights, self._starts)) + level))

    def _window(self) -> tuple[int, int]:
        """First grid point and number of points. Less than e^-_CUT of the tilted mass lies outside,
        on either side, by Chernoff.
        """
        reach = []
        for sign in (-1.0, 1.0):
            tried = []
            for t in np.array([2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0]) / self.deviation:
                grown = self.log_moment(self.tilt + sign * t) - self.level
                tried.append((grown - sign * t * self.mean + _CUT) / t)
            reach.append(min(tried))
        low = min(self.mean - reach[0], self.least)
        high = self.mean + reach[1]
        first = math.floor(low / self.step)
        return first, scipy.fft.next_fast_len(math.ceil(high / self.step) - first + 2, real=True)

    def spectrum(self) -> NDArray[np.complex128]:
        """The composition's transform, on a circle of the window's length."""
        product = np.ones(self.points // 2 + 1, dtype=np.complex128)
        points = self.points
        weights, _ = self._weights(self.tilt)
        for part, start, length in zip(self.parts, self._starts, self._lengths, strict=True):
            tilted = weights[start : start + length]
            places = (part.first + np.arange(length)) % points
            one = scipy.fft.rfft(np.bincount(places, tilted / tilted.sum(), points))
            if part.count > 1:
                # few frequencies of a smooth composition are
                live = one.real**2 + one.imag**2 > math.exp(-2 * _DEAD / part.count)
                powers = np.zeros_like(one)
                powers[live] = one[live] ** part.count
                one = powers
            product *= one
        return product

    def _weights(self, tilt: float) -> tuple[Array, Array]:
        """Masses times e^(tilt (loss - end)), and tilt * end, with each part's end such that no
        exponent is positive.
        """
        ends = self._ends[math.copysign(1.0, tilt)]
        return (
            self._masses * np.exp(tilt * (self._losses - np.repeat(ends, self._lengths))),
            tilt * ends,
        )


def _curve(tilted: _Tilted, delta: float) -> Reading | None:
    """(losses, deltas) of the composed curve around delta, errors included; it is linear in
    e^epsilon between grid points.

    None where floats cannot represent that part of the tail.
    """
    step = tilted.step
    first = tilted.first
    points = tilted.points
    spectrum = tilted.spectrum()
    losses = step * np.arange(first, first + points, dtype=np.float64)
    wanted = int(np.searchsorted(losses, tilted.least))
    composed = scipy.fft.irfft(spectrum, points)
    start = (first + wanted) % points
    composed = np.concatenate([composed[start:], composed[:start]])[: points - wanted]
    rounding = _ROUNDING * math.log2(points) * float(np.abs(spectrum).mean()) * (
        2 + float(tilted.counts.sum())
    ) + math.exp(-_DEAD)
    losses = losses[wanted:]
    composed = np.maximum(composed, 0.0) + rounding
    exponent = tilted.level - tilted.tilt * float(losses[0])
    if exponent - math.log(delta) > _LARGEST_EXPONENT:
        return None
    scale = math.exp(exponent)
    decay = np.exp(-tilted.tilt * (losses - losses[0]))
    untilted = composed * decay
    # the mass beyond each place
    after = np.concatenate([np.cumsum(untilted[::-1])[::-1][1:], [0.0]])
    # the same with mass k steps beyond discounted by e^(-k step), by T_j = e^-step (T_{j+1} +
    # v_{j+1}), so that nothing overflows
    discounted = scipy.signal.lfilter(
        [0.0, math.exp(-step)], [1.0, -math.exp(-step)], untilted[::-1]
    )[::-1]
    above = np.maximum(after - discounted, 0.0)
    infinite = sum(part.infinite * part.count for part in tilted.parts)
    return losses, scale * (above * (1 + 1e-9) + math.exp(-_CUT) * decay) + infinite


def _crossing(losses: Array, curve: Array, delta: float) -> float:
    """The epsilon at which the curve falls to delta, rounded up."""
    below = np.flatnonzero(curve <= delta)
    if len(below) == 0:
        return math.inf
    j = int(below[0])
    if j == 0 or losses[j] <= 0.0:
        return max(float(losses[j]), 0.0)
    share = (curve[j - 1] - delta) / (curve[j - 1] - curve[j])
    return max(
        float(losses[j - 1] + math.log1p(share * math.expm1(losses[j] - losses[j - 1]))), 0.0
    ) * (1 + 1e-12)
