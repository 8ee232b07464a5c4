"""Two choices before a run of DP-GIBO, each a release of its own from the same ledger; both are off unless called.

    start = choose_start(curator, loss, candidates, loss_range=(0.0, 3.0), budget_share=0.1)
    clip = choose_clip(curator, loss, bounds=bounds, candidates=[0.1, 0.3, 1.0, 3.0], budget_share=0.02)

The exponential mechanism chooses; its cost under the curator's accounting is the share of the cap that is named. In paired simulations
neither was a sure gain, so neither is a default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from gpytorch.kernels import Kernel, RBFKernel

from dpbo.accounting.calibrate import exact_share
from dpbo.algorithms.gibo_frame import Frame, require_bounds, require_start
from dpbo.algorithms.gibo_points import GIBOPoints
from dpbo.algorithms.gibo_settings import RECOMMENDED, GIBOSettings
from dpbo.curator.curator import Curator
from dpbo.errors import InputError
from dpbo.events import ExponentialEvent
from dpbo.mechanisms.exponential import ExponentialMechanism
from dpbo.models.gradient_posterior import GradientPosterior
from dpbo.privacy import require_range
from dpbo.queries.candidates import CandidateScores
from dpbo.queries.gradient import Loss
from dpbo.queries.quantile import QuantileUtilities
from dpbo.queries.scoring import tensor_of


def choose_start(
    curator: Curator, loss: Loss, candidates: torch.Tensor, *, loss_range: tuple[float, float], budget_share: float
) -> torch.Tensor:
    """The public candidate (of `k x d`) with the smallest total loss, chosen privately; `d`.

    A unit counts by its mean clipped loss, so the utilities' sensitivity is the loss range's width under REPLACE_ONE.

    Raises:
        InputError: an argument outside its range. BudgetExceeded: the share is not left.
    """
    lower, upper = require_range("loss_range", loss_range)
    query = CandidateScores(lambda x, records: -tensor_of(loss(x, records)), list(candidates), score_range=(-upper, -lower))
    chosen = curator.release(query, _mechanism(curator, budget_share))
    return candidates[int(chosen.value)].clone()


def choose_clip(
    curator: Curator,
    loss: Loss,
    *,
    bounds: torch.Tensor,
    candidates: Sequence[float],
    budget_share: float,
    quantile: float = 0.9,
    start: torch.Tensor | None = None,
    kernel: Kernel | None = None,
    settings: GIBOSettings = RECOMMENDED,
    seed: int = 0,
) -> float:
    """One of increasing public candidates, near the quantile of the units' gradient lengths at the start, chosen privately.

    A unit of several records counts by the mean of their gradients' lengths. Arguments as in DPGIBO.
    """
    frame = Frame(require_bounds(bounds), settings.unit_box)
    posterior = GradientPosterior(kernel if kernel is not None else RBFKernel().double(), 0.0, jitter=settings.jitter)
    points = GIBOPoints(posterior, frame.box, bounds.shape[1] + 1, None, seed, settings)
    Z, weights = points.propose(frame.inward(require_start(start, frame.bounds)), 0)
    X = frame.outward(Z)

    def lengths(_: Any, records: Any) -> torch.Tensor:
        losses = torch.stack([tensor_of(loss(x, records)).double() for x in X], dim=1)
        return (losses @ weights.mT).norm(dim=1)

    query = QuantileUtilities(lengths, candidates=candidates, quantile=quantile)
    return float(candidates[int(curator.release(query, _mechanism(curator, budget_share)).value)])


def _mechanism(curator: Curator, budget_share: float) -> ExponentialMechanism:
    """The exponential mechanism that this share of the cap pays for."""
    available = curator.ledger.cap * exact_share(budget_share)
    multiplier = curator.accounting.multiplier(ExponentialEvent, 1, available)
    if multiplier is None:
        raise InputError("accounting", curator.accounting.name, "one that can pay for a private choice")
    return ExponentialMechanism(multiplier)
