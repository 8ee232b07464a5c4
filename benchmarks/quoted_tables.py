"""Whole tables of the pages, from the stored rows of each benchmark; `benchmarks.quoted` writes
them.
"""

from typing import Any

from benchmarks.harness import table
from benchmarks.zoo.__main__ import AUC, AUTO, CELLS, FREE, OPEN, ROUNDING
from dpbo.planning import noise_table

Rows = list[dict[str, Any]]
_SCORES = {
    "neg_brier_score": "Brier",
    "true_class_probability": "true class",
    "neg_mean_squared_error": "squared error",
}
_WAYS = {
    "free": "the free choice",
    "weighted cross-validation": "weighted cross-validation alone",
    "handicap 4": "what the default was before: two fifths for the cells, then a choice with a"
    " handicap of four standard deviations",
    "free, test": "the free choice, tested with all of the budget",
    "cells .36, test": "the best by weights, .36 of the budget for the cells, then its test",
    "cells .5, test": "... half of the budget",
    "choice .3, test": "a private choice among all with .3 of the budget, then its test",
    "choice .4, test": "... with .4",
    "choice .5, test": "... with half",
    "choice .6, test": "... with .6",
    "choice .5, test, clip .5": "... with half, by differences clipped at half of the width",
    "choice .5, test, no clip": "... not clipped",
    "rehearsed": "**with half by weights or by a choice, as the rehearsal says, then the test**",
    "permute-and-flip against the default": "permute-and-flip, with handicaps of the same risk",
    "thresholded exponential": "the thresholded exponential mechanism, which tells no gain:"
    ' `strategy="choice"`',
    "thresholded exponential, clip .5": "... by differences clipped at half of the width",
    "openly": "the open choice",
}


def noise_by_units() -> str:
    """The noise of an evaluation, as the page's lines print it."""
    units = [500, 1000, 2000, 5000, 10000, 20000, 50000]
    epsilons = [0.5, 1.0, 2.0, 3.0, 5.0, 8.0]
    return noise_table(units, epsilons, delta=1e-6, evaluations=30, share=0.9)


def zoo_in_short(cells: Rows) -> str:
    """Means over the cells, and how many of them are below the default model and the free choice
    by more than a standard error.
    """
    rows = []
    for kept_back, name in ((True, "**kept back**"), (False, "seen while it was made")):
        own = [row for row in cells if row["kept back"] is kept_back and row["score"] != AUC]
        means = [sum(row[arm] for row in own) / len(own) for arm in (FREE, AUTO, OPEN)]
        below_free = [row for row in own if row["minus free"] < -row["error"] - ROUNDING]
        far = sum(row["minus free"] <= -0.25 for row in below_free)
        lowest = [min(row[arm] for row in own) for arm in (AUTO, FREE, "worst split")]
        rows.append(
            [
                name,
                str(len(own)),
                *(_two(mean) for mean in means),
                str(sum(row[AUTO] < -row["its error"] - ROUNDING for row in own)),
                ", ".join(map(_two, lowest[:2])),
                _two(lowest[2]),
                f"{len(below_free)}, {far}",
                str(sum(row["minus free"] > row["error"] + ROUNDING for row in own)),
            ]
        )
    header = [
        "",
        "cells",
        "mean gain: free",
        "DPSearch",
        "openly",
        "below the default by more than a standard error",
        "lowest mean of a cell, free's",
        "lowest single search",
        "below the free choice by more than a standard error, of these by .25 or more",
        "above it",
    ]
    return table(header, rows)


def zoo_kept_back(cells: Rows) -> str:
    """Each task that was kept back."""
    found: dict[tuple[str, str], dict[tuple[int, float], dict[str, Any]]] = {}
    for row in cells:
        if row["kept back"] and row["score"] != AUC:
            place = found.setdefault((row["task"], row["score"]), {})
            place[row["n"], row["epsilon"]] = row
    rows = []
    for (task, score), own in found.items():
        last = own[max(own)]
        gains = [
            f"{_two(own[cell][AUTO])} ({own[cell]['its error']:.2f})" if cell in own else ""
            for cell in CELLS
        ]
        rows.append([f"{task}, {_SCORES[score]}", _two(last[FREE]), *gains, _two(last[OPEN])])
    sizes = [f"{n:,}, {epsilon:g}" for n, epsilon in CELLS]
    return table(["task, score", "free", *sizes, "openly"], rows)


_SETS = {
    "locked": "**five new tables, kept back**",
    "open": "five new tables, open",
    "zoo": "the tables kept back before",
}
_ARMS = {
    "free": "the free choice",
    "weighted": "the best by weights, no test",
    "DPSearch": "**DPSearch**",
    "openly": "the open choice",
}


def tested_in_short(found: dict[str, dict[str, Any]]) -> str:
    """Each way on each set of tables."""
    rows = []
    for name, words in _SETS.items():
        shown = f"{words}, {found[name]['number of cells']} cells"
        for row in found[name]["ways"]:
            kinds = ("below default, %", "below free, %", "worse, %")
            shares = [f"{row[kind]:.0f} %" for kind in kinds]
            gains = [_two(row[kind]) for kind in ("mean gain", "lowest", "worst")]
            rows.append([shown, _ARMS[row["way"]], *gains, *shares])
            shown = "..."
    header = ["tables", "way", "mean gain", "lowest cell", "lowest search"]
    return table([*header, "below default", "below free", "searches below default"], rows)


def tested_tasks(found: dict[str, dict[str, Any]]) -> str:
    """Each task of the new tables, the open ones first."""
    rows = []
    for name in ("open", "locked"):
        own: dict[tuple[str, str], dict[tuple[int, float], dict[str, Any]]] = {}
        for row in found[name]["cells"]:
            own.setdefault((row["task"], row["score"]), {})[row["n"], row["epsilon"]] = row
        for (task, score), cells in own.items():
            last = cells[max(cells)]
            gains = [
                f"{_two(cells[cell][AUTO])} ({cells[cell]['its error']:.2f})"
                if cell in cells
                else ""
                for cell in CELLS
            ]
            kept = "**" if name == "locked" else ""
            title = f"{kept}{task}{kept}, {_SCORES[score]}"
            ends = [_two(last[kind]) for kind in (FREE, "weighted", OPEN)]
            rows.append([title, *ends[:2], *gains, ends[2]])
    sizes = [f"{n:,}, {epsilon:g}" for n, epsilon in CELLS]
    return table(["task, score", "free", "by weights", *sizes, "openly"], rows)


def zoo_ways(ways: Rows) -> str:
    """Ways to choose among the candidates of the tasks that were seen."""
    named = {row["way"]: row for row in ways}
    rows = []
    for way, words in _WAYS.items():
        row = named[way]
        kinds = ("below default, %", "below free, %", "power, %")
        shares = [f"{row[kind]:.0f} %" for kind in kinds]
        lowest = [_two(row[kind]) for kind in ("lowest", "worst")]
        rows.append([words, _two(row["kept"]), *shares, *lowest])
    header = ["way", "kept", "below default", "below free", "power", "lowest cell", "lowest draw"]
    return table(header, rows)


def few_records(means: Rows) -> str:
    """Means of the six tasks with a shift."""
    arms = ("free", "tuned openly", "plain search", "DPSearch's default")
    rows = [
        [f"{row['n']:,}, {row['epsilon']:g}", *(_two(row[arm]) for arm in arms), _gap(row)]
        for row in means
    ]
    return table(["n, epsilon", *arms, "minus free (error)"], rows)


def few_records_by_task(cells: Rows) -> str:
    """Each of these tasks."""
    arms = ("free", "tuned openly", "plain search", "DPSearch's default", "its error")
    fixed = ("weighted_cv 8", "list, all")
    rows = []
    for row in cells:
        gains = [_two(row[arm]) for arm in arms]
        others = ["" if row[arm] == "" else _two(row[arm]) for arm in fixed]
        place = f"{row['n']:,}, {row['epsilon']:g}"
        rows.append([row["task"], place, *gains, _gap(row), *others, row["chosen"]])
    return table(["task", "n, epsilon", *arms, "minus free (error)", *fixed, "mostly chosen"], rows)


def _two(number: float) -> str:
    """With two decimals, and no minus before zero."""
    return f"{round(number, 2) + 0.0:.2f}"


def _gap(row: dict[str, Any]) -> str:
    return f"{_two(row['minus free'])} ({row['error']:.2f})"


def gradients_on_a_gpu(figures: dict[str, Any]) -> str:
    """Clipped gradients of 4 million units."""
    rows = []
    for m, sizes in ((64, (8, 16, 33, 64)), (256, (8, 33, 128)), (1024, (8, 16, 33, 64))):
        for d in sizes:
            row = figures[f"clipped sum, m = {m}, d = {d}"]
            kinds = ("ms", "ms where ten wait in a queue", "compiled in tf32, ms")
            alone, queued, compiled = (f"{row[kind]:#.2g}" for kind in kinds)
            share = f"{row['share of reading once']:.2f}"
            rows.append([f"{m:,} losses, {d} dimensions", alone, queued, share, compiled])
    header = [
        "clipped gradients of 4 million units",
        "alone, ms",
        "ten in a queue, each, ms",
        "share of reading once, in the queue",
        "compiled, ms",
    ]
    return table(header, rows)
