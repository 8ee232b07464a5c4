"""The report's two charts as geometry: where the template draws lines, circles and texts. Numbers
only, so nothing needs escaping.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpbo.reporting.released_values import ReleasedValues

WIDTH = 840.0
HEIGHT = 280.0
# margins
_LEFT = 56.0
_RIGHT = 12.0
_TOP = 12.0
_BOTTOM = 34.0
# of one chart; more would cover each other
_MOST_DOTS = 2000


@dataclass(frozen=True)
class Tick:
    """A mark of an axis: where it is, in the chart's units, and its text."""

    place: float
    text: str


@dataclass(frozen=True)
class Dot:
    """A released value: its place, the ends of its noise bar, and its text."""

    x: float
    y: float
    low: float
    high: float
    text: str


@dataclass(frozen=True)
class ConvergenceChart:
    """Released values with the standard deviation of their noise, and the posterior mean of the
    best point so far.

    Attributes:
        dots: in the order of release; of many values, every `step`-th one.
        path: of the posterior mean, as an SVG path.
        best: place of the recommended point on that path.
        x_ticks, y_ticks: marks of the axes.
        step: how many values there are for each dot.
        left, right, bottom: ends of the plotting area.
    """

    dots: tuple[Dot, ...]
    path: str
    best: tuple[float, float]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    step: int = 1
    left: float = _LEFT
    right: float = WIDTH - _RIGHT
    bottom: float = HEIGHT - _BOTTOM

    @classmethod
    def of(cls, released: ReleasedValues) -> "ConvergenceChart":
        """The chart of a search."""
        y = released.Y[:, 0]
        std = released.Yvar[:, 0].sqrt()
        best_so_far = released.best_so_far.tolist()
        recommended = float(released.mean[released.best])
        low = min(float((y - std).min()), *best_so_far, recommended)
        high = max(float((y + std).max()), *best_so_far)
        margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
        low = low - margin
        high = high + margin

        def across(t: float) -> float:
            return round(_LEFT + (t - 0.5) / len(y) * (WIDTH - _LEFT - _RIGHT), 1)

        def up(value: float) -> float:
            return round(
                HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM), 1
            )

        step = math.ceil(len(y) / _MOST_DOTS)
        dots = []
        for t in range(1, len(y) + 1, step):
            v = float(y[t - 1])
            s = float(std[t - 1])
            text = f"evaluation {t}: {with_noise(v, s)}"
            dots.append(Dot(across(t), up(v), up(v - s), up(v + s), text))
        path = f"M{across(1)} {up(best_so_far[0])}"
        for t, (known, better) in enumerate(itertools.pairwise(best_so_far), 2):
            if better > known:
                path += f"H{across(t)}V{up(better)}"
        path += f"H{across(len(y) + 0.5)}"
        return cls(
            tuple(dots),
            path,
            (across(released.best + 1), up(recommended)),
            tuple(Tick(across(t), f"{t:.0f}") for t in ticks(1, len(y), 10) if t == int(t)),
            tuple(Tick(up(v), f"{v:.6g}") for v in ticks(low, high, 6)),
            step,
        )


@dataclass(frozen=True)
class Bar:
    """A part of the budget's bar: its name as the style sheet knows it, its ends in percent, its
    text.
    """

    kind: str
    start: float
    width: float
    text: str


def budget_bars(spent: float | None, reserved: float) -> tuple[Bar, ...]:
    """Used, reserved and left, as shares of the budget; what is used is None where it is not known
    apart from what is reserved.
    """
    bars = []
    start = 0.0
    for kind, end in (("used", spent or 0.0), ("reserved", reserved), ("left", 1.0)):
        # what rounding leaves is nothing
        end = 1.0 if end > 1.0 - 1e-9 else max(end, start)
        bars.append(Bar(kind, 100 * start, 100 * (end - start), percent(end - start)))
        start = end
    return tuple(bars)


def ticks(low: float, high: float, most: int) -> Sequence[float]:
    """At most so many round numbers from `low` to `high`: multiples of 1, 2 or 5 times a power of
    ten.
    """
    if not high > low:
        return [low]
    least = (high - low) / most
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [multiple * step for multiple in range(first, last + 1)]


def percent(share: float) -> str:
    """A share in percent, with three digits: 12.5 %."""
    return f"{100 * share:.3g} %"


def with_noise(value: float, std: float) -> str:
    """A value and the standard deviation of its noise, to two digits of the latter."""
    if not (math.isfinite(std) and std > 0):
        return f"{value:.6g}"
    decimals = 1 - math.floor(math.log10(std))
    if not -4 <= decimals <= 8:
        return f"{value:.4g} \u00b1 {std:.2g}"
    return f"{value:.{max(decimals, 0)}f} \u00b1 {std:.{max(decimals, 0)}f}"
