"""Warnings muted in every thread of the process.

`warnings.catch_warnings` puts back the filters that it found, so of two threads the first to leave would give the second one its voice
back, and the last could leave the process mute. Those inside are known here: filters are put in front by all that enter, taken out by the
last that leaves. A warning that is ignored leaves no trace in a module's registry either. (A library's own catch_warnings in one thread can
still undo the filter for another: warnings on private records reach the operator then, nobody else.)
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from types import FrameType

import numpy as np
import torch

# ========== MERGED Ctrl-C on private records, told from a KeyboardInterrupt that a score raises.
#
# Ctrl-C is a signal: it says nothing of the records and ends the program, whatever the score makes of it. An exception of the same name
# that
# a score raises on one record would tell of that record: it is confined like every other exception.
#

_heard = threading.local()


@contextlib.contextmanager
def hearing_ctrl_c() -> Iterator[None]:
    """Within this `ctrl_c_came` tells whether the signal interrupted the work. That happens to the main thread alone."""
    handler = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not callable(handler):  # the signal is ignored, or ends the process without an exception
        yield
        return

    def heard(number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except BaseException:
            _heard.signal = True
            raise

    _heard.signal = False
    try:
        signal.signal(signal.SIGINT, heard)
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        _heard.signal = False


def ctrl_c_came() -> bool:
    """Whether the signal came in the `hearing_ctrl_c` that this thread is within."""
    return getattr(_heard, "signal", False)


# ========== MERGED Descriptors 1 and 2 lead nowhere for a while: what C code, subprocesses and sys.__stdout__ write past Python's
# sys.stdout.

_STANDARD = (1, 2)


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """What the whole process and the children it starts write there meanwhile is thrown away. A closed one is closed again afterwards."""
    nowhere: list[int] = []
    kept: list[tuple[int, int]] = []
    _flush()  # what was written before goes where it was meant to
    try:
        while not nowhere or nowhere[-1] <= max(_STANDARD):  # closed ones are taken by the way, else a copy would come to lie there
            nowhere.append(os.open(os.devnull, os.O_RDWR))
        for number in set(_STANDARD).difference(nowhere):
            kept.append((number, os.dup(number)))
            os.dup2(nowhere[-1], number)
        yield
    finally:
        try:
            _flush()
        finally:
            for number, copy in kept:
                os.dup2(copy, number)
            for number in (*nowhere, *(copy for _, copy in kept)):
                os.close(number)


def _flush() -> None:
    """Empties Python's and C's buffers to where the descriptors lead now."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):  # it is None, closed or broken
            stream.flush()  # type: ignore[union-attr]
    with contextlib.suppress(Exception):  # where C's library is not found like this
        ctypes.CDLL(None).fflush(None)


# ========== MERGED torch's generator on the CPU, seeded for a while, by one thread at a time.
#
# BoTorch's searches draw from the one generator that all threads share, and its `manual_seed` has two traps. It seeds the generators of
# every
# GPU too, and never puts those back. And of two threads that use it at once, each draws the other's numbers, and the last to leave puts
# back
# what it found: the first one's seeded state. Either way, whatever the process draws later, such as the noise of DP-SGD, follows from a
# public seed. Here GPUs are left alone, and threads wait for each other. Threads that draw meanwhile without seeding still get seeded
# numbers, so nothing private is ever drawn from torch's generator.
#

_turn = threading.RLock()


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds it, and puts back how it was, also where an interrupt comes as it is seeded."""
    with _turn:
        before = torch.random.get_rng_state()
        try:
            torch.default_generator.manual_seed(seed)
            yield
        finally:
            torch.random.set_rng_state(before)


@contextlib.contextmanager
def apart(entropy: Callable[[int], bytes]) -> Iterator[None]:
    """Global generators of torch, its GPUs, numpy and Python start anew from `entropy`, and are put back as they were.

    Anew, for what is drawn here must not be drawn a second time afterwards: it may be noise.
    """
    gpus: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with _turn:  # to look, too: the state that `seeded` has put there is public, and gone before this ends
        before = torch.random.get_rng_state(), torch.cuda.get_rng_state_all() if gpus else [], np.random.get_state(), random.getstate()
        first = torch.initial_seed()
    try:
        with _turn:
            torch.manual_seed(int.from_bytes(entropy(8), "little") >> 1)
            np.random.seed(np.frombuffer(entropy(64), dtype="<u4"))
            random.seed(entropy(64))
        yield
    finally:
        with _turn:
            if gpus:
                torch.cuda.set_rng_state_all(before[1])
            else:  # where they were first used meanwhile, or will be
                torch.cuda.manual_seed_all(first)
            torch.random.set_rng_state(before[0])
            np.random.set_state(before[2])
            random.setstate(before[3])


_MARK = "(?:muted by dpbo)?"  # begins every text, and is nobody else's filter
_lock = threading.Lock()
_inside: collections.defaultdict[type[Warning], set[object]] = collections.defaultdict(set)


@contextlib.contextmanager
def quietly(*categories: type[Warning]) -> Iterator[None]:
    """No warning of these categories, by default none at all, is shown, raised or remembered meanwhile, in any thread."""
    own = object()
    try:
        for category in categories or (Warning,):
            _enter(category, own)
        yield
    finally:
        for category in categories or (Warning,):
            _leave(category, own)


def _enter(category: type[Warning], who: object) -> None:
    with _lock:
        _inside[category].add(who)
        warnings.filterwarnings("ignore", _MARK, category)


def _leave(category: type[Warning], who: object) -> None:
    """Also where an interrupt came before it had entered, or had done so wholly."""
    with _lock:
        _inside[category].discard(who)
        if not _inside[category]:
            warnings.filters[:] = [f for f in warnings.filters if not (f[2] is category and _is_ours(f))]  # type: ignore[index]


def _is_ours(item: tuple[object, ...]) -> bool:
    return getattr(item[1], "pattern", None) == _MARK
