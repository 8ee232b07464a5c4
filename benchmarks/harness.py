"""What every benchmark shares: its options, fair timing, paired comparisons, a table, a record of
where it ran.
"""

import argparse
import csv
import datetime
import gzip
import json
import math
import os
import pathlib
import platform
import statistics
import subprocess
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from tqdm import tqdm

from dpbo.records.protected_records import RepeatedRecordsWarning


def options(
    description: str | None, arguments: Sequence[str] | None, **own: Any
) -> argparse.Namespace:
    """The arguments of a benchmark, by default this process's; `own` are its own options with their
    defaults; one that is False is a switch.
    """
    # Benchmarks release about the same public records again and again.
    warnings.simplefilter("ignore", RepeatedRecordsWarning)
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--smoke", action="store_true", help="a tiny version, to see that it runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--json",
        type=pathlib.Path,
        metavar="FILE",
        help="write the figures with date, machine and versions",
    )
    parser.add_argument(
        "--plot",
        type=pathlib.Path,
        metavar="DIR",
        help="write pictures where the benchmark has any",
    )
    for name, default in own.items():
        if isinstance(default, bool):
            parser.add_argument(f"--{name}", action="store_true")
            continue
        parser.add_argument(
            f"--{name}", type=type(default), default=default, help="default: %(default)s"
        )
    return parser.parse_args(arguments)


def with_bar(parts: Collection[Any]) -> Iterable[Any]:
    """The same in turn, with a progress bar on a terminal."""
    return tqdm(parts, disable=None, leave=False)


def interleaved(
    *works: Callable[[], Any], repetitions: int, wait: Callable[[], Any] = lambda: None
) -> list[list[float]]:
    """Seconds of each work, run in turn so that a drifting machine slows all alike; one warm-up
    each. `wait` ends what a GPU still does.
    """
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
    return float(np.median(np.divide(numerator, denominator)))


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table; repetitions as their mean and standard error."""

    def shown(cell: Any) -> str:
        if isinstance(cell, list) and cell:
            mean, error = mean_and_error(cell)
            return f"{mean:.4g} ({error:.2g})"
        return f"{cell:.4g}" if isinstance(cell, float) else str(cell)

    cells = [[shown(cell) for cell in row] for row in rows]
    lines = [header, ["---"] * len(header), *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def table_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table of rows with the same names."""
    return table(list(rows[0]), [list(row.values()) for row in rows])


def named(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """The rows of a table as dicts."""
    return [dict(zip(header, row, strict=True)) for row in rows]


def tabulated(
    name: str, title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Print a table under its title; returns its rows as dicts, under their name."""
    print(f"\n{title}\n{table(header, rows)}")
    return {name: named(header, rows)}


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error, which is NaN of one value."""
    error = float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else math.nan
    return statistics.fmean(values), error


def band(values: Sequence[float]) -> tuple[float, float, float]:
    """10 %, median, 90 %."""
    low, middle, high = np.quantile(np.asarray(values, dtype=np.float64), [0.1, 0.5, 0.9]).tolist()
    return low, middle, high


def picture(
    folder: pathlib.Path, name: str, title: str, losses: Mapping[str, Sequence[float]]
) -> None:
    """Median and 10/90 % band of each method, as a PNG in the folder."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.8 + 0.3 * len(losses)), layout="constrained")
    axes = figure.subplots()
    for row, values in enumerate(losses.values()):
        low, middle, high = band(values)
        axes.plot([low, high], [row, row], color="tab:blue")
        axes.plot([middle], [row], "o", color="tab:blue")
    axes.set_yticks(range(len(losses)), list(losses))
    axes.invert_yaxis()
    axes.set_xlabel(title)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=120)


def rows_of(path: str) -> list[dict[str, str]] | None:
    """The rows of a compressed table below DPBO_DATA; None without it."""
    file = pathlib.Path(os.environ.get("DPBO_DATA", "")) / path
    if "DPBO_DATA" not in os.environ or not file.exists():
        return None
    with gzip.open(file, "rt", newline="") as opened:
        return list(csv.DictReader(opened))


# A list of so many numbers or more holds repetitions.
RUNS = 4


def summary(figures: Any) -> Any:
    """The figures as rows: repetitions become their mean, standard error, median and number; floats
    keep four digits.

    Repetitions are a list of at least `RUNS` numbers, or so many dicts of the same names under
    "runs" or "results".
    """
    if isinstance(figures, Mapping):
        return {
            str(name): summary(_by_name(part) if name in ("runs", "results") else part)
            for name, part in figures.items()
        }
    if isinstance(figures, (list, tuple)):
        if len(figures) >= RUNS and all(isinstance(value, (int, float)) for value in figures):
            error = statistics.stdev(figures) / math.sqrt(len(figures))
            return summary(
                {
                    "mean": statistics.fmean(figures),
                    "se": error,
                    "median": statistics.median(figures),
                }
            ) | {"n": len(figures)}
        return [summary(part) for part in figures]
    return float(f"{figures:.4g}") if isinstance(figures, float) else figures


def _by_name(runs: Any) -> Any:
    """A list of dicts with the same names as a dict of lists; anything else as it is."""
    if (
        isinstance(runs, list)
        and len(runs) >= RUNS
        and all(isinstance(run, Mapping) and run.keys() == runs[0].keys() for run in runs)
    ):
        return {name: [run[name] for run in runs] for name in runs[0]}
    return runs


def as_lines(value: Any, indent: str = "") -> str:
    """JSON with one line a row: what holds nothing nested stands on one line."""
    parts: dict[Any, Any] = {}
    first, last = "[]"
    if isinstance(value, dict):
        parts = {f"{json.dumps(name)}: ": part for name, part in value.items()}
        first, last = "{}"
    elif isinstance(value, list):
        parts = dict(enumerate(value))
    if not any(isinstance(part, (dict, list)) and part for part in parts.values()):
        return json.dumps(value)
    inner = indent + "  "
    lines = []
    for name, part in parts.items():
        title = name if isinstance(value, dict) else ""
        lines.append(f"{inner}{title}{as_lines(part, inner)}")
    return first + "\n" + ",\n".join(lines) + f"\n{indent}{last}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        # dpbo is run from its folder.
        return "not installed"


def _commit() -> str:
    """Of the checkout that the benchmark runs from."""
    folder = pathlib.Path(__file__).parent
    command = ("git", "-C", str(folder), "rev-parse", "--short=8", "HEAD")
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def record(
    name: str, figures: Mapping[str, Any], chosen: argparse.Namespace, *, part: bool = False
) -> None:
    """Write the summary of the figures where --json asks for it.

    A `part` of a benchmark takes its place among the figures of a file that is there, and the
    file's "parts" say when it was measured and with which commit.
    """
    if chosen.json is None:
        return
    stamp = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": _commit(),
    }
    if part and chosen.json.exists():
        stored = json.loads(chosen.json.read_text())
        stored["figures"] |= summary(figures)
        stored["parts"] = stored.get("parts", {}) | dict.fromkeys(figures, stamp)
        chosen.json.write_text(as_lines(stored) + "\n")
        return
    where = {
        "benchmark": name,
        **stamp,
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
        },
        "versions": {
            "python": platform.python_version(),
            **{p: _version(p) for p in ("dpbo", "torch", "gpytorch", "botorch", "numpy", "scipy")},
        },
        "seed": chosen.seed,
        "smoke": chosen.smoke,
    }
    chosen.json.write_text(as_lines({**where, "figures": summary(figures)}) + "\n")
