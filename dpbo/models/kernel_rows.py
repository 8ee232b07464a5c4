"""Rows k(x_i, .) of a kernel over a fixed candidate set, one at a time: what an incremental
Cholesky factor needs.

The n x n matrix is never formed; a row costs O(n d). RBF and Matern-5/2 kernels keep their whitened
candidates, so that a row is one matrix-vector product and one exponential (twenty times cheaper at
n = 40,000 than through GPyTorch). Every other kernel is called. RBF and Matern-5/2 kernels over
candidates too far apart for such a product take their distances coordinate by coordinate
(`ByDifferences`). A variance that a sum of kernels gives each row for itself (SameRow) is added at
the row's own index: candidates of equal coordinates stay two rows. Hyperparameters are public
constants, read once.
"""

from __future__ import annotations

import abc
import copy
from typing import Any

import gpytorch
import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ScaleKernel
from torch import Tensor

from dpbo.models.kernels import Radial, Scaled, kernel_derivatives
from dpbo.models.noisy_inputs import SameRow

# length-scales; from 1000 on posteriors at a noise of 1e-2 were more than 1e-9 off
_FAR = 300.0
# of r^2: a polynomial times an exponential must not meet an infinity
_LARGEST = 1e300


def rows_of(kernel: Any, candidates: Tensor) -> Rows:
    """The rows of a GPyTorch kernel in float64 over candidates, `n x d`.

    Raises:
        InputError: a hyperparameter is not float64.
    """
    if type(kernel) is AdditiveKernel and kernel.active_dims is None:
        own = [_own_variance(part) for part in kernel.kernels]
        rest = [
            part for part, variance in zip(kernel.kernels, own, strict=True) if variance is None
        ]
        if 0 < len(rest) < len(own):
            shared = rest[0] if len(rest) == 1 else AdditiveKernel(*rest)
            return OwnRows(
                rows_of(shared, candidates),
                sum(variance for variance in own if variance is not None),
            )
    known = kernel_derivatives(kernel)
    if isinstance(known, Radial):
        return RadialRows(known, 1.0, candidates)
    if isinstance(known, Scaled) and isinstance(known.base, Radial):
        return RadialRows(known.base, float(known.scale), candidates)
    return CalledRows(copy.deepcopy(kernel).requires_grad_(False), candidates)


def _own_variance(kernel: Any) -> float | None:
    """The variance that a kernel gives each row for itself, if it gives nothing else."""
    if type(kernel) is ScaleKernel and kernel.active_dims is None:
        own = _own_variance(kernel.base_kernel)
        return None if own is None else own * float(kernel.outputscale)
    return 1.0 if type(kernel) is SameRow and kernel.active_dims is None else None


class Rows(torch.nn.Module, abc.ABC):
    """A kernel over candidates, `n x d`. Its tensors move with the module."""

    @abc.abstractmethod
    def diagonal(self) -> Tensor:
        """k(x, x) at every candidate, `n`."""

    @abc.abstractmethod
    def write(self, index: Tensor, out: Tensor, scratch: Tensor) -> None:
        """Write k(x_index, .) into `out`, `n`; the index has shape `1`, `scratch` is like `out`."""


class RadialRows(Rows):
    """s kappa(r^2), from r^2 = |u|^2 + (-2 u_i, |u_i|^2) . (u, 1) of whitened candidates u measured
    from their mean.
    """

    squares: Tensor
    extended: Tensor

    def __init__(self, kernel: Radial, scale: float, candidates: Tensor) -> None:
        super().__init__()
        self.kappa_ = kernel.kappa_
        self.scale = scale
        u = (candidates - candidates.mean(0)) / kernel.lengthscale
        self.register_buffer("squares", u.square().sum(-1))
        # (d + 1) x n: a row of products then reads along memory
        extended = torch.cat([u, torch.ones_like(u[:, :1])], dim=1)
        self.register_buffer("extended", extended.mT.contiguous())

    def diagonal(self) -> Tensor:
        return torch.full_like(self.squares, self.scale)

    def write(self, index: Tensor, out: Tensor, scratch: Tensor) -> None:
        weights = -2.0 * self.extended[:, index].squeeze(-1)
        weights[-1:] = self.squares[index]
        torch.addmv(self.squares, self.extended.mT, weights, out=out)
        self.kappa_(out.clamp_min_(0.0), scratch)
        if self.scale != 1.0:
            out.mul_(self.scale)


class CalledRows(Rows):
    """Any GPyTorch kernel, called on a point and all candidates."""

    candidates: Tensor

    def __init__(self, kernel: Any, candidates: Tensor) -> None:
        super().__init__()
        self.kernel = kernel
        self.register_buffer("candidates", candidates)

    def diagonal(self) -> Tensor:
        return self.kernel(self.candidates, diag=True)

    def write(self, index: Tensor, out: Tensor, scratch: Tensor) -> None:
        with gpytorch.settings.lazily_evaluate_kernels(False):
            out.copy_(self.kernel(self.candidates[index], self.candidates).to_dense()[0])


class OwnRows(Rows):
    """The rows of a kernel, and a variance of its own for each candidate."""

    def __init__(self, shared: Rows, own: float) -> None:
        super().__init__()
        self.shared = shared
        self.own = own

    def diagonal(self) -> Tensor:
        return self.shared.diagonal() + self.own

    def write(self, index: Tensor, out: Tensor, scratch: Tensor) -> None:
        self.shared.write(index, out, scratch)
        out[index] += self.own


class ByDifferences(Kernel):  # type: ignore[misc]
    """A radial kernel of variance 1 with fixed length-scales, whose distances are taken coordinate
    by coordinate.

    GPyTorch's kernels and `RadialRows` expand r^2 = |u|^2 + |v|^2 - 2 u.v, which rounds by 2^-52 of
    the squared spread: at 10^6 length-scales distant points become neighbours, and one far
    candidate does so to all others. (x - z) / l loses nothing, but is slower.
    """

    has_lengthscale = False
    lengths: Tensor

    def __init__(self, radial: Radial) -> None:
        super().__init__()
        self.profile = radial.profile
        self.register_buffer("lengths", radial.lengthscale)

    def forward(
        self,
        x1: Tensor,
        x2: Tensor,
        diag: bool = False,
        last_dim_is_batch: bool = False,
        **params: Any,
    ) -> Tensor:
        """k of `... x n x d` and `... x m x d`, `... x n x m`; the diagonal, `... x n`, if
        `diag`.
        """
        if not diag:
            x1 = x1.unsqueeze(-2)
            x2 = x2.unsqueeze(-3)
        lengths = self.lengths.expand(1, x1.shape[-1]).unbind(-1)
        squares = (
            ((x - z) / length).square()
            for x, z, length in zip(x1.unbind(-1), x2.unbind(-1), lengths, strict=True)
        )
        return self.profile(sum(squares, x1.new_zeros(())).clamp_max(_LARGEST))[0]


def accurate(kernel: Kernel, candidates: Tensor) -> Kernel:
    """`kernel`, changed in place: its radial parts use `ByDifferences` where the candidates,
    `n x d`, lie too far apart.

    The spread is the diagonal of the candidates' box in length-scales. Kernels other than these
    two, sums and multiples are left as is.
    """
    if kernel.active_dims is not None:
        return kernel
    if type(kernel) is ScaleKernel:
        kernel.base_kernel = accurate(kernel.base_kernel, candidates)
    elif type(kernel) is AdditiveKernel:
        kernel.kernels = torch.nn.ModuleList(accurate(part, candidates) for part in kernel.kernels)
    elif isinstance(known := kernel_derivatives(kernel), Radial):
        box = (candidates.amax(0) - candidates.amin(0)) / known.lengthscale
        if float(box.norm()) > _FAR:
            return ByDifferences(known)
    return kernel
