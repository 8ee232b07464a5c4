"""Few protected records: DPSearch's default beside the default model, free cross-validation, plain
search and each fixed method.

Tasks with a real shift, from Adult and LendingClub (DPBO_DATA): 1,500 public training records of
one population, n protected ones of another, and up to 4,000 others of that one to test on. All six
were seen while the methods were made; `benchmarks.zoo` has tasks that were not. Scores are Brier
scores; a figure is the gain of the mean test score over the default model, times 100. "Tuned
openly": the best candidate by exact scores of the n records. "Free": the best cross-validated
candidate. "Weighted_cv" alone is not compared with the default model. Without DPBO_DATA: the demo's
records alone.
"""

import collections
import concurrent.futures
import json
import unittest.mock
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import loguniform
from sklearn.ensemble import HistGradientBoostingClassifier

from benchmarks.harness import mean_and_error, named, options, record, rows_of, table, with_bar
from dpbo import Budget, DPSearch, Privacy, demo
from dpbo.isolation import mute_warnings
from dpbo.search import Choice, WeightedCV
from dpbo.search.public_scores import out_of_fold

TRAIN = 1500
TEST = 4000
CANDIDATES = 16
EVALUATIONS = 16
CELLS = [(n, epsilon) for n in (100, 300, 1000) for epsilon in (0.4, 1.0)]
# These run without the fixed methods.
LARGER = [(300, 3.0), (1000, 3.0), (3000, 0.4), (3000, 1.0), (3000, 3.0)]
MOST = 3000
FIXED: dict[str, dict[str, Any]] = {
    "weighted_cv 8": {"strategy": WeightedCV(cells=8)},
    "list, all": {"strategy": Choice(CANDIDATES + 1)},
}
FREE = "free"
OPEN = "tuned openly"
PLAIN = "plain search"
AUTO = "DPSearch's default"

Table = tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]
_models: dict[tuple[Any, ...], dict[str, Any]] = {}


class Boosting(HistGradientBoostingClassifier):  # type: ignore[misc]
    """With the positive class' weight and the leaves as continuous parameters, for fast proposals.
    Fitted once for the same parameters and records, because the searches of one split fit the same
    candidates again and again.
    """

    def __init__(
        self,
        learning_rate: float = 0.1,
        leaves: float = 31.0,
        leaf_size: float = 20.0,
        weight: float = 1.0,
        max_iter: int = 30,
    ) -> None:
        super().__init__(early_stopping=False, random_state=0, categorical_features=None)
        self.learning_rate = learning_rate
        self.leaves = leaves
        self.leaf_size = leaf_size
        self.weight = weight
        self.max_iter = max_iter

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "Boosting":
        key = repr(sorted(self.get_params().items(), key=str)), X.tobytes(), y.tobytes()
        if key not in _models:
            self.max_leaf_nodes, self.min_samples_leaf = round(self.leaves), round(self.leaf_size)
            super().fit(X, y, np.where(y == 1, self.weight, 1.0))
            _models[key] = dict(self.__dict__)
        self.__dict__.update(_models[key])
        return self


SPACE = {
    "learning_rate": loguniform(0.01, 0.3),
    "leaves": loguniform(3, 64),
    "leaf_size": loguniform(5, 100),
    "weight": loguniform(0.25, 8.0),
}


def _columns(rows: list[dict[str, str]], names: list[str]) -> NDArray[np.float64]:
    columns = []
    for name in names:
        values = np.array([row[name].strip() for row in rows])
        words = not all(value.replace(".", "", 1).isdigit() for value in values if value)
        columns.append(
            np.unique(values, return_inverse=True)[1]
            if words
            else np.array([float(value or "nan") for value in values])
        )
    return np.stack(columns, 1).astype(np.float64)


def tasks() -> dict[str, Table]:
    """Features (categories as numbers), labels, and which records belong to the public and to the
    protected population.
    """
    adult = rows_of("adult/adult.csv.gz")
    loans = rows_of("lendingclub/loans_2007_2011.csv.gz")
    if adult is None or loans is None:
        X, y, _ = demo._table()
        return {"education": (X, y, np.arange(len(y)) < 3000, np.arange(len(y)) >= 3000)}
    loans = [
        row
        for row in loans
        if not row["loan_status"].startswith("Does not") and float(row["funded_amnt_inv"]) > 0
    ]
    X = _columns(
        adult, [name for name in adult[0] if name not in ("income", "split", "fnlwgt", "education")]
    )
    y = np.array([">50K" in row["income"] for row in adult]).astype(np.int64)
    Z = _columns(
        loans, ["term", "loan_amnt", "int_rate", "installment", "grade", "annual_inc", "dti"]
    )
    bad = np.array(["Charged" in row["loan_status"] for row in loans]).astype(np.int64)

    def people(name: str, public: Callable[[Any], Any], protected: Callable[[Any], Any]) -> Table:
        values = np.array([row[name] for row in adult])
        return X, y, public(values), protected(values)

    def lent(name: str, public: Callable[[Any], Any], protected: Callable[[Any], Any]) -> Table:
        values = np.array([row[name].strip() for row in loans])
        return Z, bad, public(values), protected(values)

    return {
        "education": people(
            "education_num", lambda v: v.astype(int) <= 10, lambda v: v.astype(int) >= 13
        ),
        "married": people(
            "marital_status",
            lambda v: v == "Married-civ-spouse",
            lambda v: v != "Married-civ-spouse",
        ),
        "term": lent(
            "term", lambda v: np.char.find(v, "36") >= 0, lambda v: np.char.find(v, "60") >= 0
        ),
        "year": lent(
            "issue_year", lambda v: v.astype(int) <= 2009, lambda v: v.astype(int) == 2011
        ),
        "hours": people(
            "hours_per_week", lambda v: v.astype(int) < 40, lambda v: v.astype(int) > 40
        ),
        "debt": lent("dti", lambda v: v.astype(float) <= 10, lambda v: v.astype(float) >= 18),
    }


def chosen_of(search: DPSearch) -> str:
    """Which of the favoured candidates the default strategy recommends, if any."""
    columns = search.results_
    favoured = {"default": 0, "free": int(np.argmax(columns["cv_score"]))}
    if "weighted_cv_score" in columns:
        favoured["weighted_cv"] = int(np.argmax(columns["weighted_cv_score"]))
    return next((name for name, row in favoured.items() if row == search.best_index_), "other")


def one_split(name: str, seed: int, smoke: bool) -> list[dict[str, Any]]:
    """The gains of every method in each cell of this task and split."""
    X, y, public, protected = tasks()[name]
    random = np.random.default_rng(seed)
    train = random.permutation(np.flatnonzero(public))[: 200 if smoke else TRAIN]
    pool = random.permutation(np.flatnonzero(protected))
    test = pool[MOST:][: 500 if smoke else TEST]
    model = Boosting(max_iter=5 if smoke else 30)
    candidates = 4 if smoke else CANDIDATES
    once: dict[str, Any] = {}

    # The same for all methods and cells of a split.
    def public_scores(*arguments: Any, **how: Any) -> Any:
        key = repr([None if x is None else x.tolist() for x in arguments[2]])
        if key not in once:
            once[key] = out_of_fold(*arguments, **how)
        return once[key]

    def brier(parameters: Any, rows: Any = test) -> float:
        found = model.set_params(**parameters).fit(X[train], y[train]).predict_proba(X[rows])[:, 1]
        return -100 * float(((found - y[rows]) ** 2).mean())

    defaults = {name: model.get_params()[name] for name in SPACE}
    found = []
    reference = brier(defaults)
    # A cache, not a stand-in.
    with unittest.mock.patch("dpbo.search.public_scores.out_of_fold", public_scores):
        for n, epsilon in [(60, 1.0)] if smoke else [*CELLS, *LARGER]:
            arms = {AUTO: {}, PLAIN: {"strategy": "bo", "n_iter": 4 if smoke else EVALUATIONS}}
            cell = {"task": name, "n": n, "epsilon": epsilon, "seed": seed}
            for arm, terms in arms.items() if (n, epsilon) in LARGER else (arms | FIXED).items():
                settings = {
                    "n_iter": candidates,
                    "scoring": "neg_brier_score",
                    "random_state": seed,
                    "privacy": Privacy(allow_repeated=True),
                    **terms,
                }
                with mute_warnings():
                    model.set_params(**defaults)
                    search = DPSearch(model, SPACE, budget=Budget(epsilon, 1e-6), **settings)
                    search.fit(X[train], y[train], X[pool[:n]], y[pool[:n]])
                cell[arm] = brier(search.best_params_) - reference
                if arm == AUTO:
                    cell["chosen"] = chosen_of(search)
                    cell[FREE] = brier(search.free_params_) - reference
                    tried = [
                        defaults,
                        *({name: one[name] for name in SPACE} for one in search.results_["params"]),
                    ]
                    cell[OPEN] = brier(max(tried, key=lambda one: brier(one, pool[:n]))) - reference
            found.append(cell)
    _models.clear()
    return found


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Tables of all cells, of their means over the tasks, and of how often each claim holds."""
    runs: dict[Any, list[dict[str, Any]]] = collections.defaultdict(list)
    means: dict[Any, dict[int, list[dict[str, Any]]]] = collections.defaultdict(
        lambda: collections.defaultdict(list)
    )
    for cell in found:
        runs[cell["task"], cell["n"], cell["epsilon"]].append(cell)
        means[cell["n"], cell["epsilon"]][cell["seed"]].append(cell)
    rows = []
    checks = collections.Counter[str]()
    shown = (FREE, OPEN, PLAIN, AUTO)
    for (task, n, epsilon), cells in runs.items():
        values = {
            arm: np.array([cell[arm] for cell in cells])
            for arm in (*shown, *FIXED)
            if arm in cells[0]
        }
        gain, error = mean_and_error(values[AUTO].tolist())
        over_free, error_free = mean_and_error((values[AUTO] - values[FREE]).tolist())
        over_plain, error_plain = mean_and_error((values[AUTO] - values[PLAIN]).tolist())
        checks.update(
            {
                "cells": 1,
                "below the default model by more than a standard error": int(gain < -error),
                "above plain search": int(over_plain > 0),
                "above free by more than a standard error": int(over_free > error_free),
                "below free by more than a standard error": int(over_free < -error_free),
            }
        )
        best = ""
        # These DPSearch could have taken.
        fixed = (FREE, PLAIN, *FIXED)
        if all(arm in values for arm in fixed):
            best = max(fixed, key=lambda arm: values[arm].mean())
            behind, spread = mean_and_error((values[best] - values[AUTO]).tolist())
            checks["cells with the fixed methods"] += 1
            checks["within a standard error of the best fixed method"] += int(behind <= spread)
        most = collections.Counter(cell["chosen"] for cell in cells).most_common(1)[0][0]
        gains = [float(values[arm].mean()) if arm in values else "" for arm in (*shown, *FIXED)]
        rows.append(
            [
                task,
                n,
                epsilon,
                *gains,
                error,
                over_free,
                error_free,
                over_plain,
                error_plain,
                best,
                most,
            ]
        )
    header = (
        "task",
        "n",
        "epsilon",
        *shown,
        *FIXED,
        "its error",
        "minus free",
        "error",
        "minus plain",
        "error of that",
        "best fixed",
        "chosen",
    )
    together = []
    for (n, epsilon), splits in means.items():
        over_tasks = {
            arm: [float(np.mean([cell[arm] for cell in cells])) for cells in splits.values()]
            for arm in shown
        }
        gap = mean_and_error(
            [ours - free for ours, free in zip(over_tasks[AUTO], over_tasks[FREE], strict=True)]
        )
        kept = [
            100 * float(np.mean(over_tasks[arm]) / np.mean(over_tasks[OPEN]))
            for arm in (FREE, PLAIN, AUTO)
        ]
        together.append(
            [n, epsilon, *(float(np.mean(over_tasks[arm])) for arm in shown), *gap, *kept]
        )
    head = (
        "n",
        "epsilon",
        *shown,
        "minus free",
        "error",
        "free keeps, %",
        "plain keeps, %",
        "DPSearch keeps, %",
    )
    print(
        table(header, rows),
        table(head, together),
        table(("claim", "cells"), list(checks.items())),
        sep="\n\n",
    )
    return {
        "cells": named(header, rows),
        "means of the tasks": named(head, together),
        "checks": dict(checks),
    }


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments, seeds=10, workers=2)
    names = list(tasks())[:1] if chosen.smoke else list(tasks())
    jobs = [
        (name, seed, chosen.smoke)
        for seed in range(1 if chosen.smoke else chosen.seeds)
        for name in names
    ]
    found = []
    if chosen.smoke:
        found += one_split(*jobs[0])
    else:
        with concurrent.futures.ProcessPoolExecutor(chosen.workers) as workers:
            for job in with_bar([workers.submit(one_split, *job) for job in jobs]):
                found += (cells := job.result())
                print(json.dumps(cells), flush=True)
    record("small_data", summary(found), chosen)


if __name__ == "__main__":
    main()
