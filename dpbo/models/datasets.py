"""The prior over data sets and candidates together: k((V, x), (V', x')) = k1(V, V') k2(x, x') (Kusner et al. 2015, Assumption 1).

k1 = exp(-differences(V, V') / theta) falls with the number of records in which two data sets of one size differ; it is a product over
records of 1 or exp(-1/theta), hence positive semi-definite. k2 is normalised, k2(x, x) = 1. Both are modelling assumptions: theta and
length-scales are public constants, never fitted on protected records.

`hamming` counts the differences of given public data sets; `chain` gives those of a walk that changes one more record a step.
"""

import copy
import math
from typing import Annotated, Any

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from torch import Tensor

from dpbo.errors import InputError
from dpbo.models.kernels import require_float64
from dpbo.validation import Count, Positive, at_least, checked


@checked
class DataSetKernel(Kernel):  # type: ignore[misc]  # GPyTorch carries no annotations that mypy follows here
    """exp(-differences[i, j] / theta) of data-set numbers i, j, which are a column of the inputs (float64).

    Args:
        differences: `D x D`, the number of records in which two data sets differ.
        theta: records; the correlation of neighbours is exp(-1/theta). Public.

    Raises:
        InputError: differences that are no metric counts, or whose kernel is not positive semi-definite.
    """

    has_lengthscale = False
    differences: Tensor

    def __init__(self, differences: Tensor, theta: Positive, **settings: Any) -> None:
        super().__init__(**settings)
        self.theta, counts = theta, differences.detach().double()
        if counts.dim() != 2 or not torch.equal(counts, counts.mT) or bool((counts < 0).any()) or bool(counts.diagonal().any()):
            raise InputError("differences", tuple(counts.shape), "a symmetric D x D matrix of counts with a zero diagonal")
        if float(torch.linalg.eigvalsh((-counts / theta).exp())[0]) < -1e-10 * len(counts):
            allowed = "counts of differing records of data sets of one size"
            raise InputError("differences", "not a Hamming distance", allowed, "See `hamming`.")
        self.register_buffer("differences", counts)

    @property
    def neighbours(self) -> float:
        """kappa: the correlation of two data sets that differ in one record."""
        return math.exp(-1.0 / self.theta)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params: Any) -> Tensor:
        """k1 of `... x n x 1` and `... x m x 1` numbers, `... x n x m`; the diagonal, `... x n`, if `diag`."""
        first, second = self._numbers(x1), self._numbers(x2)
        counts = self.differences[first, second] if diag else self.differences[first.unsqueeze(-1), second.unsqueeze(-2)]
        return (-counts / self.theta).exp()

    def _numbers(self, x: Tensor) -> Tensor:
        numbers = x[..., 0].round().long()
        if x.shape[-1] != 1 or bool(((numbers < 0) | (numbers >= len(self.differences))).any()):
            raise InputError("x", tuple(x.shape), f"one column of data-set numbers from 0 to {len(self.differences) - 1}")
        return numbers


@checked
def hamming(data_sets: Tensor) -> Tensor:
    """The number of records in which public data sets differ, `D x D`, for D of m records each: `D x m` codes or `D x m x columns`."""
    if data_sets.dim() < 2:
        raise InputError("data_sets", tuple(data_sets.shape), "of shape D x m or D x m x columns")
    records = data_sets.flatten(2) if data_sets.dim() > 2 else data_sets.unsqueeze(-1)
    return (records.unsqueeze(1) != records.unsqueeze(0)).any(-1).sum(-1).double()


@checked
def chain(count: Annotated[int, at_least(1, 10_000)]) -> Tensor:
    """|i - j| for `count` data sets of which each differs from the one before in one more record, `count x count`."""
    steps = torch.arange(float(count), dtype=torch.float64)
    return (steps.unsqueeze(-1) - steps).abs()


@checked
def over_data_sets(data_sets: DataSetKernel, candidates: Kernel, dimension: Count) -> Kernel:
    """k1 (x) k2 over inputs `n x (1 + dimension)` whose first column is a data set's number.

    Args:
        data_sets: k1.
        candidates: k2, without active dimensions.
        dimension: d of the candidates.
    """
    for name, kernel in (("data_sets", data_sets), ("candidates", candidates)):
        if kernel.active_dims is not None:
            raise InputError(name, kernel, "without active_dims", "They are set here.")
    first, second = copy.deepcopy(data_sets), copy.deepcopy(candidates)  # the caller's kernels keep their columns
    first.register_buffer("active_dims", torch.tensor([0]))
    second.register_buffer("active_dims", torch.arange(1, 1 + dimension))
    return first * second


@checked
def squared_exponential(lengthscale: float | Tensor, **settings: Any) -> RBFKernel:
    """exp(-|x - x'|^2 / (2 l^2)) with fixed length-scales, float64, k(x, x) = 1.

    Args:
        lengthscale: l, one positive number or `d`, in units of x.
        settings: further arguments of GPyTorch's kernel.
    """
    return _fixed(RBFKernel, lengthscale, **settings)


@checked
def matern52(lengthscale: float | Tensor, **settings: Any) -> MaternKernel:
    """(1 + a + a^2/3) e^-a at a = sqrt(5) |x - x'| / l with fixed length-scales (one, or `d`), float64, k(x, x) = 1."""
    return _fixed(MaternKernel, lengthscale, nu=2.5, **settings)


def _fixed(kind: Any, lengthscale: float | Tensor, **settings: Any) -> Any:
    lengths = lengthscale if isinstance(lengthscale, Tensor) else torch.as_tensor(float(lengthscale), dtype=torch.float64)
    require_float64("lengthscale", lengths)
    if lengths.dim() > 1 or not bool((lengths > 0).all()):
        raise InputError("lengthscale", tuple(lengths.shape), "one positive number, or d of them")
    kernel = kind(ard_num_dims=len(lengths) if lengths.dim() else None, **settings).double()
    kernel.lengthscale = lengths
    return kernel.requires_grad_(False)
