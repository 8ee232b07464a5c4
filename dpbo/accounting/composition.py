"""What a list of events fixed in advance guarantees together: the least of four valid bounds.

    pure sum        epsilons add (Dwork, McSherry, Nissim & Smith 2006); the only bound at delta = 0
    merged GDP      mu^2 adds (Dong, Roth & Su 2022, Corollary 3.3); exact where all are Gaussian
    PLD             the composed loss distribution (pld.py), all Gaussians merged into one first
    Renyi           divergences add at each order, read at the best one (renyi.py)

The minimum is valid because every bound holds for the same fixed list; nothing is chosen by the
data. Adaptive histories need a filter.

    compose([GaussianEvent(10.0, 30), ExponentialEvent(20.0, 150)], delta=1e-6).epsilon
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpbo.accounting import event_costs, gdp, pld, renyi
from dpbo.accounting.gdp import root_up, rounded_up
from dpbo.accounting.selection_pairs import Events, pairs_of, selection_epsilon
from dpbo.errors import InputError
from dpbo.events import Event, ExponentialEvent, RolesEvent, SelectionEvent
from dpbo.validation import Delta, checked

_ORDERS = 1.0 + np.exp(np.linspace(math.log(0.02), math.log(1e5), 80))
_FAST = 1e-4
_FINE = 1e-6


@dataclass(frozen=True)
class Composition:
    """Four bounds on epsilon at `delta`, infinite where one does not apply; `mu` of Gaussian DP
    where all events have one.
    """

    delta: float
    pure: float
    gdp: float
    pld: float
    rdp: float
    mu: float | None

    @property
    def epsilon(self) -> float:
        """The least of the bounds."""
        return min(self.pure, self.gdp, self.pld, self.rdp)


@checked
def compose(events: Sequence[Event], *, delta: Delta, refine: bool = False) -> Composition:
    """What these events guarantee together, whatever their order; fixed before the first release.

    Args:
        events: all for one neighbouring relation. With several roles, the bounds are those of the
            worst role.
        delta: in [0, 1).
        refine: uses a loss distribution a hundred times finer, for a report.
    """
    relations = frozenset[str]().union(*(event.relations() for event in events))
    if len(relations) > 1:
        remedy = "See dpbo.accounting.calibration.convert_adjacency."
        raise InputError("events", sorted(relations), "of one relation", remedy)
    roles = set[str]().union(*(event.roles for event in events if isinstance(event, RolesEvent)))
    by_role = []
    for role in sorted(roles) or [""]:
        of_role: list[Event] = []
        for event in events:
            of_role.extend(event.of(role) if isinstance(event, RolesEvent) else (event,))
        by_role.append(_composed(merged(of_role), delta, refine))
    worst = max(by_role, key=lambda bounds: bounds.epsilon)
    mus = [bounds.mu for bounds in by_role if bounds.mu is not None]
    return dataclasses.replace(worst, mu=max(mus) if len(mus) == len(by_role) else None)


def merged(events: Sequence[Event]) -> Events:
    """Equal events as one, their counts added, in a fixed order, so that equal plans are composed
    once.
    """
    counts: collections.Counter[Event] = collections.Counter()
    for event in events:
        counts[event.repeated(1)] += event.count
    return tuple(sorted((event.repeated(count) for event, count in counts.items()), key=repr))


@functools.lru_cache(maxsize=256)
def _composed(events: Events, delta: float, refine: bool) -> Composition:
    if not events:
        return Composition(delta, 0.0, 0.0, math.inf, math.inf, 0.0)
    pure = _pure(events)
    mu = _mu(events)
    if delta == 0.0:
        return Composition(delta, pure, math.inf, math.inf, math.inf, mu)
    by_mu = math.inf if mu is None else gdp.epsilon_at(mu, delta)
    grids = (_FAST, _FINE) if refine else (_FAST,)
    return Composition(
        delta,
        pure,
        by_mu,
        min(_pld(events, delta, grid) for grid in grids),
        _rdp(events, delta),
        mu,
    )


def _pure(events: Events) -> float:
    total = event_costs.total(map(event_costs.pure, events), Fraction(0))
    if total is None:
        return math.inf
    return rounded_up(total)


def _mu(events: Events) -> float | None:
    total = event_costs.total(map(event_costs.mu_squared, events), Fraction(0))
    if total is None:
        return None
    return root_up(total)


def _rdp(events: Events, delta: float) -> float:
    total = renyi.total_curve(events, _ORDERS)
    if total is None:
        return math.inf
    return max(float((total + renyi.conversions(_ORDERS, delta)).min()), 0.0) * (1 + 1e-12)


def _pld(events: Events, delta: float, inflation: float) -> float:
    """The larger over the two directions of add or remove; infinite where an event has no pair."""
    if len(events) == 1 and isinstance(events[0], SelectionEvent) and events[0].count == 1:
        return selection_epsilon(events[0], delta)
    choices = tuple(event for event in events if isinstance(event, ExponentialEvent))
    # Gaussians and randomised responses both dominate the exponential mechanism: the one that costs
    # less is taken
    mu = _mu(choices)
    as_gaussian = mu is not None and gdp.epsilon_at(mu, delta) < _pure(choices)
    directions = {False, any(event.relations() for event in events)}
    bounds = []
    for reverse in directions:
        pairs = pairs_of(events, as_gaussian, reverse)
        if pairs is None:
            return math.inf
        bounds.append(pld.epsilon(pairs, delta, inflation=inflation))
    return max(bounds)
