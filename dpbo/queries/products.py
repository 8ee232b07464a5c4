"""Matrix products of records in columns, each column's bits from its own numbers alone, wherever it stands.

A library may compute some columns by another kernel than others, such as those that whole tiles leave over, or where threads divide them.
The sums of a column are then added in another order, and which column a record stands in depends on who else is there. Whether it does is
tried once for each shape, on equal columns; where these come out unequal, plain multiplications and additions take the product's place.
"""

from __future__ import annotations

import functools

import torch


def by_columns(A: torch.Tensor, X: torch.Tensor) -> torch.Tensor:
    """A X, `a x n` and `n x columns`, float64."""
    if _alike(*A.shape, X.shape[1], A.device, torch.get_num_threads()):
        return A @ X
    return slow_product(A, X)


def slow_product(A: torch.Tensor, X: torch.Tensor) -> torch.Tensor:
    """A X in elementwise operations, each rounded by itself."""
    total = torch.zeros(len(A), X.shape[1], dtype=X.dtype, device=X.device)
    for j, row in enumerate(X):
        total.add_(A[:, j : j + 1] * row)
    return total


@functools.cache
def _alike(rows: int, depth: int, columns: int, device: torch.device, _threads: int) -> bool:
    """Whether equal columns have equal products here, in a product of this public shape on so many threads."""
    A, x = (torch.arange(1.0, depth * size + 1.0, dtype=torch.float64).sin().reshape(depth, size) for size in (rows, 1))  # no short sums
    found = A.T.contiguous().to(device) @ x.expand(depth, columns).contiguous().to(device)
    return torch.equal(found, found[:, :1].expand_as(found))
