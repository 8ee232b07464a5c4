"""DPSearch's default, a recommendation that is a test, on ten new tables and on the zoo's tables
that were kept back, by the protocol of `benchmarks.zoo.new_tables`.

A figure is the gain of the mean test score over the default model, times 100. "Weighted": the best
by released weights, with all of the budget and without a test (mean of twenty draws); the other
columns are those of `benchmarks.zoo`. "Worse, %": how often what was recommended scores less than
the default model on the records to test on. `--which` is "open" or "locked", of the new tables, or
"zoo", the zoo's that were kept back.

    python -m benchmarks.zoo.tested --which WHICH [--seeds N] [--json FILE]
"""

import concurrent.futures
import json
import pathlib
import tempfile
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.harness import options, record, table_of, with_bar
from benchmarks.zoo import tasks
from benchmarks.zoo.__main__ import (
    AUTO,
    BOUND,
    FREE,
    OPEN,
    ROUNDING,
    WORSE,
    cells_of,
    claims_of,
    one_split,
)
from benchmarks.zoo.caches import FOLDER, cached, split_of
from benchmarks.zoo.new_tables import TASKS
from benchmarks.zoo.tasks import Task, demo_task
from benchmarks.zoo.ways import Way, cases_of, weighted
from dpbo.errors import InputError

WEIGHTED = "weighted"
SHOWN = (FREE, WEIGHTED, AUTO, OPEN)
SETS: dict[str, tuple[Task, ...]] = {
    "open": tuple(task for task in TASKS if not task.locked),
    "locked": tuple(task for task in TASKS if task.locked),
    # the others' searches on noised scores make another test, or none
    "zoo": tuple(replace(task, auc=False) for task in tasks.LOCKED),
}
CELL = ("task", "score", "n", "epsilon")


def all_ways(task: Task, seed: int, folder: pathlib.Path, *, smoke: bool) -> list[dict[str, Any]]:
    """The gains of every way in each cell of this task and split."""
    found = one_split(task, seed, folder, locked=True, smoke=smoke)
    split = split_of(task, seed, locked=True, smoke=smoke)
    cases = {case.key[1]: case for case in cases_of(task, cached(task, split, seed, folder))}
    random = np.random.default_rng(seed)
    best: Way = weighted
    for cell in found:
        case = cases[cell["score"]]
        rows = best(case, cell["n"], cell["epsilon"], random)
        cell[WEIGHTED] = 100 * float(case.truth[rows].mean())
    return found


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """A row for each cell, and one for each way over all cells."""
    cells = cells_of(found, CELL, SHOWN)
    ways = []
    for way in SHOWN:
        gains = np.array([single[way] for single in found])
        ways.append(
            {
                "way": way,
                "mean gain": float(np.mean([cell[way] for cell in cells])),
                **claims_of(cells_of(found, CELL, SHOWN, of=way), of=way),
                WORSE: 100 * float((gains < -ROUNDING).mean()),
            }
        )
    print(table_of(cells), table_of(ways), sep="\n\n")
    held = float(np.mean([cell[BOUND] for cell in cells]))
    return {
        "cells": cells,
        "ways": ways,
        "number of cells": len(cells),
        "searches": len(found),
        "at least what was told, %": held,
    }


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments, seeds=5, workers=1, which="open", folder=str(FOLDER))
    if chosen.which not in SETS:
        raise InputError("which", chosen.which, f"one of {', '.join(SETS)}")
    found = []
    if chosen.smoke:
        with tempfile.TemporaryDirectory() as name:
            for seed in (chosen.seed, chosen.seed + 1):
                task = replace(demo_task(), auc=False)
                found += all_ways(task, seed, pathlib.Path(name), smoke=True)
    else:
        folder = pathlib.Path(chosen.folder)
        with concurrent.futures.ProcessPoolExecutor(chosen.workers) as workers:
            jobs = [
                workers.submit(all_ways, task, seed, folder, smoke=False)
                for seed in range(chosen.seed, chosen.seed + chosen.seeds)
                for task in SETS[chosen.which]
            ]
            for job in with_bar(jobs):
                found += (cells := job.result())
                print(json.dumps(cells), flush=True)
    figures = summary(found)
    record(f"tested_{chosen.which}", figures, chosen)


if __name__ == "__main__":
    main()
