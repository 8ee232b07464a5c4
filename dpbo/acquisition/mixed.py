"""Where to look next in a `Space`, from released values alone: qLogNEI, over mixed coordinates where there are any.

x = next_point(space, X, Y, Yvar, seed=7)          # 1 x d
best = X[posterior_mean(space, X, Y, Yvar).argmax()]
"""

from __future__ import annotations

from typing import Protocol

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.optim import optimize_acqf, optimize_acqf_mixed_alternating
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.sampling import manual_seed

from dpbo.models.observed import ModelBuilder, quiet, usual_gp
from dpbo.space import Space


class Proposer(Protocol):
    """Names the next point, `1 x d`, from released values alone: the same values and seed give the same point."""

    def __call__(self, space: Space, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor, *, seed: int) -> torch.Tensor: ...


def next_point(
    space: Space, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor, *, seed: int, model: ModelBuilder = usual_gp
) -> torch.Tensor:
    """The next point, `1 x d`, by qLogNEI: the same values give the same point.

    Args:
        X: `t x d`, Y: `t x 1`, Yvar: `t x 1`, t at least 2; Y is maximised.
        model: what is fitted to them, e.g. `sparse_gp` where few of many coordinates matter.
    """
    sampler = SobolQMCNormalSampler(torch.Size([64]), seed=seed)
    with quiet(), manual_seed(seed):
        acquisition = qLogNoisyExpectedImprovement(model(space, X, Y, Yvar), X, sampler=sampler)
        return maximised(acquisition, space, space.bounds)


def posterior_mean(space: Space, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor, *, model: ModelBuilder = usual_gp) -> torch.Tensor:
    """What the GP thinks of the points of X, `t`. The highest noisy value would be the luckiest; the highest of these is not."""
    if len(X) < 2:
        return Y[:, 0]
    with quiet(), torch.no_grad():
        mean = model(space, X, Y, Yvar).posterior(X).mean[..., 0]
    return mean if mean.ndim == 1 else mean.mean(0)  # a mixture of models has one a component


def maximised(acquisition: AcquisitionFunction, space: Space, bounds: torch.Tensor) -> torch.Tensor:
    """The acquisition's best point, `1 x d`, within bounds (`2 x d`); steps and categories keep to the space's own."""
    steps = {i: _within(grid, *bounds[:, i].tolist()) for i, grid in space.discrete_dims.items()}
    bounds = bounds.clone()
    for i, allowed in steps.items():  # BoTorch wants these to end on steps
        bounds[:, i] = torch.tensor([allowed[0], allowed[-1]], dtype=torch.float64)
    if not steps and not space.cat_dims:
        x, _ = optimize_acqf(acquisition, bounds, q=1, num_restarts=4, raw_samples=64, options={"maxiter": 50})
    else:
        x, _ = optimize_acqf_mixed_alternating(
            acquisition, bounds, steps, space.cat_dims, q=1, num_restarts=4, raw_samples=64, options={"maxiter_continuous": 50}
        )
    return x.detach()


def _within(grid: list[float], lower: float, upper: float) -> list[float]:
    """The steps inside an interval that holds one of them."""
    return [step for step in grid if lower - 1e-9 <= step <= upper + 1e-9]
