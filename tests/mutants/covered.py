"""Which tests run which lines, from coverage data that was recorded with a context a test; quick tests first."""

from __future__ import annotations

import pathlib
import xml.etree.ElementTree as ET
from collections.abc import Mapping

import coverage

EVERY = 0  # stands for every line


def covering(path: str) -> Mapping[str, Mapping[int, list[str]]]:
    """For each file under dpbo/, for each line and for EVERY, the tests that run it, by the report `path`.xml the quickest first."""
    data = coverage.CoverageData(path)
    data.read()
    seconds = _seconds(f"{path}.xml")
    runs: dict[str, dict[int, list[str]]] = {}
    for file in data.measured_files():
        inside = pathlib.PurePath(file.rpartition("/dpbo/")[2])  # wherever the tree lay that was measured
        lines = data.contexts_by_lineno(file).items()
        tests = {line: {context.partition("|")[0] for context in contexts if context} for line, contexts in lines}
        tests[EVERY] = set().union(*tests.values())
        runs[str(inside)] = {line: sorted(names, key=lambda name: (seconds.get(_dotted(name), 0.0), name)) for line, names in tests.items()}
    return runs


def _seconds(report: str) -> dict[str, float]:
    cases = ET.parse(report).iter("testcase")
    return {_dotted(f"{case.get('classname')}.{case.get('name')}"): float(case.get("time", 0)) for case in cases}


def _dotted(test: str) -> str:
    """A test's name as both kinds of file write it."""
    return test.replace(".py::", ".").replace("::", ".").replace("/", ".")
