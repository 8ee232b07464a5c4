"""Planning: what a budget buys, before any record is read.

    print(dpbo.plan(5000, Budget(1.0, 1e-6), evaluations=40, dimension=4))

`plan` compares strategies that fit the same number of models within the same budget: the noise of
one evaluation, and the detectable difference of two configurations. Everything follows from public
numbers. The detectable difference D is the smallest difference of true mean scores at which the
worse configuration looks better at most one time in twenty:

- two private evaluations of noise s: Phi(-D / (s sqrt 2)) = 0.05, so D = 2.33 s;
- one permute-and-flip of scale M (2 / epsilon) on sums that a unit moves by R:
  exp(-D n / (M R)) / 2 = 0.05, so D = M R log(10) / n.

The detectable gain g is about the default search, which tests one candidate against the default
model with half of the budget: by the mean of their score differences, clipped at c, a quarter of
the range's width. A true gain of g is found with probability .8, a candidate that is no better is
recommended with probability `risk` at most. With Laplace noise g = 2 c log(1.25 / risk) / (n
epsilon / 2), with Gaussian noise of standard deviation s = 2 c sqrt(2) / (n mu) it is s times the
two normal quantiles (dpbo/search/recommendation.py has the proof). It falls as 1 / n.
"""

import decimal
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist
from typing import Annotated

from dpbo.accounting.calibration import calibrate
from dpbo.accounting.filters import GDPFilter
from dpbo.events import PermuteAndFlipEvent
from dpbo.privacy import Budget, exact_share, warn_of_delta
from dpbo.validation import Count, Positive, ScoreRange, between, checked

BO = "bo"
GIBO = "gibo"
CHOICE = "choice"
NONE = "none"
_ERROR = 0.05
# columns of words in a table
_WORDS = ("strategy", "remark")
# 95 % quantile of the difference of two standard normals
_NORMAL = 1.6448536269514722 * math.sqrt(2.0)
FINE = 0.05
COARSE = 0.1
"""Shares of the range: BO is recommended up to the first detectable difference, nothing above the
second.
"""
# noise of a private gradient over its clip
_NOISY = 0.2
_HOPELESS = 0.5
# dimensions, and units times mu, where DP-GIBO was no worse than BO (benchmarks.papers.dpgibo)
_MANY = 8
_FEW = 300.0
# epsilon, above which nothing changes any more
_NEXT_TO_NONE = 100.0
# share of the budget that tests a candidate of the default search, and how often it finds the gain
_TEST = Fraction(1, 2)
_POWER = 0.8
# noise multiplier of a private choice of epsilon 0.01
_LARGEST = 200.0


@dataclass(frozen=True)
class StrategyPlan:
    """What one strategy makes of a budget.

    Attributes:
        name: "bo", "gibo" or "choice"; `plan` explains them.
        releases: number of releases.
        model_fits: number of models that are trained.
        noise: standard deviation of the noise of one released mean score, in the score's units;
            None if no score is released.
        detectable_difference: smallest difference of two mean scores that the strategy detects, in
            the score's units. None if it compares no scores; infinite if it exceeds the range.
        remark: further facts, as text for the table.
    """

    name: str
    releases: int
    model_fits: int
    noise: float | None
    detectable_difference: float | None
    remark: str


@dataclass(frozen=True)
class Plan:
    """A comparison of strategies; `str()` is a table.

    Attributes:
        units: public number of protected units.
        score_range: public (lower, upper) of one record's score, in the score's units.
        mu: budget of the search, in Gaussian DP; without the share that is kept for the chosen
            score.
        final_noise: standard deviation of the noise of the chosen configuration's score, in the
            score's units; None if that score is not released.
        strategies: the `StrategyPlan` of "bo", "gibo" and "choice", in this order.
        recommended: name of the recommended strategy, or "none". A rule of thumb: "gibo" from 8
            dimensions, if units times mu is below 300 and its noise is at most half of the clip;
            else "bo" if it detects 5 % of the range; else "choice" if it detects 10 %.
        detectable_gain: gain over the default model that the default search's test finds with
            probability .8, in the score's units, by differences clipped at a quarter of the range;
            of accuracy four times as much, because it differs by nothing or by the whole range.
        risk: the probability, at most, that this test takes a candidate that is no better.
    """

    units: int
    score_range: tuple[float, float]
    mu: float
    final_noise: float | None
    strategies: tuple[StrategyPlan, ...]
    recommended: str
    detectable_gain: float
    risk: float

    @checked
    def units_for(self, gain: Positive) -> int:
        """How many units the default search's test needs to find this gain with probability .8, at
        the same budget."""
        return math.ceil(self.units * self.detectable_gain / gain)

    def __str__(self) -> str:
        header = [
            "strategy",
            "releases",
            "model fits",
            "noise of one release",
            "detectable difference",
            "remark",
        ]
        rows = []
        for s in self.strategies:
            counts = [str(s.releases), str(s.model_fits)]
            differences = [_short(s.noise), _short(s.detectable_difference)]
            rows.append([s.name, *counts, *differences, s.remark])
        first = f"{self.units:,} units, scores in {self.score_range}, search at {self.mu:.3g}-GDP."
        if self.final_noise is not None:
            first += f" The chosen score is released separately, with noise {self.final_noise:.2g}."
        advice = self.recommended
        if advice == NONE:
            advice = "none; plan fewer evaluations, a larger budget or more units"
        found_gain = two_digits(self.detectable_gain, decimal.ROUND_UP)
        found = (
            f"DPSearch's default finds a gain of {found_gain} over your model with"
            f" probability .8 (risk {self.risk:g}); half of it needs {2 * self.units:,} units."
        )
        return f"{first}\n\n{_markdown(header, rows)}\n\nRecommended: {advice}.\n{found}"


@checked
def plan(
    units: Count,
    budget: Budget,
    *,
    evaluations: Count = 30,
    dimension: Count = 2,
    score_range: ScoreRange = (0.0, 1.0),
    final_share: float | None = 0.1,
    risk: Annotated[float, between(1e-6, 0.5)] = 0.1,
) -> Plan:
    """Compare what each strategy would cost and detect, under REPLACE_ONE and the default
    accounting. Reads no data.

    The strategies:
        "bo": Bayesian optimisation. Each model's mean score is released with noise, and a Gaussian
            process proposes the next point.
        "gibo": private gradients (`DPGIBO`). Each step fits dimension + 1 models and releases one
            noisy gradient, but no score.
        "choice": all models are fitted to public candidates. One private choice releases which of
            them is best, but no score.

    Args:
        units: public number of protected units.
        budget: (epsilon, delta) or mu.
        evaluations: number of models that the search may fit: points, candidates, or design points
            of private gradients.
        dimension: number of hyper-parameters that are searched.
        score_range: public (lower, upper) of one record's score.
        final_share: share of the budget that is kept for a separate release of the chosen
            configuration's score; None for no such release.
        risk: of the default search's test, from 1e-6 to 0.5.

    Returns:
        A `Plan`; print it as a table.
    """
    share = Fraction(1)
    final = None
    if final_share is not None:
        kept = exact_share(final_share, "final_share")
        share = exact_share(1 - kept, "1 - final_share")
        final = noise_per_evaluation(
            units, budget, evaluations=1, score_range=score_range, share=kept
        )
    warn_of_delta(budget, units)
    mu = math.sqrt(float(GDPFilter().cap(budget).parts[0] * share))
    strategies = (
        _bo(units, budget, evaluations, score_range, share),
        _gibo(units, budget, evaluations, dimension, share),
        _choice(units, budget, evaluations, score_range, share),
    )
    recommended = _recommended(strategies, score_range[1] - score_range[0], units * mu, dimension)
    gain = _detectable_gain(units, budget, score_range, risk)
    return Plan(units, score_range, mu, final, strategies, recommended, gain, risk)


@checked
def noise_per_evaluation(
    units: Count,
    budget: Budget,
    *,
    evaluations: Count,
    score_range: ScoreRange = (0.0, 1.0),
    share: float | Fraction = 1,
) -> float:
    """Standard deviation of one evaluation of a mean score under REPLACE_ONE: multiplier * (upper -
    lower) / units.

    Args:
        units, budget, score_range: as in `plan`.
        evaluations: number of evaluations that share the budget.
        share: share of the budget that they take together, in (0, 1].
    """
    lower, upper = score_range
    return calibrate(budget, releases=evaluations, share=share) * (upper - lower) / units


def detectable_difference(noise: float) -> float:
    """D = 2.33 s: the difference of two numbers that are released with noise of standard deviation
    s each, and whose order is wrong one time in twenty.
    """
    return _NORMAL * noise


@checked
def noise_table(
    units: Sequence[int],
    epsilons: Sequence[float],
    *,
    delta: float,
    evaluations: int,
    share: float | Fraction = 1,
    score_range: ScoreRange | None = None,
) -> str:
    """A Markdown table of `noise_per_evaluation`: one row a size, one column an epsilon.

    In the units of a score in `score_range`; omitted, for scores in [0, 1], in percentage points.
    """
    ends = (0.0, 100.0) if score_range is None else score_range
    rows = []
    for n in units:
        row = [f"{n:,}"]
        for epsilon in epsilons:
            noise = noise_per_evaluation(
                n, Budget(epsilon, delta), evaluations=evaluations, score_range=ends, share=share
            )
            row.append(f"{noise:.2g}")
        rows.append(row)
    header = ["units", *(f"eps {epsilon:g}" for epsilon in epsilons)]
    return _markdown(header, rows)


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose numbers, in all columns but those of words, lie to the right."""
    ends = ["---" if name in _WORDS else "---:" for name in header]
    lines = [f"| {' | '.join(row)} |" for row in (header, *rows)]
    return "\n".join([lines[0], f"|{'|'.join(ends)}|", *lines[1:]])


def _bo(
    units: int, budget: Budget, evaluations: int, score_range: tuple[float, float], share: Fraction
) -> StrategyPlan:
    noise = noise_per_evaluation(
        units, budget, evaluations=evaluations, score_range=score_range, share=share
    )
    difference = _within_range(detectable_difference(noise), score_range)
    remark = "a Gaussian process averages over all released scores and proposes the next point"
    return StrategyPlan(BO, evaluations, evaluations, noise, difference, remark)


def _gibo(
    units: int, budget: Budget, evaluations: int, dimension: int, share: Fraction
) -> StrategyPlan:
    steps = evaluations // (dimension + 1)
    if steps == 0:
        return StrategyPlan(
            GIBO, 0, 0, None, None, f"impossible: one step needs {dimension + 1} model fits"
        )
    rho = 2 * math.sqrt(dimension) * calibrate(budget, releases=steps, share=share) / units
    verdict = "usable"
    if rho > _NOISY:
        verdict = "too noisy" if rho > _HOPELESS else "noisy"
    remark = (
        f"{steps} steps; a gradient's noise is {rho:.2g} times its clip: {verdict}; for continuous"
        " parameters and smooth scores only"
    )
    return StrategyPlan(
        GIBO, steps, steps * (dimension + 1), None, None if rho <= _HOPELESS else math.inf, remark
    )


def _choice(
    units: int, budget: Budget, evaluations: int, score_range: tuple[float, float], share: Fraction
) -> StrategyPlan:
    accounting = GDPFilter()
    width = score_range[1] - score_range[0]
    if budget.epsilon is not None and budget.epsilon > _NEXT_TO_NONE:
        # A larger epsilon is next to no privacy, and a choice of it has next to no noise.
        budget = Budget(_NEXT_TO_NONE, budget.delta)
    multiplier = accounting.multiplier(PermuteAndFlipEvent, 1, accounting.cap(budget) * share)
    if multiplier is None or multiplier > _LARGEST:
        return StrategyPlan(
            CHOICE, 1, evaluations, None, math.inf, "the budget is too small for a private choice"
        )
    scale = multiplier * width / units
    loss = min(scale * (math.log(evaluations) + math.log(1 / _ERROR)), width)
    remark = (
        f"epsilon {2 / multiplier:.2g}; with probability 95 % the chosen candidate's mean score is"
        f" within {_short(loss)} of the best of {evaluations} candidates"
    )
    difference = _within_range(scale * math.log(0.5 / _ERROR), score_range)
    return StrategyPlan(CHOICE, 1, evaluations, None, difference, remark)


def _detectable_gain(
    units: int, budget: Budget, score_range: tuple[float, float], risk: float
) -> float:
    reach = (score_range[1] - score_range[0]) / 2 / units
    if budget.epsilon is not None:
        return reach * math.log(1.25 / risk) / (budget.epsilon * float(_TEST))
    quantiles = NormalDist().inv_cdf(1 - risk) + NormalDist().inv_cdf(_POWER)
    return reach * calibrate(budget, releases=1, share=_TEST) * quantiles


def _within_range(difference: float, score_range: tuple[float, float]) -> float:
    if difference <= score_range[1] - score_range[0]:
        return difference
    return math.inf


def _recommended(
    strategies: tuple[StrategyPlan, StrategyPlan, StrategyPlan],
    width: float,
    strength: float,
    dimension: int,
) -> str:
    bo, gibo, choice = strategies
    usable = gibo.releases > 0 and gibo.detectable_difference is None
    if dimension >= _MANY and strength < _FEW and usable:
        return GIBO
    if (bo.detectable_difference or 0.0) <= FINE * width:
        return BO
    if (choice.detectable_difference or 0.0) <= COARSE * width:
        return CHOICE
    return NONE


def two_digits(value: float, rounding: str) -> str:
    """A positive number in two digits, rounded as `decimal` names it: a bound stays one."""
    context = decimal.Context(prec=2, rounding=rounding)
    return f"{float(context.create_decimal_from_float(value)):.2g}"


def _short(value: float | None) -> str:
    if value is None:
        return "-"
    if math.isinf(value):
        return "never"
    return f"{value:.2g}"
