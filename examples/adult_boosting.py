"""Four mixed hyper-parameters of a gradient-boosting model on Adult: trained on people without a
degree, tuned for protected graduates. Adult is UCI data set 2, as one table with a header, also of
`income` and `split`: adult/adult.csv.gz in the folder DPBO_DATA names.
"""

import os
import pathlib
from typing import Any

import pandas as pd
from scipy.stats import loguniform, randint
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OrdinalEncoder

from dpbo import Budget, DPSearch, Privacy

SPACE = {
    "trees__learning_rate": loguniform(1e-2, 1.0),
    "trees__max_leaf_nodes": randint(3, 64),
    "trees__class_weight": [{False: 1.0, True: weight} for weight in (0.25, 0.5, 1.0, 2.0, 4.0)],
    "trees__interaction_cst": [None, "no_interactions"],
}


# the first rows, so many, are public
def tuned(X: pd.DataFrame, y: Any, public: int, evaluations: int = 24) -> DPSearch:
    words = [*X.select_dtypes(exclude="number")]
    codes = make_column_transformer(
        (OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), words),
        remainder="passthrough",
    )
    trees = HistGradientBoostingClassifier(
        categorical_features=range(len(words)), max_iter=50, early_stopping=False, random_state=0
    )
    model, budget = Pipeline([("codes", codes), ("trees", trees)]), Budget(1.0, 1e-6)
    search = DPSearch(
        model, SPACE, budget=budget, n_iter=evaluations, privacy=Privacy(unit="applicant")
    )
    return search.fit(X[:public], y[:public], X[public:], y[public:])


if __name__ == "__main__":
    table = pd.read_csv(
        pathlib.Path(os.environ.get("DPBO_DATA", "$DPBO_DATA")) / "adult" / "adult.csv.gz"
    ).sample(frac=1, random_state=0)
    table = pd.concat(
        [table[table["education_num"] < 13][:2_000], table[table["education_num"] >= 13]]
    )
    X, y = (
        table.drop(columns=["income", "split"]).fillna("?"),
        table["income"].str.contains(">50K").to_numpy(),
    )
    # the rest is public, too, and judges the result and the free choice
    search = tuned(X[:5_000], y[:5_000], public=2_000)
    free = search.estimator.set_params(**search.free_params_).fit(X[:2_000], y[:2_000])
    print(
        search.recommendation_,
        *(m.score(X[5_000:], y[5_000:]) for m in (search, free)),
        search.statement(),
        sep="\n",
    )
