"""The search strategies of DPSearch. Each sees released values and public points only, and resumes its plan from the ledger by name.

"bo": most of the budget buys noised scores, first at Sobol points, then where qLogNEI proposes. The released point of highest posterior
mean is recommended. "turbo" does the same within a trust region around the best point, "saas" with a sparse model for many coordinates.
"weighted_cv": the budget buys one histogram of the protected records over a few cells, by which public cross-validated scores are weighted.
"list": the budget buys one private choice among the first candidates by public cross-validation, on exact mean scores, perhaps paired.
"grid": the same among all candidates, without cross-validation.
"gibo": the budget buys private gradients (DP-GIBO), for continuous parameters and scores that are smooth in them.
"""

import contextlib
import copy
import dataclasses
import hashlib
import inspect
import itertools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import FitFailedWarning

from dpbo.acquisition.expected_improvement import posterior_mean, suggest
from dpbo.acquisition.trust_region import suggest_in_trust_region
from dpbo.curator.curator import Curator
from dpbo.curator.examples import MostlyClipped, examine
from dpbo.curator.pricing import priced
from dpbo.curator.records import count_records
from dpbo.curator.reservation import Reservation
from dpbo.errors import InputError, ReleaseLost
from dpbo.fingerprint import fingerprint
from dpbo.gibo.algorithm import DPGIBO
from dpbo.isolation import mute_warnings
from dpbo.mechanisms.choice import ChoiceMechanism
from dpbo.mechanisms.exponential import ExponentialMechanism
from dpbo.mechanisms.permute_and_flip import PermuteAndFlipMechanism
from dpbo.models.builders import default_gp, sparse_gp
from dpbo.objective import NoiseWarning, PrivateObjective
from dpbo.privacy import Adjacency, PrivacyUnit
from dpbo.progress import progress_bar
from dpbo.queries.cells import CellMeans
from dpbo.queries.clipped import ClippedMean
from dpbo.queries.score_evaluation import tensor_of
from dpbo.queries.utilities import CandidateScores
from dpbo.search.rehearsal import (
    CELLS,
    DIFFERENCES,
    LISTS,
    Cells,
    Features,
    Matrix,
    Noise,
    Rehearsal,
    Shares,
    default_features,
    out_of_fold,
    simulate,
    smoother,
)
from dpbo.search.results import results_table
from dpbo.search.task import REHEARSED, SEARCHES, SHIFT, Found, Task
from dpbo.space import Space
from dpbo.validation import at_least, between, require, warn

Strategy = Callable[..., Found]
_SMOOTH = ("true_class_probability", "neg_brier_score")  # weighted_cv's own search adds to the gain; by accuracy it took from it
_CLOSE = 0.1  # of the gain (benchmarks.small_data, main_job)
_UNPAIRED = ("accuracy", "neg_log_loss")  # differences of 0/1 scores are -1, 0 or 1; those of log losses are skewed, so a clip misleads


def require_strategy_fits(task: Task) -> None:
    """Raises InputError if the strategy cannot serve the task. Nothing has been reserved."""
    strategy = task.strategy
    allowed = REHEARSED.get(strategy, ())
    if strategy != "gibo" and not task.options.keys() <= set(allowed):
        named = ", ".join(map(str, task.options))
        which = f"among {allowed}" if allowed else "left out"
        raise InputError("strategy_options", named, f"{which} with strategy={strategy!r}")
    if strategy in REHEARSED or strategy == "grid":
        require("n_iter", task.evaluations, Annotated[int, at_least(2)])
        if task.baseline is not None:
            raise InputError("mechanism", task.baseline, f"left out with strategy {strategy!r}", "Strategy 'bo' runs without privacy.")
    if strategy in REHEARSED:
        for name in ("cells", "candidates"):
            require(name, task.options.get(name, 2), Annotated[int, at_least(2, 10_000)])
        width = task.scoring.bounds[1] - task.scoring.bounds[0]
        require("largest_difference", task.options.get("largest_difference"), Annotated[float, between(1e-9 * width, width)] | None)
        require("shift", task.options.get("shift", SHIFT), Annotated[float, between(0.0, 10.0)])
        if task.trainer.example() is None:
            raise InputError("y_train", None, f"the labels, with strategy {strategy!r}", "Or use strategy 'bo'.")
    if strategy not in SEARCHES and task.scoring.cells is not None:
        other = "accuracy" if strategy == "grid" else "neg_log_loss"
        remedy = f"Use strategy='bo', 'turbo' or 'saas', or scoring={other!r}."
        raise InputError("scoring", task.terms["scoring"], f"a mean of one number per record for strategy={strategy!r}", remedy)
    if strategy == "saas" and task.space.cat_dims:
        raise InputError("strategy", strategy, "'bo' or 'turbo' for a space with lists of words", "SAAS takes numbers only.")
    if strategy == "gibo":
        d = len(task.space.names)
        if task.space.discrete_dims or task.space.cat_dims:
            raise InputError("strategy", strategy, "'bo' or 'grid' for a space with lists or whole numbers", "'gibo' follows gradients.")
        if task.terms["scoring"] == "accuracy":
            raise InputError("scoring", "accuracy", "smooth in the parameters for strategy 'gibo'", "For example 'neg_log_loss'.")
        if task.evaluations < d + 1:
            raise InputError("n_iter", task.evaluations, f"at least {d + 1}, the fits of one step in {d} dimensions")


def try_out(task: Task) -> None:
    """Fit the first point, score public rows with it, and propose once from invented scores.

    Whatever cannot work raises here, before anything is reserved.
    """
    listed = task.strategy == "grid" or task.strategy in REHEARSED
    design = public_candidates(task.space, task.evaluations, task.seed) if listed else task.space.sample(3, seed=task.seed)
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
    task.trainer.fit_ahead(design[len(X) :], task.n_jobs)
    if objective.remaining == task.evaluations and task.scoring.cells is not None and task.baseline is None:
        _warn_of_noise(task, objective, task.trainer(design[0]))
    while objective.remaining:
        t = len(X)
        objective(design[t : t + 1] if t < initial else _propose(task, X, y, yvar, initial))
        X, y, yvar = _observations(task, objective)
        number = task.evaluations - objective.remaining
        if task.report("search", number, task.evaluations, X[-1], y[-1].item(), yvar[-1].sqrt().item()):
            break
    mean = posterior_mean(task.space, X, y, yvar, model=model)
    score, noise_std = y[:, 0].numpy(), yvar[:, 0].sqrt().numpy()
    return Found(X[mean.argmax()], X, _results(task, X, score=score, noise_std=noise_std, posterior_mean=mean.numpy()))


def _warn_of_noise(task: Task, objective: PrivateObjective, model: Any) -> None:
    """Warn where the score made from cells will have large noise, though the cells' shares have little: as on the training records."""
    if model is None or task.trainer.example() is None:
        return
    X, y = task.trainer.table()
    places = tensor_of(task.scoring(model, (X, y))).long()
    shares = torch.bincount(places[places >= 0], minlength=objective.metrics).double() / len(places)
    _, variance = task.scoring.observed(shares.unsqueeze(0), objective.noise_std.unsqueeze(0) ** 2)
    (std,), (lower, upper) = variance.sqrt()[0].tolist(), task.scoring.bounds
    if std > (upper - lower) / 20:  # half of the share at which PrivateObjective warns: ROC AUC uses half of its range
        text = (f"each score by scoring={task.terms['scoring']!r} will have noise of standard deviation about {std:.2g}, more than a "
                f"twentieth of its range ({lower:g}, {upper:g}): plan fewer evaluations, a larger budget or more units, or tune a score of "
                "single records, such as 'neg_brier_score'.")  # fmt: skip
        warn(text, NoiseWarning)


def _propose(task: Task, X: torch.Tensor, y: torch.Tensor, yvar: torch.Tensor, initial: int) -> torch.Tensor:
    seed = 1000 * task.seed + len(X)
    if task.strategy == "turbo":
        return suggest_in_trust_region(task.space, X, y, yvar, seed=seed, initial=initial)
    return suggest(task.space, X, y, yvar, seed=seed, model=sparse_gp if task.strategy == "saas" else default_gp)


@dataclass(frozen=True)
class Rehearsed:
    """What a rehearsal knows: the candidates (`n x d`, the default configuration first), their public scores, and the simulation."""

    candidates: torch.Tensor
    matrix: Matrix
    features: Features
    cells: Mapping[int, Cells]
    rehearsal: Rehearsal


def rehearse_methods(task: Task) -> Rehearsed:
    """Score the public candidates out of fold, and simulate the methods that `task.strategy` allows. Nothing is reserved."""
    candidates = torch.cat([task.trainer.default().unsqueeze(0), public_candidates(task.space, task.evaluations, task.seed)])
    features = default_features(task.trainer, task.trainer.table()[1])
    matrix = out_of_fold(
        task.trainer, task.scoring, candidates, features, task.seed, task.groups_train, n_jobs=task.n_jobs, progress=task.verbose > 0
    )
    units = task.curator.units or task.divisor
    if units is None:
        raise InputError("divisor", None, "a public number of units, where adjacency keeps their number private")
    noise = _noise(task, float(task.divisor or units))
    width = task.scoring.bounds[1] - task.scoring.bounds[0]
    numbers = (int(task.options["cells"]),) if "cells" in task.options else CELLS
    cells = {number: Cells.of(matrix, features, number) for number in numbers}
    cells = {number: found for number, found in cells.items() if len(found.leaves) > 1}
    if task.strategy == "weighted_cv" and not cells:
        remedy = "All configurations score the same in all cells: nothing can be chosen."
        raise InputError("strategy", "weighted_cv", "another one for these training records", remedy)
    sizes = (int(task.options["candidates"]),) if "candidates" in task.options else (*LISTS, len(candidates))
    differences: list[float | None] = [None]
    if "largest_difference" in task.options:
        differences = [task.options["largest_difference"]]
    elif task.terms["scoring"] not in _UNPAIRED:
        with contextlib.suppress(Exception):  # a reference must be copied
            copy.deepcopy(task.trainer(candidates[0]))
            differences += [share * width for share in DIFFERENCES]
    smooth = smoother(task.space, candidates[1:], matrix.gains[1:].mean(1), noise.search) if task.strategy == "auto" else None
    rehearsal = simulate(
        matrix,
        cells,
        noise,
        width=width,
        lists=sorted({min(size, len(candidates)) for size in sizes}),
        differences=differences,
        units=round(units),
        shift=0.0 if task.alike else float(task.options.get("shift", SHIFT)),
        seed=task.seed,
        smoother=smooth,
    )
    if task.terms["scoring"] in _SMOOTH:
        rehearsal = dataclasses.replace(rehearsal, close=_CLOSE)
    return Rehearsed(candidates, matrix, features, cells, rehearsal)


def decided(task: Task, public: Rehearsed) -> Task:
    """The task with the method that the rehearsal found best among those that its strategy allows, or with which the search began."""
    named = [method for method in public.rehearsal.methods if method.strategy == task.strategy]
    best = public.rehearsal.best if task.strategy == "auto" else named[0]
    strategy, options = best.strategy, dict(best.options)
    for part in ("cells", "choice", "search", "final"):
        begun = task.curator.ledger.reservation(f"{task.name}: {part}")
        if begun is not None and task.strategy in ("auto", begun.terms.get("strategy")):  # else the names of the terms tell it
            strategy, options = begun.terms["strategy"], begun.terms["options"]
            break
    content = [public.candidates.numpy(), options]
    if strategy == "weighted_cv" and options["cells"] in public.cells:
        tree = public.cells[options["cells"]].tree.tree_
        content += [tree.feature, tree.threshold, tree.children_left, tree.children_right]
    digest = fingerprint(content).hex()[:16]  # of what the released shares or the choice mean
    return dataclasses.replace(task, terms={**task.terms, "strategy": strategy, "options": options, "candidates": digest}, options=options)


def _noise(task: Task, units: float) -> Noise:
    """The noise of each method, from the mechanisms that the curator's accounting pays for with the search's share."""
    share = task.share

    def released(evaluations: int, **terms: Any) -> float:
        """Standard deviation of one of so many evaluations."""
        with mute_warnings():  # that the noise is large is for the rehearsal to find
            curator = _rehearsal_curator(task.curator, 2)
            objective = PrivateObjective(curator, task.scoring, evaluations=evaluations, budget=share, divisor=units, **terms)
        return float(objective.noise_std[0])

    law, moved = _choice(task.curator, share), 1.0 if task.curator.adjacency.replaces else 0.5  # of the range, by one unit
    return Noise(
        cells=released(1, cells=2, score_range=(0.0, 1.0)),
        choice=moved * law.noise_multiplier / units,
        gumbel=isinstance(law, ExponentialMechanism),
        search=released(task.evaluations, score_range=task.scoring.bounds),
    )


def _choice(curator: Curator, share: Fraction) -> ChoiceMechanism:
    """The choice mechanism with the least noise that the share pays for."""
    laws = []
    for kind in (PermuteAndFlipMechanism, ExponentialMechanism):
        with contextlib.suppress(InputError):  # this filter cannot pay for it at this budget
            laws.append(next(priced(curator, [kind], share)))
    if not laws:
        raise InputError("accounting", curator.accounting.name, "one that can pay for a private choice", "For example PureFilter().")
    return min(laws, key=lambda law: law.noise_multiplier)


def by_weighted_cv(task: Task, public: Rehearsed) -> Found:
    """Strategy "weighted_cv": one release of the protected records' shares in public cells."""
    number = task.options["cells"]
    if number not in public.cells:
        remedy = "Give it a random_state: the search began with other cells."
        raise InputError("estimator", type(task.trainer.estimator).__name__, "one whose scores can be repeated", remedy)
    cells, shares = public.cells[number], Shares.of(public.matrix, public.cells[number])
    objective = PrivateObjective(
        task.curator, cells, score_range=(0.0, 1.0), cells=len(cells.leaves), evaluations=1, fit=task.trainer,
        name=f"{task.name}: cells", budget=task.share, divisor=task.divisor, terms=task.terms, progress=False,
    )  # fmt: skip
    stopped = False
    if objective.remaining:
        objective(public.candidates[:1])
        stopped = task.report("cells", 1, 1, public.candidates[0])
    _, released, variance = objective.history()
    if not len(released):
        raise ReleaseLost(f"the shares {task.name!r} were charged but never delivered. Search under another name.")
    units = float(task.curator.units or task.divisor or 1.0)
    share = shares.shrunk(released[0].numpy(), float(variance[0, 0]) ** 0.5, units)
    return _search_weighted(task, public, shares, share, 0 if stopped else task.evaluations // 2)


def _search_weighted(task: Task, public: Rehearsed, shares: Shares, share: NDArray[np.float64], more: int) -> Found:
    """Search on the weighted cross-validated score, which is public: Bayesian optimisation from the candidates that are scored already."""
    candidates, scores = public.candidates, public.matrix.scores
    default = scores[0]

    def weighted(mean: bool) -> torch.Tensor:
        gains = scores[1:] - default
        values = shares.means(gains) @ share if mean else shares.variance(gains, share)
        return torch.as_tensor(values, dtype=torch.float64).reshape(-1, 1)

    for _ in range(more):
        try:  # the shares are paid for
            x = suggest(task.space, candidates[1:], weighted(True), weighted(False), seed=1000 * task.seed + len(candidates))
            row = out_of_fold(task.trainer, task.scoring, x, None, task.seed, task.groups_train, n_jobs=task.n_jobs).scores
        except Exception as error:
            warnings.warn(f"the search on the weighted score ended early: {error!r}", FitFailedWarning, stacklevel=2)
            break
        candidates, scores = torch.cat([candidates, x]), np.concatenate([scores, row])
    smooth = posterior_mean(task.space, candidates[1:], weighted(True), weighted(False))
    best = 0 if float(smooth.max()) < 0 else 1 + int(smooth.argmax())  # gains over the default configuration, in row 0
    public = dataclasses.replace(public, candidates=candidates, matrix=public.matrix._replace(scores=scores))
    return _found(task, public, best, weighted_cv_score=shares.means(scores) @ share)


def by_list(task: Task, public: Rehearsed) -> Found:
    """Strategy "list": one private choice among the first candidates."""
    size, largest = task.options["candidates"], task.options["largest_difference"]
    rows, name = public.matrix.order[:size], f"{task.name}: choice"
    pair = {} if largest is None else {"reference": task.trainer(public.candidates[0]), "largest_difference": largest}
    query = CandidateScores(task.scoring, list(public.candidates[rows]), score_range=task.scoring.bounds, fit=task.trainer, **pair)
    law = _choice(task.curator, task.share)
    choice = task.curator.reserve(name, law, slots=1, given={}, terms={**task.terms, "rows": rows})
    chosen = rows[_make_choice(task, query, choice)]
    return _found(task, public, chosen, chosen=np.arange(len(public.candidates)) == chosen)


def _make_choice(task: Task, query: CandidateScores, choice: Reservation) -> int:
    """Index of the chosen candidate: chosen now, or read from the ledger."""
    fresh = choice.remaining > 0
    if fresh:
        task.trainer.fit_ahead(query.candidates, task.n_jobs)
    index = int(choice.release(query)["value"][0])
    if fresh:
        task.report("choice", 1, 1, query.candidates[index])
    return index


def by_free_choice(task: Task, public: Rehearsed) -> Found:
    """Strategy "free": the candidate with the best public score. Nothing is released."""
    return _found(task, public, public.matrix.order[0])


def _found(task: Task, public: Rehearsed, row: int, **columns: Any) -> Found:
    columns = {"cv_score": public.matrix.scores.mean(1), **columns}
    return Found(public.candidates[row], public.candidates, _results(task, public.candidates, **columns))


def by_grid(task: Task) -> Found:
    """Strategy "grid": one private choice."""
    candidates, name = public_candidates(task.space, task.evaluations, task.seed), f"{task.name}: choice"
    terms = {**task.terms, "candidates": len(candidates)}
    choice = task.curator.reserve(name, PermuteAndFlipMechanism, slots=1, budget=task.share, given={}, terms=terms)
    query = CandidateScores(task.scoring, list(candidates), score_range=task.scoring.bounds, fit=task.trainer)
    index = _make_choice(task, query, choice)
    return Found(candidates[index], candidates, _results(task, candidates, chosen=np.arange(len(candidates)) == index))


def by_gibo(task: Task) -> Found:
    """Strategy "gibo": private gradients. A step costs d + 1 fits."""
    fitted: dict[tuple[float, ...], Any] = {}

    def loss(x: torch.Tensor, records: Any) -> torch.Tensor:
        return -tensor_of(task.scoring(fitted[tuple(x.tolist())], records)).double().reshape(-1)

    gibo = _gibo(task, task.curator, loss)
    planned = gibo.iterations
    with progress_bar(f"{task.name}: gradients", planned, done=planned - gibo.remaining, hidden=task.verbose < 1) as bar:
        while gibo.remaining:
            X, theta = gibo.ask(), gibo.theta
            task.trainer.fit_ahead(X, task.n_jobs)
            fitted.clear()
            fitted.update((tuple(x.tolist()), task.trainer(x)) for x in X)  # fits see public records only
            gibo.tell(X, gibo.evaluate(X))
            bar.update()
            if task.report("gradients", planned - gibo.remaining, planned, theta):
                break
    result = gibo.result()
    steps = len(result.gradients)
    gradients = {"released_gradient": result.gradients.numpy(), "gradient_noise_std": np.full(steps, gibo.noise_std)}
    return Found(result.x, result.iterates[:steps], _results(task, result.iterates[:steps], **gradients))


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


def _rehearsal_curator(curator: Curator, count: int = 1 << 20) -> Curator:
    """A curator over public stand-in records with the same budget; by default so many that no warning of large noise comes."""
    adjacency = Adjacency.REPLACE_ONE if curator.adjacency.replaces else Adjacency.ADD_OR_REMOVE_ONE
    terms = {"adjacency": adjacency, "budget": curator.budget, "accounting": curator.accounting}
    return Curator.rehearsal(torch.zeros(count), unit=PrivacyUnit("record"), **terms)


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


def _results(task: Task, X: torch.Tensor, **columns: Any) -> dict[str, Any]:
    return results_table([task.trainer.parameters(x) for x in X], **columns)


BY_NAME: dict[str, Strategy] = {
    "free": by_free_choice,
    "weighted_cv": by_weighted_cv,
    "list": by_list,
    **dict.fromkeys(SEARCHES, by_search),
    "grid": by_grid,
    "gibo": by_gibo,
}
