"""What the modeler of `benchmarks.outsourced` is given: true rows, the published transform's, or rows released with noise.

Sound transforms protect one row's move by a norm of at most 1, of rows with norm up to 25: one fiftieth of the diameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.outsourced_problems import Problem
from dpbo.accounting.gdp import mu_within
from dpbo.algorithms.outsourced import published_transform
from dpbo.models import l2_laplace_variance, noisy_inputs, unprojected

SOUND = ("l2-Laplace", "Gaussian", "projection + Gaussian")
PUBLISHED = "published, NOT PRIVATE"


@dataclass(frozen=True, eq=False)
class Rows:
    """What a modeler holds: `Z`, `n x k`; the noise variance of each coordinate of a row in the coordinates of `Z` (0 if none)."""

    Z: Tensor
    variance: float | Tensor = 0.0

    def kernel(self, problem: Problem) -> Any:
        """Of the value over these rows: the original one where they carry no noise, and in the paper's transform."""
        original = problem.kernel()
        noiseless = isinstance(self.variance, float) and self.variance == 0.0
        return original if noiseless else noisy_inputs(original, self.variance, dimension=self.Z.shape[1])


def published(problem: Problem, epsilon: float, r: int, generator: torch.Generator) -> Rows:
    """PO-GP-UCB's Z, turned into d coordinates where it has more columns: it has rank d, no distance changes, and searches are faster."""
    made = published_transform(problem.X, epsilon=epsilon, delta=problem.delta, r=r, generator=generator, allow_not_private=True)
    d = problem.X.shape[1]
    return Rows(made.Z if r <= d else made.Z @ torch.linalg.eigh(made.Z.mT @ made.Z).eigenvectors[:, -d:])


def released(X: Tensor, transform: str, epsilon: float, delta: float, k: int, generator: np.random.Generator) -> Rows:
    """PLACEHOLDER for releases by a curator: noise of the same laws by numpy, not from a curator's entropy, and charged to no ledger.

    Args:
        X: `n x d`.
        transform: one of SOUND.
        epsilon, delta: for one row that moves by a norm of at most 1; l2-Laplace needs no delta.
        k: columns of the projection, iid N(0, 1/k), published with the rows.
        generator: of everything random.
    """
    n, d = X.shape
    if transform == "l2-Laplace":
        direction = generator.standard_normal((n, d))
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        noise = direction * generator.gamma(d, 1 / epsilon, size=(n, 1))
        return Rows(X + torch.from_numpy(noise), l2_laplace_variance(d, 1 / epsilon))
    deviation = 1 / mu_within(epsilon, delta)
    if transform == "Gaussian":
        return Rows(X + torch.from_numpy(deviation * generator.standard_normal((n, d))), deviation**2)
    P = torch.from_numpy(generator.standard_normal((d, k)) / k**0.5)
    deviation *= float(torch.linalg.matrix_norm(P, 2))  # how far a move of norm 1 reaches after P
    return Rows(*unprojected(X @ P + torch.from_numpy(deviation * generator.standard_normal((n, k))), P, deviation**2))
