"""What a GPU makes of dpbo's batched work: every kernel's time, its share of the roof, and the same work by its peers.

    python -m benchmarks.gpu [--smoke] [--json FILE] [--device cuda]

Roofs are measured in the same run: bytes read by a sum, products of matrices, multiply-adds in registers. Each row says how long reading
its input once takes and how long its arithmetic takes if nothing overlaps; the greater of the two is the bound. Without a GPU the sizes
are tiny and the figures mean nothing: it then shows that it runs.
"""

from __future__ import annotations

import torch

from benchmarks import gpu_runs, gpu_sums
from benchmarks.gpu_sums import Ceilings
from benchmarks.harness import options, record, table


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments, device="cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(chosen.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    if device.type != "cuda" and not chosen.smoke:
        raise SystemExit("There is no GPU here; --smoke shows on a CPU that it runs.")
    large, compiled = not chosen.smoke, device.type == "cuda" and not chosen.smoke
    ceilings = Ceilings.of(device, 1 << 30 if large else 1 << 20, 8192 if large else 256)
    print(table([name, "ceiling"], ceilings.rows()), "\n")
    units, sizes = (4_000_000, gpu_sums.SIZES) if large else (5_000, [(8, 3)])
    speed = gpu_sums.speed(units, sizes, ceilings, device, compiled=compiled)
    peers = ["torch, ms", "torch in tf32, ms", *(["compiled in tf32, ms"] if compiled else [])]
    print(table([f"m, {units:,} units", "d", "ms", "share of reading once", "reading, ms", "arithmetic alone, ms", *peers], speed), "\n")
    runs, count, steps = (50, 40_000, 50) if large else (3, 500, 5)
    ucb = gpu_runs.ucb(runs, count, steps, device)
    print(table([f"GP-UCB, {runs} runs, {count:,} candidates, T = {steps}", "seconds"], [*ucb.items()]), "\n")
    users, d, history = (1_000_000, 33, 400) if large else (500, 3, 4)
    gibo = gpu_runs.iteration(users, d, history, device)
    print(table([f"DP-GIBO, d = {d}, b = {d + 1}, {history} points before, {users:,} users", "seconds"], [*gibo.items()]), "\n")
    many = 10**8 if large else 10**5
    choice = gpu_runs.choice(many, ceilings, device)
    print(table([f"private choice among {many:,}", ""], [*choice.items()]), "\n")
    mixture = gpu_runs.mixture(many, ceilings, device, compiled=compiled)
    print(table([f"moments of {many:,} x 2 records, K = 5", "seconds"], [*mixture.items()]))
    figures = {
        "device": name, "ceilings": vars(ceilings), "clipped_sum": speed,
        "ucb": ucb, "gibo": gibo, "choice": choice, "mixture": mixture,
    }  # fmt: skip
    record("gpu", figures, chosen)


if __name__ == "__main__":
    main()
