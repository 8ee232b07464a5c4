"""Derivatives of a covariance function, and the products with them that an analytic gradient needs.

A gradient is a linear functional of a Gaussian process, so its posterior needs k, dk/dtheta and d2k/dtheta dz^T alone, and the
analytic gradient of anything made of them needs two products: pull C back through k(X, Z), and P back through dk(theta, Z)/dtheta.
Two instances: `RBF` states all of it in closed form, `Traced` leaves it to torch.func. (DP-GIBO, arXiv 2502.06044, section 3.)

A kernel implements two methods; each returns a matrix and the function that pulls a matrix of the same shape back to Z, so that
what both need (distances, exponentials) is computed once.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dpbo.errors import InputError

Pull = Callable[[Tensor], Tensor]


class Derivatives(abc.ABC):
    """One kernel with fixed hyperparameters. Points are rows; leading dimensions are independent runs."""

    @abc.abstractmethod
    def values(self, X: Tensor, Z: Tensor) -> tuple[Tensor, Pull]:
        """k(X, Z), `... x n x m`, and C -> sum_n C_ni dk(x_n, z_i)/dz_i, `... x m x d`."""

    @abc.abstractmethod
    def gradients(self, theta: Tensor, Z: Tensor) -> tuple[Tensor, Pull]:
        """dk(theta, Z)/dtheta, `... x d x m`, and P -> sum_j P_ji d2k(theta, z_i)/dtheta_j dz_i, `... x m x d`."""

    @abc.abstractmethod
    def variances(self, X: Tensor) -> Tensor:
        """k(x, x) for each row of X, `... x n`."""

    def value(self, X: Tensor, Z: Tensor) -> Tensor:
        """k(X, Z), `... x n x m`."""
        return self.values(X, Z)[0]

    def gradient(self, theta: Tensor, Z: Tensor) -> Tensor:
        """dk(theta, Z)/dtheta, `... x d x m`."""
        return self.gradients(theta, Z)[0]

    def mixed(self, theta: Tensor, Z: Tensor) -> Tensor:
        """d2k(theta, z)/dtheta dz^T for each row z of Z, `... x m x d x d`."""
        G, pull = self.gradients(theta, Z)
        d = G.shape[-2]
        directions = torch.eye(d, dtype=G.dtype, device=G.device).view(d, *(1 for _ in G.shape[:-2]), d, 1).expand(d, *G.shape)
        return torch.func.vmap(pull)(directions).movedim(0, -2)

    def prior(self, theta: Tensor) -> Tensor:
        """Prior covariance of the gradient at theta, d2k/dx dz^T at x = z = theta, `... x d x d`.

        Raises:
            InputError: k is not twice differentiable there. A kernel made of others asks each, since only its maker knows how to tell.
        """
        return self.mixed(theta, theta.unsqueeze(-2)).squeeze(-3)


class Scaled(Derivatives):
    """s k(x, z); `scale` is s, `...` (one a run)."""

    def __init__(self, base: Derivatives, scale: Tensor) -> None:
        self.base, self.scale = base, scale[..., None, None]

    def values(self, X: Tensor, Z: Tensor) -> tuple[Tensor, Pull]:
        K, pull = self.base.values(X, Z)
        return self.scale * K, lambda C: pull(self.scale * C)

    def gradients(self, theta: Tensor, Z: Tensor) -> tuple[Tensor, Pull]:
        G, pull = self.base.gradients(theta, Z)
        return self.scale * G, lambda P: pull(self.scale * P)

    def variances(self, X: Tensor) -> Tensor:
        return self.scale[..., 0] * self.base.variances(X)

    def prior(self, theta: Tensor) -> Tensor:
        return self.scale * self.base.prior(theta)


class Sum(Derivatives):
    """k_1(x, z) + k_2(x, z) + ..."""

    def __init__(self, parts: Sequence[Derivatives]) -> None:
        self.parts = parts

    def values(self, X: Tensor, Z: Tensor) -> tuple[Tensor, Pull]:
        return _add([part.values(X, Z) for part in self.parts])

    def gradients(self, theta: Tensor, Z: Tensor) -> tuple[Tensor, Pull]:
        return _add([part.gradients(theta, Z) for part in self.parts])

    def variances(self, X: Tensor) -> Tensor:
        return torch.stack([part.variances(X) for part in self.parts]).sum(0)

    def prior(self, theta: Tensor) -> Tensor:
        return torch.stack([part.prior(theta) for part in self.parts]).sum(0)


def _add(terms: Sequence[tuple[Tensor, Pull]]) -> tuple[Tensor, Pull]:
    matrices, pulls = zip(*terms, strict=True)
    return torch.stack(matrices).sum(0), lambda C: torch.stack([pull(C) for pull in pulls]).sum(0)


def require_float64(name: str, value: Tensor) -> Tensor:
    """`value` if it holds float64, else InputError: a jitter of 1e-6 drowns in float32's rounding."""
    if value.dtype != torch.float64:
        raise InputError(name, str(value.dtype), "a float64 tensor", "Call .double() on it.")
    return value


def require_finite(name: str, value: Tensor) -> Tensor:
    """`value` if it holds finite float64, else InputError: a NaN would come back as one, or as a matrix that is not positive definite."""
    if not bool(require_float64(name, value).isfinite().all()):
        raise InputError(name, "not finite", "finite")
    return value
