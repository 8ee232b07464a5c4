"""The attack that undoes PO-GP-UCB's Algorithm 1: from known rows every other row, and which of
several tables was published. `dpbo.papers.po_gp_ucb.transform` says why it works.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

# singular values below this share of the largest are rounding
_LEAST = 1e-9


def recover_rows(
    Z: Tensor,
    known: Tensor,
    indices: Sequence[int],
    *,
    noise: float = 0.0,
    public: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Every row of X from Z and a few known rows, `n x d`: exact where Z = X_c B with one matrix B
    for all rows, r >= d, and d + 1 of the known rows are affinely independent.

    That holds for PO-GP-UCB's Algorithm 1 in either branch, random projections, and any rotation or
    scaling. Where each row has noise of its own, each is found up to its noise. The columns of Z
    span those of X_c, so with W their orthonormal basis times sqrt n, X_c = W A with one matrix A.
    Least squares of the known rows on W, both about the known rows' mean, give A: with fewer than
    d + 1 rows the A of least norm, with rows known up to noise ridge regression.

    Args:
        Z: the published rows, `n x r`, float64.
        known: rows of X, exact or not, `m x d`, float64, m >= 1.
        indices: which rows of Z they are.
        noise: of a known coordinate, as a share of the deviation of X's.
        public: mean, `d`, and covariance, `d x d`, of the population where they are known. W has
            unit covariance, so that A is a rotation times the covariance's root, and its part that
            the known rows tell of is their Procrustes rotation; d rows then are enough.
    """
    centred = Z - Z.mean(0)
    U, S, _ = torch.linalg.svd(centred, full_matrices=False)
    W = U[:, S > _LEAST * S[0]] * len(Z) ** 0.5
    images = W[list(indices)]
    if public is None:
        design = torch.cat([images - images.mean(0), noise * torch.eye(W.shape[1], dtype=W.dtype)])
        A = torch.linalg.pinv(design, rtol=_LEAST)[:, : len(known)] @ (known - known.mean(0))
        return known.mean(0) + (W - images.mean(0)) @ A
    mean, covariance = public
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors * values.clamp_min(_LEAST * float(values[-1])).sqrt()
    white = torch.linalg.solve(root, (known - mean).mT).mT
    P, strength, Q = torch.linalg.svd(images.mT @ white, full_matrices=False)
    told = strength > _LEAST * strength[0]
    return mean + W @ P[:, told] @ Q[told] @ root.mT


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
