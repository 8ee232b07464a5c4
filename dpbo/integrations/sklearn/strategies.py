"""The search strategies of DPSearch. Each sees released values and public points only, and resumes its plan from the ledger by name.

"bo": most of the budget buys noised scores, first at Sobol points, then where qLogNEI proposes. The released point of highest posterior
mean is recommended. "turbo" does the same within a trust region around the best point, "saas" with a sparse model for many coordinates.
"grid": the budget buys one choice by permute-and-flip among public candidates, on their exact mean scores, which stay with the curator.
"gibo": the budget buys private gradients (DP-GIBO), for continuous parameters and scores that are smooth in them.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch

from dpbo.acquisition.expected_improvement import posterior_mean, suggest
from dpbo.acquisition.trust_region import suggest_in_trust_region
from dpbo.algorithms import private_choice
from dpbo.algorithms.gibo import DPGIBO
from dpbo.curator.curator import Curator
from dpbo.curator.examples import MostlyClipped, examine
from dpbo.curator.records import count_records
from dpbo.errors import InputError
from dpbo.integrations.sklearn.scorings import Scoring
from dpbo.integrations.sklearn.training import Trainer
from dpbo.mechanisms.no_noise import NoNoise
from dpbo.mechanisms.permute_and_flip import PermuteAndFlipMechanism
from dpbo.models.builders import default_gp, sparse_gp
from dpbo.objective import PrivateObjective
from dpbo.privacy import Adjacency, PrivacyUnit
from dpbo.queries.cells import CellMeans
from dpbo.queries.clipped import ClippedMean
from dpbo.queries.score_evaluation import tensor_of
from dpbo.queries.utilities import CandidateScores
from dpbo.space import Space
from dpbo.validation import at_least, require


@dataclass(frozen=True)
class Task:
    """What every strategy needs. `share` and `final_share` are shares of the curator's budget, for the search and for the last release."""

    curator: Curator
    space: Space
    trainer: Trainer
    scoring: Scoring
    evaluations: int
    initial: int
    share: Fraction
    final_share: Fraction
    baseline: NoNoise | None
    divisor: float | None
    seed: int
    name: str
    terms: Mapping[str, Any]
    options: Mapping[str, Any]

    @property
    def strategy(self) -> str:
        """The strategy's name."""
        return str(self.terms["strategy"])

    def begun(self) -> bool:
        """Whether the ledger has a reservation of this search."""
        parts = {f"{self.name}: {part}" for part in ("final", "search", "choice")}
        return any(name in parts or name.startswith(f"{self.name}: gradients ") for name in self.curator.ledger.head().used)

    def objective(self, part: str, evaluations: int, share: Fraction) -> PrivateObjective:
        """A private objective with so many evaluations, reserved or resumed."""
        return PrivateObjective(
            self.curator, self.scoring, score_range=self.scoring.bounds, cells=self.scoring.cells, evaluations=evaluations,
            fit=self.trainer, name=f"{self.name}: {part}", budget=share, divisor=self.divisor, mechanism=self.baseline, terms=self.terms,
        )  # fmt: skip

    def final(self) -> PrivateObjective | None:
        """The objective of one evaluation that `final_share` pays for; None without it."""
        return self.objective("final", 1, self.final_share) if self.final_share else None


class Found(NamedTuple):
    """The recommended point, `d`, and the search's results: released values and public points."""

    x: torch.Tensor
    results: dict[str, Any]


Strategy = Callable[[Task], Found]
SEARCHES = ("bo", "turbo", "saas")


def require_strategy_fits(task: Task) -> None:
    """Raises InputError if the strategy cannot serve the task. Nothing has been reserved."""
    strategy = task.strategy
    if strategy != "gibo" and task.options:
        named = ", ".join(map(str, task.options))
        raise InputError("strategy_options", named, f"left out with strategy={strategy!r}", "They are options of 'gibo'.")
    if strategy not in SEARCHES and task.scoring.cells is not None:
        other = "accuracy" if strategy == "grid" else "neg_log_loss"
        remedy = f"Use strategy='bo', 'turbo' or 'saas', or scoring={other!r}."
        raise InputError("scoring", task.terms["scoring"], f"a mean of one number per record for strategy={strategy!r}", remedy)
    if strategy == "saas" and task.space.cat_dims:
        raise InputError("strategy", strategy, "'bo' or 'turbo' for a space with lists of words", "SAAS takes numbers only.")
    if strategy == "grid":
        require("n_iter", task.evaluations, Annotated[int, at_least(2)])
        if task.baseline is not None:
            raise InputError("mechanism", task.baseline, "left out with strategy 'grid'", "Strategy 'bo' runs without privacy.")
    if strategy == "gibo":
        d = len(task.space.names)
        if task.space.discrete_dims or task.space.cat_dims:
            raise InputError("strategy", strategy, "'bo' or 'grid' for a space with lists or whole numbers", "'gibo' follows gradients.")
        if task.terms["scoring"] == "accuracy":
            raise InputError("scoring", "accuracy", "smooth in the parameters for strategy 'gibo'", "For example 'neg_log_loss'.")
        if task.evaluations < d + 1:
            raise InputError("n_iter", task.evaluations, f"at least {d + 1}, the fits of one step in {d} dimensions")


def rehearse(task: Task) -> None:
    """Fit the first point, score public rows with it, and propose once from invented scores.

    Whatever cannot work raises here, before anything is reserved.
    """
    design = public_candidates(task.space, task.evaluations, task.seed) if task.strategy == "grid" else task.space.sample(3, seed=task.seed)
    model, example = task.trainer(design[0]), task.trainer.example()
    cells = task.scoring.cells
    query = ClippedMean(task.scoring, score_range=task.scoring.bounds) if cells is None else CellMeans(task.scoring, cells=cells)
    if example is not None:
        query.probe(example, count_records(example), model)
        _examine_score(task, query, design[:3], example)
        task.curator.mark_probed(query)
    if task.strategy == "gibo":
        _gibo(task, _rehearsal_curator(task.curator), lambda _, records: records)
    if task.strategy in SEARCHES and task.evaluations > max(task.initial, 2):
        X = task.space.sample(2, seed=task.seed)
        invented = X.sum(1, keepdim=True)
        _propose(task, X, invented, torch.ones_like(invented), initial=2)


def _examine_score(task: Task, query: ClippedMean, design: torch.Tensor, example: Any) -> None:
    """Check the score on training records. One configuration may be so bad that most records are clipped, but not each of the first few."""
    for turn, x in enumerate(design, 1):
        if (model := task.trainer(x)) is None:
            continue  # the fit failed, so every score is NaN
        try:
            return examine(query.score, model, example, query.ranges)
        except MostlyClipped:
            if turn == len(design):
                raise


def by_search(task: Task) -> Found:
    """Strategies "bo", "turbo" and "saas": noised scores where qLogNEI proposes."""
    objective = task.objective("search", task.evaluations, task.share)
    initial = min(max(task.initial, 2), task.evaluations)  # two points make a model
    design, model = task.space.sample(initial, seed=task.seed), sparse_gp if task.strategy == "saas" else default_gp
    X, y, yvar = _observations(task, objective)
    while objective.remaining:
        t = len(X)
        objective(design[t : t + 1] if t < initial else _propose(task, X, y, yvar, initial))
        X, y, yvar = _observations(task, objective)
    mean = posterior_mean(task.space, X, y, yvar, model=model)
    released = {"released_score": y[:, 0].numpy(), "noise_std": yvar[:, 0].sqrt().numpy(), "posterior_mean": mean.numpy()}
    return Found(X[mean.argmax()], _results(task.space, X) | released)


def _propose(task: Task, X: torch.Tensor, y: torch.Tensor, yvar: torch.Tensor, initial: int) -> torch.Tensor:
    seed = 1000 * task.seed + len(X)
    if task.strategy == "turbo":
        return suggest_in_trust_region(task.space, X, y, yvar, seed=seed, initial=initial)
    return suggest(task.space, X, y, yvar, seed=seed, model=sparse_gp if task.strategy == "saas" else default_gp)


def by_grid(task: Task) -> Found:
    """Strategy "grid": one private choice."""
    candidates, name = public_candidates(task.space, task.evaluations, task.seed), f"{task.name}: choice"
    law = private_choice.affordable(task.curator, PermuteAndFlipMechanism, task.share)
    choice = private_choice.reserve(task.curator, law, name, {**task.terms, "candidates": len(candidates)})
    query = CandidateScores(task.scoring, list(candidates), score_range=task.scoring.bounds, fit=task.trainer)
    index = int(private_choice.make(task.curator, query, choice, name)["value"][0])
    return Found(candidates[index], _results(task.space, candidates) | {"chosen": np.arange(len(candidates)) == index})


def by_gibo(task: Task) -> Found:
    """Strategy "gibo": private gradients. A step costs d + 1 fits."""
    fitted: dict[tuple[float, ...], Any] = {}

    def loss(x: torch.Tensor, records: Any) -> torch.Tensor:
        return -tensor_of(task.scoring(fitted[tuple(x.tolist())], records)).double().reshape(-1)

    gibo = _gibo(task, task.curator, loss)
    while gibo.remaining:
        X = gibo.ask()
        fitted.clear()
        fitted.update((tuple(x.tolist()), task.trainer(x)) for x in X)  # fits see public records only
        gibo.tell(X, gibo.evaluate(X))
    result = gibo.result()
    gradients = {"released_gradient": result.gradients.numpy(), "noise_std": np.full(len(result.gradients), gibo.noise_std)}
    return Found(result.x, _results(task.space, result.iterates[: len(result.gradients)]) | gradients)


def _gibo(task: Task, curator: Curator, loss: Callable[[torch.Tensor, Any], Any]) -> DPGIBO:
    d, (lower, upper) = len(task.space.names), task.scoring.bounds
    options: dict[str, Any] = {"clip": upper - lower, "batch_size": d + 1, **task.options}
    iterations = options.pop("iterations", task.evaluations // (d + 1))
    ours: dict[str, Any] = {
        "bounds": task.space.bounds, "budget": task.share, "mechanism": task.baseline, "divisor": task.divisor,
        "loss_range": (-upper, -lower),
    }  # fmt: skip
    allowed = set(inspect.signature(DPGIBO).parameters) - {*ours, "curator", "loss", "seed", "name"}
    if not options.keys() <= allowed:
        raise InputError("strategy_options", sorted(options.keys() - allowed), f"among {sorted(allowed)}")
    # DP-GIBO does not keep this search's terms, so its plan's name tells one search from another
    digest = hashlib.sha256(repr(sorted(task.terms.items())).encode()).hexdigest()[:8]
    return DPGIBO(curator, loss, iterations=iterations, seed=task.seed, name=f"{task.name}: gradients {digest}", **ours, **options)


def _rehearsal_curator(curator: Curator) -> Curator:
    """A curator over public stand-in records with the same budget; so many records that no warning of large noise comes."""
    adjacency = Adjacency.REPLACE_ONE if curator.adjacency.replaces else Adjacency.ADD_OR_REMOVE_ONE
    terms = {"adjacency": adjacency, "budget": curator.budget, "accounting": curator.accounting}
    return Curator.rehearsal(torch.zeros(1 << 20), unit=PrivacyUnit("record"), **terms)


def public_candidates(space: Space, most: int, seed: int) -> torch.Tensor:
    """Every point of a space of lists if there are at most `most`, else that many different Sobol points: `n x d`."""
    axes = [space.discrete_dims.get(i) or space.cat_dims.get(i) for i in range(len(space.names))]
    sizes = [len(axis) if axis else most + 1 for axis in axes]
    if np.prod(sizes, dtype=float) <= most:
        return torch.tensor([*itertools.product(*(axis or [] for axis in axes))], dtype=torch.float64)
    points = dict.fromkeys(tuple(x) for x in space.sample(16 * most, seed=seed).tolist())
    return torch.tensor([*itertools.islice(points, most)], dtype=torch.float64)


def _observations(task: Task, objective: PrivateObjective) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    X, Y, Yvar = objective.history()
    return (X.reshape(len(Y), len(task.space.names)), *(task.scoring.observed(Y, Yvar) if len(Y) else (Y[:, :1], Yvar[:, :1])))


def _results(space: Space, X: torch.Tensor) -> dict[str, Any]:
    """The configurations, with the columns of scikit-learn's `cv_results_`."""
    parameters = [space.decode(x) for x in X]
    columns = {f"param_{name}": np.array([p[name] for p in parameters], dtype=object) for name in space.names}
    return {"params": parameters, **columns}
