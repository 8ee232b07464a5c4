"""The gradient of a Gaussian process at a point, given noisy values elsewhere: linear weights and a
covariance.

    posterior = GradientPosterior(RBFKernel().double(), 0.0)
    X = suggest_gradient_points(posterior, theta, 11)
    # `d`
    g = posterior.release_gradient(curator, theta, X, loss, mechanism=GaussianMechanism(20.0), clip=1.0).value

The posterior mean of the gradient is W (y - mean) with W = dk(theta, X)/dtheta (K + D)^-1, and its
covariance does not depend on y (DP-GIBO, arXiv 2502.06044, Algorithm 1). So one W serves the losses
of every unit at once, and everything here is public: points only. The one exception is
`release_gradient`, which hands a query to a curator and returns its release.

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
from dpbo.mechanisms.mechanism import Mechanism
from dpbo.models.kernels import KernelDerivatives, kernel_derivatives, require_finite
from dpbo.release import CuratorLike, Release
from dpbo.validation import Finite, Positive, between, checked

# least rows of storage
_BLOCK = 128
# rounding alone reached 2e-14 at N = 1100, where the weights were within 1e-8 of a fresh factor's
_DRIFT = 1e-13


@checked
class GradientPosterior:
    """A kernel and the points observed so far.

    Args:
        kernel: a GPyTorch kernel in float64, or `KernelDerivatives`. Public: never fitted on
            private values.
        noise: variance of the observation noise, 0 or more, in units of y^2.

    Keyword args: mean: public prior mean of y; posterior gradients are weights(theta) @ (y - mean).
        jitter: variance added to each point as a share of its prior variance, above 0. Smaller than
        1e-6 lets rounding
            and the error of the interpolation take over.

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
        self.derivatives = (
            kernel if isinstance(kernel, KernelDerivatives) else kernel_derivatives(kernel)
        )
        self.noise = noise
        self.jitter = jitter
        self.mean = mean
        self._factor = GrowingFactor()
        self._X: Tensor | None = None

    def __len__(self) -> int:
        return self._factor.size

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of the independent runs, empty before the first point."""
        return torch.Size() if self._X is None else self._X.shape[:-2]

    def points(self, like: Tensor) -> Tensor:
        """The observed X, `batch_shape x N x d`; before the first point, none of `like`'s (`... x
        d`) kind.
        """
        return (
            like.new_empty(0, like.shape[-1]) if self._X is None else self._X[..., : len(self), :]
        )

    def factor(self, like: Tensor) -> Tensor:
        """Lower Cholesky factor of K + D, `batch_shape x N x N`; before the first point, an empty
        one of `like`'s kind.
        """
        return like.new_empty(0, 0) if self._X is None else self._factor.matrix

    def append(self, X: Tensor) -> None:
        """Observe at X, `batch_shape x b x d`, too: N^2 b flops. A factor that has drifted is
        computed afresh.

        Raises:
            InputError: X is not float64, not finite or of another shape, or noise and jitter are
                too small for it.
        """
        require_finite("X", X)
        if X.dim() < 2 or (
            self._X is not None
            and (X.shape[:-2], X.shape[-1]) != (self._X.shape[:-2], self._X.shape[-1])
        ):
            raise InputError(
                "X", tuple(X.shape), "of shape batch_shape x b x d, as the points before it"
            )
        if X.shape[-2] == 0:
            return
        old = self.points(X)
        cross = self.derivatives.value(old, X)
        block = self.noisy(X, self.derivatives.value(X, X))
        try:
            sound = self._factor.append(cross, block) < _DRIFT
        except UsageError:
            # the factor has drifted, or X is hopeless, which the fresh factorisation below reports
            sound = False
        if not sound:
            whole = torch.cat([old.expand(*X.shape[:-2], -1, -1), X], dim=-2)
            A = self.noisy(whole, self.derivatives.value(whole, whole))
            fresh = GrowingFactor()
            fresh.append(A[..., :0, :], A)
            self._factor = fresh
        n = old.shape[-2]
        if self._X is None or len(self) > self._X.shape[-2]:
            self._X = X.new_empty(*X.shape[:-2], max(_BLOCK, 2 * len(self)), X.shape[-1])
            self._X[..., :n, :] = old
        self._X[..., n : len(self), :] = X

    def conditioned_on(self, X: Tensor) -> GradientPosterior:
        """A copy that has observed X, `batch_shape x b x d`, as well; this one is left as it is."""
        twin = copy.copy(self)
        twin._factor = self._factor.copy()
        twin._X = None if self._X is None else self._X.clone()
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
        """Posterior covariance of the gradient at theta (`batch_shape x d`), `batch_shape x d x
        d`.
        """
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

        Keyword args: clip: length to which a unit's gradient is clipped, in units of the loss over
            those of theta. loss_points: the same points in the loss's own coordinates, `b x d`,
            where they differ from this posterior's. earlier: handles of the answers at the points
            observed before, in their order; required if there are any. keep: whether this answer's
            losses stay with the curator for later queries. divisor, loss_range: as in
            `ClippedGradient`.

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

    def release_gradient(
        self,
        curator: CuratorLike,
        theta: Tensor,
        X: Tensor,
        loss: Loss,
        *,
        mechanism: Mechanism,
        clip: float,
        **options: Any,
    ) -> Release:
        """Release the answer of `gradient_query`: charged once, with value `d` and the noise's
        variance of each coordinate.

        Args:
            curator: owner of the records.
            theta, X, loss, clip, options: as in `gradient_query`.
            mechanism: of the noise; its scale follows from the query's sensitivity, 2 clip under
                REPLACE_ONE and clip under ADD_OR_REMOVE_ONE (proven in `ClippedGradient`).

        Raises:
            InputError: as `gradient_query`.
            BudgetExceeded: more than is left; nothing was charged.
        """
        return curator.release(self.gradient_query(theta, X, loss, clip=clip, **options), mechanism)

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


class GrowingFactor:
    """L with L L^T = A, for symmetric positive definite A given block by block; `... x N x N`.

    Appending b rows to N costs N^2 b + N b^2 + b^3/3 flops where a fresh factorisation costs N^3/3,
    and is as stable: it is the blocked algorithm, spread over time. Storage doubles when full, so
    nothing is copied most times. A fixed probe vector v is multiplied by the matrix as it grows; L
    (L^T v) against that product measures the backward error in 4 N^2 flops.
    """

    def __init__(self) -> None:
        self.size = 0
        self._L = self._probe = self._product = torch.empty(0, 0)

    @property
    def matrix(self) -> Tensor:
        """L, `... x N x N`: a view of the storage."""
        return self._L[..., : self.size, : self.size]

    def append(self, cross: Tensor, block: Tensor) -> float:
        """Grow A by the columns `cross` (`... x N x b`) and the corner `block` (`... x b x b`).

        Returns:
            the largest relative error of L L^T against A along the probe; about 1e-15 when sound.

        Raises:
            InputError: the grown matrix is not positive definite in float64; nothing was appended.
        """
        old = self.size
        new = self.size + block.shape[-1]
        if new > self._L.shape[-1]:
            batch = block.shape[:-2]
            capacity = max(_BLOCK, new, 2 * self._L.shape[-1])
            L = block.new_zeros(*batch, capacity, capacity)
            product = block.new_zeros(*batch, capacity, 1)
            if old:
                L[..., :old, :old] = self.matrix
                product[..., :old, :] = self._product[..., :old, :]
            self._L = L
            self._product = product
            self._probe = torch.cos(
                torch.arange(1.0, capacity + 1.0, dtype=block.dtype, device=block.device).square()
            ).unsqueeze(-1)
        V = torch.linalg.solve_triangular(self.matrix, cross, upper=False)
        corner, info = torch.linalg.cholesky_ex(block - V.mT @ V)
        self._L[..., old:new, :old] = V.mT
        self._L[..., old:new, old:new] = corner
        v = self._probe[:old]
        w = self._probe[old:new]
        product = torch.cat(
            [self._product[..., :old, :] + cross @ w, cross.mT @ v + block @ w], dim=-2
        )
        L = self._L[..., :new, :new].detach()
        Av = product.detach()
        drift = (L @ (L.mT @ self._probe[:new]) - Av).abs().max() / Av.abs().max()
        # a GPU is waited for once
        drift, failed = torch.stack([drift, info.any().to(drift.dtype)]).tolist()
        require_positive_definite(bool(failed))
        self._product[..., :new, :] = product
        self.size = new
        return float(drift)

    def copy(self) -> GrowingFactor:
        """An independent copy."""
        twin = GrowingFactor()
        twin.size = self.size
        twin._probe = self._probe
        twin._L = self._L.clone()
        twin._product = self._product.clone()
        return twin


def cholesky(
    A: Tensor, blamed: str = "jitter", remedy: str = "Raise the noise or the jitter (1e-6 or more)."
) -> Tensor:
    """The lower factor of A, `... x n x n`.

    Raises:
        InputError: A is not positive definite, so what was added to its diagonal (`blamed`) is
            below float64's rounding of A.
    """
    L, info = torch.linalg.cholesky_ex(A)
    require_positive_definite(bool(info.any()), blamed, remedy)
    return torch.as_tensor(L)


def require_positive_definite(
    failed: bool,
    blamed: str = "jitter",
    remedy: str = "Raise the noise or the jitter (1e-6 or more).",
) -> None:
    """Raises UsageError if a factorisation failed: what was added to the diagonal (`blamed`) is
    below float64's rounding.
    """
    if failed:
        raise UsageError(f"{blamed} is too small for a positive definite matrix. {remedy}")
