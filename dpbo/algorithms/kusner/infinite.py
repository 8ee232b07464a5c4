"""Kusner et al.'s Algorithm 1 over [0, r]^d: the search is continuous, what is promised goes through a public grid [derived].

The papers announce this case and do not contain it. The grid has N points a coordinate, N^d in all, so that every x is within r d / N of
one in the l1 norm; P(sup |df/dx_j| > s) <= a exp(-s^2/b^2) for each j (Srinivas et al. 2010, Theorem 2) carries bounds from the grid to
the rest. Assumptions and status are those of `bounds`; failures are summed in the docstrings.

Arguments beyond `bounds`: points = N; dimension = d; side = r, units of x; a; b, units of y / x.
"""

from __future__ import annotations

import math

from dpbo.acquisition.ucb import SrinivasCompact
from dpbo.algorithms.kusner.bounds import mean_regret, neighbour_gap, noise_gap, theorem_1
from dpbo.errors import InputError
from dpbo.privacy import require_count, require_positive, require_probability


def grid_choice_sensitivity(*, points: int, dimension: int, kappa: float, delta: float) -> float:
    """Theorem 1 (corrected) for a choice among the N^d grid points, whatever points the search observed; probability 1 - delta."""
    count = require_count("points", points) ** require_count("dimension", dimension)
    return theorem_1(count=count, observations=1, kappa=kappa, delta=delta)


def grid_loss(*, points: int, dimension: int, side: float, a: float, b: float, delta: float) -> float:
    """max over [0, r]^d of f minus max over the grid <= b sqrt(log(2 d a / delta)) r d / N, with probability 1 - delta/2."""
    slope = _slope(a, b, 2.0 * dimension * a / require_probability("delta", delta))
    return slope * _spacing(points, dimension, side)


def compact_gap(*, points: int, dimension: int, side: float, a: float, b: float, kappa: float, delta: float) -> float:
    """c over the whole box: sup |f_V - f_V'| with probability 1 - delta, half of it at the grid points, half for the slopes.

    f_V - f_V' is a GP of kernel 2 (1 - kappa) k2: sqrt(2 (1 - kappa)) [sqrt(2 log(2 N^d / delta)) + b (r d / N) sqrt(log(2 d a / delta))].
    """
    count = require_count("points", points) ** require_count("dimension", dimension)
    at_grid = neighbour_gap(count=count, kappa=kappa, delta=delta, share=2.0)
    slope = _slope(a, b, 2.0 * dimension * a / delta)
    return at_grid + math.sqrt(2.0 * (1.0 - kappa)) * slope * _spacing(points, dimension, side)


def compact_value_sensitivity(
    *,
    points: int,
    dimension: int,
    side: float,
    a: float,
    b: float,
    observations: int,
    kappa: float,
    noise: float,
    gamma: float,
    delta: float,
) -> float:
    """Theorem 3 over the box: Omega/T + 2/T + c + q with probability 1 - delta; two regrets, c and q fail with delta/4 each.

    The search must use `SrinivasCompact` at delta/4. `gamma` bounds gamma_T over the box: the greedy bound of a grid does not.
    """
    beta = SrinivasCompact(dimension=dimension, side=side, a=a, b=b, delta=require_probability("delta", delta) / 4.0)(observations)
    found = mean_regret(observations=observations, noise=noise, gamma=gamma, beta=beta) + 2.0 / observations
    c = compact_gap(points=points, dimension=dimension, side=side, a=a, b=b, kappa=kappa, delta=delta / 4.0)
    return found + c + noise_gap(observations=observations, noise=noise, delta=delta)


def _slope(a: float, b: float, odds: float) -> float:
    require_positive("a", a)
    if odds <= 1.0:
        raise InputError("a", a, "above delta / (2 d)", "A larger a only weakens the assumption.")
    return require_positive("b", b) * math.sqrt(math.log(odds))


def _spacing(points: int, dimension: int, side: float) -> float:
    return require_positive("side", side) * require_count("dimension", dimension) / require_count("points", points)
