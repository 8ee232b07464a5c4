"""Paired comparisons over replications: medians with bands, differences with 95 % t intervals."""

from __future__ import annotations

import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

Losses = Mapping[str, Sequence[float]]


class Difference(NamedTuple):
    """Mean of a - b with its 95 % interval, and how often a is below b."""

    mean: float
    low: float
    high: float
    wins: int
    total: int

    @property
    def worse(self) -> bool:
        """a is significantly above b."""
        return self.low > 0

    @property
    def better(self) -> bool:
        """a is significantly below b."""
        return self.high < 0

    def __str__(self) -> str:
        return f"{self.mean:+.3g} [{self.low:+.3g}, {self.high:+.3g}], below in {self.wins}/{self.total}"


def difference(a: Sequence[float], b: Sequence[float]) -> Difference:
    """The paired difference a - b."""
    gaps = [x - y for x, y in zip(a, b, strict=True)]
    mean, n = statistics.fmean(gaps), len(gaps)
    half = float(stats.t.ppf(0.975, n - 1)) * statistics.stdev(gaps) / math.sqrt(n) if n > 1 else math.inf
    return Difference(mean, mean - half, mean + half, sum(gap < 0 for gap in gaps), n)


def band(values: Sequence[float]) -> tuple[float, float, float]:
    """10 %, median, 90 %."""
    low, middle, high = np.quantile(np.asarray(values, dtype=np.float64), [0.1, 0.5, 0.9]).tolist()
    return low, middle, high


def picture(folder: pathlib.Path, name: str, title: str, losses: Losses) -> None:
    """Median and 10/90 % band of each method, as a PNG in the folder."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.8 + 0.3 * len(losses)), layout="constrained")
    axes = figure.subplots()
    for row, values in enumerate(losses.values()):
        low, middle, high = band(values)
        axes.plot([low, high], [row, row], color="tab:blue")
        axes.plot([middle], [row], "o", color="tab:blue")
    axes.set_yticks(range(len(losses)), list(losses))
    axes.invert_yaxis()
    axes.set_xlabel(title)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=120)
