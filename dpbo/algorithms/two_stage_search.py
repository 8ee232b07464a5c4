"""BO on privately noised values, then one private choice among the best: for candidates too costly to score one and all.

    chosen = search_then_choose(curator, score, candidates, score_range=(0.0, 1.0), evaluations=30, fit=train)

Most of the budget buys `evaluations` noised mean scores, at which GP-UCB looks; the rest buys one choice by permute-and-flip among the
`finalists` that then have the largest bounds, on their exact mean scores. The search sees released values alone, so its finalists are
public, and the choice is not fooled by a lucky noise. Where all n candidates can be scored, `CandidateScores` over all of them is better:
its whole budget goes into one choice, and nothing is lost to the search. Of 1,000 candidates, mean loss in prior deviations over 20
functions (`benchmarks.kusner`, standard errors there): with 10,000 records at epsilon 1 the search (46 fits) 0.001, a private choice among
46 at random 0.28, one among all (1,000 fits) 0.0007. At epsilon 10 one search of the 20 missed the peak, so that its mean is 0.13; with
1,000 records at epsilon 1 the search is no better than 46 at random.

No data assumption enters. Source: GP-UCB over noised observations is ordinary BO; the last step is McSherry & Talwar 2007.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from gpytorch.mlls import ExactMarginalLogLikelihood

from dpbo.accounting.calibration import exact_share, parts_of
from dpbo.acquisition.ucb import GPUCB
from dpbo.algorithms import private_choice
from dpbo.curator.curator import Curator
from dpbo.errors import InputError
from dpbo.mechanisms.permute_and_flip import PermuteAndFlipMechanism
from dpbo.objective import PrivateObjective
from dpbo.privacy import require_count, require_positive
from dpbo.queries.digests import digest_of
from dpbo.queries.score_evaluation import Score
from dpbo.validation import POINTS, Within, checked

_SEVERAL = Within("two rows or more, within 1e100 of zero", lambda value: len(value) > 1 and bool((value.abs() <= 1e100).all()))


@dataclass(frozen=True, eq=False)
class Chosen:
    """What was chosen; everything in it is released or public.

    Attributes:
        index: of the candidate.
        x: the candidate itself, `d`.
        finalists: indices among which the last step chose, best bound first.
        X, Y, Yvar: the search's observations: `t x d`, `t x 1`, `t x 1`.
    """

    index: int
    x: torch.Tensor
    finalists: tuple[int, ...]
    X: torch.Tensor
    Y: torch.Tensor
    Yvar: torch.Tensor


@checked
def search_then_choose(
    curator: Curator,
    score: Score,
    candidates: Annotated[torch.Tensor, POINTS, _SEVERAL],
    *,
    score_range: tuple[float, float],
    evaluations: int,
    finalists: int = 16,
    fit: Any = None,
    initial: int = 8,
    beta: float = 7.0,
    search_share: float = 0.8,
    budget: float | Fraction = 1,
    seed: int = 0,
    name: str = "search then choose",
) -> Chosen:
    """A private search and a private choice under one budget; resumed from the ledger under its name.

    Args:
        curator: owner of the records.
        score, score_range, fit: as in `PrivateObjective`; maximised.
        candidates: `n x d`, float64, public.
        evaluations: noised mean scores that the search releases.
        finalists: candidates that are scored for the last choice.
        beta: GP-UCB looks at mean + sqrt(beta) sd. The theorems' growing schedules, 30 and more here, explore for too long where
            evaluations are few.
        initial: evaluations at random candidates before GP-UCB looks.
        budget: part of the curator's budget that both take together.
        search_share: part of it that the search takes, in (0, 1); the choice takes what is left. `Planned` lists what each takes instead.
        seed: of the random candidates, never of the noise.

    Raises:
        InputError: an argument outside its range. BudgetExceeded: the budget is not left. ReleaseLost: the choice was charged by a process
        that died before it could deliver.
    """
    finalists = min(require_count("finalists", finalists), len(candidates))  # here, not after the search was charged
    require_count("initial", initial)
    beta = require_positive("beta", beta)
    whole, share = exact_share(budget), exact_share(search_share, "search_share")
    if share == 1:
        raise InputError("search_share", search_share, "below 1", "The rest pays for the choice.")
    of_search, of_choice = parts_of(curator.accounting, whole, share)
    choice = private_choice.affordable(curator, PermuteAndFlipMechanism, of_choice)
    if f"{name}: choice" not in curator.ledger.head().used:
        begun = f"{name}: search" in curator.ledger.head().used
        private_choice.require_left(curator, of_choice if begun else whole, f"the plan {name!r}")
    objective = PrivateObjective(
        curator, score, score_range=score_range, evaluations=evaluations, fit=fit, name=f"{name}: search", budget=of_search
    )
    settings = {"finalists": finalists, "initial": initial, "beta": beta, "seed": seed}
    terms = {"candidates": [*candidates.shape, digest_of(candidates)], **settings}
    choice = private_choice.reserve(curator, choice, f"{name}: choice", terms)
    bounds = _searched(objective, candidates, initial, beta, seed)
    query = bounds.argmax_query(score, candidates, score_range=score_range, finalists=finalists, fit=fit)
    ranked = bounds.best_of(candidates, finalists).tolist()
    made = private_choice.make(curator, query, choice, f"{name}: choice", finalists=ranked)
    among = made["details"]["finalists"]
    index = among[int(made["value"][0])]
    return Chosen(index, candidates[index].clone(), tuple(among), *objective.history())


def _searched(objective: PrivateObjective, candidates: torch.Tensor, initial: int, beta: float, seed: int) -> GPUCB:
    """The bounds after as many more released values as the plan has left."""
    order = torch.randperm(len(candidates), generator=torch.Generator().manual_seed(seed))
    while objective.remaining:
        X, Y, Yvar = objective.history()
        index = order[len(X) % len(order)] if len(X) < initial else _bounds(X, Y, Yvar, beta).best_of(candidates, 1)
        objective(candidates[index].reshape(1, -1))
    return _bounds(*objective.history(), beta)


def _bounds(X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor, beta: float) -> GPUCB:
    """Of BoTorch's usual GP on released values of known noise."""
    model = SingleTaskGP(X, Y, Yvar, input_transform=Normalize(X.shape[1]), outcome_transform=Standardize(1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return GPUCB(model, lambda _: beta)
