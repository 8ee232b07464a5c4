"""What honest people write in a hurry, each as they would write it: `slip` says what dpbo does."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.datasets import make_classification
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from torch.utils.data import TensorDataset

from dpbo import Budget, Curator, DPSearch, Privacy, PrivacyUnit, PrivateObjective, Space
from dpbo.errors import InputError, UsageError
from dpbo.papers.em import DPKMeans
from dpbo.records.scaled_tables import ScaledRowsWarning, scaled_column
from tests.attacks.marks import attack, slip
from tests.setups import owner

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

    model = type("Model", (), {"__call__": lambda self, x: self.rows})()
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


class Centred(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A step of the caller's that centres by all records."""

    def fit(self, X, y=None):
        return self

    def transform(self, X):
        return X - EVERYBODY.mean(0)


EVERYBODY = pd.DataFrame(people(8)[0])


@pytest.mark.parametrize("kind", [lambda rows: rows, torch.from_numpy], ids=["array", "tensor"])
def test_a_whole_table_of_few_different_rows_is_known_by_its_memory(kind):
    """Rows that repeat cannot be told apart by their cells: a mean of the whole table passed."""
    whole = kind(np.random.default_rng(3).integers(0, 3, size=(600, 3)).astype(float))
    public = whole[:200]
    settings: dict[str, Any] = {"score_range": (0.0, 1.0), "evaluations": 2}

    def ask(fit):
        chance = lambda model, rows: rows[:, 0] / 2.0  # noqa: E731
        return PrivateObjective(owner(whole[200:]), chance, fit=fit, **settings)

    with pytest.raises(InputError, match=r"^fit=.*'whole' has some"):
        ask(lambda x: whole.mean(0))
    ask(lambda x: public.mean(0))
    ask(lambda x: whole[:200].mean(0))


@slip(
    "a function of a DPSearch's estimator, or its `scoring=`, uses the whole table",
    "refused, as `fit=` of a PrivateObjective is",
)
@attack("A35")
def test_a_search_whose_functions_use_the_whole_table_is_refused():
    """Means of all records were subtracted, and left in the fitted model."""
    X, y = EVERYBODY, people(8)[1]
    X_val = X[1000:].reset_index(drop=True)
    mean = X[:1000].mean()

    def centred(X):
        return (X - EVERYBODY.mean()) / EVERYBODY.std()

    def publicly(X):
        return (X - mean) / EVERYBODY[:1000].std()

    def score(model, X, y):
        return model.predict(X - EVERYBODY.mean()) == y

    def fit(records=(X_val, y[1000:]), step=publicly, **settings):
        step = FunctionTransformer(step) if callable(step) else step
        tree = make_pipeline(step, DecisionTreeClassifier(random_state=0))
        given: dict[str, Any] = {"budget": EACH["budget"] if records[0] is X_val else 0.5}
        given |= {"n_iter": 2, "strategy": "bo", "verbose": 0} | settings
        space = given.pop("space", {"decisiontreeclassifier__max_depth": [1, 2, 3]})
        DPSearch(tree, space, **given).fit(X[:1000], y[:1000], *records)

    several = {"functiontransformer__func": [publicly, centred]}
    slips: dict[str, list[dict[str, Any]]] = {
        "estimator": [{"step": centred}, {"step": Centred()}],
        "scoring": [{"scoring": score, "score_range": (0, 1)}],
        "param_distributions": [{"space": several}],
    }
    curator = Curator((X_val, y[1000:]), **EACH, example=(X[:5], y[:5]))
    for name, each in slips.items():
        for settings in each:
            for records in ((X_val, y[1000:]), (curator, None)):
                with pytest.raises(InputError, match="of code that names none of the") as caught:
                    fit(records, **settings)
                assert caught.value.parameter == name
    # That is about budgets.
    with pytest.raises(InputError, match="of code that names none of the"):
        fit(step=centred, privacy=Privacy(allow_repeated=True))
    assert not curator.ledger.used()
    fit((curator, None))


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


def planned(records, **settings):
    """An objective on these protected records."""
    own = Curator(records, **EACH, **settings)
    PrivateObjective(own, right, score_range=(0, 1), evaluations=2)
    return own.statement()


@slip(
    "a scaler is fitted to all rows before they become two tables, or to the protected table",
    "a warning where a column has mean 0 and deviation 1, or the ends 0 and 1",
)
@attack("A5", "A22")
@pytest.mark.parametrize("scaler", [StandardScaler(), MinMaxScaler()], ids=["standard", "min-max"])
def test_a_scaler_that_saw_protected_rows_is_warned_of(scaler):
    """Membership was told 12 times of 12 by what was trained beside them."""
    made = scaler.fit_transform
    warned = pytest.warns(
        ScaledRowsWarning, match=r"column .*Pipeline.*Tell only those who may see"
    )
    for seed, kind in enumerate([pd.DataFrame, np.float32]):
        X, y = people(10 + seed)
        X_train, X_val, y_train, y_val = train_test_split(kind(made(X)), y, random_state=0)
        with warned:
            search().fit(X_train, y_train, X_val, y_val)
    # rows at an end are protected: else a scaler of public rows would write the same
    X, y = people(17)
    X_train, X_val, *labels = train_test_split(torch.from_numpy(made(X)), y, random_state=0)
    with warned:
        planned((X_val, labels[1]), schema=(X_train, labels[0]))
    X, y = people(14)
    with warned:
        search(test_size=0.25).fit(made(X), y)
    with warned:
        DPKMeans(3, budget=EACH["budget"], radius=5.0, max_iter=2).fit(made(X))
    data = TensorDataset(torch.from_numpy(made(X)), torch.from_numpy(y))
    with warned:
        planned(data)
    X, y = people(16)
    with warned:
        statement = planned((made(X), y))
    assert "rows-stand-alone" in statement.assumptions
    assert "Pipeline" not in str(statement), "what was warned of depends on the records"


@pytest.mark.filterwarnings("error::dpbo.records.scaled_tables.ScaledRowsWarning")
def test_rows_that_stand_alone_are_not_warned_of():
    """A Pipeline, a scaler of public rows, two values, and whole numbers."""
    X, y = people(5)
    rng = np.random.default_rng(5)
    X = np.c_[X, rng.integers(0, 2, 2_000), rng.integers(-1, 2, 2_000), rng.integers(0, 9, 2_000)]
    X_train, X_val, y_train, y_val = train_test_split(X, y, random_state=0)
    tree = make_pipeline(StandardScaler(), DecisionTreeClassifier(random_state=0))
    found = DPSearch(
        tree,
        {"decisiontreeclassifier__max_depth": [1, 2, 3]},
        budget=EACH["budget"],
        n_iter=2,
        strategy="bo",
    ).fit(X_train, y_train, X_val, y_val)
    assert "rows-stand-alone" in found.statement().assumptions


def test_a_scaled_column_is_found_beside_missing_cells_and_by_its_name():
    X, _ = people(6)
    X[:, 1] = X[:, 1] * 1e3 + 2e4
    X[::7, 1] = np.nan
    scaled = pd.DataFrame(StandardScaler().fit_transform(X), columns=list("abcdef"))[["b"]]
    scaled.insert(0, "plain", X[:, 0])
    assert scaled_column([scaled[:500]], [scaled[500:][["b", "plain"]]]) == "b"
    by_n_less_one = (X - np.nanmean(X, 0)) / np.nanstd(X, 0, ddof=1)
    assert scaled_column([by_n_less_one[:, 1]], []) == 0


def test_pixels_and_ratios_are_no_scaled_columns_and_huge_cells_end_nothing():
    rng = np.random.default_rng(7)
    pixels = rng.integers(0, 17, (400, 3)) / 16
    shown = rng.integers(1, 5, 400)
    ratios = rng.binomial(shown, 0.4) / shown
    for public in ([], [pixels[:50]], [pixels]):
        assert scaled_column([pixels], public) is None
    assert scaled_column([ratios], []) is None
    for huge in (1e160, 1e300, np.finfo(float).max):
        assert scaled_column([np.r_[huge, ratios]], [ratios]) is None
