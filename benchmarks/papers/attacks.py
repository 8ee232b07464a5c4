"""Graded attacks on what Kusner et al. and PO-GP-UCB release: how much is read off by who knows
less than everything.

(a) PO-GP-UCB's transform of a table of rows, some of which are known, exactly or up to noise: error
    of the other rows, as a share of their spread (1: nothing is learned), over 50 draws of the
    projection, of the known rows and of their noise. Who knows the population's mean and covariance
    as well (here from rows that were not published) needs fewer rows. Rows released with noise of
    their own, at the same epsilon for neighbours whose row moves by 1 of 25 at most, are beside it:
    there known rows tell nothing of the others; the moments lower the error by linear shrinkage.
(b) Kusner's Algorithm 1 on pairs of neighbours that are no draw of the prior: the epsilon that the
    best test of membership reaches on the released candidate and value, each a likelihood ratio,
    which who knows both data sets can compute. Means of bounded scores are within the stated
    epsilon although nothing promises it; worst cases over records are not.

    python -m benchmarks.papers.attacks [--smoke] [--seed N] [--json FILE] [--runs N]
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import mean_and_error, options, record, tabulated
from benchmarks.papers import kusner_problems as problems
from benchmarks.papers.kusner_problems import DELTA, REACH
from benchmarks.papers.po_gp_ucb_attack import recover_rows
from benchmarks.papers.po_gp_ucb_problems import scaled, synthetic
from benchmarks.papers.po_gp_ucb_search import released
from dpbo import PrivacyUnit
from dpbo.papers.kusner import KusnerSearch
from dpbo.papers.po_gp_ucb.transform import po_gp_ucb_transform
from dpbo.privacy import Adjacency
from dpbo.records.view import PrivateView
from dpbo.testing import audit

Figures = dict[str, Any]
Moments = tuple[Tensor, Tensor]
EPSILON = math.exp(1.1)
ROWS_DELTA = 1e-5
COLUMNS = 15
# probability that a bound of (b) is wrong
LEVEL = 0.05


def row_tables(smoke: bool, seed: int) -> Iterator[tuple[str, Tensor, Moments]]:
    """(name, rows of norm at most 25, the population's moments in their units)."""
    from sklearn.datasets import load_breast_cancer

    grid = synthetic(5.0, 12 if smoke else 100, 1, 1, seed).X
    yield "grid", grid, (grid.mean(0), grid.mT @ grid / len(grid))
    X = torch.from_numpy(load_breast_cancer().data[:, :10])
    X = (X - X.mean(0)) / X.std(0)
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))
    published, others = X[order[::2]], X[order[1::2]]
    rows, factor = scaled(published)
    outside = (others - published.mean(0)) * factor
    yield "breast cancer", rows, (outside.mean(0), torch.cov(outside.mT, correction=0))


def recoveries(smoke: bool, runs: int, seed: int) -> Figures:
    """(a)."""
    rows: list[list[Any]] = []
    for name, X, moments in row_tables(smoke, seed):
        n, d = X.shape
        spread = float((X - X.mean(0)).square().sum(1).mean()) ** 0.5
        fewer = sorted({1, 2, (d + 1) // 2, d - 1, d, d + 1})
        more = [(count, 0.0) for count in fewer]
        more += [(m * (d + 1), noise) for noise in (0.1, 0.5) for m in (1, 2, 8)]
        for count, noise in more:
            errors: dict[str, list[float]] = {"rows alone": [], "and moments": []}
            for run in range(runs):
                generator = torch.Generator().manual_seed(1000 * seed + run)
                Z = po_gp_ucb_transform(
                    X,
                    epsilon=EPSILON,
                    delta=ROWS_DELTA,
                    r=COLUMNS,
                    generator=generator,
                    allow_not_private=True,
                ).Z
                order = torch.randperm(n, generator=generator)
                indices, others = order[:count].tolist(), order[count:]
                apart = torch.randn(count, d, generator=generator, dtype=torch.float64)
                known = X[indices] + noise * spread / d**0.5 * apart
                for who, public in (("rows alone", None), ("and moments", moments)):
                    wrong = (recover_rows(Z, known, indices, noise=noise, public=public) - X)[
                        others
                    ]
                    errors[who].append(float(wrong.square().sum(1).mean()) ** 0.5 / spread)
            cells = [cell for found in errors.values() for cell in mean_and_error(found)]
            rows.append([f"{name}, d = {d}", count, noise, *cells, runs])
            assert count <= d or noise or max(errors["rows alone"]) < 1e-9
        mean, covariance = moments
        alone: list[float] = []
        shrunken: list[float] = []
        for _ in range(runs):
            sound = released(X, "l2-Laplace", EPSILON, ROWS_DELTA, d, np.random.default_rng(seed))
            noised = covariance + sound.variance * torch.eye(d, dtype=torch.float64)
            best = mean + (sound.Z - mean) @ torch.linalg.solve(noised, covariance)
            for found, Z in ((alone, sound.Z), (shrunken, best)):
                found.append(float((Z - X).square().sum(1).mean()) ** 0.5 / spread)
        cells = [*mean_and_error(alone), *mean_and_error(shrunken)]
        rows.append([f"{name}, d = {d}: rows with l2-Laplace noise", 0, "", *cells, runs])
    header = [
        "table",
        "rows known",
        "their noise",
        "error of the others",
        "its SE",
        "with mean and covariance known",
        "SE of that",
        "runs",
    ]
    return tabulated(
        "recoveries", "(a) error of unknown rows, as a share of their spread", header, rows
    )


def pairs(count: int, seed: int) -> Iterator[tuple[str, float, list[tuple[Tensor, Tensor]]]]:
    """(what the gain is, half of its range, gains on two neighbouring data sets of which the worst
    pair is taken).
    """
    generator = torch.Generator().manual_seed(seed)
    smooth, other = problems.neighbours(count, 20, generator)
    yield "a draw of the prior", REACH, list(zip(smooth, other, strict=True))

    def uniform(half: float) -> Tensor:
        drawn = torch.rand(20, count, generator=generator, dtype=torch.float64)
        return half * (2 * drawn - 1)

    moved = 2 * REACH / 100 * uniform(1.0).sign()
    yield (
        "mean of 100 scores, smooth",
        REACH,
        [(f, (f + by).clamp(-REACH, REACH)) for f, by in zip(smooth, moved, strict=True)],
    )
    rough = uniform(REACH)
    yield (
        "mean of 100 scores, rough",
        REACH,
        [(f, (f + by).clamp(-REACH, REACH)) for f, by in zip(rough, moved, strict=True)],
    )
    for half in (REACH, 5 * REACH):
        high = half / REACH * smooth.clamp(-REACH, REACH)
        low = torch.full_like(high, -half)
        yield (
            f"worst of all scores, smooth, in +-{half:g}",
            half,
            list(zip(high, low, strict=True)),
        )
        yield (
            f"worst of all scores, rough, in +-{half:g}",
            half,
            list(zip(half * uniform(1.0).sign(), half * uniform(1.0).sign(), strict=True)),
        )


def searched(count: int, f: Tensor, half: float) -> tuple[Tensor, float]:
    """Algorithm 1's posterior mean and best value on a data set whose gain is f."""
    search: KusnerSearch = replace(
        problems.public_search(count),
        gain=lambda x, _records: float(f[problems.index_in(count, x)]),
        value_range=(-half, half),
    )
    nobody = PrivateView.of(torch.zeros(1), PrivacyUnit("record"), units_are_public=True)
    mean, values = search.run(nobody)
    return mean.clone(), max(values)


def memberships(smoke: bool, seed: int) -> Figures:
    """(b)."""
    count = 100
    search = problems.public_search(count)
    declared = [
        query.sensitivity(Adjacency.REPLACE_ONE).linf for query in (search.best(), search.value())
    ]
    draws = 10_000 if smoke else 1_000_000
    rng = np.random.default_rng(seed)
    rows: list[list[Any]] = []
    for name, half, candidates in pairs(count, seed):
        found = [
            [searched(count, f, half) for f in pair] for pair in candidates[: 2 if smoke else 20]
        ]
        of_means = [
            float((_law(a[0], 1.0, declared[0]) - _law(b[0], 1.0, declared[0])).abs().max())
            for a, b in found
        ]
        means = [each[0] for each in found[int(np.argmax(of_means))]]
        of_values = [abs(a[1] - b[1]) for a, b in found]
        values = [each[1] for each in found[int(np.argmax(of_values))]]
        for epsilon in (1.0, 4.0):
            logs = [_law(mean, epsilon, declared[0]).numpy() for mean in reversed(means)]
            laws = [np.exp(log) for log in logs]
            loss = logs[1] - logs[0]
            scale = declared[1] / epsilon
            low, high = sorted(values)
            for what, exact, moves, bound, draw, statistic in (
                (
                    "candidate",
                    float(np.abs(loss).max()),
                    float((means[0] - means[1]).abs().max()),
                    declared[0],
                    lambda side, size, laws=laws: rng.choice(count, size, p=laws[side]),
                    lambda chosen, loss=loss: loss[chosen[:, 0].astype(int)],
                ),
                (
                    "value",
                    (high - low) / scale,
                    max(of_values),
                    declared[1],
                    lambda side, size, ends=(low, high), scale=scale: rng.laplace(
                        ends[side], scale, size
                    ),
                    lambda noised: noised[:, 0],
                ),
            ):
                measured = [
                    best_test(draw, statistic, draws, delta) for delta in (0.0, 0.01, DELTA)
                ]
                rows.append([name, what, bound, moves, epsilon, exact, *measured])
    header = [
        "gain",
        "release",
        "sensitivity stated",
        "moves by",
        "epsilon stated",
        "epsilon of this pair",
        "reached at least",
        "at delta = 0.01",
        f"at delta = {DELTA:g}",
    ]
    return tabulated(
        "memberships",
        f"(b) {count} candidates, {draws:,} releases a side, bounds wrong with probability"
        f" {LEVEL:g}",
        header,
        rows,
    )


def _law(mean: Tensor, epsilon: float, sensitivity: float) -> Tensor:
    """Log-probability of each candidate by the exponential mechanism."""
    return torch.log_softmax(epsilon * mean / (2 * sensitivity), 0)


def best_test(
    draw: Callable[[int, int], Any], statistic: Callable[[Any], Any], runs: int, delta: float
) -> float:
    """A lower bound on the epsilon at delta that the likelihood ratio's best threshold shows, from
    either side.
    """
    swapped = audit(
        lambda side, size: draw(1 - side, size),
        runs=runs,
        statistic=lambda outputs: -statistic(outputs),
        delta=delta,
        level=LEVEL / 2,
    )
    straight = audit(draw, runs=runs, statistic=statistic, delta=delta, level=LEVEL / 2)
    return max(straight.epsilon(delta), swapped.epsilon(delta))


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments, runs=50)
    torch.set_num_threads(1)
    runs = 3 if chosen.smoke else chosen.runs
    figures = recoveries(chosen.smoke, runs, chosen.seed) | memberships(chosen.smoke, chosen.seed)
    record("attacks", figures, chosen)


if __name__ == "__main__":
    main()
