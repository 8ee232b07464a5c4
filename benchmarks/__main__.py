"""Speed beside peers: what dpbo does often, at a small size, beside what a user would call
otherwise, in one table and under five minutes.

Each row is the median of paired ratios of runs in turn, one thread. "Wanted" is the largest ratio
that the project allows itself, or a time where there is no peer. docs/measured.md
shows the rows of benchmarks/results/speed.json.

    python -m benchmarks [--smoke] [--json FILE] [--only TEXT]
"""

import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.stats import uniform
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from benchmarks import finite_gp, gibo_step
from benchmarks.harness import interleaved, named, options, ratio, record, table, with_bar
from benchmarks.overhead import curator_of
from benchmarks.sums import compared
from dpbo import DPGIBO, Adjacency, Budget, Curator, PrivateObjective, Space
from dpbo.accounting import compose, composition
from dpbo.acquisition import suggest
from dpbo.events import Event, ExponentialEvent, GaussianEvent, LaplaceEvent, PoissonGaussianEvent
from dpbo.gibo import GIBOSettings, GradientPosterior, replicate, suggest_gradient_points
from dpbo.mechanisms import ExponentialMechanism
from dpbo.mechanisms.gaussian import NORMAL
from dpbo.mechanisms.rounding import rounded
from dpbo.models.fixed_kernels import squared_exponential
from dpbo.privacy import Sensitivity
from dpbo.queries import ClippedMean

HEADER = ("work", "peer", "ms", "ms of the peer", "ratio", "wanted")
Work = Callable[[], Any]
PLAN = """
import time
from dpbo import Budget
from dpbo.dpsgd import DPSGDConfig, plan_tuning
start = time.perf_counter()
config = DPSGDConfig(noise_multiplier=1.0, epochs=10, batches=10, batch_size=240)
plan_tuning(Budget(3.0, 1e-5), config, runs=20, validation=600)
print(time.perf_counter() - start)
"""


def of_records(_: Any, records: torch.Tensor) -> torch.Tensor:
    """A score that is one of the record's own numbers."""
    return records


def row(
    work: str, peer: str, ours: Work, theirs: Work | None, wanted: str, repetitions: int = 7
) -> list[Any]:
    """One line of the table."""
    if theirs is None:
        (times,) = interleaved(ours, repetitions=repetitions)
        return [work, peer, 1e3 * statistics.median(times), "", "", wanted]
    mine, other = interleaved(ours, theirs, repetitions=repetitions)
    return [
        work,
        peer,
        1e3 * statistics.median(mine),
        1e3 * statistics.median(other),
        ratio(mine, other),
        wanted,
    ]


def sums(smoke: bool) -> list[list[Any]]:
    """Sums over records: scores, steps of k-means and of EM."""
    n = 10**5 if smoke else 10**7
    scores = torch.rand(n)
    evaluate = partial(curator_of(scores).evaluate, ClippedMean(of_records, score_range=(0.0, 1.0)))
    first = row(
        f"clip and sum {n:,} scores",
        "clamp and mean",
        evaluate,
        lambda: scores.clamp(0, 1).mean(),
        "1",
    )
    steps = [
        [work, "scikit-learn", 1e3 * ours, 1e3 * theirs, share, "0.5" if "EM" in work else "1"]
        for work, ours, theirs, share in compared(smoke, 0)
    ]
    return [first, *steps]


def releases(smoke: bool) -> list[list[Any]]:
    """An objective's call, in memory and in a file."""
    n = 10**4 if smoke else 10**5
    calls = 20 if smoke else 200
    scores = torch.rand(n)
    rows = []
    X = torch.rand(1, 2, dtype=torch.float64)
    with tempfile.TemporaryDirectory() as folder:
        files = {"in memory": {}, "SQLite": {"ledger": f"{folder}/ledger.db", "dataset": "scores"}}
        for (where, place), wanted in zip(files.items(), ("1.5 ms", "5 ms"), strict=True):
            terms: dict[str, Any] = {
                "adjacency": Adjacency.REPLACE_ONE,
                "budget": Budget.gdp(10.0),
                **place,
            }
            curator = Curator(scores, unit="record", **terms)
            objective = PrivateObjective(
                curator,
                of_records,
                fit=torch.Tensor.clone,
                score_range=(0.0, 1.0),
                evaluations=10 * calls,
            )
            rows.append(
                row(
                    f"objective of {n:,} records, {where}",
                    "mean",
                    partial(objective, X),
                    scores.mean,
                    wanted,
                    calls,
                )
            )
    return rows


def draws(smoke: bool) -> list[list[Any]]:
    """Exact noise and exact choices."""
    n = 10**4 if smoke else 10**6
    quantum = 2.0**-20
    rng = np.random.default_rng(0)
    mechanism = ExponentialMechanism(10.0)
    utilities = torch.from_numpy(rng.integers(0, 1 << 20, n))
    law = mechanism.distribution(Sensitivity(1.0, 1.0, 1.0), [quantum])
    floats = quantum * utilities.numpy()
    zeros = np.zeros(100_000)
    ones = np.full(100_000, 2.0**20)

    def inexact() -> Any:
        totals = np.cumsum(np.exp(floats / 10.0))
        return np.searchsorted(totals, rng.random() * totals[-1])

    def choose() -> Any:
        return mechanism._sample(utilities, [quantum], law, os.urandom)

    import opendp.prelude as dp

    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T=int))
    few = dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=2.0**20)
    return [
        row(
            "2,000 exact Gaussians",
            "OpenDP",
            partial(rounded, NORMAL, zeros[:2000], ones[:2000], os.urandom),
            partial(few, [0] * 2000),
            "0.1",
        ),
        row(
            "100,000 exact Gaussians",
            "numpy's",
            partial(rounded, NORMAL, zeros, ones, os.urandom),
            partial(rng.normal, size=100_000),
            "",
        ),
        row(f"exact exponential choice of {n:,}", "numpy's, not exact", choose, inexact, "2"),
    ]


def plan_of(kinds: int, releases: int) -> list[Event]:
    """So many releases of three mechanisms at so many distinct parameters."""
    rng = np.random.default_rng(0)
    mechanisms = (GaussianEvent, LaplaceEvent, ExponentialEvent)
    return [
        mechanisms[i % 3](float(1 / rng.uniform(0.01, 0.05)), releases // kinds)
        for i in range(kinds)
    ]


def by_dp_accounting(events: Sequence[Event]) -> float:
    """dp_accounting's epsilon; it composes every exponential choice as randomised response."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    grid = 1e-4
    total = None
    for event in events:
        noise = event.noise_multiplier
        match event:
            case GaussianEvent():
                part = pld.from_gaussian_mechanism(noise, value_discretization_interval=grid)
            case LaplaceEvent():
                part = pld.from_laplace_mechanism(noise, value_discretization_interval=grid)
            case _:
                part = pld.from_randomized_response(
                    2 / (1 + np.exp(2 / noise)), 2, value_discretization_interval=grid
                )
        part = part.self_compose(event.count)
        total = part if total is None else total.compose(part)
    assert total is not None
    return float(total.get_epsilon_for_delta(1e-5))


def accounting(smoke: bool) -> list[list[Any]]:
    """Composition, sampled steps, plans."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    events = plan_of(20, 100 if smoke else 1000)
    sampled = PoissonGaussianEvent(1.0, 1000, rate=0.01, relation="add-or-remove-one")

    def fresh_bound(*what: Any) -> Any:
        composition._composed.cache_clear()
        return compose([*what], delta=1e-5)

    def peer() -> Any:
        one = pld.from_gaussian_mechanism(
            1.0, sampling_prob=0.01, value_discretization_interval=1e-3
        )
        return one.self_compose(1000).get_epsilon_for_delta(1e-5)

    return [
        row(
            "compose 20 kinds of release",
            "dp_accounting",
            lambda: fresh_bound(*events),
            lambda: by_dp_accounting(events),
            "0.1",
            2,
        ),
        row(
            "1,000 sampled steps",
            "dp_accounting, grid 1e-3",
            lambda: fresh_bound(sampled),
            peer,
            "1",
        ),
    ]


def proposals(smoke: bool) -> list[list[Any]]:
    """Where to evaluate next."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    t = 10 if smoke else 30
    space = Space(a=uniform(), b=uniform(), c=uniform())
    X = space.sample(t, seed=0)
    Y = -(X - 0.4).square().sum(1, keepdim=True) + 0.05 * torch.randn(
        t, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.GPSampler(seed=0))
    floats = {name: optuna.distributions.FloatDistribution(0.0, 1.0) for name in "abc"}
    for x, y in zip(X.tolist(), Y.flatten().tolist(), strict=True):
        study.add_trial(
            optuna.trial.create_trial(
                params=dict(zip("abc", x, strict=True)), distributions=floats, value=y
            )
        )
    runs, few, past = (3, 4, 20) if smoke else (50, 10, 200)
    walks = [gibo_step.walked(few, few + 1, past, seed) for seed in range(runs)]
    thetas = torch.stack([theta for _, theta in walks])
    together = GradientPosterior(walks[0][0].derivatives, 0.0, jitter=gibo_step.JITTER)
    together.append(torch.stack([walk.points(theta) for walk, theta in walks]))
    d, N = (4, 20) if smoke else (33, 400)
    posterior, theta = gibo_step.walked(d, d + 1, N, 0)
    n, steps = (2_000, 8) if smoke else (40_000, 50)
    candidates = torch.rand(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel = squared_exponential(finite_gp.LENGTH)
    values = finite_gp.values_of(candidates, 0)

    def one_run() -> Any:
        return finite_gp.by_finite_gp(candidates, kernel, values, steps)

    batches = []
    for size, count, wanted, repetitions in (
        ((4, 100, "", 1), (3, n, "", 1)) if smoke else ((50, 1_000, "0.08", 7), (10, n, "1", 3))
    ):
        many = finite_gp.values_of(candidates[:count], 1, (size,))
        single, batch = (
            finite_gp.model_of(candidates[:count], kernel, steps, shape) for shape in ((), (size,))
        )
        batches.append(
            row(
                f"{size} runs of GP-UCB at once, {count:,} candidates, {steps} steps",
                "one after another",
                partial(finite_gp.searched, batch, many, steps),
                partial(finite_gp.one_by_one, single, many, steps),
                wanted,
                repetitions,
            )
        )
    return [
        row(
            f"suggest after {t} values",
            "Optuna's GPSampler",
            lambda: suggest(space, X, Y, torch.full_like(Y, 0.0025), seed=0),
            lambda: study.ask(floats),
            "0.75",
            5,
        ),
        row(
            f"DP-GIBO's points, d = {d}, N = {N}",
            "",
            lambda: suggest_gradient_points(posterior, theta, d + 1),
            None,
            "40 ms",
        ),
        row(
            f"DP-GIBO's points of {runs} runs at once, d = {few}, N = {past}",
            "one run after another",
            lambda: suggest_gradient_points(together, thetas, few + 1),
            lambda: [suggest_gradient_points(walk, theta, few + 1) for walk, theta in walks],
            "0.25",
            5,
        ),
        row(
            f"GP-UCB, {n:,} candidates, {steps} steps",
            "BoTorch",
            one_run,
            lambda: finite_gp.by_botorch(candidates, kernel, values, steps),
            "0.02",
            1,
        ),
        *batches,
    ]


def replicas(smoke: bool) -> list[list[Any]]:
    """Runs of DP-GIBO at once, beside as many with a curator and a ledger each."""
    runs, n, d, iterations = (2, 50, 3, 2) if smoke else (50, 500, 10, 5)
    generator = torch.Generator().manual_seed(0)
    records = [
        1.0 + torch.randn(n, d, dtype=torch.float64, generator=generator) for _ in range(runs)
    ]
    bounds = torch.tensor([[-5.0] * d, [5.0] * d], dtype=torch.float64)
    terms: dict[str, Any] = {
        "bounds": bounds,
        "iterations": iterations,
        "batch_size": d + 1,
        "clip": 1.0,
        "settings": GIBOSettings.paper(),
    }
    budget = Budget.gdp(1.0)

    def one_by_one() -> None:
        for own in records:
            curator = Curator(
                own, unit="person", adjacency="replace-one", budget=budget, allow_repeated=True
            )
            DPGIBO(curator, half_squares, **terms).run()

    def at_once() -> Any:
        return replicate(
            records, half_squares, budget=budget, vectorize=True, allow_not_private=True, **terms
        )

    work = f"{runs} runs of DP-GIBO at once, {iterations} iterations, d = {d}"
    return [row(work, "DPGIBO, one after another", at_once, one_by_one, "0.25", 3)]


def half_squares(x: torch.Tensor, records: torch.Tensor) -> torch.Tensor:
    """A loss: half the squared distance."""
    return (records - x).square().sum(-1) / 2.0


def fresh(code: str) -> str:
    """What the code prints in a new process, which may keep compiled modules as an installed
    package does.
    """
    variables = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=variables
    ).stdout


def first_uses(smoke: bool) -> list[list[Any]]:
    """What is done once in a process: imports, a plan."""
    rows = []
    times = 1 if smoke else 3
    # What a user would import otherwise.
    peers = {
        "Curator, PrivateObjective": "import botorch",
        "DPSearch, DPGIBO": "import botorch, sklearn.model_selection",
    }
    for names, peer in peers.items():
        rows.append(
            row(
                f"import {names}",
                peer,
                partial(fresh, f"from dpbo import {names}"),
                partial(fresh, peer),
                "1.1",
                times,
            )
        )
    helped = partial(
        fresh, "import sys, runpy; sys.argv = ['dpbo', '--help']; runpy.run_module('dpbo')"
    )
    rows.append(row("python -m dpbo --help", "", helped, None, "300 ms", times))
    if not smoke:
        rows.append(["plan_tuning", "", 1e3 * float(fresh(PLAN)), "", "", "3 s"])
    return rows


PARTS: tuple[Callable[[bool], list[list[Any]]], ...] = (
    sums,
    releases,
    draws,
    accounting,
    proposals,
    replicas,
    first_uses,
)


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments, only="")
    torch.set_num_threads(1)
    # Of scikit-learn and numpy, too.
    threadpool_limits(1)
    rows = []
    for part in with_bar([part for part in PARTS if chosen.only in part.__name__]):
        rows += part(chosen.smoke)
    print(table(HEADER, rows))
    record("speed", {"rows": named(HEADER, rows)}, chosen)


if __name__ == "__main__":
    main()
