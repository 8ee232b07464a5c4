"""GP-UCB over 40,000 candidates, 50 steps: FiniteGP beside the same loop of SingleTaskGP,
UpperConfidenceBound and optimize_acqf_discrete.

Both choose the identical indices, which is asserted. Beside them, 50 runs in one batch and 50
single ones, at 40,000 candidates and at 1,000, through a kernel with closed rows and one that
GPyTorch evaluates. Work of a run: 2 n T^2 / 2 flops, 8 n T^2 / 2 bytes read of the factor (0.4 GB
here); the fraction of read bandwidth is that over the time, beside a plain sum over as large an
array, in the same run.

One run's factor (16 MB) stays in the processor's outer cache, 50 runs' factors (800 MB) come from
memory in each step, at half the bandwidth or less: reading alone then takes a run of the batch 33
ms, more than 0.7 of a whole single run, so that 0.7 is out of one core's reach. Over few candidates
a batch saves the calls.

    python -m benchmarks.finite_gp [--smoke] [--json FILE]
"""

import statistics
from typing import Any

import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf_discrete
from gpytorch.kernels import RQKernel
from gpytorch.means import ZeroMean
from torch import Tensor

from benchmarks.harness import interleaved, options, ratio, record, table
from dpbo.acquisition.ucb import SrinivasFinite, suggest_ucb
from dpbo.models import FiniteGP
from dpbo.models.fixed_kernels import squared_exponential

NOISE = 1e-2
DELTA = 0.1
LENGTH = 0.2


def values_of(candidates: Tensor, runs: int, seed: int) -> Tensor:
    """A smooth function for each run, `runs x n`."""
    phases = 6.28 * torch.rand(
        runs, 2, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(candidates.device)
    return torch.sin(8.0 * candidates[:, 0] + phases[:, 0]) * torch.cos(
        6.0 * candidates[:, 1] + phases[:, 1]
    )


def model_of(candidates: Tensor, kernel: Any, runs: int, steps: int) -> FiniteGP:
    """So many independent runs over the same candidates."""
    return FiniteGP(candidates, kernel, NOISE, batch_shape=(runs,), capacity=steps)


def by_finite_gp(model: FiniteGP, values: Tensor, steps: int) -> Tensor:
    """The indices chosen from the start, `steps x runs`; values are `runs x n`."""
    model.forget()
    schedule = SrinivasFinite(count=values.shape[-1], delta=DELTA)
    index = torch.zeros(len(values), dtype=torch.long, device=values.device)
    chosen = [index]
    for _ in range(steps - 1):
        model.observe(index, values.gather(1, index.unsqueeze(1)).squeeze(1))
        index = suggest_ucb(model, schedule)
        chosen.append(index)
    return torch.stack(chosen)


def by_botorch(candidates: Tensor, kernel: Any, values: Tensor, steps: int) -> Tensor:
    """The same for one run, with a model made anew in each step and its hyper-parameters fixed."""
    schedule = SrinivasFinite(count=len(candidates), delta=DELTA)
    chosen = [0]
    for t in range(1, steps):
        X = candidates[chosen]
        Y = values[0, chosen].unsqueeze(-1)
        settings = {"covar_module": kernel, "mean_module": ZeroMean(), "outcome_transform": None}
        model = SingleTaskGP(X, Y, torch.full_like(Y, NOISE), **settings)
        with torch.no_grad():
            best, _ = optimize_acqf_discrete(
                UpperConfidenceBound(model, beta=schedule(t + 1)), q=1, choices=candidates
            )
        chosen.append(int((candidates == best).all(-1).nonzero()[0]))
    return torch.tensor(chosen).unsqueeze(-1)


def bandwidth(numbers: int) -> float:
    """Bytes a second of a plain sum over so many float64, the best of five."""
    array = torch.ones(numbers, dtype=torch.float64)
    (seconds,) = interleaved(array.sum, repetitions=5)
    return 8.0 * numbers / min(seconds)


def batch_against_singles(
    candidates: Tensor, kernel: Any, runs: int, steps: int, repetitions: int
) -> tuple[float, float]:
    """Seconds a run of a batch, and the median ratio to single ones; the same indices, which is
    asserted.
    """
    values = values_of(candidates, runs, 1)
    one = model_of(candidates, kernel, 1, steps)
    many = model_of(candidates, kernel, runs, steps)

    def singles() -> Tensor:
        return torch.cat(
            [by_finite_gp(one, values[run : run + 1], steps) for run in range(runs)], dim=1
        )

    def batch() -> Tensor:
        return by_finite_gp(many, values, steps)

    assert torch.equal(batch(), singles()), "a batch and single runs choose alike"
    together, alone = interleaved(batch, singles, repetitions=repetitions)
    return statistics.median(together) / runs, ratio(together, alone)


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments)
    torch.set_num_threads(1)
    n, steps, runs, repetitions = (2_000, 8, 4, 2) if chosen.smoke else (40_000, 50, 50, 3)
    candidates = torch.rand(
        n, 2, generator=torch.Generator().manual_seed(chosen.seed), dtype=torch.float64
    )
    closed = squared_exponential(LENGTH)
    called = RQKernel().double()
    called.lengthscale = LENGTH
    values = values_of(candidates, 1, chosen.seed)

    def one_run() -> Tensor:
        return by_finite_gp(model_of(candidates, closed, 1, steps), values, steps)

    assert torch.equal(one_run(), by_botorch(candidates, closed, values, steps))
    ours, theirs = interleaved(
        one_run, lambda: by_botorch(candidates, closed, values, steps), repetitions=repetitions
    )
    faster = ratio(theirs, ours)
    seconds = statistics.median(ours)
    read = 4.0 * n * steps * (steps - 1)
    few = min(1_000, n)
    batches = {
        f"{n:,} candidates, SE": batch_against_singles(
            candidates, closed, runs, steps, repetitions
        ),
        f"{n:,} candidates, RQ by GPyTorch": batch_against_singles(
            candidates, called, runs, steps, 1
        ),
        f"{few:,} candidates, SE": batch_against_singles(
            candidates[:few], closed, runs, steps, repetitions
        ),
    }
    first = f"{n:,} candidates, SE"
    cached = bandwidth(n * steps)
    memory = bandwidth(n * steps * runs)
    rows = [
        ["one run by FiniteGP, s", seconds, ""],
        ["the same by BoTorch, s", statistics.median(theirs), ""],
        ["BoTorch over FiniteGP, identical indices", faster, ">= 30"],
        *(
            [f"{runs} runs in one batch over single ones: {name}", share, "<= 0.7"]
            for name, (_, share) in batches.items()
        ),
        ["plain sum, one run's factor, GB/s", cached / 1e9, ""],
        ["plain sum, the batch's factors, GB/s", memory / 1e9, ""],
        ["fraction of that, one run", read / seconds / cached, ""],
        ["fraction of that, a batch", read / batches[first][0] / memory, ""],
    ]
    print(
        f"n = {n:,}, T = {steps}, one thread, medians of {repetitions}\n"
        + table(["what", "measured", "bound"], rows)
    )
    figures = {
        "seconds": seconds,
        "botorch_seconds": statistics.median(theirs),
        "times_faster": faster,
        "batch_over_singles": {name: share for name, (_, share) in batches.items()},
        "bandwidth_of_one_run": read / seconds / cached,
        "bandwidth_of_a_batch": read / batches[first][0] / memory,
    }
    record("finite_gp", figures, chosen)


if __name__ == "__main__":
    main()
