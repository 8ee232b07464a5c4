"""torch's generator on the CPU, seeded for a while, by one thread at a time.

BoTorch's searches draw from the one generator that all threads share, and its `manual_seed` has two traps. It seeds the generators of every
GPU too, and never puts those back. And of two threads that use it at once, each draws the other's numbers, and the last to leave puts back
what it found: the first one's seeded state. Either way, whatever the process draws later, such as the noise of DP-SGD, follows from a
public seed. Here GPUs are left alone, and threads wait for each other. Threads that draw meanwhile without seeding still get seeded
numbers, so nothing private is ever drawn from torch's generator.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator

import numpy as np
import torch

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
