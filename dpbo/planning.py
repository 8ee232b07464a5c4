"""What a budget buys, before any record is touched: noise of one evaluation for so many units and such an epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from dpbo.accounting.calibrate import calibrate
from dpbo.privacy import Budget, require_count, require_range


def noise_per_evaluation(
    units: int, budget: Budget, *, evaluations: int, score_range: tuple[float, float] = (0.0, 1.0), budget_share: float | Fraction = 1
) -> float:
    """Standard deviation of one evaluation of a mean score under REPLACE_ONE: multiplier * (upper - lower) / units."""
    lower, upper = require_range("score_range", score_range)
    multiplier = calibrate(budget, releases=evaluations, share=budget_share)
    return multiplier * (upper - lower) / require_count("units", units)


def noise_table(
    units: Sequence[int], epsilons: Sequence[float], *, delta: float, evaluations: int, budget_share: float | Fraction = 1
) -> str:
    """A table (Markdown) of `noise_per_evaluation` for scores in [0, 1], in percentage points: a row a size, a column an epsilon."""
    budgets = [Budget(epsilon, delta) for epsilon in epsilons]
    header = "| units | " + " | ".join(f"eps {epsilon:g}" for epsilon in epsilons) + " |"
    rows = []
    for n in units:
        noises = (100 * noise_per_evaluation(n, budget, evaluations=evaluations, budget_share=budget_share) for budget in budgets)
        rows.append(f"| {n:,} | " + " | ".join(f"{noise:.2g}" for noise in noises) + " |")
    return "\n".join([header, "|---:" * (len(epsilons) + 1) + "|", *rows])
