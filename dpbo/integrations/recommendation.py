"""What to recommend after a search on noised values: the released point of highest posterior mean.

The highest of many noisy values is the luckiest one, so an Optuna study's `best_trial` and the like
lie above the truth. The highest posterior mean does too, but less: for a number to report, release
the recommended point's score separately.
"""

from dataclasses import dataclass
from typing import Any

import torch

from dpbo.acquisition.expected_improvement import posterior_mean
from dpbo.errors import InputError, UsageError
from dpbo.space import Space
from dpbo.validation import checked


@dataclass(frozen=True, eq=False)
class Recommendation:
    """A released point and its posterior mean.

    Attributes:
        params: the point decoded by the Space, ready for an estimator.
        x: the point, `d`; `objective(x.unsqueeze(0))` of a separate PrivateObjective releases its
            score.
        mean: its posterior mean, biased upward because it is the highest of several.
    """

    params: dict[str, Any]
    x: torch.Tensor
    mean: float


@checked
def recommended(
    space: Space,
    X: torch.Tensor,
    Y: torch.Tensor,
    Yvar: torch.Tensor,
    *,
    feasible: torch.Tensor | None = None,
) -> Recommendation:
    """The released point of highest posterior mean; `recommended(space, *objective.history())`
    recommends from the ledger alone.

    Args:
        X: `t x d`, Y: `t x 1`, Yvar: `t x 1`; Y is maximised.
        feasible: `t` bools, the points that may be recommended; omitted, all. The others still tell
            the posterior mean.

    Raises:
        InputError: nothing was released yet.
        UsageError: no released point is feasible.
    """
    if X.shape[:1] == (0,):
        raise InputError("X", (0,), "one released point or more")
    mean = posterior_mean(space, X, Y, Yvar)
    best = highest(mean, feasible)
    return Recommendation(space.decode(X[best]), X[best].clone(), float(mean[best]))


def highest(mean: torch.Tensor, feasible: torch.Tensor | None) -> int:
    """The row of the highest mean, `t`, among those that are feasible (None: all). Raises
    UsageError where none is.
    """
    if feasible is None:
        return int(mean.argmax())
    if not bool(feasible.any()):
        raise UsageError(
            "no released point is known to meet every constraint, so none is recommended: release"
            " values at points that do, or recommend from `objective.history()`."
        )
    return int(mean.where(feasible, -torch.inf).argmax())
