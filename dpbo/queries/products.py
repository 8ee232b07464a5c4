"""Matrix products in float64 that treat every record alike: the bits of a record's numbers depend
on no other record.
"""

import functools
import os

import torch
from torch import Tensor

from dpbo.errors import UsageError

_EMULATION = "CUBLAS_EMULATE_DOUBLE_PRECISION"


def require_true_products(device: torch.device) -> None:
    """Raise UsageError where float64 products would be emulated from narrower ones: how many bits
    are kept may follow the largest entry, so that one record moves the terms of others.
    """
    if device.type == "cuda" and os.environ.get(_EMULATION, "0") not in ("", "0"):
        raise UsageError(
            f"{_EMULATION} is set, so float64 products on {device} would be emulated, and sums of"
            " private records would no longer be exact. Unset it before the process starts."
        )


def deterministic_matmul(A: Tensor, X: Tensor) -> Tensor:
    """A X for float64 `a x n` and `n x columns`, where the bits of a column of A X depend on that
    column of X alone.

    X holds one record a column. A library may compute some columns by another kernel than the
    others, for example those left over beside whole tiles, or those at a thread's edge: their terms
    are then added in another order, and which column a record stands in depends on the other
    records. So each shape is tried once on equal columns. If the results differ, elementwise
    operations replace the product.
    """
    if _equal_columns_agree(*A.shape, X.shape[1], A.device, torch.get_num_threads()):
        return A @ X
    return elementwise_matmul(A, X)


def elementwise_matmul(A: Tensor, X: Tensor) -> Tensor:
    """A X by elementwise multiplications and additions in one fixed order."""
    total = torch.zeros(len(A), X.shape[1], dtype=X.dtype, device=X.device)
    for j, row in enumerate(X):
        total.add_(A[:, j : j + 1] * row)
    return total


@functools.cache
def _equal_columns_agree(
    rows: int, depth: int, columns: int, device: torch.device, _threads: int
) -> bool:
    """Whether a product of this shape, on so many threads, gives equal columns equal bits."""
    # no short sums
    A, x = (
        torch.arange(1.0, depth * size + 1.0, dtype=torch.float64, device="cpu")
        .sin()
        .reshape(depth, size)
        for size in (rows, 1)
    )
    found = A.T.contiguous().to(device) @ x.expand(depth, columns).contiguous().to(device)
    return torch.equal(found, found[:, :1].expand_as(found))
