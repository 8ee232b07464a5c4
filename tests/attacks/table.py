"""A pytest plugin for the classes of attack: the marker `attack("A1")`, what a test measured, and the table that `make audit` prints.

`deep` marks what is too slow for `make test`; `make audit` runs every attack, deep or not, and fails where a class has no test that passed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

CLASSES = {
    "A1": "float holes", "A2": "precision", "A3": "timing of samplers", "A4": "float sensitivity", "A5": "NaN, inf, empty",
    "A6": "clipped computed, raw used", "A7": "data-dependent control flow", "A8": "data set size", "A9": "adjacency constant",
    "A10": "under-charged selection", "A11": "sparse vector variants", "A12": "unused noise", "A13": "sign swaps", "A14": "underflow",
    "A15": "accountant", "A16": "resume and concurrency", "A17": "randomness", "A18": "projection", "A19": "conditional guarantee",
    "A20": "groups", "A21": "side outputs", "A22": "several runs", "A23": "sampling", "A24": "end to end",
}  # fmt: skip

Measured = Callable[..., None]


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--attacks` prints the table."""
    parser.addoption("--attacks", action="store_true", help="print class, test, N, measured / claimed; fail where a class has no test")


def pytest_configure(config: pytest.Config) -> None:
    """Make the markers known under --strict-markers."""
    config.addinivalue_line("markers", "attack(name): the test tries this class of attack, A1 to A24")
    config.addinivalue_line("markers", "deep: too slow for `make test`; run by `make audit`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Classes travel with the reports, from whichever worker runs the test. In an audit the long ones begin first."""
    if config.getoption("--attacks"):
        items.sort(key=lambda item: item.get_closest_marker("deep") is None)
    for item in items:
        for marker in item.iter_markers("attack"):
            if marker.args[0] not in CLASSES:
                raise pytest.UsageError(f"{item.nodeid}: attack({marker.args[0]!r}) is not one of A1 to A24")
            item.user_properties.append(("attack", marker.args[0]))


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Measured:
    """`measured(n, value, claim, least=.9)`: what the table shows. A value must not exceed its claim, and reach so much of it."""

    def note(n: int, value: float | None = None, claim: float | None = None, *, least: float | None = None) -> None:
        shown = "" if value is None else f"{value:.4g}" if claim is None else f"{value:.4g} / {claim:.4g}"
        request.node.user_properties.append(("measured", (n, shown)))
        if value is not None and claim is not None:
            assert least is not None, "say how much of the claim is to be reached, or 0"
            assert least * claim <= value <= claim, f"measured {value}, claimed {claim}, to reach {least} of it"

    return note


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The table, in the order of the classes."""
    if not config.getoption("--attacks"):
        return
    tried = _tried(terminalreporter)
    terminalreporter.section("attacks: class, test, N, measured / claimed")
    for name, title in CLASSES.items():
        for outcome, test, n, shown in sorted(tried[name], key=lambda row: row[1]) or [("MISSING", "no test", "", "")]:
            terminalreporter.write_line(f"{name:4} {title:28} {outcome:8} {n:>11} {shown:>17}  {test}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A class that nothing tried is a failure of the audit. Workers see their share alone and leave it to the one that prints."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.getoption("--attacks") and reporter is not None and not hasattr(session.config, "workerinput"):
        tried = _tried(reporter)
        if any(not any(row[0] == "passed" for row in tried[name]) for name in CLASSES):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _tried(reporter: Any) -> dict[str, list[tuple[str, str, str, str]]]:
    """Outcome, test, N and figures of every test, by class."""
    tried: dict[str, list[tuple[str, str, str, str]]] = defaultdict(list)
    for outcome in ("passed", "failed", "error", "skipped", "xfailed"):
        for report in reporter.stats.get(outcome, []):
            notes = getattr(report, "user_properties", [])
            figures = [value for key, value in notes if key == "measured"] or [("", "")]
            for name in (value for key, value in notes if key == "attack"):
                tried[name] += [(outcome, report.nodeid, f"{n:,}" if n else "", shown) for n, shown in figures]
    return tried
