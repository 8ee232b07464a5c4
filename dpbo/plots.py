"""Pictures of released values. Everything drawn here is public: values, known noise, budget."""

from __future__ import annotations

import pathlib

import torch

from dpbo.errors import InputError


def plot_convergence(
    Y: torch.Tensor, Yvar: torch.Tensor, mean: torch.Tensor, *, file: str | pathlib.Path, spent_share: float = 1.0, title: str = ""
) -> None:
    """Draw each released value with its noise band, the posterior mean of the best point so far, and the budget used.

    Args:
        Y: `t x 1`, Yvar: `t x 1`, in the order of release.
        mean: posterior mean of the final GP at each point, `t`.
        file: picture to write; its ending chooses the format.
        spent_share: part of the budget that all t releases take together.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("file", str(file), "left out without matplotlib", "Install dpbo[plots].") from None
    figure = Figure(figsize=(7.5, 5), layout="constrained")
    FigureCanvasAgg(figure)
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
