"""Kernels with fixed length-scales, k(x, x) = 1: public constants, never fitted on protected
records.
"""

from typing import Any

import torch
from gpytorch.kernels import MaternKernel, RBFKernel
from torch import Tensor

from dpbo.errors import InputError
from dpbo.isolation import without_default_device
from dpbo.models.kernels import require_float64
from dpbo.validation import checked


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
    """(1 + a + a^2/3) e^-a at a = sqrt(5) |x - x'| / l with fixed length-scales (one, or `d`),
    float64, k(x, x) = 1.
    """
    return _fixed(MaternKernel, lengthscale, nu=2.5, **settings)


def _fixed(kind: Any, lengthscale: float | Tensor, **settings: Any) -> Any:
    if isinstance(lengthscale, Tensor):
        lengths = lengthscale
    else:
        lengths = torch.tensor(lengthscale, dtype=torch.float64, device="cpu")
    require_float64("lengthscale", lengths)
    if lengths.dim() > 1 or not bool((lengths > 0).all()):
        raise InputError("lengthscale", tuple(lengths.shape), "one positive number, or d of them")
    with without_default_device():
        kernel = kind(ard_num_dims=len(lengths) if lengths.dim() else None, **settings).double()
    kernel.lengthscale = lengths
    return kernel.to(lengths.device).requires_grad_(False)
