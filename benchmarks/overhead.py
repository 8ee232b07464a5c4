"""What privacy costs in time and memory beside the score itself: evaluate + release against
`score(x, records).mean()`.

A linear 10-class classifier's accuracy on n = 10^7 records of 20 features, one thread. Clip-and-sum
is timed alone on float scores, over records as units and over shuffled groups of ten. Its floor: 4
bytes read a score, and about six vector operations on cached chunks (convert, test, scale,
truncate, clip, add) where a mean does one.
"""

import os
import statistics
import threading
import time
from typing import Any

import psutil
import torch

from benchmarks.harness import interleaved, options, ratio, record, table
from dpbo import Adjacency, Budget, Curator, PrivacyUnit
from dpbo.mechanisms import GaussianMechanism
from dpbo.mechanisms.gaussian import NORMAL
from dpbo.mechanisms.rounding import rounded
from dpbo.queries import ClippedMean

FEATURES = 20
CLASSES = 10
ROWS_A_GROUP = 10


def accuracy(weights: torch.Tensor, records: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """1 where the linear classifier is right."""
    features, labels = records
    return (features @ weights).argmax(1) == labels


def curator_of(records: object, groups: torch.Tensor | None = None, **place: Any) -> Curator:
    """A curator with a budget that no benchmark exhausts, in memory or at a place."""
    unit = PrivacyUnit("record", groups=groups)
    budget = Budget.gdp(100.0)
    return Curator(records, unit=unit, adjacency=Adjacency.REPLACE_ONE, budget=budget, **place)


def peak_memory(work: object) -> float:
    """MiB of resident memory beyond the start while `work` runs for the first time, sampled every
    millisecond.
    """
    process = psutil.Process()
    stop = threading.Event()
    peak = [0]
    before = process.memory_info().rss

    def watch() -> None:
        while not stop.is_set():
            peak[0] = max(peak[0], process.memory_info().rss)
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    work()  # type: ignore[operator]
    stop.set()
    watcher.join()
    return (peak[0] - before) / 2**20


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments)
    torch.set_num_threads(1)
    n, repetitions = (10**5, 2) if chosen.smoke else (10**7, 7)
    generator = torch.Generator().manual_seed(chosen.seed)
    weights = torch.randn(FEATURES, CLASSES, generator=generator)
    records = (
        torch.randn(n, FEATURES, generator=generator),
        torch.randint(0, CLASSES, (n,), generator=generator),
    )
    scores = torch.rand(n, generator=generator)
    groups = torch.randperm(n, generator=generator) // ROWS_A_GROUP
    mechanism = GaussianMechanism(1000.0)

    whole = curator_of(records)
    alone = curator_of(scores)
    grouped = curator_of(scores, groups)
    question = ClippedMean(accuracy, weights, score_range=(0.0, 1.0))
    # Computed before: clip-and-sum remains.
    clipping = ClippedMean(lambda _, records: records, score_range=(0.0, 1.0))
    # Loads the code before memory is watched.
    curator_of(scores[:1000]).evaluate(clipping)
    extra = peak_memory(lambda: alone.evaluate(clipping))
    extra_groups = peak_memory(lambda: grouped.evaluate(clipping))
    release, plain = interleaved(
        lambda: whole.release(question, mechanism),
        lambda: accuracy(weights, records).float().mean(),
        repetitions=repetitions,
    )
    clip, clip_groups, mean = interleaved(
        lambda: alone.evaluate(clipping),
        lambda: grouped.evaluate(clipping),
        lambda: scores.mean(),
        repetitions=repetitions,
    )
    zeros = torch.zeros(100_000).double().numpy()
    ones = torch.full((100_000,), 2.0**20).double().numpy()
    (noise,) = interleaved(
        lambda: rounded(NORMAL, zeros, ones, os.urandom), repetitions=repetitions
    )

    per_unit = 24 * (n // ROWS_A_GROUP) / 2**20
    rows = [
        (
            "evaluate + release / score.mean()",
            ratio(release, plain),
            "<= 1.3",
            statistics.median(release),
        ),
        ("clip-and-sum / scores.mean()", ratio(clip, mean), "<= 10", statistics.median(clip)),
        (
            "clip-and-sum over groups / scores.mean()",
            ratio(clip_groups, mean),
            "<= 60",
            statistics.median(clip_groups),
        ),
        (
            "100,000 exact Gaussians, seconds",
            statistics.median(noise),
            "< 0.1",
            statistics.median(noise),
        ),
        ("extra memory, MiB", extra, "<= 32", ""),
        (
            f"extra memory with groups, MiB beyond 24 bytes a unit ({per_unit:.3g})",
            extra_groups - per_unit,
            "<= 32",
            "",
        ),
    ]
    print(
        f"n = {n:,}, one thread, medians of {repetitions}\n"
        + table(("what", "measured", "bound", "seconds"), rows)
    )
    record("overhead", {str(row[0]): row[1] for row in rows}, chosen)


if __name__ == "__main__":
    main()
