"""Kernels of the whitened distance r = |(x - z) / l|: RBF and Matern-5/2 with one length-scale or one a coordinate.

Such a kernel is three functions of r^2: kappa = k, phi = -2 dk/d(r^2), psi = -2 dphi/d(r^2). Then, with v = (x - z) / l,
    dk/dx = -phi v / l,     d2k/dx dz^T = diag(phi / l^2) - psi (v / l)(v / l)^T.
RBF has kappa = phi = psi = exp(-r^2/2); Matern-5/2 has, at a = sqrt(5) r, kappa = (1 + a + a^2/3) e^-a, phi = 5/3 (1 + a) e^-a and
psi = 25/3 e^-a.
"""

from __future__ import annotations

import abc

import torch
from torch import Tensor

from dpbo.models.kernel_derivatives import Derivatives, Pull


class Radial(Derivatives):
    """A kernel of the whitened distance, of variance 1. `lengthscale` is `... x 1 x d` or `... x 1 x 1`."""

    def __init__(self, lengthscale: Tensor) -> None:
        self.lengthscale = lengthscale

    @staticmethod
    @abc.abstractmethod
    def kappa_(r2: Tensor, scratch: Tensor) -> None:
        """Turn squared whitened distances into k in place; `scratch` is of the same shape. For rows over very many points."""

    @staticmethod
    @abc.abstractmethod
    def profile(r2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(kappa, phi, psi) at squared whitened distances."""

    def values(self, X: Tensor, Z: Tensor) -> tuple[Tensor, Pull]:
        # measured from the mean of Z: whoever asks for the pull has Z close together, and |u|^2 + |v|^2 - 2uv cancels far from 0
        centre = Z.mean(-2, keepdim=True)
        U, V = (X - centre) / self.lengthscale, (Z - centre) / self.lengthscale
        r2 = (V @ U.mT).mul_(-2.0).add_((U * U).sum(-1).unsqueeze(-2)).add_((V * V).sum(-1, keepdim=True))
        kappa, phi, _ = self.profile(r2.clamp_min_(0.0).mT)  # m x n in memory: the columns that LAPACK wants

        def pull(C: Tensor) -> Tensor:
            weights = (C * phi).mT
            return (weights @ U - weights.sum(-1, keepdim=True) * V) / self.lengthscale

        return kappa, pull

    def gradients(self, theta: Tensor, Z: Tensor) -> tuple[Tensor, Pull]:
        V = (Z - theta.unsqueeze(-2)) / self.lengthscale
        _, phi, psi = (part.unsqueeze(-1) for part in self.profile((V * V).sum(-1)))

        def pull(P: Tensor) -> Tensor:
            white = P.mT / self.lengthscale
            return (phi * white - psi * V * (V * white).sum(-1, keepdim=True)) / self.lengthscale

        return (phi * V / self.lengthscale).mT, pull

    def variances(self, X: Tensor) -> Tensor:
        return torch.ones(X.shape[:-1], dtype=X.dtype, device=X.device)


class RBF(Radial):
    """exp(-r^2/2)."""

    @staticmethod
    def kappa_(r2: Tensor, scratch: Tensor) -> None:  # noqa: ARG004
        r2.mul_(-0.5).exp_()

    @staticmethod
    def profile(r2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        kappa = (-0.5 * r2).exp_()
        return kappa, kappa, kappa


class Matern52(Radial):
    """(1 + a + a^2/3) e^-a at a = sqrt(5) r, twice differentiable."""

    @staticmethod
    def kappa_(r2: Tensor, scratch: Tensor) -> None:
        a = r2.mul_(5.0).sqrt_()
        torch.mul(a, 1.0 / 3.0, out=scratch).add_(1.0).mul_(a).add_(1.0)
        a.neg_().exp_().mul_(scratch)

    @staticmethod
    def profile(r2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a = (5.0 * r2).clamp_min(1e-300).sqrt()  # the root's own derivative is infinite at 0; nothing here needs it
        decay = torch.exp(-a)
        linear = (1.0 + a) * decay
        return linear + a * a * decay / 3.0, (5.0 / 3.0) * linear, (25.0 / 3.0) * decay
