"""Rows k(x_i, .) of a kernel over a fixed candidate set, one at a time: what an incremental
Cholesky factor needs.

The n x n matrix is never formed; a row costs O(n d). RBF and Matern-5/2 kernels take distances
coordinate by coordinate, in memory that is kept: the expansion |u|^2 + |v|^2 - 2 u.v, as in
GPyTorch, rounds by 2^-52 of the squared spread, so that candidates 10^6 length-scales apart become
neighbours. Every other kernel is called. A variance that a sum of kernels gives each row for itself
(SameRow) is added at the row's own index: candidates of equal coordinates stay two rows.
Hyperparameters are public constants, read once.
"""

from __future__ import annotations

import abc
import copy
from typing import Any

import gpytorch
import torch
from gpytorch.kernels import AdditiveKernel, ScaleKernel
from torch import Tensor

from dpbo.models.kernels import Radial, kernel_derivatives, radial_part
from dpbo.models.noisy_inputs import SameRow

# of r^2: a polynomial times an exponential must not meet an infinity
_LARGEST = 1e300


def rows_of(kernel: Any, candidates: Tensor) -> Rows:
    """The rows of a GPyTorch kernel in float64 over candidates, `n x d`.

    Raises:
        InputError: a hyperparameter is not float64.
    """
    if type(kernel) is AdditiveKernel and kernel.active_dims is None:
        own = 0.0
        rest = []
        for part in kernel.kernels:
            variance = _own_variance(part)
            if variance is None:
                rest.append(part)
            else:
                own += variance
        if 0 < len(rest) < len(kernel.kernels):
            shared = rest[0] if len(rest) == 1 else AdditiveKernel(*rest)
            return OwnRows(rows_of(shared, candidates), own)
    radial = radial_part(kernel_derivatives(kernel))
    if radial is not None:
        return RadialRows(radial[0], float(radial[1]), candidates)
    return CalledRows(copy.deepcopy(kernel).requires_grad_(False), candidates)


def _own_variance(kernel: Any) -> float | None:
    """The variance that a kernel gives each row for itself, if it gives nothing else."""
    if type(kernel) is ScaleKernel and kernel.active_dims is None:
        own = _own_variance(kernel.base_kernel)
        if own is None:
            return None
        return own * float(kernel.outputscale)
    if type(kernel) is SameRow and kernel.active_dims is None:
        return 1.0
    return None


class Rows(torch.nn.Module, abc.ABC):
    """A kernel over candidates, `n x d`. Its tensors move with the module."""

    @abc.abstractmethod
    def diagonal(self) -> Tensor:
        """k(x, x) at every candidate, `n`."""

    @abc.abstractmethod
    def write(self, index: Tensor, out: Tensor, scratch: Tensor) -> None:
        """Write k(x_index, .) into `out`, `n`; the index has shape `1`, `scratch` is like `out`."""


class RadialRows(Rows):
    """s kappa(r^2) of whitened distances."""

    columns: Tensor
    lengths: Tensor

    def __init__(self, kernel: Radial, scale: float, candidates: Tensor) -> None:
        super().__init__()
        self.kappa_ = kernel.kappa_
        self.scale = scale
        self.register_buffer("columns", candidates.mT.contiguous())
        self.register_buffer("lengths", kernel.lengthscale.expand(1, candidates.shape[1])[0])

    def diagonal(self) -> Tensor:
        return torch.full_like(self.columns[0], self.scale)

    def write(self, index: Tensor, out: Tensor, scratch: Tensor) -> None:
        out.zero_()
        for column, length in zip(self.columns, self.lengths, strict=True):
            torch.sub(column, column[index], out=scratch).div_(length).square_()
            out.add_(scratch)
        self.kappa_(out.clamp_max_(_LARGEST), scratch)
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
