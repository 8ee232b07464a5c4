"""From (epsilon, delta, J iterations, K components) to the noise of one iteration, by the compositions that the DP-EM paper compares.

LLG: Laplace noise on the weights (1 release) and the means (K), Gaussian on the covariances (K). GGG: Gaussian on all 2K + 1. `epsilon` is
that of each Laplace release, `multiplier` the standard deviation over the l2 sensitivity of each Gaussian one. In the paper's compositions
a Gaussian release is (epsilon', delta')-DP by sigma = sqrt(2 ln(1.25/delta')) D / epsilon'; delta_i = 1e-6 is its choice. Under zCDP, the
moments accountant and Gaussian DP only the multiplier matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from dpbo.accounting.gdp import mu_within

EACH = 1e-6  # delta_i
COMPOSITIONS = ("linear", "advanced", "zCDP", "MA", "MA real", "GDP")


@dataclass(frozen=True)
class Noise:
    """Of one iteration: epsilon of each Laplace release (infinite: none), multiplier of each Gaussian one."""

    epsilon: float
    multiplier: float


def noise(composition: str, law: str, epsilon: float, delta: float, J: int, K: int) -> Noise:
    """The least noise that this composition allows. Raises ValueError where it allows none ("GDP" with Laplace noise)."""
    laplace, gaussian = (J * (K + 1), J * K) if law == "LLG" else (0, J * (2 * K + 1))
    match composition:
        case "linear":
            each = epsilon / (J * (2 * K + 1))
            return _classical(each, delta / gaussian, laplace)
        case "advanced":
            rest, M = delta - gaussian * EACH, J * (2 * K + 1)
            if rest <= 0:
                raise ValueError("delta is spent on the delta_i")
            return _classical(_solve(lambda e: M * e * math.expm1(e) + math.sqrt(2 * M * math.log(1 / rest)) * e - epsilon), EACH, laplace)
        case "zCDP":
            rho = (math.sqrt(epsilon + math.log(1 / delta)) - math.sqrt(math.log(1 / delta))) ** 2
            return _of(_solve(lambda e: _rho(e, laplace, gaussian) - rho), laplace)
        case "MA" | "MA real":
            orders = np.arange(1.0, 101.0) if composition == "MA" else np.geomspace(1e-2, 1e5, 4000)
            return _of(_solve(lambda e: _log_delta(e, laplace, gaussian, epsilon, orders) - math.log(delta)), laplace)
        case "GDP" if law == "GGG":
            return Noise(math.inf, joint(epsilon, delta, gaussian))
    raise ValueError(f"{composition} does not apply to {law}")


def joint(epsilon: float, delta: float, releases: int) -> float:
    """Multiplier of so many Gaussian releases by their exact composition."""
    return math.sqrt(releases) / mu_within(epsilon, delta)


def _classical(each: float, delta: float, laplace: int) -> Noise:
    return Noise(each if laplace else math.inf, math.sqrt(2 * math.log(1.25 / delta)) / each)


def _of(each: float, laplace: int) -> Noise:
    return _classical(each, EACH, laplace)


def _rho(each: float, laplace: int, gaussian: int) -> float:
    return laplace * each**2 / 2 + gaussian * each**2 / (4 * math.log(1.25 / EACH))


def _log_delta(each: float, laplace: int, gaussian: int, epsilon: float, orders: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """min over orders of the log moments' bound: alpha of a Laplace law in closed form, of a Gaussian lam (lam + 1) / (2 multiplier^2)."""
    up, down = orders * each + np.log((orders + 1) / (2 * orders + 1)), -(orders + 1) * each + np.log(orders / (2 * orders + 1))
    alpha = laplace * np.logaddexp(up, down) + gaussian * orders * (orders + 1) * each**2 / (4 * math.log(1.25 / EACH))
    return float((alpha - orders * epsilon).min())


def _solve(excess: Callable[[float], float]) -> float:
    """The root of an increasing function."""
    return float(brentq(excess, 1e-9, 50.0, xtol=1e-14))
