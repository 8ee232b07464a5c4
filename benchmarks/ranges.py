"""How often the rehearsed range holds a search's gain where the protected records are drawn like
the public ones: on made records, whose gain is measured on 20,000 others.

"One table" is split by the search; "two tables" are handed over apart. Each search has 250 public
and 300 protected records, 8 candidates and epsilon 1. "Held" counts searches whose gain was in the
range that the rehearsal gave to records drawn alike.
"""

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import loguniform, randint
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.tree import DecisionTreeClassifier

from benchmarks.harness import named, options, record, table, with_bar
from dpbo import Budget, DPSearch, Privacy
from dpbo.search.rehearsal import Range

PUBLIC = 250
PROTECTED = 300
FRESH = 20_000
TREE = (
    DecisionTreeClassifier(random_state=0),
    {"max_depth": randint(1, 12), "min_samples_leaf": randint(1, 60)},
)
LOGISTIC = (LogisticRegression(), {"C": loguniform(1e-4, 1e2)})
BOOSTING = (
    HistGradientBoostingClassifier(max_iter=15, random_state=0),
    {"learning_rate": loguniform(0.01, 1.0), "max_leaf_nodes": randint(2, 31)},
)
BRIER = "neg_brier_score"
TRUE_CLASS = "true_class_probability"
# (tables, model, score, searches)
CASES = [
    ("one", "tree", BRIER, 60),
    ("one", "tree", "accuracy", 60),
    ("one", "tree", TRUE_CLASS, 60),
    ("one", "logistic", BRIER, 60),
    ("one", "boosting", BRIER, 20),
    ("two", "tree", BRIER, 60),
    ("two", "tree", "accuracy", 60),
    ("two", "tree", TRUE_CLASS, 60),
    ("two", "logistic", BRIER, 60),
]
MODELS = {"tree": TREE, "logistic": LOGISTIC, "boosting": BOOSTING}
HEADER = ("tables", "model", "score", "searches", "held", "mean gain", "mean range")

Records = tuple[NDArray[np.float64], NDArray[np.int64]]


def drawn(random: np.random.Generator, count: int) -> Records:
    """Six features, of which one matters along a line and one along a parabola."""
    X = random.normal(size=(count, 6))
    signal = X[:, 0] + 0.5 * X[:, 1] ** 2 - 0.5
    y = (signal + 1.2 * random.normal(size=count) > 0.0).astype(np.int64)
    return X, y


def mean_score(model: Any, records: Records, score: str) -> float:
    X, y = records
    if score == "accuracy":
        return float(np.mean(model.predict(X) == y))
    of_truth = model.predict_proba(X)[np.arange(len(X)), y]
    if score == BRIER:
        return -float(np.mean((1.0 - of_truth) ** 2))
    return float(np.mean(of_truth))


def holds(found: Range, gain: float) -> bool:
    """With room for rounding: a search that keeps the default model gains exactly nothing."""
    return found.low - 1e-9 <= gain <= found.high + 1e-9


def one(tables: str, kind: str, score: str, seed: int) -> tuple[bool, float, float]:
    """Whether the range held the gain, the gain, and the range's width."""
    random = np.random.default_rng([seed, 7])
    model, space = MODELS[kind]
    X, y = drawn(random, PUBLIC + PROTECTED)
    fresh = drawn(random, FRESH)
    search = functools.partial(
        DPSearch,
        clone(model),
        space,
        budget=Budget(1.0, 1e-6),
        scoring=score,
        n_iter=8,
        verbose=0,
        random_state=seed,
        # the seeds of the records and of the search are the benchmark's
        privacy=Privacy(allow_repeated=True),
    )
    if tables == "one":
        done = search(test_size=PROTECTED).fit(X, y)
        X_train, _, y_train, _ = train_test_split(X, y, test_size=PROTECTED, random_state=seed)
    else:
        X_train, y_train = X[:PUBLIC], y[:PUBLIC]
        done = search().fit(X_train, y_train, X[PUBLIC:], y[PUBLIC:])
    default = clone(model).fit(X_train, y_train)
    gain = mean_score(done.best_estimator_, fresh, score) - mean_score(default, fresh, score)
    rehearsal = done.rehearsal_
    taken = rehearsal.method("free" if rehearsal.free_wins else "auto")
    before = taken.alike if tables == "two" else taken.gain
    return holds(before, gain), gain, before.high - before.low


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments)
    rows = []
    for tables, kind, score, searches in CASES[5:6] if chosen.smoke else CASES:
        seeds = range(chosen.seed, chosen.seed + (1 if chosen.smoke else searches))
        found = np.array([one(tables, kind, score, seed) for seed in with_bar(seeds)], dtype=float)
        held, gain, width = found.mean(0)
        held = round(held * len(found))
        rows.append([tables, kind, score, len(found), held, float(gain), float(width)])
    print(table(HEADER, rows))
    record("ranges", {"cases": named(HEADER, rows)}, chosen)


if __name__ == "__main__":
    main()
