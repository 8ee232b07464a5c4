"""What `benchmarks.strategies` searches: a space, a fit on public records, a score of protected ones, and the truth."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import loguniform, randint, uniform
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder

from benchmarks import dpgibo_problems
from benchmarks.dpsearch import adult
from dpbo import Space, demo
from dpbo.queries.scoring import tensor_of

TRAIN, PROTECTED = 2_000, 5_000


@dataclass(frozen=True, eq=False)
class Problem:
    """A score, maximised.

    Attributes:
        score: `score(model, records)`, one number a record; fit: `fit(x) -> model`, on public records.
        size: of the model at x, in [0, 1], public, where it is asked for.
        smooth: whether the score is smooth in x.
    """

    space: Space
    records: Any
    fit: Callable[[torch.Tensor], Any]
    score: Callable[[Any, Any], Any]
    score_range: tuple[float, float] = (0.0, 1.0)
    size: Callable[[torch.Tensor], float] | None = None
    smooth: bool = False

    def value(self, x: torch.Tensor) -> float:
        """The true mean score."""
        return float(tensor_of(self.score(self.fit(x), self.records)).double().mean())


def digits_svm(seed: int) -> Problem:
    """The main job's; its size is the share of training records that are support vectors."""
    digits = demo.split(seed)

    def size(x: torch.Tensor) -> float:
        return float(demo.fit(digits.train, x)[-1].n_support_.sum()) / len(digits.train[1])

    return Problem(demo.SPACE, digits.validation, lambda x: demo.fit(digits.train, x), demo.correct, size=size)


def adult_logistic(seed: int, *, open_data: bool) -> Problem:
    """Four mixed hyper-parameters; synthetic records where there is no data."""
    (X, y), categorical = adult(os.environ["DPBO_DATA"]) if open_data else (_synthetic(), [False] * 8 + [True] * 2)
    train, protected = (TRAIN, PROTECTED) if open_data else (300, 700)
    order = np.random.default_rng(seed).permutation(len(y))
    rows, kept = order[:train], order[train : train + protected]
    numbers, words = np.flatnonzero(~np.array(categorical)), np.flatnonzero(categorical)
    space = Space(
        C=loguniform(1e-4, 1e2), class_weight=[None, "balanced"], bins=randint(2, 33), rarest=loguniform(1e-4, 0.3),
    )  # fmt: skip

    def fit(x: torch.Tensor) -> Any:
        chosen = space.decode(x)
        binned = KBinsDiscretizer(chosen["bins"], strategy="uniform", encode="onehot")
        coded = OneHotEncoder(min_frequency=chosen["rarest"], handle_unknown="infrequent_if_exist")
        model = LogisticRegression(C=chosen["C"], class_weight=chosen["class_weight"], max_iter=200)
        return make_pipeline(make_column_transformer((binned, numbers), (coded, words)), model).fit(X[rows], y[rows])

    return Problem(space, (X[kept], y[kept]), fit, lambda model, records: model.predict(records[0]) == records[1])


def length_scales(seed: int, *, small: bool) -> Problem:
    """Experiment 4.3 of DP-GIBO's paper: minus the squared error, at most 1."""
    problem = dpgibo_problems.length_scales(seed, **({"n": 300} if small else {}))
    low, high = problem.bounds[0, 0].item(), problem.bounds[1, 0].item()
    space = Space(**{f"length_{i}": uniform(low, high - low) for i in range(problem.bounds.shape[1])})

    def score(lengths: torch.Tensor, records: torch.Tensor) -> torch.Tensor:
        return -problem.loss(lengths, records)

    return Problem(space, problem.records, lambda u: low + (high - low) * u, score, (-1.0, 0.0), smooth=True)


def _synthetic() -> tuple[Any, Any]:
    X, y = make_classification(1500, 10, random_state=0)
    X[:, 8:] = np.digitize(X[:, 8:], [-1.0, 0.0, 1.0])
    return X, y
