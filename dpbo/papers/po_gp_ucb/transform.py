"""PO-GP-UCB's Algorithm 1 (Kharkovskii et al. 2020) as printed, for reproduction only.

The paper's guarantee is broken: its Theorem 1 is false for every n > d, and the transform gives no
privacy. The sound method beside it is `release_rows`, which adds noise to each row.

The paper centres the n x d matrix X, raises its singular values to sqrt(s^2 + omega^2) where the
smallest is below omega, and publishes Z = r^{-1/2} X M with M Gaussian, claiming (epsilon,
delta)-differential privacy for one row moved by a norm of at most 1. But:

1. Raising singular values, and M, act from the right: Z = X_c R M with R invertible, so every
   column of Z lies in the column space of X_c. Move row i by v: X_c' = X_c + (e_i - 1/n) v^T has
   another column space, and each law gives the other's support probability zero. Anyone who holds
   both candidates tells them apart with certainty, from any r >= 1 columns. No omega helps.
2. z_i - z_j = (x_i - x_j) B with one matrix B for all rows. Anyone who knows d + 1 affinely
   independent rows solves for B and, if r >= d, reads every other row, without knowing epsilon,
   omega, M or the branch: to 1e-12 of rows of norm 25
   (`benchmarks/papers/po_gp_ucb_attack.py`).
3. The branch taken is itself an answer about X: two neighbours on either side of omega are
   published by different laws. This alone breaks the theorem, for every n > d and already for r =
   1: with one singular value at omega and the others far above it, the laws of the output are as
   far apart as N(0, 1) and N(0, 2), for which epsilon = 1 needs delta >= 0.04.

The proof argues by the d singular values of X and misses that the law of Z's columns, N(0, X X^T /
r), has n - d zero ones, with a kernel that moves with the data. Where n = d + 1 and the centred
rows have rank d, that kernel is the constant vectors for all X, so 1. does not apply and 3. does.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from dpbo.errors import InputError
from dpbo.validation import POINTS, Positive, Probability, at_least, checked

Points = Annotated[Tensor, POINTS]
Rank = Annotated[int, at_least(1, 100_000)]


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


@checked
def po_gp_ucb_omega(*, epsilon: Positive, delta: Probability, r: Rank) -> float:
    """16 sqrt(r log(2/delta)) log(16 r/delta) / epsilon, line 5: the root covers the logarithm (it
    reproduces the paper's choices of r).
    """
    return 16.0 * math.sqrt(r * math.log(2.0 / delta)) * math.log(16.0 * r / delta) / epsilon


@checked
def po_gp_ucb_transform(
    X: Points,
    *,
    epsilon: Positive,
    delta: Probability,
    r: Rank,
    generator: torch.Generator,
    allow_not_private: bool = False,
) -> NotPrivateRows:
    """Algorithm 1 on X. NOT PRIVATE: the paper's guarantee is broken, see above; `release_rows` is
    the sound method.

    Args:
        X: `n x d`, float64, n > d; scaled as wanted (the paper: to norm at most 25, after
            centring).
        epsilon, delta: numbers of the formula for omega; they promise nothing.
        r: columns of Z.
        generator: of M, on the CPU.
        allow_not_private: must be True, to say that these rows need no protection.

    Raises:
        InputError: not allowed so, or an argument out of range.
    """
    if allow_not_private is not True:
        remedy = "Its privacy theorem is false; release the rows through a curator instead."
        raise InputError(
            "allow_not_private",
            allow_not_private,
            "True, to publish rows without any privacy",
            remedy,
        )
    if X.shape[1] >= X.shape[0]:
        raise InputError("X", tuple(X.shape), "finite, of shape n x d with n > d")
    omega = po_gp_ucb_omega(epsilon=epsilon, delta=delta, r=r)
    d = X.shape[1]
    M = torch.randn(d, r, generator=generator, dtype=torch.float64, device="cpu").to(X.device)
    centred = X.detach() - X.detach().mean(0)
    U, S, Vh = torch.linalg.svd(centred, full_matrices=False)
    inflated = float(S[-1]) < omega
    rows = U * (S.square() + omega**2).sqrt() @ Vh if inflated else centred
    return NotPrivateRows(rows @ M / math.sqrt(r), inflated, omega, float(S[-1]))
