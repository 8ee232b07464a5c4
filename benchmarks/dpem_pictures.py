"""Pictures of the DP-EM benchmark."""

from __future__ import annotations

import pathlib
import statistics
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.dpem_compositions import COMPOSITIONS
from dpbo import Budget
from dpbo.algorithms.em import DPGaussianMixture
from dpbo.mechanisms import NoNoise


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def likelihoods(found: dict[str, dict[str, list[float]]], file: pathlib.Path) -> None:
    """Mean test log-likelihood against epsilon; what is not private is dotted."""
    figure = _figure(9, 5.5)
    axes = figure.subplots()
    for name, values in found.items():
        if "-" in values:
            axes.axhline(statistics.mean(values["-"]), color="k", lw=0.8, ls="--" if "scikit" in name else "-.", label=name)
            continue
        law, composition = name.split(", ")[:2]
        style: dict[str, Any] = {"color": f"C{COMPOSITIONS.index(composition)}", "ls": "-." if law == "LLG" else "-", "lw": 1.2}
        if law == "joint":
            style = {"color": "k" if name.endswith("plain") else "r", "lw": 3}
        if name.endswith("paper"):
            style |= {"ls": ":", "alpha": 0.5 if law == "LLG" else 1.0}
        x, y = [float(e) for e in values], [statistics.mean(v) for v in values.values()]
        axes.plot(x, y, label=f"{name} (NOT private)" if name.endswith("paper") else name, **style)
    axes.set(xscale="log", xlabel="epsilon", ylabel="test log-likelihood a record", ylim=(-30, -17))
    axes.legend(fontsize=6, ncol=2)
    figure.savefig(file, dpi=150)


def faces(loadings: dict[tuple[int, float | None], np.ndarray[Any, Any]], file: pathlib.Path) -> None:
    """Ten loadings a row, one row for each size and epsilon."""
    figure = _figure(10, 1.1 * len(loadings))
    grid = figure.subplots(len(loadings), 10, squeeze=False)
    for row, ((side, epsilon), pictures) in zip(grid, loadings.items(), strict=True):
        for axes, picture in zip(row, pictures, strict=True):
            axes.imshow(picture, cmap="gray")
            axes.set(xticks=[], yticks=[])
        row[0].set_ylabel(f"{side}, {'no noise' if epsilon is None else f'{epsilon:g}'}", fontsize=7)
    figure.savefig(file, dpi=120)


def illustration(seed: int, file: pathlib.Path) -> None:
    """Three groups of made-up points (age, rate), fitted without noise and at two epsilons: in the paper, rates by marital status."""
    rng = np.random.default_rng(seed)
    groups = (((22, 30), (3, 6), 800), ((30, 15), (5, 4), 1500), ((38, 8), (4, 3), 700))
    X = np.concatenate([rng.normal(mean, spread, size=(count, 2)) for mean, spread, count in groups])
    budgets: dict[str, Any] = {
        "no noise": NoNoise(allow_not_private=True),
        "epsilon 3": Budget(3.0, 1e-4),
        "epsilon 0.3": Budget(0.3, 1e-4),
    }
    figure = _figure(11, 3.6)
    for axes, (title, budget) in zip(figure.subplots(1, 3, sharey=True), budgets.items(), strict=True):
        fit = DPGaussianMixture(3, budget=budget, radius=40.0, center=[30.0, 20.0], random_state=seed).fit(X)
        axes.plot(*X.T, ".", ms=1, alpha=0.3, color="grey")
        for mean, covariance in zip(fit.means_, fit.covariances_, strict=True):
            angles = np.linspace(0, 2 * np.pi, 100)
            axes.plot(*(mean[:, None] + 2 * np.linalg.cholesky(covariance) @ [np.cos(angles), np.sin(angles)]))
        axes.set(title=title, xlabel="age")
    figure.savefig(file, dpi=150)
