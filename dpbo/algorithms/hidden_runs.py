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
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

import torch

from dpbo.curator.entropy import system_entropy
from dpbo.errors import InputError, ReleaseLost
from dpbo.isolation import apart, quietly, silenced
from dpbo.mechanisms.mechanism import Entropy
from dpbo.mechanisms.run_count import drawn
from dpbo.models.builders import default_gp, quiet
from dpbo.privacy import require_count, require_positive
from dpbo.run_counts import CountLaw, RunLaw, ThresholdStop
from dpbo.space import Space
from dpbo.validation import checked

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


# ========== MERGED Adaptive proposals for private selection (DP-HyPO): hidden runs that look where earlier hidden runs did well, within
# bounds.
#
#     best = private_selection(curator, train, space=space, law=law, base=base, score=score,
#                              adaptive=DensityRatioProposals(space, spread=(0.75, 1.5), noise_std=0.01))
#
# Each round draws its parameters from a density between c and C times the public prior's, uniform on `candidates`. Whatever decides it must
# come from the earlier runs' parameters and noised scores alone; here a Gaussian process on them, and its upper confidence bound.
# The price is in the `SelectionEvent`'s spread; proof in accounting/selected.py. C / c = 2 costs up to (2 + shape) log 2 of epsilon, so it
# pays only where proposals gain much by it; a narrower public prior is free.
#
# The density is exact: candidates have whole weights between ceil(c 2^40) and floor(C 2^40) whose sum is 2^40 for each candidate, and one
# is
# drawn by a uniform whole number below that sum. Weights are clip(t exp(a), c, C) with the t for which they sum right (bisection); what
# rounding leaves over is given to, or taken from, candidates that have room.
#
# Source: Wang, Su et al. 2023 (DP-HyPO), with this projection for their functional one.
#

_ONE = 1 << 40
Interest = Callable[[Any, torch.Tensor], torch.Tensor]
"""`interest(model, X)`, how much is to be expected of each candidate, `n`: e.g. any analytic BoTorch acquisition's value. Where it fails,
or gives another shape or what is not finite, nothing is expected of any, and nobody is told."""


def upper_bound(model: Any, X: torch.Tensor) -> torch.Tensor:
    """Posterior mean plus two standard deviations, `n`."""
    posterior = model.posterior(X)
    return (posterior.mean + 2 * posterior.variance.sqrt())[:, 0]


@checked
@dataclass(frozen=True, eq=False)
class DensityRatioProposals:
    """How later runs look at earlier ones.

    Args:
        space: where runs look.
        spread: (c, C), 0 < c <= 1 <= C, public; part of the event.
        noise_std: of a run's noised score, for the model.
        candidates: how many public Sobol points stand for the space.
        interest: what decides; the upper confidence bound if omitted.
        sharpness: interest is measured in its standard deviations over the candidates, times this.

    Raises:
        InputError: an argument outside its range.
    """

    space: Space
    spread: tuple[float, float] = field(kw_only=True)
    noise_std: float = field(kw_only=True)
    candidates: int = field(default=512, kw_only=True)
    interest: Interest = field(default=upper_bound, kw_only=True)
    sharpness: float = field(default=2.0, kw_only=True)

    def __post_init__(self) -> None:
        c, C = self.spread
        if not 0.0 < c <= 1.0 <= C < math.inf:
            raise InputError("spread", self.spread, "(c, C) with 0 < c <= 1 <= C")
        require_positive("noise_std", self.noise_std)
        require_count("candidates", self.candidates, 2)
        require_positive("sharpness", self.sharpness)
        object.__setattr__(self, "_points", self.space.sample(self.candidates, seed=0))

    def __call__(self, runs: Sequence[Run], entropy: Entropy) -> torch.Tensor:
        """Where the next run looks, `d`."""
        points: torch.Tensor = self._points  # type: ignore[attr-defined]
        weights = whole_weights(self._interests(runs, points, entropy), self.spread)
        return points[drawn_index(weights, entropy)]

    def _interests(self, runs: Sequence[Run], points: torch.Tensor, entropy: Entropy) -> torch.Tensor:
        """Scaled interest in each candidate; zeros while there is no model. What it draws is from `entropy`, never from a public seed."""
        known = [run for run in runs if not run.failed]
        if len(known) < 2:
            return torch.zeros(len(points), dtype=torch.float64)
        X, Y = torch.stack([run.x for run in known]), torch.tensor([[run.score] for run in known], dtype=torch.float64)
        try:
            with quiet(), apart(entropy), torch.no_grad():
                values = self.interest(default_gp(self.space, X, Y, torch.full_like(Y, self.noise_std**2)), points).double()
                scaled = self.sharpness * (values - values.mean()) / values.std().clamp_min(1e-12)
                usable = scaled.shape == (len(points),) and bool(scaled.isfinite().all())
        except KeyboardInterrupt:
            raise
        except BaseException:  # a model that cannot be fitted says nothing; whether it can is as private as the scores
            usable = False
        return scaled if usable else torch.zeros(len(points), dtype=torch.float64)


def whole_weights(interests: torch.Tensor, spread: tuple[float, float]) -> list[int]:
    """Whole numbers within [c 2^40, C 2^40], 2^40 in the mean, rising with the interests as far as that allows."""
    least, most = math.ceil(spread[0] * _ONE), math.floor(spread[1] * _ONE)
    gains = torch.exp((interests - interests.max()).clamp(-60.0, 0.0))
    low, high = -80.0, 80.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if float((gains * math.exp(middle)).clamp(*spread).mean()) < 1.0 else (low, middle)
    wanted = (gains * math.exp(high)).clamp(*spread) * _ONE
    weights = [min(max(round(value), least), most) for value in wanted.tolist()]
    rest = _ONE * len(weights) - sum(weights)
    for i, weight in enumerate(weights):
        step = min(max(rest, least - weight), most - weight)
        weights[i], rest = weight + step, rest - step
    return weights


def drawn_index(weights: Sequence[int], entropy: Entropy) -> int:
    """An index by exact weights: a uniform whole number below their sum, drawn anew where it is not below."""
    total = sum(weights)
    bits = total.bit_length()
    while True:
        number = int.from_bytes(entropy((bits + 7) // 8), "little") >> (-bits % 8)
        if number < total:
            break
    for index, weight in enumerate(weights):
        number -= weight
        if number < 0:
            return index
    raise AssertionError("the weights sum to the total")
