"""The DP-EM paper's own mechanisms: 2K + 1 separate releases an iteration, on records in the unit
ball, about the released means.

Constants, with N_k = N times the released weight, kept above 1: `paper` takes 1/N_k for a
covariance, as the authors' code does, which is four times too small: what it prints is NOT private.
`sound` takes 4/N_k and, for the weights, sqrt 2 / N in l2. Means are 2/N_k in l2 and 2 sqrt(d)/N_k
in l1 in both. Noise is drawn by numpy, because these are laws to be compared and no releases.

From (epsilon, delta, J iterations, K components) to the noise of one iteration, by the compositions
that the paper compares. LLG: Laplace noise on the weights (1 release) and the means (K), Gaussian
on the covariances (K). GGG: Gaussian on all 2K + 1. `epsilon` is that of each Laplace release,
`multiplier` the standard deviation over the l2 sensitivity of each Gaussian one. In the paper's
compositions a Gaussian release is (epsilon', delta')-DP by sigma = sqrt(2 ln(1.25/delta')) D /
epsilon'; delta_i = 1e-6 is its choice. Under zCDP, the moments accountant and Gaussian DP only the
multiplier matters.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq

from dpbo.accounting.gdp import mu_within
from dpbo.papers.em.gaussians import Gaussians
from dpbo.papers.em.moment_features import features

Floats = np.ndarray[Any, np.dtype[np.float64]]
COVARIANCE = {"paper": 1.0, "sound": 4.0}
# delta_i.
EACH = 1e-6
COMPOSITIONS = ("linear", "advanced", "zCDP", "MA", "MA real", "GDP")


@dataclass(frozen=True)
class Noise:
    """Of one iteration: epsilon of each Laplace release (infinite: none), multiplier of each
    Gaussian one.
    """

    epsilon: float
    multiplier: float


def noise(composition: str, law: str, epsilon: float, delta: float, J: int, K: int) -> Noise:
    """The least noise that this composition allows. Raises ValueError where it allows none ("GDP"
    with Laplace noise).
    """
    laplace, gaussian = (J * (K + 1), J * K) if law == "LLG" else (0, J * (2 * K + 1))
    match composition:
        case "linear":
            each = epsilon / (J * (2 * K + 1))
            return _classical(each, delta / gaussian, laplace)
        case "advanced":
            rest = delta - gaussian * EACH
            M = J * (2 * K + 1)
            if rest <= 0:
                raise ValueError("delta is spent on the delta_i")
            return _classical(
                _solve(
                    lambda e: (
                        M * e * math.expm1(e) + math.sqrt(2 * M * math.log(1 / rest)) * e - epsilon
                    )
                ),
                EACH,
                laplace,
            )
        case "zCDP":
            rho = (math.sqrt(epsilon + math.log(1 / delta)) - math.sqrt(math.log(1 / delta))) ** 2
            # Of the square of an epsilon each.
            spent = laplace / 2 + gaussian / (4 * math.log(1.25 / EACH))
            return _of(_solve(lambda e: spent * e**2 - rho), laplace)
        case "MA" | "MA real":
            orders = np.arange(1.0, 101.0) if composition == "MA" else np.geomspace(1e-2, 1e5, 4000)
            return _of(
                _solve(
                    lambda e: _log_delta(e, laplace, gaussian, epsilon, orders) - math.log(delta)
                ),
                laplace,
            )
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


def _log_delta(
    each: float,
    laplace: int,
    gaussian: int,
    epsilon: float,
    orders: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> float:
    """min over orders of the log moments' bound: alpha of a Laplace law in closed form, of a
    Gaussian lam (lam + 1) / (2 multiplier^2).
    """
    up = orders * each + np.log((orders + 1) / (2 * orders + 1))
    down = -(orders + 1) * each + np.log(orders / (2 * orders + 1))
    alpha = laplace * np.logaddexp(up, down) + gaussian * orders * (orders + 1) * each**2 / (
        4 * math.log(1.25 / EACH)
    )
    return float((alpha - orders * epsilon).min())


def _solve(excess: Callable[[float], float]) -> float:
    """The root of an increasing function."""
    return float(brentq(excess, 1e-9, 50.0, xtol=1e-14))


def paper_em(
    X: Floats, K: int, J: int, noise: Noise | None, constants: str, seed: int
) -> Gaussians:
    """EM from means uniform in the ball and covariances 0.1 I; None: without noise. X: rows in the
    unit ball.
    """
    generator = np.random.default_rng(seed)
    n, d = X.shape
    means = generator.normal(size=(K, d))
    means *= generator.uniform(size=(K, 1)) ** (1 / d) / np.linalg.norm(
        means, axis=1, keepdims=True
    )
    mixture = Gaussians(
        torch.full((K,), 1 / K).double(),
        torch.from_numpy(means),
        0.1 * torch.eye(d).double().repeat(K, 1, 1),
        "full",
    )
    Z = torch.from_numpy(X)
    phi = features(Z.T.contiguous(), "full")
    for _ in range(J):
        gamma = torch.softmax(mixture.natural() @ phi, 0).numpy()
        mixture = _step(X, gamma, noise, COVARIANCE[constants], constants, generator, n, d)
    return mixture


def _step(
    X: Floats,
    gamma: Floats,
    noise: Noise | None,
    factor: float,
    constants: str,
    generator: np.random.Generator,
    n: int,
    d: int,
) -> Gaussians:
    weights = gamma.mean(1)
    if noise is not None:
        weights = weights + _drawn(
            generator, noise, len(gamma), 2 / n, (2 if constants == "paper" else math.sqrt(2)) / n
        )
    weights = weights.clip(1 / n, 1)
    weights /= weights.sum()
    counts = (n * weights).clip(1.0)
    sums = gamma @ X
    means = []
    covariances = []
    own = counts if noise is not None else gamma.sum(1).clip(1e-9)
    for k, count in enumerate(own):
        mean = sums[k] / count
        if noise is not None:
            mean = mean + _drawn(generator, noise, d, 2 * math.sqrt(d) / count, 2 / count)
        mean /= max(1.0, float(np.linalg.norm(mean)))
        centred = X - mean
        covariance = (centred.T * gamma[k]) @ centred / count
        if noise is not None:
            upper = np.triu(generator.normal(size=(d, d))) * noise.multiplier * factor / count
            covariance = covariance + upper + np.triu(upper, 1).T
        values, vectors = np.linalg.eigh(covariance)
        covariances.append((vectors * values.clip(1e-3)) @ vectors.T)
        means.append(mean)
    return Gaussians(
        torch.from_numpy(weights),
        torch.from_numpy(np.array(means)),
        torch.from_numpy(np.array(covariances)),
        "full",
    )


def _drawn(generator: np.random.Generator, noise: Noise, size: int, l1: float, l2: float) -> Floats:
    if math.isfinite(noise.epsilon):
        return generator.laplace(scale=l1 / noise.epsilon, size=size)
    return generator.normal(scale=noise.multiplier * l2, size=size)
