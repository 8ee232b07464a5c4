"""A privacy profile in one direction, as the law of a loss with finitely many values: what a bound on selections starts from.

`Side` holds P-masses p_i at losses l_i and at infinity. Its profile delta(e) = sum_i p_i (1 - e^(e - l_i))_+ + p_inf is convex and
piecewise linear in x = e^e, with kinks at e^(l_i). Two ways there: the exact losses of two finite laws, or `connected`, the chords through
upper bounds on delta at some e: the lower convex hull of (0, 1) and the points (e^e, delta) lies above every convex curve that does not
pass them, and its kinks give back a pair that dominates (Doroshenko et al. 2022).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_BLOCK = 1 << 22
_GRAIN = 2.0**-30
_UP = 1.0 + 1e-12  # covers the rounding of a crossing


@dataclass(frozen=True, eq=False)
class Side:
    """P's law of the loss log P/Q.

    Attributes:
        losses: finite values, rising strictly.
        masses: P-mass at each.
        infinite: P-mass where Q has none.
    """

    losses: Array
    masses: Array
    infinite: float = 0.0

    @classmethod
    def connected(cls, epsilons: Array, deltas: Array) -> Self:
        """The pair whose profile joins these upper bounds by chords. `epsilons` rise; the last bound becomes mass at infinity."""
        x = np.concatenate([[0.0], np.exp(epsilons)])
        y = np.concatenate([[1.0], np.maximum(deltas, np.maximum(-np.expm1(epsilons), 0.0))])
        y = np.minimum.accumulate(y)
        kept = _below(x, y)
        kept = kept[: int(np.argmax(y[kept] <= y[-1])) + 1]  # nothing changes after the lowest bound is reached
        slopes = np.append(np.diff(y[kept]) / np.diff(x[kept]), 0.0)
        masses = x[kept[1:]] * np.maximum(np.diff(slopes), 0.0)
        return cls(epsilons[kept[1:] - 1], masses, float(y[kept[-1]]))

    @classmethod
    def of_laws(cls, p: Array, q: Array) -> Self:
        """Of two laws on the same few outcomes; losses are rounded up to a grid, so that no two are nearly alike."""
        seen = (p > 0) & (q > 0)
        steps, place = np.unique(np.ceil(np.log(p[seen] / q[seen]) / _GRAIN), return_inverse=True)
        return cls(
            np.asarray(steps * _GRAIN, dtype=np.float64), np.bincount(place, p[seen], len(steps)).astype(np.float64), float(p[q == 0].sum())
        )

    def delta(self, epsilons: Array) -> Array:
        """The profile at each."""
        flat = np.atleast_1d(epsilons).ravel()
        rows = max(_BLOCK // max(len(self.losses), 1), 1)
        parts = [-np.expm1(np.minimum(flat[i : i + rows, None] - self.losses, 0.0)) @ self.masses for i in range(0, len(flat), rows)]
        return (np.concatenate(parts) + self.infinite).reshape(np.shape(epsilons))

    @functools.cached_property
    def kinks(self) -> tuple[Array, Array]:
        """(x, delta) where the profile bends, from x = 0 on."""
        return np.concatenate([[0.0], np.exp(self.losses)]), np.concatenate([[1.0], self.delta(self.losses)])

    def tradeoff(self, u: Array) -> Array:
        """min over x of (x u + delta(x)), at most 1: no set of Q-mass u has more P-mass.

        The minimum over lines is taken at kinks: the index is the number of chords that fall faster than u.
        """
        x, y = self.kinks
        steepness = -np.diff(y) / np.diff(x)
        place = len(steepness) - np.searchsorted(steepness[::-1], u, side="right")
        return np.minimum(x[place] * u + y[place], 1.0)

    def crossing(self, a: float, b: float) -> float:
        """The t >= 0 with a delta(log(1 + t)) = b t, for a, b >= 0, rounded up; infinite where there is none.

        Written in t = e^e - 1 and without differences, it keeps its digits where losses are tiny.
        """
        t, y = np.concatenate([[-1.0], np.expm1(self.losses)]), self.kinks[1]
        below = np.flatnonzero(a * y <= b * t)
        if len(below) == 0:
            return a * self.infinite / b * _UP if b > 0 else np.inf
        j = int(below[0])
        fall = max(float((y[j - 1] - y[j]) / (t[j] - t[j - 1])), 0.0)  # there delta = y_j + fall (t_j - t)
        return a * float(y[j] + fall * t[j]) / (b + a * fall) * _UP


@dataclass(frozen=True, eq=False)
class Base:
    """What one run guarantees: its profile from P to Q, and back."""

    forward: Side
    reverse: Side

    @classmethod
    def of_laws(cls, p: Array, q: Array) -> Self:
        """Of two laws on the same few outcomes."""
        return cls(Side.of_laws(p, q), Side.of_laws(q, p))

    @classmethod
    def response(cls, epsilon: float) -> Self:
        """Randomised response, which dominates every pure-epsilon pair in both directions."""
        rare = 1.0 / (1.0 + np.exp(epsilon))
        side = Side(np.array([-epsilon, epsilon]), np.array([rare, 1.0 - rare]))
        return cls(side, side)

    def swapped(self) -> Base:
        """The other direction."""
        return Base(self.reverse, self.forward)


def _below(x: Array, y: Array) -> NDArray[np.int64]:
    """Indices of the lower convex hull of points whose x rise, by one sweep."""
    xs, ys, hull = x.tolist(), y.tolist(), list[int]()
    for i in range(len(xs)):
        while len(hull) >= 2:
            a, b = hull[-2], hull[-1]
            if (ys[b] - ys[a]) * (xs[i] - xs[b]) < (ys[i] - ys[b]) * (xs[b] - xs[a]):
                break
            hull.pop()
        hull.append(i)
    return np.array(hull, dtype=np.int64)
