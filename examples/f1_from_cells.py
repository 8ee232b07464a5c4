"""Several metrics at once: release the cells of a confusion matrix jointly and optimise F1 over a
GP of the cells.

F1 is no mean of per-record scores, so it has no useful sensitivity of its own. Its cells are: each
record adds 1 to one of three cells (true positive, false positive, false negative). They are
released as one vector with the noise of one release, a GP models the cells, and BoTorch's
GenericMCObjective turns posterior samples of the cells into samples of F1. It shows the mechanics.
The protected records are like the public ones here, so cross-validating on those is free and about
as good.

    python -m examples.f1_from_cells
"""

import functools
import warnings
from typing import Any

import numpy as np
import scipy.stats
import torch
from botorch.acquisition import GenericMCObjective, qLogNoisyExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from botorch.optim import optimize_acqf
from gpytorch.mlls import SumMarginalLogLikelihood
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold

from dpbo import Adjacency, Budget, Curator, PrivacyUnit, PrivateObjective, Space

Records = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
SPACE = Space(C=scipy.stats.loguniform(1e-4, 1e2), threshold=scipy.stats.uniform(0.05, 0.9))


def data(seed: int = 0) -> tuple[Records, Records]:
    """An unbalanced problem: 1,000 public training records, 4,000 protected validation records, one
    in ten positive.
    """
    X, y = make_classification(
        5000, 20, n_informative=6, weights=[0.9], flip_y=0.02, class_sep=0.8, random_state=seed
    )
    return (X[:1000], y[:1000]), (X[1000:], y[1000:])


def fit(train: Records, x: torch.Tensor) -> tuple[LogisticRegression, float]:
    """A classifier and its decision threshold, from training records alone."""
    parameters = SPACE.decode(x)
    return LogisticRegression(C=parameters["C"], max_iter=500).fit(*train), parameters["threshold"]


def cells(model: tuple[LogisticRegression, float], records: Records) -> np.ndarray[Any, Any]:
    """`n x 3`: whether each record is a true positive, a false positive, a false negative."""
    classifier, threshold = model
    positive, truth = classifier.predict_proba(records[0])[:, 1] > threshold, records[1] == 1
    return np.stack([positive & truth, positive & ~truth, ~positive & truth], 1)


def f1(cells: torch.Tensor, X: torch.Tensor | None = None) -> torch.Tensor:  # noqa: ARG001
    """F1 of mean cells (`... x 3`), which noise may push below zero."""
    true, false, missed = cells.clamp_min(1e-6).unbind(-1)
    return 2 * true / (2 * true + false + missed)


def model_of(X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor) -> ModelListGP:
    """One GP a cell."""
    gps = [SingleTaskGP(X, Y[:, [j]], train_Yvar=Yvar[:, [j]]) for j in range(Y.shape[1])]
    model = ModelListGP(*gps)
    fit_gpytorch_mll(SumMarginalLogLikelihood(model.likelihood, model))
    return model


def tune(evaluations: int = 20, seed: int = 0) -> tuple[float, float, Curator]:
    """Private search for the best F1. Returns the true F1 of the recommendation and of a plain 0.5
    threshold, for the reader alone.
    """
    train, validation = data(seed)
    curator = Curator(
        validation,
        unit=PrivacyUnit("record"),
        adjacency=Adjacency.REPLACE_ONE,
        budget=Budget(epsilon=3.0, delta=1e-6),
    )
    objective = PrivateObjective(
        curator,
        cells,
        fit=functools.partial(fit, train),
        score_range=[(0.0, 1.0)] * 3,
        evaluations=evaluations,
        name="cells",
    )
    X = SPACE.sample(8, seed=seed)
    Y, Yvar = objective(X)
    while objective.remaining:
        acquisition = qLogNoisyExpectedImprovement(
            model_of(X, Y, Yvar), X, objective=GenericMCObjective(f1), prune_baseline=True
        )
        with warnings.catch_warnings():
            # a stalled line search, which BoTorch tries again
            warnings.simplefilter("ignore", RuntimeWarning)
            x, _ = optimize_acqf(
                acquisition,
                SPACE.bounds,
                q=1,
                num_restarts=4,
                raw_samples=64,
                options={"maxiter": 50, "seed": seed},
            )
        y, yvar = objective(x)
        X, Y, Yvar = torch.cat([X, x]), torch.cat([Y, y]), torch.cat([Yvar, yvar])
    best = X[f1(model_of(X, Y, Yvar).posterior(X).mean.detach()).argmax()]
    plain = SPACE.encode({"C": 1.0, "threshold": 0.5})
    tuned, usual = (
        f1(torch.from_numpy(cells(fit(train, x), validation).mean(0))).item() for x in (best, plain)
    )
    return tuned, usual, curator


def free_choice(evaluations: int = 20, seed: int = 0) -> float:
    """The true F1 of the best of so many Sobol points by cross-validated F1 on the training
    records, which costs no privacy.
    """
    (X, y), validation = data(seed)
    folds = [((X[a], y[a]), (X[b], y[b])) for a, b in KFold(5).split(X)]

    def cross_validated(x: torch.Tensor) -> float:
        return f1(
            torch.from_numpy(
                np.concatenate([cells(fit(rest, x), held) for rest, held in folds]).mean(0)
            )
        ).item()

    best = max(SPACE.sample(evaluations, seed=seed), key=cross_validated)
    return f1(torch.from_numpy(cells(fit((X, y), best), validation).mean(0))).item()


if __name__ == "__main__":
    tuned, usual, curator = tune()
    print(
        f"F1 {tuned:.3f} at the recommended point, {usual:.3f} at C = 1 and threshold 0.5 (true"
        " values, shown for the example)"
    )
    print(f"F1 {free_choice():.3f} at the free choice, cross-validated on the public records")
    print(curator.statement().voided("this example printed true values"))
