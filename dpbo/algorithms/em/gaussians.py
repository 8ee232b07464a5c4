"""A public mixture of Gaussians, as weights, means and covariances, from moments and to natural parameters.

Covariances are `K x d x d` (full), `K x d` (diag) or `K` (spherical), as scikit-learn stores them. Everything here sees released numbers
only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from dpbo.queries.ball import Ball


@dataclass(frozen=True, eq=False)
class Gaussians:
    """weights `K`, means `K x d`, covariances by kind."""

    weights: torch.Tensor
    means: torch.Tensor
    covariances: torch.Tensor
    kind: str

    def natural(self) -> torch.Tensor:
        """theta with log(weight_k) + log N(z; k) = theta_k . statistics(z): `K x F`."""
        d = self.means.shape[1]
        match self.kind:
            case "full":
                precision = torch.cholesky_inverse(factor := torch.linalg.cholesky(self.covariances))
                linear = (precision @ self.means.unsqueeze(2)).squeeze(2)
                half = factor.diagonal(dim1=1, dim2=2).log().sum(1)
                i, j = torch.triu_indices(d, d)
                square = -precision[:, i, j] * torch.where(i == j, 0.5, 1.0).to(precision.dtype)
            case "diag":
                linear, half = self.means / self.covariances, 0.5 * self.covariances.log().sum(1)
                square = -0.5 / self.covariances
            case _:
                linear, half = self.means / self.covariances.unsqueeze(1), 0.5 * d * self.covariances.log()
                square = -0.5 / self.covariances.unsqueeze(1)
        constant = self.weights.log() - half - 0.5 * (linear * self.means).sum(1) - 0.5 * d * math.log(2 * math.pi)
        return torch.cat([constant.unsqueeze(1), linear, square], 1)

    def log_joint(self, Z: torch.Tensor) -> torch.Tensor:
        """log(weight_k N(z; k)) at each point: `n x K`."""
        d = self.means.shape[1]
        columns = []
        for weight, mean, factor in zip(self.weights, self.means, self.factors(), strict=True):
            white = torch.linalg.solve_triangular(factor, (Z - mean).T, upper=False)
            constant = weight.log() - factor.diagonal().log().sum() - 0.5 * d * math.log(2 * math.pi)
            columns.append(constant - 0.5 * white.square().sum(0))
        return torch.stack(columns, 1)

    def factors(self) -> torch.Tensor:
        """Lower Cholesky factors, `K x d x d`."""
        return torch.linalg.cholesky(self.dense())

    def dense(self) -> torch.Tensor:
        """Covariances as matrices, `K x d x d`."""
        if self.kind == "full":
            return self.covariances
        diagonal = self.covariances if self.kind == "diag" else self.covariances.unsqueeze(1).expand_as(self.means)
        return torch.diag_embed(diagonal)

    def outward(self, ball: Ball) -> Gaussians:
        """The same mixture in x's coordinates; the ball's matrix must be of the covariances' kind."""
        means = ball.outward(self.means)
        if ball.matrix is None:
            return Gaussians(self.weights, means, self.covariances * ball.radius**2, self.kind)
        back = torch.linalg.inv(ball.matrix) * ball.radius
        match self.kind:
            case "full":
                covariances = back @ self.covariances @ back.T
            case "diag":
                covariances = self.covariances * back.diagonal() ** 2
            case _:
                covariances = self.covariances * back[0, 0] ** 2
        return Gaussians(self.weights, means, covariances, self.kind)


def matrix_of(upper: torch.Tensor, d: int) -> torch.Tensor:
    """Symmetric matrices from their upper triangles row by row: `batch x d(d+1)/2` to `batch x d x d`."""
    i, j = torch.triu_indices(d, d)
    full = upper.new_zeros(len(upper), d, d)
    full[:, i, j] = upper
    full[:, j, i] = upper
    return full


def second(moments: torch.Tensor, d: int, kind: str) -> torch.Tensor:
    """The second-moment block of `K x F` in the shape of covariances (spherical: the mean over coordinates)."""
    block = moments[:, 1 + d :]
    return matrix_of(block, d) if kind == "full" else block if kind == "diag" else block[:, 0] / d


def outer(means: torch.Tensor, kind: str) -> torch.Tensor:
    """mean mean' in the shape of covariances."""
    match kind:
        case "full":
            return means.unsqueeze(2) * means.unsqueeze(1)
        case "diag":
            return means.square()
        case _:
            return means.square().mean(1)


def per(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """One number a component, shaped to multiply `like`."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


def floored(covariances: torch.Tensor, kind: str, least: float, most: float) -> torch.Tensor:
    """Eigenvalues brought into [least, most]: the nearest such matrices in Frobenius norm."""
    if kind != "full":
        return covariances.clamp(least, most)
    values, vectors = torch.linalg.eigh((covariances + covariances.mT) / 2)
    return (vectors * values.clamp(least, most).unsqueeze(1)) @ vectors.mT
