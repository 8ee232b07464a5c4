"""Figure 2 with the private releases in it: mean simple regret by the number of answers, and who is private."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from benchmarks.outsourced_problems import Problem
from benchmarks.outsourced_releases import PUBLISHED

LOOKS = {  # what protects rows is drawn through, what does not is dashed
    "non-private": ("non-private, NOT PRIVATE", "k--"),
    "random": ("random search (rows not used)", "0.6"),
    PUBLISHED: ("published transform, NOT PRIVATE", "C3--"),
    "l2-Laplace": ("l2-Laplace rows, PRIVATE", "C0-"),
    "Gaussian": ("Gaussian rows, PRIVATE", "C2-"),
    "projection + Gaussian": ("projection + Gaussian, PRIVATE", "C4-"),
}


def picture(drawn: Mapping[Problem, Mapping[tuple[str, float | None], Tensor]], folder: pathlib.Path | None) -> None:
    """One column a problem, one row for its largest and its least epsilon; bands are a standard error to each side."""
    if folder is None:
        return
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(drawn), figsize=(4 * len(drawn), 6.5), squeeze=False)
    for column, (problem, curves) in enumerate(drawn.items()):
        for axis, log_epsilon in zip(axes[:, column], (max(problem.epsilons), min(problem.epsilons)), strict=True):
            for (name, of), regrets in curves.items():
                if of in (None, log_epsilon):
                    _curve(axis, regrets, *LOOKS[name])
            axis.set(title=f"{problem.name}, epsilon = e^{log_epsilon:g}", xlabel="answers after the first", yscale="log")
    axes[0, 0].legend(fontsize=7)
    for axis in axes[:, 0]:
        axis.set_ylabel("mean simple regret")
    figure.suptitle("private: one row moves by a norm of at most 1, of rows within 25; answers not protected")
    figure.tight_layout()
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "outsourced.png", dpi=120)


def _curve(axis: Any, regrets: Tensor, label: str, look: str) -> None:
    mean, error = regrets.mean(0), regrets.std(0) / len(regrets) ** 0.5
    (line,) = axis.plot(mean, look, label=label) if look[0] in "kC" else axis.plot(mean, color=look, label=label)
    axis.fill_between(range(len(mean)), (mean - error).clamp_min(1e-6), mean + error, color=line.get_color(), alpha=0.15, linewidth=0)
