"""Users over many processes: 1, 2 and 4 ranks on this machine against one process with all records,
and what crosses between them.

    python -m benchmarks.machines [--smoke] [--json FILE]

Two questions over the same records, one thread a process: DP-GIBO's clipped gradient (11 points, 10
dimensions) and one step of EM (5 full components, 4 dimensions). More ranks than cores cannot be
faster; what they cost beyond their share is what this shows. Steps between ranks are timed alone,
too: an agreement (128 bytes a rank), and sums of so many int64 by size, on the loopback of one
machine.
"""

import json
import multiprocessing
import os
import pathlib
import statistics
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.harness import interleaved, options, record, table
from dpbo import Adjacency, Budget, Curator, PrivacyUnit, Ranks
from dpbo.gibo import ClippedGradient
from dpbo.mechanisms import GaussianMechanism
from dpbo.papers.em.mixture_moments import MixtureMoments
from dpbo.queries import ClippedMean
from dpbo.queries.ball import Ball
from dpbo.queries.query import Query

D = 10
B = 11
K = 5
SIZES = (33, 1_000, 100_000, 1_000_000)


def shard(records: int, ranks: Ranks | None) -> torch.Tensor:
    """Every rank's own part of the same users."""
    rank, size = (0, 1) if ranks is None else (ranks.rank, ranks.world_size)
    user = torch.arange(rank, records, size, dtype=torch.float64)
    return torch.stack([torch.sin(user * (k + 1)) for k in range(D)], dim=1)


def questions() -> dict[str, Query]:
    """What is asked, by name."""
    draw = torch.Generator().manual_seed(0)
    X = torch.rand(B, D, generator=draw, dtype=torch.float64)
    W = torch.randn(D, B, generator=draw, dtype=torch.float64)
    natural = torch.randn(K, 1 + 4 + 10, generator=draw, dtype=torch.float64)
    return {
        "clipped gradient": ClippedGradient(
            lambda x, r: (r - x).abs().sum(1), X, weights=W, clip=1.0
        ),
        "EM step": MixtureMoments(4, ball=Ball(2.0), natural=natural, vectors=lambda r: r[:, :4]),
        "one number": ClippedMean(lambda _, r: r[:, 0], score_range=(-1.0, 1.0)),
    }


def median(work: Callable[[], Any], repetitions: int) -> float:
    """Seconds, after a warm-up."""
    return statistics.median(interleaved(work, repetitions=repetitions)[0])


def measured(ranks: Ranks | None, records: int, repetitions: int) -> dict[str, float]:
    """Seconds of each question's evaluation, of a release, and of the steps between ranks."""
    curator = Curator(
        shard(records, ranks),
        unit=PrivacyUnit("user"),
        adjacency=Adjacency.REPLACE_ONE,
        budget=Budget.gdp(1.0),
        ranks=ranks,
    )
    found = {
        name: median(lambda: curator.evaluate(query), repetitions)  # noqa: B023
        for name, query in questions().items()
    }
    handles = [curator.evaluate(questions()["clipped gradient"]) for _ in range(11)]
    found["release"] = median(lambda: curator.release(handles.pop(), GaussianMechanism(1000.0)), 10)
    if ranks is not None:
        found["agreement"] = median(lambda: ranks.all_gather(b"0" * 128), 50)
        for size in SIZES:
            numbers = torch.ones(size, dtype=torch.int64)
            found[f"sum of {size}"] = median(
                lambda: (ranks.reduce_tensor(numbers), ranks.all_gather(b"0")),  # noqa: B023
                20,
            )
    return found


def one_rank(rank: int, size: int, records: int, repetitions: int, folder: pathlib.Path) -> None:
    """One of the processes; the first writes what it measured."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=size
    )
    found = measured(Ranks(), records, repetitions)
    if rank == 0:
        (folder / "found").write_text(json.dumps(found))
    dist.destroy_process_group()


def launched(size: int, records: int, repetitions: int) -> dict[str, float]:
    """What so many ranks took."""
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        processes = [
            context.Process(target=one_rank, args=(rank, size, records, repetitions, folder))
            for rank in range(size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        return json.loads((folder / "found").read_text())


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments)
    torch.set_num_threads(1)
    records, repetitions, sizes = (5_000, 2, (2,)) if chosen.smoke else (2_000_000, 5, (1, 2, 4))
    one = measured(None, records, repetitions)
    several = {size: launched(size, records, repetitions) for size in sizes}
    names = [*one]
    rows = [
        [name, 1e3 * one[name], *(1e3 * several[size][name] for size in sizes)] for name in names
    ]
    print(
        table(
            [
                f"ms, {records:,} records, {os.cpu_count()} cores",
                "one process",
                *(f"{size} ranks" for size in sizes),
            ],
            rows,
        )
    )
    between = [
        [name, *(1e3 * several[size][name] for size in sizes)]
        for name in several[sizes[-1]]
        if name not in names
    ]
    print()
    print(
        table(
            ["ms between ranks, gloo over loopback", *(f"{size} ranks" for size in sizes)], between
        )
    )
    record(
        "machines",
        {
            "records": records,
            "one": one,
            "ranks": {str(size): found for size, found in several.items()},
        },
        chosen,
    )


if __name__ == "__main__":
    main()
