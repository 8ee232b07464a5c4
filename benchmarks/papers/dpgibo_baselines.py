"""Private zeroth-order descent and DP-SGD beside DP-GIBO: the same records, start, mu and number of
loss calls a person, on 4.2's Huber regression in many dimensions.

DPZero (Zhang et al. 2024, arXiv 2310.09639): along a random u of length sqrt(d), each person's
(L(z + l u) - L(z - l u)) / 2 l is clipped to [-C, C], averaged and noised, and z moves along u by
this one number. DP-ZO (Tang et al. 2024, arXiv 2401.04343) takes a Gaussian u. Both take everybody
at each step here, as DP-GIBO does; `sampled` gives them a random sample at each step, as DP-ZO is
published: for the same calls a person they go along more directions, and the noise of a path is
about as large (`noise_of_samples`). DP-SGD: the mean of clipped gradients, noised. T
releases with noise of sqrt(T) / mu times their sensitivity are mu-GDP, exactly; this noise is
torch's.

All work in box widths and return the mean of the last quarter of their iterates, as DP-GIBO does.
For each, and for DP-GIBO, the optimizer, step and clip of the least mean loss on the records and
noise of seeds 100 and 101 are chosen, then how far the points lie, or T of DP-SGD; the share of a
sample with them. For 50,000 people this is done on 5,000 with ten times mu, where the noise is the
same, but with samples on 50,000. 4.3 and 4.4, which have no
gradients, take DPZero alone (`dpzero_at`).
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from scipy.optimize import brentq
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from benchmarks.harness import table, with_bar
from benchmarks.papers import dpgibo_problems as problems
from benchmarks.papers.dpgibo_problems import Problem
from benchmarks.papers.peers import STREAM
from dpbo import Budget
from dpbo.accounting import compose
from dpbo.accounting.gdp import epsilon_at
from dpbo.events import PoissonGaussianEvent
from dpbo.gibo import GIBOSettings, replicate
from dpbo.testing import SeededEntropy

TUNING = (100, 101)
FEW = 5_000
# above it the choice of this d holds: steps and clips are in units that follow d
WIDEST = 100
OURS = "DP-GIBO"
# of people in a step: everybody, or what is tried where a step samples them
ALL = (1.0,)
SHARES = (0.1, 0.02)
ZEROTH = ("DPZero", "DP-ZO")
# of runs at once
_LOSSES = 10**7


@dataclass(frozen=True)
class Choice:
    """What is chosen for a method: optimizer, how far in box widths its steps lead together where a
    gradient has length `reach` / sqrt(d), clip over `reach`, distance of the points in box widths,
    how many times T DP-SGD steps, and with what probability a step of DPZero or DP-ZO takes a
    person.
    """

    adagrad: bool
    path: float
    clip: float
    radius: float = 0.01
    more: int = 1
    share: float = 1.0

    def rate(self, d: int, steps: int, reach: float) -> float:
        """The learning rate that leads so far."""
        if self.adagrad:
            return self.path / (2 * math.sqrt(steps))
        return self.path * d / (steps * reach)


CHOICES = tuple(
    Choice(*each) for each in itertools.product((True, False), (0.1, 0.3, 1.0), (1.0, 0.3))
)


class Task(Protocol):
    """A problem in box widths, at the points of many runs at once, `r x d`.

    Attributes:
        starts: `1 x d`, or one for each run.
        people: n.
        reach: about the longest gradient of a person.
    """

    starts: Tensor
    people: int
    reach: float

    def losses(self, z: Tensor) -> Tensor:
        """Of each person, `r x n`; `r` may be several times the number of runs."""

    def excess(self, z: Tensor) -> list[float]:
        """Mean loss at points over the least one, where that is known."""


class Separate:
    """Problems without gradients, one a run."""

    reach = 1.0

    def __init__(self, tasks: Sequence[Problem]) -> None:
        self._tasks = tasks
        self._low, high = tasks[0].bounds
        self._width = high - self._low
        self.starts = (torch.stack([own.start for own in tasks]) - self._low) / self._width
        self.people = len(tasks[0].records)

    def outward(self, z: Tensor) -> Tensor:
        """x of z."""
        return self._low + z * self._width

    def losses(self, z: Tensor) -> Tensor:
        pairs = zip(itertools.cycle(self._tasks), self.outward(z), strict=False)
        return torch.stack([own.loss(x, own.records) for own, x in pairs])

    def excess(self, z: Tensor) -> list[float]:
        pairs = zip(itertools.cycle(self._tasks), self.outward(z), strict=False)
        return [own.value(x) for own, x in pairs]


class Regression:
    """4.2's problem."""

    def __init__(self, seed: int, n: int, d: int) -> None:
        self.problem = problems.huber_regression(seed, n, d)
        self._width = float(self.problem.bounds[1, 0] - self.problem.bounds[0, 0])
        self._X = self.problem.records[:, :-1].contiguous()
        self._lengths = self._X.norm(dim=1)
        self._weights = (2.0 / self._lengths.square()).clamp_max(1.0)
        self.people = n
        # the last row is nobody, whose weight is 0
        rows = torch.cat([self.problem.records, self._weights.unsqueeze(1)], dim=1)
        self._padded = torch.cat([rows, torch.zeros_like(rows[:1])])
        self.starts = torch.full((1, d), 0.5, dtype=torch.float64)
        # a gradient is at most min(|x|, 2 / |x|) long, and |x| about sqrt(d)
        self.reach = self._width * min(math.sqrt(2.0), 2.0 / math.sqrt(d))

    def residuals(self, z: Tensor) -> Tensor:
        """y - X theta at points, `r x d`: `r x n`."""
        theta = self.problem.bounds[0] + z * self._width
        return self.problem.records[:, -1] - theta @ self._X.T

    def losses(self, z: Tensor) -> Tensor:
        return _huber(self.residuals(z), self._weights)

    def losses_of(self, people: Sequence[Tensor], ends: Tensor) -> Tensor:
        """Of people of each run, `r` indices, at its own points, `r x d x e`: `r x k x e`, with 0
        after a run's last person.
        """
        chosen = pad_sequence(list(people), batch_first=True, padding_value=self.people)
        theta = self.problem.bounds[0].unsqueeze(-1) + ends * self._width
        rows = self._padded[chosen]
        residuals = rows[..., -2:-1] - torch.bmm(rows[..., :-2], theta)
        return _huber(residuals, rows[..., -1:])

    def gradient(self, z: Tensor, clip: Tensor) -> Tensor:
        """Mean of the clipped gradients, `r x d`."""
        slopes = self.residuals(z).clamp_(-1.0, 1.0).mul_(-self._width * self._weights)
        slopes *= (clip / (slopes.abs() * self._lengths).clamp_min(1e-12)).clamp_max(1.0)
        return slopes @ self._X / len(self._X)

    def excess(self, z: Tensor) -> list[float]:
        return (self.losses(z).mean(1) - self.problem.lowest).tolist()


def _huber(residuals: Tensor, weights: Tensor) -> Tensor:
    size = residuals.abs_()
    inner = size.clamp(max=1.0)
    return size.sub_(inner, alpha=0.5).mul_(inner).mul_(weights)


def zeroth_order(
    task: Task,
    T: int,
    mu: float,
    choices: Sequence[Choice],
    seeds: Sequence[int],
    *,
    sphere: bool,
) -> Tensor:
    """DPZero, with `sphere`, or DP-ZO. Samples need a `Regression`."""
    d = task.starts.shape[1]
    whole = T * (d + 1) // 2
    (share,) = {own.share for own in choices}
    steps = round(whole / share)
    samplers = [torch.Generator().manual_seed(2 * STREAM + seed) for seed in seeds]
    noise_of_sum = 2 * math.sqrt(whole) / mu
    if share < 1:
        noise_of_sum *= math.sqrt(share) * noise_of_samples(whole, share, mu)
    # |u| is about sqrt(d)
    h = torch.tensor([[own.radius] for own in choices], dtype=torch.float64) / math.sqrt(d)

    def release(z: Tensor, clip: Tensor, noise: Tensor) -> Tensor:
        u = noise[:, 1:]
        if sphere:
            u = u * (math.sqrt(d) / u.norm(dim=1, keepdim=True))
        ends = torch.stack([z + h * u, z - h * u]).clamp(0.0, 1.0)
        if share < 1:
            assert isinstance(task, Regression)
            people = [poisson_sample(task.people, share, each) for each in samplers]
            above, below = task.losses_of(people, ends.permute(1, 2, 0)).unbind(-1)
        else:
            above, below = task.losses(ends.flatten(0, 1)).chunk(2)
        slopes = torch.minimum(torch.maximum((above - below) / (2 * h), -clip), clip)
        total = slopes.sum(1, keepdim=True) + noise_of_sum * clip * noise[:, :1]
        return total / (share * task.people) * u

    return descended(task, release, steps, choices, seeds, math.sqrt(d))


def poisson_sample(n: int, share: float, generator: torch.Generator) -> Tensor:
    """Indices of those of n whom a Poisson sample takes: their distances are geometric."""
    # n is passed with all but certainty
    most = int(n * share + 10 * math.sqrt(n * share)) + 10
    uniform = 1 - torch.rand(most, dtype=torch.float64, generator=generator)
    places = (uniform.log() / math.log1p(-share)).floor_().add_(1).cumsum(0).long() - 1
    return places[places < n]


def gradient_descent(
    task: Regression, T: int, mu: float, choices: Sequence[Choice], seeds: Sequence[int]
) -> Tensor:
    """DP-SGD with everybody in each batch."""
    (more,) = {own.more for own in choices}

    def release(z: Tensor, clip: Tensor, noise: Tensor) -> Tensor:
        std = 2 * clip * math.sqrt(T * more) / (mu * task.people)
        return task.gradient(z, clip) + std * noise[:, 1:]

    return descended(task, release, T * more, choices, seeds)


def descended(
    task: Task,
    release: Callable[[Tensor, Tensor, Tensor], Tensor],
    steps: int,
    choices: Sequence[Choice],
    seeds: Sequence[int],
    stretch: float = 1.0,
) -> Tensor:
    """Descent by `release(z, clip, normals)` with `r x d`, `r x 1` and `r x (d + 1)` numbers.
    AdaGrad's rates are `stretch` times as large.
    """
    d = task.starts.shape[1]
    z = task.starts.repeat(len(choices) // len(task.starts), 1)
    columns = [(own.clip * task.reach, own.rate(d, steps, task.reach)) for own in choices]
    clip, rate = torch.tensor(columns, dtype=torch.float64).unsqueeze(-1).unbind(1)
    adagrad = torch.tensor([[own.adagrad] for own in choices])
    generators = [torch.Generator().manual_seed(STREAM + seed) for seed in seeds]
    squares = torch.zeros_like(z)
    kept = torch.zeros_like(z)
    tail = max(1, steps // 4)
    for step in range(steps):
        noise = [torch.randn(d + 1, dtype=torch.float64, generator=each) for each in generators]
        g = release(z, clip, torch.stack(noise))
        squares += g.square()
        scaled = stretch * g / squares.sqrt().clamp_min(1e-10)
        z = (z - rate * torch.where(adagrad, scaled, g)).clamp(0.0, 1.0)
        if step >= steps - tail:
            kept += z / tail
    return kept


def local(
    task: Regression, T: int, mu: float, choices: Sequence[Choice], seeds: Sequence[int]
) -> Tensor:
    """DP-GIBO with d + 1 points an iteration, over the same records in every run."""
    d = task.starts.shape[1]
    found = []
    for own, pairs in itertools.groupby(zip(choices, seeds, strict=True), lambda pair: pair[0]):
        settings = GIBOSettings(
            radius=own.radius,
            optimizer=torch.optim.Adagrad if own.adagrad else torch.optim.SGD,
            learning_rate=own.rate(d, T, task.reach),
        )
        found.append(runs_of(task, T, mu, own.clip, settings, [seed for _, seed in pairs]))
    return torch.cat(found)


def runs_of(
    task: Regression, T: int, mu: float, clip: float, settings: GIBOSettings, seeds: Sequence[int]
) -> Tensor:
    """What DP-GIBO recommends in box widths, some runs at once."""
    low, high = task.problem.bounds
    together = max(1, _LOSSES // (task.people * (len(low) + 1)))
    found = []
    for first in range(0, len(seeds), together):
        some = seeds[first : first + together]
        replicas = replicate(
            [task.problem.records] * len(some),
            problems.huber,
            bounds=task.problem.bounds,
            budget=Budget.gdp(mu),
            iterations=T,
            batch_size=len(low) + 1,
            clip=clip * task.reach,
            settings=settings,
            seeds=some,
            entropies=[SeededEntropy(seed) for seed in some],
            vectorize=True,
            allow_not_private=True,
        )
        found.append((replicas.x - low) / (high - low))
    return torch.cat(found)


# of (task, T, mu, choice of each run, seed of each run): what the runs recommend, `r x d`
Method = Callable[[Any, int, float, Sequence[Choice], Sequence[int]], Tensor]
METHODS: dict[str, tuple[Method, str, tuple[float, ...]]] = {
    OURS: (local, "radius", (0.002, 0.04)),
    "DPZero": (functools.partial(zeroth_order, sphere=True), "radius", (0.002, 0.04)),
    "DP-ZO": (functools.partial(zeroth_order, sphere=False), "radius", (0.002, 0.04)),
    "DP-SGD": (gradient_descent, "more", (4, 16)),
}
"""Each with what is chosen last, and its other values."""


def chosen(
    name: str,
    task: Task,
    T: int,
    mu: float,
    choices: Sequence[Choice],
    shares: tuple[float, ...] = ALL,
) -> Choice:
    """The choice of the least mean loss over the tuning seeds."""
    method, last, others = METHODS[name]

    def least(among: Sequence[Choice]) -> tuple[float, Choice]:
        every = [own for own in among for _ in TUNING]
        excess = task.excess(method(task, T, mu, every, TUNING * len(among)))
        means = torch.tensor(excess).view(len(among), -1).mean(1)
        return float(means.min()), among[int(means.argmin())]

    found = []
    for share in shares:
        first = least([dataclasses.replace(own, share=share) for own in choices])
        changes: list[dict[str, Any]] = [{last: other} for other in others]
        found += [first, *(least([dataclasses.replace(first[1], **each)]) for each in changes)]
    return min(found, key=lambda pair: pair[0])[1]


def dpzero_at(
    tasks: Sequence[Problem], tuning: Sequence[Problem], T: int, mu: float, seeds: Sequence[int]
) -> Tensor:
    """What DPZero recommends on problems without gradients, `r x d`; `tuning` are the same problems
    of the tuning seeds.
    """
    task = Separate(tasks)
    own = chosen("DPZero", Separate(tuning), T, mu, [each for each in CHOICES if each.adagrad])
    return task.outward(METHODS["DPZero"][0](task, T, mu, [own] * len(tasks), seeds))


@functools.cache
def chosen_for(
    name: str, d: int, n: int, T: int, mu: float, choices: tuple[Choice, ...], samples: bool
) -> Choice:
    """Of a method, with a sample of the people at each step or with everybody."""
    few = n if samples else min(n, FEW)
    tuning = Regression(TUNING[0], few, d)
    return chosen(name, tuning, T, mu * n / few, choices, SHARES if samples else ALL)


def cell(
    d: int, n: int, T: int, mu: float, runs: int, choices: tuple[Choice, ...], samples: bool
) -> dict[str, Any]:
    """A row: every method's excess loss, and DP-GIBO's less each other's; with samples, of the
    zeroth-order ones alone. The runs share the records of seed 0, and differ in noise and
    directions.
    """
    best = {
        name: chosen_for(name, min(d, WIDEST), n, T, mu, choices, samples and name != OURS)
        for name in ((OURS, *ZEROTH) if samples else METHODS)
    }
    task = Regression(0, n, d)
    losses = {
        name: task.excess(METHODS[name][0](task, T, mu, [own] * runs, range(runs)))
        for name, own in best.items()
    }
    default = runs_of(task, T, mu, 1.0, GIBOSettings.recommended(), range(runs))
    losses[f"{OURS}, defaults"] = task.excess(default)
    return {
        "d": d,
        "n": n,
        "T": T,
        "calls": T * (d + 1),
        "start": task.excess(task.starts)[0],
        "losses": losses,
        "gaps": {
            name: [a - b for a, b in zip(losses[OURS], values, strict=True)]
            for name, values in losses.items()
            if name != OURS
        },
        "chosen": {name: str(own) for name, own in best.items()},
        "noise of a path": {
            name: noise_of_samples(T * (d + 1) // 2, own.share, mu)
            for name, own in best.items()
            if own.share < 1
        },
    }


def with_more_losses(
    d: int, n: int, T: int, mu: float, runs: int, choices: tuple[Choice, ...]
) -> list[dict[str, Any]]:
    """DPZero's excess loss with so many times the losses of a row of these d and n, each with what
    is chosen for it.
    """
    tuning, task = (Regression(seed, n, d) for seed in (TUNING[0], 0))
    rows = []
    for times in (3, 10):
        own = chosen("DPZero", tuning, times * T, mu, choices)
        z = METHODS["DPZero"][0](task, times * T, mu, [own] * runs, range(runs))
        rows.append({"times": times, "losses": task.excess(z), "chosen": str(own)})
    return rows


@functools.cache
def noise_of_samples(T: int, rate: float, mu: float = 1.0, delta: float = 1e-5) -> float:
    """Noise of a path of T / rate steps whose batches take each person at this rate, over that of T
    steps with everybody, where both lead as far and spend the (epsilon, delta) of mu-GDP.
    """
    steps = round(T / rate)
    # the multiplier is of one person's clip, of which a replaced one moves a sum by two
    everybody = 2 * math.sqrt(T) / mu

    def excess(share: float) -> float:
        event = PoissonGaussianEvent(share * everybody, steps, rate=rate, relation="replace-one")
        return compose([event], delta=delta).epsilon - epsilon_at(mu, delta)

    return float(brentq(excess, 0.1, 2.0, xtol=1e-3)) / math.sqrt(rate)


def cells(sizes: Sequence[tuple[int, int]], smoke: bool, samples: bool) -> list[dict[str, Any]]:
    """A row for each (d, n), printed."""
    T = 2 if smoke else 10
    choices = CHOICES[:2] if smoke else CHOICES
    rows = []
    shown = []
    for d, n in with_bar(sizes):
        runs = 2 if smoke else min(50, max(4, 3 * 10**7 // (n * d)))
        if samples:
            # whose steps are many
            runs = min(runs, 1700 // d)
        row = cell(d, n, T, 1.0, runs, choices, samples)
        rows.append(row)
        for name, values in row["losses"].items():
            shown.append((d, n, name, values, row["gaps"].get(name, "")))
    header = ("d", "n", "method", "excess loss (SE)", f"{OURS} minus it (SE)")
    print(f"\nHuber regression, mu = 1, {T} (d + 1) loss calls a person\n\n" + table(header, shown))
    return rows


def compared(smoke: bool) -> dict[str, Any]:
    """Everybody in each step, then DPZero with more losses."""
    sizes = [(3, 200)] if smoke else list(itertools.product((33, 100, 300), (5_000, 50_000)))
    rows = cells(sizes, smoke, False)
    more = with_more_losses(
        *sizes[0],
        rows[0]["T"],
        1.0,
        len(rows[0]["losses"][OURS]),
        CHOICES[:2] if smoke else CHOICES,
    )
    shown = [(row["times"], row["losses"]) for row in more]
    print("\n" + table(("times the losses", "DPZero (SE)"), shown))
    return {"cells": rows, "more losses": more}


def sampled(smoke: bool) -> dict[str, Any]:
    """Zeroth-order descent with a sample of the people at each step."""
    sizes = [(33, 5_000), (100, 5_000), (33, 50_000)]
    return {"cells": cells([(3, 200)] if smoke else sizes, smoke, True)}
