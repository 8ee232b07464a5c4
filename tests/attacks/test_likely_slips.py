"""What honest people write in a hurry, each as they would write it: `slip` says what dpbo does."""

import pytest
import torch
from sklearn.datasets import make_classification
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC

from dpbo import Budget, Curator, PrivateObjective, Space
from dpbo.errors import InputError
from tests.attacks.marks import attack, slip

EACH = {"unit": "record", "adjacency": "replace-one", "budget": Budget(3.0, 1e-6)}
SPACE = Space(C=[0.1, 1.0, 10.0])


def right(model, records):
    return model.predict(records[0]) == records[1]


def people(seed, rows=2_000):
    """Records that no other test has."""
    return make_classification(rows, 6, random_state=9_000 + seed)


@slip(
    "`fit=` of a PrivateObjective trains on the table that holds the protected rows",
    "refused: the tables that its code names are compared with the protected rows",
)
@attack("A35")
def test_training_on_the_whole_table_is_refused():
    """The split is made, and `fit` takes the table from before it."""
    X, y = people(1)
    X_train, X_val, y_train, y_val = train_test_split(X, y, random_state=0)
    curator = Curator((X_val, y_val), **EACH)

    def objective(fit, name="objective"):
        return PrivateObjective(
            curator, right, score_range=(0, 1), evaluations=2, fit=fit, budget=0.5, name=name
        )

    def train(x, rows=X, labels=y):
        return SVC(**SPACE.decode(x)).fit(rows, labels)

    model = type("Model", (), {"table": (X, y), "__call__": lambda self, x: None})()
    model.rows = torch.from_numpy(X)
    whole = [lambda x: SVC(**SPACE.decode(x)).fit(X, y), lambda x: train(x), train, model]
    for fit in whole:
        with pytest.raises(InputError, match="Split the table first") as caught:
            objective(fit)
        assert caught.value.parameter == "fit"
    with pytest.raises(InputError, match=r"^score.*'X_val' has some"):
        PrivateObjective(
            curator, lambda x, records: X_val.mean(0), score_range=(0, 1), evaluations=2
        )
    assert not curator.ledger.used()
    public = objective(lambda x: SVC(**SPACE.decode(x)).fit(X_train, y_train))
    assert public.remaining == 2
