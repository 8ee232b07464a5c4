"""A Cholesky factor that grows by blocks of rows, and knows when it has drifted.

Appending b rows to N costs N^2 b + N b^2 + b^3/3 flops where a fresh factorisation costs N^3/3, and is as stable: it is the blocked
algorithm, spread over time. Storage doubles when full, so nothing is copied most times. A fixed probe vector v is multiplied by the
matrix as it grows; L (L^T v) against that product measures the backward error in 4 N^2 flops.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpbo.errors import InputError

_BLOCK = 128  # least rows of storage


class GrowingFactor:
    """L with L L^T = A, for symmetric positive definite A given block by block; `... x N x N`."""

    def __init__(self) -> None:
        self.size = 0
        self._L = self._probe = self._product = torch.empty(0, 0)

    @property
    def matrix(self) -> Tensor:
        """L, `... x N x N`: a view of the storage."""
        return self._L[..., : self.size, : self.size]

    def append(self, cross: Tensor, block: Tensor) -> None:
        """Grow A by the columns `cross` (`... x N x b`) and the corner `block` (`... x b x b`).

        Raises:
            InputError: the grown matrix is not positive definite in float64.
        """
        old, new = self.size, self.size + block.shape[-1]
        self._reserve(block, new)
        V = torch.linalg.solve_triangular(self.matrix, cross, upper=False)
        corner = cholesky(block - V.mT @ V)
        self._L[..., old:new, :old] = V.mT
        self._L[..., old:new, old:new] = corner
        self._product[..., :old, :] += cross @ self._probe[old:new]
        self._product[..., old:new, :] = cross.mT @ self._probe[:old] + block @ self._probe[old:new]
        self.size = new

    def drift(self) -> float:
        """Largest relative error of L L^T against A along the probe; about 1e-15 when sound."""
        L, v, Av = self.matrix.detach(), self._probe[: self.size], self._product[..., : self.size, :].detach()
        return float((L @ (L.mT @ v) - Av).abs().max() / Av.abs().max())

    def copy(self) -> GrowingFactor:
        """An independent copy."""
        twin = GrowingFactor()
        twin.size, twin._probe = self.size, self._probe
        twin._L, twin._product = self._L.clone(), self._product.clone()
        return twin

    def _reserve(self, like: Tensor, rows: int) -> None:
        if rows <= self._L.shape[-1]:
            return
        batch, capacity = like.shape[:-2], max(_BLOCK, rows, 2 * self._L.shape[-1])
        L, product = like.new_zeros(*batch, capacity, capacity), like.new_zeros(*batch, capacity, 1)
        if self.size:
            L[..., : self.size, : self.size] = self.matrix
            product[..., : self.size, :] = self._product[..., : self.size, :]
        self._L, self._product = L, product
        self._probe = torch.cos(torch.arange(1.0, capacity + 1.0, dtype=like.dtype, device=like.device).square()).unsqueeze(-1)


def cholesky(A: Tensor, blamed: str = "jitter", remedy: str = "Raise the noise or the jitter (1e-6 or more).") -> Tensor:
    """The lower factor of A, `... x n x n`.

    Raises:
        InputError: A is not positive definite, so what was added to its diagonal (`blamed`) is below float64's rounding of A.
    """
    L, info = torch.linalg.cholesky_ex(A)
    if bool(info.any()):
        raise InputError(blamed, "too small", "large enough for a positive definite matrix", remedy)
    return torch.as_tensor(L)
