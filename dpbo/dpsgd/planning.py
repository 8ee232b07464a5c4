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

Where batch size and epochs are to be searched as well, give several configurations:

    configs = [
        DPSGDConfig(epochs=epochs, batches=batches, batch_size=1100 // batches)
        for epochs in (2, 10) for batches in (5, 20)
    ]
    plans = plan_tuning(Budget(6.0, 1e-5), configs, runs=10, validation=350)

Every run then trains by one of them, which is a parameter that is searched and released like the
others. A run is charged for the largest privacy profile over all of them (`OneOfEvent`, with its
proof), whichever is drawn. Each gets the noise with which the strategy would keep the budget by it
alone, and then all get the same factor, near 1, with which the largest profile keeps it.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, NamedTuple

from scipy.optimize import brentq

from dpbo.accounting.calibration import convert_adjacency
from dpbo.accounting.composition import compose
from dpbo.errors import InputError, UsageError
from dpbo.events import (
    Event,
    GaussianEvent,
    OneOfEvent,
    PoissonGaussianEvent,
    RolesEvent,
    SelectionEvent,
)
from dpbo.mechanisms.additive import LEAST_MULTIPLIER, MOST_MULTIPLIER
from dpbo.privacy import Adjacency, Budget
from dpbo.progress import progress_bar
from dpbo.run_counts import RunCountDistribution, TruncatedNegativeBinomial
from dpbo.validation import Count, Positive, ScoreRange, between, checked

SHAPE = 3.0
"""Shape of the negative binomial number of runs; the cheapest in runs and epsilon on the public
table of DP-SGD runs.
"""
# Multipliers are searched among so many steps between a number and its double; where another factor
# follows, among so many.
_OCTAVE = 8192
_ROUGH = 64


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


def settings_of(config: DPSGDConfig) -> dict[str, int]:
    """What a run takes its samples by, without the noise that a plan chooses."""
    settings = dataclasses.asdict(config)
    del settings["noise_multiplier"]
    return settings


def run_event(configs: Sequence[DPSGDConfig], adjacency: Adjacency) -> Event:
    """What one run by any of these configurations costs a training record."""
    events = tuple(config.event(adjacency) for config in configs)
    if len(events) == 1:
        return events[0]
    return OneOfEvent(candidates=events)


@dataclass(frozen=True)
class TuningPlan:
    """One strategy's plan for the budget.

    Attributes:
        strategy: "selection", "hypo", "search" or "once".
        configs: the configurations of DP-SGD runs, of which each run takes one, with the noise that
            fits the budget.
        score_multiplier: noise standard deviation of one run's score, over what one validation
            record moves.
        score_std: the same in units of the mean score.
        runs: expected number of runs; `usually` is exceeded with probability at most 0.05.
        run_epsilon: what one run costs a training record, at the budget's delta.
        events: everything that will be charged.
        budget, adjacency, validation, score_range: what the plan was made for.
        run_count: distribution of the number of hidden runs; None where runs are not hidden.
        spread: between which multiples of the uniform density hidden runs' proposals may lie.
        default: whether one run is that of the default parameters.
    """

    _remedy: ClassVar[str] = "Choose one of the plans by its strategy, such as plans['selection']."
    strategy: str
    configs: tuple[DPSGDConfig, ...]
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
    default: bool = False

    @property
    def config(self) -> DPSGDConfig:
        """The configuration. Raises UsageError where there are several."""
        if len(self.configs) > 1:
            raise UsageError("the plan has several configurations: see its `configs`.")
        return self.configs[0]


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
        rows = []
        for plan in self.values():
            multipliers = [f"{config.noise_multiplier:.3g}" for config in plan.configs]
            rows.append(
                f"| {plan.strategy} | {plan.runs:.4g} | {plan.usually} | {', '.join(multipliers)} |"
                f" {plan.run_epsilon:.3g} | {plan.score_std:.2g} |"
            )
        return "\n".join([given, "", head, *rows])


@checked
def plan_tuning(
    budget: Budget,
    config: DPSGDConfig | Sequence[DPSGDConfig],
    *,
    runs: Count,
    validation: Positive,
    score_range: ScoreRange = (0.0, 1.0),
    adjacency: Adjacency | str = Adjacency.REPLACE_ONE,
    run_count: RunCountDistribution | None = None,
    spread: tuple[float, float] = (0.9, 1.2),
    default: bool = False,
) -> TuningPlans:
    """Plan every strategy at one budget.

    Args:
        budget: epsilon and a delta above 0.
        config: of each run; its noise multiplier is replaced by the least that fits. Or several,
            of which `tune` searches the best together with the other parameters.
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
        default: True plans for a run at the default parameters, so that `tune(default=...)` can
            release the gain over it. It is one of the runs of a search, and a second run of "once".
            Beside hidden runs it is released and paid for by itself: were it among them, the
            winner's density would have a factor, the default run's probability of a lower score,
            whose ratio between neighbours nothing bounds where it is small.

    Raises:
        InputError: an argument outside its range, or a budget that no noise meets.
    """
    configs = (config,) if isinstance(config, DPSGDConfig) else tuple(config)
    different = {tuple(settings_of(one).values()) for one in configs}
    if not configs or len(different) < len(configs):
        raise InputError("config", configs, "one configuration, or several different ones")
    if budget.epsilon is None or not budget.delta:
        raise InputError("budget", budget.mu, "given as epsilon and a delta above 0")
    adjacency = Adjacency.of(adjacency)
    if run_count is not None:
        of_runs = run_count
    else:
        of_runs = TruncatedNegativeBinomial.of_mean(float(max(runs, 2)), shape=SHAPE)
    more = int(default)
    hidden = _Strategy(of_runs.mean + more, of_runs.quantile(0.95) + more, more, of_runs)
    strategies = {
        "selection": hidden,
        "hypo": hidden._replace(spread=spread),
        "search": _Strategy(float(runs), runs, runs),
        "once": _Strategy(1.0 + more, 1 + more, 1 + more),
    }
    plans = {}
    with progress_bar("plan_tuning", len(strategies)) as bar:
        for name, strategy in strategies.items():
            plan = _plan(name, strategy, budget, configs, adjacency, validation, score_range)
            plans[name] = dataclasses.replace(plan, default=default)
            bar.update()
    return TuningPlans(plans)


class _Strategy(NamedTuple):
    """A strategy's number of runs, and of those that are released and paid for one by one."""

    runs: float
    usually: int
    paid: int
    run_count: RunCountDistribution | None = None
    spread: tuple[float, float] = (1.0, 1.0)

    def hidden(self, event: Event) -> list[Event]:
        """What hidden runs cost together, each of them this event; nothing where none is hidden."""
        if self.run_count is None:
            return []
        return [SelectionEvent(base=(event,), run_count=self.run_count, spread=self.spread)]

    def cost(self, event: Event) -> list[Event]:
        """What all runs cost together, each of them this event."""
        paid = [event.repeated(event.count * self.paid)] if self.paid else []
        return [*self.hidden(event), *paid]


def _plan(
    name: str,
    strategy: _Strategy,
    budget: Budget,
    configs: Sequence[DPSGDConfig],
    adjacency: Adjacency,
    validation: float,
    score_range: tuple[float, float],
) -> TuningPlan:
    delta = budget.delta or 0.0

    def least_noise(event: Callable[[float], Event], *, rough: bool = False) -> float:
        def spent(multiplier: float) -> float:
            return compose(strategy.cost(event(multiplier)), delta=delta).epsilon

        return _least(spent, budget, name, _ROUGH if rough else _OCTAVE)

    def with_least_noise(alike: Sequence[DPSGDConfig], *, rough: bool = False) -> list[DPSGDConfig]:
        """These configurations, with the least factor on all their noise."""

        def with_factor(factor: float) -> list[DPSGDConfig]:
            return [
                dataclasses.replace(one, noise_multiplier=one.noise_multiplier * factor)
                for one in alike
            ]

        def event(factor: float) -> Event:
            return run_event(with_factor(factor), adjacency)

        return with_factor(least_noise(event, rough=rough))

    fitted = [dataclasses.replace(config, noise_multiplier=1.0) for config in configs]
    if len(fitted) > 1:
        fitted = [with_least_noise([config], rough=True)[0] for config in fitted]
    fitted = with_least_noise(fitted)
    multiplier = least_noise(GaussianEvent)
    steps = run_event(fitted, adjacency)
    events = list[RolesEvent]()
    # Hidden runs are charged at once; else training before each run, and its score after it.
    if strategy.run_count is not None:
        hidden = tuple(strategy.hidden(steps)), tuple(strategy.hidden(GaussianEvent(multiplier)))
        costs = tuple(zip(("training", "validation"), hidden, strict=True))
        events.append(RolesEvent(costs=costs))
    if paid := strategy.paid:
        events.append(RolesEvent(count=paid, costs=(("training", (steps,)),)))
        events.append(RolesEvent(multiplier, paid, costs=(("validation", (GaussianEvent(1.0),)),)))
    # A mean is summed from the middle of its range.
    width = (score_range[1] - score_range[0]) / (1.0 if adjacency.replaces else 2.0)
    return TuningPlan(
        strategy=name,
        configs=tuple(fitted),
        score_multiplier=multiplier,
        score_std=multiplier * (width / validation),
        runs=strategy.runs,
        usually=strategy.usually,
        run_epsilon=compose([steps], delta=delta).epsilon,
        events=tuple(events),
        budget=budget,
        adjacency=adjacency,
        validation=validation,
        score_range=score_range,
        run_count=strategy.run_count,
        spread=strategy.spread,
    )


def _least(spent: Callable[[float], float], budget: Budget, strategy: str, steps: int) -> float:
    """The least noise multiplier whose epsilon, `spent`, is within the budget, rounded up to a
    power of 2^(1 / steps).

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
    place = math.ceil(brentq(excess, low, high, xtol=0.05 / steps) * steps)
    while spent(2.0 ** (place / steps)) > epsilon:
        place += 1
    return 2.0 ** (place / steps)
