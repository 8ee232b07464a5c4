"""Kernels that the tests of models and acquisition share, with their second derivatives by
torch.func.
"""

import gpytorch
import torch
from gpytorch.kernels import (
    AdditiveKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PolynomialKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)

from tests.setups import DOUBLE


class Exponential(Kernel):  # type: ignore[misc]
    """exp(-|x - z|_1 / l), whose processes have no gradient; nothing in its code says so."""

    has_lengthscale = True

    def forward(self, x1, x2, diag=False, **params):
        differences = x1 - x2 if diag else x1.unsqueeze(-2) - x2.unsqueeze(-3)
        return torch.exp(-(differences / self.lengthscale).abs().sum(-1))


def _ard(kernel, d):
    kernel = kernel.double()
    kernel.lengthscale = torch.linspace(0.7, 1.6, d, dtype=DOUBLE)
    return kernel


def _scaled(kernel, outputscale):
    kernel = ScaleKernel(kernel).double()
    kernel.outputscale = outputscale
    return kernel


KERNELS = {
    "rbf": lambda d: _ard(RBFKernel(ard_num_dims=d), d),
    "rbf-isotropic-scaled": lambda d: _scaled(RBFKernel(), 2.3),
    "matern": lambda d: _ard(MaternKernel(nu=2.5, ard_num_dims=d), d),
    "matern-scaled": lambda d: _scaled(_ard(MaternKernel(nu=2.5, ard_num_dims=d), d), 0.4),
    "poly2": lambda d: _scaled(PolynomialKernel(power=2), 0.7),
    "rq": lambda d: RQKernel().double(),
    "matern+linear": (
        lambda d: AdditiveKernel(
            _ard(MaternKernel(nu=2.5, ard_num_dims=d), d), LinearKernel()
        ).double()
    ),
}


def batched(name, d, *batch_shape):
    """A batch of kernels, each with its own hyperparameters."""
    kernel = KERNELS[name](d).expand_batch(torch.Size(batch_shape)).requires_grad_(False)
    for parameter in kernel.parameters():
        parameter.data = parameter + 0.3 * torch.randn(parameter.shape, dtype=DOUBLE)
    return kernel


def k(kernel, x, z):
    """k(x, z) of two points (`d`), written here from its definition, so that torch.func
    differentiates no code of ours.
    """
    if isinstance(kernel, ScaleKernel):
        return kernel.outputscale.detach() * k(kernel.base_kernel, x, z)
    if isinstance(kernel, AdditiveKernel):
        return sum(k(part, x, z) for part in kernel.kernels)
    if isinstance(kernel, LinearKernel):
        return kernel.variance.detach().squeeze() * (x @ z)
    if isinstance(kernel, PolynomialKernel):
        return (x @ z + kernel.offset.detach().squeeze()) ** 2
    r2 = (((x - z) / kernel.lengthscale.detach().squeeze(-2)) ** 2).sum()
    if isinstance(kernel, RBFKernel):
        return torch.exp(-0.5 * r2)
    if isinstance(kernel, RQKernel):
        return (1.0 + r2 / (2.0 * kernel.alpha.detach().squeeze())) ** (
            -kernel.alpha.detach().squeeze()
        )
    a = (5.0 * r2).sqrt()
    return (1.0 + a + a**2 / 3.0) * torch.exp(-a)


def by_first(kernel, x, z):
    return torch.func.grad(lambda p: k(kernel, p, z))(x)


def by_both(kernel, x, z):
    return torch.func.jacrev(lambda p: by_first(kernel, x, p))(z)


def dense(kernel, X, Z):
    with gpytorch.settings.trace_mode(True):
        return kernel(X, Z).to_dense().detach()
