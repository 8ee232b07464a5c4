"""Ways to choose among the candidates of the zoo's open tasks, simulated on the scores that
`benchmarks.zoo` keeps in `--folder`, with the law of each release: Laplace for the cells' shares,
permute-and-flip for a choice, pure epsilon, all of the budget. Tests and choices against the
default model are at a risk of .1, by differences clipped at a quarter of the score's range unless a
row says otherwise.

A row says which share of the open choice's mean gain over the default model a way keeps, in how
many cells it is below the default model and below the free choice by more than a standard error
(percent), the lowest mean of a cell and the lowest single draw, times 100, and its power: how often
it recommends something, where the open choice gains .005 or more (percent). Each split has twenty
draws of the noise. Tasks that are kept back are never loaded.

    python -m benchmarks.zoo.ways [--folder DIR] [--json FILE]
"""

import collections
import dataclasses
import pathlib
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.harness import named, options, record, table
from benchmarks.zoo.__main__ import CELLS, ROUNDING
from benchmarks.zoo.caches import FOLDER, file_of, fitted, split_of
from benchmarks.zoo.tasks import TASKS, Task, demo_task
from dpbo import Budget, Curator
from dpbo.accounting import PureFilter
from dpbo.mechanisms.thresholded_exponential import chance, total_weight
from dpbo.search import Auto
from dpbo.search.problem import Problem
from dpbo.search.public_scores import Features, PublicScores
from dpbo.search.scorings import Scoring

DRAWS = 20
LEAVES = 8
RISK = 0.1
# The gain of the open choice from which a way is to find something.
WORTH = 0.5
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


def tested(case: Case, rows: Array, n: int, epsilon: float, clip: float, random: Any) -> Array:
    """Each of these candidates, or the default model where its test does not show that it is
    better."""
    gained = np.clip(case.protected[:, :n], -clip, clip).mean(1)[rows]
    scale = 2 * clip / (n * epsilon)
    shown = gained + random.laplace(0.0, scale, len(rows)) > scale * np.log(1 / (2 * RISK))
    return np.where(shown, rows, 0)


def then_tested(first: Way, share: float, clip: float = 0.25) -> Way:
    """A candidate, which takes this share of the budget, then its test."""

    def chosen(case: Case, n: int, epsilon: float, random: np.random.Generator) -> Any:
        rows = first(case, n, share * epsilon, random)
        return tested(case, rows, n, (1 - share) * epsilon, clip, random)

    return chosen


def picked(clip: float = 0.25) -> Way:
    """The best of all but the default model, by one private choice."""

    def chosen(case: Case, n: int, epsilon: float, random: np.random.Generator) -> Any:
        means = np.clip(case.protected[1:, :n], -clip, clip).mean(1)
        noise = random.exponential(4 * clip / (n * epsilon), size=(DRAWS, len(means)))
        return 1 + (means + noise).argmax(1)

    return chosen


def against_default(clip: float = 0.25, *, flip: bool = False) -> Way:
    """One choice between the default model and all candidates: by the thresholded exponential
    mechanism, or by permute-and-flip with handicaps of the same risk."""

    def chosen(case: Case, n: int, epsilon: float, random: np.random.Generator) -> Any:
        means = np.clip(case.protected[1:, :n], -clip, clip).mean(1)
        scale = 4 * clip / (n * epsilon)
        size = (DRAWS, len(means))
        if flip:
            handicap = scale * np.log(len(means) / (2 * RISK))
            noised = means - handicap + random.exponential(scale, size=size)
            least = random.exponential(scale, size=DRAWS)
            return np.where(noised.max(1) > least, 1 + noised.argmax(1), 0)
        weight = total_weight(len(means), RISK) / len(means)
        log_sum = np.log(weight) + np.logaddexp.reduce(means / scale)
        best = 1 + (means / scale + random.gumbel(size=size)).argmax(1)
        return np.where(random.random(DRAWS) < chance(log_sum), best, 0)

    return chosen


def handicapped(case: Case, n: int, epsilon: float, random: np.random.Generator) -> Any:
    """What DPSearch's default was before: two fifths for the cells, then a choice in which all but
    the default model, the free choice and the weighted one have a handicap of four standard
    deviations; a tenth of the budget is left for a released gain. The clip is that of the least
    public error.
    """
    favoured = np.tile([0, case.public.means.argmax()], (DRAWS, 1))
    left = 0.9 * epsilon
    if case.inside is not None:
        best = weighted(case, n, 0.4 * left, random)
        favoured = np.column_stack([favoured, best])
        left *= 0.6
    scale = 2 / (n * left)
    gains = case.public.gains
    means = gains[1:].mean(1)
    options = [(gains, case.protected[:, :n], 1.0)]
    for c in (0.02, 0.05, 0.1, 0.25):
        options.append((np.clip(gains, -c, c), np.clip(case.protected[:, :n], -c, c), 2 * c))
    kept, own, reach = min(
        options,
        key=lambda each: ((each[0][1:].mean(1) - means) ** 2).mean() + (scale * each[2]) ** 2,
    )
    stds = np.sqrt((scale * reach) ** 2 + kept.var(1) / n)
    utilities = np.tile(own.mean(1) - 4.0 * stds, (DRAWS, 1))
    np.put_along_axis(utilities, favoured, own.mean(1)[favoured], 1)
    return (utilities + random.exponential(scale * reach, size=utilities.shape)).argmax(1)


class Scored(Problem):
    """A problem that has public scores of range 1, and no model."""

    width = 1.0
    untested = ""


def rehearsed(case: Case, n: int, epsilon: float, random: np.random.Generator) -> Any:
    """DPSearch's default: the rehearsal says who finds the candidate, which is then tested."""
    curator = Curator.rehearsal(
        torch.zeros(n),
        unit="record",
        adjacency="replace-one",
        budget=Budget(epsilon, 0.0),
        accounting=PureFilter(),
    )
    none: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(Problem))
    given = {
        "curator": curator,
        "public": case.public,
        "scoring": Scoring(free, (0.0, 1.0)),
        "share": Fraction(1),
        "seed": 0,
        "split": False,
        "verbose": 0,
    }
    rehearsal = Auto().rehearsal(Scored(**{**none, **given}))
    finds = weighted if Auto().first_of(rehearsal, 1.0) == "weighted_cv" else picked()
    return then_tested(finds, 0.5)(case, n, epsilon, random)


WAYS: dict[str, Way] = {
    "free": free,
    "openly": openly,
    "weighted cross-validation": weighted,
    "handicap 4": handicapped,
    "free, test": then_tested(free, 0.0),
    "cells .36, test": then_tested(weighted, 0.36),
    "cells .5, test": then_tested(weighted, 0.5),
    "choice .3, test": then_tested(picked(), 0.3),
    "choice .4, test": then_tested(picked(), 0.4),
    "choice .5, test": then_tested(picked(), 0.5),
    "choice .5, test, clip .5": then_tested(picked(0.5), 0.5, 0.5),
    "choice .5, test, no clip": then_tested(picked(1.0), 0.5, 1.0),
    "choice .6, test": then_tested(picked(), 0.6),
    "rehearsed": rehearsed,
    "permute-and-flip against the default": against_default(flip=True),
    "thresholded exponential": against_default(),
    "thresholded exponential, clip .5": against_default(0.5),
}


def rows_of(cases: list[Case], sizes: list[tuple[int, float]], seed: int) -> list[list[Any]]:
    """A row for each way, as `main` names its columns."""
    rows = []
    for name, way in WAYS.items():
        random = np.random.default_rng(seed)
        runs: dict[Any, list[tuple[Array, Array, float, float]]] = collections.defaultdict(list)
        for case in cases:
            for n, epsilon in sizes:
                if n > case.protected.shape[1]:
                    continue
                taken = [one(case, n, epsilon, random) for one in (way, free, openly)]
                got, of_free, best = (100 * case.truth[each] for each in taken)
                told = np.mean(taken[0] > 0) if best[0] >= WORTH else np.nan
                run = got, got - of_free, float(best[0]), float(told)
                runs[*case.key, n, epsilon].append(run)
        cells = []
        for found in runs.values():
            got, over_free = (np.array([each[part] for each in found]) for part in (0, 1))
            below = [_below(gains) for gains in (got, over_free)]
            cells.append([got.mean(), np.mean([each[2] for each in found]), *below, got.min()])
        mean, best, *below, _ = np.mean(cells, 0)
        power = np.nanmean([each[3] for found in runs.values() for each in found])
        lowest = [min(cell[place] for cell in cells) for place in (0, 4)]
        shares = [100 * each for each in (*below, power)]
        rows.append([name, mean / best, *shares[:2], *lowest, shares[2]])
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
    header = (
        "way",
        "kept",
        "below default, %",
        "below free, %",
        "lowest",
        "worst",
        "power, %",
    )
    rows = rows_of(cases, sizes, chosen.seed)
    print(table(header, rows))
    record("zoo_ways", {"ways": named(header, rows)}, chosen)


if __name__ == "__main__":
    main()
