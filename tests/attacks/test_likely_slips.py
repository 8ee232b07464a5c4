"""What honest people write in a hurry, each as they would write it: `slip` says what dpbo does."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import make_classification
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from dpbo import Budget, Curator, DPSearch, PrivacyUnit, PrivateObjective, Space
from dpbo.errors import InputError, UsageError
from tests.attacks.marks import attack, slip

EACH: dict[str, Any] = {"unit": "record", "adjacency": "replace-one", "budget": Budget(3.0, 1e-6)}
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


def search(**changed):
    tree = DecisionTreeClassifier(random_state=0)
    given = {"budget": EACH["budget"], "n_iter": 2, "strategy": "bo", **changed}
    return DPSearch(tree, {"max_depth": [1, 2, 3]}, **given)


@slip(
    "`groups=`, `y_val` or `y_train` is a Series in another order than the table",
    "refused: the index of labels must be that of the table",
)
@attack("A20")
def test_labels_with_another_index_are_refused():
    """One patient's ten rows counted as eight patients."""
    X, y = map(pd.DataFrame, people(2))
    X_val, y_val, patients = X[1000:], y[0][1000:], pd.Series(range(1000)) // 10
    patients.index = X_val.index
    shuffled = patients.sample(frac=1.0, random_state=0)
    given = {"X_train": X[:1000], "y_train": y[0][:1000], "X_val": X_val, "y_val": y_val}
    given |= {"groups": patients}
    slips = {
        "groups": shuffled,
        "y_val": y_val.reset_index(drop=True),
        "y_train": given["y_train"][::-1],
        "groups_train": pd.Series(range(5000, 6000), index=X_val.index),
    }
    for name, labels in slips.items():
        with pytest.raises(UsageError, match=f"the index of {name} is not that of X_"):
            search().fit(**given | {name: labels})
    with pytest.raises(UsageError, match="the index of groups is not that of the records"):
        Curator((X_val, y_val), **EACH | {"unit": PrivacyUnit("patient", groups=shuffled)})
    with pytest.raises(UsageError, match="the index of part 1 of the records is not that of"):
        Curator((X_val, y_val[::-1]), **EACH, example=(X[:5], y[0][:5]))
    Curator((X_val, y_val), **EACH, example=(X[:5], y[0][:5]))


@slip(
    "labels are 'yes' and 'no' in one table, 1 and 0 in the other",
    "refused before a charge, where no protected label is a class of training",
)
@attack("A5")
def test_labels_in_other_words_are_refused():
    """Every record counted as the worst, and the search ran to its end."""
    (X, y), (X_val, labels) = people(3), people(4)
    y_val: list[Any] = ["yes" if label else "no" for label in labels]
    with pytest.raises(UsageError, match="no record has the form of the public ones"):
        search().fit(X, y, X_val, np.array(y_val))
    y_val[0] = 1
    search().fit(X, y, X_val, np.array(y_val, dtype=object))
