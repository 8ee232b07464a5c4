"""A SingleTaskGP that also gives the posterior of its gradient, and asks private records for one.

    model = GradientGP(train_X, train_Y, input_transform=Normalize(d=2))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    model.gradient_posterior(X).mean
    released = model.release_gradient(curator, theta, None, loss, clip=1.0, mechanism=mechanism)

A Gaussian process and its gradient are jointly Gaussian, so conditioning on the training data gives
the gradient's mean and covariance in closed form. The model is public: train it on public or
released values only, never on private ones.
"""

from __future__ import annotations

from typing import Any

import torch
from botorch.models import SingleTaskGP
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.transforms import Standardize
from botorch.models.transforms.input import AffineInputTransform, InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import Likelihood
from gpytorch.means import ConstantMean, Mean, ZeroMean
from linear_operator import to_linear_operator
from torch import Tensor

from dpbo.curator.curator import Curator
from dpbo.errors import InputError, UsageError
from dpbo.gibo.gradient_points import suggest_gradient_points
from dpbo.gibo.gradient_posterior import GradientPosterior, broadcast, cholesky
from dpbo.gibo.gradient_query import ClippedGradient, Loss
from dpbo.mechanisms.mechanism import Mechanism
from dpbo.models.kernels import (
    KernelDerivatives,
    Scaled,
    kernel_derivatives,
    of_affine_map,
    require_finite,
    require_float64,
)
from dpbo.release import Release
from dpbo.validation import NotNegative, Positive, checked

_REMEDY = "Pass a GradientPosterior with the kernel, noise and points you mean."


@checked
class GradientGP(SingleTaskGP):  # type: ignore[misc]
    """SingleTaskGP with the posterior of its gradient and a private release of a mean gradient.

    All that SingleTaskGP has is as there: arguments, `posterior`, `condition_on_observations`,
    `fantasize`, fits, batches of models. What is added needs one outcome, float64, an outcome
    transform that is None or Standardize, and an input transform that is None or affine
    (`Normalize`, `InputStandardize`), learned or not.

    The model must be public: fitted to public or released values. Nothing here reads a record
    except `release_gradient`, by the curator.

    Raises:
        InputError: training data of another dtype than float64.
    """

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_module: torch.nn.Module | None = None,
        mean_module: Mean | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
    ) -> None:
        given = {"train_X": train_X, "train_Y": train_Y, "train_Yvar": train_Yvar}
        # views of larger tensors would be saved with all of these
        copies = {
            name: require_float64(name, part).clone()
            for name, part in given.items()
            if part is not None
        }
        super().__init__(
            **copies,
            likelihood=likelihood,
            covar_module=covar_module,
            mean_module=mean_module,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
        )

    def gradient_posterior(self, X: Tensor) -> GPyTorchPosterior:
        """The joint posterior of the gradient at X (`batch_shape x q x d`), in the units of Y over
        those of X.

        Hyperparameters are constants here; what depends on X may be differentiated by it.

        Args:
            X: `batch_shape x q x d`. Points of no batch are those of each model of a batch.

        Returns:
            a posterior with mean `batch_shape x q x d`: over d tasks, or one where d = 1.

        Raises:
            InputError: X is not float64, not finite or of another shape, the model has several
                outcomes or a transform through which gradients are not carried, or its kernel is
                not twice differentiable.
            UsageError: the noise is too small for a positive definite covariance.
        """
        require_finite("X", X)
        self.eval()
        kernel, scale, train = _in_units_of_data(self)
        d = train.shape[-1]
        if X.ndim < 2 or X.shape[-2] == 0 or X.shape[-1] != d:
            raise InputError("X", tuple(X.shape), f"of shape batch_shape x q x {d}, q 1 or more")
        batch_shape = broadcast("X", X.shape, train.shape[:-2], X.shape[:-2])
        X = X.expand(*batch_shape, *X.shape[-2:])
        with torch.no_grad():
            at_train = self.forward(self.train_inputs[0])
            noisy = self.likelihood(at_train, self.train_inputs[0]).covariance_matrix
            L = cholesky(noisy)
            residual = (self.train_targets - at_train.mean).unsqueeze(-1)
        rows = X.unbind(-2)
        # refuses a kernel whose process has no gradient
        kernel.prior(rows[0].detach())
        # ... x q d x n, coordinates of a point together
        cross = torch.cat([kernel.gradient(x, train) for x in rows], dim=-2)
        prior = torch.cat([kernel.mixed(x, X).movedim(-3, -2).flatten(-2) for x in rows], dim=-2)
        A = torch.linalg.solve_triangular(L, cross.mT, upper=False)
        with torch.enable_grad():
            at = X if X.requires_grad else X.detach().requires_grad_()
            # a constant mean alone would not depend on X
            total = self.mean_module(self.transform_inputs(at)).sum() + 0.0 * at.sum()
        (slope,) = torch.autograd.grad(total, at, create_graph=X.requires_grad)
        explained = A.mT @ torch.linalg.solve_triangular(L, residual, upper=False)
        scale = scale[..., None, None]
        mean = scale * (slope + explained.squeeze(-1).unflatten(-1, (len(rows), d)))
        # a dense one is factorised when it is made
        covariance = to_linear_operator(scale.square() * (prior - A.mT @ A))
        if d == 1:
            return GPyTorchPosterior(MultivariateNormal(mean.squeeze(-1), covariance))
        return GPyTorchPosterior(MultitaskMultivariateNormal(mean, covariance))

    def of_one_unit(
        self, noise: NotNegative = 0.0, *, jitter: Positive = 1e-6
    ) -> GradientPosterior:
        """As `posterior_of_one_unit` of this model: a `GradientPosterior` for the losses of one
        unit, without points, in the units of X and Y; of a batch of models a batch of them.
        """
        return posterior_of_one_unit(self, noise, jitter=jitter)

    def gradient_query(
        self,
        theta: Tensor,
        X: Tensor,
        loss: Loss,
        *,
        clip: float,
        noise: NotNegative = 0.0,
        jitter: Positive = 1e-6,
        divisor: float | None = None,
        loss_range: tuple[float, float] | None = None,
    ) -> ClippedGradient:
        """The query for the mean over units of their clipped gradients at theta, each estimated
        from a unit's own losses at X.

        Sensitivity in l2: 2 clip where a unit is replaced, clip where one is added or removed; from
        clip and adjacency alone, whatever weights the model gives (`ClippedGradient`). The model
        must be public, fitted to public or released values. Free; for a batch of models make a
        query of each.

        Args:
            theta: where the gradient is wanted, `d`.
            X: points where the losses are computed, `b x d`, as from `suggest_gradient_points`.
            loss: `loss(x, records)`, one number a record, smaller is better; each record by itself.
                The model must be of its mean, with its sign: Y is a loss, too.

        Keyword args:
            clip: length to which a unit's gradient is clipped, in units of Y over those of X.
            noise, jitter: as in `posterior_of_one_unit`.
            divisor, loss_range: as in `ClippedGradient`.

        Raises:
            InputError: an argument out of range, or the model as in `posterior_of_one_unit`.
        """
        self._require_one(theta)
        return self.of_one_unit(noise, jitter=jitter).gradient_query(
            theta, X, loss, clip=clip, divisor=divisor, loss_range=loss_range
        )

    def release_gradient(
        self,
        curator: Curator,
        theta: Tensor,
        X: Tensor | None,
        loss: Loss,
        *,
        clip: float,
        mechanism: Mechanism,
        bounds: Tensor | None = None,
        noise: NotNegative = 0.0,
        jitter: Positive = 1e-6,
        divisor: float | None = None,
        loss_range: tuple[float, float] | None = None,
    ) -> Release:
        """Charge for and release the mean over units of their clipped gradients at theta: the
        query of `gradient_query`, answered once.

        Sensitivity in l2: 2 clip where a unit is replaced, clip where one is added or removed; from
        clip and adjacency alone, whatever weights the model gives. The model must be public, fitted
        to public or released values.

        Args:
            curator: owner of the records.
            theta, loss: as in `gradient_query`.
            X: as in `gradient_query`; None: d + 1 points by `suggest_gradient_points`.

        Keyword args:
            mechanism: the noise, for instance a `GaussianMechanism`.
            bounds: where the suggested points lie, `2 x d`.
            clip, noise, jitter, divisor, loss_range: as in `gradient_query`.

        Returns:
            a `Release` whose value is the noised mean gradient, `d`.

        Raises:
            InputError: as in `gradient_query`.
            BudgetExceeded: more than is left; nothing was charged.
        """
        self._require_one(theta)
        if X is None:
            posterior = self.of_one_unit(noise, jitter=jitter)
            X = suggest_gradient_points(posterior, theta, theta.shape[-1] + 1, bounds=bounds)
        query = self.gradient_query(
            theta,
            X,
            loss,
            clip=clip,
            noise=noise,
            jitter=jitter,
            divisor=divisor,
            loss_range=loss_range,
        )
        return curator.release(query, mechanism)

    def _require_one(self, theta: Tensor) -> None:
        """Raises UsageError for a batch of models, InputError for theta of several."""
        if self.batch_shape:
            raise UsageError(
                f"a private gradient is of one model, and this GradientGP is a batch of"
                f" {self.batch_shape.numel()}. Make a GradientGP of each."
            )
        if theta.dim() != 1:
            raise InputError("theta", tuple(theta.shape), "of shape d")


@checked
def posterior_of_one_unit(
    model: GPyTorchModel, noise: NotNegative = 0.0, *, jitter: Positive = 1e-6
) -> GradientPosterior:
    """A `GradientPosterior` with the kernel and mean of a model of the mean loss, in the units of
    its X and Y, for the losses of one unit.

    It has observed no points: the training values are those of the mean over units, not of one
    unit. Of a batch of models it is a batch of runs.

    Args:
        model: a SingleTaskGP or the like, fitted to public or released values; its outcome
            transform is None or Standardize, its input transform None or affine.
        noise: variance of one unit's loss around the process, in units of Y^2; the likelihood's is
            that of the training values.
        jitter: as in `GradientPosterior`.

    Raises:
        InputError: a mean that is not constant, another transform, several outcomes, or float32.
    """
    kernel, scale, _ = _in_units_of_data(model)
    mean = torch.zeros_like(scale)
    if isinstance(model.mean_module, ConstantMean):
        mean = scale * model.mean_module.constant.detach()
    elif not isinstance(model.mean_module, ZeroMean):
        raise InputError(
            "mean_module", type(model.mean_module).__name__, "a ConstantMean or ZeroMean"
        )
    outcome = getattr(model, "outcome_transform", None)
    if outcome is not None:
        kernel = Scaled(kernel, scale.square())
        mean = mean + outcome.means[..., 0, 0]
    return GradientPosterior(kernel, noise, mean=_number_of_one(mean), jitter=jitter)


def posterior_of_model(model: Any) -> GradientPosterior:
    """A `GradientPosterior` with the kernel, noise and training inputs of a model, in the units of
    its X and of the values that it models: those of its outcome transform. Raises InputError as
    `posterior_of_one_unit`, and for points of different noise.
    """
    kernel, _, train = _in_units_of_data(model, any_outcome=True)
    noise = model.likelihood.noise.detach()
    largest = noise.amax(-1)
    # a program that stores ten decimals changes equal noises a little
    if bool((noise.amin(-1) < 0.999 * largest).any()):
        raise InputError("model", model, "of one noise variance", _REMEDY)
    posterior = GradientPosterior(kernel, _number_of_one(largest))
    posterior.append(train)
    return posterior


def _number_of_one(value: Tensor) -> Any:
    """A number where there is no batch."""
    return value if value.dim() else float(value)


def _in_units_of_data(
    model: Any, *, any_outcome: bool = False
) -> tuple[KernelDerivatives, Tensor, Tensor]:
    """What gradients need of a model: its kernel over X as it was given, the factor from the
    model's units of values to Y's, `batch_shape`, and its training inputs in the units of X,
    `batch_shape x n x d`. Raises InputError for a model through which gradients are not carried.
    """
    if model.num_outputs != 1:
        raise InputError("model", model, "of one outcome", "Use one model an outcome.")
    train = require_float64("train_X", model.train_inputs[0])
    kernel = kernel_derivatives(model.covar_module)
    outcome = getattr(model, "outcome_transform", None)
    scale = train.new_ones(())
    if isinstance(outcome, Standardize):
        scale = outcome.stdvs[..., 0, 0]
    elif outcome is not None and not any_outcome:
        raise InputError("outcome_transform", outcome, "None or Standardize(m=1)")
    transform = getattr(model, "input_transform", None)
    if transform is None:
        return kernel, scale, train
    if (
        not isinstance(transform, AffineInputTransform)
        or not transform.transform_on_eval
        or not transform.transform_on_train
    ):
        allowed = "None or an affine transform, such as Normalize, of all inputs"
        raise InputError("input_transform", transform, allowed)
    if not model.training:
        train = transform.untransform(train)
    coefficient = train.new_ones(*transform.coefficient.shape[:-1], train.shape[-1])
    indices = getattr(transform, "indices", slice(None))
    coefficient[..., indices] = transform.coefficient.detach()
    offset = torch.zeros_like(coefficient)
    offset[..., indices] = transform.offset.detach()
    if transform.reverse:
        coefficient, offset = 1.0 / coefficient, -offset / coefficient
    return of_affine_map(kernel, coefficient, offset), scale, train
