"""RBF and Matern-5/2 kernels whose distances are taken coordinate by coordinate, for candidates very many length-scales apart.

GPyTorch's kernels and `RadialRows` expand r^2 = |u|^2 + |v|^2 - 2 u.v, whose rounding is 2^-52 of the squared spread: at 10^6 length-scales
it makes neighbours of points that are none, and one far candidate does so to all others. (x - z) / l loses nothing, and takes longer.
Kernels other than these two, and sums and multiples of them, are left to GPyTorch.
"""

from __future__ import annotations

from typing import Any

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ScaleKernel
from torch import Tensor

from dpbo.models.kernels import derivatives
from dpbo.models.radial import Radial

_FAR = 300.0  # length-scales; from 1000 on posteriors at a noise of 1e-2 were more than 1e-9 off
_LARGEST = 1e300  # of r^2, which a polynomial times an exponential must not meet as an infinity


class ByDifferences(Kernel):  # type: ignore[misc]  # GPyTorch carries no annotations that mypy follows here
    """A radial kernel of variance 1 with fixed length-scales."""

    has_lengthscale = False
    lengths: Tensor

    def __init__(self, radial: Radial) -> None:
        super().__init__()
        self.profile = radial.profile
        self.register_buffer("lengths", radial.lengthscale)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params: Any) -> Tensor:
        """Of `... x n x d` and `... x m x d`, `... x n x m`; the diagonal, `... x n`, if `diag`."""
        if not diag:
            x1, x2 = x1.unsqueeze(-2), x2.unsqueeze(-3)
        lengths = self.lengths.expand(1, x1.shape[-1]).unbind(-1)
        r2 = sum(
            (((x - z) / length).square() for x, z, length in zip(x1.unbind(-1), x2.unbind(-1), lengths, strict=True)), x1.new_zeros(())
        )
        return self.profile(r2.clamp_max(_LARGEST))[0]


def accurate(kernel: Kernel, candidates: Tensor) -> Kernel:
    """`kernel`, changed in place: its radial parts go by differences where the candidates, `... x n x d`, spread too far for them."""
    if kernel.active_dims is not None:
        return kernel
    if type(kernel) is ScaleKernel:
        kernel.base_kernel = accurate(kernel.base_kernel, candidates)
    elif type(kernel) is AdditiveKernel:
        kernel.kernels = torch.nn.ModuleList(accurate(part, candidates) for part in kernel.kernels)
    elif isinstance(known := derivatives(kernel), Radial) and _spread(candidates, known.lengthscale) > _FAR:
        return ByDifferences(known)
    return kernel


def _spread(candidates: Tensor, lengthscale: Tensor) -> float:
    """The diagonal of the candidates' box in length-scales."""
    return float(((candidates.amax(-2) - candidates.amin(-2)) / lengthscale.squeeze(-2)).norm(dim=-1).max())
