"""How much a batch of points says about the gradient at theta: the acquisition function of GIBO and
DP-GIBO.

The value is minus the trace of the gradient's posterior covariance at theta after observing the
batch, so larger is better and 0 means that the gradient is known. It depends on where points lie,
never on values there, hence on nothing private.
"""

from typing import Any

from botorch.acquisition import AcquisitionFunction
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.model import Model
from botorch.models.transforms import Standardize
from botorch.utils.transforms import t_batch_mode_transform
from gpytorch.means import ConstantMean, ZeroMean
from torch import Tensor

from dpbo.errors import InputError
from dpbo.gibo.gradient_points import GradientTrace
from dpbo.gibo.gradient_posterior import GradientPosterior
from dpbo.models.kernels import Scaled, kernel_derivatives, require_finite
from dpbo.validation import NotNegative, Positive, checked

# relative: a program that stores ten decimals changes equal noises a little
_EQUAL = 1e-3
_REMEDY = "Pass a GradientPosterior with the kernel, noise and points you mean."


@checked
class GradientInformation(AcquisitionFunction):  # type: ignore[misc]
    """-trace of the posterior covariance of the gradient at theta, in units of the model's y^2 /
    x^2; larger is better.

    Args:
        model: a `GradientPosterior`, or a GPyTorch regression model with one noise variance (its
            training inputs are the history).
        theta: where the gradient is wanted, `d`, in the coordinates of the model's inputs.
        X_pending: points, `m x d`, that others are evaluating; they count as observed.

    Attributes:
        posterior: the `GradientPosterior` of the model's kernel, noise and history.

    Raises:
        InputError: theta is not float64 or not finite, or the model has several outcomes, an input
            transform, or points of different noise.

    Source: DP-GIBO, arXiv 2502.06044, Algorithm 1.
    """

    def __init__(
        self, model: Model | GradientPosterior, theta: Tensor, X_pending: Tensor | None = None
    ) -> None:
        super().__init__(model)
        self.theta = require_finite("theta", theta).clone()
        self.posterior = model if isinstance(model, GradientPosterior) else _posterior_of(model)
        if theta.shape[-1:] != self.posterior.points(theta).shape[-1:]:
            raise InputError("theta", tuple(theta.shape), "of the observed points' dimension")
        self.set_X_pending(X_pending)

    @t_batch_mode_transform()  # type: ignore[untyped-decorator]
    def forward(self, X: Tensor) -> Tensor:
        """The value for X, `batch_shape x q x d`, as `batch_shape`."""
        return -self._trace.value(require_finite("X", X))

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:  # noqa: N802
        """Count X_pending (`m x d`) as observed; None forgets it."""
        super().set_X_pending(X_pending)
        history = self.posterior
        if self.X_pending is not None:
            history = history.conditioned_on(self.X_pending)
        self._trace = GradientTrace(history, self.theta)


@checked
def posterior_of_one_unit(
    model: GPyTorchModel, noise: NotNegative = 0.0, *, jitter: Positive = 1e-6
) -> GradientPosterior:
    """A `GradientPosterior` with the kernel and mean of a model of the mean loss, in the units of
    its Y, for the losses of one unit.

    It has observed no points: the training values are those of the mean over units, not of one
    unit.

    Args:
        model: a SingleTaskGP or the like, fitted to public or released values; its outcome
            transform is None or Standardize.
        noise: variance of one unit's loss around the process, in units of Y^2; the likelihood's is
            that of the training values.
        jitter: as in `GradientPosterior`.

    Raises:
        InputError: a mean that is not constant, another outcome transform, an input transform, or
            several outcomes.
    """
    _require_plain(model)
    mean = 0.0
    if isinstance(model.mean_module, ConstantMean):
        mean = float(model.mean_module.constant.detach())
    elif not isinstance(model.mean_module, ZeroMean):
        raise InputError(
            "mean_module", type(model.mean_module).__name__, "a ConstantMean or ZeroMean"
        )
    kernel = kernel_derivatives(model.covar_module)
    outcome = getattr(model, "outcome_transform", None)
    if outcome is None:
        return GradientPosterior(kernel, noise, mean=mean, jitter=jitter)
    if type(outcome) is not Standardize:
        raise InputError("outcome_transform", outcome, "None or Standardize()")
    scale = outcome.stdvs.flatten()[0]
    mean = float(outcome.means + scale * mean)
    return GradientPosterior(Scaled(kernel, scale.square()), noise, mean=mean, jitter=jitter)


def _posterior_of(model: Any) -> GradientPosterior:
    _require_plain(model)
    noise = model.likelihood.noise.detach()
    largest = float(noise.max())
    if float(noise.min()) < (1.0 - _EQUAL) * largest:
        raise InputError("model", model, "of one noise variance", _REMEDY)
    posterior = GradientPosterior(model.covar_module, largest)
    posterior.append(model.train_inputs[0])
    return posterior


def _require_plain(model: Any) -> None:
    """Raises InputError unless gradients in the model's coordinates are those in X's."""
    if model.num_outputs != 1 or getattr(model, "input_transform", None) is not None:
        raise InputError("model", model, "of one outcome and without input transform", _REMEDY)
