"""The trace of the gradient's posterior covariance after observing a design Z, and its derivative by Z, without autograd.

With history X (N points), factor L, A = L^-1 (dk(theta, X)/dtheta)^T and V = L^-1 k(X, Z):
    S = k(Z, Z) + D - V^T V,   R = (dk(theta, Z)/dtheta)^T - V^T A,   P = S^-1 R,   alpha(Z) = alpha(nothing) - sum(P * R),
    d alpha = <2 L^-T (A - V P) P^T, dk(X, Z)> + <P P^T, d(k(Z, Z) + D)> - 2 <P, d(dk(theta, Z)/dtheta)^T>
(DP-GIBO, arXiv 2502.06044, Algorithm 1's alpha). Cost: N^2 (b + d) + 8 N b d + 2 N b^2 + b^3/3 flops, 15 MFLOP at N = 400,
b = 34, d = 33; bytes: 8 N^2 of L (1.3 MB, stays in cache) and a few N x b temporaries, so arithmetic bounds it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpbo.models.factor import cholesky
from dpbo.models.gradient_posterior import GradientPosterior
from dpbo.models.kernel_derivatives import Pull


class GradientTrace:
    """alpha(Z) at one theta (`d`, or `batch_shape x d`) for a fixed history.

    Attributes:
        prior: alpha of an empty design, the trace that the history leaves, `batch_shape`.
    """

    def __init__(self, posterior: GradientPosterior, theta: Tensor) -> None:
        self.posterior, self.theta = posterior, theta
        self.X, self.L = posterior.points(theta).contiguous(), posterior.factor(theta).contiguous()
        self.A = posterior.whitened_cross(theta)
        before = posterior.derivatives.prior(theta).diagonal(dim1=-2, dim2=-1).sum(-1)
        self.prior = before - self.A.square().sum((-2, -1))

    def value(self, Z: Tensor) -> Tensor:
        """alpha(Z) for Z `... x b x d`."""
        return self._parts(Z)[0]

    def value_and_gradient(self, Z: Tensor) -> tuple[Tensor, Tensor]:
        """alpha(Z) and d alpha / dZ for Z `... x b x d`."""
        alpha, V, P, pull_values, pull_gradient = self._parts(Z)
        Q = P @ P.mT
        C = torch.linalg.solve_triangular(self.L.mT, (self.A - V @ P) @ P.mT, upper=True)
        Q.diagonal(dim1=-2, dim2=-1).mul_(1.0 + self.posterior.jitter)  # D moves with k(z, z)
        return alpha, 2.0 * (pull_values(torch.cat([C, Q], dim=-2)) - pull_gradient(P.mT))

    def _parts(self, Z: Tensor) -> tuple[Tensor, Tensor, Tensor, Pull, Pull]:
        kernel, N = self.posterior.derivatives, self.X.shape[-2]
        # k(X, Z) and k(Z, Z) in one go: k is symmetric, so moving both points of the second does twice what the pull says
        rows = torch.cat([self.X.expand(*Z.shape[:-2], -1, -1), Z], dim=-2)
        K, pull_values = kernel.values(rows, Z)
        G, pull_gradient = kernel.gradients(self.theta, Z)
        V = torch.linalg.solve_triangular(self.L, K[..., :N, :], upper=False)
        R = G.mT - V.mT @ self.A
        P = torch.cholesky_solve(R, cholesky(self.posterior.noisy(Z, K[..., N:, :]) - V.mT @ V))
        return self.prior - (P * R).sum((-2, -1)), V, P, pull_values, pull_gradient
