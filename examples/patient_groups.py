"""Visits of patients: everything of one patient is protected together, however often he came. It
shows the mechanics. Protected patients are like the public ones here, so cross-validating on those
would be free and as good.
"""

from typing import Any

import numpy as np
from scipy.stats import loguniform
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpbo import Budget, DPSearch, Privacy

SPACE = {
    "logisticregression__C": loguniform(1e-4, 1e2),
    "logisticregression__class_weight": [None, "balanced"],
}


def visits(patients: int = 1500, seed: int = 0) -> tuple[np.ndarray[Any, Any], ...]:
    """One to eight noisy measurements of each tumour, their diagnoses, and whose they are."""
    draw, (X, y) = np.random.default_rng(seed), load_breast_cancer(return_X_y=True)
    patient = np.repeat(np.arange(patients), draw.integers(1, 9, patients))
    return (
        X[patient % len(X)] + X.std(0) * draw.normal(size=(len(patient), X.shape[1])),
        y[patient % len(y)],
        patient,
    )


def tuned(public_patients: int = 200, evaluations: int = 25) -> DPSearch:
    X, y, patient = visits()
    public = patient < public_patients
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    search = DPSearch(
        model,
        SPACE,
        budget=Budget(epsilon=3.0, delta=1e-6),
        n_iter=evaluations,
        privacy=Privacy(unit="patient"),
        strategy="choice",
    )
    return search.fit(
        X[public],
        y[public],
        X[~public],
        y[~public],
        groups=patient[~public],
        groups_train=patient[public],
    )


if __name__ == "__main__":
    search = tuned()
    print(search.recommendation_)
    (X, y, patient), models = (
        visits(),
        (search.estimator.set_params(**search.free_params_), search.best_estimator_),
    )
    free, ours = (
        m.fit(X[patient < 200], y[patient < 200]).score(X[patient >= 200], y[patient >= 200])
        for m in models
    )
    print(
        f"true accuracy {ours:.3f}; of the free choice, cross-validated on the public patients,"
        f" {free:.3f}"
    )
    print(search.statement())
