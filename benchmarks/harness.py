"""What every benchmark shares: its options, fair timing, a table, a record of where it ran."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any


def options(description: str | None, extend: Callable[[argparse.ArgumentParser], object] | None = None) -> argparse.Namespace:
    """The command line of a benchmark; `extend` adds options of its own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--smoke", action="store_true", help="a tiny version, to see that it runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the figures with date, machine and versions")
    parser.add_argument("--plot", type=pathlib.Path, metavar="DIR", help="write pictures where the benchmark has any")
    if extend is not None:
        extend(parser)
    return parser.parse_args()


def interleaved(*works: Callable[[], Any], repetitions: int, wait: Callable[[], Any] = lambda: None) -> list[list[float]]:
    """Seconds of each work, run in turn so that a drifting machine slows all alike; one warm-up each. `wait` ends what a GPU still does."""
    for work in works:
        work()
    times: list[list[float]] = [[] for _ in works]
    for _ in range(repetitions):
        for work, seconds in zip(works, times, strict=True):
            wait()
            start = time.perf_counter()
            work()
            wait()
            seconds.append(time.perf_counter() - start)
    return times


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    """Median of the paired ratios."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    cells = [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    lines = [header, ["---"] * len(header), *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def record(name: str, figures: Mapping[str, Any], chosen: argparse.Namespace) -> None:
    """Write the figures where --json asks for them."""
    if chosen.json is None:
        return
    where = {
        "benchmark": name,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "versions": {
            "python": platform.python_version(),
            **{p: version(p) for p in ("dpbo", "torch", "gpytorch", "botorch", "numpy", "scipy")},
        },
        "seed": chosen.seed,
        "smoke": chosen.smoke,
    }
    chosen.json.write_text(json.dumps({**where, "figures": dict(figures)}, indent=2) + "\n")
