"""The demo: a model learned from public records of one population is tuned for protected records of
another.

A public survey covers people without a college degree. A bank uses it to train a model that tells
incomes above 50,000 dollars, for its own customers, who are graduates and protected.
Cross-validating on the survey costs no privacy, but it tunes the model for the wrong people.
`DPSearch` tunes it for the customers, by one or two private releases about them.

The records are those of `data/adult.csv.gz` (data/README.md has source and licence). As they are
public, the demo can also show what a real study could not: the choice by exact scores of the
protected records, and test accuracies.
"""

import argparse
import csv
import functools
import gzip
import importlib.resources
import json
import pathlib
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import loguniform
from sklearn.ensemble import HistGradientBoostingClassifier

from dpbo.extras import needs
from dpbo.privacy import Budget
from dpbo.search import DPSearch, Privacy
from dpbo.validation import at_least, named_file, require

TRAIN = 1500
PROTECTED = 1000
CANDIDATES = 24
SPACE = {
    "learning_rate": loguniform(0.01, 0.3),
    "max_leaf_nodes": [3, 5, 9, 16, 31, 63],
    "min_samples_leaf": [5, 10, 20, 50, 100],
    "class_weight": [{0: 1.0, 1: weight} for weight in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)],
}

Records = tuple[NDArray[np.float64], NDArray[np.int64]]


class Census(NamedTuple):
    """A split: public training records (no degree), protected ones and test records (graduates),
    and which features are categories.
    """

    train: Records
    protected: Records
    test: Records
    categorical: tuple[bool, ...]

    def __repr__(self) -> str:
        return f"Census(train={len(self.train[1])} records, protected={len(self.protected[1])})"

    def model(self) -> HistGradientBoostingClassifier:
        """The model that is tuned, with scikit-learn's defaults but for fewer trees."""
        return HistGradientBoostingClassifier(
            max_iter=40, early_stopping=False, categorical_features=self.categorical, random_state=0
        )

    def accuracy(self, parameters: Mapping[str, Any]) -> float:
        """Test accuracy of the model with these parameters, trained on the public records."""
        return float(self.model().set_params(**parameters).fit(*self.train).score(*self.test))


@functools.cache
def _table() -> tuple[NDArray[np.float64], NDArray[np.int64], tuple[bool, ...]]:
    """Features (categories as their places in the sorted list of them), labels, and which features
    are categories.
    """
    file = importlib.resources.files("dpbo") / "data" / "adult.csv.gz"
    rows = list(csv.DictReader(gzip.decompress(file.read_bytes()).decode().splitlines()))
    columns = []
    categorical = []
    for name in rows[0]:
        if name == "income":
            continue
        values = np.array([row[name] for row in rows])
        categorical.append(not all(value.isdigit() for value in values))
        columns.append(
            np.unique(values, return_inverse=True)[1]
            if categorical[-1]
            else values.astype(np.float64)
        )
    labels = np.array([row["income"] == ">50K" for row in rows]).astype(np.int64)
    return np.stack(columns, 1).astype(np.float64), labels, tuple(categorical)


def split(seed: int, protected: int = PROTECTED) -> Census:
    """A random split: `TRAIN` public records, so many protected ones, and the other graduates for
    testing.
    """
    require("seed", seed, Annotated[int, at_least(0, 10**6)])
    features, labels, categorical = _table()
    random = np.random.default_rng(seed)
    school = 3000
    train = random.permutation(school)[:TRAIN]
    ours, test = np.split(school + random.permutation(len(labels) - school), [protected])
    records = [(features[part], labels[part]) for part in (train, ours, test)]
    return Census(records[0], records[1], records[2], categorical)


def search(
    census: Census, budget: Budget, *, candidates: int, seed: int, **settings: Any
) -> DPSearch:
    """The private search, fitted."""
    terms = {"n_iter": candidates, "random_state": seed, **settings}
    return DPSearch(census.model(), SPACE, budget=budget, **terms).fit(
        *census.train, *census.protected
    )


def open_choice(census: Census, configurations: list[dict[str, Any]]) -> dict[str, Any]:
    """The configuration with the highest exact accuracy on the protected records: not private."""
    accuracies = [
        census.model().set_params(**one).fit(*census.train).score(*census.protected)
        for one in configurations
    ]
    return configurations[int(np.argmax(accuracies))]


def compare(census: Census, found: DPSearch) -> dict[str, float]:
    """Test accuracy of the default configuration, the free choice, the choice by exact protected
    scores, and the private one.
    """
    configurations = found.results_["params"]
    chosen = {
        "default": {},
        "free: cross-validated on the public records": found.free_params_,
        "tuned on the protected records, not private": open_choice(census, configurations),
        "tuned privately": found.best_params_,
    }
    return {name: census.accuracy(parameters) for name, parameters in chosen.items()}


def run(options: argparse.Namespace) -> None:
    """Run the demo with the options of the command line and print the result."""
    census = split(options.seed)
    budget = Budget(options.epsilon, options.delta)
    dataset = f"graduates of the Adult data set, split {options.seed}"
    privacy = Privacy(dataset=dataset, ledger=options.ledger) if options.ledger else Privacy()
    found = search(
        census, budget, candidates=options.candidates, seed=options.seed, privacy=privacy
    )
    accuracies = compare(census, found)
    statement = found.statement()
    print(
        f"{len(census.train[1])} public records of people without a degree,"
        f" {len(census.protected[1])} protected ones of graduates.\n"
    )
    print(f"{'test accuracy on graduates':46s}")
    for name, accuracy in accuracies.items():
        print(f"  {name:44s} {100 * accuracy:6.1f} %")
    print(f"\n{found.recommendation_}\n\nRehearsal on the public records:")
    print(f"{found.rehearsal_}\n\n{statement}")
    note = (
        "The statement covers the private search alone. The third accuracy could be shown only"
        " because these records are public."
    )
    print(f"\n{note}")
    if options.json:
        content = {
            "note": note,
            "accuracies": accuracies,
            "recommendation": str(found.recommendation_),
            "gain at least": found.best_gain_,
            "parameters": {name: str(value) for name, value in found.best_params_.items()},
            "statement": json.loads(statement.to_json()),
        }
        with named_file("json", options.json, "a file that can be written"):
            pathlib.Path(options.json).write_text(json.dumps(content, indent=2) + "\n")
    if options.plot:
        with needs("plots"):
            from matplotlib.figure import Figure

        figure = Figure(figsize=(7.5, 4.5), layout="constrained")
        axes = figure.add_subplot()
        shares = [100 * value for value in accuracies.values()]
        axes.bar_label(axes.barh([*accuracies], shares, height=0.6), fmt="%.1f", padding=3)
        axes.invert_yaxis()
        axes.set_xlim(max(0.0, min(shares) - 10), max(shares) + 3)
        axes.set(xlabel="test accuracy, %", title=f"Graduates, tuned at {statement.stated()}")
        with named_file("plot", options.plot, "a picture file that can be written"):
            figure.savefig(options.plot, dpi=150)
