"""Pictures of released values, of budgets and of plans. Everything drawn is public: values, known
noise, models of them, the ledger.

    # or a search, a fitted DPSearch, an Optuna study of a TrialObjective
    plots.plot_convergence(objective)
    plots.plot_slices(study).savefig("slices.pdf")

Functions return matplotlib's Axes, or a Figure where they draw several; `ax=` draws into one of
yours.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpbo.curator.curator import Curator
from dpbo.curator.statements import BudgetUse
from dpbo.errors import UsageError
from dpbo.extras import needs
from dpbo.ledger.facts import Facts
from dpbo.planning import noise_per_evaluation, plan
from dpbo.privacy import Budget
from dpbo.reporting.released_values import ReleasedValues
from dpbo.space import Space
from dpbo.validation import Count, Index, Probability, ScoreRange, Within, checked

_EPSILONS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 10.0)
# of a budget's curve
_MOST_STEPS = 200
_Epsilons = Annotated[
    Sequence[float],
    Within("numbers above 0, one or more", lambda given: len(given) > 0 and min(given) > 0),
]
_Counts = Annotated[
    Sequence[int],
    Within(
        "whole numbers of at least 1, one or more", lambda given: len(given) > 0 and min(given) > 0
    ),
]


@checked
def plot_convergence(
    source: Any, *, space: Space | None = None, metric: Index = 0, ax: Any = None
) -> Any:
    """Draw each released value with the standard deviation of its noise, and the posterior mean of
    the best point so far.

    Of a `DPSearch` that released no scores, the values are the cross-validated ones by which it
    knew its configurations, in their order, and the line is the highest so far. They are public or,
    with weighted cross-validation, computed from what was released.

    Args:
        source: a PrivateObjective, a search that has one, a fitted DPSearch, or an Optuna study of
            a TrialObjective.
        space: of the points, for the model; omitted, the source's own, or all coordinates are
            numbers.
        metric: which one, of several metrics.
        ax: Axes to draw into; omitted, new ones.

    Returns:
        The Axes.

    Raises:
        InputError: a source without released values, or matplotlib is not installed.
    """
    released = ReleasedValues.of(source, space, metric)
    axes = _axes(ax)
    t = np.arange(1, len(released.X) + 1)
    y = released.Y[:, 0].numpy()
    std = None
    label = released.what
    line = "highest so far"
    if released.released:
        std = released.Yvar[:, 0].sqrt().numpy()
        label = "released value ± standard deviation of its noise"
        line = "posterior mean of the best point so far"
    axes.errorbar(t, y, yerr=std, fmt="o", ms=4, lw=1, alpha=0.6, label=label)
    axes.step(t, released.best_so_far.numpy(), where="post", color="C1", lw=2, label=line)
    axes.plot(
        t[released.best],
        float(released.mean[released.best]),
        "*",
        color="C1",
        ms=14,
        label=released.best_is,
    )
    counted = "evaluation" if released.released else "configuration"
    axes.set(xlabel=counted, ylabel="score", title=released.name)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)
    return axes


@checked
def plot_slices(
    source: Any, *, space: Space | None = None, metric: Index = 0, columns: Count = 3
) -> Any:
    """Draw the model through the recommended point, one picture a parameter: mean, 95 % band, and
    the released values.

    The other parameters stay at the recommended point, so values released far from it may lie off
    the curve; near ones are darker.

    Args:
        source, space, metric: as in `plot_convergence`.
        columns: pictures a row.

    Returns:
        The Figure, with an Axes a parameter.

    Raises:
        InputError: as in `plot_convergence`, or a single released value.
    """
    released = ReleasedValues.of(source, space, metric)
    names = released.space.names
    x = released.X[released.best]
    plt = _pyplot()
    width = min(columns, len(names))
    rows = math.ceil(len(names) / width)
    figure, grid = plt.subplots(
        rows,
        width,
        figsize=(3.6 * width, 3.0 * rows),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for i, (name, axes) in enumerate(zip(names, grid.flat, strict=False)):
        others = [j for j in range(len(names)) if j != i]
        distance = (released.X[:, others] - x[others]).norm(dim=1) / math.sqrt(max(len(others), 1))
        axis = _Axis(released.space, i)
        X = x.repeat(len(axis.coordinates), 1)
        X[:, i] = axis.coordinates
        mean, std = (part.numpy() for part in released.posterior(X))
        band = 1.96 * std
        if axis.ticks:
            axes.errorbar(
                axis.places, mean, yerr=band, fmt="_", color="C1", ms=16, lw=2, label="model"
            )
            axes.set_xticks(axis.places, axis.ticks)
            axes.margins(x=0.25)
        else:
            axes.plot(axis.places, mean, color="C1", label="model")
            axes.fill_between(axis.places, mean - band, mean + band, color="C1", alpha=0.2, lw=0)
            axes.set_xscale("log" if axis.logarithmic else "linear")
        near = (1 - distance / distance.max().clamp_min(1e-12)).clamp(0.15, 1.0)
        axes.scatter(
            axis.at(released.X[:, i]),
            released.Y[:, 0],
            s=14,
            c="C0",
            alpha=near.tolist(),
            label=released.what,
        )
        axes.axvline(axis.at(x[[i]])[0], color="grey", lw=1, ls=":")
        axes.set(xlabel=name)
    for axes in grid.flat[len(names) :]:
        axes.remove()
    for axes in grid[:, 0]:
        axes.set_ylabel("score")
    figure.suptitle(f"{released.name}: the model through one point ({released.best_is})")
    return figure


@checked
def plot_parallel_coordinates(
    source: Any, *, space: Space | None = None, metric: Index = 0, ax: Any = None
) -> Any:
    """Draw each configuration as a line over its parameters, coloured by its posterior mean; the
    recommended one is thick.

    Of a fitted `DPSearch` that released no scores, the colour is the cross-validated score.

    Args:
        source, space, metric, ax: as in `plot_convergence`.

    Returns:
        The Axes.
    """
    released = ReleasedValues.of(source, space, metric)
    shown = released.space
    colours = released.mean.numpy()
    label = "posterior mean" if released.released else released.what
    axes = _axes(ax)
    low, high = shown.bounds
    heights = ((released.X - low) / (high - low).clamp_min(1e-12)).numpy()
    places = np.arange(len(shown.names))
    mappable = _colours(colours)
    axes.figure.colorbar(mappable, ax=axes, label=label)
    for row in np.argsort(colours):
        axes.plot(places, heights[row], color=mappable.to_rgba(colours[row]), lw=1.2, alpha=0.8)
    axes.plot(places, heights[released.best], color="C3", lw=3, marker="o", label=released.best_is)
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2)
    for i in places:
        axes.axvline(i, color="grey", lw=0.8, zorder=0)
        axis = _Axis(shown, int(i))
        for place, text in axis.marks():
            axes.annotate(
                text,
                (i, place),
                xytext=(7, 0),
                textcoords="offset points",
                va="center",
                fontsize="small",
            )
    axes.set_xticks(places, shown.names)
    axes.set(yticks=[], ylim=(-0.05, 1.05), xlim=(-0.2, len(places) - 0.4))
    axes.set_title(released.name, loc="left")
    axes.spines[:].set_visible(False)
    return axes


@checked
def plot_importances(
    source: Any, *, space: Space | None = None, metric: Index = 0, ax: Any = None
) -> Any:
    """Draw how much of the scores' variation over the space each parameter explains by itself, by
    Optuna's fANOVA of the posterior means, or of a `DPSearch`'s cross-validated scores.

    Of few or very noisy values it says little.

    Args:
        source, space, metric, ax: as in `plot_convergence`.

    Returns:
        The Axes.

    Raises:
        InputError: as in `plot_convergence`.
        MissingLibrary: without Optuna.
        UsageError: fewer than four values, or values that are all equal.
    """
    released = ReleasedValues.of(source, space, metric)
    found = released.importances()
    axes = _axes(ax)
    axes.barh([*found][::-1], [*found.values()][::-1])
    of = "posterior means" if released.released else released.what + "s"
    axes.set(xlim=(0, 1), xlabel=f"share of the variation of {of}", title=released.name)
    return axes


@checked
def plot_budget(curator: Curator, *, ax: Any = None) -> Any:
    """Draw what the releases so far cost together, after each: epsilon at the budget's delta, or mu
    where no delta is named.

    Args:
        curator: whose ledger is read.
        ax: as in `plot_convergence`.

    Returns:
        The Axes.

    Raises:
        InputError: nothing was released yet, or matplotlib is not installed.
    """
    records = curator.ledger.records()
    delta = curator.budget.delta
    counts = np.cumsum([record.event.count for record in records if record.kind == "charge"])
    if not len(counts):
        raise UsageError("the curator has released no value yet.")
    spread = np.linspace(0, len(counts) - 1, min(len(counts), _MOST_STEPS))
    steps = np.unique(spread.round().astype(int))
    facts = Facts()
    uses = list[BudgetUse]()
    charges = 0
    for record in records:
        facts.add(record)
        if record.kind == "charge":
            if charges == steps[len(uses)]:
                uses.append(BudgetUse.of(curator.ledger, facts, delta))
            charges += 1
    cap = curator.ledger.accounting.guarantee(curator.ledger.cap, delta)
    unit = "mu" if cap.epsilon is None else "epsilon"
    axes = _axes(ax)
    axes.step(
        [0, *counts[steps]],
        [0.0, *(getattr(use.spent, unit) for use in uses)],
        where="post",
        label="used by releases",
    )
    axes.axhline(
        getattr(uses[-1].reserved, unit), color="C1", ls="--", label="reserved, including those"
    )
    axes.axhline(getattr(cap, unit), color="grey", ls=":", label="budget")
    axes.set(
        xlabel="releases",
        ylabel=unit if delta is None else f"{unit} at delta {delta:g}",
        ylim=(0, 1.05 * getattr(cap, unit)),
    )
    axes.legend(frameon=False)
    return axes


@checked
def plot_noise(
    units: Count,
    *,
    evaluations: _Counts = (1, 10, 30, 100),
    epsilons: _Epsilons = _EPSILONS,
    delta: Probability = 1e-6,
    score_range: ScoreRange = (0.0, 1.0),
    ax: Any = None,
) -> Any:
    """Draw the noise of one evaluation against the epsilon of the budget, a curve for each number
    of evaluations that share it.

    Args:
        units: number of protected units.
        evaluations, epsilons, delta, score_range: what is compared, as in `dpbo.plan`.
        ax: as in `plot_convergence`.

    Returns:
        The Axes.
    """
    axes = _axes(ax)
    budgets = [Budget(epsilon, delta) for epsilon in epsilons]
    for count in evaluations:
        noise_of = functools.partial(
            noise_per_evaluation, units, evaluations=count, score_range=score_range
        )
        noise = list(map(noise_of, budgets))
        axes.plot(
            epsilons, noise, marker="o", ms=3, label=f"{count:,} evaluation{'s' * (count > 1)}"
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel=f"epsilon of the budget, at delta {delta:g}",
        title=f"{units:,} units",
        ylabel="standard deviation of one evaluation's noise",
    )
    axes.grid(which="both", alpha=0.2)
    axes.legend(frameon=False)
    return axes


@checked
def plot_plan(
    units: Count,
    budget: Budget,
    *,
    evaluations: Count = 30,
    score_range: ScoreRange = (0.0, 1.0),
    ax: Any = None,
) -> Any:
    """Draw the detectable difference of private evaluations and of one private choice against the
    number of evaluations.

    Args:
        units: number of protected units.
        budget: (epsilon, delta) or mu.
        evaluations: planned number of evaluations, which is marked.
        score_range: public (lower, upper) of one record's score, in whose units the differences
            are.
        ax: as in `plot_convergence`.

    Returns:
        The Axes.
    """
    axes = _axes(ax)
    counts = sorted({*(round(2 ** (i / 2)) for i in range(2, 19)), evaluations})
    evaluated = []
    chosen = []
    for count in counts:
        bo, _, choice = plan(units, budget, evaluations=count, score_range=score_range).strategies
        evaluated.append(bo.detectable_difference)
        chosen.append(choice.detectable_difference)
    for differences, label in (
        (evaluated, "two private evaluations"),
        (chosen, "two candidates of one private choice"),
    ):
        # None becomes NaN, which leaves a gap
        axes.plot(counts, np.array(differences, dtype=float), label=label)
    axes.axvline(evaluations, color="grey", lw=1, ls=":")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="evaluations",
        ylabel="detectable difference",
        title=f"{units:,} units",
    )
    axes.legend(frameon=False)
    return axes


@checked
def plot_accuracies(accuracies: Mapping[str, float], *, title: str = "", ax: Any = None) -> Any:
    """Draw accuracies in [0, 1] as one bar each.

    Args:
        accuracies: by name, the first on top.
        title: title of the picture.
        ax: as in `plot_convergence`.

    Returns:
        The Axes.
    """
    axes = _axes(ax)
    names = [*accuracies][::-1]
    values = [100 * value for value in accuracies.values()][::-1]
    axes.bar_label(axes.barh(names, values, height=0.6), fmt="%.1f", padding=3)
    axes.set(
        xlim=(max(0.0, min(values) - 10), max(values) + 3), xlabel="test accuracy, %", title=title
    )
    return axes


class _Axis:
    """One parameter as a picture's axis.

    Attributes:
        coordinates: of the space, where a model is drawn. places: where they are on the axis.
        ticks: names of the places, of a list of words; else none.
        logarithmic: whether the parameter's distribution is log-uniform.
    """

    def __init__(self, space: Space, i: int) -> None:
        self._space = space
        self._i = i
        listed = space.discrete_dims.get(i) or space.cat_dims.get(i)
        steps = torch.linspace(
            float(space.bounds[0, i]),
            float(space.bounds[1, i]),
            101,
            dtype=torch.float64,
            device="cpu",
        )
        self.coordinates = (
            steps if listed is None else torch.tensor(listed, dtype=torch.float64, device="cpu")
        )
        if i in space.cat_dims:
            self.ticks = list(map(str, self._values(self.coordinates)))
        else:
            self.ticks = []
        self.places = self.at(self.coordinates)
        low, middle, high = self.places[[0, len(self.places) // 2, -1]].tolist()
        self.logarithmic = (
            listed is None
            and low > 0
            and high > 10 * low
            and math.isclose(middle, math.sqrt(low * high), rel_tol=1e-6)
        )

    def at(self, coordinates: torch.Tensor) -> NDArray[np.float64]:
        """Places on the axis: the parameter's values, or of words their numbers."""
        if self._i in self._space.cat_dims:
            return coordinates.numpy()
        return np.array(self._values(coordinates), dtype=float)

    def marks(self) -> list[tuple[float, str]]:
        """Height in [0, 1] and text of the values to name: all words, else the ends."""
        shown = self.coordinates if self.ticks else self.coordinates[[0, -1]]
        low, high = self._space.bounds[:, self._i].tolist()
        heights = (shown - low) / max(high - low, 1e-12)
        texts = self.ticks or [f"{value:.4g}" for value in self._values(shown)]
        return list(zip(heights.tolist(), texts, strict=True))

    def _values(self, coordinates: torch.Tensor) -> list[Any]:
        x = self._space.bounds[0].repeat(len(coordinates), 1)
        x[:, self._i] = coordinates
        return [self._space.decode(point)[self._space.names[self._i]] for point in x]


def _colours(values: NDArray[np.float64]) -> Any:
    with needs("plots"):
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

    return ScalarMappable(
        Normalize(values.min(), max(values.max(), values.min() + 1e-12)), "viridis"
    )


def _axes(ax: Any) -> Any:
    if ax is None:
        return _pyplot().subplots(figsize=(7.5, 4.5), layout="constrained")[1]
    return ax


def _pyplot() -> Any:
    with needs("plots"):
        import matplotlib.pyplot as plt
    return plt
