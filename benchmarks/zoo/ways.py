"""Ways to choose among the candidates of the zoo's open tasks, simulated on the scores that
`benchmarks.zoo` keeps in `--folder`, with the law of each release: Laplace for the cells' shares,
permute-and-flip for a choice, pure epsilon, a tenth of the budget left for the last release.

A row says which share of the open choice's mean gain over the default model a way keeps, in how
many cells it is below the default model and below the free choice by more than a standard error
(percent), and the lowest mean of a cell, times 100. Each split has twenty draws of the noise. Tasks
that are kept back are never loaded.

    python -m benchmarks.zoo.ways [--folder DIR] [--json FILE]
"""

import collections
import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.harness import named, options, record, table
from benchmarks.zoo.__main__ import CELLS, ROUNDING
from benchmarks.zoo.caches import FOLDER, file_of, fitted, split_of
from benchmarks.zoo.tasks import TASKS, Task, demo_task
from dpbo.search.public_scores import Features, PublicScores
from dpbo.search.rehearsal import Comparison

DRAWS = 20
SEARCH = 0.9
LEAVES = 8
Array = NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """One task, split and score; scores are shares of the range's width.

    Attributes:
        key: task and score.
        public: scores of the candidates on the public records.
        protected: differences to the default model on those to tune on, `candidates x records`.
        inside: the cell of each of these, as indicators; None where there are no cells.
        truth: gains on the records to test on, in the score's units.
    """

    key: tuple[str, str]
    public: PublicScores
    protected: Array
    inside: Array | None
    truth: Array


# Of a case, n, epsilon and the noise: a row for each draw.
Way = Callable[[Case, int, float, np.random.Generator], Any]


def cases_of(task: Task, cache: dict[str, Array]) -> list[Case]:
    """The cases of one split, a score each."""
    found = []
    tuning = int(cache["tuning"])
    features = Features(cache["labels"], classifier=task.classes)
    for score in task.scores:
        width = float(cache[f"width_{score}"])
        public = PublicScores(
            points=torch.from_numpy(cache["points"]),
            scores=cache[f"oof_{score}"] / width,
            features=features,
            described=cache["described"],
            labels=features.codes(cache["labels"]),
        )
        pool = cache[f"pool_{score}"] / width
        gains = pool - pool[0]
        inside = None
        if public.has_cells(LEAVES):
            cells = public.cells(LEAVES)[0]
            inside = np.eye(len(cells.leaves))[cells.cells(cache["pdescribed"][:tuning])]
        truth = width * gains[:, tuning:].mean(1)
        found.append(Case((task.name, score), public, gains[:, :tuning], inside, truth))
    return found


def free(case: Case, *_terms: Any) -> Any:
    """The best cross-validated candidate."""
    return np.full(DRAWS, case.public.means.argmax())


def openly(case: Case, n: int, *_terms: Any) -> Any:
    """The best candidate by exact scores of the protected records."""
    return np.full(DRAWS, case.protected[:, :n].mean(1).argmax())


def weighted(case: Case, n: int, epsilon: float, random: np.random.Generator) -> Any:
    """The best by cross-validated scores, weighted by released shares of the cells."""
    if case.inside is None:
        return free(case)
    shares = case.public.cells(LEAVES)[1]
    scale = 2 / (n * epsilon)
    exact = case.inside[:n].mean(0)
    released = exact + random.laplace(0.0, scale, size=(DRAWS, len(exact)))
    share = shares.shrunk(released, scale * 2**0.5, n)
    return (share @ shares.means(case.public.scores).T).argmax(1)


def choice(
    handicap: float = 0.0, *, cells: float = 0.0, others: bool = True, prior: float = 0.0
) -> Way:
    """One choice among all candidates.

    Args:
        handicap: of all but the default model, the free choice and the weighted one.
        cells: share of the search's budget that pays for the shares of the cells.
        others: whether others take part.
        prior: how often the public gain is added to each candidate's.
    """

    def chosen(case: Case, n: int, epsilon: float, random: np.random.Generator) -> Any:
        left = epsilon
        favoured = np.tile([0, case.public.means.argmax()], (DRAWS, 1))
        if cells and case.inside is not None:
            best = weighted(case, n, cells * epsilon, random)
            favoured = np.column_stack([favoured, best])
            left = (1 - cells) * epsilon
        scale = 2 / (n * left)
        gains = case.public.gains
        comparison = Comparison.of(gains, n, scale, 1.0, paired=True)
        c = comparison.largest_difference
        reach, kept = 1.0, case.protected[:, :n]
        if c is not None:
            reach, kept = 2 * c, np.clip(kept, -c, c)
        offsets = -handicap * comparison.stds if others else np.full(len(kept), -np.inf)
        utilities = np.tile(kept.mean(1) + offsets, (DRAWS, 1))
        np.put_along_axis(
            utilities, favoured, np.take_along_axis(kept.mean(1)[None], favoured, 1), 1
        )
        utilities += prior * gains.mean(1)
        noise = random.exponential(scale * reach, size=utilities.shape)
        return (utilities + noise).argmax(1)

    return chosen


WAYS: dict[str, Way] = {
    "free": free,
    "openly": openly,
    "weighted cross-validation": weighted,
    "one choice": choice(),
    "handicap 2": choice(2),
    "handicap 3": choice(3),
    "handicap 4": choice(4),
    "handicap 4, public gain added .1 times": choice(4, prior=0.1),
    "handicap 4, public gain added once": choice(4, prior=1.0),
    "handicap 4, public gain added 3 times": choice(4, prior=3.0),
    "cells .3, handicap 4": choice(4, cells=0.3),
    "cells .4, handicap 3": choice(3, cells=0.4),
    "cells .4, handicap 4: DPSearch": choice(4, cells=0.4),
    "cells .4, only the three": choice(cells=0.4, others=False),
    "cells .5, handicap 4": choice(4, cells=0.5),
    "cells .7, handicap 4": choice(4, cells=0.7),
}


def rows_of(cases: list[Case], sizes: list[tuple[int, float]], seed: int) -> list[list[Any]]:
    """A row for each way."""
    rows = []
    for name, way in WAYS.items():
        random = np.random.default_rng(seed)
        runs: dict[Any, list[tuple[Array, Array, float]]] = collections.defaultdict(list)
        for case in cases:
            for n, epsilon in sizes:
                if n > case.protected.shape[1]:
                    continue
                taken = [one(case, n, SEARCH * epsilon, random) for one in (way, free, openly)]
                got, of_free, best = (100 * case.truth[each] for each in taken)
                runs[*case.key, n, epsilon].append((got, got - of_free, float(best[0])))
        cells = []
        for found in runs.values():
            got, over_free = (np.array([each[part] for each in found]) for part in (0, 1))
            below = [_below(gains) for gains in (got, over_free)]
            cells.append([got.mean(), np.mean([each[2] for each in found]), *below])
        mean, best, *below = np.mean(cells, 0)
        rows.append(
            [name, mean / best, *(100 * each for each in below), min(cell[0] for cell in cells)]
        )
    return rows


def _below(gains: Array) -> float:
    """In which share of the draws the mean over splits is below 0 by more than its error."""
    error = gains.std(0, ddof=1) / len(gains) ** 0.5
    return float((gains.mean(0) < -error - ROUNDING).mean())


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments, seeds=10, folder=str(FOLDER))
    cases: list[Case] = []
    sizes = CELLS
    if chosen.smoke:
        sizes = [(60, 1.0)]
        for seed in range(2):
            split = split_of(demo_task(), seed, smoke=True)
            cases += cases_of(demo_task(), fitted(demo_task(), split, seed))
    else:
        folder = pathlib.Path(chosen.folder)
        for task in (task for task in TASKS if not task.locked):
            for seed in range(chosen.seeds):
                with np.load(file_of(folder, task, seed)) as opened:
                    cases += cases_of(task, dict(opened))
    header = ("way", "kept", "below default, %", "below free, %", "lowest")
    rows = rows_of(cases, sizes, chosen.seed)
    print(table(header, rows))
    record("zoo_ways", {"ways": named(header, rows)}, chosen)


if __name__ == "__main__":
    main()
