"""From a GPyTorch kernel to its derivatives: closed forms where they exist, automatic differentiation for the rest."""

from __future__ import annotations

from gpytorch.kernels import AdditiveKernel, Kernel, MaternKernel, PolynomialKernel, RBFKernel, ScaleKernel

from dpbo.checking import checked
from dpbo.models.kernel_derivatives import Derivatives, Scaled, Sum, require_float64
from dpbo.models.quadratic import Quadratic
from dpbo.models.radial import RBF, Matern52
from dpbo.models.traced import Traced


@checked
def derivatives(kernel: Kernel) -> Derivatives:
    """The derivatives of a GPyTorch kernel with its present hyperparameters, which are read once and detached.

    Raises:
        InputError: a hyperparameter is not float64.
    """
    for name, parameter in kernel.named_parameters():
        require_float64(name, parameter)
    return _derivatives(kernel)


def _derivatives(kernel: Kernel) -> Derivatives:
    if kernel.active_dims is not None:
        return Traced(kernel)
    kind = type(kernel)
    if kind is ScaleKernel:
        return Scaled(_derivatives(kernel.base_kernel), kernel.outputscale.detach())
    if kind is AdditiveKernel:
        return Sum([_derivatives(part) for part in kernel.kernels])
    if kind is RBFKernel:
        return RBF(kernel.lengthscale.detach())
    if kind is MaternKernel and kernel.nu == 2.5:
        return Matern52(kernel.lengthscale.detach())
    if kind is PolynomialKernel and float(kernel.power) == 2.0:
        return Quadratic(kernel.offset.detach())
    return Traced(kernel)
