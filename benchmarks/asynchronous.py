"""Many workers: the wall time of a search with four evaluations in flight beside the serial one,
and what that costs in quality.

Time. `AsynchronousBO` with one worker and with four, the same proposer and the same 40 private
evaluations of a score that really sleeps 1 s and then scores 1,000 records. Proposing is on the
clock of every search and is timed apart. Bound: 0.4 of the serial time.

Quality. Simple regret of the recommended point after 40 evaluations with known noise, on a
simulated clock with lognormal durations (sd 0.5), paired by seed: initial points and the noise of
every release are those of the seed. Four workers know three values less at each proposal; were that
costly, their differences from the serial search would be above 0. There is no free choice: the
scores are made up, and need neither training nor public records.

    python -m benchmarks.asynchronous [--smoke] [--json FILE]
"""

import functools
import statistics
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np
import scipy.stats
import torch
from botorch.test_functions import Branin, Hartmann, SyntheticTestFunction
from torch import Tensor

from benchmarks.harness import Difference, difference, mean_and_error, options, record, table
from dpbo import Adjacency, Budget, Curator, PrivacyUnit, PrivateObjective, Space
from dpbo.acquisition.expected_improvement import posterior_mean, suggest
from dpbo.algorithms import AsynchronousBO

WORKERS = 4
INITIAL = 8
RECORDS = 1_000
SPREAD = 0.5
WAYS = {
    "serial": (1, True),
    "4 workers, in order": (WORKERS, True),
    "4 workers, as they finish": (WORKERS, False),
}
PROBLEMS: dict[str, tuple[Callable[[], SyntheticTestFunction], float]] = {
    "Branin, noise sd 10": (lambda: Branin(dtype=torch.float64), 10.0),
    "Hartmann-3, noise sd 0.1": (lambda: Hartmann(dim=3, dtype=torch.float64), 0.1),
}


@dataclass(frozen=True)
class Slow:
    """A score that takes so many seconds on the private records, and none on stand-ins: how near
    records lie to x.
    """

    seconds: float

    def __call__(self, x: Tensor, records: Tensor) -> Tensor:
        if len(records) == RECORDS:
            time.sleep(self.seconds)
        return (-4.0 * (records - x).square().sum(1)).exp()


def private_records(seed: int) -> Tensor:
    """Around (0.3, 0.6), `n x 2`."""
    noise = torch.randn(
        RECORDS, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    return torch.tensor([0.3, 0.6], dtype=torch.float64) + 0.15 * noise


def best_of(records: Tensor) -> Tensor:
    """The best x for these records: the mean shift climbs to it."""
    x = records.mean(0)
    for _ in range(100):
        weights = Slow(0.0)(x, records).unsqueeze(1)
        x = (weights * records).sum(0) / weights.sum()
    return x


def cube(d: int) -> Space:
    """The unit cube."""
    return Space(**{f"x{i}": scipy.stats.uniform(0, 1) for i in range(d)})


def timed(
    executor: Executor, way: tuple[int, bool], evaluations: int, seconds: float, seed: int
) -> dict[str, Any]:
    """One real search: seconds in all and of proposing, and how much the recommended point's true
    score is below the best.
    """
    records = private_records(seed)
    curator = Curator(
        records,
        unit=PrivacyUnit("record"),
        adjacency=Adjacency.REPLACE_ONE,
        budget=Budget(3.0, 1e-6),
    )
    objective = PrivateObjective(
        curator, Slow(seconds), score_range=(0.0, 1.0), evaluations=evaluations
    )
    search = AsynchronousBO(
        objective, cube(2), workers=way[0], ordered=way[1], initial=INITIAL, seed=seed
    )
    start = time.perf_counter()
    found = search.run(executor)
    wall = time.perf_counter() - start
    true = Slow(0.0)
    regret = float(true(best_of(records), records).mean() - true(found.x, records).mean())
    spent = search.proposing
    return {
        "wall": wall,
        "proposing": sum(spent),
        "median_proposal": statistics.median(spent),
        "longest_proposal": max(spent),
        "regret": regret,
        "noise": objective.noise_std.item(),
    }


def wall_times(
    evaluations: int, seconds: float, seed: int, processes: int
) -> dict[str, dict[str, Any]]:
    """`timed` for each way on threads, and in order on processes, which have started before the
    clock does.
    """
    found = {}
    with (
        ThreadPoolExecutor(WORKERS) as threads,
        ProcessPoolExecutor(processes, mp_context=get_context("forkserver")) as spawned,
    ):
        timed(spawned, (WORKERS, True), INITIAL + 1, seconds / 5, seed)
        for name, way in WAYS.items():
            found[name] = timed(threads, way, evaluations, seconds, seed)
        found["4 processes, in order"] = timed(spawned, (WORKERS, True), evaluations, seconds, seed)
    return found


def searched(problem: str, way: tuple[int, bool], evaluations: int, seed: int) -> float:
    """Simple regret of one search on a simulated clock."""
    make, sd = PROBLEMS[problem]
    function = make()
    lower, upper = function.bounds
    space = cube(function.dim)
    workers, ordered = way
    noise = sd * torch.randn(
        evaluations, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    durations = np.random.default_rng(seed).lognormal(0.0, SPREAD, evaluations).tolist()

    def value(X: Tensor) -> Tensor:
        return -function.evaluate_true(lower + X * (upper - lower)).unsqueeze(1)

    design = space.sample(INITIAL, seed=seed)
    X = design[:0]
    Y = noise[:0]
    now = 0.0
    flying: list[tuple[float, Tensor]] = []
    for t in range(evaluations + workers):
        if len(flying) == min(workers, evaluations - len(X)):
            end, x = flying.pop(
                0 if ordered else min(range(len(flying)), key=lambda place: flying[place][0])
            )
            now = max(now, end)
            y = value(x.unsqueeze(0)) + noise[len(X) : len(X) + 1]
            X = torch.cat([X, x.unsqueeze(0)])
            Y = torch.cat([Y, y])
        if (made := len(X) + len(flying)) < evaluations:
            pending = torch.stack([x for _, x in flying]) if flying else X[:0]
            x = (
                design[made]
                if made < INITIAL
                else suggest(
                    space, X, Y, torch.full_like(Y, sd**2), seed=1000 * seed + t, pending=pending
                )[0]
            )
            flying.append((now + durations[made], x))
    best = X[posterior_mean(space, X, Y, torch.full_like(Y, sd**2)).argmax()]
    return -function.optimal_value - float(value(best.unsqueeze(0)))


def _regret_rows(found: dict[str, dict[str, list[float]]]) -> list[list[Any]]:
    rows = []
    for problem, by_way in found.items():
        for name, values in by_way.items():
            against: Difference | str = (
                "" if name == "serial" else difference(values, by_way["serial"])
            )
            rows.append(
                [problem, name, *mean_and_error(values), statistics.median(values), against]
            )
    return rows


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments)
    torch.set_num_threads(1)
    evaluations, seconds, seeds, steps = (9, 0.02, 1, 9) if chosen.smoke else (40, 1.0, 10, 40)
    show = functools.partial(print, flush=True)
    times = wall_times(evaluations, seconds, chosen.seed, 1 if chosen.smoke else WORKERS)
    noise = times["serial"]["noise"]
    show(
        f"{evaluations} evaluations of a score that sleeps {seconds:g} s; released with noise sd"
        f" {noise:.2g} of range 1"
    )
    columns = (
        "wall s",
        "over serial (bound 0.4)",
        "proposing s",
        "median proposal s",
        "longest s",
        "regret",
    )
    keys = ("proposing", "median_proposal", "longest_proposal", "regret")
    rows = [
        [name, one["wall"], one["wall"] / times["serial"]["wall"], *(one[key] for key in keys)]
        for name, one in times.items()
    ]
    show(table(["search", *columns], rows))
    every = range(chosen.seed, chosen.seed + seeds)
    found = {
        problem: {
            name: [searched(problem, way, steps, seed) for seed in every]
            for name, way in WAYS.items()
        }
        for problem in PROBLEMS
    }
    show(f"\nSimple regret after {steps} evaluations, {seeds} seeds")
    show(
        table(
            ["problem", "search", "mean", "standard error", "median", "minus serial [95 %]"],
            _regret_rows(found),
        )
    )
    record("asynchronous", {"times": times, "regrets": found}, chosen)


if __name__ == "__main__":
    main()
