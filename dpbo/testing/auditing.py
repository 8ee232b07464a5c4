"""Empirical lower bounds on what a mechanism leaks, from many runs on two worst-case data sets.

An attack sees one output and guesses the data set by a threshold on some statistic. A guarantee
bounds its true-positive rate for each false-positive rate. Half of the draws choose the statistic
and the threshold; the other half measure the rates, with Clopper-Pearson bounds, so the result is
wrong with probability at most `level`, the error level, whatever was chosen. A guarantee below the
bound is refuted. A bound far below the guarantee says that the audit is weak, not that the
mechanism is strong: `reachable` is what this many draws can show of a Gaussian mechanism of exactly
that mu.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import beta

from dpbo.errors import InputError
from dpbo.validation import Count, Delta, Finite, Positive, at_least, between, checked

LEVEL = 1e-6
Level = Annotated[float, between(1e-30, 0.5)]
_GRID = np.linspace(0.001, 0.999, 200)

Draw = Callable[[int, int], NDArray[Any]]
Statistic = Callable[[NDArray[Any]], NDArray[np.float64]]
# outputs on data set 0 and on data set 1
Sides = tuple[NDArray[np.float64], NDArray[np.float64]]


@checked
@dataclass(frozen=True)
class Audit:
    """The result of `audit`: a lower bound on what the mechanism leaks, which is wrong with
    probability at most `level`.

    Attributes:
        mu: the mechanism is not mu'-GDP for any mu' below this.
        true_positives: lower bound on the true-positive rate of the attack that shows it.
        false_positives: upper bound on its false-positive rate.
        runs: draws on each data set that the rates were measured from.
        level: the error level: largest probability that the bounds are wrong.
    """

    mu: float
    true_positives: float
    false_positives: float
    runs: int
    level: float

    def epsilon(self, delta: Delta) -> float:
        """The mechanism is not (epsilon', delta)-DP for any epsilon' below this."""
        excess = self.true_positives - delta
        if excess > 0:
            return max(math.log(excess / self.false_positives), 0.0)
        return 0.0

    def __str__(self) -> str:
        return (
            f"at least {math.floor(self.mu * 1e4) / 1e4:g}-GDP ({self.runs:,} measured runs a side,"
            f" error level {self.level:g})"
        )


@checked
def audit(
    draw: Draw,
    *,
    runs: Annotated[int, at_least(100)],
    statistic: Statistic | None = None,
    threshold: Finite | None = None,
    delta: Delta | None = None,
    level: Level = LEVEL,
) -> Audit:
    """Lower bound on mu, or on epsilon at a delta, from many draws on each of two neighbouring data
    sets.

    Args:
        draw: `draw(which, count)` returns `count` independent outputs (shape `count` or `count x
            d`) on data set 0 or 1. Its noise must not be seeded anew in each call.
        runs: draws for the bound, per data set. As many again choose the attack, unless a threshold
            is given. To show 90 % of mu takes about (125 / mu)^2 at level 1e-6.
        statistic: maps outputs to one number each, larger for data set 1. By default the projection
            on the difference of means, scaled by the covariance, which is the likelihood ratio for
            Gaussian noise.
        threshold: threshold on the statistic, if it was fixed before any draw; then none are spent
            on choosing one. Needs `statistic`.
        delta: choose the attack that shows the largest epsilon at this delta, instead of the
            largest mu.
        level: the error level: largest probability that the bound is wrong.

    Returns:
        An `Audit`: compare its `mu`, or `epsilon(delta)`, with the guarantee.

    Raises:
        InputError: an argument outside its range, or draws that are too few or the same in two
            calls.
    """
    if threshold is not None and delta is not None:
        raise InputError("delta", delta, "left out with a threshold", "It chooses one.")
    if threshold is not None:
        if statistic is None:
            raise InputError("threshold", threshold, "left out without a statistic")
        return _counted(_outputs(draw, runs), statistic, threshold, level)
    learned = zeros, ones = _outputs(draw, runs)
    if statistic is None:
        covariance = np.atleast_2d(
            np.cov(np.concatenate([zeros - zeros.mean(0), ones - ones.mean(0)]).T)
        )
        direction = np.linalg.lstsq(covariance, ones.mean(0) - zeros.mean(0), rcond=None)[0]

    def score(outputs: NDArray[np.float64]) -> NDArray[np.float64]:
        if statistic is None:
            return outputs @ direction
        return statistic(outputs)

    chosen = _best_threshold(np.sort(score(zeros)), np.sort(score(ones)), runs, level, delta)
    measured = _outputs(draw, runs)
    if any(np.array_equal(old, new) for old, new in zip(learned, measured, strict=True)):
        raise InputError("draw", draw, "independent in every call", "Do not seed inside draw.")
    return _counted(measured, score, chosen, level)


@checked
def reachable(mu: Positive, runs: Count, level: Level = LEVEL) -> float:
    """About the bound on mu that `audit`, with these runs and level, finds for a Gaussian mechanism
    that is exactly mu-GDP: its power.
    """
    thresholds = np.linspace(-4.0, 4.0 + mu, 2000)
    return max(
        _measured(round(runs * ndtr(mu - t)), round(runs * ndtr(-t)), runs, level).mu
        for t in thresholds
    )


def _counted(measured: Sides, score: Statistic, threshold: float, level: float) -> Audit:
    false_hits, true_hits = (int((score(outputs) > threshold).sum()) for outputs in measured)
    return _measured(true_hits, false_hits, len(measured[0]), level)


def _measured(true_hits: int, false_hits: int, runs: int, level: float) -> Audit:
    lower = float(beta.ppf(level / 2, true_hits, runs - true_hits + 1)) if true_hits else 0.0
    if false_hits < runs:
        upper = float(beta.ppf(1 - level / 2, false_hits + 1, runs - false_hits))
    else:
        upper = 1.0
    mu = float(ndtri(lower) - ndtri(upper)) if lower > 0.0 and upper < 1.0 else 0.0
    return Audit(max(mu, 0.0), lower, upper, runs, level)


def _best_threshold(
    zeros: NDArray[np.float64],
    ones: NDArray[np.float64],
    runs: int,
    level: float,
    delta: float | None,
) -> float:
    """The threshold that gives the largest bound on the draws that choose it."""
    cuts = np.unique(np.concatenate([np.quantile(zeros, _GRID), np.quantile(ones, _GRID)]))
    true_hits = len(ones) - np.searchsorted(ones, cuts, side="right")
    false_hits = len(zeros) - np.searchsorted(zeros, cuts, side="right")
    bounds = []
    for hits in zip(true_hits.tolist(), false_hits.tolist(), strict=True):
        attack = _measured(*hits, runs, level)
        bounds.append(attack.mu if delta is None else attack.epsilon(delta))
    return float(cuts[int(np.argmax(bounds))])


def _outputs(draw: Draw, runs: int) -> Sides:
    """So many outputs on each data set."""

    def of(which: int) -> NDArray[np.float64]:
        outputs = np.asarray(draw(which, runs), dtype=np.float64)
        if len(outputs) != runs:
            raise InputError("draw", len(outputs), f"as many outputs as it is asked for ({runs})")
        return outputs.reshape(runs, -1)

    return of(0), of(1)
