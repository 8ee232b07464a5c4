"""Kusner et al.'s releases beside the sound alternative: what their theorems promise, what is
measured, what each budget buys.

Functions are drawn from GP(0, k1 (x) k2), k2 squared exponential on a grid of [0, 1]^2, k1(V, V') =
0.99 for neighbours; 30 noisy observations by GP-UCB; delta = 0.1. Units are the prior's standard
deviation.

(a) Coverage of the sensitivities by pairs (f, f') of the prior, and the noise maximum that the
    paper's q forgets.
(b) What is lost at the released candidate and value, beside Theorems 2, 4 and 6 (a = log 20, so
    that e^-a = 0.05).
(c) The same functions as means of m per-record scores in [0, 1], clipped at 5 deviations: the
    exponential mechanism and permute-and-flip on all candidates, sensitivity 1/m, without any
    assumption. Laws are drawn by torch; one table goes through the curator.
(d) Algorithm 3 on breast cancer and Adult (DPBO_DATA), exactly under its assumptions, and Theorem
    8. Clamping to [-1, 0] would be free.
(e) Where each candidate costs a fit: a search on noised values and a choice among its best, beside
    a choice among as many at random.
(f) Algorithm 1's candidate where the evaluated ones are chosen without values: a tenth of the
    sensitivity, under the same prior.
(g) Algorithm 2's last value, as the ICML paper prints, and its largest, as the workshop version
    does, before the noise, which is the same for both.

Algorithm 1 is for gains that are no mean of bounded scores, where a promise under the prior is
enough and epsilon is 100 or more; (c) for means of bounded scores, from two records on, or (e)
where fits are dear; Algorithm 3 for the value alone, on its whole grid.

    python -m benchmarks.papers.kusner [--smoke] [--seed N] [--json FILE] [--plot DIR] [--costly]

--costly: (e) alone, among the figures of a FILE that is there.
"""

import argparse
import math
import os
from typing import Any

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from benchmarks.harness import named, options, record, table, tabulated
from benchmarks.papers import kusner_printed
from benchmarks.papers import kusner_problems as problems
from benchmarks.papers import kusner_tuning as tuning
from benchmarks.papers.kusner_problems import DELTA, EVALUATIONS, KAPPA, NOISE, REACH
from benchmarks.papers.peers import STREAM
from dpbo.algorithms import search_then_choose
from dpbo.mechanisms import ExponentialMechanism, LaplaceMechanism, PermuteAndFlipMechanism
from dpbo.mechanisms.mechanism import Mechanism
from dpbo.models.finite import information_gain_bound
from dpbo.models.fixed_kernels import squared_exponential
from dpbo.papers.kusner import KusnerSearch, bounds
from dpbo.privacy import Budget
from dpbo.queries import CandidateScores
from dpbo.queries.query import Query

Figures = dict[str, Any]
A = math.log(20.0)
EPSILONS = (0.1, 1.0, 10.0, 100.0)
SEARCH: dict[str, Any] = {"evaluations": 30, "finalists": 16}


def sensitivities(count: int) -> dict[str, float]:
    """Theorems 1, 3 and 5; the last with Omega = 0, as all candidates are evaluated."""
    shared: dict[str, Any] = {"count": count, "kappa": KAPPA, "delta": DELTA}
    noisy = {"evaluations": EVALUATIONS, "noise": NOISE, "gamma": gamma_of(count), **shared}
    return {
        "1": bounds.theorem_1(**shared),
        "3": bounds.theorem_3(**noisy),
        "5": bounds.theorem_5(regret=0.0, **shared),
    }


def printed_sensitivities(count: int) -> dict[str, float]:
    """The same as the paper prints them."""
    shared: dict[str, Any] = {"count": count, "kappa": KAPPA, "delta": DELTA}
    noisy = {"evaluations": EVALUATIONS, "noise": NOISE, "gamma": gamma_of(count), **shared}
    return {
        "1": kusner_printed.theorem_1(evaluations=EVALUATIONS, **shared),
        "3": kusner_printed.theorem_3(**noisy),
        "5": kusner_printed.theorem_5(regret=0.0, **shared),
    }


def gamma_of(count: int) -> float:
    """The data-independent bound on the information gain."""
    return information_gain_bound(
        problems.grid_of(count), squared_exponential(problems.LENGTH), NOISE, EVALUATIONS
    )


def losses(
    pairs: problems.Pairs,
    scale: dict[str, float],
    sizes: tuple[int, ...],
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """What each release loses on each function, by 'quantity, epsilon'."""
    f = pairs.functions[0]
    mean = pairs.means[0]
    top = f.amax(1)
    best = pairs.observed[0].amax(1)
    found = {}
    found["uniform"] = top - f.mean(1)
    for epsilon in EPSILONS:
        chosen = _chosen(mean, epsilon / (2 * scale["1"]), generator, flip=False)
        found[f"mu, {epsilon:g}"] = mean.amax(1) - _at(mean, chosen)
        found[f"x, {epsilon:g}"] = top - _at(f, chosen)
        found[f"v, {epsilon:g}"] = (
            best + _laplace(best, scale["3"] / epsilon, generator) - top
        ).abs()
        found[f"v2, {epsilon:g}"] = _laplace(top, scale["5"] / epsilon, generator).abs()
        for m in sizes:
            utilities = problems.level(f)
            for name, flip in (("EM", False), ("PF", True)):
                index = _chosen(utilities, epsilon * m / 2, generator, flip=flip)
                found[f"{name} {m}, {epsilon:g}"] = top - _at(f, index)
            half = _at(f, _chosen(utilities, epsilon * m / 4, generator, flip=True))
            found[f"value {m}, {epsilon:g}"] = (
                half + _laplace(top, 2 * REACH / (m * epsilon / 2), generator) - top
            ).abs()
    return found


def _at(values: Tensor, index: Tensor) -> Tensor:
    return values.gather(1, index.unsqueeze(1)).squeeze(1)


def _chosen(utilities: Tensor, rate: float, generator: torch.Generator, *, flip: bool) -> Tensor:
    """The exponential mechanism (Gumbel noise) or permute-and-flip (exponential noise), each as
    report-noisy-max.
    """
    noise = torch.empty_like(utilities).exponential_(generator=generator)
    return (rate * utilities + (noise if flip else -noise.log())).argmax(1)


def _laplace(like: Tensor, scale: float, generator: torch.Generator) -> Tensor:
    one, other = (torch.empty_like(like).exponential_(generator=generator) for _ in range(2))
    return scale * (one - other)


def sampled(
    count: int, runs: int, sizes: tuple[int, ...], seed: int
) -> dict[str, dict[str, Tensor]]:
    """Everything of (a) to (c) over so many pairs, a few at a time."""
    generator = torch.Generator().manual_seed(seed)
    scale = sensitivities(count)
    some = min(runs, max(20, 500_000 // count))
    apart = []
    lost = []
    noise = []
    for _ in range(-(-runs // some)):
        pairs = problems.searched_pairs(count, some, generator)
        apart.append(pairs.apart())
        noise.append({"best": pairs.noise_at_best()})
        lost.append(losses(pairs, scale, sizes, generator))
    every = {"apart": apart, "lost": lost, "noise": noise}
    return {
        name: {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
        for name, parts in every.items()
    }


def promises(samples: dict[int, Any]) -> Figures:
    """(a) and (b): how often on the prior's draws each theorem fails, and how often it may. "3's q"
    is the step of Theorem 3's proof that the best observations' noises stay below q / 2.
    """
    rows: list[list[Any]] = []

    def add(theorem: str, count: int, broken: Tensor, allowed: float, epsilon: str = "") -> None:
        share = float(broken.double().mean())
        rows.append([theorem, f"{count:,}", epsilon, allowed, share, len(broken)])

    for count, sample in samples.items():
        printed, corrected = _halves(EVALUATIONS)
        best = sample["noise"]["best"]
        add("3's q, as printed", count, best > printed, DELTA / 3)
        add("3's q", count, best > corrected, DELTA / 4)
        for theorem, moved in sample["apart"].items():
            add(
                f"{theorem}, as printed",
                count,
                moved > printed_sensitivities(count)[theorem],
                DELTA,
            )
            add(theorem, count, moved > sensitivities(count)[theorem], DELTA)
        for epsilon in EPSILONS:
            for theorem, (name, bound, allowed) in _utilities(count, epsilon).items():
                lost = sample["lost"][f"{name}, {epsilon:g}"]
                add(theorem, count, lost > bound, allowed, f"{epsilon:g}")
    header = ["theorem", "candidates", "epsilon", "may fail", "fails", "draws"]
    return tabulated("promises", "(a), (b) how often the theorems fail", header, rows)


def coverage(samples: dict[int, Any]) -> Figures:
    """(a): how far the releases' raw values move, beside the sensitivities."""
    rows = []
    for count, sample in samples.items():
        for theorem, moved in sample["apart"].items():
            both = [each(count)[theorem] for each in (printed_sensitivities, sensitivities)]
            moves = [float(moved.quantile(0.95)), float(moved.max())]
            rows.append([f"{count:,}", theorem, *both, *moves])
    header = ["candidates", "theorem", "paper's", "corrected", "95 % move", "largest"]
    return tabulated("coverage", "(a) sensitivities", header, rows)


def _halves(evaluations: int) -> tuple[float, float]:
    """q / 2 of Theorem 3, as printed and as corrected."""
    printed = kusner_printed.noise_gap(noise=NOISE, delta=DELTA)
    corrected = bounds.noise_gap(evaluations=evaluations, noise=NOISE, delta=DELTA)
    return printed / 2, corrected / 2


def noise_maximum() -> Figures:
    """(a): how often the largest noise is above q / 2 on a flat function, exactly."""
    rows: list[list[Any]] = []
    for evaluations in (EVALUATIONS, 50, 500):
        fails = [
            1 - float(norm.cdf(half / NOISE**0.5)) ** (2 * evaluations)
            for half in _halves(evaluations)
        ]
        rows.append([evaluations, DELTA / 3, fails[0], DELTA / 4, fails[1]])
        assert fails[0] > DELTA / 3
        assert fails[1] <= DELTA / 4
    header = ["T", "paper's may fail", "paper's fails", "corrected may fail", "corrected fails"]
    return tabulated("noise maximum", "(a) the noise maximum on a flat function", header, rows)


def utility(samples: dict[int, Any]) -> Figures:
    """(b): losses beside the bounds of Theorems 2, 4 and 6."""
    rows = []
    for count, sample in samples.items():
        for epsilon in EPSILONS:
            row: list[Any] = [f"{count:,}", f"{epsilon:g}"]
            for name, bound, _ in _utilities(count, epsilon).values():
                row += [bound, float(sample["lost"][f"{name}, {epsilon:g}"].quantile(0.95))]
            rows.append(row)
    header = ["candidates", "epsilon"]
    for theorem, what in ((2, "mu_T lost"), (4, "v - f*"), (6, "v - f*")):
        header += [f"Theorem {theorem}", f"95 % of {what} ({theorem})"]
    return tabulated("utility", "(b) losses and bounds", header, rows)


def _utilities(count: int, epsilon: float) -> dict[str, tuple[str, float, float]]:
    """(quantity, bound, probability with which it may fail) by theorem."""
    moved = sensitivities(count)
    regret = bounds.regret(
        count=count, evaluations=EVALUATIONS, noise=NOISE, gamma=gamma_of(count), delta=DELTA
    )
    second = bounds.theorem_2(count=count, sensitivity=moved["1"], epsilon=epsilon, a=A)
    fourth = bounds.theorem_4(
        evaluations=EVALUATIONS,
        noise=NOISE,
        delta=DELTA,
        regret=regret,
        sensitivity=moved["3"],
        epsilon=epsilon,
        a=A,
    )
    sixth = bounds.theorem_6(regret=0.0, sensitivity=moved["5"], epsilon=epsilon, a=A)
    may = DELTA + 0.05
    return {"2": ("mu", second, 0.05), "4": ("v", fourth, may), "6": ("v2", sixth, may)}


def scales(counts: dict[int, int], sizes: tuple[int, ...]) -> Figures:
    """(c): how far one record moves what the choice is made by: Theorem 1 whatever m is, or (b -
    a)/m.
    """
    rows = []
    for count in counts:
        shared: dict[str, Any] = {"count": count, "delta": DELTA}
        first, limit = (bounds.theorem_1(kappa=kappa, **shared) for kappa in (KAPPA, 1.0))
        rows.append(
            [
                f"{count:,}",
                first,
                limit,
                *(2 * REACH / m for m in sizes),
                math.ceil(2 * REACH / limit),
            ]
        )
    header = [
        "candidates",
        f"Theorem 1, kappa = {KAPPA}",
        "kappa = 1",
        *(f"scores, m = {m:,}" for m in sizes),
        "better from m =",
    ]
    return tabulated("scales", "(c) sensitivities of the choice in prior deviations", header, rows)


def side_by_side(samples: dict[int, Any], sizes: tuple[int, ...]) -> Figures:
    """(c): the same candidate and value from Algorithm 1 and from bounded per-record scores."""
    choices = []
    values = []
    for count, sample in samples.items():
        lost = {name: float(loss.median()) for name, loss in sample["lost"].items()}
        mean = {name: float(loss.mean()) for name, loss in sample["lost"].items()}
        for epsilon in EPSILONS:
            at = f", {epsilon:g}"
            scores = [mean[f"{name} {m}{at}"] for m in sizes for name in ("EM", "PF")]
            own, uniform, flipped = (
                sample["lost"][name] for name in ("x" + at, "uniform", f"PF {sizes[0]}{at}")
            )
            gaps = [(own - uniform).tolist(), (flipped - own).tolist()]
            choices.append(
                [f"{count:,}", f"{epsilon:g}", mean["uniform"], mean["x" + at], *scores, *gaps]
            )
            values.append(
                [
                    f"{count:,}",
                    f"{epsilon:g}",
                    lost["v" + at],
                    lost["v2" + at],
                    *(lost[f"value {m}{at}"] for m in sizes),
                ]
            )
    header = [
        "candidates",
        "epsilon",
        "uniform choice",
        "Algorithm 1",
        *(f"{name}, m = {m:,}" for m in sizes for name in ("EM", "PF")),
        "Algorithm 1 minus uniform",
        f"PF, m = {sizes[0]:,}, minus Algorithm 1",
    ]
    other = [
        "candidates",
        "epsilon",
        "Algorithm 1",
        "Algorithm 2, Omega = 0",
        *(f"PF and Laplace, m = {m:,}" for m in sizes),
    ]
    print(
        "\n(c) f* - f(released candidate), means; Algorithm 1 under the prior alone, the others for"
        " all data\n" + table(header, choices)
    )
    print(
        "\n(c) |released value - f*|, medians; the last columns spend half on the choice\n"
        + table(other, values)
    )
    return {"choices": named(header, choices), "values": named(other, values)}


def public_design(counts: dict[int, int], seed: int) -> Figures:
    """(f): Algorithm 1's candidate after GP-UCB and after a design that depends on no value, on the
    same functions.
    """
    generator = torch.Generator().manual_seed(seed)
    rows: list[list[Any]] = []
    for count, runs in counts.items():
        pairs = problems.searched_pairs(count, runs, generator)
        means = problems.designed_means(count, pairs.functions, generator)
        apart = (means[0] - means[1]).abs().amax(1)
        spread = problems.public_search(count).spread()
        moved = bounds.theorem_1_public_design(count=count, spread=spread, delta=DELTA)
        covered = float((apart <= moved).double().mean())
        assert covered >= 1 - DELTA, f"the public design's bound covers {covered}"
        searched = sensitivities(count)["1"]
        top = pairs.functions[0].amax(1)
        for epsilon in (0.1, 1.0, 10.0, 30.0, 100.0, 300.0):
            lost = [
                top
                - _at(pairs.functions[0], _chosen(mean, epsilon / (2 * by), generator, flip=False))
                for mean, by in ((pairs.means[0], searched), (means[0], moved))
            ]
            cells = [float(loss.mean()) for loss in lost]
            gap = (lost[1] - lost[0]).tolist()
            rows.append([f"{count:,}", f"{epsilon:g}", searched, moved, covered, *cells, gap])
    header = [
        "candidates",
        "epsilon",
        "sensitivity, GP-UCB",
        "public design",
        "covered",
        "f* - f, GP-UCB",
        "f* - f, public design",
        "difference",
    ]
    return tabulated(
        "public design", "(f) Algorithm 1's candidate on a public design", header, rows
    )


def last_and_largest(count: int, functions: int, seed: int) -> Figures:
    """(g): what the last and the largest value of a noise-free branch and bound lose."""
    drawn = problems.draws(count, functions, torch.Generator().manual_seed(seed + 3))
    rows: list[list[Any]] = []
    for evaluations in (10, 20, EVALUATIONS, 60):
        lost = []
        for f in drawn:
            values = problems.branch_and_bound(count, f, evaluations)
            lost.append([float(f.max()) - values[-1], float(f.max()) - max(values)])
        last, largest = zip(*lost, strict=True)
        differ = sum(a > b for a, b in lost) / functions
        gap = [a - b for a, b in lost]
        rows.append(
            [evaluations, *(sum(each) / functions for each in (last, largest)), gap, differ]
        )
    header = ["T", "f* - last", "f* - largest", "difference", "last is below"]
    return tabulated(
        "last and largest",
        f"(g) Algorithm 2 before the noise, {count:,} candidates, {functions} functions",
        header,
        rows,
    )


def through_the_curator(count: int, m: int, times: int, seed: int) -> Figures:
    """(c): one function, its m records, and real releases of all three."""
    f = problems.draws(count, 1, torch.Generator().manual_seed(seed))[0]
    grid = problems.grid_of(count)
    heights = problems.level(f)

    def gain(x: Tensor, records: Tensor) -> float:
        mean = (records < heights[problems.index_in(count, x)]).double().mean()
        return float(2 * REACH * (mean - 0.5))

    terms: dict[str, Any] = {
        "kernel": squared_exponential(problems.LENGTH),
        "noise": NOISE,
        "evaluations": EVALUATIONS,
    }
    search = KusnerSearch(
        gain, grid, kappa=KAPPA, delta=DELTA, value_range=(-REACH, REACH), **terms
    )
    scores = CandidateScores(
        lambda height, records: records < height, heights.tolist(), score_range=(0.0, 1.0)
    )
    curator = problems.curator_of(problems.thresholds(m), conditional=True)
    rows = []
    for epsilon in EPSILONS:
        exponential = ExponentialMechanism.of(epsilon)
        flip = PermuteAndFlipMechanism.of(epsilon)
        asked: list[tuple[Query, Mechanism]] = [
            (search.best(), exponential),
            (scores, exponential),
            (scores, flip),
        ]
        indices = [[int(curator.release(*pair).value) for _ in range(times)] for pair in asked]
        value = [
            float(curator.release(search.value(), LaplaceMechanism(1 / epsilon)).value)
            for _ in range(times)
        ]
        lost = [float((f.max() - f[index]).mean()) for index in indices]
        rows.append(
            [f"{epsilon:g}", *lost, float(np.median(np.abs(np.array(value) - float(f.max()))))]
        )
    header = [
        "epsilon",
        "Algorithm 1, mean f* - f",
        "EM",
        "PF",
        "Algorithm 1's value, median error",
    ]
    return tabulated(
        "through the curator",
        f"(c) through the curator: {count:,} candidates, m = {m:,}, {times} releases each",
        header,
        rows,
    )


def costly(chosen: argparse.Namespace) -> Figures:
    """(e): where each candidate costs a fit. A search and a choice, the choice alone on as many
    random candidates, and on all of them.
    """
    count, sizes, functions = (100, (1_000,), 2) if chosen.smoke else (1_000, (1_000, 10_000), 50)
    seed = chosen.seed
    drawn = problems.draws(count, functions, torch.Generator().manual_seed(seed + 2))
    grid = problems.grid_of(count)
    fits = SEARCH["evaluations"] + SEARCH["finalists"]
    arms = [f"search then choose, {fits} fits", f"PF on {fits} at random", f"PF on all {count:,}"]
    header = ["m", "epsilon", *arms, "search minus random"]
    rows = []
    for m, epsilon in ((m, epsilon) for m in sizes for epsilon in EPSILONS[1:3]):
        losses_of = [
            _costly_losses(f, grid, m, epsilon, fits, STREAM + seed + turn)
            for turn, f in enumerate(drawn)
        ]
        lost = [list(arm) for arm in zip(*losses_of, strict=True)]
        gap = [a - b for a, b, _ in losses_of]
        rows.append([f"{m:,}", f"{epsilon:g}", *lost, gap])
    return tabulated(
        "costly",
        f"(e) mean f* - f(chosen), {count:,} candidates, {functions} functions",
        header,
        rows,
    )


def _costly_losses(
    f: Tensor, grid: Tensor, m: int, epsilon: float, fits: int, seed: int
) -> list[float]:
    heights = problems.level(f)
    budget = Budget(epsilon, 0.0)

    def score(x: Tensor, records: Tensor) -> Tensor:
        return records < heights[problems.index_in(len(grid), x)]

    def best_of(candidates: Tensor) -> int:
        question = CandidateScores(score, list(candidates), score_range=(0.0, 1.0))
        return int(
            problems.curator_of(problems.thresholds(m), budget)
            .release(question, PermuteAndFlipMechanism.of(epsilon))
            .value
        )

    private = problems.curator_of(problems.thresholds(m), budget)
    searched = search_then_choose(private, score, grid, score_range=(0.0, 1.0), seed=seed, **SEARCH)
    some = torch.randperm(len(grid), generator=torch.Generator().manual_seed(seed))[:fits]
    return [
        float(f.max() - f[index])
        for index in (searched.index, int(some[best_of(grid[some])]), best_of(grid))
    ]


def picture(samples: dict[int, Any], sizes: tuple[int, ...], chosen: argparse.Namespace) -> None:
    """Loss of the released candidate by epsilon, where --plot asks for it."""
    if chosen.plot is None:
        return
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(samples), figsize=(4.5 * len(samples), 3.5), sharey=True, squeeze=False
    )
    for axis, (count, sample) in zip(axes[0], samples.items(), strict=True):
        for name, label in (
            ("x", "Algorithm 1"),
            *((f"PF {m}", f"permute-and-flip, m = {m:,}") for m in sizes),
        ):
            axis.plot(
                EPSILONS,
                [float(sample["lost"][f"{name}, {epsilon:g}"].mean()) for epsilon in EPSILONS],
                "o-",
                label=label,
            )
        axis.axhline(
            float(sample["lost"]["uniform"].mean()),
            color="grey",
            linestyle=":",
            label="uniform choice",
        )
        axis.set(xscale="log", xlabel="epsilon", title=f"{count:,} candidates")
    axes[0, 0].set_ylabel("mean f* - f(released)")
    axes[0, 0].legend(fontsize=7)
    chosen.plot.mkdir(parents=True, exist_ok=True)
    figure.savefig(chosen.plot / "kusner.png", dpi=150, bbox_inches="tight")


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments, costly=False)
    torch.set_num_threads(1)
    if chosen.costly:
        record("kusner", costly(chosen), chosen, part=True)
        return
    counts = {100: 20} if chosen.smoke else {100: 2_000, 1_000: 1_000, 10_000: 300}
    sizes = (1_000,) if chosen.smoke else (1_000, 10_000, 100_000)
    samples = {count: sampled(count, runs, sizes, chosen.seed) for count, runs in counts.items()}
    figures = promises(samples) | coverage(samples) | noise_maximum() | utility(samples)
    figures |= scales(counts, sizes) | side_by_side(samples, sizes)
    figures |= public_design({100: 20} if chosen.smoke else {100: 600, 1_000: 400}, chosen.seed)
    figures |= last_and_largest(100, 5 if chosen.smoke else 400, chosen.seed)
    figures |= through_the_curator(100, 1_000, 2 if chosen.smoke else 40, chosen.seed)
    figures |= costly(chosen)
    census = None if chosen.smoke else tuning.adult()
    for problem in (tuning.breast_cancer(), census):
        figures |= (
            {}
            if problem is None
            else {problem.name: tuning.tune(problem, EPSILONS[:3], 3 if chosen.smoke else 40, A)}
        )
    if census is None:
        print(
            "\n(d) Adult: SKIPPED,",
            (
                "smoke"
                if chosen.smoke
                else f"no adult/adult.csv.gz in DPBO_DATA={os.environ.get('DPBO_DATA')}"
            ),
        )
    picture(samples, sizes, chosen)
    record("kusner", figures, chosen)


if __name__ == "__main__":
    main()
