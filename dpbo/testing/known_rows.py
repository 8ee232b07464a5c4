"""The attack of who knows a few rows on a published linear image of a table: read all the others, or tell two tables apart.

Two instances: rows published as Z = X_c B with one matrix B for all rows (PO-GP-UCB's Algorithm 1 in either branch, random projections, any
rotation or scaling), where it is exact; and rows released each with noise of its own, where it finds each row up to its noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from dpbo.checking import POINTS, Index, checked
from dpbo.errors import InputError
from dpbo.models.kernel_derivatives import require_float64

Points = Annotated[Tensor, POINTS]


@checked
def recover_rows(Z: Points, known: Points, indices: Sequence[Index]) -> Tensor:
    """Every row of X from Z and a few known rows, `n x d`.

    Z_i - Z_j = (x_i - x_j) B: the known differences give B by least squares, and x_i = x_j + (Z_i - Z_j) B^+ all the rest, j standing
    for the mean of the known rows. Neither what B is made of nor any parameter of the release is needed.

    Args:
        Z: what was published, `n x r` with r >= d, float64.
        known: at least d + 1 affinely independent rows of X, `m x d`, float64.
        indices: which rows of Z they are.

    Raises:
        InputError: too few columns, or known rows that do not span the space.
    """
    require_float64("Z", Z)
    d = require_float64("known", known).shape[-1]
    if max(indices, default=0) >= len(Z):
        raise InputError("indices", max(indices), f"below {len(Z)}, the number of rows of Z")
    if len(known) != len(indices) or Z.shape[-1] < d:
        raise InputError("Z", tuple(Z.shape), f"of at least {d} columns, with an index for each known row")
    images = Z[list(indices)]
    origin, image = known.mean(0), images.mean(0)
    if len(known) <= d or int(torch.linalg.matrix_rank(known - origin)) < d:
        raise InputError("known", tuple(known.shape), f"at least {d + 1} affinely independent rows")
    B = torch.linalg.pinv(known - origin) @ (images - image)
    return origin + (Z - image) @ torch.linalg.pinv(B)


@checked
def outside_column_space(Z: Points, X: Points) -> float:
    """The share of |Z| (Frobenius, columns centred) outside the column space of the centred X: rounding where Z = X_c B, else more."""
    if len(Z) != len(X):
        raise InputError("Z", tuple(Z.shape), f"of {len(X)} rows, as X")
    U, S, _ = torch.linalg.svd(X - X.mean(0), full_matrices=False)
    U = U[:, S > 1e-12 * S[0]]
    centred = Z - Z.mean(0)
    return float(((centred - U @ (U.mT @ centred)).norm() / centred.norm()).detach())


@checked
def which_published(Z: Points, tables: Sequence[Points]) -> int:
    """Which of several tables, `n x d` each, Z was made of: the one whose column space leaves least of Z outside."""
    if not tables:
        raise InputError("tables", 0, "one table or more")
    return min(range(len(tables)), key=lambda table: outside_column_space(Z, tables[table]))
