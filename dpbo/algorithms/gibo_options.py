"""Two choices before a run of DP-GIBO, each a release of its own from the same ledger; both are off unless called.

    start = choose_start(curator, loss, candidates, loss_range=(0.0, 3.0), budget_share=0.1)
    clip = choose_clip(curator, loss, bounds=bounds, candidates=[0.1, 0.3, 1.0, 3.0], budget_share=0.02)

The exponential mechanism chooses; its cost under the curator's accounting is the share of the cap that is named. In paired simulations
neither was a sure gain, so neither is a default.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Any

import torch
from gpytorch.kernels import Kernel, RBFKernel

from dpbo.accounting.calibrate import exact_share
from dpbo.algorithms import one_choice
from dpbo.algorithms.gibo import described_kernel
from dpbo.algorithms.gibo_frame import Frame, require_bounds, require_start
from dpbo.algorithms.gibo_points import GIBOPoints
from dpbo.algorithms.gibo_settings import RECOMMENDED, GIBOSettings
from dpbo.checking import POINTS, checked
from dpbo.curator.curator import Curator
from dpbo.mechanisms.exponential import ExponentialMechanism
from dpbo.mechanisms.selection import SelectionMechanism
from dpbo.models.gradient_posterior import GradientPosterior
from dpbo.privacy import require_range
from dpbo.queries.candidates import CandidateScores
from dpbo.queries.gradient import Loss
from dpbo.queries.quantile import QuantileUtilities
from dpbo.queries.query import Query
from dpbo.queries.scoring import tensor_of
from dpbo.queries.vectors import lengths

_TIE = 4.0  # noise scales between neighbours of equal merit: the lower is 50 times likelier


@checked
def choose_start(
    curator: Curator,
    loss: Loss,
    candidates: Annotated[torch.Tensor, POINTS],
    *,
    loss_range: tuple[float, float],
    budget_share: float | Fraction,
    name: str = "choose start",
) -> torch.Tensor:
    """The public candidate (of `k x d`) with the smallest total loss, chosen privately; `d`.

    A unit counts by its mean clipped loss, so the utilities' sensitivity is the loss range's width under REPLACE_ONE. Asked again under the
    same name and terms, it gives what the ledger holds.

    Raises:
        InputError: an argument outside its range. BudgetExceeded: the share is not left. LedgerMismatch: the name is another choice's.
    """
    lower, upper = require_range("loss_range", loss_range)
    query = CandidateScores(
        lambda x, records: -tensor_of(loss(x.clone(), records)).double(), list(candidates), score_range=(-upper, -lower)
    )
    chosen = _chosen(curator, query, _mechanism(curator, budget_share), name, {"candidates": candidates.tolist()})
    return candidates[chosen].clone()


@checked
def choose_clip(
    curator: Curator,
    loss: Loss,
    *,
    bounds: torch.Tensor,
    candidates: Sequence[float],
    budget_share: float | Fraction,
    quantile: float = 0.9,
    start: torch.Tensor | None = None,
    kernel: Kernel | None = None,
    settings: GIBOSettings = RECOMMENDED,
    seed: int = 0,
    name: str = "choose clip",
) -> float:
    """One of increasing public candidates, near the quantile of the units' gradient lengths at the start, chosen privately.

    Of candidates that are equally good (all beyond the longest gradient), the lowest: a clip too large is noise for nothing. A unit of
    several records counts by the mean of their gradients' lengths. Arguments as in DPGIBO. Asked again under the same name and terms, it
    gives what the ledger holds.

    Raises:
        InputError: an argument outside its range. BudgetExceeded: the share is not left. LedgerMismatch: the name is another choice's.
    """
    frame = Frame(require_bounds(bounds), settings.unit_box)
    theta, smooth = require_start(start, frame.bounds), kernel if kernel is not None else RBFKernel().double()
    posterior = GradientPosterior(smooth, 0.0, jitter=settings.jitter)
    points = GIBOPoints(posterior, frame.box, bounds.shape[1] + 1, None, seed, settings)
    Z, weights = points.propose(frame.inward(theta), 0)
    X = frame.outward(Z)

    def of_units(_: Any, records: Any) -> torch.Tensor:
        return lengths([tensor_of(loss(x.clone(), records)).double() for x in X], weights)

    mechanism = _mechanism(curator, budget_share)
    query = QuantileUtilities(of_units, candidates=candidates, quantile=quantile, step_cost=_TIE * mechanism.noise_multiplier)
    terms = {"quantile": quantile, "bounds": bounds.tolist(), "start": theta.tolist(), "kernel": described_kernel(smooth),
             "settings": str(settings), "seed": seed}  # fmt: skip
    return float(candidates[_chosen(curator, query, mechanism, name, terms)])


def _chosen(curator: Curator, query: Query, mechanism: SelectionMechanism, name: str, terms: dict[str, Any]) -> int:
    same = one_choice.reserve(curator, mechanism, name, {**query.public_inputs(), **terms})
    return int(one_choice.make(curator, query, same, name)["value"][0])


def _mechanism(curator: Curator, budget_share: float | Fraction) -> SelectionMechanism:
    return one_choice.affordable(curator, ExponentialMechanism, exact_share(budget_share))
