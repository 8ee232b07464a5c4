"""The attack that undoes PO-GP-UCB's Algorithm 1: from known rows every other row, and which of
several tables was published. `dpbo.papers.po_gp_ucb.transform` says why it works.
"""

from collections.abc import Sequence

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
