"""From a budget to a private selection: the distribution of its number of runs, or the noise of each run.

    choose_run_count(Budget(6.1, 1e-6), steps, runs=25)            which distribution of K, at about 25 expected runs
    scale_base(Budget(6.1, 1e-6), steps, run_count)                the event whose runs have the least noise under this distribution

Of two distributions with one mean the more concentrated one makes a run in the best share of the proposals more often, and costs more. A
budget that cannot pay for it at that mean may pay for it at a smaller one. So each shape gets the largest mean that fits, and the shape is
chosen that most surely makes a run in the best 1/runs of all proposals. No choice looks at data.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from dpbo.accounting import event_costs
from dpbo.accounting.composition import compose
from dpbo.accounting.filters import least_scale
from dpbo.accounting.selection_bounds import reach
from dpbo.accounting.selection_pairs import selection_delta
from dpbo.errors import InputError, UsageError
from dpbo.events import Event, SelectionEvent
from dpbo.privacy import Budget
from dpbo.run_counts import RunCountDistribution, StoppingRule, TruncatedNegativeBinomial, TruncatedPoisson
from dpbo.validation import between, checked

_SHAPES = (0.0, 0.5, 1.0, 3.0, 10.0, 30.0, math.inf)
_LEAST = 1.01  # expected runs
_BELOW = 1 - 2e-6  # `compose` reads epsilon from a profile to one part in a million, from above


@dataclass(frozen=True)
class RunCountChoice:
    """A law of the number of runs that keeps a budget.

    Attributes:
        run_count: of K.
        event: for the ledger.
        epsilon: what the selection, with all that was named beside it, costs at the budget's delta.
        expected: mean of K.
        usually: K is at most this with probability 0.95.
        reach: probability that some run is among the best 1/runs of all proposals.
    """

    run_count: RunCountDistribution
    event: SelectionEvent
    epsilon: float
    expected: float
    usually: int
    reach: float


@checked
def choose_run_count(
    budget: Budget,
    base: Sequence[Event],
    *,
    runs: Annotated[float, between(_LEAST, 1e6)],
    beside: Sequence[Event] = (),
    shapes: Sequence[float] = _SHAPES,
) -> RunCountChoice:
    """The distribution that best serves about this many runs within the budget.

    Args:
        budget: epsilon and a delta above 0.
        base: the events of one run.
        runs: the largest expected number of runs, above 1.
        beside: other events that the budget pays for.
        shapes: shapes of the truncated negative binomials that are tried; infinite is the truncated Poisson.

    Raises:
        InputError: an argument outside its range, or a base of which the budget cannot pay for one run.
    """
    fits = _fitting(budget, beside)
    found = []
    for shape in shapes:
        run_count = _largest(shape, runs, base, fits)
        if run_count is not None:
            found.append((reach(run_count, 1.0 / runs), run_count))
    if not found:
        raise InputError("budget", budget.epsilon, "enough for more than one run of this base", "See scale_base for the noise it needs.")
    reached, run_count = max(found, key=lambda pair: pair[0])
    event = SelectionEvent(base=tuple(base), run_count=run_count)
    epsilon = compose([event, *beside], delta=budget.delta or 0.0).epsilon
    return RunCountChoice(run_count, event, epsilon, run_count.mean, run_count.quantile(0.95), reached)


def _largest(shape: float, most: float, base: Sequence[Event], fits: Callable[[SelectionEvent], bool]) -> RunCountDistribution | None:
    """The distribution of this shape with the largest mean that fits, to 1 % of the runs beyond the first."""

    def of_mean(mean: float) -> RunCountDistribution:
        return TruncatedPoisson.of_mean(mean) if math.isinf(shape) else TruncatedNegativeBinomial.of_mean(mean, shape=shape)

    def affordable(run_count: RunCountDistribution) -> bool:
        return fits(SelectionEvent(base=tuple(base), run_count=run_count))

    if affordable(largest := of_mean(most)):
        return largest
    best = of_mean(_LEAST)
    if most <= _LEAST or not affordable(best):
        return None
    low, high = math.log(_LEAST - 1), math.log(most - 1)
    while high - low > 0.01:
        middle = (low + high) / 2
        if affordable(larger := of_mean(1 + math.exp(middle))):
            low, best = middle, larger
        else:
            high = middle
    return best


@checked
def scale_base(budget: Budget, base: Sequence[Event], run_count: StoppingRule, *, beside: Sequence[Event] = ()) -> SelectionEvent:
    """The selection whose runs have the least noise that fits: `event.run()` has the events of the base with more or less noise.

    Args:
        budget: epsilon and a delta above 0.
        base: the events of one run.
        run_count: the distribution of the number of runs, or `ThresholdStop`.
        beside: other events that the budget pays for.

    Raises:
        InputError: a budget without epsilon and delta, or too small for the events beside the selection.
    """
    fits = _fitting(budget, beside)

    def event(scale: float) -> SelectionEvent:
        return SelectionEvent(scale, base=tuple(base), run_count=run_count)

    scale = least_scale(lambda scale: fits(event(scale)), precision=1e-4, least=1e-6, most=1e6)
    if math.isinf(scale):
        raise InputError("budget", budget.epsilon, "larger than what the other events of the plan cost")
    if scale == 0.0:
        raise UsageError("the base costs next to nothing, so the budget bounds no noise of it.")
    return event(scale)


def _fitting(budget: Budget, beside: Sequence[Event]) -> Callable[[SelectionEvent], bool]:
    """Whether a selection keeps the budget. Without other events, by its pure epsilon or its profile at one epsilon."""
    if budget.epsilon is None or not budget.delta:
        raise InputError("budget", budget.mu, "given as epsilon and a delta above 0")
    epsilon, delta = budget.epsilon, budget.delta

    def fits(event: SelectionEvent) -> bool:
        if beside:
            return compose([event, *beside], delta=delta).epsilon <= epsilon
        pure = event_costs.pure(event)
        return (pure is not None and pure <= epsilon) or float(selection_delta(event, np.array([epsilon * _BELOW]))[0]) <= delta

    return fits
