"""A pytest plugin for the classes of attack: the marker `attack("A1", "A2")`, what a test measured,
and the table of what was tried.

`deep` marks what is too slow for `make test`: long statistics, whole-run audits, kill campaigns.
`make audit` runs these alone.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.attacks.marks import CLASSES

Measured = Callable[..., None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--attacks",
        action="store_true",
        help="print for each class of attack its tests, their N, measured / claimed",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "attack(*names): the test tries these classes of attack (tests/attacks/marks.py)"
    )
    config.addinivalue_line(
        "markers", "slip(written, done): a likely mistake, and what dpbo does about it"
    )
    config.addinivalue_line("markers", "deep: too slow for `make test`; run by `make audit`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Classes travel with the reports, from whichever worker runs the test."""
    for item in items:
        for name in (name for marker in item.iter_markers("attack") for name in marker.args):
            if name not in CLASSES:
                raise pytest.UsageError(
                    f"{item.nodeid}: attack({name!r}) is no class of tests/attacks/marks.py"
                )
            item.user_properties.append(("attack", name))


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Measured:
    """`measured(n, value, claim, least=.9)`: what the table shows. A value must not exceed its
    claim, and reach so much of it.
    """

    def note(
        n: int,
        value: float | None = None,
        claim: float | None = None,
        *,
        least: float | None = None,
    ) -> None:
        shown = " / ".join(f"{number:.4g}" for number in (value, claim) if number is not None)
        request.node.user_properties.append(("measured", (n, shown)))
        if value is not None and claim is not None:
            assert least is not None, "say how much of the claim is to be reached, or 0"
            assert least * claim <= value <= claim, (
                f"measured {value}, claimed {claim}, to reach {least} of it"
            )

    return note


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """For each class how many tests passed, failed or were skipped; below it those that measured
    something.
    """
    if not config.getoption("--attacks"):
        return
    terminalreporter.section("attacks: class, passed / failed / skipped; N, measured / claimed")
    for name, title in CLASSES.items():
        reports = [
            (outcome, report)
            for outcome, report in _tried(terminalreporter)
            if ("attack", name) in report.user_properties
        ]
        passed, skipped = (
            sum(outcome == wanted for outcome, _ in reports) for wanted in ("passed", "skipped")
        )
        terminalreporter.write_line(
            f"{name:4} {passed:4} / {len(reports) - passed - skipped} / {skipped}  {title}"
        )
        for outcome, report in sorted(reports, key=lambda row: row[1].nodeid):
            for n, shown in (value for key, value in report.user_properties if key == "measured"):
                terminalreporter.write_line(
                    f"     {outcome:8} {n:>12,} {shown:>17}  {report.nodeid.removeprefix('tests/')}"
                )


def _tried(reporter: Any) -> list[tuple[str, Any]]:
    outcomes = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
    return [
        (outcome, report)
        for outcome in outcomes
        for report in reporter.stats.get(outcome, [])
        if hasattr(report, "user_properties")
    ]
