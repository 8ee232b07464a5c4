"""Which tests run which lines, from coverage data that was recorded with a context a test; quick tests first."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

import coverage


def covering(path: str) -> Mapping[str, Mapping[int, list[str]]]:
    """For each file under dpbo/, for each line, the tests that run it, those of the fewest lines first."""
    data = coverage.CoverageData(path)
    data.read()
    runs: dict[str, dict[int, list[str]]] = {}
    weight: dict[str, int] = {}
    for file in data.measured_files():
        inside = pathlib.PurePath(file.rpartition("/dpbo/")[2])  # wherever the tree lay that was measured
        lines = {line: [_test(c) for c in contexts if c] for line, contexts in data.contexts_by_lineno(file).items()}
        runs[str(inside)] = lines
        for tests in lines.values():
            for test in tests:
                weight[test] = weight.get(test, 0) + 1
    return {file: {n: sorted(tests, key=lambda t: weight[t]) for n, tests in lines.items()} for file, lines in runs.items()}


def _test(context: str) -> str:
    return context.partition("|")[0]
