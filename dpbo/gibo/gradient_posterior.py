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

Leading dimensions are independent runs: fifty runs' factors grow, and their weights are found, by
the operations that one run's are.
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
from dpbo.models.kernels import (
    KernelDerivatives,
    broadcast_shapes,
    kernel_derivatives,
    moved,
    of_runs,
    require_finite,
    require_float64,
)
from dpbo.validation import FINITE, Dtype, Finite, Positive, Within, between, checked

VARIANCES = Within(
    "0 or more and finite", lambda value: bool(((0 <= value) & (value < 1e100)).all())
)


@checked
class GradientPosterior:
    """A kernel and the points observed so far, of one run or of a batch of independent runs.

    Args:
        kernel: a GPyTorch kernel in float64, or `KernelDerivatives`: one for all runs, or a batch
            of them. Public: never fitted on private values.
        noise: variance of the observation noise, 0 or more, in units of y^2; a number, or
            `batch_shape`.

    Keyword args:
        mean: public prior mean of y, a number or `batch_shape`; posterior gradients are
            weights(theta) @ (y - mean).
        jitter: variance added to each point as a share of its prior variance, above 0. Smaller than
            1e-6 lets rounding and the error of the interpolation take over.

    Raises:
        InputError: an argument out of range, not float64, or of a batch that does not fit the
            kernel's.
    """

    def __init__(
        self,
        kernel: Kernel | KernelDerivatives,
        noise: Annotated[float, between(0.0, 1e100)] | Annotated[Tensor, VARIANCES],
        *,
        mean: Finite | Annotated[Tensor, FINITE] = 0.0,
        jitter: Positive = 1e-6,
    ) -> None:
        if isinstance(kernel, Kernel):
            kernel = kernel_derivatives(kernel)
        self.derivatives = kernel
        self._X: Tensor | None = None
        self.noise: float | Tensor = 0.0
        self.mean: float | Tensor = 0.0
        for name, value in (("noise", noise), ("mean", mean)):
            if isinstance(value, Tensor):
                require_float64(name, value)
                broadcast(name, value.shape, self.batch_shape, value.shape)
                value = value.detach().clone()
            setattr(self, name, value)
        self.jitter = jitter
        self._L: Tensor | None = None

    def __len__(self) -> int:
        if self._X is None:
            return 0
        return self._X.shape[-2]

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of the batch of runs, empty for one; before the first point, that of kernel, noise
        and mean.
        """
        if self._X is None:
            own = [part.shape for part in (self.noise, self.mean) if isinstance(part, Tensor)]
            return broadcast_shapes(self.derivatives.batch_shape, *own)
        return self._X.shape[:-2]

    def to(
        self, device: torch.device | str | None = None, dtype: Dtype | None = None
    ) -> GradientPosterior:
        """A copy with kernel and points on this device."""
        twin = copy.copy(self)
        for name, value in vars(self).items():
            setattr(twin, name, moved(value, device))
        return twin

    def points(self, like: Tensor) -> Tensor:
        """The observed X, `batch_shape x N x d`; before the first point, none of `like`'s (`... x
        d`) kind.
        """
        if self._X is None:
            return like.new_zeros(*self.batch_shape, 0, like.shape[-1])
        return self._X

    def factor(self, like: Tensor) -> Tensor:
        """Lower Cholesky factor of K + D, `batch_shape x N x N`; before the first point, of
        `like`'s kind.
        """
        if self._L is None:
            return like.new_zeros(*self.batch_shape, 0, 0)
        return self._L

    def of_runs(
        self, batch_shape: torch.Size, runs: Tensor | slice = slice(None)
    ) -> GradientPosterior:
        """The runs of these numbers, `r`, of this posterior's once it is expanded to a shape and
        flattened.
        """
        twin = copy.copy(self)
        twin.derivatives = self.derivatives.of_runs(batch_shape, runs)
        for name, dims in (("noise", 0), ("mean", 0), ("_X", 2), ("_L", 2)):
            value = getattr(self, name)
            if isinstance(value, Tensor):
                setattr(twin, name, of_runs(value, batch_shape, runs, dims))
        return twin

    def append(self, X: Tensor) -> None:
        """Observe at X, `batch_shape x b x d`, too: each run's factor grows by b rows, in N^2 b
        flops. Points of one run are observed in all; points of several turn one run into as many.

        Raises:
            InputError: X is not float64, not finite or of another shape.
            UsageError: noise and jitter are too small for it.
        """
        require_finite("X", X)
        batch_shape = self.shape_with("X", X, 2)
        if X.shape[-2] == 0:
            return
        # one run is a batch of one, so that its bits are those that it has in a batch
        runs = self.of_runs(batch_shape)
        X = of_runs(X, batch_shape, slice(None), 2)
        old, L = (
            part.expand(len(X), *part.shape[-2:]) for part in (runs.points(X), runs.factor(X))
        )
        corner = add_noise_(runs, X, runs.derivatives.value(X, X))
        L = grown(L, runs.derivatives.value(old, X), corner)
        points = torch.cat([old, X], dim=-2)
        self._L = L.view(*batch_shape, *L.shape[-2:])
        self._X = points.view(*batch_shape, *points.shape[-2:])

    def conditioned_on(self, X: Tensor) -> GradientPosterior:
        """A copy that has observed X, `batch_shape x b x d`, as well; this one is left as it is."""
        twin = copy.copy(self)
        twin.append(X)
        return twin

    def weights(self, theta: Tensor) -> Tensor:
        """W, `batch_shape x d x N`: the posterior mean of the gradient at theta (`batch_shape x d`)
        is W @ (y - mean).

        Raises:
            InputError: theta is not float64, not finite or of another shape.
        """
        self._require_theta(theta)
        if theta.dim() == 1 and not self.batch_shape:
            return self.weights(theta.unsqueeze(0)).squeeze(0)
        return torch.linalg.solve_triangular(
            self.factor(theta).mT, self.whitened_cross(theta), upper=True
        ).mT

    def covariance(self, theta: Tensor) -> Tensor:
        """Posterior covariance of the gradient at theta (`batch_shape x d`), `batch_shape x d x d`.

        Raises:
            InputError: theta is not float64, not finite or of another shape.
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
        A query is of one run.

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
            InputError: an argument out of range, points of several runs, or points without an
                earlier answer.
            UsageError: this posterior is of several runs.
        """
        if self.batch_shape:
            raise UsageError(
                f"A query is of one run, and this posterior is of {self.batch_shape.numel()}. Make"
                " a GradientPosterior for each run, and a query of each."
            )
        for name, value, dims in (("theta", theta, 1), ("X", X, 2)):
            if value.dim() != dims:
                shape = ("d", "b x d")[dims - 1]
                raise InputError(name, tuple(value.shape), f"of shape {shape}, of one run")
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
            center=float(self.mean),
            divisor=divisor,
            earlier=earlier,
            keep=keep,
            loss_range=loss_range,
        )

    def _require_theta(self, theta: Tensor) -> None:
        self.shape_with("theta", require_finite("theta", theta), 1)

    def shape_with(self, name: str, value: Tensor, dims: int) -> torch.Size:
        """The shape of the runs of this posterior and of the value together. The value has so many
        dimensions of its own, the last for coordinates.
        """
        d = value.shape[-1:]
        if self._X is not None:
            d = self._X.shape[-1:]
        elif self.derivatives.shape[-1] > 1:
            d = self.derivatives.shape[-1:]
        if value.dim() < dims or value.shape[-1:] != d:
            shape = ("d", "b x d")[dims - 1]
            allowed = f"of shape batch_shape x {shape}, d that of the kernel and of earlier points"
            raise InputError(name, tuple(value.shape), allowed)
        return broadcast(name, value.shape, self.batch_shape, value.shape[:-dims])

    def whitened_cross(self, theta: Tensor) -> Tensor:
        """L^-1 (dk(theta, X)/dtheta)^T, `batch_shape x N x d`, for a finite theta; its Gram matrix
        is the variance the points explain.
        """
        cross = self.derivatives.gradient(theta, self.points(theta)).mT
        return torch.linalg.solve_triangular(self.factor(theta), cross, upper=False)


def broadcast(
    name: str, shape: Sequence[int], batch_shape: torch.Size, own: torch.Size
) -> torch.Size:
    """Both shapes broadcast. Raises InputError, which names the argument of this `shape`, for two
    that do not fit.
    """
    try:
        return broadcast_shapes(batch_shape, own)
    except RuntimeError:
        allowed = f"of a batch that fits the runs, {tuple(batch_shape)}"
        raise InputError(name, tuple(shape), allowed) from None


def add_noise_(posterior: GradientPosterior, X: Tensor, K: Tensor) -> Tensor:
    """K + D in place of the covariance K of X, `... x b x b`."""
    noise = posterior.noise
    if isinstance(noise, Tensor):
        noise = noise.unsqueeze(-1)
    diagonal = K.diagonal(dim1=-2, dim2=-1)
    diagonal.add_(posterior.derivatives.variances(X), alpha=posterior.jitter).add_(noise)
    return K


def grown(L: Tensor, cross: Tensor, corner: Tensor) -> Tensor:
    """The lower factor, `... x (N + b) x (N + b)`, of [[L L^T, cross], [cross^T, corner]].

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
    top = torch.cat([L, torch.zeros_like(cross)], dim=-1)
    bottom = torch.cat([V.mT, cholesky(corner - V.mT @ V)], dim=-1)
    return torch.cat([top, bottom], dim=-2)


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
