"""How much a batch of points says about the gradient at theta: the acquisition function of GIBO and
DP-GIBO.

The value is minus the trace of the gradient's posterior covariance at theta after observing the
batch, so larger is better and 0 means that the gradient is known. It depends on where points lie,
never on values there, hence on nothing private.
"""

from typing import Any

from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor

from dpbo.gibo.gradient_gp import posterior_of_model
from dpbo.gibo.gradient_points import GradientTrace
from dpbo.gibo.gradient_posterior import GradientPosterior, broadcast
from dpbo.models.kernels import require_finite
from dpbo.validation import checked


@checked
class GradientInformation(AcquisitionFunction):  # type: ignore[misc]
    """-trace of the posterior covariance of the gradient at theta, in units of the model's y^2 /
    x^2; larger is better.

    Args:
        model: a `GradientPosterior`, or a GPyTorch regression model with one noise variance (its
            training inputs are the history); or a batch of either, a model a run.
        theta: where the gradient is wanted, `d` or `batch_shape x d`, in the coordinates of X; an
            affine input transform of the model, such as Normalize, is carried.
        X_pending: points, `m x d` or `batch_shape x m x d`, that others are evaluating; they count
            as observed.

    Attributes:
        posterior: the `GradientPosterior` of the model's kernel, noise and history.

    Raises:
        InputError: theta is not float64, not finite or of another batch, or the model has several
            outcomes, an input transform that is not affine, or points of different noise.

    Source: DP-GIBO, arXiv 2502.06044, Algorithm 1.
    """

    def __init__(
        self, model: Model | GradientPosterior, theta: Tensor, X_pending: Tensor | None = None
    ) -> None:
        super().__init__(model)
        if not isinstance(model, GradientPosterior):
            model = posterior_of_model(model)
        self.posterior = model
        self.posterior.shape_with("theta", require_finite("theta", theta), 1)
        # a view of larger memory would be saved with all of it
        self.theta = theta.clone()
        self.set_X_pending(X_pending)

    # the runs of theta may be more than the model's
    @t_batch_mode_transform(assert_output_shape=False)  # type: ignore[untyped-decorator]
    def forward(self, X: Tensor) -> Tensor:
        """The value for X, `t_batch_shape x q x d`, as `t_batch_shape`; in a batch of runs its last
        dimensions are theirs, or 1.
        """
        runs = self._trace.prior.shape
        batch_shape = broadcast("X", require_finite("X", X).shape, runs, X.shape[:-2])
        return -self._trace.value(X.expand(*batch_shape, *X.shape[-2:]))

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:  # noqa: N802
        """Count X_pending (`batch_shape x m x d`) as observed; None forgets it."""
        super().set_X_pending(X_pending)
        self._read_history()

    def __getstate__(self) -> dict[str, Any]:
        """What the trace is made of: it holds functions, which cannot be pickled."""
        return {name: part for name, part in self.__dict__.items() if name != "_trace"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._read_history()

    def _read_history(self) -> None:
        history = self.posterior
        if self.X_pending is not None:
            history = history.conditioned_on(self.X_pending)
        self._trace = GradientTrace(history, self.theta)
