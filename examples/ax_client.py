"""An Ax experiment on private validation records: nothing is proposed that cannot be paid for. It
shows the mechanics. The private records are like the public ones here, so cross-validating on those
would be free and as good.

python -m examples.ax_client
"""

import scipy.stats
from ax.api.client import Client
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpbo import Budget, Curator, PrivateObjective, Space
from dpbo.integrations.ax import ClientObjective

SPACE = Space(C=scipy.stats.loguniform(1e-4, 1e2), l1_ratio=scipy.stats.uniform(0, 1))


def tune(evaluations: int = 12) -> tuple[ClientObjective, Curator]:
    """The experiment, when its plan is used up, and the curator."""
    X, y = load_breast_cancer(return_X_y=True)
    curator = Curator(
        (X[169:], y[169:]),
        unit="record",
        adjacency="replace-one",
        budget=Budget(epsilon=8.0, delta=1e-6),
    )

    def fit(x):  # type: ignore[no-untyped-def]
        model = LogisticRegression(solver="saga", max_iter=5000, tol=1e-3, **SPACE.decode(x))
        return make_pipeline(StandardScaler(), model).fit(X[:169], y[:169])

    objective = PrivateObjective(
        curator,
        lambda m, r: m.predict(r[0]) == r[1],
        score_range=(0, 1),
        evaluations=evaluations,
        fit=fit,
    )
    loop = ClientObjective(objective, SPACE, Client(random_seed=0))
    while trials := loop.ask():
        for index, x in trials.items():
            loop.tell(index, objective.evaluate(x))
    return loop, curator


if __name__ == "__main__":
    loop, curator = tune()
    print(loop.recommended(), *str(curator.statement()).splitlines()[:4], sep="\n")
