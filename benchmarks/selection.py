"""Private choices. Of 10^7 candidates: seconds and extra memory of the exponential mechanism and
permute-and-flip, against one argmax and numpy's inexact Gumbel noise. Of DP-SGD runs: accuracy,
epsilon and runs of private selection, beside dp_accounting's bounds.

Bytes: the utilities are 80 MB and are read three times in chunks of 2 MB; an argmax reads them
once. Table: `dpsgd_mnist_lr/lr_acc.json` below DPBO_DATA (tensorflow/privacy, the data of Papernot
& Steinke 2022, Figure 7): learning rate, log-uniform over the full range, to the accuracy of DP-SGD
on MNIST's public test set; one run is 14,100 Poisson-sampled steps, add or remove one, delta 1e-6.
Expected accuracies are exact sums over the table; releasing nothing counts 0.1.
"""

import functools
import json
import math
import os
import pathlib
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from numpy.typing import NDArray

from benchmarks.harness import interleaved, options, ratio, record, table
from benchmarks.overhead import peak_memory
from dpbo.accounting import gdp, selection_bounds
from dpbo.accounting.selection_pairs import run_profiles, selection_epsilon
from dpbo.events import Event, GaussianEvent, PoissonGaussianEvent, SelectionEvent
from dpbo.mechanisms import ExponentialMechanism, PermuteAndFlipMechanism
from dpbo.privacy import Sensitivity
from dpbo.run_counts import (
    FixedRuns,
    PoissonRuns,
    RunCountDistribution,
    TruncatedNegativeBinomial,
)

QUANTUM = 2.0**-20
Array = NDArray[np.float64]
DELTA = 1e-6
BUDGET = 6.1
WANTED = 0.955
GUESS = 0.1
STEPS = PoissonGaussianEvent(1.1, 14_100, rate=256 / 60_000, relation="add-or-remove-one")
ORDERS = np.concatenate(
    [1 + np.geomspace(0.05, 4.0, 40), np.arange(5.5, 64.0, 0.5), np.arange(64.0, 128.0, 8.0)]
)
SHAPES = {
    "logarithmic": 0.0,
    "negative binomial 1/2": 0.5,
    "geometric": 1.0,
    "negative binomial 3": 3.0,
    "negative binomial 5": 5.0,
    "negative binomial 10": 10.0,
    "negative binomial 20": 20.0,
    "Poisson": math.inf,
}
MEANS: tuple[float, ...] = (
    2.0,
    3.0,
    5.0,
    7.0,
    10.0,
    15.0,
    22.0,
    33.0,
    50.0,
    75.0,
    110.0,
    170.0,
    300.0,
    600.0,
    1200.0,
)


class Peer:
    """dp_accounting's Renyi bound of choosing among runs; the curve of one run is computed once."""

    def __init__(self, inner: Any) -> None:
        accountant = RdpAccountant(ORDERS)
        accountant.compose(inner)
        self.base = np.asarray(accountant._rdp, dtype=np.float64)

    def epsilon(self, shape: float, mean: float) -> float:
        """Of `RepeatAndSelectDpEvent`, computed by the peer's own function."""
        from dp_accounting.rdp import rdp_privacy_accountant as peer

        chosen = peer._compute_rdp_repeat_and_select(ORDERS, self.base, mean, shape)
        return float(peer.compute_epsilon(ORDERS, chosen, DELTA)[0])


def law_of(shape: float, mean: float) -> RunCountDistribution:
    """The law of this shape and mean; infinite means Poisson, which may release nothing."""
    return (
        PoissonRuns(mean)
        if math.isinf(shape)
        else TruncatedNegativeBinomial.of_mean(mean, shape=shape)
    )


def accuracies() -> tuple[Array, str]:
    """The table's accuracies, worst first, and what they are."""
    file = pathlib.Path(os.environ.get("DPBO_DATA", "")) / "dpsgd_mnist_lr" / "lr_acc.json"
    if os.environ.get("DPBO_DATA") and file.exists():
        return np.sort(np.array(list(json.loads(file.read_text()).values()))), "the published table"
    rates = np.linspace(-4.0, 0.0, 1012)
    return (
        np.sort(0.1 + 0.86 * np.exp(-(((rates + 0.5) / 1.2) ** 2))),
        "SYNTHETIC accuracies, as DPBO_DATA names no table",
    )


def expected(law: RunCountDistribution, scores: Array) -> float:
    """E[accuracy of the best], exactly: sum_i acc_i (f(F_i) - f(F_{i-1})), and a guess where there
    is no run.
    """
    levels = law.generating(np.arange(len(scores) + 1) / len(scores))
    return float(np.diff(levels) @ scores) + law.none * GUESS


def bounds(law: Any, base: tuple[Event, ...]) -> dict[str, float]:
    """Epsilon by the ratio bound and by the lesser of both, the larger of both directions."""
    one = run_profiles(base)
    assert one is not None
    ratio = max(
        _crossing(functools.partial(selection_bounds.ratio_bound, law, side))
        for side in (one, one.swapped())
    )
    return {
        "ratio": ratio,
        "profile": selection_epsilon(SelectionEvent(base=base, run_count=law), DELTA),
    }


def _crossing(curve: Callable[[Array], Array]) -> float:
    low = 0.0
    high = 1.0
    while curve(np.array([high]))[0] > DELTA:
        high *= 2.0
        if high > 400.0:
            return math.inf
    for _ in range(24):
        middle = (low + high) / 2
        if curve(np.array([middle]))[0] <= DELTA:
            high = middle
        else:
            low = middle
    return high


def _bisected(
    below: Callable[[float], bool], low: float, high: float, factor: float
) -> tuple[float, float]:
    """Numbers within this factor of one another, between which `below` changes."""
    while high / low > factor:
        middle = math.sqrt(low * high)
        if below(middle):
            low = middle
        else:
            high = middle
    return low, high


def runs_tables(smoke: bool) -> dict[str, Any]:
    """Everything on the table of DP-SGD runs, printed and returned."""
    scores, source = accuracies()
    base: tuple[Event, ...] = (STEPS,)
    shapes = SHAPES
    means = MEANS
    if smoke:
        base = (GaussianEvent(2.5),)
        means = (3.0, 10.0)
        shapes = {name: SHAPES[name] for name in ("geometric", "Poisson")}
        peer = Peer(dp_event.GaussianDpEvent(2.5))
    else:
        step = dp_event.PoissonSampledDpEvent(
            STEPS.rate, dp_event.GaussianDpEvent(STEPS.noise_multiplier)
        )
        peer = Peer(dp_event.SelfComposedDpEvent(step, STEPS.count))
    frontier = {
        name: [_point(law_of(shape, mean), shape, base, scores, peer) for mean in means]
        for name, shape in shapes.items()
    }
    one = selection_epsilon(SelectionEvent(base=base, run_count=FixedRuns(1)), DELTA)
    print(
        f"\nPrivate selection, {source}: {len(scores)} runs, one costs epsilon {one:.3f} at delta"
        f" {DELTA:g}; best {scores[-1]:.4f}, {100 * (scores >= WANTED).mean():.1f} % reach"
        f" {WANTED}\n"
    )
    rows = [
        (
            name,
            "10",
            at["accuracy"],
            at["dp_accounting"],
            at["ratio"],
            at["profile"],
            at["95 % of K"],
        )
        for name, points in frontier.items()
        for at in points
        if round(at["mean"], 6) == 10.0
    ]
    print(
        table(
            (
                "law",
                "runs",
                "accuracy",
                "epsilon: dp_accounting",
                "ratio bound",
                "dpbo",
                "K at most, 95 %",
            ),
            rows,
        )
    )
    found = {
        "within": _within(base, scores, peer, shapes, smoke),
        "wanted": _wanted(base, scores, peer, shapes, smoke),
    }
    return {"data": source, "one run": one, "frontier": frontier, **found}


def _point(
    law: RunCountDistribution, shape: float, base: tuple[Event, ...], scores: Array, peer: Peer
) -> dict[str, Any]:
    figures = {"mean": law.mean, "accuracy": expected(law, scores), "95 % of K": law.quantile(0.95)}
    return {**figures, "dp_accounting": peer.epsilon(shape, law.mean), **bounds(law, base)}


def _within(
    base: tuple[Event, ...], scores: Array, peer: Peer, shapes: Mapping[str, float], smoke: bool
) -> dict[str, Any]:
    """The largest mean within the budget, by the peer's bound and by ours."""
    found: dict[str, Any] = {}
    for name, shape in shapes.items():
        theirs = _largest_mean(functools.partial(peer.epsilon, shape), smoke)

        def epsilon(mean: float, shape: float = shape) -> float:
            return selection_epsilon(
                SelectionEvent(base=base, run_count=law_of(shape, mean)), DELTA
            )

        ours = _largest_mean(epsilon, smoke)
        found[name] = {
            who: {"mean": mean, "accuracy": expected(law_of(shape, mean), scores)}
            for who, mean in (("dp_accounting", theirs), ("dpbo", ours))
        }
    cells = [
        (name, *pair["dp_accounting"].values(), *pair["dpbo"].values())
        for name, pair in found.items()
    ]
    print(f"\nmost expected runs below epsilon {BUDGET} (at most 2,000), and what they find\n")
    print(table(("law", "runs: dp_accounting", "accuracy", "runs: dpbo", "accuracy"), cells))
    return found


def _largest_mean(epsilon: Callable[[float], float], smoke: bool) -> float:
    low = 1.02
    high = 20.0 if smoke else 2000.0
    if epsilon(high) < BUDGET:
        return high
    return _bisected(lambda mean: epsilon(mean) < BUDGET, low, high, 1.2 if smoke else 1.01)[0]


def _wanted(
    base: tuple[Event, ...], scores: Array, peer: Peer, shapes: Mapping[str, float], smoke: bool
) -> dict[str, Any]:
    """The fewest expected runs that find WANTED, and what they cost."""
    found = {}
    for name, shape in shapes.items():
        low = 1.02
        high = 4000.0
        if expected(law_of(shape, high), scores) <= WANTED:
            continue

        def too_few(mean: float, shape: float = shape) -> bool:
            return expected(law_of(shape, mean), scores) <= WANTED

        _, high = _bisected(too_few, low, high, 1.002)
        found[name] = _point(law_of(shape, high), shape, base, scores, peer)
        if smoke:
            break
    columns = ("mean", "95 % of K", "accuracy", "dp_accounting", "ratio", "profile")
    rows = [(name, *(at[column] for column in columns)) for name, at in found.items()]
    print(f"\nfewest expected runs that find more than {WANTED} on average, and their epsilon\n")
    print(
        table(
            (
                "law",
                "runs",
                "K at most, 95 %",
                "accuracy",
                "epsilon: dp_accounting",
                "ratio bound",
                "dpbo",
            ),
            rows,
        )
    )
    return found


def gaussian_table(smoke: bool) -> list[dict[str, float | str]]:
    """27 cells: Gaussian runs of epsilon .5, 1 and 2, each law at 10, 30 and 100 expected runs."""
    rows: list[dict[str, float | str]] = []
    for epsilon in (1.0,) if smoke else (0.5, 1.0, 2.0):
        mu = gdp.mu_within(epsilon, DELTA)
        peer = Peer(dp_event.GaussianDpEvent(1 / mu))
        for mean in (10.0,) if smoke else (10.0, 30.0, 100.0):
            for name in ("geometric", "logarithmic", "Poisson"):
                law = law_of(SHAPES[name], mean)
                both = bounds(law, (GaussianEvent(1 / mu),))
                rows.append(
                    {
                        "run": epsilon,
                        "runs": mean,
                        "law": name,
                        "dp_accounting": peer.epsilon(SHAPES[name], mean),
                        **both,
                    }
                )
    print(f"\nGaussian runs at delta {DELTA:g}: epsilon of one, and of the best\n")
    print(
        table(
            ("epsilon of a run", "runs", "law", "dp_accounting", "ratio bound", "dpbo"),
            [tuple(row.values()) for row in rows],
        )
    )
    return rows


def picture(figures: Mapping[str, Any], folder: pathlib.Path) -> None:
    """The frontier: accuracy against epsilon, and against runs."""
    import matplotlib.pyplot as plt

    figure, (by_epsilon, by_runs) = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True)
    for i, (name, points) in enumerate(figures["frontier"].items()):
        accuracy = [at["accuracy"] for at in points]
        runs = [at["mean"] for at in points]
        by_epsilon.plot(
            [at["profile"] for at in points], accuracy, f"C{i}.-", label=f"{name}, dpbo"
        )
        by_epsilon.plot([at["dp_accounting"] for at in points], accuracy, f"C{i}:", linewidth=1)
        by_runs.plot(runs, accuracy, f"C{i}.-", label=name)
    by_epsilon.axvline(BUDGET, color="0.5", linewidth=0.8)
    by_epsilon.set(
        xlabel=f"epsilon at delta {DELTA:g} (dotted: dp_accounting)",
        ylabel="accuracy",
        xlim=(2, 20),
        ylim=(0.6, 0.965),
    )
    by_runs.set(xlabel="expected runs", xscale="log")
    for axis in (by_epsilon, by_runs):
        axis.axhline(WANTED, color="0.5", linewidth=0.8)
        axis.legend(fontsize=7, loc="lower right")
    figure.suptitle("the best of a random number of DP-SGD runs")
    figure.tight_layout()
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "private_selection.png", dpi=120)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments)
    count, repetitions = (10**5, 2) if chosen.smoke else (10**7, 5)
    utilities = np.random.default_rng(chosen.seed).integers(-(2**40), 2**40, size=count)
    rows: list[tuple[object, ...]] = []
    figures: dict[str, Any] = {}
    generator = np.random.default_rng(chosen.seed)
    for mechanism in (ExponentialMechanism.of(0.5), PermuteAndFlipMechanism.of(0.5)):
        law = mechanism.distribution(Sensitivity(1.0, 1.0, 1.0), [QUANTUM])
        work = functools.partial(mechanism._sample, utilities, [QUANTUM], law, os.urandom)
        extra = peak_memory(work)
        others = (utilities.argmax, lambda: (utilities + generator.gumbel(size=count)).argmax())
        choose, argmax, gumbel = interleaved(work, *others, repetitions=repetitions)
        name = type(mechanism).__name__
        names = ("seconds", "ratio to argmax", "ratio to numpy's Gumbel noise", "extra MiB")
        figures[name] = dict(
            zip(
                names,
                (statistics.median(choose), ratio(choose, argmax), ratio(choose, gumbel), extra),
                strict=True,
            )
        )
        rows.append((name, *figures[name].values()))
    print(f"{count:,} candidates, one thread\n" + table(("mechanism", *names), rows))
    figures["runs"], figures["Gaussian runs"] = (
        runs_tables(chosen.smoke),
        gaussian_table(chosen.smoke),
    )
    if chosen.plot is not None:
        picture(figures["runs"], chosen.plot)
    # Hundreds of rows, for the picture alone.
    del figures["runs"]["frontier"]
    record("selection", figures, chosen)


if __name__ == "__main__":
    main()
