"""Four mixed hyper-parameters of a gradient-boosting model on Adult: the validation records must not leak.

Adult is UCI data set 2, as one table with a header, also of `income` and `split`: adult/adult.csv.gz in the folder DPBO_DATA names."""

import os
import pathlib
from typing import Any

import pandas as pd
from scipy.stats import loguniform, randint
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OrdinalEncoder

from dpbo import Budget, DPSearch

SPACE = {
    "trees__learning_rate": loguniform(1e-2, 1.0),
    "trees__max_leaf_nodes": randint(3, 64),
    "trees__max_iter": [25, 50, 100, 200],
    "trees__interaction_cst": [None, "no_interactions"],
}


def tuned(X: pd.DataFrame, y: Any, public: int, evaluations: int = 40) -> DPSearch:
    """The first rows, so many, are public, the others protected."""
    words = [*X.select_dtypes(exclude="number")]
    codes = make_column_transformer((OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), words), remainder="passthrough")
    trees = HistGradientBoostingClassifier(categorical_features=range(len(words)), early_stopping=False, random_state=0)
    search = DPSearch(Pipeline([("codes", codes), ("trees", trees)]), SPACE, budget=Budget(1.0, 1e-6), n_iter=evaluations, unit="applicant")
    return search.fit(X[:public], y[:public], X[public:], y[public:])


if __name__ == "__main__":
    table = pd.read_csv(pathlib.Path(os.environ.get("DPBO_DATA", "$DPBO_DATA")) / "adult" / "adult.csv.gz").sample(frac=1, random_state=0)
    X, y = table.drop(columns=["income", "split"]).fillna("?"), table["income"].str.contains(">50K").to_numpy()
    search = tuned(X[:20_000], y[:20_000], public=10_000)  # the rest is public, too, and judges the result
    print(search.best_params_, search.best_score_, search.score(X[20_000:], y[20_000:]), search.statement(), sep="\n")
