"""The quick way: all tests are collected once, and each mutant is a fork that swaps one function's code, or a value of the module.

A pytest plugin takes the place of the loop that runs tests. A child compiles the sabotaged file, puts the new code object into the live
function (so whoever imported it has it), or new values into the live module (`rebinding`), and runs tests one by one until one fails. What
is neither is left to `hunting`, and so is what no test kills here: processes that a test starts run the true package.
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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest
from _pytest.runner import runtestprotocol
from _pytest.warnings import catch_warnings_for_item

from tests.mutants.mutant import ROOT, Sabotage
from tests.mutants.rebinding import functions, rebinding_of

LEAST_PATIENCE, MOST_PATIENCE, MEMORY = 8, 60, 8 << 30
Plan = Callable[[Sabotage], Iterator[str]]
Found = Callable[[Sabotage, str], None]


def hunt_swiftly(
    mutants: Sequence[Sabotage], folders: Sequence[str], plan: Plan, workers: int, seconds: float, found: Found
) -> list[Sabotage]:
    """Try every mutant against the tests that `plan` names, of these folders; `found` hears the killer or "". Returns what it cannot do."""
    hypothesis.settings.register_profile("mutants", database=None)
    loop = _Loop(mutants, plan, workers, seconds, found)
    quiet = ["-qq", "-s", "--no-header", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    if pytest.main([*quiet, "--rootdir", str(ROOT), *folders], plugins=[loop]) not in (
        pytest.ExitCode.OK,
        pytest.ExitCode.NO_TESTS_COLLECTED,
    ):
        raise RuntimeError("the tests could not be collected")
    return loop.left


class _Loop:
    """Forks a child a mutant, in place of running tests."""

    def __init__(self, mutants: Sequence[Sabotage], plan: Plan, workers: int, seconds: float, found: Found) -> None:
        self._waiting, self._plan, self._workers, self._found = list(reversed(mutants)), plan, workers, found
        self._seconds = seconds
        self._patience = max(LEAST_PATIENCE, min(MOST_PATIENCE, int(seconds / 2)))  # with one test: a mutant may make it endless
        self._items: dict[str, pytest.Item] = {}
        self._children: list[_Child] = []
        self._sound, self._unsound = set[str](), set[str]()
        self._breaks = Counter[tuple[str, str]]()
        self._accused: dict[str, str] = {}  # by mutant: the test that failed after others had run, to be run alone
        self._acquitted = set[tuple[str, str]]()
        self.left: list[Sabotage] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In the parent, and to the end of the last mutant."""
        hypothesis.settings.load_profile("mutants")
        self._items = {item.nodeid: item for item in session.items}
        while self._waiting or self._children:
            while self._waiting and len(self._children) < self._workers:
                self._begin(self._waiting.pop())
            time.sleep(0.005)
            for child in list(self._children):
                self._look(child)
        return True

    def _begin(self, mutant: Sabotage) -> None:
        swap = swap_of(mutant)
        if swap is None:
            self.left.append(mutant)
        else:
            accused = self._accused.get(mutant.name)
            plan = iter([accused]) if accused else self._plan(mutant)
            tests = (item for item in _chosen(plan, self._items) if not self._left_out(mutant, item.nodeid))
            self._children.append(_Child.running(mutant, swap, tests, self._patience))

    def _left_out(self, mutant: Sabotage, name: str) -> bool:
        return name in self._unsound or (mutant.name, name) in self._acquitted

    def _look(self, child: _Child) -> None:
        if not child.done(self._seconds):
            return
        self._children.remove(child)
        name, breaks_off = child.verdict()
        accused = self._accused.pop(child.mutant.name, "")
        if accused and not name:
            self._acquitted.add((child.mutant.name, accused))
            self._waiting.append(child.mutant)
        elif name and not child.alone():
            self._accused[child.mutant.name] = name
            self._waiting.append(child.mutant)
        elif name and (self._fails_anyway(name) or (breaks_off and self._by_chance(child.mutant, name))):
            self._waiting.append(child.mutant)
        else:
            self._found(child.mutant, f"{name} (breaks off)" if breaks_off else name)

    def _by_chance(self, mutant: Sabotage, name: str) -> bool:
        """A fork may hang by itself once: three breaks in the same test are the mutant's."""
        self._breaks[mutant.name, name] += 1
        return self._breaks[mutant.name, name] < 3

    def _fails_anyway(self, name: str) -> bool:
        """Whether the test fails here on the true package as well; then it is left out."""
        if name not in self._sound | self._unsound:
            true = _Child.running(None, lambda: None, iter([self._items[name]]), self._patience)
            while not true.done(self._patience + 1):
                time.sleep(0.02)
            (self._unsound if true.verdict()[0] else self._sound).add(name)
        return name in self._unsound


@dataclass(eq=False)
class _Child:
    """A process that says "+ test" before each test, "- test" where it fails, "." at the end: without an end the last one broke it."""

    mutant: Any
    process: int
    pipe: int
    started: float
    told: str = ""

    @classmethod
    def running(cls, mutant: Sabotage | None, swap: Callable[[], None], tests: Iterator[pytest.Item], patience: int) -> _Child:
        """Forked, and at work."""
        reader, writer = os.pipe()
        process = os.fork()
        if not process:
            _run(swap, tests, writer, patience)
        os.close(writer)
        os.set_blocking(reader, False)
        return cls(mutant, process, reader, time.monotonic())

    def done(self, seconds: float) -> bool:
        """Whether it came to its end, which is hastened after so many seconds: then no test of those tried has failed."""
        self._hear()
        ended, _ = os.waitpid(self.process, os.WNOHANG)
        if not ended and time.monotonic() - self.started < seconds:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)  # and whatever its tests left behind
        if not ended:
            os.waitpid(self.process, 0)
        self._hear()
        self.told += "" if ended else ".\n"
        os.close(self.pipe)
        return True

    def verdict(self) -> tuple[str, bool]:
        """The test that failed, or "", and whether it broke the process off."""
        lines = self.told.splitlines()
        failed = [line[2:] for line in lines if line.startswith("- ")]
        if failed or not lines or lines[-1] == ".":
            return (failed or [""])[0], False
        return lines[-1][2:], True

    def alone(self) -> bool:
        """Whether no other test has run before: what one leaves behind (a file that the collector closes) may fail the next."""
        return len({line for line in self.told.splitlines() if line.startswith("+ ")}) < 2

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self.pipe, 1 << 16):
                self.told += part.decode()


def _chosen(tests: Iterator[str], items: dict[str, pytest.Item]) -> Iterator[pytest.Item]:
    """These tests; of a file or a folder all. None comes back after others: they may leave something behind."""
    tried = set[str]()
    for test in tests:
        yield from [items[test]] if test in items else [item for name, item in items.items() if name.startswith(test) and name not in tried]
        tried |= {name for name in items if name.startswith(test)}


def _run(swap: Callable[[], None], items: Iterator[pytest.Item], writer: int, patience: int) -> None:
    """In the child, and to its end."""
    os.setpgid(0, 0)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    swap()
    for item in items:
        os.write(writer, f"+ {item.nodeid}\n".encode())
        signal.alarm(patience)
        with catch_warnings_for_item(item.config, item.ihook, "runtest", item):  # its marks, and the project's filters
            reports = runtestprotocol(item, log=False, nextitem=None)
        if any(report.failed for report in reports):
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
        return _rebinding(module, false)
    pairs = [(function, new) for old, new in changed for function in _live(module, old) if new.co_freevars == old.co_freevars]
    if len(pairs) < len(changed) or not changed:
        return None
    return functools.partial(_swap, pairs)


def _rebinding(module: types.ModuleType, code: types.CodeType) -> Callable[[], None] | None:
    try:
        changes = rebinding_of(module, code)
    except Exception:
        return None  # the slow way tells that it cannot be imported
    return functools.partial(_all, changes) if changes else None


def _all(changes: Sequence[Callable[[], None]]) -> None:
    for change in changes:
        change()


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
        yield from (function for function in functions(candidate) if function.__code__.co_firstlineno == code.co_firstlineno)
