"""Rows k(x, .) of a kernel over a fixed candidate set, one point at a time for each of a batch of
runs: what an incremental Cholesky factor needs. And the kernel between any points, differentiable.

The n x n matrix is never formed; a row costs O(n d). RBF and Matern-5/2 kernels take distances
coordinate by coordinate, in memory that is kept: the expansion |u|^2 + |v|^2 - 2 u.v, as in
GPyTorch, rounds by 2^-52 of the squared spread, so that candidates 10^6 length-scales apart become
neighbours. Every other kernel is called. A variance that a sum of kernels gives each row for itself
(SameRow) is added at the row's own index: candidates of equal coordinates stay two rows.
Hyperparameters are public constants, read once.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import Any

import gpytorch
import torch
from gpytorch.kernels import AdditiveKernel, ScaleKernel
from torch import Tensor

from dpbo.models.kernels import Radial, kernel_derivatives, radial_part
from dpbo.models.noisy_inputs import SameRow

# of r^2: a polynomial times an exponential must not meet an infinity
_LARGEST = 1e300
# numbers of a vector over candidates that are worked on together: 0.5 MB, so that a step's few
# vectors stay in cache
_CACHED = 1 << 16


def in_cache(*parts: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Tensors `runs x ...`, or `1 x ...` of all runs, in slices of runs whose vectors over the
    candidates fit into a cache; on a device all runs at once. The first is `runs x n`.
    """
    runs, n = parts[0].shape
    if runs == 1 or runs * n <= _CACHED or parts[0].device.type != "cpu":
        yield parts
        return
    step = max(1, _CACHED // n)
    for start in range(0, runs, step):
        some = slice(start, start + step)
        yield tuple(part if part.shape[0] == 1 else part[some] for part in parts)


def rows_of(kernel: Any, candidates: Tensor, batch_shape: torch.Size) -> Rows:
    """The rows of a GPyTorch kernel in float64.

    Args:
        kernel: one for all runs, or a batch that broadcasts with `batch_shape`; kept, not copied.
        candidates: `n x d`, shared by all runs, or `batch_shape x n x d`.
        batch_shape: of the runs.

    Raises:
        InputError: a hyperparameter is not float64.
    """
    if type(kernel) is AdditiveKernel and kernel.active_dims is None:
        own = []
        rest = []
        for part in kernel.kernels:
            variance = _own_variance(part, candidates)
            if variance is None:
                rest.append(part)
            else:
                own.append(variance)
        if own and rest:
            shared = rest[0] if len(rest) == 1 else AdditiveKernel(*rest)
            total = sum(own, candidates.new_zeros(1, 1))
            return OwnRows(rows_of(shared, candidates, batch_shape), total, batch_shape)
    radial = radial_part(kernel_derivatives(kernel))
    if radial is not None:
        return RadialRows(*radial, candidates, batch_shape, scaled=type(kernel) is ScaleKernel)
    return CalledRows(kernel, candidates, batch_shape)


def _own_variance(kernel: Any, like: Tensor) -> Tensor | None:
    """The variance that a kernel gives each row for itself, if it gives nothing else, as `1 x 1` or
    `kernel_batch_shape x 1 x 1`.
    """
    if type(kernel) is ScaleKernel and kernel.active_dims is None:
        own = _own_variance(kernel.base_kernel, like)
        if own is None:
            return None
        return own * kernel.outputscale.detach()[..., None, None]
    if type(kernel) is SameRow and kernel.active_dims is None:
        return like.new_ones(1, 1)
    return None


def _of_runs(constants: Tensor, batch_shape: torch.Size) -> Tensor:
    """Constants of a kernel, `1 x d` or `kernel_batch_shape x 1 x d`, as `1 x d` or `runs x d`."""
    if constants.dim() == 2:
        return constants
    return constants.expand(*batch_shape, 1, -1).flatten(0, -2).contiguous()


class Rows(torch.nn.Module, abc.ABC):
    """A kernel over the candidates of each run. Its tensors move with the module."""

    def __init__(self, batch_shape: torch.Size) -> None:
        super().__init__()
        self.batch_shape = batch_shape

    def _spread(self, constants: Tensor) -> Tensor:
        """Constants `1 x 1` or `runs x 1` as factors of `... x q x m`."""
        if constants.shape[0] == 1:
            return constants
        return constants.view(*self.batch_shape, 1, 1)

    @abc.abstractmethod
    def diagonal(self) -> Tensor:
        """k(x, x) at every candidate, which broadcasts to `runs x n`."""

    @abc.abstractmethod
    def given(self, index: Tensor) -> tuple[Tensor, ...]:
        """What `write` needs for the candidates at `index`, `runs x 1`: tensors `runs x ...`, or `1
        x ...` of all runs.
        """

    @abc.abstractmethod
    def write(self, given: Sequence[Tensor], out: Tensor, scratch: Tensor) -> None:
        """Write k(x, .) into `out`, `runs x n`, for the candidate x of each run, given some runs'
        part of `given(index)`; `scratch` is like `out`.
        """

    @abc.abstractmethod
    def between(self, X: Tensor, Z: Tensor) -> Tensor:
        """k(X, Z), `... x q x m`, of `... x q x d` and `... x m x d`, whose leading dimensions end
        in those of the runs; differentiable.
        """


class RadialRows(Rows):
    """s kappa(r^2) of whitened distances."""

    columns: Tensor
    inverse: Tensor
    scale: Tensor

    def __init__(
        self,
        kernel: Radial,
        scale: Tensor,
        candidates: Tensor,
        batch_shape: torch.Size,
        *,
        scaled: bool,
    ) -> None:
        super().__init__(batch_shape)
        self.kappa_ = kernel.kappa_
        self.profile = kernel.profile
        d = candidates.shape[-1]
        inverse = _of_runs(kernel.lengthscale.reciprocal(), batch_shape)
        columns = candidates.reshape(-1, *candidates.shape[-2:]).movedim(-1, 0)
        # d x 1 x ... where all runs share them, else d x runs x ...
        self.register_buffer("columns", columns.contiguous())
        self.register_buffer("inverse", inverse.expand(-1, d).mT.unsqueeze(-1).contiguous())
        self.register_buffer("scale", _of_runs(scale, batch_shape))
        self.scaled = scaled

    def diagonal(self) -> Tensor:
        return self.scale.expand(-1, self.columns.shape[-1])

    def given(self, index: Tensor) -> tuple[Tensor, ...]:
        d = self.columns.shape[0]
        runs = index.shape[0]
        each = self.columns.expand(d, runs, -1)
        x = each.gather(-1, index.expand(d, runs, 1))
        return self.columns.unbind() + x.unbind() + self.inverse.unbind() + (self.scale,)

    def write(self, given: Sequence[Tensor], out: Tensor, scratch: Tensor) -> None:
        *coordinates, scale = given
        d = self.columns.shape[0]
        apart = out
        for i in range(d):
            column, own, inverse = coordinates[i::d]
            torch.sub(column, own, out=apart).mul_(inverse)
            if i == 0:
                out.square_()
                apart = scratch
            else:
                out.addcmul_(apart, apart)
        self.kappa_(out.clamp_max_(_LARGEST), scratch)
        if self.scaled:
            out.mul_(scale)

    def between(self, X: Tensor, Z: Tensor) -> Tensor:
        squares = X.new_zeros(())
        for x, z, inverse in zip(X.unbind(-1), Z.unbind(-1), self.inverse.unbind(), strict=True):
            apart = (x.unsqueeze(-1) - z.unsqueeze(-2)) * self._spread(inverse)
            squares = squares + apart.square()
        return self._spread(self.scale) * self.profile(squares.clamp_max(_LARGEST))[0]


class CalledRows(Rows):
    """Any GPyTorch kernel, called on a point and all candidates."""

    candidates: Tensor

    def __init__(self, kernel: Any, candidates: Tensor, batch_shape: torch.Size) -> None:
        super().__init__(batch_shape)
        self.kernel = kernel
        self.register_buffer("candidates", candidates)

    def diagonal(self) -> Tensor:
        candidates = self._candidates()
        return self.kernel(candidates, diag=True).reshape(-1, candidates.shape[-2])

    def given(self, index: Tensor) -> tuple[Tensor, ...]:
        candidates = self._candidates()
        n, d = candidates.shape[-2:]
        if candidates.dim() == 2:
            points = candidates[index[:, 0]]
        else:
            at = index.view(*self.batch_shape, 1, 1).expand(*self.batch_shape, 1, d)
            points = candidates.gather(-2, at)
        return (self.between(points, candidates).reshape(-1, n),)

    def write(self, given: Sequence[Tensor], out: Tensor, scratch: Tensor) -> None:
        out.copy_(given[0])

    def _candidates(self) -> Tensor:
        """`n x d` where all runs share them and the kernel, else `batch_shape x n x d`."""
        if len(self.kernel.batch_shape):
            return self.candidates.expand(*self.batch_shape, *self.candidates.shape[-2:])
        return self.candidates

    def between(self, X: Tensor, Z: Tensor) -> Tensor:
        with gpytorch.settings.lazily_evaluate_kernels(False):
            return self.kernel(X, Z).to_dense()


class OwnRows(Rows):
    """The rows of a kernel, and a variance of its own for each candidate. Points elsewhere are the
    same where all coordinates are equal.
    """

    own: Tensor

    def __init__(self, shared: Rows, own: Tensor, batch_shape: torch.Size) -> None:
        super().__init__(batch_shape)
        self.shared = shared
        self.register_buffer("own", _of_runs(own, batch_shape))

    def diagonal(self) -> Tensor:
        return self.shared.diagonal() + self.own

    def given(self, index: Tensor) -> tuple[Tensor, ...]:
        return (*self.shared.given(index), index, self.own.expand(index.shape))

    def write(self, given: Sequence[Tensor], out: Tensor, scratch: Tensor) -> None:
        *shared, index, own = given
        self.shared.write(shared, out, scratch)
        out.scatter_add_(-1, index, own)

    def between(self, X: Tensor, Z: Tensor) -> Tensor:
        same = (X.unsqueeze(-2) == Z.unsqueeze(-3)).all(-1)
        return self.shared.between(X, Z) + self._spread(self.own) * same
