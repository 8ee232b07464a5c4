"""Search with noised values, then one private choice among the best: for many candidates, each of
which is costly to fit.

    chosen = search_then_choose(
        curator, score, candidates, score_range=(0.0, 1.0), evaluations=30, fit=train
    )

Most of the budget pays for `evaluations` noised mean scores, chosen by GP-UCB. The rest pays for
one choice by permute-and-flip among the `finalists` with the largest upper confidence bounds, by
their exact mean scores. The search depends on released values alone, so its finalists are public;
the choice corrects for values that were high by chance.

Where all n candidates can be fitted, `CandidateScores` over all of them is better: the whole budget
pays for one choice. Of 1,000 candidates, mean loss in prior standard deviations over 50 functions
(`benchmarks.papers.kusner` has the standard errors): with 10,000 records at epsilon 1, this search
(46 fits) 0.015, a private choice among 46 random candidates 0.30, a choice among all (1,000 fits)
0.0001. With 1,000 records at epsilon 1 it loses 0.34, and 46 random candidates 0.30: no gain is
shown.

The guarantee needs no assumption on the data. Source: GP-UCB on noised values is ordinary BO; the
choice is McSherry & Talwar 2007.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from gpytorch.mlls import ExactMarginalLogLikelihood

from dpbo.accounting.calibration import parts_of
from dpbo.acquisition.ucb import GPUCB
from dpbo.curator.curator import Curator
from dpbo.curator.pricing import priced, require_left, share_of_cap
from dpbo.errors import InputError
from dpbo.fingerprint import fingerprint
from dpbo.isolation import without_default_device
from dpbo.mechanisms.permute_and_flip import PermuteAndFlipMechanism
from dpbo.objective import PrivateObjective
from dpbo.privacy import Budget, exact_share
from dpbo.queries.score_evaluation import Score
from dpbo.validation import POINTS, Count, Positive, ScoreRange, Within, checked

_CANDIDATES = Within(
    "two rows or more, within 1e100 of zero",
    lambda value: len(value) > 1 and bool((value.abs() <= 1e100).all()),
)


@dataclass(frozen=True, eq=False)
class Chosen:
    """The result of `search_then_choose`; everything in it is released or public.

    Attributes:
        index: index of the chosen candidate.
        x: the chosen candidate, `d`.
        finalists: indices of the candidates of the last choice, largest bound first.
        X, Y, Yvar: points, released values and their noise variances: `t x d`, `t x 1`, `t x 1`.
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
    candidates: Annotated[torch.Tensor, POINTS, _CANDIDATES],
    *,
    score_range: ScoreRange,
    evaluations: Count,
    finalists: Count = 16,
    fit: Any = None,
    initial: Count = 8,
    beta: Positive = 7.0,
    search_share: float = 0.8,
    budget: Budget | float | Fraction = 1,
    seed: int = 0,
    name: str = "search then choose",
) -> Chosen:
    """Search, then choose, within one budget. Called again with the same name it resumes from the
    ledger.

    Args:
        curator: owner of the records.
        score, score_range, fit: as in `PrivateObjective`; the score is maximised.
        candidates: `n x d`, float64, public.
        evaluations: number of noised mean scores that the search releases.
        finalists: number of candidates of the last choice.
        beta: GP-UCB maximises mean + sqrt(beta) sd. The schedules of the theorems, 30 and more
            here, explore for too long where evaluations are few.
        initial: number of random candidates that are evaluated before GP-UCB starts.
        budget: what search and choice together may spend: a `Budget`, or a share in (0, 1] of the
            curator's.
        search_share: share of `budget` for the search, in (0, 1); the choice gets the rest. Under
            `Planned` the plan says what each takes.
        seed: seed of the random candidates, not of the noise.
        name: name of the two plans in the ledger.

    Raises:
        InputError: an argument outside its range.
        UsageError: a curator on `Ranks(trust="sum")`, which makes no private choice.
        BudgetExceeded: the budget is not left.
        LedgerMismatch: the name belongs to a search with other terms.
        ReleaseLost: a process that died before it stored the choice had charged it.
    """
    finalists = min(finalists, len(candidates))
    whole = share_of_cap(curator.ledger, budget)
    share = exact_share(search_share, "search_share")
    if share == 1:
        raise InputError("search_share", search_share, "below 1", "The rest pays for the choice.")
    of_search, of_choice = parts_of(curator.accounting, whole, share)
    mechanism = next(priced(curator.ledger, [PermuteAndFlipMechanism], of_choice))
    # Which ranks that do not trust each other refuse.
    curator.in_shares(mechanism)
    used = curator.ledger.used()
    if f"{name}: choice" not in used:
        begun = f"{name}: search" in used
        require_left(curator.ledger, of_choice if begun else whole, f"the plan {name!r}")
    objective = PrivateObjective(
        curator,
        score,
        score_range=score_range,
        evaluations=evaluations,
        fit=fit,
        name=f"{name}: search",
        budget=of_search,
    )
    terms = {
        "candidates": [*candidates.shape, fingerprint(candidates).hex()],
        "finalists": finalists,
        "initial": initial,
        "beta": beta,
        "seed": seed,
    }
    choice = curator.reserve(f"{name}: choice", mechanism, slots=1, given={}, terms=terms)

    order = torch.randperm(
        len(candidates), generator=torch.Generator().manual_seed(seed), device="cpu"
    )
    while objective.remaining:
        X, Y, Yvar = objective.history()
        if len(X) < initial:
            index = order[len(X) % len(order)]
        else:
            index = _bounds(X, Y, Yvar, beta).best_of(candidates, 1)
        objective(candidates[index].reshape(1, -1))

    bounds = _bounds(*objective.history(), beta)
    query = bounds.argmax_query(
        score, candidates, score_range=score_range, finalists=finalists, fit=fit
    )
    among = bounds.best_of(candidates, finalists).tolist()
    # Those of an earlier session, should the model rank others now.
    for earlier in choice.values:
        among = earlier["details"]["finalists"]
    row = choice.release(query, finalists=among)
    index = among[int(row["value"][0])]
    return Chosen(index, candidates[index].clone(), tuple(among), *objective.history())


def _bounds(X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor, beta: float) -> GPUCB:
    """GP-UCB over BoTorch's SingleTaskGP on released values, with inputs scaled to the unit box."""
    with without_default_device():
        model = SingleTaskGP(
            X, Y, Yvar, input_transform=Normalize(X.shape[1]), outcome_transform=Standardize(1)
        )
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return GPUCB(model, lambda _: beta)
