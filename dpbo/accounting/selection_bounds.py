"""Bounds on the best of K private runs: its privacy profile, Renyi divergence and pure epsilon,
from those of one run.

A run Q(D) gives an outcome y with a score. K has a public distribution (dpbo.run_counts) and is
independent of everything else. Only the best y is released.
For a score level let a = P(S), b = Q(S) be the masses of what lies at or below it, u = 1 - a, v =
1 - b. The winner's law is

    A(y) = f(P(<= y)) - f(P(< y)) = p(y) int_0^1 f'(P(< y) + t p(y)) dt,       f(x) = E x^K,

K = 0 has mass f(0) on both sides, and every (u, v) obeys v <= T(u) = min_x [x u + drev(log x)],
drev the profile of Q against P.

Ratio bound. With R = sup over levels f'(a)/f'(b) and m = E K = sup f':
        delta_A(e + log R) <= m delta(e),
    as sum (p f'(a) - e^e' q f'(b))_+ = sum f'(a) (p - e^e' q f'(b)/f'(a))_+
                                      <= m sum (p - (e^e'/R) q)_+.
    Negative binomial: f'(a)/f'(b) = ((g + (1-g) v)/(g + (1-g) u))^(1+s) <= r^(1+s)
        iff (1-g)(v - r u) <= g (r - 1); so r is the root of (1-g) drev(log r) = g (r - 1).
    Poisson: log R = m sup (v - u) = m TV.
Envelope bound (any law). delta_A(e) <= E_P[ max over u of (f'(1-u) - e^(e-L) f'(1-T(u)))_+ ], L =
    log p/q the loss. Pointwise f'(b) >= f'(1-T(u)), and each outcome takes its worst u. The
    integrand in q is a largest of lines in p/q, so convex, an f-divergence: a dominating pair
    attains the most (Blackwell). On cells [u_i, u_i+1] the slope is taken at the left end and T at
    the right. For e >= 0; below, delta_A(-e) = 1 - e^-e + e^-e delta_A'(e) with the directions
    exchanged.
Renyi (Papernot & Steinke 2022, Theorem 2, negative binomial). R <= [e^((1-1/h) eps(h))
    g^(-1/h)]^(1+s) for every h >= 1, as E = "not S, or a coin of g" has P(E) = g + (1-g) u >= g and
    Q(E) <= (e^eps(h) P(E))^(1-1/h); int A^l A'^(1-l) <= m R^(l-1) int p^l q^(1-l). Their
    figures' ln(1/g - 1) for ln(1/g) is no bound for g > 1/2.
Renyi (Poisson). Let h = (l-1) v - l u <= (l-1) d, d = drev(log(l/(l-1))). Along the levels d(e^(m
    h)) = m e^(m h) (l p - (l-1) q), from e^-m to 1, so the mass e^-m of K = 0 is 1 - int m e^(m h)
    (l p - (l-1) q), and the moment is
        1 + int m e^(m h) [p^l q^(1-l) - l p + (l-1) q]
            <= 1 + m e^(m (l-1) d) (e^((l-1) eps(l)) - 1),
    as the bracket is nowhere negative. (Ties: A is a mean along the level, and x^l y^(1-l) is
    convex.) For every m > 0; where m >= 1 it is at most m e^((l-1)(eps(l) + m d)), the known
    Theorem 6, which is false for m < 1.
Renyi (fixed). Moment <= n R^(l-1) e^((l-1) eps(l)), and at most n eps(l). Pure runs: eps + log R, R
against randomised response; the negative binomial's is eps + (1+s) log((e^eps + g)/(1 + g e^eps)),
below (2+s) eps.

Rounds that propose by what earlier ones released, at densities within (c, C) of the prior
(DP-HyPO), have u = max(c u, 1 - C (1-u)) and T = min(1 - c (1-T), C T) in place, weights C f' and
c f': `spread`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpbo.run_counts import (
    FixedRuns,
    PoissonRuns,
    RunCountDistribution,
    TruncatedNegativeBinomial,
)

Array = NDArray[np.float64]
_BLOCK = 1 << 22
# covers the rounding of a crossing
_UP = 1.0 + 1e-12


@dataclass(frozen=True, eq=False)
class Profile:
    """A privacy profile in one direction: delta(e) = sum_i p_i (1 - e^(e - l_i))_+ + p_inf, for
    P-masses p_i at finitely many losses l_i.

    It is convex and piecewise linear in x = e^e, with kinks at e^(l_i). `connected` joins upper
    bounds on delta by chords: the lower convex hull of (0, 1) and the points (e^e, delta) lies
    above every convex curve that does not pass them, and its kinks give a pair that dominates
    (Doroshenko et al. 2022).

    Attributes:
        losses: finite values of the loss log P/Q, rising strictly.
        masses: P-mass at each.
        infinite: P-mass where Q has none.
    """

    losses: Array
    masses: Array
    infinite: float = 0.0

    @classmethod
    def connected(cls, epsilons: Array, deltas: Array) -> Self:
        """The profile that joins these upper bounds by chords. `epsilons` rise; the last bound
        becomes mass at infinity.
        """
        x = np.concatenate([[0.0], np.exp(epsilons)])
        y = np.concatenate([[1.0], np.maximum(deltas, np.maximum(-np.expm1(epsilons), 0.0))])
        y = np.minimum.accumulate(y)
        hull = _below(x, y)
        # nothing changes after the lowest bound is reached
        hull = hull[: int(np.argmax(y[hull] <= y[-1])) + 1]
        slopes = np.append(np.diff(y[hull]) / np.diff(x[hull]), 0.0)
        masses = x[hull[1:]] * np.maximum(np.diff(slopes), 0.0)
        return cls(epsilons[hull[1:] - 1], masses, float(y[hull[-1]]))

    def delta(self, epsilons: Array) -> Array:
        """delta at each epsilon."""
        flat = np.atleast_1d(epsilons).ravel()
        rows = max(_BLOCK // max(len(self.losses), 1), 1)
        parts = [
            -np.expm1(np.minimum(flat[i : i + rows, None] - self.losses, 0.0)) @ self.masses
            for i in range(0, len(flat), rows)
        ]
        return (np.concatenate(parts) + self.infinite).reshape(np.shape(epsilons))

    @functools.cached_property
    def kinks(self) -> tuple[Array, Array]:
        """(x, delta) where the profile bends, from x = 0 on."""
        return np.concatenate([[0.0], np.exp(self.losses)]), np.concatenate(
            [[1.0], self.delta(self.losses)]
        )

    def tradeoff(self, u: Array) -> Array:
        """min over x of (x u + delta(x)), at most 1: no set of Q-mass u has more P-mass.

        The minimum over lines is taken at kinks: the index is the number of chords that fall faster
        than u.
        """
        x, y = self.kinks
        steepness = -np.diff(y) / np.diff(x)
        place = len(steepness) - np.searchsorted(steepness[::-1], u, side="right")
        return np.minimum(x[place] * u + y[place], 1.0)

    def crossing(self, a: float, b: float) -> float:
        """The t >= 0 with a delta(log(1 + t)) = b t, for a, b >= 0, rounded up; infinite where
        there is none.

        Written in t = e^e - 1 and without differences, it keeps its digits where losses are tiny.
        """
        t = np.concatenate([[-1.0], np.expm1(self.losses)])
        y = self.kinks[1]
        below = np.flatnonzero(a * y <= b * t)
        if len(below) == 0:
            if b > 0:
                return a * self.infinite / b * _UP
            return np.inf
        j = int(below[0])
        # there delta = y_j + fall (t_j - t)
        fall = max(float((y[j - 1] - y[j]) / (t[j] - t[j - 1])), 0.0)
        return a * float(y[j] + fall * t[j]) / (b + a * fall) * _UP


@dataclass(frozen=True, eq=False)
class RunProfiles:
    """The profiles of one run: from P to Q, and back."""

    forward: Profile
    reverse: Profile

    @classmethod
    def response(cls, epsilon: float) -> Self:
        """Randomised response, which dominates every pure-epsilon pair in both directions."""
        rare = 1.0 / (1.0 + np.exp(epsilon))
        profile = Profile(np.array([-epsilon, epsilon]), np.array([rare, 1.0 - rare]))
        return cls(profile, profile)

    def swapped(self) -> RunProfiles:
        """The same with the directions exchanged."""
        return RunProfiles(self.reverse, self.forward)


def _below(x: Array, y: Array) -> NDArray[np.int64]:
    """Indices of the lower convex hull of points whose x rise, by one sweep."""
    xs = x.tolist()
    ys = y.tolist()
    hull = list[int]()
    for i in range(len(xs)):
        while len(hull) >= 2:
            a = hull[-2]
            b = hull[-1]
            if (ys[b] - ys[a]) * (xs[i] - xs[b]) < (ys[i] - ys[b]) * (xs[b] - xs[a]):
                break
            hull.pop()
        hull.append(i)
    return np.array(hull, dtype=np.int64)


CELLS = 12_000
_INNER = 1.0 + np.exp(np.linspace(math.log(0.02), math.log(1e5), 240))
# cells are coarse where the weight is below e^-40 of the largest
_DEEP = 40.0
_UP_BOUND = 1.0 + 1e-9
# of a logarithm and a few sums; divided by an order less one it may grow a thousandfold
_ROUNDING = 1e-15
_PLAIN = (1.0, 1.0)


def winner_profile(
    run_count: RunCountDistribution,
    runs: RunProfiles,
    epsilons: Array,
    *,
    cells: int = CELLS,
    spread: tuple[float, float] = _PLAIN,
) -> Array:
    """Upper bounds on the winner's delta at each epsilon >= 0, in the direction of `runs.forward`:
    the lesser of both bounds.
    """
    bound = envelope_bound(run_count, runs, epsilons, cells=cells, spread=spread)
    if spread == _PLAIN:
        bound = np.minimum(ratio_bound(run_count, runs, epsilons), bound)
    return np.minimum(bound * _UP_BOUND, 1.0)


def ratio_bound(run_count: RunCountDistribution, runs: RunProfiles, epsilons: Array) -> Array:
    """The ratio bound; 1 where there is no ratio."""
    shift = log_ratio(run_count, runs)
    if math.isfinite(shift):
        return run_count.mean * runs.forward.delta(epsilons - shift)
    return np.ones_like(epsilons)


def log_ratio(run_count: RunCountDistribution, runs: RunProfiles) -> float:
    """log R in closed form; infinite where there is no ratio."""
    match run_count:
        case TruncatedNegativeBinomial():
            return (1 + run_count.shape) * math.log1p(
                runs.reverse.crossing(1 - run_count.gamma, run_count.gamma)
            )
        case PoissonRuns():
            return run_count.rate * float(
                np.minimum(runs.forward.delta(np.zeros(())), runs.reverse.delta(np.zeros(())))
            )
        case FixedRuns():
            if run_count.runs == 1:
                return 0.0
            return (run_count.runs - 1) * math.log1p(runs.forward.crossing(1.0, 0.0))
    return math.inf


def envelope_bound(
    run_count: RunCountDistribution,
    runs: RunProfiles,
    epsilons: Array,
    *,
    cells: int = CELLS,
    spread: tuple[float, float] = _PLAIN,
) -> Array:
    """The envelope bound. `cells`: number of cells of levels; any number gives a bound."""
    w1, w2, breaks = _lines(run_count, runs, cells, spread)
    profile = runs.forward
    rows = max(_BLOCK // max(len(profile.losses), 1), 1)
    parts = []
    for i in range(0, len(epsilons), rows):
        z = np.exp(np.minimum(epsilons[i : i + rows, None] - profile.losses, 700.0))
        line = np.searchsorted(breaks, z)
        parts.append(np.maximum(w1[line] - z * w2[line], 0.0) @ profile.masses)
    return np.concatenate(parts) + profile.infinite * run_count.mean * spread[1]


def renyi(
    run_count: RunCountDistribution,
    run_curve: Callable[[Array], Array],
    orders: Array,
    runs: Callable[[], RunProfiles | None],
    *,
    inner: Array = _INNER,
) -> Array:
    """Renyi bounds of the winner, the larger of both directions; infinite where nothing follows.

    Args:
        run_curve: Renyi bounds of one run at given orders.
        runs: computes one run's profiles, which only some distributions need; None where it has
            none.
        inner: orders h among which the best bound on R is chosen.
    """
    curve = run_curve(orders)
    most = math.log(run_count.mean)
    match run_count:
        case TruncatedNegativeBinomial():
            ratio = (1 + run_count.shape) * float(
                ((1 - 1 / inner) * run_curve(inner) - math.log(run_count.gamma) / inner).min()
            )
            # at least one run, so most >= 0
            return curve + ratio + (most + _ROUNDING * (1 + most)) / (orders - 1)
        case PoissonRuns():
            found = runs()
            if found is None:
                return np.full_like(orders, math.inf)
            crossed = np.log1p(1 / (orders - 1)) * (1 - _ROUNDING)
            dh = np.maximum(found.forward.delta(crossed), found.reverse.delta(crossed))
            grown = (orders - 1) * np.maximum(curve, 0.0)
            with np.errstate(divide="ignore"):
                return np.logaddexp(
                    0.0,
                    most + run_count.rate * (orders - 1) * dh + grown + np.log(-np.expm1(-grown)),
                ) / (orders - 1)
    found = runs()
    if found is None:
        shift = math.inf
    else:
        shift = max(log_ratio(run_count, found), log_ratio(run_count, found.swapped()))
    grown = (orders - 1) * (curve + shift)
    by_shift = (most + grown + _ROUNDING * (1 + most + grown)) / (orders - 1)
    if isinstance(run_count, FixedRuns):
        return np.minimum(run_count.runs * curve, by_shift)
    return by_shift


def pure(run_count: RunCountDistribution, epsilon: float) -> float:
    """Pure epsilon of the winner, runs being pure `epsilon`; infinite where nothing follows in
    floats.
    """
    if epsilon <= 300.0:
        return (epsilon + log_ratio(run_count, RunProfiles.response(epsilon))) * (1 + 1e-12)
    return math.inf


@functools.lru_cache(maxsize=8)
def _lines(
    run_count: RunCountDistribution, runs: RunProfiles, cells: int, spread: tuple[float, float]
) -> tuple[Array, Array, Array]:
    """(w1, w2) of the lines w1 - z w2 that are the largest for some z >= 0, and the z at which one
    replaces the last.

    They are the upper hull of the points (w2, w1), both falling along the cells.
    """
    w1, w2 = _weights(run_count, runs, cells, spread)
    # of others neither weight is better
    kept = np.flatnonzero(np.diff(np.minimum.accumulate(w2), prepend=np.inf) < 0)
    w1 = w1[kept]
    w2 = w2[kept]
    hull = _below(-w2, -w1)
    w1 = w1[hull]
    w2 = w2[hull]
    return w1, w2, np.diff(w1) / np.diff(w2)


def _weights(
    run_count: RunCountDistribution, runs: RunProfiles, cells: int, spread: tuple[float, float]
) -> tuple[Array, Array]:
    """For each cell of levels the largest f'(a) and the least f'(b)."""
    u = _levels(run_count, runs, cells)
    left = u[:-1]
    right = runs.reverse.tradeoff(u[1:])
    c, C = spread
    if spread == _PLAIN:
        return run_count.slope(left), run_count.slope(right)
    return C * run_count.slope(np.maximum(c * left, 1 - C * (1 - left))), c * run_count.slope(
        np.minimum(1 - c * (1 - right), C * right)
    )


def _levels(run_count: RunCountDistribution, runs: RunProfiles, cells: int) -> Array:
    """0 = u_0 < ... = 1, so spread that neither weight falls much within a cell."""
    rough = np.unique(
        np.concatenate([np.geomspace(1e-15, 1.0, cells // 4), np.linspace(0.0, 1.0, cells // 4)])
    )
    with np.errstate(divide="ignore"):
        logs = [
            np.maximum(np.log(run_count.slope(level) / run_count.mean), -_DEEP)
            for level in (rough, runs.reverse.tradeoff(rough))
        ]
    effort = -logs[0] - logs[1]
    effort = effort / max(effort[-1], 1e-9) + np.linspace(0.0, 0.25, len(rough))
    fine = np.interp(np.linspace(0.0, effort[-1], cells // 2), effort, rough)
    return np.unique(np.concatenate([rough, fine]))
