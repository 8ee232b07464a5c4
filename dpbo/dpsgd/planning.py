"""What tuning DP-SGD costs, for training and validation records alike, before any record is
touched.

    config = DPSGDConfig(epochs=10, batches=10, batch_size=110)
    plans = plan_tuning(Budget(6.0, 1e-5), config, runs=10, validation=350)
    print(plans)

Training records pay for DP-SGD steps, validation records for the noise on scores, and no record
pays for both. Each role is composed by itself, the guarantee is that of the worse role, and each
role gets the least noise that the whole budget allows.

    "selection"   the best of a random number of runs, the others hidden: costs about twice the
                  epsilon of one run
    "hypo"        the same, where later runs prefer parameters near those of good earlier runs
                  (DP-HyPO), within the bounds `spread`; costs more than a selection, and gains over
                  it only where bounds are wide and scores have little noise
    "search"      Bayesian optimisation on released scores: every run is paid for, and every score
                  and model may be published
    "once"        one run with parameters that were fixed beforehand
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, NamedTuple

from scipy.optimize import brentq

from dpbo.accounting.calibration import convert_adjacency
from dpbo.accounting.composition import compose
from dpbo.errors import InputError, UsageError
from dpbo.events import Event, GaussianEvent, PoissonGaussianEvent, RolesEvent, SelectionEvent
from dpbo.mechanisms.additive import LEAST_MULTIPLIER, MOST_MULTIPLIER
from dpbo.privacy import Adjacency, Budget
from dpbo.progress import progress_bar
from dpbo.run_counts import RunCountDistribution, TruncatedNegativeBinomial
from dpbo.validation import Count, Positive, ScoreRange, between, checked

SHAPE = 3.0
"""Shape of the negative binomial number of runs; the cheapest in runs and epsilon on the public
table of DP-SGD runs.
"""
# Multipliers are searched among so many steps between a number and its double.
_OCTAVE = 8192


@checked
@dataclass(frozen=True, kw_only=True)
class DPSGDConfig:
    """Public settings of every DP-SGD run.

    Attributes:
        noise_multiplier: noise standard deviation over the norm bound of one record's gradient, as
            in Opacus; from 0.01 to 2^20. `plan_tuning` replaces it.
        epochs: expected number of passes over the records.
        batches: number of Poisson samples an epoch; each takes every record with probability 1 /
            batches.
        batch_size: public number that the sum of a sample's clipped gradients is divided by. Choose
            records / batches, the expected size of a sample; it does not set the size of a sample,
            which `batches` does.
    """

    noise_multiplier: Annotated[float, between(LEAST_MULTIPLIER, MOST_MULTIPLIER)] = 1.0
    epochs: Count
    batches: Count
    batch_size: Count

    @property
    def steps(self) -> int:
        """Number of steps of one run."""
        return self.epochs * self.batches

    @property
    def rate(self) -> float:
        """Probability with which a Poisson sample takes a record."""
        return 1.0 / self.batches

    def event(self, adjacency: Adjacency) -> Event:
        """What one run costs a training record under this relation."""
        if self.batches == 1:
            return convert_adjacency(
                GaussianEvent(self.noise_multiplier, self.steps),
                Adjacency.ADD_OR_REMOVE_ONE,
                adjacency,
            )
        return PoissonGaussianEvent(
            self.noise_multiplier, self.steps, rate=self.rate, relation=adjacency.value
        )


@dataclass(frozen=True)
class TuningPlan:
    """One strategy's plan for the budget.

    Attributes:
        strategy: "selection", "hypo", "search" or "once".
        config: of each DP-SGD run, with the noise that fits the budget.
        score_multiplier: noise standard deviation of one run's score, over what one validation
            record moves.
        score_std: the same in units of the mean score.
        runs: expected number of runs; `usually` is exceeded with probability at most 0.05.
        run_epsilon: what one run costs a training record, at the budget's delta.
        events: everything that will be charged.
        budget, adjacency, validation, score_range: what the plan was made for.
        run_count: distribution of the number of hidden runs; None where runs are not hidden.
        spread: between which multiples of the uniform density hidden runs' proposals may lie.
    """

    _remedy: ClassVar[str] = "Choose one of the plans by its strategy, such as plans['selection']."
    strategy: str
    config: DPSGDConfig
    score_multiplier: float
    score_std: float
    runs: float
    usually: int
    run_epsilon: float
    events: tuple[Event, ...] = field(repr=False)
    budget: Budget
    adjacency: Adjacency
    validation: float
    score_range: tuple[float, float]
    run_count: RunCountDistribution | None = field(default=None, repr=False)
    spread: tuple[float, float] = (1.0, 1.0)


class TuningPlans(dict[str, TuningPlan]):
    """Plans by strategy; `str()` is a Markdown table."""

    def __str__(self) -> str:
        one = next(iter(self.values()))
        budget = f"epsilon {one.budget.epsilon:g}, delta {one.budget.delta:g}"
        given = (
            f"{budget}, {one.adjacency.value}; {one.validation:g} validation records, scores in"
            f" {one.score_range}"
        )
        titles = (
            "strategy",
            "runs",
            "at most, 19 times in 20",
            "noise multiplier of a step",
            "epsilon of one run",
            "noise of a score",
        )
        head = f"| {' | '.join(titles)} |\n|---|{'---:|' * (len(titles) - 1)}"
        rows = [
            f"| {p.strategy} | {p.runs:.4g} | {p.usually} | {p.config.noise_multiplier:.3g} |"
            f" {p.run_epsilon:.3g} | {p.score_std:.2g} |"
            for p in self.values()
        ]
        return "\n".join([given, "", head, *rows])


@checked
def plan_tuning(
    budget: Budget,
    config: DPSGDConfig,
    *,
    runs: Count,
    validation: Positive,
    score_range: ScoreRange = (0.0, 1.0),
    adjacency: Adjacency | str = Adjacency.REPLACE_ONE,
    run_count: RunCountDistribution | None = None,
    spread: tuple[float, float] = (0.9, 1.2),
) -> TuningPlans:
    """Plan every strategy at one budget.

    Args:
        budget: epsilon and a delta above 0.
        config: of each run; its noise multiplier is replaced by the least that fits.
        runs: number of runs: expected for a selection, exact for a search.
        validation: number of validation records, which sums of scores are divided by. Under
            ADD_OR_REMOVE_ONE a public number near theirs.
        score_range: public (lower, upper) of a record's score.
        adjacency: REPLACE_ONE protects against the replacement of a record by any other.
            ADD_OR_REMOVE_ONE, in which Opacus counts, is the weaker promise: a replacement is one
            removal and one addition. It needs about six tenths of the noise.
        run_count: distribution of the number of hidden runs; omitted, a truncated negative binomial
            of mean `runs`.
        spread: for "hypo", (c, C): a proposal's density lies between c and C times the uniform one.
            (1, 1) is a selection; a larger C / c lets later runs look more where earlier ones
            scored well, and costs more.

    Raises:
        InputError: an argument outside its range, or a budget that no noise meets.
    """
    if budget.epsilon is None or not budget.delta:
        raise InputError("budget", budget.mu, "given as epsilon and a delta above 0")
    adjacency = Adjacency.of(adjacency)
    if run_count is not None:
        of_runs = run_count
    else:
        of_runs = TruncatedNegativeBinomial.of_mean(float(max(runs, 2)), shape=SHAPE)
    hidden = _Strategy(
        of_runs.mean,
        of_runs.quantile(0.95),
        lambda event: SelectionEvent(base=(event,), run_count=of_runs),
        of_runs,
    )
    adaptive = hidden._replace(
        cost=lambda event: SelectionEvent(base=(event,), run_count=of_runs, spread=spread),
        spread=spread,
    )
    strategies = {
        "selection": hidden,
        "hypo": adaptive,
        "search": _Strategy(float(runs), runs, lambda event: event.repeated(event.count * runs)),
        "once": _Strategy(1.0, 1, lambda event: event),
    }
    plans = {}
    with progress_bar("plan_tuning", len(strategies)) as bar:
        for name, strategy in strategies.items():
            plans[name] = _plan(name, strategy, budget, config, adjacency, validation, score_range)
            bar.update()
    return TuningPlans(plans)


class _Strategy(NamedTuple):
    """A strategy's number of runs, and what all of them cost as a function of one run's event."""

    runs: float
    usually: int
    cost: Callable[[Event], Event]
    run_count: RunCountDistribution | None = None
    spread: tuple[float, float] = (1.0, 1.0)


def _plan(
    name: str,
    strategy: _Strategy,
    budget: Budget,
    config: DPSGDConfig,
    adjacency: Adjacency,
    validation: float,
    score_range: tuple[float, float],
) -> TuningPlan:
    delta = budget.delta or 0.0
    usually = strategy.usually

    def least_noise(event: Callable[[float], Event]) -> float:
        return _least(
            lambda multiplier: compose([strategy.cost(event(multiplier))], delta=delta).epsilon,
            budget,
            name,
        )

    def with_noise(multiplier: float) -> DPSGDConfig:
        return dataclasses.replace(config, noise_multiplier=multiplier)

    fitted = with_noise(least_noise(lambda multiplier: with_noise(multiplier).event(adjacency)))
    multiplier = least_noise(GaussianEvent)
    steps = fitted.event(adjacency)
    score = GaussianEvent(multiplier)
    # Hidden runs are charged at once; else training before each run, and its score after it.
    if strategy.run_count is not None:
        events = [
            RolesEvent(
                costs=(
                    ("training", (strategy.cost(steps),)),
                    ("validation", (strategy.cost(score),)),
                )
            )
        ]
    else:
        events = [
            RolesEvent(count=usually, costs=(("training", (steps,)),)),
            RolesEvent(multiplier, usually, costs=(("validation", (GaussianEvent(1.0),)),)),
        ]
    # A mean is summed from the middle of its range.
    width = (score_range[1] - score_range[0]) / (1.0 if adjacency.replaces else 2.0)
    return TuningPlan(
        strategy=name,
        config=fitted,
        score_multiplier=multiplier,
        score_std=multiplier * (width / validation),
        runs=strategy.runs,
        usually=usually,
        run_epsilon=compose([steps], delta=delta).epsilon,
        events=tuple(events),
        budget=budget,
        adjacency=adjacency,
        validation=validation,
        score_range=score_range,
        run_count=strategy.run_count,
        spread=strategy.spread,
    )


def _least(spent: Callable[[float], float], budget: Budget, strategy: str) -> float:
    """The least noise multiplier whose epsilon, `spent`, is within the budget, rounded up to a
    power of 2^(1/8192).

    A root finder only says where to look. The multiplier that is returned was itself composed and
    fits.
    """
    given = f"epsilon={budget.epsilon:g}, delta={budget.delta:g}"
    epsilon = budget.epsilon or 0.0

    def excess(octaves: float) -> float:
        return math.log(min(max(spent(2.0**octaves) / epsilon, 1e-9), 1e9))

    high = 0.0
    while spent(2.0**high) > epsilon:
        high += 1.0
        if high == 20.0:
            raise UsageError(
                f"no noise multiplier up to 1e6 meets {given} with the strategy {strategy!r}. Raise"
                " epsilon or lower `runs`."
            )
    low = high - 1.0
    while spent(2.0**low) <= epsilon:
        low, high = low - 1.0, low
        if high == -10.0:
            raise UsageError(
                f"a noise multiplier of 0.001 already meets {given}, so the budget bounds no noise."
                " Lower epsilon."
            )
    place = math.ceil(brentq(excess, low, high, xtol=0.05 / _OCTAVE) * _OCTAVE)
    while spent(2.0 ** (place / _OCTAVE)) > epsilon:
        place += 1
    return 2.0 ** (place / _OCTAVE)
