"""What a budget buys, before any record is touched.

    print(dpbo.plan(5000, Budget(1.0, 1e-6), evaluations=40, dimension=4))

The noise of one evaluation, the smallest difference between two configurations that can be told apart, and what each strategy makes of the
same budget and the same number of model fits. All of it follows from public numbers. "Told apart" means that of two configurations whose
true scores differ by this much, the worse one looks better at most one time in twenty:
    private observations of noise s: Phi(-D / (s sqrt 2)) = 0.05, so D = 2.33 s;
    permute-and-flip of noise scale M (2 / epsilon) on sums that one unit moves by R: exp(-D n / (M R)) / 2 = 0.05, so D = M R log(10) / n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from dpbo.accounting.calibration import calibrate, exact_share
from dpbo.accounting.filters import GDPFilter
from dpbo.errors import InputError
from dpbo.events import PermuteAndFlipEvent
from dpbo.privacy import Budget, require_count, require_range
from dpbo.validation import checked

ONE_IN_TWENTY = 0.05
_NORMAL = 1.6448536269514722 * math.sqrt(2.0)  # 95 % of the difference of two equal normals
_FINE, _COARSE = 0.05, 0.1  # of the range: BO is worth its noise below the first; nothing is above the second
_NOISY, _HOPELESS = 0.2, 0.5  # noise of a private gradient over its clip
_MANY, _FEW = 8, 300.0  # dimensions, units times mu: where DP-GIBO was no worse than BO (benchmarks.dpgibo)
_SILENT = 200.0  # the largest noise multiplier of a private choice: epsilon 0.01
BO, GIBO, GRID, NONE = "bo", "gibo", "grid", "none"


@dataclass(frozen=True)
class StrategyPlan:
    """What one strategy makes of a budget.

    Attributes:
        name: "bo", "gibo" or "grid", as DPSearch calls them.
        releases: how many it makes; fits: how many models it trains.
        noise: standard deviation of one released mean score; None where no score is released.
        told_apart: smallest difference of two mean scores that is told apart; None where scores are not compared, infinite where never:
            no two differ by more than the range.
        remark: in words.
    """

    name: str
    releases: int
    fits: int
    noise: float | None
    told_apart: float | None
    remark: str


@dataclass(frozen=True)
class Plan:
    """The strategies side by side; `str()` is a table.

    Attributes:
        mu: what the search may spend of Gaussian DP; final_noise: standard deviation of the separate release of the chosen score.
        fits: name of the strategy that fits, or "none". A rule of thumb: BO where it tells 5 % of the range apart; else the grid, where it
            tells 10 %; DP-GIBO from 8 dimensions, where units times mu is below 300 and its noise is below half of the clip.
    """

    units: int
    score_range: tuple[float, float]
    mu: float
    final_noise: float | None
    strategies: tuple[StrategyPlan, ...]
    fits: str

    def __str__(self) -> str:
        rows = [[s.name, str(s.releases), str(s.fits), _short(s.noise), _short(s.told_apart), s.remark] for s in self.strategies]
        lines = [" | ".join(row) for row in [["strategy", "releases", "fits", "noise of one", "told apart", "remark"], *rows]]
        advice = "none: plan fewer evaluations, a larger budget or more units" if self.fits == NONE else self.fits
        final = "" if self.final_noise is None else f" The chosen score is released apart, with noise {self.final_noise:.2g}."
        table = "\n".join([f"| {lines[0]} |", "|---|---:|---:|---:|---:|---|", *(f"| {line} |" for line in lines[1:])])
        return f"{self.units:,} units, scores in {self.score_range}, search at {self.mu:.3g}-GDP.{final}\n\n{table}\n\nWhat fits: {advice}."


@checked
def plan(
    units: int,
    budget: Budget,
    *,
    evaluations: int = 30,
    dimension: int = 2,
    score_range: tuple[float, float] = (0.0, 1.0),
    final_share: float | None = 0.1,
) -> Plan:
    """What each strategy would cost and see, under REPLACE_ONE and the default accounting. Touches no data.

    Args:
        units: protected units, a public number.
        budget: (epsilon, delta) or mu.
        evaluations: model fits that the search may make: points, candidates, or design points of private gradients.
        dimension: hyper-parameters that are searched.
        score_range: public range of a record's score.
        final_share: of the budget, kept back for a separate release of the chosen configuration's score; None for no such release.
    """
    lower, upper = require_range("score_range", score_range)
    share = 1 - (exact_share(final_share, "final_share") if final_share is not None else Fraction(0))
    exact_share(share, "1 - final_share")
    require_count("units", units)
    mu = math.sqrt(float(GDPFilter().cap(budget).parts[0] * share))
    seen = (
        _bo(units, budget, require_count("evaluations", evaluations), (lower, upper), share),
        _gibo(units, budget, evaluations, require_count("dimension", dimension), share),
        _grid(units, budget, evaluations, upper - lower, share),
    )
    final = None if share == 1 else noise_per_evaluation(units, budget, evaluations=1, score_range=(lower, upper), share=1 - share)
    return Plan(units, (lower, upper), mu, final, seen, _fitting(seen, upper - lower, units * mu, dimension))


@checked
def noise_per_evaluation(
    units: int, budget: Budget, *, evaluations: int, score_range: tuple[float, float] = (0.0, 1.0), share: float | Fraction = 1
) -> float:
    """Standard deviation of one evaluation of a mean score under REPLACE_ONE: multiplier * (upper - lower) / units."""
    lower, upper = require_range("score_range", score_range)
    multiplier = calibrate(budget, releases=evaluations, share=share)
    return multiplier * (upper - lower) / require_count("units", units)


@checked
def noise_table(units: Sequence[int], epsilons: Sequence[float], *, delta: float, evaluations: int, share: float | Fraction = 1) -> str:
    """A table (Markdown) of `noise_per_evaluation` for scores in [0, 1], in percentage points: a row a size, a column an epsilon."""

    def cell(n: int, budget: Budget) -> str:
        return f"{100 * noise_per_evaluation(n, budget, evaluations=evaluations, share=share):.2g}"

    return _matrix(units, epsilons, [[cell(n, Budget(epsilon, delta)) for epsilon in epsilons] for n in units])


@checked
def plans_table(units: Sequence[int], epsilons: Sequence[float], plans: Sequence[Sequence[Plan]]) -> str:
    """A table (Markdown) of what fits, with the difference it tells apart or the noise of its gradient: a row a size."""
    return _matrix(units, epsilons, [[_fit(plan) for plan in row] for row in plans])


def _matrix(units: Sequence[int], epsilons: Sequence[float], cells: Sequence[Sequence[str]]) -> str:
    if len(cells) != len(units) or any(len(row) != len(epsilons) for row in cells):
        raise InputError("plans", f"{len(cells)} rows", f"one of {len(epsilons)} plans for each of the {len(units)} sizes")
    header = "| units | " + " | ".join(f"eps {epsilon:g}" for epsilon in epsilons) + " |"
    rows = [f"| {n:,} | " + " | ".join(row) + " |" for n, row in zip(units, cells, strict=True)]
    return "\n".join([header, "|---:" * (len(epsilons) + 1) + "|", *rows])


def _fit(plan: Plan) -> str:
    chosen = next((s for s in plan.strategies if s.name == plan.fits), None)
    if chosen is None:
        return NONE
    return chosen.name if chosen.told_apart is None else f"{chosen.name} {_short(chosen.told_apart)}"


def _bo(units: int, budget: Budget, evaluations: int, ends: tuple[float, float], share: Fraction) -> StrategyPlan:
    noise = noise_per_evaluation(units, budget, evaluations=evaluations, score_range=ends, share=share)
    told = _possible(_NORMAL * noise, ends[1] - ends[0])
    return StrategyPlan(BO, evaluations, evaluations, noise, told, "its model pools them, and looks where it pays")


def _gibo(units: int, budget: Budget, evaluations: int, dimension: int, share: Fraction) -> StrategyPlan:
    steps = evaluations // (dimension + 1)
    if steps == 0:
        return StrategyPlan(GIBO, 0, 0, None, None, f"needs {dimension + 1} fits a step")
    rho = 2 * math.sqrt(dimension) * calibrate(budget, releases=steps, share=share) / units
    verdict = "hopeless" if rho > _HOPELESS else "noisy" if rho > _NOISY else "usable"
    remark = f"{steps} steps, noise of a gradient {rho:.2g} of its clip: {verdict}; continuous parameters, smooth scores"
    return StrategyPlan(GIBO, steps, steps * (dimension + 1), None, None if rho <= _HOPELESS else math.inf, remark)


def _grid(units: int, budget: Budget, evaluations: int, width: float, share: Fraction) -> StrategyPlan:
    accounting = GDPFilter()
    multiplier = accounting.multiplier(PermuteAndFlipEvent, 1, accounting.cap(budget) * share)
    if multiplier is None or multiplier > _SILENT:
        return StrategyPlan(GRID, 1, evaluations, None, math.inf, "the budget is too small for a private choice")
    scale = multiplier * width / units
    most = scale * (math.log(evaluations) + math.log(1 / ONE_IN_TWENTY))
    remark = f"epsilon {2 / multiplier:.2g}; within {_short(min(most, width))} of the best of {evaluations} candidates, 19 times in 20"
    return StrategyPlan(GRID, 1, evaluations, None, _possible(scale * math.log(0.5 / ONE_IN_TWENTY), width), remark)


def _possible(difference: float, width: float) -> float:
    return difference if difference <= width else math.inf


def _fitting(seen: Sequence[StrategyPlan], width: float, strength: float, dimension: int) -> str:
    bo, gibo, grid = seen
    usable = gibo.releases > 0 and gibo.told_apart is None
    if dimension >= _MANY and strength < _FEW and usable:
        return GIBO
    if (bo.told_apart or 0.0) <= _FINE * width:
        return BO
    return GRID if (grid.told_apart or 0.0) <= _COARSE * width else NONE


def _short(value: float | None) -> str:
    return "-" if value is None else "never" if math.isinf(value) else f"{value:.2g}"
