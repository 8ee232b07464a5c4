"""GP-UCB over 40,000 candidates, 50 steps: FiniteGP beside the same loop of SingleTaskGP,
UpperConfidenceBound and optimize_acqf_discrete; and fifty runs at once beside fifty single ones.

All choose the identical indices, which is asserted. Work of a run: 2 n T^2 / 2 flops, 8 n T^2 / 2
bytes read of the factor (0.4 GB here); the fraction of read bandwidth is that over the time, beside
a plain sum over as large an array, in the same run.

Over 1,000 candidates a single run's time is that of its calls, and its factor (0.4 MB) stays in the
processor's inner cache; fifty factors (20 MB) do not, and reading them takes a third of the batch's
time. Over 40,000 candidates no factor stays there.

    python -m benchmarks.finite_gp [--smoke] [--json FILE]
"""

import statistics
from typing import Any

import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf_discrete
from gpytorch.means import ZeroMean
from torch import Tensor

from benchmarks.harness import interleaved, options, ratio, record, table
from dpbo.acquisition.ucb import SrinivasFinite, suggest_ucb
from dpbo.models import FiniteGP
from dpbo.models.fixed_kernels import squared_exponential

NOISE = 1e-2
DELTA = 0.1
LENGTH = 0.2


def values_of(candidates: Tensor, seed: int, runs: tuple[int, ...] = ()) -> Tensor:
    """A smooth function for each run, `runs x n`."""
    generator = torch.Generator().manual_seed(seed)
    phases = 6.28 * torch.rand(2, *runs, 1, generator=generator, dtype=torch.float64)
    first, second = phases.to(candidates.device)
    return torch.sin(8.0 * candidates[:, 0] + first) * torch.cos(6.0 * candidates[:, 1] + second)


def model_of(candidates: Tensor, kernel: Any, steps: int, runs: tuple[int, ...] = ()) -> FiniteGP:
    """Of so many independent runs over the same candidates."""
    return FiniteGP(candidates, kernel, NOISE, batch_shape=runs, capacity=steps)


def searched(model: FiniteGP, values: Tensor, steps: int) -> Tensor:
    """The indices chosen from the first candidate on, `steps x batch_shape`, without what the model
    has observed before; values are `batch_shape x n`.
    """
    model.forget()
    schedule = SrinivasFinite(count=values.shape[-1], delta=DELTA)
    index = torch.zeros(model.batch_shape, dtype=torch.long, device=values.device)
    chosen = [index]
    for _ in range(steps - 1):
        model.observe(index, values.gather(-1, index.unsqueeze(-1)).squeeze(-1))
        index = suggest_ucb(model, schedule)
        chosen.append(index)
    return torch.stack(chosen)


def by_finite_gp(candidates: Tensor, kernel: Any, values: Tensor, steps: int) -> Tensor:
    """The indices chosen by a model made anew, as in `searched`."""
    return searched(model_of(candidates, kernel, steps, values.shape[:-1]), values, steps)


def one_by_one(model: FiniteGP, values: Tensor, steps: int) -> Tensor:
    """Those of values `runs x n`, one run after the other, `steps x runs`."""
    return torch.stack([searched(model, own, steps) for own in values.unbind()], dim=-1)


def by_botorch(candidates: Tensor, kernel: Any, values: Tensor, steps: int) -> Tensor:
    """The same with a model made anew in each step and its hyper-parameters fixed."""
    schedule = SrinivasFinite(count=len(candidates), delta=DELTA)
    chosen = [0]
    for t in range(1, steps):
        X = candidates[chosen]
        Y = values[chosen].unsqueeze(-1)
        settings = {"covar_module": kernel, "mean_module": ZeroMean(), "outcome_transform": None}
        model = SingleTaskGP(X, Y, torch.full_like(Y, NOISE), **settings)
        with torch.no_grad():
            best, _ = optimize_acqf_discrete(
                UpperConfidenceBound(model, beta=schedule(t + 1)), q=1, choices=candidates
            )
        chosen.append(int((candidates == best).all(-1).nonzero()[0]))
    return torch.tensor(chosen)


def bandwidth(numbers: int) -> float:
    """Bytes a second of a plain sum over so many float64, the best of five."""
    array = torch.ones(numbers, dtype=torch.float64)
    (seconds,) = interleaved(array.sum, repetitions=5)
    return 8.0 * numbers / min(seconds)


def at_once(candidates: Tensor, runs: int, steps: int, repetitions: int) -> dict[str, float]:
    """Seconds of so many runs as a batch, their ratio to single runs', and how many times as long
    BoTorch's loop takes for all of them, from the time of one.
    """
    kernel = squared_exponential(LENGTH)
    values = values_of(candidates, 1, (runs,))

    one = model_of(candidates, kernel, steps)
    many = model_of(candidates, kernel, steps, (runs,))

    def batch() -> Tensor:
        return searched(many, values, steps)

    def singles() -> Tensor:
        return one_by_one(one, values, steps)

    def botorch() -> Tensor:
        return by_botorch(candidates, kernel, values[0], steps)

    chosen = batch()
    assert torch.equal(chosen, singles())
    assert torch.equal(chosen[:, 0], botorch())
    together, alone, theirs = interleaved(batch, singles, botorch, repetitions=repetitions)
    return {
        "seconds": statistics.median(together),
        "of_single_runs": ratio(together, alone),
        "times_faster_than_botorch": runs * ratio(theirs, together),
    }


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments)
    torch.set_num_threads(1)
    n, steps, repetitions = (2_000, 8, 2) if chosen.smoke else (40_000, 50, 3)
    few, runs = (100, 4) if chosen.smoke else (1_000, 50)
    candidates = torch.rand(
        n, 2, generator=torch.Generator().manual_seed(chosen.seed), dtype=torch.float64
    )
    closed = squared_exponential(LENGTH)
    values = values_of(candidates, chosen.seed)

    def one_run() -> Tensor:
        return by_finite_gp(candidates, closed, values, steps)

    assert torch.equal(one_run(), by_botorch(candidates, closed, values, steps))
    ours, theirs = interleaved(
        one_run, lambda: by_botorch(candidates, closed, values, steps), repetitions=repetitions
    )
    faster = ratio(theirs, ours)
    seconds = statistics.median(ours)
    read = 4.0 * n * steps * (steps - 1)
    cached = bandwidth(n * steps)
    bounds = {few: "<= 0.08", n: "<= 1"}
    batches = {
        f"{count:,} candidates": at_once(candidates[:count], runs, steps, repetitions)
        for count in bounds
    }
    rows = [
        ["one run by FiniteGP, s", seconds, ""],
        ["the same by BoTorch, s", statistics.median(theirs), ""],
        ["BoTorch over FiniteGP, identical indices", faster, ">= 30"],
        ["plain sum, one run's factor, GB/s", cached / 1e9, ""],
        ["fraction of that", read / seconds / cached, ""],
    ]
    for (over, batch), bound in zip(batches.items(), bounds.values(), strict=True):
        rows += [
            [f"{runs} runs at once, {over}, s", batch["seconds"], ""],
            ["... over single runs", batch["of_single_runs"], bound],
            ["... BoTorch, one by one, over it", batch["times_faster_than_botorch"], ">= 100"],
        ]
    print(
        f"n = {n:,}, T = {steps}, one thread, medians of {repetitions}\n"
        + table(["what", "measured", "bound"], rows)
    )
    figures = {
        "seconds": seconds,
        "botorch_seconds": statistics.median(theirs),
        "times_faster": faster,
        "bandwidth_of_one_run": read / seconds / cached,
        "runs_at_once": batches,
    }
    record("finite_gp", figures, chosen)


if __name__ == "__main__":
    main()
