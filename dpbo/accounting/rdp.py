"""Renyi and zero-concentrated DP read as (epsilon, delta).

(a, r)-RDP is (r + c(a, delta), delta)-DP with c(a, delta) = log((a-1)/a) - (log delta + log a)/(a-1) (Canonne, Kamath & Steinke 2020,
Proposition 12), and rho-zCDP is (a, a rho)-RDP for every a > 1. Each order gives a valid bound, so a search over orders can only be loose.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar

_UP = 1.0 + 1e-12


def conversions(orders: NDArray[np.float64], delta: float) -> NDArray[np.float64]:
    """c(order, delta) of several orders, rounded up."""
    if delta == 0.0:  # no order says anything there
        return np.full_like(orders, math.inf)
    values = np.log1p(-1.0 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1.0)
    return values + np.abs(values) * 1e-14


def conversion(order: float, delta: float) -> float:
    """c(order, delta) of one."""
    return float(conversions(np.array([float(order)]), delta)[0])


def epsilon_of_rho(rho: float, delta: float) -> float:
    """Smallest epsilon over all orders at which rho-zCDP is (epsilon, delta)-DP, rounded up."""
    if rho <= 0.0:
        return 0.0
    if delta == 0.0:
        return math.inf

    def at(log_excess: float) -> float:
        order = 1.0 + math.exp(log_excess)
        return order * rho + conversion(order, delta)

    best = minimize_scalar(at, bounds=(-30.0, 30.0), method="bounded", options={"xatol": 1e-12})
    return max(min(float(best.fun), at(0.5 * math.log(math.log(1 / delta) / rho))) * _UP, 0.0)


def rho_within(epsilon: float, delta: float) -> float:
    """Largest rho that is (epsilon, delta)-DP by this conversion, rounded down."""
    ceiling = 1.0
    while epsilon_of_rho(ceiling, delta) < epsilon:
        ceiling *= 2.0
    floor = ceiling
    while epsilon_of_rho(floor, delta) > epsilon:
        floor, ceiling = floor / 2.0, floor  # so near to each other that a search ends soon, however small they are
    rho = float(brentq(lambda r: epsilon_of_rho(r, delta) - epsilon, floor, ceiling, xtol=1e-300, rtol=1e-13))
    step = 1e-12
    while epsilon_of_rho(rho, delta) > epsilon:
        rho, step = rho / (1.0 + step), 2.0 * step
    return rho
