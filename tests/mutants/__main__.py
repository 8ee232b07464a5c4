"""Apply each sabotage to a copy of the package and run the test that must catch it; fail if that
test passes.

    python -m tests.mutants             all sabotages
    python -m tests.mutants --some 12   a dozen that depend on the commit, as CI runs
    python -m tests.mutants noise       those whose name or module contains a word

Each test runs in a process of its own. A sabotage counts as caught only if the test itself fails: a
test that cannot be collected, is skipped or is not there is an error. Whether each test passes on
the sound package is for `make test` to say.
"""

import argparse
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.mutants.sabotages import ROOT, SABOTAGES, Sabotage

COPIED = ("dpbo", "tests", "docs", "benchmarks", "examples", "tools", "pyproject.toml", "README.md")
SECONDS = 240


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every chosen sabotage is caught by its test."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__.partition("\n")[0] if __doc__ else None
    )
    parser.add_argument(
        "words", nargs="*", help="parts of names or modules; without any, all sabotages"
    )
    parser.add_argument(
        "--some", type=int, metavar="N", help="only N of them, which ones depends on the commit"
    )
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args(arguments)
    chosen = [
        s
        for s in SABOTAGES
        if not asked.words or any(word in s.name or word in s.where for word in asked.words)
    ]
    if asked.some is not None:
        chosen = some(chosen, asked.some, commit())
    started = time.monotonic()
    passed = 0
    with ThreadPoolExecutor(asked.workers) as pool:
        for sabotage, verdict in zip(chosen, pool.map(caught, chosen), strict=True):
            passed += verdict == "caught"
            print(f"{verdict:8} {sabotage.name}  ->  {sabotage.test}", flush=True)
    print(f"{passed} of {len(chosen)} sabotages caught in {time.monotonic() - started:.0f} s")
    return 0 if passed == len(chosen) > 0 else 1


def commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def some(sabotages: Sequence[Sabotage], count: int, commit: str) -> list[Sabotage]:
    """`count` of the sabotages; another commit chooses others."""
    return sorted(sabotages, key=lambda s: hashlib.sha256((commit + s.name).encode()).digest())[
        :count
    ]


def caught(sabotage: Sabotage) -> str:
    """ "caught", "LIVES", or "ERROR" if the test did not decide."""
    with tempfile.TemporaryDirectory() as folder:
        home = pathlib.Path(folder)
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
            copy(ROOT / name, home / name)
        file = sabotage.file(home)
        file.write_text(sabotage.applied(file.read_text()))
        # A change of the same length within a second would not be seen.
        shutil.rmtree(file.parent / "__pycache__", ignore_errors=True)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-m",
            "",
            "-p",
            "no:cacheprovider",
            sabotage.test,
        ]
        # Options of the run that tries sabotages are not for this one.
        ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment = {**ours, "PYTHONPATH": str(home), "PYTHONHASHSEED": "0"}
        try:
            done = subprocess.run(
                command, cwd=home, env=environment, capture_output=True, text=True, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            # A test that never ends has failed.
            return "caught"
    verdicts = {pytest.ExitCode.TESTS_FAILED: "caught", pytest.ExitCode.OK: "LIVES"}
    if (
        verdict := verdicts.get(pytest.ExitCode(done.returncode), "ERROR")
    ) == "ERROR" or "1 skipped" in done.stdout:
        print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
    return verdict


if __name__ == "__main__":
    sys.exit(main())
