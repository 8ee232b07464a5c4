"""The statistics that a Gaussian needs of a vector z, for four kinds of covariance, and how far
they can move.

    full, tied: (1, z, z_i z_j for i <= j)    diag: (1, z, z_i^2)    spherical: (1, z, |z|^2)

Lengths are in svec coordinates, where z_i z_j with i < j counts sqrt 2 times, so that |svec(A)| is
the Frobenius norm of A, and with weights (q, m, c) on the three blocks. For |z| <= 1 the squared
weighted length is at most q^2 + m^2 + c^2, attained at a unit axis.
"""

import math
from typing import Annotated

import torch

from dpbo.validation import one_of

COVARIANCES = ("full", "tied", "diag", "spherical")
# that keep a whole matrix
MATRICES = ("full", "tied")
Covariance = Annotated[str, one_of(*COVARIANCES)]


def width_of(covariance: str, d: int) -> int:
    """F, the number of statistics."""
    if covariance in MATRICES:
        return 1 + d + d * (d + 1) // 2
    return 1 + d + {"diag": d, "spherical": 1}[covariance]


def features(Z: torch.Tensor, covariance: str) -> torch.Tensor:
    """Statistics `F x rows`, float64, of columns `d x rows`."""
    d, rows = Z.shape
    # every row is written below
    phi = torch.empty(width_of(covariance, d), rows, dtype=torch.float64, device=Z.device)
    phi[0] = 1.0
    phi[1 : 1 + d] = Z
    match covariance:
        case "full" | "tied":
            for i, block in enumerate(torch.split(phi[1 + d :], list(range(d, 0, -1)))):
                torch.mul(Z[i:], Z[i], out=block)
        case "diag":
            torch.square(Z, out=phi[1 + d :])
        case _:
            phi[1 + d] = Z.square().sum(0)
    return phi


def statistic_degrees(covariance: str, d: int) -> torch.Tensor:
    """Degree of each statistic in z: `F`, int64."""
    rest = width_of(covariance, d) - 1 - d
    counts = torch.tensor([1, d, rest], device="cpu")
    return torch.arange(3, device="cpu").repeat_interleave(counts)


def isometry(covariance: str, d: int) -> torch.Tensor:
    """The factor of each statistic in svec coordinates: 1, or sqrt 2 off the diagonal. Shape
    `F`.
    """
    ones = torch.ones(width_of(covariance, d), dtype=torch.float64, device="cpu")
    if covariance in MATRICES:
        i, j = torch.triu_indices(d, d, device="cpu")
        ones[1 + d :][i != j] = math.sqrt(2.0)
    return ones


def distance_squared(weights: tuple[float, float, float], covariance: str) -> float:
    """Supremum over |z|, |z'| <= 1 of the squared distance of two vectors; q cancels.

    Full and tied: with r = |z|, r' = |z'|, t = -z.z' it is m^2 (r^2 + r'^2 + 2 t) + c^2 (r^4 + r'^4
    - 2 t^2), |t| <= r r'; turning z' makes t >= 0, and for fixed t both r and r' may grow to 1: 2
    m^2 (1 + t) + 2 c^2 (1 - t^2), largest at t = min(1, m^2 / 2c^2). Diagonal: a part of the
    coordinates of full, so no more (the same, from two dimensions on). Spherical: at opposite
    vectors m^2 (r + r')^2 + c^2 (r^2 - r'^2)^2, which grows when both are scaled up to r = 1, r' =
    1 - e: (2 - e)^2 (m^2 + c^2 e^2), whose largest value on [0, 1] is at e = 0 or at the larger
    root of m^2 = 2 c^2 e (1 - e). A weight of 0 leaves a block out; without the last one it is
    4 m^2, of opposite unit vectors.
    """
    m, c = weights[1] ** 2, weights[2] ** 2
    if c == 0.0:
        return 4.0 * m
    if covariance == "spherical":
        inner = 1.0 - 2.0 * m / c
        roots = [0.0] if inner < 0.0 else [0.0, (1.0 + math.sqrt(inner)) / 2.0]
        return max((2.0 - e) ** 2 * (m + c * e * e) for e in roots)
    t = min(1.0, m / (2.0 * c))
    return 2.0 * m * (1.0 + t) + 2.0 * c * (1.0 - t * t)
