"""What tuning DP-SGD costs, for training and validation records alike, before any record is touched.

    config = DPSGDConfig(noise_multiplier=1.0, epochs=10, batches=10, batch_size=110)
    plans = plan_tuning(Budget(6.0, 1e-5), config, runs=10, validation=350)
    print(plans)

Training records pay for DP-SGD steps, validation records for the noise on scores, and no record for both: each role is composed by itself,
and the guarantee is that of the worse one. So each role gets the least noise that the whole budget allows it.
    "selection"   the best of a random number of runs, the others hidden: little dearer than one run
    "hypo"        the same, where later runs may look at earlier ones within bounds (DP-HyPO); dearer than a selection
    "search"      Bayesian optimisation on released scores: every run is paid for, and every score and model may be looked at
    "once"        one run of parameters that were fixed beforehand
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dpbo.accounting.composition import compose
from dpbo.errors import InputError
from dpbo.events import Event, GaussianEvent, RolesEvent, SelectionEvent
from dpbo.integrations.opacus.config import DPSGDConfig
from dpbo.privacy import Adjacency, Budget, require_count, require_positive, require_range
from dpbo.run_counts import CountLaw, TruncatedNegativeBinomial
from dpbo.validation import checked

SHAPE = 3.0
"""Of the negative binomial whose draws decide the number of runs: on the public table of DP-SGD runs the cheapest in runs and epsilon."""
_PRECISION = 1e-4


@dataclass(frozen=True)
class TuningPlan:
    """One way to spend the budget.

    Attributes:
        strategy: "selection", "hypo", "search" or "once".
        terms: of each DP-SGD run, with the noise that fits.
        score_multiplier: noise of one run's score over what one validation record moves.
        score_std: standard deviation of that noise, in units of the mean score.
        runs: expected number; usually: not exceeded with probability 0.95.
        run_epsilon: what one run costs a training record, at the budget's delta.
        events: what will be charged, all of it.
        law: of the number of runs, where they are hidden; spread: how far their proposals may follow earlier ones.
    """

    strategy: str
    terms: DPSGDConfig
    score_multiplier: float
    score_std: float
    runs: float
    usually: int
    run_epsilon: float
    events: tuple[Event, ...]
    law: CountLaw | None = None
    spread: tuple[float, float] = (1.0, 1.0)


@dataclass(frozen=True)
class TuningPlans(Mapping[str, TuningPlan]):
    """Plans by strategy; `str()` is a table."""

    plans: tuple[TuningPlan, ...]

    def __getitem__(self, strategy: str) -> TuningPlan:
        try:
            return next(plan for plan in self.plans if plan.strategy == strategy)
        except StopIteration:
            raise KeyError(strategy) from None

    def __iter__(self) -> Iterator[str]:
        return (plan.strategy for plan in self.plans)

    def __len__(self) -> int:
        return len(self.plans)

    def __str__(self) -> str:
        titles = ("strategy", "runs", "at most, 19 times in 20", "noise multiplier of a step", "epsilon of one run", "noise of a score")
        head = f"| {' | '.join(titles)} |\n|---|{'---:|' * (len(titles) - 1)}"
        rows = [f"| {p.strategy} | {p.runs:.4g} | {p.usually} | {p.terms.noise_multiplier:.3g} | {p.run_epsilon:.3g} | {p.score_std:.2g} |"
                for p in self.plans]  # fmt: skip
        return "\n".join([head, *rows])


@checked
def plan_tuning(
    budget: Budget,
    terms: DPSGDConfig,
    *,
    runs: int,
    validation: int,
    score_range: tuple[float, float] = (0.0, 1.0),
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
    law: CountLaw | None = None,
    spread: tuple[float, float] = (0.9, 1.2),
) -> TuningPlans:
    """The strategies at one budget, beside one run.

    Args:
        budget: epsilon and a delta above 0.
        terms: of each run; its noise multiplier is replaced by the least that fits.
        runs: how many are wanted: expected ones of a selection, all of a search.
        validation: public number that score sums are divided by.
        law: of the number of runs, in place of a truncated negative binomial of this mean.
        spread: of "hypo": between which multiples of the uniform density a proposal's may lie.

    Raises:
        InputError: an argument outside its range.
    """
    if budget.epsilon is None or not budget.delta:
        raise InputError("budget", budget.mu, "given as epsilon and a delta above 0")
    lower, upper = require_range("score_range", score_range)
    require_count("runs", runs)
    require_positive("validation", validation)
    width = (upper - lower) / (1.0 if adjacency.replaces else 2.0)  # a mean is summed from the middle of its range
    of_runs = law if law is not None else TruncatedNegativeBinomial.of_mean(float(max(runs, 2)), shape=SHAPE)
    ways = [
        _Way("selection", of_runs.mean, of_runs.quantile(0.95), lambda event: SelectionEvent(base=(event,), law=of_runs), of_runs),
        _Way("hypo", of_runs.mean, of_runs.quantile(0.95), lambda event: SelectionEvent(base=(event,), law=of_runs, spread=spread),
             of_runs, spread),
        _Way("search", float(runs), runs, lambda event: event.repeated(event.slots * runs)),
        _Way("once", 1.0, 1, lambda event: event),
    ]  # fmt: skip
    return TuningPlans(tuple(_planned(budget, terms, adjacency, width / validation, way) for way in ways))


class _Way(NamedTuple):
    """A strategy, its number of runs, and what it makes of one run's event."""

    strategy: str
    runs: float
    usually: int
    paid: Callable[[Event], Event]
    law: CountLaw | None = None
    spread: tuple[float, float] = (1.0, 1.0)


def _planned(budget: Budget, terms: DPSGDConfig, adjacency: Adjacency, unit: float, way: _Way) -> TuningPlan:
    def least(kind: Callable[[float], Event]) -> float:
        return _least(
            lambda multiplier: compose([way.paid(kind(multiplier))], delta=budget.delta or 0.0).epsilon <= (budget.epsilon or 0.0)
        )

    fitted = dataclasses.replace(terms, noise_multiplier=least(lambda m: dataclasses.replace(terms, noise_multiplier=m).event(adjacency)))
    multiplier = least(lambda m: GaussianEvent(m))
    run_epsilon = compose([fitted.event(adjacency)], delta=budget.delta or 0.0).epsilon
    events = _events(way, fitted.event(adjacency), GaussianEvent(multiplier))
    return TuningPlan(way.strategy, fitted, multiplier, multiplier * unit, way.runs, way.usually, run_epsilon, events, way.law, way.spread)


def _events(way: _Way, steps: Event, score: Event) -> tuple[Event, ...]:
    """As they are charged: hidden runs at once; else training before each run and its score after it."""
    if way.law is not None:
        return (RolesEvent(costs=(("training", (way.paid(steps),)), ("validation", (way.paid(score),)))),)
    unscaled = dataclasses.replace(score, noise_multiplier=1.0)
    return (
        RolesEvent(slots=way.usually, costs=(("training", (steps,)),)),
        RolesEvent(score.noise_multiplier, way.usually, costs=(("validation", (unscaled,)),)),
    )


def _least(fits: Callable[[float], bool]) -> float:
    """The least multiplier that fits, to 4 digits, from above."""
    high = 1.0
    while not fits(high):
        high *= 2.0
        if high > 1e6:
            raise InputError("budget", "next to nothing", "enough for a run with some signal")
    low = high / 2.0
    while fits(low):
        low, high = low / 2.0, low
        if high < 1e-3:
            raise InputError("budget", "next to everything", "one that bounds something")
    while high / low > 1 + _PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
