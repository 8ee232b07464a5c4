"""Pictures of released values and of plans. Everything drawn is public: values, known noise, budget."""

import pathlib
from collections.abc import Mapping
from typing import Any

import torch

from dpbo.errors import InputError
from dpbo.planning import plan
from dpbo.privacy import Budget


def plot_convergence(
    Y: torch.Tensor, Yvar: torch.Tensor, mean: torch.Tensor, *, file: str | pathlib.Path, spent_share: float = 1.0, title: str = ""
) -> None:
    """Draw each released value with its noise band, the posterior mean of the best point so far, and the spent budget.

    Args:
        Y: released values, `t x 1`, in the order of release.
        Yvar: variances of their noise, `t x 1`.
        mean: posterior mean of the final GP at each point, `t`.
        file: picture to write; its extension chooses the format.
        spent_share: share of the budget that all t releases take together.
        title: title of the picture.
    """
    figure = _figure(file)
    values, budget = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    t = torch.arange(1, len(Y) + 1)
    y, std = Y[:, 0], Yvar[:, 0].sqrt()
    values.errorbar(t, y, yerr=1.96 * std, fmt="o", ms=4, lw=1, alpha=0.7, label="released value, 95 % of its noise")
    values.step(t, mean.cummax(0).values, where="post", label="posterior mean of the best point so far")
    values.set(ylabel="validation score", title=title)
    values.legend(loc="center right", frameon=False)
    budget.fill_between(t, 100 * spent_share * t / len(t), step="post", alpha=0.4)
    budget.set(ylabel="budget, %", xlabel="evaluation", ylim=(0, 100))
    figure.savefig(file, dpi=150)


def plot_accuracies(accuracies: Mapping[str, float], *, file: str | pathlib.Path, title: str = "") -> None:
    """Draw accuracies in [0, 1] as one bar each.

    Args:
        accuracies: by name, the first on top.
        file: picture to write; its extension chooses the format.
        title: title of the picture.
    """
    figure = _figure(file)
    axes = figure.subplots()
    names, values = [*accuracies][::-1], [100 * value for value in accuracies.values()][::-1]
    axes.bar_label(axes.barh(names, values, height=0.6), fmt="%.1f", padding=3)
    axes.set(xlim=(max(0.0, min(values) - 10), max(values) + 3), xlabel="test accuracy, %", title=title)
    figure.savefig(file, dpi=150)


def plot_plan(
    units: int, budget: Budget, *, file: str | pathlib.Path, evaluations: int = 30, score_range: tuple[float, float] = (0.0, 1.0)
) -> None:
    """Draw the detectable difference of private evaluations and of one private choice against the number of evaluations.

    Args:
        units: number of protected units.
        budget: (epsilon, delta) or mu.
        file: picture to write; its extension chooses the format.
        evaluations: planned number of evaluations, which is marked.
        score_range: public (lower, upper) of one record's score, in whose units the differences are.
    """
    figure = _figure(file)
    axes = figure.subplots()
    counts = sorted({*(round(2 ** (i / 2)) for i in range(2, 19)), evaluations})
    plans = [plan(units, budget, evaluations=count, score_range=score_range) for count in counts]
    labels = {"bo": "two private evaluations", "grid": "two candidates of one private choice"}
    for name, label in labels.items():
        differences = [next(s.detectable_difference for s in each.strategies if s.name == name) for each in plans]
        axes.plot(counts, [float("nan") if value is None else value for value in differences], label=label)
    axes.axvline(evaluations, color="grey", lw=1, ls=":")
    axes.set(xscale="log", yscale="log", xlabel="evaluations", ylabel="detectable difference", title=f"{units:,} units")
    axes.legend(frameon=False)
    figure.savefig(file, dpi=150)


def _figure(file: str | pathlib.Path) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("file", str(file), "omitted without matplotlib", "Install dpbo[plots].") from None
    figure = Figure(figsize=(7.5, 5), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
