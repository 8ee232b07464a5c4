"""What a GPU makes of dpbo's batched work: every kernel's time, its share of the roof, and the same
work by its peers.

    python -m benchmarks.gpu [--smoke] [--json FILE] [--device cuda]

Roofs are measured in the same run: bytes read by a sum, products of matrices, multiply-adds in
registers. Each row says how long reading its input once takes and how long its arithmetic takes if
nothing overlaps; the greater of the two is the bound. Peers are compiled for each shape alone
(`dynamic=False`). A part is printed and stored as soon as it ends, and one that fails does not stop
the next. Without a GPU the sizes are tiny and the figures mean nothing: it then shows that it runs.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from benchmarks import gpu_runs, gpu_sums
from benchmarks.gpu_sums import Ceilings
from benchmarks.harness import options, record, table


class Sizes(NamedTuple):
    """How large each part is: users, points, runs, candidates and steps."""

    bytes: int
    matrix: int
    units: int
    shapes: Sequence[tuple[int, int]]
    ucb: tuple[int, int]
    gibo: tuple[int, int, int]
    streamed: Sequence[int]
    kept: int
    many: int
    steps: Sequence[tuple[int, int]]
    draws: Sequence[int]


LARGE = Sizes(
    bytes=1 << 30,
    matrix=8192,
    units=4_000_000,
    shapes=gpu_sums.SIZES,
    ucb=(40_000, 50),
    gibo=(1_000_000, 33, 400),
    streamed=(1_000_000, 4_000_000),
    kept=256,
    many=10**8,
    steps=((100, 64), (1000, 64), (1000, 256), (5000, 32)),
    draws=(10**5, 10**6, 10**7, 10**8),
)
TINY = Sizes(
    bytes=1 << 20,
    matrix=256,
    units=5_000,
    shapes=[(8, 3)],
    ucb=(500, 5),
    gibo=(500, 3, 4),
    streamed=(500,),
    kept=4,
    many=10**5,
    steps=((40, 16),),
    draws=(10**4,),
)


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments, device="cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(chosen.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    if device.type != "cuda" and not chosen.smoke:
        raise SystemExit("There is no GPU here; --smoke shows on a CPU that it runs.")
    sizes = TINY if chosen.smoke else LARGE
    compiled = device.type == "cuda" and not chosen.smoke
    figures: dict[str, Any] = {"device": name}
    failed = []

    def part(what: str, header: list[str], measure: Callable[[], dict[str, float]]) -> None:
        try:
            found = measure()
        except Exception:
            # Also of a compiler or a driver: the other parts are still wanted.
            traceback.print_exc()
            failed.append(what)
        else:
            print(table(header, [*found.items()]), "\n", flush=True)
            figures[what] = found
            record("gpu", figures, chosen)

    # Unknown until they are measured, and if that fails.
    ceilings = Ceilings.unknown()

    def measured_ceilings() -> dict[str, float]:
        nonlocal ceilings
        ceilings = Ceilings.of(device, sizes.bytes, sizes.matrix)
        return dict(ceilings.rows())

    part("ceilings", [name, "ceiling"], measured_ceilings)
    # Each by itself, so that a shape that does not compile loses only its own row.
    for size in sizes.shapes:
        measure = functools.partial(
            gpu_sums.speed, sizes.units, *size, ceilings, device, compiled=compiled
        )
        shape = "clipped sum, m = {}, d = {}".format(*size)
        part(shape, [f"{shape}, {sizes.units:,} units", ""], measure)
    count, steps = sizes.ucb
    header = [f"GP-UCB, {count:,} candidates, T = {steps}", "seconds"]
    part("ucb", header, lambda: gpu_runs.ucb(count, steps, device))
    users, d, history = sizes.gibo
    header = [f"DP-GIBO, d = {d}, b = {d + 1}, {history} points before, {users:,} users", "seconds"]
    part("gibo", header, lambda: gpu_runs.iteration(users, d, history, device))
    for users in sizes.streamed:
        points = sizes.kept
        what = f"streamed, {users:,} users"
        measure = functools.partial(gpu_runs.streamed, users, d, points, device)
        part(
            what,
            [f"{what}, d = {d}, losses kept at {points} points, from pinned memory", "seconds"],
            measure,
        )
    many = sizes.many
    part(
        "choice",
        [f"private choice among {many:,}", ""],
        lambda: gpu_runs.choice(many, ceilings, device),
    )
    header = [f"moments of {many:,} x 2 records, K = 5", "seconds"]
    part("mixture", header, lambda: gpu_runs.mixture(many, ceilings, device, compiled=compiled))
    for parameters, records in sizes.steps:
        what = f"DP-SGD, width {parameters}, {records} records"
        measure = functools.partial(gpu_runs.dpsgd_step, parameters, records, device)
        part(what, [what, ""], measure)
    for draws in sizes.draws:
        what = f"noise, {draws:,} draws"
        part(what, [what, "seconds"], functools.partial(gpu_runs.noise, draws, device))
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
