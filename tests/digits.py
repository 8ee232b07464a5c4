"""Tuning a kernel SVM on the digits of scikit-learn by the usual BoTorch loop on a private
objective.

300 digits are for training, 750 are private validation records, the other 747 are for testing.
Features are the pixels and their products, standardised. The training records are drawn like the
private ones, so cross-validation on them, which is free, is as good.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import scipy.stats
import torch
from sklearn.datasets import load_digits
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.svm import SVC

from dpbo.acquisition import suggest
from dpbo.acquisition.expected_improvement import posterior_mean
from dpbo.curator.curator import Curator
from dpbo.objective import PrivateObjective
from dpbo.privacy import Adjacency, Budget, PrivacyUnit
from dpbo.space import Space
from dpbo.validation import at_least, require

TRAIN = 300
VALIDATION = 750
INITIAL = 8
SEARCH_SHARE = 0.9
FINAL_SHARE = 0.1
SPACE = Space(C=scipy.stats.loguniform(1e-2, 1e3), gamma=scipy.stats.loguniform(1e-5, 1e1))

Records = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
Objective = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class Digits(NamedTuple):
    """A split of the digits: public training records, private validation records, public test
    records.
    """

    train: Records
    validation: Records
    test: Records


def split(seed: int) -> Digits:
    """A random split of the digits. The features are a fixed function of the pixels."""
    data = load_digits()
    features = PolynomialFeatures(2, include_bias=False).fit_transform(data.data / 16)
    labels = data.target
    require("seed", seed, Annotated[int, at_least(0, 10**6)])
    order = np.random.default_rng(seed).permutation(len(labels))
    parts = np.split(order, [TRAIN, TRAIN + VALIDATION])
    return Digits(*((features[part], labels[part]) for part in parts))


def fit(train: Records, x: torch.Tensor) -> Pipeline:
    """The model with the parameters of x (`d`), fitted to training records only."""
    return make_pipeline(StandardScaler(), SVC(**SPACE.decode(x))).fit(*train)


def correct(model: Pipeline, records: Records) -> np.ndarray[Any, Any]:
    """The score: for each record, whether the model classifies it correctly."""
    return model.predict(records[0]) == records[1]


def search(
    objective: Objective,
    evaluations: int,
    seed: int,
    *,
    initial: int = INITIAL,
    history: tuple[torch.Tensor, ...] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The usual BoTorch loop: `initial` Sobol points, then qLogNEI, until there are so many
    evaluations, those of `history` included.
    """
    design = SPACE.sample(initial, seed=seed)
    X, Y, Yvar = (
        history
        if history and len(history[0])
        else (design[:0], torch.zeros(0, 1).double(), torch.zeros(0, 1).double())
    )
    while len(X) < evaluations:
        x = (
            design[len(X) : len(X) + 1]
            if len(X) < initial
            else suggest(SPACE, X, Y, Yvar, seed=1000 * seed + len(X))
        )
        y, yvar = objective(x)
        X = torch.cat([X, x])
        Y = torch.cat([Y, y])
        Yvar = torch.cat([Yvar, yvar])
    return X, Y, Yvar


def recommend(X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor) -> torch.Tensor:
    """The evaluated point (`d`) with the highest posterior mean. The highest noisy value would
    often be high by chance.
    """
    return X[posterior_mean(SPACE, X, Y, Yvar).argmax()]


@dataclass(frozen=True)
class Outcome:
    """The recommended point (`d`), its released validation accuracy (None if it was lost), and the
    X, Y, Yvar of the search.
    """

    x: torch.Tensor
    estimate: float | None
    standard_error: float
    history: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    curator: Curator


def tune_privately(
    digits: Digits,
    budget: Budget,
    *,
    evaluations: int,
    seed: int,
    initial: int = INITIAL,
    ledger: str | None = None,
) -> Outcome:
    """Search with 90 % of the budget, then release the recommended point's score with the other 10
    %.

    The first `initial` points are Sobol points. With a ledger the search resumes where an earlier
    run stopped. A release that was charged but never delivered is lost.
    """
    curator = Curator(
        digits.validation,
        unit=PrivacyUnit("record"),
        adjacency=Adjacency.REPLACE_ONE,
        budget=budget,
        dataset=f"scikit-learn digits, split {seed}" if ledger else None,
        ledger=ledger,
    )
    plan: dict[str, Any] = {"score_range": (0.0, 1.0), "fit": functools.partial(fit, digits.train)}
    objective = PrivateObjective(
        curator, correct, evaluations=evaluations, name="search", budget=SEARCH_SHARE, **plan
    )
    final = PrivateObjective(
        curator, correct, evaluations=1, name="recommended", budget=FINAL_SHARE, **plan
    )

    history = objective.history()
    X, Y, Yvar = search(
        objective, len(history[0]) + objective.remaining, seed, initial=initial, history=history
    )
    if final.remaining:
        final(recommend(X, Y, Yvar).unsqueeze(0))
    x, estimate, _ = final.history()
    best = x[0] if len(x) else recommend(X, Y, Yvar)
    value = min(max(estimate.item(), 0.0), 1.0) if len(x) else None
    return Outcome(best, value, final.noise_std.item(), (X, Y, Yvar), curator)
