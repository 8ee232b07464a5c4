"""Eight tools that keep private work from being seen or disturbed, in a process that several
threads share.

- `mute_warnings`: no warning is shown, in any thread: `warnings.catch_warnings` of two threads
  would undo each other
- `seed_torch`: torch's generators, seeded for a while by one thread at a time, as BoTorch's
  searches need it
- `without_default_device`: other libraries' tensors lie on the CPU unless these say where
- `isolate_generators`: fresh generators of torch, its GPUs, numpy and Python, and the old ones back
  afterwards
- `PrivateGenerators`: fresh generators that all threads share which see private records at once
- `fix_generators`: the same generators in one public state, for public work that is repeated
- `silence_descriptors`: standard output and error closed to C code and subprocesses, too
- `interruption`: an interrupt or a time limit, without the frames and the text of the score that it
  ended
"""

import collections
import contextlib
import ctypes
import os
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.random import mtrand

# Matches every text, and tells our filters from others.
_MARK = "(?:muted by dpbo)?"
# The file descriptors of standard output and error.
_STANDARD = (1, 2)
_filters = threading.Lock()
_generator = threading.RLock()
# numpy's, while `fix_generators` holds the lock.
_fixed = np.random.MT19937(0)
_muting: collections.defaultdict[type[Warning], set[object]] = collections.defaultdict(set)
INTERRUPTS = (KeyboardInterrupt, SystemExit, TimeoutError)
"""What ends a program, or a time limit: never taken for a failure of a fit or a score. The handler
of a time limit, as for `signal.alarm`, raises a TimeoutError.
"""


@contextlib.contextmanager
def mute_warnings(*categories: type[Warning]) -> Iterator[None]:
    """No warning of these categories, by default of any, is shown, raised or remembered meanwhile,
    in any thread.

    All blocks that are open at once share one filter for each category: each block puts it in
    front, the last one to end removes it. (A library's own `catch_warnings` in another thread can
    still undo it: then the operator sees warnings on private records, nobody else.)
    """
    block = object()
    categories = categories or (Warning,)
    try:
        for category in categories:
            with _filters:
                _muting[category].add(block)
                warnings.filterwarnings("ignore", _MARK, category)
        yield
    finally:
        for category in categories:
            with _filters:
                # An interrupt may have come before it was added.
                _muting[category].discard(block)
                if not _muting[category]:
                    warnings.filters[:] = [  # type: ignore[index]
                        each
                        for each in warnings.filters
                        if each[2] is not category or getattr(each[1], "pattern", None) != _MARK
                    ]


@contextlib.contextmanager
def seed_torch(seed: int) -> Iterator[None]:
    """Seeds torch's generators, of the CPU and of GPUs in use, and restores their states
    afterwards. Threads wait for each other.

    `botorch.utils.manual_seed` would seed every GPU for good. And of two threads that use it at
    once, the last one to end would restore the seeded state of the other, so that whatever the
    process draws later follows from a public seed. Threads that draw meanwhile without seeding
    still get seeded numbers, so nothing private is ever drawn from torch's generator.
    """
    with _generator:
        gpus: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        devices = range(torch.cuda.device_count()) if gpus else ()
        with torch.random.fork_rng(devices, device_type="cuda"):
            torch.default_generator.manual_seed(seed)
            if gpus:
                torch.cuda.manual_seed_all(seed)
            yield


# A forked process has none of its parent's threads, for which torch would wait for ever.
os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def without_default_device() -> contextlib.AbstractContextManager[Any]:
    """What other libraries make meanwhile lies on the CPU unless they say where, also if the caller
    has set another default device: as dpbo itself never takes a device from there, its own tensors
    would meet theirs on two devices.
    """
    cpu = torch.device("cpu")
    # it slows each call of torch
    return contextlib.nullcontext() if torch.get_default_device() == cpu else cpu


@contextlib.contextmanager
def isolate_generators(entropy: Callable[[int], bytes]) -> Iterator[None]:
    """Seeds the global generators of torch, its GPUs, numpy and Python from `entropy`, and restores
    their states afterwards.

    A fresh seed, because what is drawn here may be noise and must not be drawn again later.
    """
    before = GeneratorStates()
    try:
        before.seed(entropy)
        yield
    finally:
        before.restore()


class GeneratorStates:
    """The states of the global generators, as they were when this was made."""

    def __init__(self) -> None:
        self._gpus: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        accelerator = torch.accelerator.current_accelerator()
        # Until they are used, torch keeps their seed for then.
        self._has_gpus = accelerator is not None and accelerator.type == "cuda"
        # The lock is needed to read them, too: `seed_torch` of another thread may have put a public
        # state there for a while.
        with _generator:
            self._torch = torch.random.get_rng_state()
            self._cuda = torch.cuda.get_rng_state_all() if self._gpus else []
            # Another one takes its place: to copy its state twice would take ten times as long.
            self._numpy = mtrand.get_bit_generator()
            self._python = random.getstate()
            self._torch_seed = torch.initial_seed()

    def seed(self, entropy: Callable[[int], bytes]) -> None:
        """Seed them all from `entropy`."""
        torch_seed = int.from_bytes(entropy(8), "little") >> 1
        with _generator:
            # `torch.manual_seed` would keep a traceback for every kind of device that has not been
            # used, which takes most of a millisecond.
            torch.default_generator.manual_seed(torch_seed)
            self.seed_gpus(torch_seed)
            mtrand.set_bit_generator(np.random.MT19937(int.from_bytes(entropy(32), "little")))
            random.seed(entropy(64))

    def seed_gpus(self, seed: int) -> None:
        """Seed those that there are, used or not yet."""
        if self._has_gpus:
            torch.cuda.manual_seed_all(seed)

    def restore(self) -> None:
        with _generator:
            if self._gpus:
                torch.cuda.set_rng_state_all(self._cuda)
            else:
                # They were first used meanwhile, or will be later.
                self.seed_gpus(self._torch_seed)
            torch.random.set_rng_state(self._torch)
            mtrand.set_bit_generator(self._numpy)
            random.setstate(self._python)


class PrivateGenerators:
    """Fresh generators for code that sees private records, and the old ones back afterwards: `with
    PrivateGenerators(entropy): ...`.

    How many numbers such code draws depends on the records. In a stream that a script seeded, and
    so everybody knows, those draws would move what is drawn next, such as the next point; and a
    record more or less would give all later records other random numbers. With a fresh seed, which
    nobody knows, each record's numbers are independent of how many the others drew.

    All threads that are inside at once share one stream: the first to enter seeds it, the last to
    leave restores what was before.
    """

    def __init__(self, entropy: Callable[[int], bytes]) -> None:
        self._entropy = entropy
        self._lock = threading.Lock()
        self._inside = 0
        self._before: GeneratorStates | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._before = GeneratorStates()
                self._before.seed(self._entropy)
            self._inside += 1

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._before is not None:
                self._before.restore()
                self._before = None


@contextlib.contextmanager
def fix_generators() -> Iterator[None]:
    """torch's, numpy's and Python's generators in one public state, the same each time, and as they
    were afterwards.

    For public work that is repeated. Threads wait for each other.
    """
    with _generator:
        before = GeneratorStates()
        try:
            torch.default_generator.manual_seed(0)
            before.seed_gpus(0)
            # One for all: to make it takes longer than all else here.
            nested = mtrand.get_bit_generator() is _fixed
            mtrand.set_bit_generator(np.random.MT19937(0) if nested else _fixed)
            mtrand.seed(0)
            random.seed(0)
            yield
        finally:
            before.restore()


@contextlib.contextmanager
def silence_descriptors() -> Iterator[None]:
    """What this process and its children write to standard output and error meanwhile is lost, also
    what C code and `sys.__stdout__` write.

    A descriptor that was closed is closed again afterwards.
    """
    opened: list[int] = []
    copies: list[tuple[int, int]] = []
    # What was written before still goes where it should.
    _flush()
    try:
        # This fills closed descriptors, which no copy must take.
        while not opened or opened[-1] <= max(_STANDARD):
            opened.append(os.open(os.devnull, os.O_RDWR))
        for number in set(_STANDARD).difference(opened):
            copies.append((number, os.dup(number)))
            os.dup2(opened[-1], number)
        yield
    finally:
        try:
            _flush()
        finally:
            for number, copy in copies:
                os.dup2(copy, number)
                opened.append(copy)
            for number in opened:
                os.close(number)


def _flush() -> None:
    """Writes Python's and C's buffers to where the descriptors lead now."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        # It is None, closed or broken.
        with contextlib.suppress(Exception):
            stream.flush()  # type: ignore[union-attr]
    # A platform where C's library is not found like this.
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).fflush(None)


def interruption(error: BaseException) -> BaseException | None:
    """A new exception of the same class for one of `INTERRUPTS`, whose text and frames may show a
    record; None for any other error.
    """
    if isinstance(error, KeyboardInterrupt):
        return KeyboardInterrupt()
    if isinstance(error, SystemExit):
        return SystemExit(1)
    if isinstance(error, TimeoutError):
        return TimeoutError("a time limit ended a score")
    return None
