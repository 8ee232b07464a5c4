"""Any BoTorch acquisition, weighted by a public density of good settings (pi-BO); the weight fades
with time.

    prior_guided(LogExpectedImprovement(model, best_f), mixture.log_density, t=4, bounds=bounds)

At the t-th choice the acquisition is a(x) pi(x)^(beta / t), or log a(x) + (beta / t) log pi(x)
where it is a logarithm (Hvarfner et al. 2022, pi-BO): beta says how many evaluations the density is
worth. A density pi learned from people's settings must be a released one, such as a
DPGaussianMixture's; then nothing here touches a record. With `bounds` a share of pi is spread
evenly over the box, so that a misleading density cannot rule a region out. a must not be negative,
or be a logarithm: a power of pi brings a negative value nearer to 0 where pi is small, and so would
prefer what the density advises against. So an upper confidence bound is not allowed.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.prior_guided import PriorGuidedAcquisitionFunction
from botorch.optim.initializers import is_nonnegative
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
    non_negative: bool = False,
) -> PriorGuidedAcquisitionFunction:
    """The acquisition for the t-th choice (1, 2, ...), for `optimize_acqf`.

    Args:
        acquisition: analytic (q = 1), or Monte Carlo for any q; its own X_pending unset. A
            logarithm (`_log`, as in BoTorch's classes and those derived from them), one that
            BoTorch knows to be non-negative (`is_nonnegative`), or one for which you set
            `non_negative`.
        log_density: of settings that were good elsewhere.
        t: number of this choice.
        beta: how many evaluations the density is worth; about a tenth of the planned ones (Hvarfner
            et al.).
        bounds, share: as in `Prior`.
        non_negative: whether the acquisition, one of your own perhaps, is never below 0.

    Raises:
        InputError: an argument out of range, or an acquisition that may be negative; a value below
            0 is refused when it occurs.
    """
    log = bool(getattr(acquisition, "_log", False))
    if not (log or non_negative or is_nonnegative(acquisition)):
        raise _refused(
            acquisition,
            "Take expected improvement, for example, or set non_negative=True for one that is never"
            " below 0.",
        )
    prior: Any = Prior(log_density, log=log, bounds=bounds, share=share)
    guided = PriorGuidedAcquisitionFunction if log else _NonNegative
    return guided(acquisition, prior, log=log, prior_exponent=beta / t)


@checked
class Prior(torch.nn.Module):
    """log pi (or pi) at points: `... x q x d` to `... x q`.

    Args:
        log_density: `... x d` to `...`, public and differentiable; its scale does not matter
            without bounds.
        log: whether to give the logarithm.
        bounds: `2 x d`; a `share` of pi is the uniform law on it.
    """

    def __init__(
        self,
        log_density: LogDensity,
        *,
        log: bool,
        bounds: Annotated[Tensor, FLOATS] | None = None,
        share: Probability = 0.1,
    ) -> None:
        super().__init__()
        self._log_density = log_density
        self._log = log
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
        if self._uniform is not None:
            value = torch.logaddexp(
                value + math.log1p(-self._share), torch.full_like(value, self._uniform)
            )
        return value if self._log else value.exp()


class _NonNegative(PriorGuidedAcquisitionFunction):  # type: ignore[misc]
    """a(x) pi(x)^(beta / t), which refuses an a below 0."""

    def forward(self, X: Tensor) -> Tensor:
        value = super().forward(X)
        if bool((value < 0.0).any()):
            raise _refused(
                self.acq_func, "Its value was below 0. Take expected improvement, for example."
            )
        return value


def _refused(acquisition: AcquisitionFunction, remedy: str) -> InputError:
    return InputError(
        "acquisition", type(acquisition).__name__, "non-negative, or a logarithm", remedy
    )
