"""The gradient of a Gaussian process at a point, given noisy values elsewhere: linear weights and a
covariance.

    posterior = GradientPosterior(RBFKernel().double(), 0.0)
    X = suggest_gradient_points(posterior, theta, 11)
    query = posterior.gradient_query(theta, X, loss, clip=1.0)
    # `d`
    g = curator.release(query, GaussianMechanism(20.0)).value

The posterior mean of the gradient is W (y - mean) with W = dk(theta, X)/dtheta (K + D)^-1, and its
covariance does not depend on y (DP-GIBO, arXiv 2502.06044, Algorithm 1). So one W serves the losses
of every unit at once, and everything here is public: points only.

D = noise I + jitter diag(k(x, x)): the same in the acquisition and in the weights, or the design
would trust what the weights do not.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from dpbo.errors import InputError, UsageError
from dpbo.gibo.gradient_query import ClippedGradient, Loss
from dpbo.models.kernels import KernelDerivatives, kernel_derivatives, require_finite
from dpbo.validation import Dtype, Finite, Positive, between, checked


@checked
class GradientPosterior:
    """A kernel and the points observed so far.

    Args:
        kernel: a GPyTorch kernel in float64, or `KernelDerivatives`. Public: never fitted on
            private values.
        noise: variance of the observation noise, 0 or more, in units of y^2.

    Keyword args:
        mean: public prior mean of y; posterior gradients are weights(theta) @ (y - mean).
        jitter: variance added to each point as a share of its prior variance, above 0. Smaller than
            1e-6 lets rounding and the error of the interpolation take over.

    Raises:
        InputError: an argument out of range, or not float64.
    """

    def __init__(
        self,
        kernel: Kernel | KernelDerivatives,
        noise: Annotated[float, between(0.0, 1e100)],
        *,
        mean: Finite = 0.0,
        jitter: Positive = 1e-6,
    ) -> None:
        if isinstance(kernel, Kernel):
            kernel = kernel_derivatives(kernel)
        self.derivatives = kernel
        self.noise = noise
        self.jitter = jitter
        self.mean = mean
        self._X: Tensor | None = None
        self._L: Tensor | None = None

    def __len__(self) -> int:
        if self._X is None:
            return 0
        return len(self._X)

    def to(
        self, device: torch.device | str | None = None, dtype: Dtype | None = None
    ) -> GradientPosterior:
        """A copy with kernel and points on this device."""
        twin = copy.copy(self)
        twin.derivatives = self.derivatives.to(device)
        if self._X is not None and self._L is not None:
            twin._X = self._X.to(device=device)
            twin._L = self._L.to(device=device)
        return twin

    def points(self, like: Tensor) -> Tensor:
        """The observed X, `N x d`; before the first point, none of `like`'s (`... x d`) kind."""
        if self._X is None:
            return like.new_zeros(0, like.shape[-1])
        return self._X

    def factor(self, like: Tensor) -> Tensor:
        """Lower Cholesky factor of K + D, `N x N`; before the first point, of `like`'s kind."""
        if self._L is None:
            return like.new_zeros(0, 0)
        return self._L

    def append(self, X: Tensor) -> None:
        """Observe at X, `b x d`, too: the factor grows by b rows, in N^2 b flops.

        Raises:
            InputError: X is not float64, not finite or of another shape.
            UsageError: noise and jitter are too small for it.
        """
        require_finite("X", X)
        old = self.points(X)
        if X.dim() != 2 or X.shape[1] != old.shape[1]:
            raise InputError("X", tuple(X.shape), "of shape b x d, as the points before it")
        if len(X) == 0:
            return
        corner = self.noisy(X, self.derivatives.value(X, X))
        self._L = grown(self.factor(X), self.derivatives.value(old, X), corner)
        self._X = torch.cat([old, X])

    def conditioned_on(self, X: Tensor) -> GradientPosterior:
        """A copy that has observed X, `b x d`, as well; this one is left as it is."""
        twin = copy.copy(self)
        twin.append(X)
        return twin

    def weights(self, theta: Tensor) -> Tensor:
        """W, `batch_shape x d x N`: the posterior mean of the gradient at theta (`batch_shape x d`)
        is W @ (y - mean).
        """
        self._require_theta(theta)
        return torch.linalg.solve_triangular(
            self.factor(theta).mT, self.whitened_cross(theta), upper=True
        ).mT

    def covariance(self, theta: Tensor) -> Tensor:
        """Posterior covariance of the gradient at theta (`... x d`), `... x d x d`."""
        self._require_theta(theta)
        A = self.whitened_cross(theta)
        return self.derivatives.prior(theta) - A.mT @ A

    def gradient_query(
        self,
        theta: Tensor,
        X: Tensor,
        loss: Loss,
        *,
        clip: float,
        loss_points: Tensor | None = None,
        earlier: Sequence[Any] = (),
        keep: bool = False,
        divisor: float | None = None,
        loss_range: tuple[float, float] | None = None,
    ) -> ClippedGradient:
        """The query for the mean over units of their clipped gradients at theta, each estimated
        from a unit's own losses at X.

        It is a `ClippedGradient` with the weights of `conditioned_on(X)` and this posterior's mean
        as its center, so its sensitivity is proven there: from clip and adjacency alone, whatever
        the weights are. Free and public; `append(X)` afterwards if the losses are to be used again.

        Args:
            theta: where the gradient is wanted, `d`.
            X: points where the losses are computed, `b x d`, as from `suggest_gradient_points`.
            loss: `loss(x, records)`, one number a record, smaller is better; each record by itself.

        Keyword args:
            clip: length to which a unit's gradient is clipped, in units of the loss over those of
                theta.
            loss_points: the same points in the loss's own coordinates, `b x d`, where they differ
                from this posterior's.
            earlier: handles of the answers at the points observed before, in their order; required
                if there are any.
            keep: whether this answer's losses stay with the curator for later queries.
            divisor, loss_range: as in `ClippedGradient`.

        Raises:
            InputError: an argument out of range, or points without an earlier answer.
        """
        if len(self) and not earlier:
            raise InputError(
                "earlier",
                (),
                f"the handles for the {len(self)} points observed before",
                "Use a posterior without points.",
            )
        weights = self.conditioned_on(X).weights(theta)
        at = X if loss_points is None else loss_points
        return ClippedGradient(
            loss,
            at,
            weights=weights,
            clip=clip,
            center=self.mean,
            divisor=divisor,
            earlier=earlier,
            keep=keep,
            loss_range=loss_range,
        )

    def _require_theta(self, theta: Tensor) -> None:
        if require_finite("theta", theta).dim() < 1 or (
            self._X is not None and theta.shape[-1] != self._X.shape[-1]
        ):
            raise InputError(
                "theta",
                tuple(theta.shape),
                "of shape batch_shape x d, d that of the observed points",
            )

    def noisy(self, X: Tensor, K: Tensor) -> Tensor:
        """K + D for the covariance K of X, `... x b x b`."""
        noisy = K.clone()
        noisy.diagonal(dim1=-2, dim2=-1).add_(
            self.derivatives.variances(X), alpha=self.jitter
        ).add_(self.noise)
        return noisy

    def whitened_cross(self, theta: Tensor) -> Tensor:
        """L^-1 (dk(theta, X)/dtheta)^T, `batch_shape x N x d`, for a finite theta; its Gram matrix
        is the variance the points explain.
        """
        cross = self.derivatives.gradient(theta, self.points(theta)).mT
        return torch.linalg.solve_triangular(self.factor(theta), cross, upper=False)


def grown(L: Tensor, cross: Tensor, corner: Tensor) -> Tensor:
    """The lower factor, `(N + b) x (N + b)`, of [[L L^T, cross], [cross^T, corner]].

    It is the blocked factorisation, one block row a call, and as stable: after 1,100 rows the
    weights were within 1e-8 of a fresh factor's.

    Args:
        L: `N x N`, lower.
        cross: `N x b`.
        corner: `b x b`.

    Raises:
        UsageError: the matrix is not positive definite in float64.
    """
    V = torch.linalg.solve_triangular(L, cross, upper=False)
    top = torch.cat([L, torch.zeros_like(cross)], dim=1)
    return torch.cat([top, torch.cat([V.mT, cholesky(corner - V.mT @ V)], dim=1)])


def cholesky(A: Tensor) -> Tensor:
    """The lower factor of A, `... x n x n`. Raises UsageError where A is not positive definite."""
    L: Tensor
    L, info = torch.linalg.cholesky_ex(A)
    require_positive_definite(info)
    return L


def require_positive_definite(info: Tensor) -> None:
    """Raises UsageError if a factorisation, by its `info`, failed: the diagonal's share is below
    rounding.
    """
    if bool(info.any()):
        raise UsageError(
            "jitter is too small for a positive definite matrix. Raise the noise or the jitter"
            " (1e-6 or more)."
        )
