"""An Optuna study on private validation records: what it may spend is settled before, and its
storage holds released numbers alone. It shows the mechanics. The private digits are like the public
ones here, so cross-validating on those is free and about as good. python -m examples.optuna_study
"""

import optuna
import scipy.stats
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from sklearn.svm import SVC

from dpbo import Budget, Curator, PrivateObjective, Space
from dpbo.integrations.optuna import NoiseAwareSampler, TrialObjective, recommended_trial

SPACE = Space(C=scipy.stats.loguniform(1e-2, 1e3), gamma=scipy.stats.loguniform(1e-5, 1e0))


def tune(evaluations: int = 20) -> tuple[optuna.Study, float, Curator]:
    """The study, the released accuracy of its recommendation, and the curator."""
    X, y = load_digits(return_X_y=True)
    curator = Curator(
        (X[300:], y[300:]),
        unit="record",
        adjacency="replace-one",
        budget=Budget(epsilon=3.0, delta=1e-6),
    )

    def objective(name: str, evaluations: int, share: float) -> PrivateObjective:
        fit, score = (
            (lambda x: SVC(**SPACE.decode(x)).fit(X[:300], y[:300])),
            (lambda m, r: m.predict(r[0]) == r[1]),
        )
        return PrivateObjective(
            curator,
            score,
            fit=fit,
            score_range=(0, 1),
            evaluations=evaluations,
            name=name,
            budget=share,
        )

    study = optuna.create_study(
        direction="maximize", pruner=optuna.pruners.NopPruner(), sampler=NoiseAwareSampler(SPACE)
    )
    study.optimize(TrialObjective(objective("search", evaluations, 0.9), SPACE))  # stops by itself
    accuracy, _ = objective("final", 1, 0.1)(recommended_trial(study, SPACE).x.unsqueeze(0))
    return study, float(accuracy), curator


if __name__ == "__main__":
    study, accuracy, curator = tune()
    print(recommended_trial(study, SPACE).params, f"accuracy {accuracy:.3f}, released separately")
    (X, y), models = (
        load_digits(return_X_y=True),
        [SVC(**SPACE.decode(x)) for x in SPACE.sample(20, seed=0)],
    )
    free = max(models, key=lambda model: cross_val_score(model, X[:300], y[:300]).mean())
    print(
        f"free choice, cross-validated on public records: {free}, accuracy"
        f" {free.fit(X[:300], y[:300]).score(X[300:], y[300:]):.3f}"
    )
    print("\n".join(str(curator.statement()).splitlines()[:4]))
