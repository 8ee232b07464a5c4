"""Pictures of curves over iterations: the median and the 10/90 % band of repetitions."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

# By label, the repetitions of a curve.
Curves = Mapping[str, Sequence[Sequence[float]]]


class Panel(NamedTuple):
    """One part of a picture: curves by label, and how many evaluations an iteration has; 1: the
    axis counts iterations.
    """

    title: str
    what: str
    curves: Curves
    evaluations: int = 1
    log: bool = False


def draw(folder: pathlib.Path, name: str, panels: Sequence[Panel]) -> None:
    """One panel beside the other, as FOLDER/NAME.png."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5 * len(panels), 4.2), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for number, (label, runs) in enumerate(panel.curves.items()):
            values = np.asarray(runs, dtype=np.float64)
            x = np.arange(values.shape[1]) * panel.evaluations
            low, middle, high = np.quantile(values, [0.1, 0.5, 0.9], axis=0)
            axes.plot(x, middle, color=f"C{number % 10}", label=label)
            axes.fill_between(x, low, high, color=f"C{number % 10}", alpha=0.15, linewidth=0)
        axes.set(
            title=panel.title,
            ylabel=panel.what,
            xlabel="iterations" if panel.evaluations == 1 else "evaluations",
        )
        if panel.log:
            axes.set_yscale("log")
        axes.legend(fontsize=7)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=110)


def of(runs: Sequence[Any], quantity: str, *labels: str) -> dict[str, list[list[float]]]:
    """The curves of a quantity, from runs that hold them as `curves["quantity, label"]`; labels
    that no run has are left out.
    """
    names = {label: f"{quantity}, {label}" for label in labels}
    return {
        label: [run.curves[name] for run in runs if name in run.curves]
        for label, name in names.items()
        if name in runs[0].curves
    }
