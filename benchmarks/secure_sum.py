"""What it costs that ranks do not trust each other: an evaluation and a release of DP-GIBO's
clipped gradient by four ranks that do, and by four that do not (`Ranks(trust="sum")`), and the
masks of long answers alone.

    python -m benchmarks.secure_sum [--smoke] [--json FILE]

The records are divided among the ranks; one thread a process. Both kinds of trust take turns. A
rank's masks are timed by themselves, with three other ranks, without sending them.
"""

import json
import multiprocessing
import pathlib
import tempfile
import threading
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.harness import interleaved, options, record, table
from dpbo import Adjacency, Budget, Curator, PrivacyUnit, Ranks
from dpbo.curator.secure_sum import Masks
from dpbo.gibo import ClippedGradient
from dpbo.mechanisms import GaussianMechanism

D = 33
RANKS = 4
POINTS = 4
TRUST = ("all", "sum")


def gradient(dimension: int) -> ClippedGradient:
    """The question: a gradient from few points, so that messages count and not the losses alone."""
    draw = torch.Generator().manual_seed(0)
    X = torch.rand(POINTS, dimension, generator=draw, dtype=torch.float64)
    W = torch.randn(dimension, POINTS, generator=draw, dtype=torch.float64)
    return ClippedGradient(lambda x, r: (r - x).abs().sum(1), X, weights=W, clip=1.0)


def one_rank(rank: int, records: int, repetitions: int, folder: pathlib.Path) -> None:
    """One of the processes; the first writes the seconds that each kind of trust took."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=RANKS
    )
    draw = torch.Generator().manual_seed(rank)
    mine = torch.rand(records // RANKS, D, generator=draw, dtype=torch.float64)
    query = gradient(D)
    curators = [
        Curator(
            mine,
            unit=PrivacyUnit("patient"),
            adjacency=Adjacency.REPLACE_ONE,
            budget=Budget.gdp(1.0),
            allow_repeated=True,
            ranks=Ranks(trust=trust),
        )
        for trust in TRUST
    ]
    noise = GaussianMechanism(1000.0)
    evaluated = interleaved(
        *(lambda c=c: c.evaluate(query) for c in curators), repetitions=repetitions
    )
    handles = [[c.evaluate(query) for _ in range(repetitions + 2)] for c in curators]
    released = interleaved(
        *(
            lambda c=c, waiting=waiting: c.release(waiting.pop(), noise)
            for c, waiting in zip(curators, handles, strict=True)
        ),
        repetitions=repetitions,
    )
    if rank == 0:
        found = {"evaluate": evaluated, "release": released}
        (folder / "found").write_text(json.dumps(found))
    dist.destroy_process_group()


def launched(records: int, repetitions: int) -> dict[str, list[list[float]]]:
    """Seconds of each step, by kind of trust."""
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        processes = [
            context.Process(target=one_rank, args=(rank, records, repetitions, folder))
            for rank in range(RANKS)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        return json.loads((folder / "found").read_text())


def masks_of_rank_0() -> Masks:
    """Those that it has with three others."""
    rows = [b""] * RANKS
    met = threading.Barrier(RANKS)
    found: dict[int, Masks] = {}

    def meet(rank: int) -> None:
        def exchange(row: bytes) -> list[bytes]:
            rows[rank] = row
            met.wait()
            return rows

        found[rank] = Masks(rank, 1, None, None, exchange)

    threads = [threading.Thread(target=meet, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found[0]


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments)
    torch.set_num_threads(1)
    records, repetitions = (4_000, 2) if chosen.smoke else (2_000_000, 15)
    steps = launched(records, repetitions)
    medians: dict[str, Any] = {
        step: {trust: float(np.median(times)) for trust, times in zip(TRUST, found, strict=True)}
        for step, found in steps.items()
    }
    medians["both"] = {trust: sum(each[trust] for each in medians.values()) for trust in TRUST}
    print(
        table(
            [f"ms, {records:,} records, d = {D}, {RANKS} ranks", *map(repr, TRUST), "ratio"],
            [
                [step, *(1e3 * each[trust] for trust in TRUST), each["sum"] / each["all"]]
                for step, each in medians.items()
            ],
        )
    )
    masks = masks_of_rank_0()
    sizes = (D, 10_000) if chosen.smoke else (D, 10_000, 1_000_000)
    seconds = {}
    for size in sizes:
        numbers = np.arange(size)
        (times,) = interleaved(lambda: masks.masked(numbers, b"0" * 32), repetitions=repetitions)  # noqa: B023
        seconds[str(size)] = float(np.median(times))
    print()
    print(table(["numbers", "ms of masks a rank"], [[k, 1e3 * v] for k, v in seconds.items()]))
    record("secure_sum", {"records": records, "steps": medians, "masks": seconds}, chosen)


if __name__ == "__main__":
    main()
