"""DP-GIBO's experiments (arXiv 2502.06044, sections 4.1 to 4.4 and C.5): what of the paper is
reproduced, and what is not.

    python -m benchmarks.papers.dpgibo --experiment 4.3 --json FILE

4.1 location of a normal, 4.2 Huber regression against noisy gradient descent, 4.3 length-scales of
a Gaussian process at several privacy levels, 4.4 a support vector machine with 33 hyperparameters,
noisy: 4.3 with noisy observations (C.5). settings: 4.3 with the recommended settings changed one at
a time. baselines: private zeroth-order descent and DP-SGD in up to 300 dimensions, of which 4.3 and
4.4 have DPZero; samples: zeroth-order descent with a sample of the records at each step. --searches
adds to 4.1 to 4.4 the search that a PrivateObjective makes private (TuRBO, qLogNEI), at the same mu
and number of evaluations, minutes a replication, and has it alone beside the right belief in
"noisy". An experiment by itself goes among the figures of a FILE that is there.

Every method sees the same records and begins at the same point; losses are true means over the
records, without noise, of what a method recommends. A claim's verdict follows from the paired
differences of the replications (`papers.verdicts`). What the paper leaves open (steps of 4.1 and
4.2, how the data of 4.3 and 4.4 are made) and the settings called "tuned" were chosen on seeds 100
to 119; figures are for seeds 0, 1, ...
"""

import dataclasses
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from benchmarks.harness import band, mean_and_error, options, record, table
from benchmarks.papers import dpgibo_baselines
from benchmarks.papers import dpgibo_experiments as experiments
from benchmarks.papers import dpgibo_problems as problems
from benchmarks.papers.curves import Panel, draw, of
from benchmarks.papers.dpgibo_experiments import PRIVATE, Replication, Sizes
from benchmarks.papers.verdicts import verdict

Columns = dict[str, list[float]]
Figure = Callable[[list[Replication]], tuple[str, list[Panel]]]


class Finding(NamedTuple):
    """A claim about a paired difference, its values, and what `verdict` is asked."""

    claim: str
    gap: list[float]
    printed: Literal["below"] | float = "below"
    within: float = 0.0

    def told(self) -> str:
        """The verdict."""
        asked: dict[str, Any] = {"printed": self.printed, "within": self.within}
        return verdict(*mean_and_error(self.gap), replications=len(self.gap), **asked)


def below(claim: str, a: Sequence[float], b: Sequence[float] | float) -> Finding:
    """The claim that a is below b."""
    return Finding(claim, np.subtract(a, b).tolist())


def findings_of_location(losses: Columns, extra: Columns) -> list[Finding]:
    """4.1: convergence, oscillation by mu, bias against noise."""
    half = np.divide(losses["start"], 2).tolist()
    return [
        *(
            below(f"mu = {mu} at less than half of the start's excess", losses[name], half)
            for mu, name in (("0.5", "GIBO paper, mu 0.5"), ("2", "GIBO paper, mu 2"))
        ),
        below(
            "mu = 2 oscillates less than mu = 0.5",
            extra["oscillation, mu 2"],
            extra["oscillation, mu 0.5"],
        ),
        below("mu = 2 ends lower", losses["GIBO paper, mu 2"], losses["GIBO paper, mu 0.5"]),
        below(
            "the gradient's bias is below a tenth of the noise",
            extra["bias, mu 0.5"],
            np.divide(extra["noise, mu 0.5"], 10).tolist(),
        ),
    ]


def findings_of_huber(losses: Columns, extra: Columns) -> list[Finding]:
    """4.2: the lag at first, and the same end."""
    times = sorted(int(name.split()[-1]) for name in extra if name.startswith("GIBO at"))
    lags = [np.subtract(extra[f"GIBO at {t}"], extra[f"DP-GD at {t}"]) for t in times]
    private = losses["GIBO paper, mu 1"]
    tenth = statistics.fmean(losses["DP-GD, mu 1"]) / 10
    return [
        below(
            "DP-GIBO at less than half of the start's excess",
            private,
            np.divide(losses["start"], 2).tolist(),
        ),
        Finding("DP-GD is ahead of DP-GIBO at first", (-lags[0]).tolist()),
        Finding("the lag shrinks", (lags[1] - lags[0]).tolist()),
        Finding("both are equally good in the end", lags[-1].tolist(), 0.0, tenth),
        below("the private path wavers about the optimum", losses["GIBO paper, mu inf"], private),
        below(
            "the estimated gradient is shorter than the true one at first",
            extra["estimated length over true, first 5 steps"],
            1.0,
        ),
    ]


def findings_of_tuning(losses: Columns, _: Columns) -> list[Finding]:
    """4.3: against searches without privacy, itself without privacy, and the levels in order."""
    found = []
    for name in ("paper", "recommended", "tuned"):
        private = losses[f"GIBO {name}, mu 1"]
        for peer in ("random", "UCB-BO"):
            found += [below(f"{name} settings: below {peer}", private, losses[peer])]
    levels = [values for key, values in losses.items() if key.startswith("GIBO paper")]
    found.append(below("without privacy lower than at the least mu", levels[-1], levels[0]))
    return found


def findings_of_machine(losses: Columns, _: Columns) -> list[Finding]:
    """4.4: both versions against random search, and what privacy costs."""
    private, exact, random = (
        losses[name] for name in ("GIBO paper, mu 1", "GIBO paper, mu inf", "random")
    )
    return [
        below("paper settings: DP-GIBO below random", private, random),
        below("paper settings: GIBO below random", exact, random),
        below("paper settings: privacy costs something", exact, private),
        below("recommended settings: below random", losses["GIBO recommended, mu 1"], random),
    ]


def findings_of_noisy(losses: Columns, _: Columns) -> list[Finding]:
    """C.5: the right belief is best, an overestimate viable, an underestimate worse than random
    search, which the right one is not; or the right one beside a PrivateObjective.
    """
    if PRIVATE in losses:
        return [
            below(f"{name}: below PrivateObjective", losses[name], losses[PRIVATE])
            for name in losses
            if name.startswith("GIBO")
        ]
    right, over, under = (losses[f"GIBO paper, sigma {sigma}"] for sigma in ("0.01", "1", "0.0001"))
    random = losses["random"]
    return [
        below("sigma = 0.01 below sigma = 1", right, over),
        below("sigma = 0.01 below sigma = 0.0001", right, under),
        below("sigma = 1 below the start", over, losses["start"]),
        below("random below sigma = 0.0001", random, under),
        below("sigma = 0.01 below random", right, random),
        below(
            "recommended, sigma = 0.01 below random", losses["GIBO recommended, sigma 0.01"], random
        ),
    ]


def findings_of_settings(losses: Columns, _: Columns) -> list[Finding]:
    """Each change against the recommended settings, and against random search."""
    changed = [name for name in losses if name not in ("recommended", "random")]
    better = [
        below(f"{name}: below the recommended settings", losses[name], losses["recommended"])
        for name in changed
    ]
    return better + [
        below(f"{name}: below random", losses[name], losses["random"])
        for name in ["recommended", *changed]
    ]


def common_findings(losses: Columns) -> list[Finding]:
    """Recommended against the paper's settings, and DP-GIBO against other private methods, wherever
    both ran.
    """
    found = []
    for name, values in losses.items():
        ours = name.replace("GIBO paper", "GIBO recommended")
        if name.startswith("GIBO paper") and ours in losses:
            found.append(below(f"{ours}: below the printed algorithm", losses[ours], values))
    for settings in ("paper", "recommended", "tuned"):
        for name, values in losses.items():
            method, _, where = name.partition(", ")
            ours = f"GIBO {settings}, {where}"
            if method.startswith(("DPZero", "DP-ZO", "PrivateObjective")) and ours in losses:
                found.append(below(f"{ours}: below {method}", losses[ours], values))
    return found


def report(
    title: str,
    runs: list[Replication],
    findings: Callable[[Columns, Columns], list[Finding]],
    figure: Figure | None,
    plot: pathlib.Path | None,
) -> dict[str, Any]:
    """Print the tables of one experiment, and draw its figure; returns its figures."""
    if plot is not None and figure is not None:
        draw(plot, *figure(runs))
    losses, rho, extra = experiments.as_columns(runs)
    rows = []
    for name, values in losses.items():
        low, middle, high = band(values)
        noise = f"{rho[name]:.3g}" if name in rho else ""
        rows.append((name, noise, middle, low, high, values))
    header = ("method", "rho", "median loss", "10 %", "90 %", "mean (SE)")
    print(f"\n{title}\n\n" + table(header, rows))
    claims = [*findings(losses, extra), *common_findings(losses)]
    told = [(claim.claim, claim.gap, claim.told()) for claim in claims]
    print("\n" + table(("claim", "paired difference (SE)", "verdict"), told))
    return {
        "losses": losses,
        "rho": dict(rho),
        "extra": extra,
        "findings": [claim._asdict() for claim in claims],
    }


def run(
    name: str, sizes: Sizes, seeds: range, smoke: bool, plot: pathlib.Path | None
) -> dict[str, Any]:
    """One experiment over all replications, and its picture. An experiment without its data says
    what is missing.
    """
    if name == "baselines":
        return dpgibo_baselines.compared(smoke)
    if name == "samples":
        return dpgibo_baselines.sampled(smoke)
    if name in APART:
        title, all_of, findings, figure = APART[name]
        drawn = None if sizes.searches else plot
        return report(title, all_of(seeds, sizes), findings, figure, drawn)
    figures: dict[str, Any] = {}
    for source, load in (
        ("Communities & Crime", problems.communities_and_crime),
        ("CT slices", problems.ct_slices),
    ):
        try:
            made = problems.stand_in() if smoke else load()
        except FileNotFoundError as missing:
            print(f"\n4.4 on {source} is SKIPPED: {missing}")
            figures[source] = f"skipped: {missing}"
            continue
        if source == "CT slices":
            sizes = dataclasses.replace(sizes, train_svm=500, users_svm=5000)
        title = f"4.4 SVM on {'made-up data' if smoke else source}: validation loss"
        runs = experiments.machine(seeds, sizes, made)
        figures[source] = report(title, runs, findings_of_machine, figure_3, plot)
        if smoke:
            break
    return figures


def figure_1(runs: list[Replication]) -> tuple[str, list[Panel]]:
    """4.1: a coordinate's path, the loss, and the bias beside the noise."""
    levels = ("GIBO paper, mu 0.5", "GIBO paper, mu 2", "GIBO paper, mu inf")
    return "dpgibo_figure_1", [
        Panel(
            "first coordinate",
            "theta_1",
            of(runs, "coordinate", *levels, "maximum likelihood estimate"),
        ),
        Panel("loss", "excess over the least loss", of(runs, "loss", *levels), log=True),
        Panel("at mu = 0.5", "length", of(runs, "length", "bias", "noise"), log=True),
    ]


def figure_2(runs: list[Replication]) -> tuple[str, list[Panel]]:
    """4.2: a coordinate's path, and the length of the true and the estimated gradient."""
    ways = ("GIBO paper, mu 1", "DP-GD, mu 1", "gradient descent, not private")
    return "dpgibo_figure_2", [
        Panel("first coordinate", "theta_1", of(runs, "coordinate", *ways)),
        Panel(
            "gradient of the loss",
            "length of the true gradient, and of the estimated one",
            of(runs, "gradient", *ways, "estimated by GIBO paper, mu 1, before the noise"),
            log=True,
        ),
    ]


def figure_3(runs: list[Replication]) -> tuple[str, list[Panel]]:
    """4.4: private, not private, random search."""
    return "dpgibo_figure_3", [
        Panel(
            f"{name} settings",
            "validation loss",
            of(runs, "loss", f"GIBO {name}, mu 1", f"GIBO {name}, mu inf", "random"),
            34,
        )
        for name in ("paper", "recommended")
    ]


def figure_4(runs: list[Replication]) -> tuple[str, list[Panel]]:
    """4.3: beside open searches, and the levels of privacy."""
    ours = [f"GIBO {name}, mu 1" for name in ("paper", "recommended", "tuned")]
    levels = [f"GIBO paper, mu {mu:g}" for mu in experiments.LEVELS]
    return "dpgibo_figure_4", [
        Panel(
            "mu = 1 beside searches without privacy",
            "validation loss",
            of(runs, "loss", *ours, "random", "UCB-BO"),
            11,
        ),
        Panel(
            "levels of privacy, the paper's settings",
            "validation loss",
            of(runs, "loss", *levels),
            11,
        ),
    ]


def figure_5(runs: list[Replication]) -> tuple[str, list[Panel]]:
    """C.5: three beliefs about the noise."""
    return "dpgibo_figure_5", [
        Panel(
            f"sigma = {sigma:g}, truth 0.01",
            "true validation loss",
            of(
                runs,
                "loss",
                f"GIBO paper, sigma {sigma:g}",
                f"GIBO recommended, sigma {sigma:g}",
                "random",
            ),
            11,
        )
        for sigma in experiments.MODEL_SIGMAS
    ]


# by name: title, replications, findings and figure of what has one source of data
APART: dict[
    str,
    tuple[
        str,
        Callable[[Sequence[int], Sizes], list[Replication]],
        Callable[[Columns, Columns], list[Finding]],
        Figure | None,
    ],
] = {
    "4.1": (
        "4.1 normal location: excess over the least loss",
        experiments.location,
        findings_of_location,
        figure_1,
    ),
    "4.2": (
        "4.2 Huber regression: excess over the least loss",
        experiments.huber,
        findings_of_huber,
        figure_2,
    ),
    "4.3": (
        "4.3 GP length-scales: validation loss",
        experiments.tuning,
        findings_of_tuning,
        figure_4,
    ),
    "settings": (
        "4.3 at mu = 1, settings one at a time: validation loss",
        experiments.settings_apart,
        findings_of_settings,
        None,
    ),
    "noisy": (
        "C.5 GP length-scales, noisy observations: true validation loss",
        experiments.noisy,
        findings_of_noisy,
        figure_5,
    ),
}


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments, experiment="all", replications=50, searches=False)
    count = 1 if chosen.smoke else chosen.replications
    names = experiments.EXPERIMENTS if chosen.experiment == "all" else (chosen.experiment,)
    seeds = range(chosen.seed, chosen.seed + count)
    begun = time.perf_counter()
    sizes = experiments.SMOKE if chosen.smoke else experiments.FULL
    sizes = dataclasses.replace(sizes, searches=chosen.searches)
    ending = " with PrivateObjective" if chosen.searches else ""
    figures = {name + ending: run(name, sizes, seeds, chosen.smoke, chosen.plot) for name in names}
    print(f"\n{time.perf_counter() - begun:.0f} s in all, {count} paired replications")
    record("dpgibo", figures, chosen, part=chosen.experiment != "all")


if __name__ == "__main__":
    main()
