"""The DP-EM paper's own mechanisms: 2K + 1 separate releases an iteration, on records in the unit ball, about the released means.

Constants, with N_k = N times the released weight, kept above 1: `paper` takes 1/N_k for a covariance, as the authors' code does, which is
four times too small: what it prints is NOT private. `sound` takes 4/N_k and, for the weights, sqrt 2 / N in l2. Means are 2/N_k in l2 and
2 sqrt(d)/N_k in l1 in both. Noise is drawn by numpy, because these are laws to be compared and no releases.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from benchmarks.dpem_compositions import Noise
from dpbo.algorithms.em.gaussians import Gaussians
from dpbo.queries.features import features

Floats = np.ndarray[Any, np.dtype[np.float64]]
COVARIANCE = {"paper": 1.0, "sound": 4.0}


def paper_em(X: Floats, K: int, J: int, noise: Noise | None, constants: str, seed: int) -> Gaussians:
    """EM from means uniform in the ball and covariances 0.1 I; None: without noise. X: rows in the unit ball."""
    generator, (n, d) = np.random.default_rng(seed), X.shape
    means = generator.normal(size=(K, d))
    means *= generator.uniform(size=(K, 1)) ** (1 / d) / np.linalg.norm(means, axis=1, keepdims=True)
    mixture = Gaussians(torch.full((K,), 1 / K).double(), torch.from_numpy(means), 0.1 * torch.eye(d).double().repeat(K, 1, 1), "full")
    Z = torch.from_numpy(X)
    phi = features(Z.T.contiguous(), 1.0, "full")
    for _ in range(J):
        gamma = torch.softmax(mixture.natural() @ phi, 0).numpy()
        mixture = _step(X, gamma, noise, COVARIANCE[constants], constants, generator, n, d)
    return mixture


def _step(
    X: Floats, gamma: Floats, noise: Noise | None, factor: float, constants: str, generator: np.random.Generator, n: int, d: int
) -> Gaussians:
    weights = gamma.mean(1)
    if noise is not None:
        weights = weights + _drawn(generator, noise, len(gamma), 2 / n, (2 if constants == "paper" else math.sqrt(2)) / n)
    weights = weights.clip(1 / n, 1)
    weights /= weights.sum()
    counts = (n * weights).clip(1.0)
    sums, means, covariances = gamma @ X, [], []
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
    return Gaussians(torch.from_numpy(weights), torch.from_numpy(np.array(means)), torch.from_numpy(np.array(covariances)), "full")


def _drawn(generator: np.random.Generator, noise: Noise, size: int, l1: float, l2: float) -> Floats:
    if math.isfinite(noise.epsilon):
        return generator.laplace(scale=l1 / noise.epsilon, size=size)
    return generator.normal(scale=noise.multiplier * l2, size=size)
