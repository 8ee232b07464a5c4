"""Two objectives at once, one private and one public: qLogNEHVI on the released scores and the open costs.

x = pareto_point(space, X, Y, Yvar, costs, reference=(0.8, -5.0), seed=7)      # e.g. accuracy, released, against minus latency, measured
front = pareto_front(space, X, Y, Yvar, costs)

The second objective must come from public things: the model and public records, never the protected ones. It costs no budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.models import ModelListGP
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.multi_objective.pareto import is_non_dominated

from dpbo.acquisition.mixed import maximised, posterior_mean, require_history
from dpbo.checking import POINTS, checked
from dpbo.errors import InputError
from dpbo.models.observed import quiet, require_constant, usual_gp
from dpbo.seeding import seeded
from dpbo.space import Space

_Costs = Annotated[torch.Tensor, POINTS]


@checked
def pareto_point(
    space: Space, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor, public: _Costs, *, reference: Sequence[float], seed: int
) -> torch.Tensor:
    """The next point, `1 x d`, by qLogNEHVI.

    Args:
        X: `t x d`, Y: `t x 1`, Yvar: `t x 1`, t at least 2: released.
        public: `t x k`, further objectives at the same points, without noise. Everything is maximised.
        reference: 1 + k values that a point of interest must exceed; public.

    Raises:
        InputError: fewer than two values, or shapes that do not fit.
    """
    require_history(space, X, Y, Yvar, least=2)
    _require_beside(X, public)
    if len(reference) != 1 + public.shape[1]:
        raise InputError("reference", len(reference), f"of {1 + public.shape[1]} values, the released objective's first")
    with quiet(), seeded(seed):
        open_models = [usual_gp(space, X, public[:, k : k + 1], torch.zeros_like(Y)) for k in range(public.shape[1])]
        model = ModelListGP(usual_gp(space, X, Y, Yvar), *open_models)
        sampler = SobolQMCNormalSampler(torch.Size([64]), seed=seed)
        acquisition = qLogNoisyExpectedHypervolumeImprovement(model, list(reference), X, sampler=sampler, prune_baseline=True)
        return maximised(acquisition, space, space.bounds)


@checked
def pareto_front(space: Space, X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor, public: _Costs) -> torch.Tensor:
    """Which rows of X no other row beats, `t` bools, by posterior means and public values: noisy scores would keep the luckiest."""
    require_history(space, X, Y, Yvar, least=1)
    _require_beside(X, public)
    return is_non_dominated(torch.cat([posterior_mean(space, X, Y, Yvar).unsqueeze(1), public], 1))


def _require_beside(X: torch.Tensor, public: torch.Tensor) -> None:
    if len(public) != len(X):
        raise InputError("public", tuple(public.shape), f"of shape ({len(X)}, k), a row for each row of X")
    require_constant("public", public)
