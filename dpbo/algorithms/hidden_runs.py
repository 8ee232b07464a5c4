"""Runs that nobody sees: the best of them comes out, and neither their number nor what the others gave.

Whatever a run prints, logs or warns, and what it and its children write to descriptors 1 and 2, is thrown away; whatever it raises makes it
a run with the worst score. What it writes elsewhere stays: to files, connections, streams that lead to neither. An interrupt ends them all,
and is raised anew where no frame holds anything private; so does what fails between runs, which comes out as a ReleaseLost that says no
more. The global generators stand afterwards where they stood before: how far runs moved them would tell how many there were. So would what
the losers' outputs do as they are thrown away, such as an error of a finaliser, once for each: they go before anything is heard again.
All that belongs to the whole process, so threads take turns: else whose runs ended first would let the others' be heard, and the last would
leave the process mute.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import math
import os
import pathlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import torch

from dpbo.algorithms.descriptors import silenced
from dpbo.curator.entropy import system_entropy
from dpbo.errors import ReleaseLost
from dpbo.laws import CountLaw, RunLaw, ThresholdStop
from dpbo.mechanisms.mechanism import Entropy
from dpbo.mechanisms.run_count import drawn
from dpbo.quiet import quietly
from dpbo.seeding import apart
from dpbo.space import Space

_WORD = 1 << 64
_turn = threading.RLock()


@dataclass(frozen=True, eq=False)
class Run:
    """One run's outcome."""

    x: torch.Tensor
    output: Any
    score: float

    @property
    def failed(self) -> bool:
        """It raised, or its score is no finite number."""
        return self.score == -math.inf


Outcome = Run | type[KeyboardInterrupt | ReleaseLost] | None
"""The best run, none, or the kind of error to raise outside: an error itself, and its frames, hold the number of runs and their scores."""


class Proposals(Protocol):
    """Where the next run looks, `d`, given those before it: its density is within the event's `spread` of the prior's."""

    def __call__(self, runs: Sequence[Run], entropy: Entropy, /) -> torch.Tensor: ...


def uniform(space: Space) -> Proposals:
    """The fixed public law, uniform on the space, whatever came before."""

    def proposal(_: Sequence[Run], entropy: Entropy) -> torch.Tensor:
        unit = [(int.from_bytes(entropy(8), "little") >> 11) * 2.0**-53 for _ in space.names]
        return space.placed(torch.tensor([unit], dtype=torch.float64))[0]

    return proposal


def best_of(
    work: Callable[[dict[str, Any]], tuple[Any, float]], space: Space, law: RunLaw, entropy: Entropy, *,
    threshold: float | None, pad_to: float | None, proposals: Proposals | None = None,
) -> Run | None:  # fmt: skip
    """The best run, or None where there was none. The number of runs is drawn first, each proposal within its run.

    Raises:
        KeyboardInterrupt, ReleaseLost: from a frame that knows nothing.
    """
    ends = time.monotonic() + (pad_to or 0.0)
    outcome = _contained(lambda: _hidden(lambda: _runs(work, space, law, entropy, threshold, proposals or uniform(space))))
    if outcome is KeyboardInterrupt:
        raise KeyboardInterrupt
    time.sleep(max(ends - time.monotonic(), 0.0))
    if outcome is ReleaseLost:
        raise ReleaseLost("hidden runs ended with an error; which one is private. They stay charged and are never drawn again.")
    return outcome  # type: ignore[return-value]


def _contained(job: Callable[[], Outcome]) -> Outcome:
    try:
        return job()
    except KeyboardInterrupt:
        return KeyboardInterrupt
    except BaseException:
        return ReleaseLost


def _hidden(runs: Callable[[], Outcome]) -> Outcome:
    """Contained here, too: an error, and what its frames hold, is gone before anything is heard again."""
    with _unheard(), apart(system_entropy), _collected():
        return _contained(runs)


def _runs(work: Any, space: Space, law: RunLaw, entropy: Entropy, threshold: float | None, proposals: Proposals) -> Run | None:
    if isinstance(law, ThresholdStop):
        return _until(work, space, law, entropy, -math.inf if threshold is None else threshold, proposals)
    assert isinstance(law, CountLaw)
    return _largest(work, space, drawn(law, entropy), entropy, proposals)


def _largest(work: Any, space: Space, count: int, entropy: Entropy, proposals: Proposals) -> Run | None:
    """Of equal scores the one with the larger word wins. The words end here: how large the winner's is would tell how many there were."""
    best: Run | None = None
    highest = (-math.inf, -1)
    told: list[Run] = []
    for _ in range(count):
        x, tie = proposals(told, entropy), int.from_bytes(entropy(8), "little")
        run = _run(work, space, x)
        told.append(dataclasses.replace(run, output=None))
        if (run.score, tie) > highest:
            best, highest = run, (run.score, tie)
    return best


def _until(work: Any, space: Space, law: ThresholdStop, entropy: Entropy, threshold: float, proposals: Proposals) -> Run | None:
    while True:
        run = _run(work, space, proposals((), entropy))
        if run.score >= threshold and not run.failed:
            return run
        if coin(law.gamma, entropy):
            return None


def _run(work: Any, space: Space, x: torch.Tensor) -> Run:
    """One proposal and what came of it."""
    try:
        output, score = work(space.decode(x))
        number = float(score)
    except KeyboardInterrupt:
        raise
    except BaseException:  # also SystemExit: a run that ends the program would be seen
        return Run(x, None, -math.inf)
    return Run(x, output, number) if math.isfinite(number) else Run(x, None, -math.inf)


def coin(chance: float, entropy: Entropy) -> bool:
    """Heads with exactly this probability: a uniform number, 64 bits at a time, is compared with it until they differ."""
    rest = Fraction(chance)
    while rest:
        rest *= _WORD
        whole, word = int(rest), int.from_bytes(entropy(8), "little")
        if word != whole:
            return word < whole
        rest -= whole
    return False


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Nothing is printed, logged or warned meanwhile, in the whole process. Threads wait here for each other."""
    with (
        _turn,
        _unlogged(),
        quietly(),
        silenced(),
        pathlib.Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


@contextlib.contextmanager
def _collected() -> Iterator[None]:
    """Cycles made and left meanwhile are taken apart before it ends. Older objects are set aside, unless the user has done so: looking at
    them would take most of a second."""
    ours = not gc.get_freeze_count()
    try:
        if ours:
            gc.freeze()
        yield
    finally:
        gc.collect()
        if ours:
            gc.unfreeze()


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    before = logging.root.manager.disable
    try:
        logging.disable(sys.maxsize)  # also above CRITICAL
        yield
    finally:
        logging.disable(before)
