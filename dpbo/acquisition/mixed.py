"""Where to look next in a `Space`, from released values alone: qLogNEI, over mixed coordinates where there are any.

x = next_point(space, X, Y, Yvar, seed=7)          # 1 x d
x = next_point(space, X, Y, Yvar, seed=7, pending=P)   # where P, `k x d`, is being evaluated by others
best = X[posterior_mean(space, X, Y, Yvar).argmax()]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf, optimize_acqf_mixed_alternating
from botorch.sampling import SobolQMCNormalSampler

from dpbo.checking import checked
from dpbo.errors import InputError
from dpbo.models.observed import FARTHEST, ModelBuilder, quiet, require_observed, usual_gp
from dpbo.seeding import seeded
from dpbo.space import Space


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


_USUAL = Effort()


@checked
def next_point(
    space: Space,
    X: torch.Tensor,
    Y: torch.Tensor,
    Yvar: torch.Tensor,
    *,
    seed: int,
    pending: torch.Tensor | None = None,
    model: ModelBuilder = usual_gp,
) -> torch.Tensor:
    """The next point, `1 x d`, by qLogNEI: the same values give the same point.

    Args:
        X: `t x d`, Y: `t x 1`, Yvar: `t x 1`, t at least 2; Y is maximised.

    Keyword args:
        seed: of the search's starts and of qLogNEI's samples.
        pending: points whose values are still to come, `k x d`; the point is the one that gains most beside them. None or `0 x d`: none.
        model: what is fitted to the values, e.g. `sparse_gp` where few of many coordinates matter.

    Raises:
        InputError: fewer than two values, or shapes that do not fit.
    """
    require_history(space, X, Y, Yvar, least=2)
    require_pending(space, pending)
    with quiet(), seeded(seed):  # a fit that fails is tried again from a random start
        return best_point(space, model(space, X, Y, Yvar), X, pending, seed=seed)


def require_history(space: Space, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor, *, least: int) -> None:
    """Raises InputError unless X is `t x d` of the space, Y and Yvar are `t x 1`, all float64 and finite, and t is at least so many."""
    require_observed(space, X, Y, Yvar)
    if len(X) < least:
        raise InputError("X", tuple(X.shape), f"of {least} points or more", "Begin with space.sample(8, seed=0).")
    if Y.shape[1] != 1:
        raise InputError("Y", tuple(Y.shape), f"of shape ({len(X)}, 1), one released score for each point")


def require_pending(space: Space, pending: torch.Tensor | None) -> None:
    """Raises InputError unless it is None or `k x d`, float64, points of the space."""
    if pending is None:
        return
    d = len(space.names)
    if pending.shape[1:] != (d,) or pending.dtype != torch.float64 or not bool((pending.abs() <= FARTHEST).all()):
        raise InputError("pending", tuple(pending.shape), f"float64, of shape k x {d}, points of the space")


def best_point(
    space: Space,
    gp: SingleTaskGP,
    X: torch.Tensor,
    pending: torch.Tensor | None,
    *,
    seed: int,
    effort: Effort = _USUAL,
    bounds: torch.Tensor | None = None,
) -> torch.Tensor:
    """Where qLogNEI over this model is largest within bounds (`2 x d`; the space's own if None), `1 x d`."""
    sampler = SobolQMCNormalSampler(torch.Size([64]), seed=seed)
    expected = pending if pending is not None and len(pending) else None
    with seeded(seed):
        acquisition = qLogNoisyExpectedImprovement(gp, X, sampler=sampler, X_pending=expected)
        return maximised(acquisition, space, space.bounds if bounds is None else bounds, effort)


def maximised(acquisition: AcquisitionFunction, space: Space, bounds: torch.Tensor, effort: Effort = _USUAL) -> torch.Tensor:
    """The acquisition's best point, `1 x d`, within bounds (`2 x d`); steps and categories keep to the space's own.

    A coordinate with one value left is fixed: BoTorch looks for neighbours of each category, and fails where there is none.
    """
    steps = {i: _within(grid, *bounds[:, i].tolist()) for i, grid in space.discrete_dims.items()}
    bounds = bounds.clone()
    for i, allowed in steps.items():  # BoTorch wants these to end on steps
        bounds[:, i] = torch.tensor([allowed[0], allowed[-1]], dtype=torch.float64)
    fixed = {i: lower for i, (lower, upper) in enumerate(bounds.T.tolist()) if lower == upper}
    settings: dict[str, Any] = {"q": 1, "num_restarts": effort.restarts, "raw_samples": effort.raw_samples, "fixed_features": fixed or None}
    if {*steps, *space.cat_dims} <= fixed.keys():
        options = {**effort.continuous}
        x, _ = optimize_acqf(acquisition, bounds, **settings, options=options, retry_on_optimization_warning=effort.again)
    else:
        x, _ = optimize_acqf_mixed_alternating(acquisition, bounds, steps, space.cat_dims, **settings, options={**effort.mixed})
    return x.detach()


@checked
def posterior_mean(space: Space, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor, *, model: ModelBuilder = usual_gp) -> torch.Tensor:
    """What the GP thinks of the points of X, `t`. The highest noisy value would be the luckiest; the highest of these is not.

    Args:
        X: `t x d`, Y: `t x 1`, Yvar: `t x 1`, t at least 1; one value alone is returned as it is.

    Raises:
        InputError: no value, or shapes that do not fit.
    """
    require_history(space, X, Y, Yvar, least=1)
    if len(X) == 1:
        return Y[:, 0]
    with quiet(), torch.no_grad():
        mean = model(space, X, Y, Yvar).posterior(X).mean[..., 0]
    return mean if mean.ndim == 1 else mean.mean(0)  # a mixture of models has one a component


def _within(grid: list[float], lower: float, upper: float) -> list[float]:
    """The steps inside an interval that holds one of them."""
    return [step for step in grid if lower - 1e-9 <= step <= upper + 1e-9]
