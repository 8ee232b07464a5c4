"""A SingleTaskGP that also gives the posterior of its gradient.

A Gaussian process and its gradient are jointly Gaussian, so conditioning on the training data gives the gradient's mean and covariance
in closed form; `posterior` is untouched. The model is public: train it on public or released values only.
"""

from __future__ import annotations

import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms.outcome import Standardize
from botorch.posteriors.gpytorch import GPyTorchPosterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator import to_linear_operator
from torch import Tensor

from dpbo.errors import InputError
from dpbo.models.gradient_posterior import cholesky
from dpbo.models.kernels import derivatives, require_finite
from dpbo.validation import checked

_REMEDY = "Give more of it (train_Yvar), or take a kernel that is positive definite in so many dimensions."


@checked
class GradientGP(SingleTaskGP):  # type: ignore[misc]  # BoTorch carries no annotations that mypy follows here
    """SingleTaskGP with `gradient_posterior`. One outcome, no input transform, outcome transform None or Standardize."""

    def gradient_posterior(self, X: Tensor) -> GPyTorchPosterior:
        """The joint posterior of the gradient at X (`batch_shape x q x d`), in the units of Y over those of X.

        Hyperparameters count as constants: nothing differentiates through it to them.

        Returns:
            a posterior with mean `batch_shape x q x d`: over d tasks, or one where d = 1.

        Raises:
            InputError: X is not float64 or not finite, the model has several outcomes or a transform through which gradients are not
                carried, or its kernel is not twice differentiable or not positive definite.
        """
        require_finite("X", X)
        d = self.train_inputs[0].shape[-1]
        if X.ndim < 2 or X.shape[-2] == 0 or X.shape[-1] != d:
            raise InputError("X", tuple(X.shape), f"of shape ... x q x {d}, q at least 1")
        scale = self._outcome_scale()
        self.eval()
        mean, covariance = self._gradient_moments(X)
        return GPyTorchPosterior(_normal(scale * mean, scale.square() * covariance, X))

    def _gradient_moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean `... x q d x 1` and covariance `... x q d x q d`, coordinates of a point together, before the outcome transform."""
        train, kernel = self.train_inputs[0], derivatives(self.covar_module)
        with torch.no_grad():  # hyperparameters are constants here, as in `derivatives`
            at_train = self.forward(train)
            L = cholesky(self.likelihood(at_train, train).covariance_matrix, "noise", _REMEDY)
            residual = (self.train_targets - at_train.mean).unsqueeze(-1)
        rows = X.unbind(-2)
        kernel.prior(rows[0].detach())  # refuses a kernel whose process has no gradient
        cross = torch.cat([kernel.gradient(x, train) for x in rows], dim=-2)  # ... x q d x n
        prior = torch.cat([kernel.mixed(x, X).movedim(-3, -2).flatten(-2) for x in rows], dim=-2)
        A = torch.linalg.solve_triangular(L, cross.mT, upper=False)
        mean = A.mT @ torch.linalg.solve_triangular(L, residual, upper=False)
        return mean + self._mean_slope(X).flatten(-2).unsqueeze(-1), prior - A.mT @ A

    def _mean_slope(self, X: Tensor) -> Tensor:
        X = X.detach().requires_grad_()
        with torch.enable_grad():
            total = self.mean_module(X).sum() + 0.0 * X.sum()  # a constant mean alone would not depend on X
        return torch.autograd.grad(total, X)[0]

    def _outcome_scale(self) -> Tensor:
        """The factor from the model's units to Y's, `... x 1 x 1`."""
        outcome = getattr(self, "outcome_transform", None)
        if self.num_outputs != 1:
            raise InputError("num_outputs", self.num_outputs, "1", "Use one model an outcome.")
        if getattr(self, "input_transform", None) is not None:
            raise InputError("input_transform", self.input_transform, "None", "Scale X to the unit cube before the model sees it.")
        if outcome is None:
            return self.train_targets.new_ones(1, 1)
        if type(outcome) is not Standardize:
            raise InputError("outcome_transform", outcome, "None or Standardize()")
        return outcome.stdvs


def _normal(mean: Tensor, covariance: Tensor, X: Tensor) -> MultivariateNormal:
    lazy = to_linear_operator(covariance)  # a dense one is factorised at birth, and gradients of a polynomial are degenerate
    if X.shape[-1] == 1:
        return MultivariateNormal(mean.squeeze(-1), lazy)
    return MultitaskMultivariateNormal(mean.reshape(*mean.shape[:-2], *X.shape[-2:]), lazy)
