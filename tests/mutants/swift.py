"""The quick way for a change inside one function: all tests are collected once, and each mutant is a fork that swaps the function's code.

A pytest plugin takes the place of the loop that runs tests. A child compiles the sabotaged file, puts the new code object into the live
function (so whoever imported it has it) and runs tests one by one until one fails. What is no change of a function's code, such as a number
of the module or a default, is left to `hunting`; processes that a test starts run the true package, which can only let a mutant live.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import resource
import signal
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest
from _pytest.runner import runtestprotocol

from tests.mutants.generic import Generic
from tests.mutants.mutant import ROOT

TEST_SECONDS, SECONDS, MEMORY = 60, 300.0, 8 << 30
Plan = Callable[[Generic], Iterator[str]]
Found = Callable[[Generic, str], None]


def hunt_swiftly(mutants: Sequence[Generic], folders: Sequence[str], plan: Plan, workers: int, found: Found) -> list[Generic]:
    """Try every mutant against the tests that `plan` names, of these folders; `found` hears the killer or "". Returns what it cannot do."""
    hypothesis.settings.register_profile("mutants", database=None)
    loop = _Loop(mutants, plan, workers, found)
    quiet = ["-q", "-s", "--no-header", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    if pytest.main([*quiet, "--rootdir", str(ROOT), *folders], plugins=[loop]) not in (
        pytest.ExitCode.OK,
        pytest.ExitCode.NO_TESTS_COLLECTED,
    ):
        raise RuntimeError("the tests could not be collected")
    return loop.left


@dataclass
class _Child:
    mutant: Generic
    pipe: int
    started: float
    told: str = ""


class _Loop:
    """Forks a child a mutant, in place of running tests."""

    def __init__(self, mutants: Sequence[Generic], plan: Plan, workers: int, found: Found) -> None:
        self._waiting, self._plan, self._workers, self._found = list(reversed(mutants)), plan, workers, found
        self.left: list[Generic] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In the parent, and to the end of the last mutant."""
        hypothesis.settings.load_profile("mutants")
        items = {item.nodeid: item for item in session.items}
        children: dict[int, _Child] = {}
        while self._waiting or children:
            while self._waiting and len(children) < self._workers:
                self._begin(self._waiting.pop(), items, children)
            time.sleep(0.005)
            for process, child in list(children.items()):
                self._look(process, child, children)
        return True

    def _begin(self, mutant: Generic, items: dict[str, pytest.Item], children: dict[int, _Child]) -> None:
        swap = swap_of(mutant)
        if swap is None:
            self.left.append(mutant)
            return
        reader, writer = os.pipe()
        process = os.fork()
        if not process:
            _run(swap, _chosen(self._plan(mutant), items), writer)
        os.close(writer)
        os.set_blocking(reader, False)
        children[process] = _Child(mutant, reader, time.monotonic())

    def _look(self, process: int, child: _Child, children: dict[int, _Child]) -> None:
        with contextlib.suppress(BlockingIOError):
            child.told += os.read(child.pipe, 1 << 16).decode()
        done, _ = os.waitpid(process, os.WNOHANG)
        if not done and time.monotonic() - child.started < SECONDS:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        if not done:
            os.waitpid(process, 0)
        with contextlib.suppress(BlockingIOError):
            child.told += os.read(child.pipe, 1 << 16).decode()
        os.close(child.pipe)
        del children[process]
        self._found(child.mutant, _verdict(child.told.splitlines()) if done else "")


def _chosen(tests: Iterator[str], items: dict[str, pytest.Item]) -> Iterator[pytest.Item]:
    """These tests; of a file or a folder all."""
    for test in tests:
        yield from [items[test]] if test in items else [item for name, item in items.items() if name.startswith(test)]


def _verdict(lines: Sequence[str]) -> str:
    """A child says "+ test" before each, "- test" where it fails, "." at the end: without an end the last test broke it."""
    failed = [line[2:] for line in lines if line.startswith("- ")]
    if failed:
        return failed[0]
    if lines and lines[-1] == ".":
        return ""
    return f"{lines[-1][2:]} (breaks off)" if lines else ""


def _run(swap: Callable[[], None], items: Iterator[pytest.Item], writer: int) -> None:
    """In the child, and to its end."""
    os.setpgid(0, 0)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    swap()
    for item in items:
        os.write(writer, f"+ {item.nodeid}\n".encode())
        signal.alarm(TEST_SECONDS)
        if any(report.failed for report in runtestprotocol(item, log=False, nextitem=None)):
            os.write(writer, f"- {item.nodeid}\n".encode())
            os._exit(0)
    os.write(writer, b".\n")
    os._exit(0)


def swap_of(mutant: Generic) -> Callable[[], None] | None:
    """What puts the sabotaged code into the live function; None where the change is not inside a function's code."""
    module = importlib.import_module("dpbo." + mutant.file.removesuffix(".py").replace("/", "."))
    codes = list(_codes(compile(mutant.source(), str(module.__file__), "exec")))
    for function in _functions(module, mutant.function.split(".")):
        old = function.__code__
        new = next((code for code in codes if (code.co_qualname, code.co_firstlineno) == (old.co_qualname, old.co_firstlineno)), None)
        if new is not None and old.co_firstlineno <= min(mutant.lines()) and not _same(old, new) and new.co_freevars == old.co_freevars:
            return functools.partial(setattr, function, "__code__", new)
    return None


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes(constant)


def _same(old: types.CodeType, new: types.CodeType) -> bool:
    parts = [(code.co_code, [c for c in code.co_consts if not isinstance(c, types.CodeType)], list(_codes(code))) for code in (old, new)]
    (code, consts, inner), (other, others, nested) = parts
    alike = code == other and repr(consts) == repr(others) and len(inner) == len(nested)
    return alike and old.co_names == new.co_names and all(map(_same, inner, nested))


def _functions(holder: Any, path: Sequence[str]) -> Iterator[Any]:
    """The outermost function on this path: bare, of a property, or under what wraps it."""
    found = vars(holder).get(path[0]) if path and path[0] else None
    if isinstance(found, type):
        yield from _functions(found, path[1:])
    elif isinstance(found, property):
        yield from (function for function in (found.fget, found.fset) if function is not None)
    else:
        while found is not None and not isinstance(found, types.FunctionType):
            found = next((getattr(found, name) for name in ("__func__", "__wrapped__", "func") if hasattr(found, name)), None)
        while found is not None:
            yield found
            found = getattr(found, "__wrapped__", None)
