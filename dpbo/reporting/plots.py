"""Pictures of released values, of budgets and of plans. Everything drawn is public: values, known
noise, models of them, the ledger.

    # or a search, a fitted DPSearch, an Optuna study of a TrialObjective, a run of DPGIBO
    plots.plot_convergence(objective)
    plots.plot_slices(study).savefig("slices.pdf")
    # any other picture that Optuna draws
    optuna.visualization.plot_contour(plots.as_study(objective, space=space))

Functions return matplotlib's Axes, or a Figure where they draw several; `ax=` draws into one of
yours.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from dpbo.curator.curator import Curator
from dpbo.errors import UsageError
from dpbo.extras import needs
from dpbo.gibo.algorithm import DPGIBO, GIBOResult
from dpbo.ledger.facts import Facts
from dpbo.planning import noise_per_evaluation, plan
from dpbo.privacy import Budget
from dpbo.reporting.released_values import ReleasedValues
from dpbo.space import Space
from dpbo.validation import Count, Index, Positive, Probability, ScoreRange, checked

_EPSILONS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 10.0)
# of a budget's curve
_MOST_STEPS = 200
# values of one picture; more would cover each other
_MOST_DRAWN = 1000
# values, for importances
_FEWEST = 4


@checked
def plot_convergence(
    source: Any, *, space: Space | None = None, metric: Index = 0, ax: Any = None
) -> Any:
    """Draw each released value with the standard deviation of its noise, and the posterior mean of
    the best point so far.

    Of a `DPSearch` that released no scores, the values are the cross-validated ones by which it
    knew its configurations, in their order, and the line is the highest so far. They are public or,
    with weighted cross-validation, computed from what was released. Of a run of `DPGIBO`, the
    values are the lengths of its released gradients, and the line is that of their noise: a run
    that has come down to it learns little more. Of more than 1000 values every k-th is drawn.

    Args:
        source: a PrivateObjective, a search that has one, a fitted DPSearch, an Optuna study of a
            TrialObjective, a DPGIBO or its result.
        space: of the points, for the model; omitted, the source's own, or all coordinates are
            numbers.
        metric: which one, of several metrics.
        ax: Axes to draw into; omitted, new ones.

    Returns:
        The Axes.

    Raises:
        InputError: a source without released values, or matplotlib is not installed.
    """
    if isinstance(source, DPGIBO):
        source = source.result()
    if isinstance(source, GIBOResult):
        return _plot_gradients(source, ax)
    return draw_convergence(ReleasedValues.of(source, space, metric), ax)


def draw_convergence(released: ReleasedValues, ax: Any) -> Any:
    """`plot_convergence` of released values."""
    step = math.ceil(len(released.X) / _MOST_DRAWN)
    t = np.arange(1, len(released.X) + 1)
    std = None
    label = released.what
    line = "highest so far"
    if released.released:
        std = released.Yvar[::step, 0].sqrt()
        label = "released value ± standard deviation of its noise"
        line = "posterior mean of the best point so far"
    if step > 1:
        label += f" (drawn is one of {step})"
    axes = _axes(ax)
    axes.errorbar(
        t[::step], released.Y[::step, 0], yerr=std, fmt="C0o", ms=4, lw=1, alpha=0.6, label=label
    )
    axes.step(t, released.mean.cummax(0).values, "C1", where="post", lw=2, label=line)
    best = released.best
    axes.plot(t[best], float(released.mean[best]), "C1*", ms=14, label=released.best_is)
    counted = "evaluation" if released.released else "configuration"
    axes.set(xlabel=counted, ylabel="score", title=released.name)
    return _finished(axes)


def _plot_gradients(result: GIBOResult, ax: Any) -> Any:
    lengths = result.gradients.norm(dim=1).cpu()
    noise = result.noise_std * math.sqrt(result.gradients.shape[1])
    axes = _axes(ax)
    axes.plot(np.arange(1, len(lengths) + 1), lengths, "C0o", label="released gradient")
    axes.axhline(noise, color="C1", label="its noise alone, on average")
    axes.set(xlabel="iteration", ylabel="length of the gradient", ylim=(0, None))
    return _finished(axes)


@checked
def plot_slices(
    source: Any, *, space: Space | None = None, metric: Index = 0, columns: Count = 3
) -> Any:
    """Draw the model through the recommended point, one picture a parameter: mean, 95 % band, and
    the released values.

    The other parameters stay at the recommended point, so values released far from it may lie off
    the curve; near ones are darker.

    Args:
        source, space, metric: as in `plot_convergence`, but no DPGIBO.
        columns: pictures a row.

    Returns:
        The Figure, with an Axes a parameter.

    Raises:
        InputError: as in `plot_convergence`, or a single released value.
    """
    released = ReleasedValues.of(source, space, metric)
    space = released.space
    names = space.names
    x = released.X[released.best]
    width = min(columns, len(names))
    rows = math.ceil(len(names) / width)
    figure, grid = _pyplot().subplots(
        rows,
        width,
        figsize=(3.6 * width, 3.0 * rows),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for i, (name, axes) in enumerate(zip(names, grid.flat, strict=False)):
        low, high = space.bounds[:, i].tolist()
        listed = space.discrete_dims.get(i) or space.cat_dims.get(i) or np.linspace(low, high, 101)
        X = x.repeat(len(listed), 1)
        X[:, i] = X.new_tensor(listed)
        mean, std = released.posterior(X)
        if i in space.cat_dims:
            axes.errorbar(
                _values(space, X, i), mean, yerr=1.96 * std, fmt="C1_", ms=16, lw=2, label="model"
            )
            axes.margins(x=0.25)
        else:
            places = _values(space, X, i)
            axes.plot(places, mean, "C1", label="model")
            axes.fill_between(
                places, mean - 1.96 * std, mean + 1.96 * std, color="C1", alpha=0.2, lw=0
            )
            if isinstance(places[0], int):
                axes.xaxis.get_major_locator().set_params(integer=True)
            # log-uniform
            elif places[0] > 0 and math.isclose(
                places[len(places) // 2] ** 2, places[0] * places[-1]
            ):
                axes.set_xscale("log")
        others = [j for j in range(len(names)) if j != i]
        distance = (released.X[:, others] - x[others]).norm(dim=1)
        near = (1 - distance / distance.max().clamp_min(1e-12)).clamp(0.15, 1.0)
        axes.scatter(
            _values(space, released.X, i),
            released.Y[:, 0],
            s=14,
            c="C0",
            alpha=near,
            label=released.what,
        )
        axes.axvline(_values(space, x.unsqueeze(0), i)[0], color="grey", lw=1, ls=":")
        axes.set(xlabel=name)
    for axes in grid.flat[len(names) :]:
        axes.remove()
    for axes in grid[:, 0]:
        axes.set_ylabel("score")
    figure.suptitle(f"{released.name}: the model through one point ({released.best_is})")
    return figure


def _values(space: Space, X: torch.Tensor, i: int) -> list[Any]:
    """A parameter's values at points (`n x d`), as matplotlib takes them."""
    values = [space.decode(x)[space.names[i]] for x in X]
    return list(map(str, values)) if i in space.cat_dims else values


@checked
def as_study(source: Any, *, space: Space | None = None, metric: Index = 0) -> Any:
    """The posterior means of a search as an Optuna study, for Optuna's pictures and importances.

    Of a fitted `DPSearch` that released no scores, they are the cross-validated scores.

    Args:
        source, space, metric: as in `plot_slices`.

    Returns:
        An `optuna.Study` in memory, with a trial for each value, in their order. It keeps no noise:
        propose points by `NoiseAwareSampler` in the search's own study, and not in this one.

    Raises:
        InputError: as in `plot_slices`, or a space that has no Optuna form.
        MissingLibrary: without Optuna.
    """
    released = ReleasedValues.of(source, space, metric)
    with needs("optuna"):
        from dpbo.integrations.optuna.trials import Suggestions
    suggestions = Suggestions(released.space)
    return _study(released, suggestions.distributions, map(suggestions.shown, released.X))


def _study(
    released: ReleasedValues, distributions: dict[str, Any], points: Iterable[dict[str, Any]]
) -> Any:
    """A study of the posterior means, at points under these distributions."""
    import optuna

    verbosity = optuna.logging.get_verbosity()
    # it tells of every study that is made
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", study_name=released.name)
    optuna.logging.set_verbosity(verbosity)
    for params, mean in zip(points, released.mean.tolist(), strict=True):
        study.add_trial(optuna.create_trial(params=params, distributions=distributions, value=mean))
    return study


def _drawn_by_optuna(draw: Callable[..., Any], study: Any, **options: Any) -> Any:
    """The Axes of one of Optuna's pictures, which would change the style of all later ones."""
    with needs("plots"):
        import matplotlib
    with matplotlib.rc_context({"text.parse_math": False}), warnings.catch_warnings():
        # they are experimental
        warnings.simplefilter("ignore")
        return draw(study, target=lambda trial: trial.value, target_name="score", **options)


@checked
def plot_parallel_coordinates(source: Any, *, space: Space | None = None, metric: Index = 0) -> Any:
    """Draw each configuration as a line over its parameters, coloured by its posterior mean; of a
    fitted `DPSearch` that released no scores, by its cross-validated score. Optuna draws it, from
    `as_study`.

    Args:
        source, space, metric: as in `as_study`.

    Returns:
        The Axes.

    Raises:
        InputError, MissingLibrary: as in `as_study`.
    """
    study = as_study(source, space=space, metric=metric)
    from optuna.visualization.matplotlib import plot_parallel_coordinate

    return _drawn_by_optuna(plot_parallel_coordinate, study)


@checked
def plot_importances(source: Any, *, space: Space | None = None, metric: Index = 0) -> Any:
    """Draw how much of the scores' variation over the space each parameter explains by itself, by
    Optuna's fANOVA of the posterior means, or of a `DPSearch`'s cross-validated scores.

    Of few or very noisy values it says little.

    Args:
        source, space, metric: as in `as_study`.

    Returns:
        The Axes.

    Raises:
        InputError, MissingLibrary: as in `as_study`.
        UsageError: fewer than four values, or values that are all equal.

    Source: Hutter, Hoos & Leyton-Brown 2014.
    """
    released = ReleasedValues.of(source, space, metric)
    if len(released.X) < _FEWEST or bool((released.mean == released.mean[0]).all()):
        raise UsageError(
            f"importances need {_FEWEST} values or more that differ: {released.name!r} has"
            f" {len(released.X)}."
        )
    with needs("optuna"):
        from optuna.distributions import FloatDistribution, IntDistribution
        from optuna.importance import FanovaImportanceEvaluator
        from optuna.visualization.matplotlib import plot_param_importances
    # the trees split coordinates, on which the space is uniform, and not its values
    names = released.space.names
    distributions = {}
    for i, (name, ends) in enumerate(zip(names, released.space.bounds.T.tolist(), strict=True)):
        kind = IntDistribution if i in released.space.cat_dims else FloatDistribution
        distributions[name] = kind(*ends)
    points = [dict(zip(names, x, strict=True)) for x in released.X.tolist()]
    return _drawn_by_optuna(
        plot_param_importances,
        _study(released, distributions, points),
        evaluator=FanovaImportanceEvaluator(seed=0),
    )


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
    ledger = curator.ledger
    delta = curator.budget.delta
    unit = "mu" if delta is None else "epsilon"
    records = ledger.records()
    left = sum(record.kind == "charge" for record in records)
    if not left:
        raise UsageError("the curator has released no value yet.")
    step = math.ceil(left / _MOST_STEPS)
    facts = Facts()
    count = 0
    counts = [0]
    spent = [0.0]
    for record in records:
        facts.add(record)
        if record.kind == "charge":
            count += record.event.count
            left -= 1
            if left % step == 0:
                counts.append(count)
                spent.append(getattr(ledger.accounting.guarantee(facts.spent, delta), unit))
    cap = getattr(ledger.accounting.guarantee(ledger.cap, delta), unit)
    reserved = getattr(ledger.accounting.guarantee(facts.total, delta), unit)
    axes = _axes(ax)
    axes.step(counts, spent, where="post", label="used by releases")
    axes.axhline(reserved, color="C1", ls="--", label="reserved, including those")
    axes.axhline(cap, color="grey", ls=":", label="budget")
    label = unit if delta is None else f"{unit} at delta {delta:g}"
    axes.set(xlabel="releases", ylabel=label, ylim=(0, 1.05 * cap))
    return _finished(axes)


@checked
def plot_noise(
    units: Count,
    *,
    evaluations: Sequence[Count] = (1, 10, 30, 100),
    epsilons: Sequence[Positive] = _EPSILONS,
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
    for count in evaluations:
        noise = [
            noise_per_evaluation(
                units, Budget(epsilon, delta), evaluations=count, score_range=score_range
            )
            for epsilon in epsilons
        ]
        label = f"{count:,} evaluation{'s' * (count > 1)}"
        axes.loglog(epsilons, noise, marker="o", ms=3, label=label)
    axes.set(
        xlabel=f"epsilon of the budget, at delta {delta:g}",
        ylabel="standard deviation of one evaluation's noise",
        title=f"{units:,} units",
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
    counts = np.unique(np.geomspace(2, 512, 17).round().astype(int)).tolist()
    counts = sorted({*counts, evaluations})
    plans = [plan(units, budget, evaluations=n, score_range=score_range) for n in counts]
    axes = _axes(ax)
    # None becomes NaN, which leaves a gap
    for place, label in ((0, "two private evaluations"), (2, "two candidates of one choice")):
        differences = [one.strategies[place].detectable_difference for one in plans]
        axes.loglog(counts, np.array(differences, dtype=float), label=label)
    axes.axvline(evaluations, color="grey", lw=1, ls=":")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set(xlabel="evaluations", ylabel="detectable difference", title=f"{units:,} units")
    axes.legend(frameon=False)
    return axes


def _finished(axes: Any) -> Any:
    """With a legend, and whole numbers below."""
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)
    return axes


def _axes(ax: Any) -> Any:
    if ax is None:
        return _pyplot().subplots(figsize=(7.5, 4.5), layout="constrained")[1]
    return ax


def _pyplot() -> Any:
    with needs("plots"):
        import matplotlib.pyplot as plt
    return plt
