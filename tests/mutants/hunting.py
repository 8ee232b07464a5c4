"""Run tests against a sabotaged copy of the package, each mutant in a forked process of its own.

The parent has imported the heavy libraries and never dpbo; a child takes a copy of the tree in which one file is changed, so that processes
which its tests start are sabotaged too. The first test that fails is the killer, also one that never ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import botorch  # noqa: F401
import dp_accounting  # noqa: F401
import hypothesis  # noqa: F401
import mpmath  # noqa: F401
import pytest
import scipy.stats  # noqa: F401
import sklearn.ensemble  # noqa: F401
import sqlalchemy  # noqa: F401
import torch

from tests.mutants.mutant import ROOT, Sabotage

SECONDS = 240.0
COPIED = ("dpbo", "tests", "benchmarks", "examples", "notebooks", "docs", "pyproject.toml", "README.md", "CONTRIBUTING.md", "SECURITY.md")
Plan = Callable[[Sabotage], Iterator[Sequence[str]]]


@dataclass
class _Hunt:
    """One mutant under way in one copy: tests are tried in groups, until one kills."""

    mutant: Sabotage
    home: pathlib.Path
    groups: Iterator[Sequence[str]]
    process: int = 0
    started: float = 0.0
    tests: Sequence[str] = field(default_factory=list)

    def begin(self) -> bool:
        """Fork for the next group of tests; False where none is left."""
        self.tests = next(filter(None, self.groups), ())
        if not self.tests:
            return False
        _change(self.home, self.mutant.file, self.mutant.source())
        (self.home / "outcome.json").unlink(missing_ok=True)
        self.started, self.process = time.monotonic(), os.fork()
        if not self.process:
            _run_tests(self.home, self.tests)
        return True

    def killer(self) -> str | None:
        """The test that failed, "" where none did, None while they run."""
        done, status = os.waitpid(self.process, os.WNOHANG)
        if not done and time.monotonic() - self.started < SECONDS:
            return None
        if not done:
            os.killpg(self.process, signal.SIGKILL)  # a test that never ends fails by itself; the group was too slow to decide anything
            os.waitpid(self.process, 0)
            return ""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)  # what its tests left behind
        if not os.WIFEXITED(status) or not (self.home / "outcome.json").exists():
            return ""
        return str(json.loads((self.home / "outcome.json").read_text()))


def hunt(mutants: Sequence[Sabotage], plan: Plan, workers: int, found: Callable[[Sabotage, str], None]) -> None:
    """Try every mutant; `plan` gives the groups of tests to try in turn, `found` hears of each its killer, or "" for a survivor."""
    torch.set_num_threads(1)
    waiting, hunts = list(reversed(mutants)), list[_Hunt]()
    with tempfile.TemporaryDirectory() as folder:
        homes = [_copy(pathlib.Path(folder) / str(i)) for i in range(workers)]
        while waiting or hunts:
            while waiting and homes:
                _start(_Hunt(waiting[-1], homes.pop(), plan(waiting.pop())), hunts, homes, found)
            time.sleep(0.02)
            for under_way in list(hunts):
                killer = under_way.killer()
                if killer is not None:
                    hunts.remove(under_way)
                    if killer:
                        _end(under_way, killer, homes, found)
                    else:
                        _start(under_way, hunts, homes, found)


def _start(new: _Hunt, hunts: list[_Hunt], homes: list[pathlib.Path], found: Callable[[Sabotage, str], None]) -> None:
    if new.begin():
        hunts.append(new)
    else:
        _end(new, "", homes, found)


def _end(done: _Hunt, killer: str, homes: list[pathlib.Path], found: Callable[[Sabotage, str], None]) -> None:
    _change(done.home, done.mutant.file, (ROOT / "dpbo" / done.mutant.file).read_text())
    homes.append(done.home)
    found(done.mutant, killer)


def _copy(home: pathlib.Path) -> pathlib.Path:
    home.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, home / name, ignore=shutil.ignore_patterns("_build"))
        else:
            shutil.copy2(source, home / name)
    return home


def _change(home: pathlib.Path, file: str, text: str) -> None:
    """Write the file; its compiled form goes, since a change within a second and of the same length would pass for the old one."""
    path = home / "dpbo" / file
    path.write_text(text)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()


class _FirstFailure:
    """A pytest plugin that remembers the first test that failed."""

    name = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A test, its fixtures or its end."""
        self.name = self.name or (report.nodeid if report.failed else "")

    def pytest_collectreport(self, report: Any) -> None:
        """A file that cannot be imported any more."""
        self.name = self.name or (f"{report.nodeid} (import)" if report.failed else "")


def _run_tests(home: pathlib.Path, tests: Sequence[str]) -> None:
    """In the child, and to its end."""
    os.setpgid(0, 0)
    sink = os.open(home / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    sys.dont_write_bytecode = True
    os.environ.update(PYTHONPATH=str(home), PYTHONDONTWRITEBYTECODE="1", PYTHONHASHSEED="0")
    os.chdir(home)
    sys.path[:] = [str(home), *(entry for entry in sys.path if pathlib.Path(entry or ".").resolve() != ROOT)]
    for module in [name for name in sys.modules if name.partition(".")[0] in ("dpbo", "tests")]:
        del sys.modules[module]
    first = _FirstFailure()
    code = 3
    try:
        options = [
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-W",
            "ignore::pytest.PytestAssertRewriteWarning",
            "-m",
            "",
            "--rootdir",
            str(home),
        ]
        code = pytest.main([*options, *tests], plugins=[first])
    except BaseException:
        traceback.print_exc()
    finally:
        lost = code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
        (home / "outcome.json").write_text(json.dumps("" if lost else first.name))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
