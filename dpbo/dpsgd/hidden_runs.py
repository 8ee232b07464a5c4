"""Hidden runs: several private runs of which only the best is released. The number of runs and the
other runs stay hidden.

`best_of` draws the number of runs and hides everything that would reveal that number or a losing
run:

- What runs print, log or warn, and what they and their children write to file descriptors 1 and 2,
  is discarded. Files, connections and other streams that a run writes to are not controlled.
- A run that raises an exception has the worst score. An interrupt ends all runs; it is raised again
  from a frame that holds nothing private. An error between runs becomes a ReleaseLost without
  details.
- Every run has seeds of its own for the global generators of torch, NumPy and Python. One stream
  of random numbers would show in what the winner returns which run it was; the best run's place
  among so many depends on their number, and tells of losing runs. Afterwards the generators are as
  before, because how far runs moved them would reveal how many there were. So are the tables that
  this process knows as protected.
- Outputs of losing runs are destroyed before anything can be printed again, because their
  finalisers could print once each.

All of this changes the state of the whole process, so `best_of` of several threads take turns.

`DensityRatioProposals` (DP-HyPO) let later runs look where earlier runs did well.
"""

import bisect
import contextlib
import copy
import dataclasses
import gc
import itertools
import logging
import math
import os
import pathlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch

from dpbo.entropy import system_entropy
from dpbo.errors import ReleaseLost
from dpbo.events import SPREAD
from dpbo.isolation import (
    isolate_generators,
    mute_warnings,
    silence_descriptors,
)
from dpbo.mechanisms.choice import draw_below
from dpbo.mechanisms.mechanism import Entropy
from dpbo.mechanisms.rounding import random_word
from dpbo.mechanisms.run_count import draw_run_count
from dpbo.models.builders import default_gp, mute_optimizer_warnings
from dpbo.records.protected_records import protected_tables
from dpbo.run_counts import RunCountDistribution
from dpbo.space import Space
from dpbo.validation import Positive, at_least, checked

_ONE = 1 << 40
_turn = threading.RLock()


@dataclass(frozen=True, eq=False)
class Run:
    """The outcome of one run: its point `x` (`d`), its output, and its score; -inf if it failed."""

    x: torch.Tensor
    output: Any
    score: float

    @property
    def failed(self) -> bool:
        """Whether the run raised an exception or its score was not finite."""
        return self.score == -math.inf


Outcome = Run | type[KeyboardInterrupt | ReleaseLost] | None
"""The best run, None if there was none, or the type of the error to raise. An error object would
hold private frames.
"""


Proposals = Callable[[Sequence[Run], Entropy], torch.Tensor]
"""Draws the next run's point, `d`, given the earlier runs. Its density is within the event's
`spread` of the prior's.
"""


def uniform(space: Space) -> Proposals:
    """Proposals drawn uniformly from the space, whatever the earlier runs gave."""

    def proposal(_: Sequence[Run], entropy: Entropy) -> torch.Tensor:
        unit = [(random_word(entropy) >> 11) * 2.0**-53 for _ in space.names]
        return space.placed(space.bounds.new_tensor([unit]))[0]

    return proposal


def best_of(
    work: Callable[[dict[str, Any]], tuple[Any, float]],
    space: Space,
    run_count: RunCountDistribution,
    entropy: Entropy,
    *,
    proposals: Proposals | None = None,
) -> Run | None:
    """The best of a random number of hidden runs, or None if there was no run. The number is drawn
    before the first run.

    `work` gives a run's output and score for its parameters; the other arguments are those of
    `private_selection`.

    Raises:
        KeyboardInterrupt, ReleaseLost: from a frame that holds nothing private.
    """

    def runs() -> Run | None:
        draw = proposals or uniform(space)
        return _largest(work, space, draw_run_count(run_count, entropy), entropy, draw)

    def hidden() -> Outcome:
        # An error and its frames are destroyed before output is possible again.
        with _unobserved():
            return _contained(runs)

    outcome = _contained(hidden)
    if outcome is KeyboardInterrupt:
        raise KeyboardInterrupt
    if outcome is ReleaseLost:
        raise ReleaseLost(
            "hidden runs ended with an error; which one is private. They stay charged and are never"
            " drawn again."
        )
    return outcome  # type: ignore[return-value]


def _contained(job: Callable[[], Outcome]) -> Outcome:
    """The job's outcome; of an error only its type."""
    try:
        return job()
    except KeyboardInterrupt:
        return KeyboardInterrupt
    except BaseException:
        return ReleaseLost


def _largest(
    work: Any, space: Space, count: int, entropy: Entropy, proposals: Proposals
) -> Run | None:
    """The run with the highest score. Ties are broken by random words, which stay in this frame:
    the winner's reveals the count.
    """
    best: Run | None = None
    highest = (-math.inf, -1)
    earlier: list[Run] = []
    for _ in range(count):
        x = proposals(earlier, entropy)
        tie = random_word(entropy)
        run = _run(work, space, x)
        earlier.append(dataclasses.replace(run, output=None))
        if (run.score, tie) > highest:
            best = run
            highest = (run.score, tie)
    return best


def _run(work: Any, space: Space, x: torch.Tensor) -> Run:
    protected = protected_tables.now()
    try:
        # Muting again also forgets which warnings each module has shown.
        with isolate_generators(system_entropy), mute_warnings():
            # A copy: who changes a list that is a parameter changes no other run's, nor what is
            # released.
            return _outcome(work, copy.deepcopy(space.decode(x)), x)
    finally:
        protected_tables.put_back(protected)


def _outcome(work: Any, parameters: dict[str, Any], x: torch.Tensor) -> Run:
    try:
        output, score = work(parameters)
        number = float(score)
    except KeyboardInterrupt:
        raise
    # Also SystemExit: ending the program would reveal the run.
    except BaseException as error:
        # of a time limit
        if isinstance(error, TimeoutError):
            raise KeyboardInterrupt from None
        number = -math.inf
    if not math.isfinite(number):
        return Run(x, None, -math.inf)
    return Run(x, output, number)


@contextlib.contextmanager
def _unobserved() -> Iterator[None]:
    """Within it nothing is printed, logged or warned in the whole process.

    Garbage cycles made within are collected before output is possible again.
    """
    with _turn:
        logging_disabled = logging.root.manager.disable
        try:
            # Also above CRITICAL.
            logging.disable(sys.maxsize)
            with (
                mute_warnings(),
                silence_descriptors(),
                pathlib.Path(os.devnull).open("w") as devnull,
                contextlib.redirect_stdout(devnull),
                contextlib.redirect_stderr(devnull),
            ):
                try:
                    yield
                finally:
                    gc.collect()
        finally:
            logging.disable(logging_disabled)


Interest = Callable[[Any, torch.Tensor], torch.Tensor]
"""`interest(model, X)`: the value of looking at each candidate, `n`, for example an analytic
BoTorch acquisition function. Where it raises an exception or gives another shape or a value that is
not finite, all candidates count alike, without a message.
"""


def upper_bound(model: Any, X: torch.Tensor) -> torch.Tensor:
    """Posterior mean plus two standard deviations, `n`."""
    posterior = model.posterior(X)
    return (posterior.mean + 2 * posterior.variance.sqrt())[:, 0]


@checked
@dataclass(frozen=True, eq=False)
class DensityRatioProposals:
    """Adaptive proposals for private selection (DP-HyPO): later hidden runs look where earlier ones
    did well, within bounds.

        proposals = DensityRatioProposals(space, spread=(0.75, 1.5), noise_std=0.01)
        best = private_selection(
            curator, train, space=space, run_count=run_count, base=base, score=score,
            adaptive=proposals,
        )

    Each run's parameters are drawn from a density between c and C times the public prior's, which
    is uniform on `candidates` Sobol points. The density depends on the earlier runs' parameters and
    noised scores alone: a Gaussian process on them and `interest`. The `SelectionEvent` pays for it
    by its `spread` (proof in the accounting of private selection). C / c = 2 costs up to (2 +
    shape) log 2 of epsilon, so it pays only where proposals gain much by it. A narrower public
    prior costs nothing.

    The density is exact. Candidates have integer weights between ceil(c 2^40) and floor(C 2^40)
    that sum to 2^40 times their number, and one is drawn by a uniform integer below that sum.
    Weights are clip(t exp(a), c, C) of the scaled interest a, with the t that gives the right sum
    (bisection); candidates with room take the rounding error.

    Source: Wang, Su et al. 2023 (DP-HyPO), with this projection in place of their functional one.

    Args:
        space: the space of the runs' parameters.
        spread: (c, C), 0 < c <= 1 <= C, public; part of the event.
        noise_std: standard deviation of the noise of a run's score, for the model.
        candidates: number of Sobol points that stand for the space, at least 2.
        interest: value of each candidate; mean plus two standard deviations if omitted.
        sharpness: the interest, in its standard deviations over the candidates, is multiplied by
            this.

    Raises:
        InputError: an argument outside its range.
    """

    space: Space
    spread: Annotated[tuple[float, float], SPREAD] = field(kw_only=True)
    noise_std: Positive = field(kw_only=True)
    candidates: Annotated[int, at_least(2)] = field(default=512, kw_only=True)
    interest: Interest = field(default=upper_bound, kw_only=True)
    sharpness: Positive = field(default=2.0, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_points", self.space.sample(self.candidates, seed=0))

    def __call__(self, runs: Sequence[Run], entropy: Entropy) -> torch.Tensor:
        """The next run's point, `d`."""
        points: torch.Tensor = self._points  # type: ignore[attr-defined]
        weights = integer_weights(self.interests(runs, points, entropy), self.spread)
        return points[draw_index(weights, entropy)]

    def interests(
        self, runs: Sequence[Run], points: torch.Tensor, entropy: Entropy
    ) -> torch.Tensor:
        """Scaled interest of each point, `n`; zeros while there is no model. Random numbers come
        from `entropy`, not from a public seed.
        """
        known = [run for run in runs if not run.failed]
        flat = points.new_zeros(len(points))
        if len(known) < 2:
            return flat
        X = torch.stack([run.x for run in known])
        Y = points.new_tensor([[run.score] for run in known])
        Yvar = torch.full_like(Y, self.noise_std**2)
        try:
            with mute_optimizer_warnings(), isolate_generators(entropy), torch.no_grad():
                values = self.interest(default_gp(self.space, X, Y, Yvar), points).double()
                scaled = self.sharpness * (values - values.mean()) / values.std().clamp_min(1e-12)
                if scaled.shape == flat.shape and bool(scaled.isfinite().all()):
                    return scaled
        except KeyboardInterrupt:
            raise
        # Whether a model can be fitted is as private as the scores.
        except BaseException:
            return flat
        return flat


def integer_weights(interests: torch.Tensor, spread: tuple[float, float]) -> list[int]:
    """Integers within [c 2^40, C 2^40] whose mean is 2^40, increasing with the interests as far as
    that allows.
    """
    least = math.ceil(spread[0] * _ONE)
    most = math.floor(spread[1] * _ONE)
    gains = torch.exp((interests - interests.max()).clamp(-60.0, 0.0))
    low, high = -80.0, 80.0
    for _ in range(100):
        middle = (low + high) / 2
        if float((gains * math.exp(middle)).clamp(*spread).mean()) < 1.0:
            low = middle
        else:
            high = middle
    wanted = (gains * math.exp(high)).clamp(*spread) * _ONE
    weights = [min(max(round(value), least), most) for value in wanted.tolist()]
    rest = _ONE * len(weights) - sum(weights)
    for i, weight in enumerate(weights):
        step = min(max(rest, least - weight), most - weight)
        weights[i] += step
        rest -= step
    return weights


def draw_index(weights: Sequence[int], entropy: Entropy) -> int:
    """An index with probability proportional to its weight, exactly."""
    sums = list(itertools.accumulate(weights))
    return bisect.bisect_right(sums, draw_below(sums[-1], entropy))
