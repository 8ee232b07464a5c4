"""Any BoTorch acquisition, weighted by a public density of good settings (pi-BO); the weight fades
with time.

    prior_guided(LogExpectedImprovement(model, best_f), mixture.log_density, t=4, bounds=bounds)

At the t-th choice the acquisition, a logarithm log a(x), becomes log a(x) + (beta / t) log pi(x)
(Hvarfner et al. 2022, pi-BO): beta says how many evaluations the density is worth. A density pi
learned from people's settings must be a released one, such as a DPGaussianMixture's; then nothing
here touches a record. With `bounds` a share of pi is spread evenly over the box, so that a
misleading density cannot rule a region out. An acquisition that is no logarithm, such as an upper
confidence bound, may be negative: a power of pi would bring it nearer to 0 where pi is small, and
so would prefer what the density advises against.
"""

import math
from collections.abc import Callable
from typing import Annotated

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.prior_guided import PriorGuidedAcquisitionFunction
from torch import Tensor

from dpbo.errors import InputError
from dpbo.validation import FLOATS, Count, Positive, Probability, checked

LogDensity = Callable[[Tensor], Tensor]


@checked
def prior_guided(
    acquisition: AcquisitionFunction,
    log_density: LogDensity,
    *,
    t: Count,
    beta: Positive = 5.0,
    bounds: Tensor | None = None,
    share: float = 0.1,
) -> PriorGuidedAcquisitionFunction:
    """The acquisition for the t-th choice (1, 2, ...), for `optimize_acqf`.

    Args:
        acquisition: a logarithm (`_log`, as in BoTorch's classes and those derived from them),
            analytic (q = 1) or Monte Carlo for any q; its own X_pending unset.
        log_density: of settings that were good elsewhere.
        t: number of this choice.
        beta: how many evaluations the density is worth; about a tenth of the planned ones (Hvarfner
            et al.).
        bounds, share: as in `Prior`.

    Raises:
        InputError: an argument out of range, or an acquisition that is no logarithm.
    """
    if not getattr(acquisition, "_log", False):
        remedy = "Take LogExpectedImprovement, for example."
        raise InputError("acquisition", type(acquisition).__name__, "a logarithm", remedy)
    prior = Prior(log_density, bounds=bounds, share=share)
    return PriorGuidedAcquisitionFunction(acquisition, prior, log=True, prior_exponent=beta / t)


@checked
class Prior(torch.nn.Module):
    """log pi at points: `... x q x d` to `... x q`.

    Args:
        log_density: `... x d` to `...`, public and differentiable; its scale does not matter
            without bounds.
        bounds: `2 x d`; a `share` of pi is the uniform law on it.
    """

    def __init__(
        self,
        log_density: LogDensity,
        *,
        bounds: Annotated[Tensor, FLOATS] | None = None,
        share: Probability = 0.1,
    ) -> None:
        super().__init__()
        self._log_density = log_density
        self._uniform = None
        self._share = share
        if bounds is not None:
            if bounds.ndim != 2 or len(bounds) != 2 or not bool((bounds[0] < bounds[1]).all()):
                raise InputError(
                    "bounds", tuple(bounds.shape), "of shape 2 x d, lower ends below upper ends"
                )
            self._uniform = math.log(share) - float((bounds[1] - bounds[0]).detach().log().sum())

    def forward(self, X: Tensor) -> Tensor:
        value = self._log_density(X)
        if self._uniform is None:
            return value
        uniform = torch.full_like(value, self._uniform)
        return torch.logaddexp(value + math.log1p(-self._share), uniform)
