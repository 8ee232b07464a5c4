"""Adaptive proposals for private selection (DP-HyPO): hidden runs that look where earlier hidden runs did well, within bounds.

    best = private_selection(curator, train, space=space, law=law, base=base, score=score,
                             adaptive=Adaptive(space, spread=(0.75, 1.5), noise_std=0.01))

Each round draws its parameters from a density between c and C times the public prior's, uniform on `candidates`. Whatever decides it must
come from the earlier runs' parameters and noised scores alone; here a Gaussian process on them, and its upper confidence bound.
The price is in the `SelectionEvent`'s spread; proof in accounting/selected.py. C / c = 2 costs up to (2 + shape) log 2 of epsilon, so it
pays only where proposals gain much by it; a narrower public prior is free.

The density is exact: candidates have whole weights between ceil(c 2^40) and floor(C 2^40) whose sum is 2^40 for each candidate, and one is
drawn by a uniform whole number below that sum. Weights are clip(t exp(a), c, C) with the t for which they sum right (bisection); what
rounding leaves over is given to, or taken from, candidates that have room.

Source: Wang, Su et al. 2023 (DP-HyPO), with this projection for their functional one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dpbo.algorithms.hidden_runs import Run
from dpbo.checking import checked
from dpbo.errors import InputError
from dpbo.mechanisms.mechanism import Entropy
from dpbo.models.observed import quiet, usual_gp
from dpbo.privacy import require_count, require_positive
from dpbo.seeding import apart
from dpbo.space import Space

_ONE = 1 << 40
Interest = Callable[[Any, torch.Tensor], torch.Tensor]
"""`interest(model, X)`, how much is to be expected of each candidate, `n`: e.g. any analytic BoTorch acquisition's value. Where it fails,
or gives another shape or what is not finite, nothing is expected of any, and nobody is told."""


def upper_bound(model: Any, X: torch.Tensor) -> torch.Tensor:
    """Posterior mean plus two standard deviations, `n`."""
    posterior = model.posterior(X)
    return (posterior.mean + 2 * posterior.variance.sqrt())[:, 0]


@checked
@dataclass(frozen=True, eq=False)
class Adaptive:
    """How later runs look at earlier ones.

    Args:
        space: where runs look.
        spread: (c, C), 0 < c <= 1 <= C, public; part of the event.
        noise_std: of a run's noised score, for the model.
        candidates: how many public Sobol points stand for the space.
        interest: what decides; the upper confidence bound if omitted.
        sharpness: interest is measured in its standard deviations over the candidates, times this.

    Raises:
        InputError: an argument outside its range.
    """

    space: Space
    spread: tuple[float, float] = field(kw_only=True)
    noise_std: float = field(kw_only=True)
    candidates: int = field(default=512, kw_only=True)
    interest: Interest = field(default=upper_bound, kw_only=True)
    sharpness: float = field(default=2.0, kw_only=True)

    def __post_init__(self) -> None:
        c, C = self.spread
        if not 0.0 < c <= 1.0 <= C < math.inf:
            raise InputError("spread", self.spread, "(c, C) with 0 < c <= 1 <= C")
        require_positive("noise_std", self.noise_std)
        require_count("candidates", self.candidates, 2)
        require_positive("sharpness", self.sharpness)
        object.__setattr__(self, "_points", self.space.sample(self.candidates, seed=0))

    def __call__(self, runs: Sequence[Run], entropy: Entropy) -> torch.Tensor:
        """Where the next run looks, `d`."""
        points: torch.Tensor = self._points  # type: ignore[attr-defined]
        weights = whole_weights(self._interests(runs, points, entropy), self.spread)
        return points[drawn_index(weights, entropy)]

    def _interests(self, runs: Sequence[Run], points: torch.Tensor, entropy: Entropy) -> torch.Tensor:
        """Scaled interest in each candidate; zeros while there is no model. What it draws is from `entropy`, never from a public seed."""
        known = [run for run in runs if not run.failed]
        if len(known) < 2:
            return torch.zeros(len(points), dtype=torch.float64)
        X, Y = torch.stack([run.x for run in known]), torch.tensor([[run.score] for run in known], dtype=torch.float64)
        try:
            with quiet(), apart(entropy), torch.no_grad():
                values = self.interest(usual_gp(self.space, X, Y, torch.full_like(Y, self.noise_std**2)), points).double()
                scaled = self.sharpness * (values - values.mean()) / values.std().clamp_min(1e-12)
                usable = scaled.shape == (len(points),) and bool(scaled.isfinite().all())
        except KeyboardInterrupt:
            raise
        except BaseException:  # a model that cannot be fitted says nothing; whether it can is as private as the scores
            usable = False
        return scaled if usable else torch.zeros(len(points), dtype=torch.float64)


def whole_weights(interests: torch.Tensor, spread: tuple[float, float]) -> list[int]:
    """Whole numbers within [c 2^40, C 2^40], 2^40 in the mean, rising with the interests as far as that allows."""
    least, most = math.ceil(spread[0] * _ONE), math.floor(spread[1] * _ONE)
    gains = torch.exp((interests - interests.max()).clamp(-60.0, 0.0))
    low, high = -80.0, 80.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if float((gains * math.exp(middle)).clamp(*spread).mean()) < 1.0 else (low, middle)
    wanted = (gains * math.exp(high)).clamp(*spread) * _ONE
    weights = [min(max(round(value), least), most) for value in wanted.tolist()]
    rest = _ONE * len(weights) - sum(weights)
    for i, weight in enumerate(weights):
        step = min(max(rest, least - weight), most - weight)
        weights[i], rest = weight + step, rest - step
    return weights


def drawn_index(weights: Sequence[int], entropy: Entropy) -> int:
    """An index by exact weights: a uniform whole number below their sum, drawn anew where it is not below."""
    total = sum(weights)
    bits = total.bit_length()
    while True:
        number = int.from_bytes(entropy((bits + 7) // 8), "little") >> (-bits % 8)
        if number < total:
            break
    for index, weight in enumerate(weights):
        number -= weight
        if number < 0:
            return index
    raise AssertionError("the weights sum to the total")
