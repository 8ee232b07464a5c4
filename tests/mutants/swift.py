"""The quick way for a change inside one function: all tests are collected once, and each mutant is a fork that swaps the function's code.

A pytest plugin takes the place of the loop that runs tests. A child compiles the sabotaged file, puts the new code object into the live
function (so whoever imported it has it) and runs tests one by one until one fails. What is no change of a function's code, such as a number
of the module or a default, is left to `hunting`, and so is what no test kills here: processes that a test starts run the true package.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
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

from tests.mutants.mutant import ROOT, Sabotage

TEST_SECONDS, SECONDS, MEMORY = 60, 300.0, 8 << 30
Plan = Callable[[Sabotage], Iterator[str]]
Found = Callable[[Sabotage, str], None]


def hunt_swiftly(mutants: Sequence[Sabotage], folders: Sequence[str], plan: Plan, workers: int, found: Found) -> list[Sabotage]:
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
    mutant: Sabotage
    pipe: int
    started: float
    told: str = ""


class _Loop:
    """Forks a child a mutant, in place of running tests."""

    def __init__(self, mutants: Sequence[Sabotage], plan: Plan, workers: int, found: Found) -> None:
        self._waiting, self._plan, self._workers, self._found = list(reversed(mutants)), plan, workers, found
        self.left: list[Sabotage] = []

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

    def _begin(self, mutant: Sabotage, items: dict[str, pytest.Item], children: dict[int, _Child]) -> None:
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


def swap_of(mutant: Sabotage) -> Callable[[], None] | None:
    """What puts the sabotaged code into the live functions; None where not all of the change is inside functions' code."""
    module = importlib.import_module("dpbo." + mutant.file.removesuffix(".py").replace("/", "."))
    true, false = (compile(text, str(module.__file__), "exec") for text in ((ROOT / "dpbo" / mutant.file).read_text(), mutant.source()))
    try:
        changed = list(_changed(true, false))
    except _NotInside:
        return None
    pairs = [(function, new) for old, new in changed for function in _live(module, old) if new.co_freevars == old.co_freevars]
    if len(pairs) < len(changed) or not changed:
        return None
    return functools.partial(_swap, pairs)


def _swap(pairs: Sequence[tuple[types.FunctionType, types.CodeType]]) -> None:
    for function, code in pairs:
        function.__code__ = code


class _NotInside(Exception):
    """The body of a module or of a class changed."""


def _changed(old: types.CodeType, new: types.CodeType) -> Iterator[tuple[types.CodeType, types.CodeType]]:
    """The outermost functions that differ, of a module or of a class."""
    if not _alike(old, new):
        raise _NotInside
    for before, after in zip(_inner(old), _inner(new), strict=True):
        if not before.co_flags & inspect.CO_OPTIMIZED:  # a class
            yield from _changed(before, after)
        elif not _same(before, after):
            yield before, after


def _inner(code: types.CodeType) -> list[types.CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]


def _alike(old: types.CodeType, new: types.CodeType) -> bool:
    """But for the functions inside."""
    own = [(c.co_code, c.co_names, [repr(k) for k in c.co_consts if not isinstance(k, types.CodeType)], len(_inner(c))) for c in (old, new)]
    return own[0] == own[1]


def _same(old: types.CodeType, new: types.CodeType) -> bool:
    return _alike(old, new) and all(map(_same, _inner(old), _inner(new)))


def _live(module: types.ModuleType, code: types.CodeType) -> Iterator[types.FunctionType]:
    """The function of this code: bare, of a property, or under what wraps it."""
    holder: Any = module
    *classes, name = code.co_qualname.split(".")
    for part in classes:
        holder = vars(holder).get(part, holder)
    found = vars(holder).get(name)
    candidates = [found.fget, found.fset] if isinstance(found, property) else [found]
    for candidate in candidates:
        while candidate is not None:
            if isinstance(candidate, types.FunctionType) and candidate.__code__.co_firstlineno == code.co_firstlineno:
                yield candidate
            candidate = next((getattr(candidate, n) for n in ("__func__", "__wrapped__", "func") if hasattr(candidate, n)), None)
