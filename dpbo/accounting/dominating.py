"""From a list of events to dominating pairs, and from the runs of a private selection to the pair of its winner.

The profile of one run is read from its composed loss distribution (exactly, where all are Gaussians), at steps of a sixty-fourth of its
standard deviation, in both directions; selected.py bounds the winner's profile; its convex hull (sides.py) is a pair like any other.
"""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpbo.accounting import gdp, pld, profiles, selected
from dpbo.accounting.gdp import root_up, rounded_up
from dpbo.accounting.pairs import GaussianPair, Pair, pair_of
from dpbo.accounting.selected import Base, Side
from dpbo.events import Event, ExponentialEvent, GaussianEvent, SelectionEvent

Array = NDArray[np.float64]
_FINENESS = 64
_FLOOR = 1e-17  # delta at which a profile ends: the rest is mass at infinity
_TARGETS = (1e-2, 1e-4, 1e-6, 1e-9, 1e-12, 1e-17)
_FURTHEST = 500.0
_MOST_POINTS = 4000


@dataclass(frozen=True)
class SelectionPair(Pair):
    """One private selection, by the hull of its profile; `reverse` exchanges P and Q."""

    event: SelectionEvent
    reverse: bool

    def span(self, tail: float) -> tuple[float, float]:
        losses = self.side.losses
        return float(losses[0]), float(losses[-1])

    def masses(self, edges: Array) -> tuple[Array, Array]:
        return np.zeros(len(edges) - 1), np.zeros(len(edges) - 1)

    def beyond(self, loss: float) -> float:
        side = self.side
        return side.infinite + float(side.masses[side.losses > loss].sum())

    def atoms(self) -> list[tuple[float, float]]:
        return list(zip(self.side.losses.tolist(), self.side.masses.tolist(), strict=True))

    def variance(self) -> float:
        losses, masses = self.side.losses, self.side.masses / self.side.masses.sum()
        return float(masses @ (losses - masses @ losses) ** 2)

    @property
    def side(self) -> Side:
        """The winner's law of the loss. Raises ValueError where a run has no profile."""
        side = selection_side(self.event, self.reverse)
        if side is None:
            raise ValueError("a run without a profile")
        return side


def pairs_of(events: tuple[Event, ...], as_gaussian: bool, reverse: bool) -> dict[Pair, int] | None:
    """A dominating pair for each event with its slots, all Gaussians as one; None where an event has none.

    Args:
        as_gaussian: whether the exponential mechanism's choices count as Gaussians, or as randomised responses; both dominate them.
        reverse: the other direction, where directions differ.
    """
    mu_squared, pairs = Fraction(0), collections.Counter[Pair]()
    for event in events:
        if isinstance(event, GaussianEvent) or (as_gaussian and isinstance(event, ExponentialEvent)):
            part = profiles.mu_squared(event)
            if part is None:
                return None
            mu_squared += part
            continue
        pair = _pair(event, reverse)
        if pair is None:
            return None
        pairs[pair] += event.slots
    return {**pairs, **({GaussianPair(root_up(mu_squared)): 1} if mu_squared else {})}


def selection_epsilon(event: SelectionEvent, delta: float) -> float:
    """Smallest epsilon of one selection at this delta > 0 by its profile, the larger of both directions; infinite where it has none."""
    base = base_of(event.run())
    if base is None:
        return math.inf
    sides = [base] if base.forward is base.reverse else [base, base.swapped()]
    return max(_epsilon(event, side, delta) for side in sides)


def selection_delta(event: SelectionEvent, epsilons: Array) -> Array:
    """The winner's delta at each epsilon >= 0, the larger of both directions; 1 where a run has no profile."""
    base = base_of(event.run())
    if base is None:
        return np.ones_like(epsilons)
    sides = [base] if base.forward is base.reverse else [base, base.swapped()]
    return np.max([selected.profile(event.law, side, epsilons, spread=event.spread) for side in sides], axis=0)


@functools.lru_cache(maxsize=128)
def selection_side(event: SelectionEvent, reverse: bool) -> Side | None:
    """The pair that dominates one selection in one direction, from its profile at both signs of epsilon."""
    base = base_of(event.run())
    if base is None:
        return None
    base = base.swapped() if reverse else base
    far = float(base.forward.losses[-1]) + selected.log_ratio(event.law, base) + 2 * math.log(event.spread[1] / event.spread[0])
    far = min(far if math.isfinite(far) else 3 * float(base.forward.losses[-1]), _FURTHEST)
    step = max(float(np.median(np.diff(base.forward.losses))), far / _MOST_POINTS)
    epsilons = step * np.arange(math.ceil(far / step) + 1, dtype=np.float64)
    up = selected.profile(event.law, base, epsilons, spread=event.spread)
    down = selected.profile(event.law, base.swapped(), epsilons, spread=event.spread)
    return _joined(epsilons, up, down)


@functools.lru_cache(maxsize=64)
def base_of(events: tuple[Event, ...]) -> Base | None:
    """The profiles of one run in both directions; None where an event has no pair, or the losses are too large for floats."""
    one, other = _composed(events, False), _composed(events, True)
    if one is None or other is None:
        return None
    (forward, up), (backward, down) = one, other
    if forward == backward:
        side = _joined(up[0], up[1], up[1])
        return None if side is None else Base(side, side)
    grid = max(up[0], down[0], key=lambda epsilons: float(epsilons[-1]))
    up_there, down_there = (np.interp(np.exp(grid), np.exp(eps), deltas) for eps, deltas in (up, down))  # chords in e^epsilon
    there, back = _joined(grid, up_there, down_there), _joined(grid, down_there, up_there)
    return None if there is None or back is None else Base(there, back)


def _joined(epsilons: Array, up: Array, down: Array) -> Side | None:
    """The pair of a profile, from both directions' bounds; None where its losses do not differ: floats cannot tell apart tiny ones, nor
    read those that are all but certain."""
    side = Side.connected(*_both_signs(epsilons, up, down))
    return side if len(side.losses) >= 2 else None


def _pair(event: Event, reverse: bool) -> Pair | None:
    if isinstance(event, SelectionEvent):
        one = event.repeated(1)
        two_sided = reverse and bool(event.relations())
        return SelectionPair(one, two_sided) if selection_side(one, two_sided) is not None else None
    pure = profiles.pure(event.repeated(1))
    return pair_of(event, reverse=reverse, pure=None if pure is None else rounded_up(pure))


def _composed(events: tuple[Event, ...], reverse: bool) -> tuple[dict[Pair, int], tuple[Array, Array]] | None:
    """The pairs, and (epsilons, deltas) from 0 until delta ends."""
    pairs = pairs_of(events, False, reverse)
    if pairs is None:
        return None
    deviation = math.sqrt(sum(pair.variance() * count for pair, count in pairs.items()))
    ends = 2 * sum(pair.span(_FLOOR / 4)[1] * count for pair, count in pairs.items())  # as read, losses are rounded up
    far = min(ends, deviation**2 / 2 + 12 * deviation)
    if far > _FURTHEST or deviation == 0.0:
        return None
    read = _reading(pairs)
    while True:
        step = max(min(deviation / _FINENESS, far / 256), far / _MOST_POINTS)
        epsilons = step * np.arange(math.ceil(far / step) + 1, dtype=np.float64)
        deltas = read(epsilons)
        low = np.flatnonzero(deltas <= _FLOOR)
        if len(low):
            return pairs, (epsilons[: low[0] + 1], deltas[: low[0] + 1])
        if far >= min(ends, _FURTHEST):
            return (pairs, (epsilons, deltas)) if deltas[-1] < 1.0 else None
        far = min(1.5 * far, ends, _FURTHEST)


def _reading(pairs: dict[Pair, int]) -> Callable[[Array], Array]:
    """delta as a function of epsilon: exact for one Gaussian, else from the composed loss distribution."""
    match list(pairs.items()):
        case [(GaussianPair() as gaussian, 1)]:
            return functools.partial(gdp.curve, gaussian.mu)
    return functools.partial(pld.chords, pld.readings(pairs, _TARGETS))


def _both_signs(epsilons: Array, up: Array, down: Array) -> tuple[Array, Array]:
    """The profile at -e from that of the other direction at e: 1 - e^-e + e^-e delta'(e)."""
    below = -np.expm1(-epsilons[:0:-1]) + np.exp(-epsilons[:0:-1]) * down[:0:-1]
    return np.concatenate([-epsilons[:0:-1], epsilons]), np.concatenate([below, up])


def _epsilon(event: SelectionEvent, base: Base, delta: float) -> float:
    """By refining a grid around where the falling profile passes delta; each value is a bound, so the upper end is returned."""
    low, high = 0.0, float(base.forward.losses[-1])
    while selected.profile(event.law, base, np.array([high]), spread=event.spread)[0] > delta:
        high *= 2.0
        if high > _FURTHEST:
            return math.inf
    while high - low > 1e-6 * high:
        grid = np.linspace(low, high, 33)
        below = int(np.flatnonzero(selected.profile(event.law, base, grid, spread=event.spread) <= delta)[0])
        if below == 0:
            return low
        low, high = float(grid[below - 1]), float(grid[below])
    return high
