"""Derivatives of any other GPyTorch kernel by torch.func, where no closed form is written.

The matrices are the kernel's own; their derivatives are reverse over reverse mode. A kernel that is not twice differentiable at
coincident points (Matern-1/2), or whose code stops the gradient there, is noticed and refused when a prior covariance is first asked for.
"""

from __future__ import annotations

import copy
from typing import Any

import gpytorch
import torch
from torch import Tensor

from dpbo.errors import InputError
from dpbo.models.kernel_derivatives import Derivatives, Pull

_NUDGE = 1e-4  # of the distance scale; a smooth kernel's mixed derivative moves by its square


class Traced(Derivatives):
    """A GPyTorch kernel, differentiated automatically."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = copy.deepcopy(kernel).requires_grad_(False)

    def _dense(self, X: Tensor, Z: Tensor) -> Tensor:
        # one row more than asked: for X equal to Z GPyTorch shares their distances, and the derivative by Z alone is lost;
        # trace_mode, because its hand-written autograd functions do not nest
        with gpytorch.settings.trace_mode(True):
            return self.kernel(X, torch.cat([Z, Z[..., :1, :] + 1.0], dim=-2)).to_dense()[..., :-1]

    def values(self, X: Tensor, Z: Tensor) -> tuple[Tensor, Pull]:
        if X.shape[-2] == 0:  # GPyTorch centres distances at the mean of X
            return Z.new_zeros(*Z.shape[:-2], 0, Z.shape[-2]), lambda _: torch.zeros_like(Z)
        K, vjp = torch.func.vjp(lambda z: self._dense(X, z), Z)[:2]
        return K, lambda C: vjp(C.expand(K.shape))[0]

    def gradients(self, theta: Tensor, Z: Tensor) -> tuple[Tensor, Pull]:
        G, vjp = torch.func.vjp(lambda z: self._by_theta(theta, z), Z)[:2]
        return G, lambda P: vjp(P.expand(G.shape))[0]

    def _by_theta(self, theta: Tensor, Z: Tensor) -> Tensor:
        rows = theta.unsqueeze(-2) + torch.zeros_like(Z.sum(-2, keepdim=True))  # one theta a run of Z
        row, vjp = torch.func.vjp(lambda x: self._dense(x, Z), rows)[:2]
        m = row.shape[-1]
        units = torch.eye(m, dtype=Z.dtype, device=Z.device).view(m, *(1 for _ in row.shape[:-1]), m).expand(m, *row.shape)
        return torch.func.vmap(vjp)(units)[0].squeeze(-2).movedim(0, -1)

    def variances(self, X: Tensor) -> Tensor:
        with gpytorch.settings.trace_mode(True):
            return self.kernel(X, diag=True)

    def prior(self, theta: Tensor) -> Tensor:
        try:
            exact = super().prior(theta)
            beside = self.mixed(theta, (theta + _NUDGE).unsqueeze(-2)).squeeze(-3)
        except NotImplementedError:  # torch.cdist, which GPyTorch's Matern kernels call, has no second derivative
            raise self._refusal() from None
        if not torch.allclose(exact, beside, rtol=0.0, atol=1e-2 * float(exact.abs().max())):
            raise self._refusal()
        return exact

    def _refusal(self) -> InputError:
        remedy = "Add kernels instead of multiplying them, or use RBF, Matern-5/2 or a polynomial of degree 2."
        return InputError("kernel", type(self.kernel).__name__, "twice differentiable, also where its two points meet", remedy)
