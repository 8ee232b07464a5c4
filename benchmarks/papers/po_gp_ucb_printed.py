"""PO-GP-UCB's Algorithm 1 (Kharkovskii et al. 2020) as printed, and the attack that undoes it.

The paper's guarantee is broken: its Theorem 1 is false for every n > d, and the transform gives no
privacy. The sound method is `dpbo.papers.po_gp_ucb.release_rows`, which adds noise to each row.

The paper centres the n x d matrix X, raises its singular values to sqrt(s^2 + omega^2) where the
smallest is below omega, and publishes Z = r^{-1/2} X M with M Gaussian, claiming (epsilon,
delta)-differential privacy for one row moved by a norm of at most 1. But:

1. Raising singular values, and M, act from the right: Z = X_c R M with R invertible, so every
   column of Z lies in the column space of X_c. Move row i by v: X_c' = X_c + (e_i - 1/n) v^T has
   another column space, and each law gives the other's support probability zero. Anyone who holds
   both candidates tells them apart with certainty, from any r >= 1 columns. No omega helps.
2. z_i - z_j = (x_i - x_j) B with one matrix B for all rows. Anyone who knows d + 1 affinely
   independent rows solves for B and, if r >= d, reads every other row, without knowing epsilon,
   omega, M or the branch: to 1e-12 of rows of norm 25 (`recover_rows`).
3. The branch taken is itself an answer about X: two neighbours on either side of omega are
   published by different laws. This alone breaks the theorem, for every n > d and already for r =
   1: with one singular value at omega and the others far above it, the laws of the output are as
   far apart as N(0, 1) and N(0, 2), for which epsilon = 1 needs delta >= 0.04.

The proof argues by the d singular values of X and misses that the law of Z's columns, N(0, X X^T /
r), has n - d zero ones, with a kernel that moves with the data. Where n = d + 1 and the centred
rows have rank d, that kernel is the constant vectors for all X, so 1. does not apply and 3. does.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def recover_rows(Z: Tensor, known: Tensor, indices: Sequence[int]) -> Tensor:
    """Every row of X from Z and a few known rows, `n x d`: exact where Z = X_c B with one matrix B
    for all rows.

    That holds for PO-GP-UCB's Algorithm 1 in either branch, random projections, and any rotation or
    scaling. Where each row has noise of its own, each is found up to its noise. Known differences
    give B by least squares, and x_i = x_j + (Z_i - Z_j) B^+ all the rest, where j stands for the
    mean of the known rows.

    Args:
        Z: the published rows, `n x r` with r >= d, float64.
        known: at least d + 1 affinely independent rows of X, `m x d`, float64.
        indices: which rows of Z they are.
    """
    images = Z[list(indices)]
    origin = known.mean(0)
    image = images.mean(0)
    B = torch.linalg.pinv(known - origin) @ (images - image)
    return origin + (Z - image) @ torch.linalg.pinv(B)


def outside_column_space(Z: Tensor, X: Tensor) -> float:
    """The share of |Z| (Frobenius, columns centred) outside the column space of the centred X:
    rounding where Z = X_c B, else more.
    """
    U, S, _ = torch.linalg.svd(X - X.mean(0), full_matrices=False)
    U = U[:, S > 1e-12 * S[0]]
    centred = Z - Z.mean(0)
    return float(((centred - U @ (U.mT @ centred)).norm() / centred.norm()).detach())


def identify_table(Z: Tensor, tables: Sequence[Tensor]) -> int:
    """Index of the table, among several of shape `n x d`, that Z was made of: the one whose column
    space leaves least of Z outside.
    """
    return min(range(len(tables)), key=lambda table: outside_column_space(Z, tables[table]))


@dataclass(frozen=True, eq=False)
class NotPrivateRows:
    """Algorithm 1's output, with numbers that it does not publish but a reproduction needs. Nothing
    of it is private.

    Attributes:
        Z: `n x r`.
        inflated: whether the else-branch was taken, raising the singular values.
        omega: its threshold.
        sigma_min: the least singular value of the centred X.
    """

    Z: Tensor
    inflated: bool
    omega: float
    sigma_min: float


def po_gp_ucb_omega(*, epsilon: float, delta: float, r: int) -> float:
    """16 sqrt(r log(2/delta)) log(16 r/delta) / epsilon, line 5: the root covers the logarithm (it
    reproduces the paper's choices of r).
    """
    return 16.0 * math.sqrt(r * math.log(2.0 / delta)) * math.log(16.0 * r / delta) / epsilon


def po_gp_ucb_transform(
    X: Tensor, *, epsilon: float, delta: float, r: int, generator: torch.Generator
) -> NotPrivateRows:
    """Algorithm 1 on X. NOT PRIVATE: the paper's guarantee is broken, see above.

    Args:
        X: `n x d`, float64, n > d; scaled as wanted (the paper: to norm at most 25, after
            centring).
        epsilon, delta: numbers of the formula for omega; they promise nothing.
        r: columns of Z.
        generator: of M, on the CPU.
    """
    omega = po_gp_ucb_omega(epsilon=epsilon, delta=delta, r=r)
    d = X.shape[1]
    M = torch.randn(d, r, generator=generator, dtype=torch.float64, device="cpu").to(X.device)
    centred = X.detach() - X.detach().mean(0)
    U, S, Vh = torch.linalg.svd(centred, full_matrices=False)
    inflated = float(S[-1]) < omega
    rows = U * (S.square() + omega**2).sqrt() @ Vh if inflated else centred
    return NotPrivateRows(rows @ M / math.sqrt(r), inflated, omega, float(S[-1]))
