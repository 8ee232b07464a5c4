"""The polynomial kernel of degree 2, (x.z + c)^2.

It spans the quadratic functions: rank (d + 1)(d + 2)/2, so that this many noiseless points determine everything and more add nothing.
Its derivatives are dk/dx = 2 (x.z + c) z and d2k/dx dz^T = 2 ((x.z + c) I + z x^T).
"""

from __future__ import annotations

from torch import Tensor

from dpbo.models.kernel_derivatives import Derivatives, Pull


class Quadratic(Derivatives):
    """(x.z + c)^2; `offset` is c, `... x 1`."""

    def __init__(self, offset: Tensor) -> None:
        self.offset = offset

    def values(self, X: Tensor, Z: Tensor) -> tuple[Tensor, Pull]:
        inner = X @ Z.mT + self.offset.unsqueeze(-1)
        return inner * inner, lambda C: 2.0 * (C * inner).mT @ X

    def gradients(self, theta: Tensor, Z: Tensor) -> tuple[Tensor, Pull]:
        row = theta.unsqueeze(-2)
        inner = Z @ row.mT + self.offset.unsqueeze(-1)  # ... x m x 1

        def pull(P: Tensor) -> Tensor:
            return 2.0 * ((Z * P.mT).sum(-1, keepdim=True) * row + inner * P.mT)

        return 2.0 * (inner * Z).mT, pull

    def variances(self, X: Tensor) -> Tensor:
        return ((X * X).sum(-1) + self.offset).square()
