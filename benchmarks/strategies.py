"""The public BoTorch strategies over private observations, at equal mu and equally many fits: which
search when.

Three problems. An SVM on digits: C and gamma, 750 protected records. A logistic regression on
Adult: C, class weights, bins of the numbers and the rarest category kept, 5,000 protected records.
Ten length-scales of a Gaussian process, 4,500 protected records. Every strategy sees released means
only and recommends the point of highest posterior mean; a loss is the recommended point's true mean
score on the protected records, below the best that any strategy found on that seed, in percentage
points of the score's range. Public and protected records are drawn alike here, so the free search,
by qLogNEI on scores that are cross-validated on the public records, is as good. The benchmark
compares searches on noised scores, for populations that differ. A fourth table has two objectives
on digits: accuracy, released, and the SVM's size, which is public; the volume dominated by the
front that is recommended (true accuracy), over Sobol points', the private search's, the free one's
and the open one's.

    DPBO_DATA=... python -m benchmarks.strategies [--smoke] [--seeds 8] [--mu 1] [--seed N]
                                                  [--json FILE] [--plot DIR]

Without DPBO_DATA, and with --smoke, synthetic records take Adult's place and say so.
"""

import functools
import json
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from botorch.utils.multi_objective.hypervolume import Hypervolume
from botorch.utils.multi_objective.pareto import is_non_dominated
from scipy.stats import loguniform, randint, uniform
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder

from benchmarks import digits as digits_job
from benchmarks.dpsearch import adult
from benchmarks.harness import band, difference, options, picture, record, table, with_bar
from benchmarks.papers import dpgibo_problems
from dpbo import DPGIBO, Budget, Curator, PrivateObjective, Space
from dpbo.acquisition import suggest, suggest_in_trust_region, suggest_pareto
from dpbo.acquisition.expected_improvement import pareto_front, posterior_mean
from dpbo.gibo import GIBOSettings
from dpbo.mechanisms import NoNoise
from dpbo.models import default_gp, sparse_gp
from dpbo.objective import NoiseWarning
from dpbo.privacy import Adjacency, PrivacyUnit
from dpbo.queries.score_evaluation import tensor_of

INITIAL = 8
TINY = {"n": 200, "d": 2, "train": 20}
OPEN, FREE = "open qLogNEI", "free: cross-validated on the public records"
TRAIN, PROTECTED = 2_000, 5_000


@dataclass(frozen=True, eq=False)
class Problem:
    """A score, `score(model, records)`, one number a record, to be maximised over models `fit(x,
    public)` of public records.

    `size` is that of the model at x, in [0, 1] and public, where it is asked for; `smooth` says
    whether the score is smooth in x.
    """

    space: Space
    records: Any
    public: Any
    fit: Callable[[torch.Tensor, Any], Any]
    score: Callable[[Any, Any], Any]
    score_range: tuple[float, float] = (0.0, 1.0)
    size: Callable[[torch.Tensor], float] | None = None
    smooth: bool = False

    def model(self, x: torch.Tensor) -> Any:
        """The model of all public records."""
        return self.fit(x, self.public)

    def value(self, x: torch.Tensor) -> float:
        """The true mean score."""
        return float(tensor_of(self.score(self.model(x), self.records)).double().mean())


class CrossValidated:
    """An objective that costs no privacy: the mean score of the public records in five folds, each
    scored by a model of the others.
    """

    def __init__(self, problem: Problem, evaluations: int) -> None:
        self.problem, self.remaining, public = problem, evaluations, problem.public
        take = (
            (lambda rows: public[rows])
            if isinstance(public, torch.Tensor)
            else (lambda rows: tuple(part[rows] for part in public))
        )
        count = len(public if isinstance(public, torch.Tensor) else public[1])
        self.folds = [
            (take(rest), take(held))
            for rest, held in KFold(5, shuffle=True, random_state=0).split(np.zeros(count))
        ]

    def __call__(self, X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.remaining -= len(X)
        fit, score = self.problem.fit, self.problem.score
        scores = [
            torch.cat(
                [tensor_of(score(fit(x, rest), held)).double() for rest, held in self.folds]
            ).mean()
            for x in X
        ]
        Y = torch.stack(scores).unsqueeze(1)
        return Y, torch.zeros_like(Y)


def digits_svm(seed: int, small: bool = False) -> Problem:
    """The main job's; its size is the share of training records that are support vectors."""
    digits = digits_job.few(digits_job.split(seed)) if small else digits_job.split(seed)

    def size(x: torch.Tensor) -> float:
        return float(digits_job.fit(digits.train, x)[-1].n_support_.sum()) / len(digits.train[1])

    fit = lambda x, public: digits_job.fit(public, x)  # noqa: E731
    return Problem(
        digits_job.SPACE, digits.validation, digits.train, fit, digits_job.correct, size=size
    )


def adult_logistic(seed: int, data: Any = None) -> Problem:
    """Four mixed hyper-parameters; synthetic records where there is no data."""
    (X, y), categorical = data or (_synthetic(), [False] * 8 + [True] * 2)
    train, protected = (TRAIN, PROTECTED) if data else (300, 700)
    order = np.random.default_rng(seed).permutation(len(y))
    rows, kept = order[:train], order[train : train + protected]
    numbers, words = np.flatnonzero(~np.array(categorical)), np.flatnonzero(categorical)
    space = Space(
        C=loguniform(1e-4, 1e2),
        class_weight=[None, "balanced"],
        bins=randint(2, 33),
        rarest=loguniform(1e-4, 0.3),
    )

    def fit(x: torch.Tensor, public: Any) -> Any:
        chosen = space.decode(x)
        binned = KBinsDiscretizer(chosen["bins"], strategy="uniform", encode="onehot")
        coded = OneHotEncoder(min_frequency=chosen["rarest"], handle_unknown="infrequent_if_exist")
        model = LogisticRegression(C=chosen["C"], class_weight=chosen["class_weight"], max_iter=200)
        return make_pipeline(make_column_transformer((binned, numbers), (coded, words)), model).fit(
            *public
        )

    return Problem(
        space,
        (X[kept], y[kept]),
        (X[rows], y[rows]),
        fit,
        lambda model, records: model.predict(records[0]) == records[1],
    )


def length_scales(seed: int, **sizes: int) -> Problem:
    """Experiment 4.3 of DP-GIBO's paper: minus the squared error, at most 1."""
    problem = dpgibo_problems.length_scales(seed, **sizes)
    low, high = problem.bounds[0, 0].item(), problem.bounds[1, 0].item()
    space = Space(
        **{f"length_{i}": uniform(low, high - low) for i in range(problem.bounds.shape[1])}
    )

    loss: Any = problem.loss
    public = torch.cat([loss.keywords["train"], loss.keywords["targets"].unsqueeze(1)], 1)

    def score(model: tuple[torch.Tensor, torch.Tensor], records: torch.Tensor) -> torch.Tensor:
        lengths, known = model
        return -loss(lengths, records, train=known[:, :-1], targets=known[:, -1])

    fit = lambda u, public: (low + (high - low) * u, public)  # noqa: E731
    return Problem(space, problem.records, public, fit, score, (-1.0, 0.0), smooth=True)


def _synthetic() -> tuple[Any, Any]:
    X, y = make_classification(1500, 10, random_state=0)
    X[:, 8:] = np.digitize(X[:, 8:], [-1.0, 0.0, 1.0])
    return X, y


class Found(NamedTuple):
    """A recommended point (`d`) and seconds outside the objective."""

    x: torch.Tensor
    seconds: float


def observed(problem: Problem, mu: float, evaluations: int) -> PrivateObjective | CrossValidated:
    """The private objective; without noise where mu is infinite, and from public records alone
    where it is 0.
    """
    if mu == 0:
        return CrossValidated(problem, evaluations)
    curator = Curator(
        problem.records,
        unit=PrivacyUnit("record"),
        adjacency=Adjacency.REPLACE_ONE,
        budget=Budget.gdp(min(mu, 1e6)),
    )
    law = NoNoise(allow_not_private=True) if math.isinf(mu) else None
    terms: dict[str, Any] = {
        "score_range": problem.score_range,
        "fit": problem.model,
        "mechanism": law,
    }
    return PrivateObjective(curator, problem.score, evaluations=evaluations, **terms)


def searched(
    problem: Problem,
    mu: float,
    evaluations: int,
    seed: int,
    propose: Callable[..., torch.Tensor] | None,
    model: Any = default_gp,
) -> Found:
    """Sobol points, then wherever `propose` looks; without one, Sobol points alone."""
    objective, space = observed(problem, mu, evaluations), problem.space
    X = space.sample(evaluations if propose is None else INITIAL, seed=seed)
    Y, Yvar = objective(X)
    seconds = 0.0
    while propose is not None and objective.remaining:
        start = time.perf_counter()
        x = propose(space, X, Y, Yvar, seed=1000 * seed + len(X))
        seconds += time.perf_counter() - start
        y, yvar = objective(x)
        X, Y, Yvar = torch.cat([X, x]), torch.cat([Y, y]), torch.cat([Yvar, yvar])
    return Found(X[posterior_mean(space, X, Y, Yvar, model=model).argmax()], seconds)


def descended(problem: Problem, mu: float, evaluations: int, seed: int) -> Found:
    """DP-GIBO with its defaults: d + 1 fits a step."""
    d = len(problem.space.names)
    terms: dict[str, Any] = {
        "iterations": evaluations // (d + 1),
        "batch_size": d + 1,
        "clip": 1.0,
        "budget": 1.0,
        "settings": GIBOSettings(seed=seed),
    }
    curator = Curator(
        problem.records,
        unit=PrivacyUnit("record"),
        adjacency=Adjacency.REPLACE_ONE,
        budget=Budget.gdp(mu),
    )
    loss = lambda x, records: -problem.score(problem.model(x), records)  # noqa: E731
    start = time.perf_counter()
    result = DPGIBO(curator, loss, bounds=problem.space.bounds, **terms).run()
    return Found(result.x, time.perf_counter() - start)


def arms(
    problem: Problem, mu: float, evaluations: int, seed: int
) -> dict[str, Callable[[], Found]]:
    """What is compared on one problem."""
    search = functools.partial(searched, problem, mu, evaluations, seed)
    found: dict[str, Callable[[], Found]] = {
        "Sobol": functools.partial(search, None),
        "qLogNEI": functools.partial(search, suggest),
        "TuRBO": functools.partial(
            search, functools.partial(suggest_in_trust_region, initial=INITIAL)
        ),
        FREE: functools.partial(searched, problem, 0.0, evaluations, seed, suggest),
        OPEN: functools.partial(searched, problem, math.inf, evaluations, seed, suggest),
    }
    if not problem.space.cat_dims:
        found["SAAS"] = functools.partial(
            search, functools.partial(suggest, model=sparse_gp), sparse_gp
        )
    if problem.smooth:
        found["DP-GIBO"] = functools.partial(descended, problem, mu, evaluations, seed)
    return found


def compared(
    problem: Problem, mu: float, evaluations: int, seed: int
) -> dict[str, dict[str, float]]:
    """Loss and seconds by strategy, on one seed."""
    found = {name: arm() for name, arm in arms(problem, mu, evaluations, seed).items()}
    values = {name: problem.value(result.x) for name, result in found.items()}
    lower, upper = problem.score_range
    scale = 100 / (upper - lower)
    return {
        name: {
            "loss": scale * (max(values.values()) - values[name]),
            "seconds": found[name].seconds,
        }
        for name in found
    }


def fronts(problem: Problem, mu: float, evaluations: int, seed: int) -> dict[str, float]:
    """Volume of (accuracy, -size) that the recommended front dominates, by strategy."""
    reference = (0.5, -1.0)
    volume, found = Hypervolume(torch.tensor(reference, dtype=torch.float64)), {}
    for name, level in (
        ("Sobol", mu),
        ("qLogNEHVI", mu),
        (FREE, 0.0),
        ("open qLogNEHVI", math.inf),
    ):
        objective, space = observed(problem, level, evaluations), problem.space
        X = space.sample(evaluations if name == "Sobol" else INITIAL, seed=seed)
        Y, Yvar = objective(X)
        while objective.remaining:
            x = suggest_pareto(
                space,
                X,
                Y,
                Yvar,
                _sizes(problem, X),
                reference=reference,
                seed=1000 * seed + len(X),
            )
            y, yvar = objective(x)
            X, Y, Yvar = torch.cat([X, x]), torch.cat([Y, y]), torch.cat([Yvar, yvar])
        kept = X[pareto_front(space, X, Y, Yvar, _sizes(problem, X))]
        true = torch.cat(
            [
                torch.tensor([[problem.value(x)] for x in kept], dtype=torch.float64),
                _sizes(problem, kept),
            ],
            1,
        )
        found[name] = float(volume.compute(true[is_non_dominated(true)]))
    return found


def _sizes(problem: Problem, X: torch.Tensor) -> torch.Tensor:
    assert problem.size is not None
    return torch.tensor([[-problem.size(x)] for x in X], dtype=torch.float64)


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments, seeds=8, mu=1.0)
    warnings.simplefilter("ignore", NoiseWarning)
    seeds = range(chosen.seed, chosen.seed + (1 if chosen.smoke else chosen.seeds))
    data = None if chosen.smoke else adult()
    digits = functools.partial(digits_svm, small=chosen.smoke)
    makers: dict[str, tuple[Callable[[int], Problem], int]] = {
        # of which the last table sees enough
        **({} if chosen.smoke else {"SVM on digits": (digits, 40)}),
        "logistic regression on " + ("Adult" if data else "synthetic records"): (
            lambda seed: adult_logistic(seed, data),
            40,
        ),
        "ten length-scales": (lambda seed: length_scales(seed, **TINY if chosen.smoke else {}), 66),
    }
    figures: dict[str, Any] = {}
    for title, (make, evaluations) in makers.items():
        runs = []
        for seed in with_bar(seeds):
            runs.append(
                compared(make(seed), chosen.mu, INITIAL + 1 if chosen.smoke else evaluations, seed)
            )
            print(
                json.dumps(
                    {
                        title: {name: round(r["loss"], 3) for name, r in runs[-1].items()},
                        "seed": seed,
                    }
                ),
                flush=True,
            )
        losses = {name: [run[name]["loss"] for run in runs] for name in runs[0]}
        rows = [
            [
                name,
                sum(v) / len(v),
                *band(v),
                str(difference(v, losses["qLogNEI"])),
                sum(r[name]["seconds"] for r in runs) / len(runs),
            ]
            for name, v in losses.items()
        ]
        print(
            table(
                (
                    title,
                    "mean loss",
                    "10 %",
                    "median",
                    "90 %",
                    "minus qLogNEI's",
                    "seconds proposing",
                ),
                rows,
            ),
            flush=True,
        )
        figures[title] = {
            "evaluations": evaluations,
            "losses": losses,
            "seconds": {n: [r[n]["seconds"] for r in runs] for n in losses},
        }
        if chosen.plot:
            picture(
                chosen.plot,
                "strategies_" + "_".join(title.split()),
                f"{title}: loss in points at mu = {chosen.mu:g}",
                losses,
            )
    volumes = [
        fronts(digits(seed), chosen.mu, INITIAL + 1 if chosen.smoke else 30, seed) for seed in seeds
    ]
    figures["two objectives"] = {name: [v[name] for v in volumes] for name in volumes[0]}
    rows = [[name, sum(v) / len(v), *band(v)] for name, v in figures["two objectives"].items()]
    print(
        table(
            (
                "digits, accuracy against size: volume of the front",
                "mean",
                "10 %",
                "median",
                "90 %",
            ),
            rows,
        )
    )
    record("strategies", {"mu": chosen.mu, "problems": figures}, chosen)


if __name__ == "__main__":
    main()
