"""Where to look next in a `Space`, from released values alone: BoTorch's usual GP and qLogNEI, over mixed coordinates where there are any.

x = next_point(space, X, Y, Yvar, seed=7)          # 1 x d
x = next_point(space, X, Y, Yvar, seed=7, pending=P)   # where P, `k x d`, is being evaluated by others
best = X[posterior_mean(space, X, Y, Yvar).argmax()]
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.exceptions.errors import ModelFittingError
from botorch.exceptions.warnings import BotorchWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import MixedSingleTaskGP, SingleTaskGP
from botorch.optim import optimize_acqf, optimize_acqf_mixed_alternating
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.sampling import manual_seed
from gpytorch.mlls import ExactMarginalLogLikelihood

from dpbo.space import Space

_LEAST = 1e-6  # of the values' variance, where their noise is nothing


def next_point(
    space: Space, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor, *, seed: int, pending: torch.Tensor | None = None
) -> torch.Tensor:
    """The next point, `1 x d`, by qLogNEI: the same values give the same point.

    Args:
        X: `t x d`, Y: `t x 1`, Yvar: `t x 1`, t at least 2; Y is maximised.

    Keyword args:
        seed: of the search's starts and of qLogNEI's samples.
        pending: points whose values are still to come, `k x d`; the point is the one that gains most beside them. None or `0 x d`: none.
    """
    with quiet():
        return best_point(space, fitted(space, X, Y, Yvar), X, pending, seed=seed, effort=Effort())


@dataclass(frozen=True)
class Effort:
    """How hard to look for the largest acquisition value.

    Attributes:
        restarts, raw_samples: so many L-BFGS runs, started at the best of so many Sobol points.
        continuous, mixed: options of `optimize_acqf`, of `optimize_acqf_mixed_alternating`.
        again: whether BoTorch starts anew after a line search that stalled; in continuous spaces.
    """

    restarts: int = 4
    raw_samples: int = 64
    continuous: Mapping[str, Any] = field(default_factory=lambda: {"maxiter": 50})
    mixed: Mapping[str, Any] = field(default_factory=lambda: {"maxiter_continuous": 50})
    again: bool = True


def best_point(space: Space, gp: SingleTaskGP, X: torch.Tensor, pending: torch.Tensor | None, *, seed: int, effort: Effort) -> torch.Tensor:
    """Where qLogNEI over this model is largest, `1 x d`."""
    sampler = SobolQMCNormalSampler(torch.Size([64]), seed=seed)
    expected = pending if pending is not None and len(pending) else None
    sizes = {"q": 1, "num_restarts": effort.restarts, "raw_samples": effort.raw_samples}
    with manual_seed(seed):
        acquisition = qLogNoisyExpectedImprovement(gp, X, sampler=sampler, X_pending=expected)
        if not space.discrete_dims and not space.cat_dims:
            x, _ = optimize_acqf(
                acquisition, space.bounds, **sizes, options={**effort.continuous}, retry_on_optimization_warning=effort.again
            )
        else:
            x, _ = optimize_acqf_mixed_alternating(
                acquisition, space.bounds, space.discrete_dims, space.cat_dims, **sizes, options={**effort.mixed}
            )
    return x.detach()


def posterior_mean(space: Space, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor) -> torch.Tensor:
    """What the GP thinks of the points of X, `t`. The highest noisy value would be the luckiest; the highest of these is not."""
    if len(X) < 2:
        return Y[:, 0]
    with quiet(), torch.no_grad():
        return fitted(space, X, Y, Yvar).posterior(X).mean[:, 0]


def fitted(space: Space, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor) -> SingleTaskGP:
    """A GP on observations of known noise; with its prior's lengths where no better ones can be found."""
    gp = unfitted(space, X, Y, Yvar)
    with torch.enable_grad(), contextlib.suppress(ModelFittingError):
        fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    return gp.eval()


def unfitted(space: Space, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor) -> SingleTaskGP:
    """The same with its prior's lengths."""
    noise = Yvar.clamp_min(_LEAST * float(Y.var().clamp_min(1e-12)))
    return MixedSingleTaskGP(X, Y, [*space.cat_dims], noise) if space.cat_dims else SingleTaskGP(X, Y, noise)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the optimisers' advice on stalled line searches and jitter, after which BoTorch tries again by itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        warnings.simplefilter("ignore", BotorchWarning)
        yield
