"""Private choices. Of 10^7 candidates: seconds and extra memory of the exponential mechanism and permute-and-flip, against one argmax. Of
DP-SGD runs: accuracy, epsilon and runs of private selection, beside dp_accounting's bounds (private_selection_tables.py).

Bytes: the utilities are 80 MB and are read three times in chunks of 8 MB; an argmax reads them once.
"""

from __future__ import annotations

import functools
import os
import statistics
from typing import Any

import numpy as np

from benchmarks.harness import interleaved, options, ratio, record, table
from benchmarks.overhead import peak_memory
from benchmarks.private_selection_tables import gaussian_table, picture, runs_tables
from dpbo.mechanisms import ExponentialMechanism, PermuteAndFlipMechanism
from dpbo.privacy import Sensitivity

QUANTUM = 2.0**-20


def main() -> None:
    """Print seconds, ratio and memory."""
    chosen = options(__doc__)
    count, repetitions = (10**5, 2) if chosen.smoke else (10**7, 5)
    utilities = np.random.default_rng(chosen.seed).integers(-(2**40), 2**40, size=count)
    rows: list[tuple[object, ...]] = []
    figures: dict[str, Any] = {}
    for mechanism in (ExponentialMechanism.of(0.5), PermuteAndFlipMechanism.of(0.5)):
        law = mechanism.law(Sensitivity(1.0, 1.0, 1.0), [QUANTUM])
        work = functools.partial(mechanism._sample, utilities, [QUANTUM], law, os.urandom)
        extra = peak_memory(work)
        choose, argmax = interleaved(work, utilities.argmax, repetitions=repetitions)
        name = type(mechanism).__name__
        rows.append((name, statistics.median(choose), "< 5", ratio(choose, argmax), extra))
        figures[name] = {"seconds": statistics.median(choose), "ratio to argmax": ratio(choose, argmax), "extra MiB": extra}
    print(f"{count:,} candidates, one thread\n" + table(("mechanism", "seconds", "bound", "times argmax", "extra MiB"), rows))
    figures["runs"], figures["Gaussian runs"] = runs_tables(chosen.smoke), gaussian_table(chosen.smoke)
    if chosen.plot is not None:
        picture(figures["runs"], chosen.plot)
    record("selection", figures, chosen)


if __name__ == "__main__":
    main()
