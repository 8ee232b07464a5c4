"""From events to dominating pairs; the winner of a private selection gets a pair from the profile
of its runs, and one of several candidates a pair from the largest of their profiles.

The profile of one run (delta as a function of epsilon) is read from its composed loss distribution,
exactly where all its events are Gaussians, in both directions and at steps of a sixty-fourth of its
standard deviation. selection_bounds.py bounds the winner's profile, and the convex hull of that
bound is a pair like any other.
"""

import collections
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpbo.accounting import event_costs, gdp, pld, selection_bounds
from dpbo.accounting.dominating_pairs import (
    GaussianPair,
    LaplacePair,
    Pair,
    PoissonPair,
    ResponsePair,
)
from dpbo.accounting.gdp import root_up, rounded_up
from dpbo.accounting.pld import Reading
from dpbo.accounting.roots import least_scale
from dpbo.accounting.selection_bounds import Profile, RunProfiles
from dpbo.events import (
    Event,
    ExponentialEvent,
    GaussianEvent,
    LaplaceEvent,
    OneOfEvent,
    PoissonGaussianEvent,
    SelectionEvent,
)

Array = NDArray[np.float64]
Events = tuple[Event, ...]
_FINENESS = 64
# delta at which a profile ends; the rest is mass at infinity
_FLOOR = 1e-17
_TARGETS = (1e-2, 1e-4, 1e-6, 1e-9, 1e-12, 1e-17)
_FURTHEST = 500.0
_MOST_POINTS = 4000


@dataclass(frozen=True)
class ProfilePair(Pair):
    """The winner of one private selection, or one of several candidates, by the convex hull of its
    profile; `reverse` exchanges P and Q.
    """

    event: SelectionEvent | OneOfEvent
    reverse: bool

    def span(self, tail: float) -> tuple[float, float]:
        losses = self.profile.losses
        return float(losses[0]), float(losses[-1])

    def beyond(self, loss: float) -> float:
        profile = self.profile
        return profile.infinite + float(profile.masses[profile.losses > loss].sum())

    def atoms(self) -> list[tuple[float, float]]:
        return list(zip(self.profile.losses.tolist(), self.profile.masses.tolist(), strict=True))

    def variance(self) -> float:
        losses = self.profile.losses
        masses = self.profile.masses / self.profile.masses.sum()
        return float(masses @ (losses - masses @ losses) ** 2)

    @property
    def profile(self) -> Profile:
        """The event's profile. Raises ValueError where a run or candidate has none."""
        profile = profile_of(self.event, self.reverse)
        if profile is None:
            raise ValueError("a run without a profile")
        return profile


def pairs_of(events: Events, as_gaussian: bool, reverse: bool) -> dict[Pair, int] | None:
    """A dominating pair for each event with its slots, all Gaussians as one; None where an event
    has none.

    Args:
        as_gaussian: whether the exponential mechanism counts as a Gaussian instead of a randomised
            response; both dominate it.
        reverse: the other direction, where directions differ.
    """
    mu_squared = Fraction(0)
    pairs = collections.Counter[Pair]()
    for event in events:
        if isinstance(event, GaussianEvent) or (
            as_gaussian and isinstance(event, ExponentialEvent)
        ):
            part = event_costs.mu_squared(event)
            if part is None:
                return None
            mu_squared += part
            continue
        pair = _pair(event, reverse)
        if pair is None:
            return None
        pairs[pair] += event.count
    return {**pairs, **({GaussianPair(root_up(mu_squared)): 1} if mu_squared else {})}


# A refined composition asks once for each of its grids.
@functools.lru_cache(maxsize=128)
def selection_epsilon(event: SelectionEvent, delta: float) -> float:
    """Smallest epsilon of one selection at this delta > 0 by its profile, to one part in a million
    and rounded up.

    The larger of both directions; infinite where a run has no profile.
    """
    directions = _directions(event)

    def holds(epsilon: float) -> bool:
        at = np.array([epsilon])
        return all(
            selection_bounds.winner_profile(event.run_count, runs, at, spread=event.spread)[0]
            <= delta
            for runs in directions
        )

    if not directions:
        return math.inf
    if holds(0.0):
        return 0.0
    return least_scale(holds, precision=1e-6, most=_FURTHEST)


def _directions(event: SelectionEvent) -> list[RunProfiles]:
    """The profiles of one run in each direction that differs; none where it has no profile."""
    found = run_profiles(event.run())
    if found is None:
        return []
    if found.forward is found.reverse:
        return [found]
    return [found, found.swapped()]


@functools.lru_cache(maxsize=128)
def selection_profile(event: SelectionEvent, reverse: bool) -> Profile | None:
    """The winner's profile in one direction, from bounds at both signs of epsilon; None where a run
    has no profile.
    """
    bounds = _winner_bounds(event)
    if not bounds:
        return None
    here, there = bounds[0], bounds[-1]
    if reverse:
        here, there = there, here
    epsilons, up = here
    return _joined(epsilons, up, _at(epsilons, there))


# Both directions are asked for, one after the other.
@functools.lru_cache(maxsize=128)
def _winner_bounds(event: SelectionEvent) -> list[Reading]:
    """(epsilons, deltas) of the winner in each direction that differs, from epsilon 0 on."""
    run_count = event.run_count
    spread = event.spread
    found = []
    for runs in _directions(event):
        furthest = float(runs.forward.losses[-1])
        far = furthest + selection_bounds.log_ratio(run_count, runs)
        far += 2 * math.log(spread[1] / spread[0])
        far = min(far if math.isfinite(far) else 3 * furthest, _FURTHEST)
        step = max(float(np.median(np.diff(runs.forward.losses))), far / _MOST_POINTS)
        epsilons = step * np.arange(math.ceil(far / step) + 1, dtype=np.float64)
        deltas = selection_bounds.winner_profile(run_count, runs, epsilons, spread=spread)
        found.append((epsilons, deltas))
    return found


@functools.lru_cache(maxsize=64)
def run_profiles(events: Events) -> RunProfiles | None:
    """The profiles of one run in both directions; None where an event has no pair, or the losses
    are too large for floats.
    """
    read = _both_directions(events)
    if read is None:
        return None
    grid, up, down = read
    there = _joined(grid, up, down)
    back = there if up is down else _joined(grid, down, up)
    if there is None or back is None:
        return None
    return RunProfiles(there, back)


def profile_of(event: SelectionEvent | OneOfEvent, reverse: bool) -> Profile | None:
    """The profile of one slot in one direction; None where a run or candidate has none."""
    if isinstance(event, SelectionEvent):
        return selection_profile(event, reverse)
    found = run_profiles((event,))
    if found is None:
        return None
    return found.reverse if reverse else found.forward


def _both_directions(events: Events) -> tuple[Array, Array, Array] | None:
    """(epsilons, deltas, deltas of the other direction) of these events together, on one grid; both
    deltas are the same array where directions do not differ. The largest over candidates.
    """
    match events:
        case (OneOfEvent(count=1) as event,):
            read = list(map(_both_directions, event.alternatives()))
            found = [each for each in read if each is not None]
            if len(found) < len(read):
                return None
            grid, ups = _on_one_grid([(epsilons, up) for epsilons, up, _ in found])
            _, downs = _on_one_grid([(epsilons, down) for epsilons, _, down in found])
            most = np.maximum.reduce(ups)
            if all(up is down for _, up, down in found):
                return grid, most, most
            return grid, most, np.maximum.reduce(downs)
    one = _composed(events, False)
    other = _composed(events, True)
    if one is None or other is None:
        return None
    (forward, here), (backward, there) = one, other
    if forward == backward:
        return here[0], here[1], here[1]
    grid, (up, down) = _on_one_grid([here, there])
    return grid, up, down


def _on_one_grid(read: Sequence[Reading]) -> tuple[Array, list[Array]]:
    """The grid that reaches furthest, and upper bounds on each curve there."""
    grid = max((epsilons for epsilons, _ in read), key=lambda epsilons: float(epsilons[-1]))
    return grid, [_at(grid, each) for each in read]


def _at(grid: Array, read: Reading) -> Array:
    """Upper bounds on a curve at rising epsilons, by chords in e^epsilon."""
    epsilons, deltas = read
    return np.interp(np.exp(grid), np.exp(epsilons), deltas)


def _joined(epsilons: Array, up: Array, down: Array) -> Profile | None:
    """The profile through bounds at epsilon >= 0 in both directions. delta at -e follows from that
    of the other direction at e: 1 - e^-e + e^-e delta'(e). None where all losses are equal in
    floats, because they are tiny or all but certain.
    """
    negative = -epsilons[:0:-1]
    below = -np.expm1(negative) + np.exp(negative) * down[:0:-1]
    profile = Profile.connected(np.concatenate([negative, epsilons]), np.concatenate([below, up]))
    if len(profile.losses) >= 2:
        return profile
    return None


def _pair(event: Event, reverse: bool) -> Pair | None:
    """The pair that dominates one slot."""
    match event:
        case SelectionEvent() | OneOfEvent():
            one = event.repeated(1)
            turned = reverse and bool(event.relations())
            if profile_of(one, turned) is not None:
                return ProfilePair(one, turned)
            return None
        case LaplaceEvent():
            return LaplacePair(1.0 / event.noise_multiplier)
        case PoissonGaussianEvent():
            turned = reverse and event.relation == "add-or-remove-one"
            return PoissonPair(event.noise_multiplier, event.rate, event.relation, turned)
    pure = event_costs.pure(event.repeated(1))
    if pure is None:
        return None
    return ResponsePair(rounded_up(pure))


def _composed(events: Events, reverse: bool) -> tuple[dict[Pair, int], Reading] | None:
    """One run's pairs, and its profile as (epsilons, deltas), from epsilon 0 until delta ends."""
    pairs = pairs_of(events, False, reverse)
    if pairs is None:
        return None
    deviation = math.sqrt(pld.variance(pairs))
    # as read, losses are rounded up
    ends = 2 * sum(pair.span(_FLOOR / 4)[1] * count for pair, count in pairs.items())
    far = min(ends, deviation**2 / 2 + 12 * deviation)
    if far > _FURTHEST or deviation == 0.0:
        return None
    match list(pairs.items()):
        case [(GaussianPair() as gaussian, 1)]:
            read: Callable[[Array], Array] = functools.partial(gdp.curve, gaussian.mu)
        case _:
            read = functools.partial(pld.chords, pld.readings(pairs, _TARGETS))
    while True:
        step = max(min(deviation / _FINENESS, far / 256), far / _MOST_POINTS)
        epsilons = step * np.arange(math.ceil(far / step) + 1, dtype=np.float64)
        deltas = read(epsilons)
        low = np.flatnonzero(deltas <= _FLOOR)
        if len(low):
            return pairs, (epsilons[: low[0] + 1], deltas[: low[0] + 1])
        if far >= min(ends, _FURTHEST):
            if deltas[-1] < 1.0:
                return (pairs, (epsilons, deltas))
            return None
        far = min(1.5 * far, ends, _FURTHEST)
