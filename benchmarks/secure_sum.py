"""What it costs that ranks do not trust each other: an evaluation and a release of DP-GIBO's
clipped gradient by four ranks that do, and by four that do not (`Ranks(trust="sum")`), and the
masks of long answers alone.

    python -m benchmarks.secure_sum [--smoke] [--json FILE]

The records are divided among the ranks; one thread a process. Both kinds of trust take turns. A
rank's masks are timed by themselves, with three other ranks, without sending them, in seconds of
the processor. How busy the machine is stands beside the figures: the average number of programs
that ran or waited in the last minute.
"""

import json
import multiprocessing
import os
import pathlib
import tempfile
import threading
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.harness import options, record, table
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
    found: dict[str, list[float]] = {}
    # The first turn warms up.
    for turn in range(repetitions + 1):
        for trust, curator in zip(TRUST, curators, strict=True):
            begun = clocks()
            handle = curator.evaluate(query)
            evaluated = clocks()
            curator.release(handle, noise)
            ended = clocks()
            steps = {
                "evaluate": evaluated - begun,
                "release": ended - evaluated,
                "both": ended - begun,
            }
            for step, (seconds, own) in steps.items() if turn else ():
                found.setdefault(f"{step}, {trust}", []).append(float(seconds))
                found.setdefault(f"{step}, {trust}, processor", []).append(float(own))
    (folder / f"{rank}").write_text(json.dumps(found))
    dist.destroy_process_group()


def clocks() -> Any:
    """Seconds of the clock, and of this process on a processor."""
    return np.array([time.perf_counter(), time.process_time()])


def launched(records: int, repetitions: int) -> list[dict[str, list[float]]]:
    """What each rank measured."""
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
        return [json.loads((folder / f"{rank}").read_text()) for rank in range(RANKS)]


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
    load = os.getloadavg()[0]
    records, repetitions = (4_000, 2) if chosen.smoke else (2_000_000, 40)
    ranks = launched(records, repetitions)
    medians: dict[str, dict[str, float]] = {}
    for step in ("evaluate", "release", "both"):
        medians[step] = {trust: float(np.median(ranks[0][f"{step}, {trust}"])) for trust in TRUST}
        medians[f"{step}, processors of all ranks"] = {
            trust: sum(float(np.median(each[f"{step}, {trust}, processor"])) for each in ranks)
            for trust in TRUST
        }
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
        times = []
        for _ in range(repetitions):
            start = time.process_time()
            masks.masked(numbers, bytes(32))
            times.append(time.process_time() - start)
        seconds[str(size)] = float(np.median(times))
    print()
    print(table(["numbers", "ms of masks a rank"], [[k, 1e3 * v] for k, v in seconds.items()]))
    found = {"records": records, "load": load, "steps": medians, "masks": seconds}
    record("secure_sum", found, chosen)


if __name__ == "__main__":
    main()
