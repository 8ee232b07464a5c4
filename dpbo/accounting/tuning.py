"""From a budget to a private selection: how the number of runs should be drawn, or how much noise each run needs.

    choose_run_count(Budget(6.1, 1e-6), steps, runs=25)                  which law of K, at about 25 expected runs
    scale_base(Budget(6.1, 1e-6), steps, law)                      the event whose runs have the least noise under this law

Laws differ in how far K strays. Of two laws with one mean the more concentrated one finds the best share more often and costs more; a
budget that cannot pay for it at that mean may pay for it at a smaller one. So each shape gets the largest mean that fits, and the shape
that most surely makes a run in the best 1/runs of all proposals is chosen. None of it looks at data.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpbo.accounting import profiles
from dpbo.accounting.composition import compose
from dpbo.accounting.dominating import selection_delta
from dpbo.accounting.selected import reach
from dpbo.errors import InputError
from dpbo.events import Event, SelectionEvent
from dpbo.privacy import Budget
from dpbo.run_counts import CountLaw, RunLaw, TruncatedNegativeBinomial, TruncatedPoisson
from dpbo.validation import checked

_SHAPES = (0.0, 0.5, 1.0, 3.0, 10.0, 30.0, math.inf)
_LEAST = 1.01
_PRECISION = 1e-4
_BELOW = 1 - 2e-6  # `compose` reads epsilon from a profile to one part in a million, from above


@dataclass(frozen=True)
class RunCountChoice:
    """A law of the number of runs that keeps a budget.

    Attributes:
        law: of K.
        event: for the ledger.
        epsilon: what the selection, with all that was named beside it, costs at the budget's delta.
        expected: mean of K.
        usually: K is at most this with probability 0.95.
        reach: probability that some run is among the best 1/runs of all proposals.
    """

    law: CountLaw
    event: SelectionEvent
    epsilon: float
    expected: float
    usually: int
    reach: float


@checked
def choose_run_count(
    budget: Budget, base: Sequence[Event], *, runs: float, beside: Sequence[Event] = (), shapes: Sequence[float] = _SHAPES
) -> RunCountChoice:
    """The law that best serves about so many runs within the budget.

    Args:
        budget: epsilon and a delta above 0.
        base: what one run costs, all its events.
        runs: the most expected runs that are wanted, above 1.
        beside: what else the budget pays for, in one plan.
        shapes: of the truncated negative binomials that are tried; infinite is the truncated Poisson.

    Raises:
        InputError: an argument outside its range, or a base of which the budget cannot pay for one run.
    """
    if not isinstance(runs, (int, float)) or not _LEAST <= runs <= 1e6:
        raise InputError("runs", runs, f"a number from {_LEAST} to 1e6")
    fits = _fitting(budget, beside)
    found = []

    def affordable(law: CountLaw) -> bool:
        return fits(SelectionEvent(base=tuple(base), law=law))

    for shape in shapes:
        law = _largest(functools.partial(_law, shape), float(runs), affordable)
        if law is not None:
            found.append((reach(law, 1.0 / runs), law))
    if not found:
        raise InputError("budget", budget.epsilon, "enough for more than one run of this base", "See scale_base for the noise it needs.")
    reached, law = max(found, key=lambda pair: pair[0])
    event = SelectionEvent(base=tuple(base), law=law)
    epsilon = compose([event, *beside], delta=budget.delta or 0.0).epsilon
    return RunCountChoice(law, event, epsilon, law.mean, law.quantile(0.95), reached)


@checked
def scale_base(budget: Budget, base: Sequence[Event], law: RunLaw, *, beside: Sequence[Event] = ()) -> SelectionEvent:
    """The selection whose runs have the least noise that fits: `event.run()` are the base's events, their noise multiplied alike.

    Raises:
        InputError: a budget without epsilon and delta, or too small beside the rest.
    """
    fits = _fitting(budget, beside)

    def event(scale: float) -> SelectionEvent:
        return SelectionEvent(scale, base=tuple(base), law=law)

    high = 1.0
    while not fits(event(high)):
        high *= 2.0
        if high > 1e6:
            raise InputError("budget", budget.epsilon, "larger than what stands beside the selection")
    low = high / 2.0
    while fits(event(low)):
        low, high = low / 2.0, low
        if high < 1e-6:
            raise InputError("base", "costs next to nothing", "events that the budget bounds")
    while high / low > 1 + _PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(event(middle)) else (middle, high)
    return event(high)


def _fitting(budget: Budget, beside: Sequence[Event]) -> Callable[[SelectionEvent], bool]:
    """Whether a selection keeps the budget; alone, its pure epsilon or its profile at one epsilon tells."""
    if budget.epsilon is None or not budget.delta:
        raise InputError("budget", budget.mu, "given as epsilon and a delta above 0")
    epsilon, delta = budget.epsilon, budget.delta

    def fits(event: SelectionEvent) -> bool:
        if beside:
            return compose([event, *beside], delta=delta).epsilon <= epsilon
        pure = profiles.pure(event)
        return (pure is not None and pure <= epsilon) or float(selection_delta(event, np.array([epsilon * _BELOW]))[0]) <= delta

    return fits


def _largest(law_of: Callable[[float], CountLaw], most: float, fits: Callable[[CountLaw], bool]) -> CountLaw | None:
    """The law of the largest mean that fits, to 1 % of the runs beyond the first."""
    if fits(law := law_of(most)):
        return law
    low, high, best = math.log(_LEAST - 1), math.log(most - 1), None
    if most <= _LEAST or not fits(law := law_of(_LEAST)):
        return None
    best = law
    while high - low > 0.01:
        middle = (low + high) / 2
        if fits(law := law_of(1 + math.exp(middle))):
            low, best = middle, law
        else:
            high = middle
    return best


def _law(shape: float, mean: float) -> CountLaw:
    return TruncatedPoisson.of_mean(mean) if math.isinf(shape) else TruncatedNegativeBinomial.of_mean(mean, shape=shape)
