"""Outsourced Bayesian optimisation: Figure 2 and Tables 1 to 9 of PO-GP-UCB, beside releases that
are private.

Simple regret of 50 runs after T answers (and a random first one), by GP-UCB over true rows, over
the paper's transform (NOT PRIVATE: part (d) reads its rows off it), over rows released with noise
at the same epsilon, and by random search. Rows have norm at most 25. Synthetic functions at l =
1.25 as the paper prints, and at l = 5, which gives regrets of the size that the paper prints;
loans, property prices (2,004 projects, a stand-in) and Branin in standard deviations of their
values. Each row is asked once by every method. Real data need DPBO_DATA. What private means here:
one row moves by a norm of at most 1, a fiftieth of the largest possible diameter; answers count as
not sensitive. Scaling of the rows and hyper-parameters by maximum likelihood (1,500 random rows)
use the data, as in the paper.

(a) Regrets by epsilon. (b) The paper's tables: regrets by r; * marks the largest tested r with
    sigma_min >= omega.
(c) What the kernel of rows known with noise is worth. (d) Who knows d + 1 rows reads the others.
    (e) Times. With --claims instead: the paired differences that decide whether a smaller epsilon
    loses more (Figure 2).

At l = 5 the paper's pattern: regret falls with r, is flat near *, and is three times as large
beyond it, where singular values are raised. Rows with l2-Laplace noise are useful while the noise
is shorter than l. At l = 1.25 nothing finds the maximum in 50 answers; the cheapest property is an
outlier that location does not tell of, where even the true rows are no better than random search.

    python -m benchmarks.papers.po_gp_ucb [--smoke] [--seed N] [--json FILE] [--plot DIR] [--runs N]
        [--claims]
"""

import functools
import math
import os
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.finite_gp import bandwidth
from benchmarks.harness import named, options, record, table, tabulated
from benchmarks.papers import po_gp_ucb_problems as problems
from benchmarks.papers.po_gp_ucb_attack import recover_rows
from benchmarks.papers.po_gp_ucb_search import (
    PUBLISHED,
    SOUND,
    Experiment,
    published,
    released,
    summary,
)
from dpbo.acquisition.ucb import SrinivasFinite, suggest_ucb
from dpbo.models import FiniteGP
from dpbo.papers.po_gp_ucb.transform import po_gp_ucb_omega

Figures = dict[str, Any]
Curves = dict[tuple[str, float | None], Tensor]


def experiments(chosen: Any) -> list[Experiment]:
    """All problems, tiny where that is asked for; real ones where their data are."""
    side, steps, runs = (20, 3, 2) if chosen.smoke else (100, 50, chosen.runs)
    found = [
        problems.synthetic(lengthscale, side, runs, steps, chosen.seed)
        for lengthscale in ((5.0,) if chosen.smoke else (5.0, 1.25))
    ]
    if not chosen.smoke:
        found += [
            problem
            for problem in (
                problems.loans(steps, chosen.seed),
                problems.property_prices(2 * steps, chosen.seed),
            )
            if problem
        ]
    return [
        Experiment(problem, runs, chosen.seed)
        for problem in [*found, problems.branin(side, steps, chosen.seed)]
    ]


def by_epsilon(experiment: Experiment, seconds: dict[str, list[float]]) -> tuple[Figures, Curves]:
    """(a) for one problem, and the regrets themselves for the picture; `seconds` gathers times."""
    problem = experiment.problem
    curves: Curves = {}

    def timed(name: str, work: Callable[[], Tensor]) -> Tensor:
        start = time.perf_counter()
        regrets = work()
        seconds.setdefault(name, []).append(time.perf_counter() - start)
        return regrets

    curves["non-private", None] = timed("non-private", experiment.non_private)
    for log_epsilon in problem.epsilons:
        epsilon = math.exp(log_epsilon)
        curves[PUBLISHED, log_epsilon] = timed(
            PUBLISHED, functools.partial(experiment.published, epsilon, problem.r)
        )
        for name in SOUND:
            curves[name, log_epsilon] = timed(
                name, functools.partial(experiment.sound, name, epsilon)
            )
    curves["random", None] = experiment.random()
    rows = [
        [
            name,
            *_epsilon(problem, name, log_epsilon),
            *summary(regrets, curves["non-private", None]),
        ]
        for (name, log_epsilon), regrets in curves.items()
    ]
    header = [
        "method",
        "epsilon",
        "protected by",
        "mean S_T",
        "SE",
        "25 %",
        "median",
        "75 %",
        "above non-private",
        "its SE",
    ]
    n, d = problem.X.shape
    kernel = (
        f"l = {problem.lengthscale:.3g}, sigma_y^2 = {problem.outputscale:.3g}, noise"
        f" {problem.noise:.3g}"
    )
    return tabulated(
        problem.name,
        f"(a) {problem.name}: n = {n:,}, d = {d}, T = {problem.steps}, {experiment.runs} runs;"
        f" {kernel}, sigma_min = {_sigma_min(problem):.4g}",
        header,
        rows,
    ), curves


def _epsilon(problem: problems.Problem, name: str, log_epsilon: float | None) -> tuple[str, str]:
    if log_epsilon is None:
        return "", "nothing" if name == "non-private" else "no look at the rows"
    if name == PUBLISHED:
        inflated = _sigma_min(problem) < po_gp_ucb_omega(
            epsilon=math.exp(log_epsilon), delta=problem.delta, r=problem.r
        )
        return f"e^{log_epsilon:g}, {'else' if inflated else 'if'}", "nothing"
    return (
        f"e^{log_epsilon:g}",
        "epsilon" if name == "l2-Laplace" else f"epsilon, delta = {problem.delta:g}",
    )


def _sigma_min(problem: problems.Problem) -> float:
    return float(torch.linalg.svdvals(problem.X)[-1])


def by_r(experiment: Experiment) -> Figures:
    """(b) for one problem: the published transform by r, paired with the r that the paper
    recommends.
    """
    problem = experiment.problem
    least = _sigma_min(experiment.problem)
    found: Figures = {}
    for log_epsilon, printed in problem.tables.items():
        epsilon = math.exp(log_epsilon)
        within = [
            r
            for r in printed
            if least >= po_gp_ucb_omega(epsilon=epsilon, delta=problem.delta, r=r)
        ]
        regrets = {r: experiment.published(epsilon, r) for r in printed}
        star = max(within, default=None)
        rows: list[list[Any]] = []
        for r, of_r in regrets.items():
            name = f"{r}{'*' if r == star else ''} {'if' if r in within else 'else'}"
            rows.append([name, printed[r], *summary(of_r, regrets[star or min(printed)])])
        best = min(rows, key=lambda row: float(row[2]))
        header = ["r", "paper's", "mean S_T", "SE", "25 %", "median", "75 %", "above *", "its SE"]
        print(
            f"\n(b) {problem.name}, epsilon = e^{log_epsilon:g}, published transform, NOT PRIVATE\n"
            + table(header, rows)
        )
        print(f"least at r = {best[0]}; the largest tested r with sigma_min >= omega is {star}")
        found[f"{problem.name}, e^{log_epsilon:g}"] = {
            "rows": named(header, rows),
            "star": star,
            "least at": best[0],
        }
    return found


def claims(experiment: Experiment) -> Figures:
    """The published transform's regrets at T by epsilon, as paired differences of runs: to open
    GP-UCB, and to the next larger epsilon.
    """
    problem = experiment.problem
    openly = experiment.non_private()[:, -1]
    rows: list[list[Any]] = []
    larger = None
    for log_epsilon in problem.epsilons:
        own = experiment.published(math.exp(log_epsilon), problem.r)[:, -1]
        more = "" if larger is None else (own - larger).tolist()
        rows.append([f"e^{log_epsilon:g}", (own - openly).tolist(), more])
        larger = own
    header = ["epsilon", "above open", "above the larger epsilon"]
    return tabulated(problem.name, problem.name, header, rows)


def kernels(experiment: Experiment) -> Figures:
    """(c) on the first problem."""
    problem = experiment.problem
    rows = []
    for log_epsilon in problem.epsilons:
        for name in ("l2-Laplace", "Gaussian"):
            enlarged = experiment.sound(name, math.exp(log_epsilon))
            naive = experiment.sound(name, math.exp(log_epsilon), kernel=lambda _: problem.kernel())
            rows.append(
                [name, f"e^{log_epsilon:g}", *summary(enlarged)[:2], *summary(naive, enlarged)]
            )
    header = [
        "release",
        "epsilon",
        "mean S_T",
        "SE",
        "as if exact",
        "SE ",
        "25 %",
        "median",
        "75 %",
        "more",
        "its SE",
    ]
    return tabulated(
        "kernels",
        f"(c) {problem.name}: the kernel of rows known with noise, and the original one, as if"
        " they were exact",
        header,
        rows,
    )


def attack(experiment: Experiment) -> Figures:
    """(d) on the first problem: the first and last rows of a corner known, every other one
    recovered.
    """
    X = experiment.problem.X
    problem = experiment.problem
    rows = []
    side = math.isqrt(len(X))
    known = [0, side - 1, len(X) - side]
    generator = np.random.default_rng(experiment.seed)
    for log_epsilon in (problem.epsilons[0], problem.epsilons[-1]):
        epsilon = math.exp(log_epsilon)
        made = published(
            problem, epsilon, problem.r, torch.Generator().manual_seed(experiment.seed)
        )
        held = [
            (PUBLISHED, made),
            *(
                (name, released(X, name, epsilon, problem.delta, problem.r, generator))
                for name in SOUND
            ),
        ]
        for name, release in held:
            apart = recover_rows(release.Z, X[known], known) - X
            noise = float(torch.as_tensor(release.variance).mean()) ** 0.5
            rows.append(
                [
                    name,
                    f"e^{log_epsilon:g}",
                    noise,
                    float(apart.square().mean().sqrt()),
                    float(apart.abs().max()),
                ]
            )
    assert all(row[-1] <= 1e-10 for row in rows if row[0] == PUBLISHED)
    assert all(row[3] >= 0.9 * row[2] for row in rows)
    header = ["release", "epsilon", "noise a coordinate", "rms error of recovered rows", "largest"]
    return tabulated(
        "attack", f"(d) {problem.name}: three rows known, {len(X) - 3:,} recovered", header, rows
    )


def times(experiment: Experiment, seconds: dict[str, list[float]], smoke: bool) -> Figures:
    """(e): a whole experiment of the first problem for each method, and one run over very many
    rows.
    """
    n, steps, repetitions = (2_000, 8, 2) if smoke else (36_000, 50, 5)
    Z = torch.rand(n, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = torch.sin(8.0 * Z[:, 0]) + Z[:, 1]
    took = []
    for _ in range(repetitions):
        start = time.perf_counter()
        model = FiniteGP(Z, experiment.problem.kernel(), 1e-2, capacity=steps)
        schedule = SrinivasFinite(count=n, delta=0.025)
        index = 0
        for _ in range(steps):
            model.observe(index, values[index])
            index = int(suggest_ucb(model, schedule))
        took.append(time.perf_counter() - start)
    one = statistics.median(took)
    read = 4.0 * n * steps * (steps - 1) / bandwidth(n * steps)
    what = f"{experiment.runs} runs of {experiment.problem.name}, s"
    rows: list[list[Any]] = [
        [f"{what}: {name}", max(spent), "< 30"] for name, spent in seconds.items()
    ]
    rows.append([f"one run over {n:,} rows, T = {steps}, s", one, "< 1"])
    rows.append(["of which reading the factor at a plain sum's speed", read / one, ""])
    print(
        f"\n(e) {torch.get_num_threads()} threads\n" + table(["what", "measured", "wanted"], rows)
    )
    return {"times": named(("what", "measured", "wanted"), rows)}


# What protects rows is drawn through, what does not is dashed.
LOOKS = {
    "non-private": ("non-private, NOT PRIVATE", "k--"),
    "random": ("random search (rows not used)", "0.6"),
    PUBLISHED: ("published transform, NOT PRIVATE", "C3--"),
    "l2-Laplace": ("l2-Laplace rows, PRIVATE", "C0-"),
    "Gaussian": ("Gaussian rows, PRIVATE", "C2-"),
    "projection + Gaussian": ("projection + Gaussian, PRIVATE", "C4-"),
}


def picture(drawn: dict[problems.Problem, Curves], folder: pathlib.Path) -> None:
    """One column a problem, one row for its largest and its least epsilon; bands are a standard
    error to each side.
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(drawn), figsize=(4 * len(drawn), 6.5), squeeze=False)
    for column, (problem, curves) in enumerate(drawn.items()):
        for axis, log_epsilon in zip(
            axes[:, column], (max(problem.epsilons), min(problem.epsilons)), strict=True
        ):
            for (name, of), regrets in curves.items():
                if of in (None, log_epsilon):
                    label, look = LOOKS[name]
                    mean = regrets.mean(0)
                    error = regrets.std(0) / len(regrets) ** 0.5
                    (line,) = (
                        axis.plot(mean, look, label=label)
                        if look[0] in "kC"
                        else axis.plot(mean, color=look, label=label)
                    )
                    low = (mean - error).clamp_min(1e-6)
                    axis.fill_between(
                        range(len(mean)),
                        low,
                        mean + error,
                        color=line.get_color(),
                        alpha=0.15,
                        linewidth=0,
                    )
            axis.set(
                title=f"{problem.name}, epsilon = e^{log_epsilon:g}",
                xlabel="answers after the first",
                yscale="log",
            )
    axes[0, 0].legend(fontsize=7)
    for axis in axes[:, 0]:
        axis.set_ylabel("mean simple regret")
    figure.suptitle(
        "private: one row moves by a norm of at most 1, of rows within 25; answers not protected"
    )
    figure.tight_layout()
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "po_gp_ucb_figure_2.png", dpi=120)


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments, runs=50, claims=False)
    torch.set_num_threads(1 if chosen.smoke else min(2, torch.get_num_threads()))
    start = time.perf_counter()
    every = experiments(chosen)
    figures: Figures = {}
    if chosen.claims:
        for experiment in every:
            figures |= claims(experiment)
        record("po_gp_ucb_claims", figures, chosen)
        return
    drawn: dict[problems.Problem, Curves] = {}
    seconds: dict[str, list[float]] = {}
    for number, experiment in enumerate(every):
        found, curves = by_epsilon(experiment, seconds if number == 0 else {})
        drawn[experiment.problem] = curves
        figures |= {f"regrets, {name}": rows for name, rows in found.items()}
    for experiment in every[:1] if chosen.smoke else every:
        figures |= {f"by r, {name}": rows for name, rows in by_r(experiment).items()}
    figures |= kernels(every[0]) | attack(every[0]) | times(every[0], seconds, chosen.smoke)
    missing = {"loans", "property"} - {experiment.problem.name for experiment in every}
    if missing:
        print(
            f"\n{', '.join(sorted(missing))}: SKIPPED,",
            "smoke" if chosen.smoke else f"not in DPBO_DATA={os.environ.get('DPBO_DATA')}",
        )
    if chosen.plot is not None:
        picture(drawn, chosen.plot)
    print(f"\nall of it: {time.perf_counter() - start:.0f} s")
    record("po_gp_ucb", figures, chosen)


if __name__ == "__main__":
    main()
