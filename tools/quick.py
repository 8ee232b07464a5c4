"""Run mypy and the unit tests of what differs from HEAD, in under a minute: `make quick`, in the
repository's root.
"""

import ast
import pathlib
import re
import subprocess
import sys
import time

import pytest

LAST_START = time.monotonic() + 40  # tests that would begin later are skipped
MOST_FILES = 12  # collecting a test file takes time


def changed_lines() -> dict[str, set[int]]:
    """Python files that differ from HEAD or are new, each with the numbers of the lines that
    differ.
    """
    lines: dict[str, set[int]] = {}
    for line in subprocess.check_output(
        ["git", "diff", "-U0", "--diff-filter=d", "HEAD", "--", "*.py"], text=True
    ).splitlines():
        if line.startswith("+++ b/"):
            lines[path := line[6:]] = set()
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            lines[path].update(range(int(hunk[1]), int(hunk[1]) + int(hunk[2] or 1) + 1))
    new = subprocess.check_output(
        ["git", "ls-files", "-o", "--exclude-standard", "--", "*.py"], text=True
    ).splitlines()
    return lines | {path: set(range(10_000)) for path in new}


def ranked_tests(path: str, lines: set[int], tests: dict[str, str]) -> dict[str, float]:
    """Tests of one changed file, ranked: 0 for itself and its namesakes, 1 where it is imported, 1
    + 1/n for n mentions of what changed.
    """
    if pathlib.Path(path).name.startswith("test_"):
        return {path: 0}
    *folders, name = path.removesuffix(".py").removesuffix("/__init__").split("/")
    namesake = "/".join(["tests/unit", *folders[1:], f"test_{name}"])
    imports = re.compile(
        rf"\b{'.'.join([*folders, name])}\b|from {'.'.join(folders)} import .*\b{name}\b"
    )
    defined = [
        node
        for node in ast.parse(pathlib.Path(path).read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    changed = [
        node.name
        for node in defined
        if any(node.lineno <= line <= (node.end_lineno or 0) for line in lines)
    ]
    ranks: dict[str, float] = {}
    for test, text in tests.items():
        named = len(re.findall(rf"\b(?:{'|'.join(changed)})\b", text)) if changed else 0
        if test.startswith(namesake) or imports.search(text) or named:
            ranks[test] = (
                0 if test.startswith(namesake) else 1 if imports.search(text) else 1 + 1 / named
            )
    return ranks


class Clock:
    """A pytest plugin that skips tests once the time is up."""

    def pytest_runtest_setup(self) -> None:
        if time.monotonic() > LAST_START:
            pytest.skip("the minute of `make quick` is over; `make test` runs it")


if __name__ == "__main__":  # worker processes of tests import this file
    types = subprocess.Popen([sys.executable, "-m", "mypy"])
    tests = {
        str(file): file.read_text()
        for file in sorted(pathlib.Path("tests/unit").rglob("test_*.py"))
    }
    ranks = [
        item
        for path, lines in changed_lines().items()
        for item in ranked_tests(path, lines, tests).items()
    ]
    chosen = list(dict.fromkeys(test for test, _ in sorted(ranks, key=lambda item: item[1])))[
        :MOST_FILES
    ]
    sys.stdout.write("\n".join(chosen or ["No unit test imports or names what changed."]) + "\n")
    failed = bool(chosen) and pytest.main(
        ["-q", "--maxfail=5", *chosen], plugins=[Clock()]
    ) not in (0, 5)
    sys.exit(types.wait() or failed)
