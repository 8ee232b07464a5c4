"""TuRBO on released values: a box around the best point that grows after successes, shrinks after
failures, and starts afresh when tiny.

The region is a function of the values released so far, so a search resumed from its ledger finds it
again. A point is a success by the model's posterior means, not by the noisy values: the luckiest of
these would keep the region where it is; the points of a batch count one after another. Source:
Eriksson et al. 2019, with one region, and qLogNEI inside the region for Thompson sampling.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from botorch.models import SingleTaskGP

from dpbo.acquisition.expected_improvement import (
    best_point,
    one_after_another,
    require_history,
    require_pending,
)
from dpbo.isolation import seed_torch
from dpbo.models.builders import default_gp, mute_optimizer_warnings
from dpbo.space import Space
from dpbo.validation import Count, at_least, checked

# first, largest and least side of the region, in sides of the box
_FIRST = 0.8
_MOST = 1.6
_LEAST = 0.5**7
# in a row, before it doubles
_SUCCESSES = 3
# of the spread of the means, for a success
_GAIN = 1e-3


@checked
def suggest_in_trust_region(
    space: Space,
    X: torch.Tensor,
    Y: torch.Tensor,
    Yvar: torch.Tensor,
    *,
    seed: int,
    q: Count = 1,
    pending: torch.Tensor | None = None,
    initial: Annotated[int, at_least(2)] = 8,
) -> torch.Tensor:
    """The next points, `q x d`, inside the trust region, chosen one after another: the same values
    give the same points. Categories are searched whole.

    Args:
        X: `t x d`, Y: `t x 1`, Yvar: `t x 1`, t at least 2, all on one device, where the points
            will lie, too; Y is maximised.
        seed, q, pending: as in `suggest`.
        initial: design points at the start of the search and of each new region; 2 or more, because
            a model needs two.

    Raises:
        InputError: fewer than two values, shapes that do not fit, or an `initial` below 2.
    """
    require_history(space, X, Y, Yvar, least=2)
    require_pending(space, pending)
    # a fit that fails is tried again from a random start
    with mute_optimizer_warnings(), seed_torch(seed):
        means = _means(default_gp(space, X, Y, Yvar), X)
        region = region_after(means.tolist(), dimension=X.shape[1], initial=initial)
        X = X[region.start :]
        Y = Y[region.start :]
        Yvar = Yvar[region.start :]
        if len(X) < initial:
            first = len(X) + (0 if pending is None else len(pending))
            return space.sample(first + q, seed=region.start)[first:].to(X.device)
        gp = default_gp(space, X, Y, Yvar)
        stretch = torch.ones_like(X[0])
        # else categories share a kernel with the rest
        if not space.cat_dims:
            scales = gp.covar_module.lengthscale.detach().reshape(-1)
            stretch = scales / scales.log().mean().exp()
        bounds = region_bounds(space, X[_means(gp, X).argmax()], region.length, stretch)

        def next_beside(points: torch.Tensor) -> torch.Tensor:
            return best_point(space, gp, X, points, seed=seed, bounds=bounds)

        return one_after_another(next_beside, q, X, pending)


@checked
@dataclass(frozen=True)
class TrustRegion:
    """State of the search.

    Attributes:
        start: how many observations belong to regions that were given up.
        length: side of the region, in sides of the box, before it is stretched by the
            length-scales.
    """

    start: int = 0
    length: float = _FIRST


@checked
def region_after(means: Sequence[float], *, dimension: int, initial: Count) -> TrustRegion:
    """The region after these observations.

    Args:
        means: posterior mean at each point, in the order of release.
        dimension: d; max(4, d) failures in a row halve the region.
        initial: design points at the start of each region.
    """
    # the second term: rounding of equal means is no gain
    gain = _GAIN * (max(means) - min(means)) + 1e-9 * max(map(abs, means)) if means else 0.0
    start = 0
    length = _FIRST
    wins = 0
    losses = 0
    best = -math.inf
    for place, mean in enumerate(means):
        success = mean > best + gain
        best = max(mean, best)
        if place - start < initial:
            continue
        wins, losses = (wins + 1, 0) if success else (0, losses + 1)
        if wins == _SUCCESSES:
            length = min(2 * length, _MOST)
            wins = 0
        elif losses == max(4, dimension):
            length = length / 2
            losses = 0
        if length < _LEAST:
            start = place + 1
            length = _FIRST
            wins = 0
            losses = 0
            best = -math.inf
    return TrustRegion(start, length)


def region_bounds(
    space: Space, centre: torch.Tensor, length: float, stretch: torch.Tensor
) -> torch.Tensor:
    """`2 x d`: the part of the box within length/2 of the centre, each coordinate stretched; whole
    for categories.

    A coordinate of steps reaches its centre's two neighbours at least. A centre beyond the box
    counts as its nearest point.
    """
    lower, upper = space.bounds.to(centre.device)
    centre = centre.clamp(lower, upper)
    half = length / 2 * stretch * (upper - lower)
    for i, grid in space.discrete_dims.items():
        half[i] = half[i].clamp_min(1.0 / max(len(grid) - 1, 1))
    for i in space.cat_dims:
        half[i] = upper[i] - lower[i]
    return torch.stack([torch.maximum(lower, centre - half), torch.minimum(upper, centre + half)])


def _means(gp: SingleTaskGP, X: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return gp.posterior(X).mean[:, 0]
