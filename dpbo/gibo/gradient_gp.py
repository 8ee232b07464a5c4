"""A SingleTaskGP that also gives the posterior of its gradient.

A Gaussian process and its gradient are jointly Gaussian, so conditioning on the training data gives
the gradient's mean and covariance in closed form; `posterior` is untouched. The model is public:
train it on public or released values only.
"""

import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms.outcome import Standardize
from botorch.posteriors.gpytorch import GPyTorchPosterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.means import ConstantMean, ZeroMean
from linear_operator import to_linear_operator
from torch import Tensor

from dpbo.errors import InputError
from dpbo.gibo.gradient_posterior import GradientPosterior, cholesky
from dpbo.models.kernels import Scaled, kernel_derivatives, require_finite
from dpbo.validation import NotNegative, Positive, checked


@checked
class GradientGP(SingleTaskGP):  # type: ignore[misc]
    """SingleTaskGP with `gradient_posterior`. One outcome, no input transform, outcome transform
    None or Standardize.
    """

    def gradient_posterior(self, X: Tensor) -> GPyTorchPosterior:
        """The joint posterior of the gradient at X (`batch_shape x q x d`), in the units of Y over
        those of X.

        Hyperparameters are constants here: nothing differentiates through this to them.

        Returns:
            a posterior with mean `batch_shape x q x d`: over d tasks, or one where d = 1.

        Raises:
            InputError: X is not float64 or not finite, the model has several outcomes or a
                transform through which gradients are not carried, or its kernel is not twice
                differentiable or not positive definite.
        """
        require_finite("X", X)
        d = self.train_inputs[0].shape[-1]
        if X.ndim < 2 or X.shape[-2] == 0 or X.shape[-1] != d:
            raise InputError("X", tuple(X.shape), f"of shape ... x q x {d}, q at least 1")
        scale = self._outcome_scale()
        self.eval()
        train = self.train_inputs[0]
        kernel = kernel_derivatives(self.covar_module)
        remedy = (
            "Give more of it (train_Yvar), or take a kernel that is positive definite in so many"
            " dimensions."
        )
        with torch.no_grad():
            at_train = self.forward(train)
            L = cholesky(self.likelihood(at_train, train).covariance_matrix, "noise", remedy)
            residual = (self.train_targets - at_train.mean).unsqueeze(-1)
        rows = X.unbind(-2)
        # refuses a kernel whose process has no gradient
        kernel.prior(rows[0].detach())
        # ... x q d x n, coordinates of a point together
        cross = torch.cat([kernel.gradient(x, train) for x in rows], dim=-2)
        prior = torch.cat([kernel.mixed(x, X).movedim(-3, -2).flatten(-2) for x in rows], dim=-2)
        A = torch.linalg.solve_triangular(L, cross.mT, upper=False)
        at = X.detach().requires_grad_()
        with torch.enable_grad():
            # a constant mean alone would not depend on X
            total = self.mean_module(at).sum() + 0.0 * at.sum()
        slope = torch.autograd.grad(total, at)[0].flatten(-2).unsqueeze(-1)
        mean = scale * (slope + A.mT @ torch.linalg.solve_triangular(L, residual, upper=False))
        # a dense one is factorised when it is made
        lazy = to_linear_operator(scale.square() * (prior - A.mT @ A))
        if d == 1:
            return GPyTorchPosterior(MultivariateNormal(mean.squeeze(-1), lazy))
        return GPyTorchPosterior(
            MultitaskMultivariateNormal(mean.reshape(*mean.shape[:-2], *X.shape[-2:]), lazy)
        )

    def of_one_unit(
        self, noise: NotNegative = 0.0, *, jitter: Positive = 1e-6
    ) -> GradientPosterior:
        """A `GradientPosterior` with this model's kernel and mean, in the units of Y, for the
        losses of one unit.

        It has observed no points: the training values are those of the mean over units, not of one
        unit.

        Args:
            noise: variance of one unit's loss around the process, in units of Y^2; the likelihood's
                is that of the training values.
            jitter: as in `GradientPosterior`.

        Raises:
            InputError: a mean that is not constant, or a model as `gradient_posterior` refuses it.
        """
        scale = self._outcome_scale().flatten()[0]
        if isinstance(self.mean_module, ConstantMean):
            mean = scale * self.mean_module.constant.detach()
        elif isinstance(self.mean_module, ZeroMean):
            mean = 0.0 * scale
        else:
            raise InputError(
                "mean_module", type(self.mean_module).__name__, "a ConstantMean or ZeroMean"
            )
        outcome = getattr(self, "outcome_transform", None)
        if outcome is not None:
            mean = mean + outcome.means
        kernel = Scaled(kernel_derivatives(self.covar_module), scale.square())
        return GradientPosterior(kernel, noise, mean=float(mean), jitter=jitter)

    def _outcome_scale(self) -> Tensor:
        """The factor from the model's units to Y's, `... x 1 x 1`."""
        outcome = getattr(self, "outcome_transform", None)
        if self.num_outputs != 1:
            raise InputError("num_outputs", self.num_outputs, "1", "Use one model an outcome.")
        if getattr(self, "input_transform", None) is not None:
            raise InputError(
                "input_transform",
                self.input_transform,
                "None",
                "Scale X to the unit cube before the model sees it.",
            )
        if outcome is None:
            return self.train_targets.new_ones(1, 1)
        if type(outcome) is not Standardize:
            raise InputError("outcome_transform", outcome, "None or Standardize()")
        return outcome.stdvs
