"""The replications of each experiment of DP-GIBO's paper, one a seed: every method on the same
records from the same start. All replications of one setting of DP-GIBO run at once
(`gibo.replicate`).

Each returns the true loss of every method's recommendation (over the least possible in 4.1 and
4.2), by the method's name, and beside them what else a finding needs. Step sizes that the paper
leaves open were chosen on seeds 100 to 119.
"""

import dataclasses
import functools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.kernels import Kernel, PolynomialKernel, RBFKernel
from torch import Tensor

from benchmarks.harness import with_bar
from benchmarks.papers import dpgibo_problems as problems
from benchmarks.papers import peers
from benchmarks.papers.dpgibo_baselines import TUNING, dpzero_at
from benchmarks.papers.dpgibo_problems import Problem
from dpbo import DPGIBO, Budget
from dpbo.gibo import GIBOSettings, choose_start, replicate
from dpbo.gibo.algorithm import GIBOResult
from dpbo.gibo.design import GIBODesign
from dpbo.gibo.gradient_posterior import GradientPosterior
from dpbo.mechanisms import NoNoise
from dpbo.testing import SeededEntropy

INF = math.inf
PAPER = GIBOSettings.paper()
RECOMMENDED = GIBOSettings.recommended()
SGD = torch.optim.SGD
LOCATION_STEP = 0.05
HUBER_STEP = 0.2
NAMED = (
    ("paper", PAPER, 1.0),
    ("recommended", RECOMMENDED, 1.0),
    ("tuned", dataclasses.replace(RECOMMENDED, radius=0.002), 0.3),
)
"""Settings and clip; the last were chosen on the problem of 4.3 at seeds 100 to 119, as one would
on synthetic data.
"""
WAYS: tuple[tuple[str, dict[str, Any], float], ...] = (
    ("recommended", {}, 1.0),
    ("radius 0.01", {"radius": 0.01}, 1.0),
    ("radius 0.002", {"radius": 0.002}, 1.0),
    ("clip 0.3", {}, 0.3),
    ("radius 0.002 and clip 0.3", {"radius": 0.002}, 0.3),
    ("radius 0.002 and clip 0.1", {"radius": 0.002}, 0.1),
    ("step 0.1", {"learning_rate": 0.1}, 1.0),
    ("step 0.1, radius 0.002 and clip 0.3", {"learning_rate": 0.1, "radius": 0.002}, 0.3),
)
"""Changes of the recommended settings, and the clip."""
STARTED: tuple[tuple[str, GIBOSettings, float], ...] = (
    (
        "step 0.1, radius 0.002 and clip 0.3",
        dataclasses.replace(RECOMMENDED, learning_rate=0.1, radius=0.002),
        0.3,
    ),
    (
        "step 0.1, radius 0.01 and clip 0.3",
        dataclasses.replace(RECOMMENDED, learning_rate=0.1, radius=0.01),
        0.3,
    ),
    (
        "step 0.2, radius 0.002 and clip 0.3",
        dataclasses.replace(RECOMMENDED, learning_rate=0.2, radius=0.002),
        0.3,
    ),
    (
        "SGD with momentum 0.5, radius 0.002 and clip 0.3",
        dataclasses.replace(
            RECOMMENDED,
            optimizer=functools.partial(SGD, momentum=0.5),
            learning_rate=0.3,
            radius=0.002,
        ),
        0.3,
    ),
    ("the paper's settings with step 0.3", dataclasses.replace(PAPER, learning_rate=0.3), 1.0),
)
"""Settings after a fifth of the budget chose the start among the given one and 65 Sobol points;
chosen on seeds 100 to 111.
"""
CANDIDATES = 65
START_SHARE = 0.2
LEVELS = (0.05, 1.0, INF)
MODEL_SIGMAS = (0.01, 1.0, 1e-4)
SEARCH = "PrivateObjective + TuRBO"
PRIVATE = f"{SEARCH}, mu 1"
EXPERIMENTS = ("4.1", "4.2", "4.3", "4.4", "noisy", "settings", "baselines", "samples")


@dataclass(frozen=True)
class Sizes:
    """How large an experiment is: the paper's sizes, or tiny ones."""

    steps: int = 25
    steps_41: int = 150
    steps_42: int = 100
    steps_svm: int = 15
    users: int = 4500
    users_svm: int = 1700
    train_svm: int = 200
    scales: int = 10
    features: int = 30
    levels: tuple[float, ...] = LEVELS
    peer_levels: tuple[float, ...] = (0.05, 0.2, 1.0)
    searches: bool = False

    @property
    def evaluations(self) -> int:
        """Of experiment 4.3."""
        return self.steps * (self.scales + 1)

    @property
    def evaluations_svm(self) -> int:
        """Of experiment 4.4."""
        return self.steps_svm * (self.features + 4)


FULL = Sizes()
SMOKE = Sizes(
    steps_41=8,
    steps_42=8,
    steps=3,
    users=200,
    scales=3,
    features=4,
    train_svm=40,
    users_svm=150,
    steps_svm=2,
    levels=(1.0, INF),
    peer_levels=(1.0,),
)


class Run(NamedTuple):
    """One run of DP-GIBO: what it recommends, `d`, its iterates, `t + 1 x d`, and its rho."""

    x: Tensor
    iterates: Tensor
    rho: float


@dataclass
class Replication:
    """Losses by method, rho by method, other figures, and curves over iterations by "quantity,
    method".
    """

    losses: dict[str, float] = field(default_factory=dict)
    rho: dict[str, float] = field(default_factory=dict)
    extra: dict[str, float] = field(default_factory=dict)
    curves: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, problem: Problem, run: Run) -> None:
        """Keep the true loss of what a run recommends, and its path's."""
        self.losses[name] = problem.value(run.x)
        self.rho[name] = run.rho
        self.follow(name, problem, run.iterates)

    def follow(self, name: str, problem: Problem, path: Tensor) -> None:
        """Keep the true loss and the first coordinate along a path, `t + 1 x d`."""
        self.curves[f"loss, {name}"] = [problem.value(x) for x in path]
        self.curves[f"coordinate, {name}"] = path[:, 0].tolist()

    def search(
        self, name: str, problem: Problem, search: peers.Search, evaluations: int, q: int, seed: int
    ) -> None:
        """Keep the true loss of what an open search recommends, and the least that it saw."""
        found, self.curves[f"loss, {name}"] = peers.openly(problem, search, evaluations, q, seed)
        self.losses[name] = problem.value(found)


def gibo(
    problems: Sequence[Problem],
    mu: float,
    settings: GIBOSettings,
    iterations: int,
    batch_size: int,
    seeds: Sequence[int],
    **changes: Any,
) -> list[Run]:
    """A run of DP-GIBO for each problem, or of GIBO where mu is infinite."""
    first = problems[0]
    private = math.isfinite(mu)
    terms: dict[str, Any] = {"bounds": first.bounds, "clip": 1.0, **changes}
    found = replicate(
        [problem.records for problem in problems],
        [problem.loss for problem in problems],
        budget=Budget.gdp(mu, delta=1e-5) if private else None,
        mechanism=None if private else NoNoise(allow_not_private=True),
        iterations=iterations,
        batch_size=batch_size,
        start=torch.stack([problem.start for problem in problems]),
        settings=settings,
        seeds=None if settings.seed is None else seeds,
        entropies=[SeededEntropy(seed) for seed in seeds],
        allow_not_private=True,
        **terms,
    )
    return [Run(x, path, found.rho) for x, path in zip(found.x, found.iterates, strict=True)]


def _seeded(settings: GIBOSettings, seed: int) -> GIBOSettings:
    """The settings with this seed, where designs are rotated."""
    return settings if settings.seed is None else dataclasses.replace(settings, seed=seed)


def add(
    done: Sequence[Replication], name: str, problems: Sequence[Problem], runs: Sequence[Run]
) -> None:
    """Keep each run with its replication."""
    for replication, problem, run in zip(done, problems, runs, strict=True):
        replication.add(name, problem, run)


def started(
    problem: Problem, seed: int, settings: GIBOSettings, clip: float, evaluations: int, b: int
) -> GIBOResult:
    """A run of DP-GIBO at mu = 1 from a privately chosen start, with so many evaluations in all."""
    curator = problem.curator(1.0, seed)
    sobol = draw_sobol_samples(problem.bounds, CANDIDATES, 1, seed=seed).squeeze(1)
    candidates = torch.cat([problem.start.unsqueeze(0), sobol])[: max(2, evaluations // 4)]
    start = choose_start(
        curator, problem.loss, candidates, loss_range=problem.reach, budget=START_SHARE
    )
    terms: dict[str, Any] = {
        "iterations": max(1, (evaluations - len(candidates)) // b),
        "batch_size": b,
        "settings": _seeded(settings, seed),
        "clip": clip,
    }
    return DPGIBO(
        curator,
        problem.loss,
        bounds=problem.bounds,
        start=start,
        budget=1 - START_SHARE,
        **terms,
    ).run()


def location(seeds: Sequence[int], sizes: Sizes) -> list[Replication]:
    """4.1, with the gradient's bias against the noise at mu = 0.5."""
    samples = [problems.normal_location(seed) for seed in seeds]
    done = [Replication() for _ in seeds]
    steps = sizes.steps_41
    kernel = PolynomialKernel(power=2).double()
    kernel.offset = 1.0
    descent = dataclasses.replace(PAPER, optimizer=SGD, learning_rate=LOCATION_STEP)
    few = min(steps, 25)
    d = len(samples[0].start)
    clip = _clip(samples[0])
    for mu in (0.5, 2.0, INF):
        runs = gibo(samples, mu, descent, steps, 3, seeds, kernel=kernel)
        add(done, f"GIBO paper, mu {mu:g}", samples, runs)
        found = gibo(samples, mu, RECOMMENDED, few, d + 1, seeds, clip=clip)
        add(done, f"GIBO recommended, mu {mu:g}", samples, found)
        for own, problem, run in zip(done, samples, runs, strict=True):
            tail = run.iterates[-steps // 2 :]
            own.extra[f"oscillation, mu {mu:g}"] = float(
                (tail - problem.records.mean(0)).norm(dim=1).mean()
            )
    for own, problem, seed in one_by_one(done, samples, seeds):
        estimate = problem.records.mean(0)
        own.curves["coordinate, maximum likelihood estimate"] = [float(estimate[0])] * (steps + 1)
        lengths = _bias_and_noise(problem, 0.5, steps, kernel, seed)
        for quantity, curve in lengths.items():
            own.curves[f"length, {quantity}"] = curve
            own.extra[f"{quantity}, mu 0.5"] = statistics.fmean(curve[steps // 2 :])
        if sizes.searches:
            _searches(own, problem, 3 * steps, 15, seed, (0.5, 2.0))
        own.losses["start"] = problem.value(problem.start)
    return done


def huber(seeds: Sequence[int], sizes: Sizes) -> list[Replication]:
    """4.2, mu = 1, with the path of both descents."""
    samples = [problems.huber_regression(seed) for seed in seeds]
    done = [Replication() for _ in seeds]
    steps = sizes.steps_42
    descent = dataclasses.replace(PAPER, optimizer=SGD, learning_rate=HUBER_STEP)
    runs = gibo(samples, 1.0, descent, steps, 2, seeds)
    add(done, "GIBO paper, mu 1", samples, runs)
    add(done, "GIBO paper, mu inf", samples, gibo(samples, INF, descent, steps, 2, seeds))
    clip = _clip(samples[0])
    found = gibo(samples, 1.0, RECOMMENDED, min(steps, 25), 5, seeds, clip=clip)
    add(done, "GIBO recommended, mu 1", samples, found)
    paths_of = [run.iterates for run in runs]
    for own, problem, seed, path in one_by_one(done, samples, seeds, paths_of):
        _descents(own, problem, seed, path, steps)
        if sizes.searches:
            _searches(own, problem, 2 * steps, 8, seed, (1.0,))
        own.losses["start"] = problem.value(problem.start)
    return done


def _descents(own: Replication, problem: Problem, seed: int, path: Tensor, steps: int) -> None:
    """4.2's paths beside each other: DP-GIBO's, and gradient descent's with and without noise."""
    descent = peers.gradient_descent(problem, 1.0, seed, steps, clip=1.0, step=HUBER_STEP)
    own.losses["DP-GD, mu 1"] = problem.value(descent[-1])
    paths = {"GIBO paper, mu 1": path, "DP-GD, mu 1": descent}
    paths["gradient descent, not private"] = peers.gradient_descent(
        problem, INF, seed, steps, clip=1.0, step=HUBER_STEP
    )
    for name, iterates in paths.items():
        own.follow(name, problem, iterates)
        gradients = [problems.huber_gradient(x, problem.records).mean(0) for x in iterates]
        own.curves[f"gradient, {name}"] = [float(gradient.norm()) for gradient in gradients]
    estimated = _estimated_lengths(problem, path, 2)
    own.curves["gradient, estimated by GIBO paper, mu 1, before the noise"] = estimated
    true = own.curves["gradient, GIBO paper, mu 1"]
    own.extra["estimated length over true, first 5 steps"] = statistics.fmean(
        a / b for a, b in zip(estimated[:5], true[:5], strict=True)
    )
    for t in (max(steps // 20, 1), steps // 2, steps):
        own.extra[f"GIBO at {t}"] = problem.value(path[t])
        own.extra[f"DP-GD at {t}"] = problem.value(descent[t])


def tuning(seeds: Sequence[int], sizes: Sizes) -> list[Replication]:
    """4.3: privacy levels of the paper's settings, other settings at mu = 1, and peers."""
    tasks = [problems.length_scales(seed, sizes.users, sizes.scales) for seed in seeds]
    done = [Replication() for _ in seeds]
    b = sizes.scales + 1
    budget = sizes.evaluations
    for name, settings, clip in NAMED:
        for mu in sizes.levels if name == "paper" else (1.0,):
            runs = gibo(tasks, mu, settings, sizes.steps, b, seeds, clip=clip)
            add(done, f"GIBO {name}, mu {mu:g}", tasks, runs)
    tuned_on = [problems.length_scales(seed, sizes.users, sizes.scales) for seed in TUNING]
    _dpzero(done, tasks, tuned_on, sizes.steps, seeds)
    for own, problem, seed in one_by_one(done, tasks, seeds):
        own.search("random", problem, peers.random_search, budget, b, seed)
        own.search("UCB-BO", problem, peers.ucb, budget, b, seed)
        if sizes.searches:
            own.search("TuRBO", problem, peers.turbo, budget, b, seed)
            _searches(own, problem, budget, b, seed, sizes.peer_levels)
            found, _ = peers.privately(problem, peers.log_nei, budget, b, seed, 1.0)
            own.losses["PrivateObjective + qLogNEI, mu 1"] = problem.value(found)
        own.losses["start"] = problem.value(problem.start)
    return done


def _dpzero(
    done: Sequence[Replication],
    tasks: Sequence[Problem],
    tuned_on: Sequence[Problem],
    steps: int,
    seeds: Sequence[int],
) -> None:
    """DPZero at mu = 1 with as many loss calls as DP-GIBO has in so many steps."""
    found = dpzero_at(tasks, tuned_on, steps, 1.0, seeds)
    for own, problem, x in zip(done, tasks, found, strict=True):
        own.losses["DPZero, mu 1"] = problem.value(x)


def machine(seeds: Sequence[int], sizes: Sizes, table: tuple[Tensor, Tensor]) -> list[Replication]:
    """4.4: 33 hyperparameters of a support vector regression."""
    tasks, tuned_on = (
        [
            problems.svm(seed, table, sizes.train_svm, sizes.users_svm, sizes.features)
            for seed in some
        ]
        for some in (seeds, TUNING)
    )
    done = [Replication() for _ in seeds]
    b = sizes.features + 4
    budget = sizes.evaluations_svm
    for name, settings, clip in NAMED[:2]:
        for mu in (1.0, INF) if name == "paper" else (1.0,):
            runs = gibo(tasks, mu, settings, sizes.steps_svm, b, seeds, clip=clip)
            add(done, f"GIBO {name}, mu {mu:g}", tasks, runs)
    _dpzero(done, tasks, tuned_on, sizes.steps_svm, seeds)
    for own, problem, seed in one_by_one(done, tasks, seeds):
        own.search("random", problem, peers.random_search, budget, b, seed)
        if sizes.searches:
            _searches(own, problem, budget, b, seed, (1.0,))
        own.losses["start"] = problem.value(problem.start)
    return done


def noisy(seeds: Sequence[int], sizes: Sizes) -> list[Replication]:
    """C.5: 4.3 with noise of 0.01 on every evaluation, at mu = 1, under three beliefs about it."""
    pairs = [
        problems.noisy(problems.length_scales(seed, sizes.users, sizes.scales), 0.01, seed)
        for seed in seeds
    ]
    seen, truths = (list(part) for part in zip(*pairs, strict=True))
    done = [Replication() for _ in seeds]
    b = sizes.scales + 1
    for name, settings, _ in NAMED[:2]:
        several = name == "paper" and not sizes.searches
        for sigma in MODEL_SIGMAS if several else MODEL_SIGMAS[:1]:
            runs = gibo(seen, 1.0, settings, sizes.steps, b, seeds, noise=sigma**2)
            add(done, f"GIBO {name}, sigma {sigma:g}", truths, runs)
    for own, problem, truth, seed in one_by_one(done, seen, truths, seeds):
        own.losses["start"] = truth.value(truth.start)
        if sizes.searches:
            _searches(own, problem, sizes.evaluations, b, seed, (1.0,), truth)
            continue
        found, own.curves["loss, random"] = peers.openly(
            problem, peers.random_search, sizes.evaluations, b, seed, truth
        )
        own.losses["random"] = truth.value(found)
    return done


def settings_apart(seeds: Sequence[int], sizes: Sizes) -> list[Replication]:
    """4.3 at mu = 1 with the recommended settings changed in one or two things."""
    tasks = [problems.length_scales(seed, sizes.users, sizes.scales) for seed in seeds]
    done = [Replication() for _ in seeds]
    b = sizes.scales + 1
    for name, changes, clip in WAYS:
        changed = dataclasses.replace(RECOMMENDED, **changes)
        add(done, name, tasks, gibo(tasks, 1.0, changed, sizes.steps, b, seeds, clip=clip))
    for own, problem, seed in one_by_one(done, tasks, seeds):
        for name, settings, clip in STARTED:
            result = started(problem, seed, settings, clip, sizes.evaluations, b)
            run = Run(result.x, result.iterates, result.rho)
            own.add(f"chosen start, {name}", problem, run)
        own.search("random", problem, peers.random_search, sizes.evaluations, b, seed)
    return done


def one_by_one(*columns: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """The replications with what belongs to each, under a bar: peers run one after the other."""
    return iter(with_bar(list(zip(*columns, strict=True))))


def _searches(
    done: Replication,
    problem: Problem,
    evaluations: int,
    q: int,
    seed: int,
    levels: tuple[float, ...],
    truth: Problem | None = None,
) -> None:
    """PrivateObjective + TuRBO at the same mu and number of evaluations."""
    for mu in levels:
        found, curator = peers.privately(problem, peers.turbo, evaluations, q, seed, mu)
        done.losses[f"{SEARCH}, mu {mu:g}"] = (truth or problem).value(found)
        done.extra[f"TuRBO's releases, mu {mu:g}"] = float(curator.ledger.used()["objective"])


def _clip(problem: Problem) -> float:
    """The paper's clip of 1 a unit of x, in the box widths of the recommended settings."""
    return float(problem.bounds[1, 0] - problem.bounds[0, 0])


def _bias_and_noise(
    problem: Problem, mu: float, steps: int, kernel: Kernel, seed: int
) -> dict[str, list[float]]:
    """Lengths of the gradient's bias and of its noise along a private run of 4.1, with everything
    in the open.

    The bias is the estimated mean gradient, clipped, minus the true one, clipped.
    """
    posterior = GradientPosterior(kernel, 0.0, jitter=PAPER.jitter)
    theta = problem.start
    random = torch.Generator().manual_seed(peers.STREAM + seed)
    design = GIBODesign(problem.bounds, 3, PAPER)
    n, d = problem.records.shape
    std = 2 * math.sqrt(steps) / (n * mu)
    found = {"bias": list[float](), "noise": list[float]()}
    for t in range(steps):
        estimated = _estimated(problem, posterior, design, theta, t)
        true = theta - problem.records
        gradient, exact = (
            each / each.norm(dim=1, keepdim=True).clamp_min(1.0) for each in (estimated, true)
        )
        noise = std * torch.randn(d, dtype=torch.float64, generator=random)
        found["bias"].append(float((gradient.mean(0) - exact.mean(0)).norm()))
        found["noise"].append(float(noise.norm()))
        theta = (theta - LOCATION_STEP * (gradient.mean(0) + noise)).clamp(*problem.bounds)
    return found


def _estimated(
    problem: Problem, posterior: GradientPosterior, design: GIBODesign, theta: Tensor, t: int
) -> Tensor:
    """Each record's gradient at theta as Algorithm 1 estimates it in iteration t, `n x d`, in the
    open.
    """
    posterior.append(design.points(posterior, theta, t))
    losses = torch.stack([problem.loss(x, problem.records) for x in posterior.points(theta)], 1)
    return losses @ posterior.weights(theta).T


def _estimated_lengths(problem: Problem, path: Tensor, b: int) -> list[float]:
    """Length of the mean of the estimated gradients, clipped at 1, along a run of the paper's
    settings: what the run released, without its noise.
    """
    kernel = RBFKernel().double()
    kernel.lengthscale = 1.0
    posterior = GradientPosterior(kernel, 0.0, jitter=PAPER.jitter)
    design = GIBODesign(problem.bounds, b, PAPER)
    lengths = []
    for t, theta in enumerate(path):
        each = _estimated(problem, posterior, design, theta, t)
        clipped = each / each.norm(dim=1, keepdim=True).clamp_min(1.0)
        lengths.append(float(clipped.mean(0).norm()))
    return lengths


def as_columns(
    runs: list[Replication],
) -> tuple[dict[str, list[float]], Mapping[str, float], dict[str, list[float]]]:
    """(losses, rho, extra figures) of all replications by name."""
    losses = {name: [run.losses[name] for run in runs] for name in runs[0].losses}
    extra = {name: [run.extra[name] for run in runs] for name in runs[0].extra}
    return losses, runs[0].rho, extra
