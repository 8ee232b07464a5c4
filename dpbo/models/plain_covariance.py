"""The covariance of BoTorch's default models in plain operations of torch, and their fit by it.

GPyTorch builds a covariance lazily, which for the few hundred points of a search takes most of the
time of a fit, and of an acquisition: here a step of a fit takes a tenth.
"""

import math
from collections.abc import Callable

import torch
from botorch.models.kernels import CategoricalKernel
from botorch.optim.closures.core import ForwardBackwardClosure
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel, RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

_CONSTANT = 0.5 * math.log(2.0 * math.pi)


def is_plain(kernel: Kernel) -> bool:
    """Whether `covariance` knows this kernel and all its parts."""
    if kernel.batch_shape:
        return False
    if type(kernel) in (RBFKernel, CategoricalKernel):
        return True
    return type(kernel) in (ScaleKernel, AdditiveKernel, ProductKernel) and all(
        map(is_plain, kernel.sub_kernels())
    )


def covariance(kernel: Kernel, A: Tensor, B: Tensor) -> Tensor:
    """k(a, b) for all rows, `... x n x d` and `... x m x d` to `... x n x m`; autograd passes
    through it to the points and to the kernel's parameters. The kernel must be plain.
    """
    if kernel.active_dims is not None:
        A = A.index_select(-1, kernel.active_dims)
        B = B.index_select(-1, kernel.active_dims)
    return _of_active(kernel, A, B)


def _of_active(kernel: Kernel, A: Tensor, B: Tensor) -> Tensor:
    """The covariance of points that have the kernel's own coordinates alone."""
    if isinstance(kernel, ScaleKernel):
        # which has the coordinates of its base
        scaled: Tensor = kernel.outputscale * _of_active(kernel.base_kernel, A, B)
        return scaled
    if isinstance(kernel, (AdditiveKernel, ProductKernel)):
        parts = torch.stack([covariance(part, A, B) for part in kernel.kernels])
        return parts.sum(0) if isinstance(kernel, AdditiveKernel) else parts.prod(0)
    lengths = kernel.lengthscale[0]
    if isinstance(kernel, CategoricalKernel):
        different = (A.unsqueeze(-2) != B.unsqueeze(-3)).to(A)
        return (-(different @ (1.0 / lengths.expand(A.shape[-1]))) / A.shape[-1]).exp()
    A = A / lengths
    B = B / lengths
    squares = A.square().sum(-1).unsqueeze(-1) + B.square().sum(-1).unsqueeze(-2)
    return (-0.5 * (squares - 2.0 * A @ B.mT).clamp_min(0.0)).exp()


def variances(kernel: Kernel, A: Tensor) -> Tensor:
    """k(a, a) for all rows, `... x n`: the same everywhere, as plain kernels are stationary."""
    one = A.reshape(-1, A.shape[-1])[:1].detach()
    return covariance(kernel, one, one)[0].expand(A.shape[:-1])


def plain_loss(mll: ExactMarginalLogLikelihood) -> Callable[[], Tensor] | None:
    """Minus the marginal likelihood and priors, as `mll` computes them of its training data; None
    for a model whose kernel is not plain, or of several outputs.
    """
    model = mll.model
    if model.num_outputs != 1 or model.batch_shape or not is_plain(model.covar_module):
        return None
    (X,) = model.train_inputs
    priors = [*mll.named_priors()]

    def loss() -> Tensor:
        residual = model.train_targets - model.mean_module(X)
        K = covariance(model.covar_module, X, X)
        root = torch.linalg.cholesky(K + torch.diag(model.likelihood.noise.expand(len(X))))
        whitened = torch.linalg.solve_triangular(root, residual.unsqueeze(-1), upper=False)
        value = 0.5 * whitened.square().sum() + root.diagonal().log().sum()
        for _, module, prior, read, _ in priors:
            value = value - prior.log_prob(read(module)).sum()
        return value / len(X) + _CONSTANT

    return loss


def plain_closure(mll: ExactMarginalLogLikelihood) -> ForwardBackwardClosure | None:
    """What BoTorch's fit takes in place of its own closure, or None where that is needed."""
    loss = plain_loss(mll)
    if loss is None:
        return None
    learned = {name: one for name, one in mll.named_parameters() if one.requires_grad}
    return ForwardBackwardClosure(loss, learned)
