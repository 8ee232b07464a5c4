"""One iteration of DP-GIBO: choosing b points and turning every user's losses into a private
gradient.

Flops of an iteration at d = 33, b = 34, N = 400: 16 M for each of some dozens of values and
gradients of the acquisition, 2 n N d = 143 M for n = 5,000 users' gradients (one product, never a
solve a user). The acquisition value reached is set against 1,000 Adam steps on the same
acquisition, as the authors' code takes them. `benchmarks.end_to_end` sets a million users' clipped
gradients against the losses and one product with the weights.

    python -m benchmarks.gibo_step [--smoke] [--json FILE]
"""

import functools
import statistics
import time
from typing import Any

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from gpytorch.kernels import RBFKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from benchmarks.harness import interleaved, named, options, ratio, record, table
from dpbo import DPGIBO, Adjacency, Budget, Curator, PrivacyUnit
from dpbo.gibo import GradientPosterior, suggest_gradient_points
from dpbo.gibo.gradient_points import GradientTrace

JITTER = 5e-6
HEADER = (
    "one iteration, one core",
    "trace by Adam",
    "ms",
    "trace / Adam's",
    "ms, careful",
    "trace / Adam's, careful",
)


def walked(
    d: int, b: int, N: int, seed: int, device: torch.device | str = "cpu"
) -> tuple[GradientPosterior, torch.Tensor]:
    """A posterior over the designs of earlier iterations along a random walk, and where it is
    now.
    """
    generator = torch.Generator().manual_seed(seed)
    kernel = RBFKernel().double()
    kernel.lengthscale = 1.0
    posterior = GradientPosterior(kernel.to(device), 0.0, jitter=JITTER)
    theta = torch.zeros(d, dtype=torch.float64, device=device)
    while len(posterior) < N:
        Z = suggest_gradient_points(
            posterior, theta, min(b, N - len(posterior)), steps=10, generator=generator
        )
        posterior.append(Z)
        theta = (
            theta
            + 0.1 * torch.randn(d, dtype=torch.float64, generator=generator).to(device) / d**0.5
        )
    return posterior, theta


def by_adam(
    posterior: GradientPosterior, theta: torch.Tensor, b: int, steps: int, seed: int
) -> float:
    """The trace that so many Adam steps from near theta reach."""
    trace = GradientTrace(posterior, theta)
    d = len(theta)
    generator = torch.Generator().manual_seed(seed)
    Z = torch.nn.Parameter(
        theta + 1e-5 * torch.randn(b, d, dtype=torch.float64, generator=generator) / d**0.5
    )
    optimizer = torch.optim.Adam([Z], lr=1e-2)
    for _ in range(steps):
        Z.grad = trace.value_and_gradient(Z.detach())[1]
        optimizer.step()
    return float(trace.value(Z.detach()))


def iteration(
    posterior: GradientPosterior, theta: torch.Tensor, losses: torch.Tensor, b: int, **how: Any
) -> float:
    """Choose, append, weigh, and all users' gradients; returns the trace reached."""
    Z = suggest_gradient_points(posterior, theta, b, **how)
    gradients = losses @ posterior.conditioned_on(Z).weights(theta).mT
    assert gradients.shape[1] == len(theta)
    return float(GradientTrace(posterior, theta).value(Z))


def steps(smoke: bool, seed: int) -> list[list[Any]]:
    """A row for each size: milliseconds and trace over Adam's, quick and careful."""
    sizes = (
        [(4, 5, 20, 100)]
        if smoke
        else [
            (10, 11, 0, 4500),
            (10, 11, 100, 4500),
            (10, 11, 400, 4500),
            (33, 34, 0, 5000),
            (33, 34, 100, 5000),
            (33, 34, 400, 5000),
        ]
    )
    rows = []
    for d, b, N, n in sizes:
        posterior, theta = walked(d, b, N, seed)
        losses = torch.rand(n, N + b, dtype=torch.float64)
        reference = by_adam(posterior, theta, b, 50 if smoke else 1000, seed)
        repetitions = 2 if smoke else 5
        row: list[Any] = [f"d={d}, b={b}, N={N}, n={n}", reference]
        for how in ({}, {"steps": 100, "close": 1e-5}):
            generators = [torch.Generator().manual_seed(seed + 1 + i) for i in range(3)]
            reached = [
                iteration(posterior, theta, losses, b, generator=g, **how) for g in generators
            ]
            once = functools.partial(
                iteration, posterior, theta, losses, b, generator=generators[0], **how
            )
            (times,) = interleaved(once, repetitions=repetitions)
            row += [1e3 * statistics.median(times), statistics.mean(reached) / reference]
        rows.append(row)
    return rows


def beside_botorch(smoke: bool, seed: int) -> dict[str, float]:
    """An iteration of DP-GIBO, d + 1 points and all users' gradients, beside one proposal of an
    open search by BoTorch: a model fitted to as many values, and LogEI's best point.
    """
    d, N, n = (4, 20, 100) if smoke else (33, 400, 5000)
    posterior, theta = walked(d, d + 1, N, seed)
    losses = torch.rand(n, N + d + 1, dtype=torch.float64)
    X = torch.rand(N, d, dtype=torch.float64)
    Y = -(X - 0.5).square().sum(1, keepdim=True)
    bounds = torch.tensor([[0.0] * d, [1.0] * d], dtype=torch.float64)

    def proposal() -> None:
        model = SingleTaskGP(X, Y)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        improvement = LogExpectedImprovement(model, best_f=Y.max())
        optimize_acqf(improvement, bounds, q=1, num_restarts=10, raw_samples=512)

    ours, theirs = interleaved(
        lambda: iteration(posterior, theta, losses, d + 1), proposal, repetitions=1 if smoke else 5
    )
    return {
        "ms": 1e3 * statistics.median(ours),
        "ms of BoTorch": 1e3 * statistics.median(theirs),
        "ratio": ratio(ours, theirs),
    }


def whole_iteration() -> float:
    """Milliseconds of a whole iteration of DPGIBO without history, with query, ledger, noise and
    step: d = 33.
    """
    d = 33
    records = torch.rand(5000, 33, dtype=torch.float64)
    curator = Curator(
        records, unit=PrivacyUnit("user"), adjacency=Adjacency.REPLACE_ONE, budget=Budget.gdp(1.0)
    )
    bounds = torch.tensor([[0.0] * d, [1.0] * d], dtype=torch.float64)
    search = DPGIBO(
        curator,
        lambda x, r: r[:, 0] * x[0],
        bounds=bounds,
        budget=1.0,
        iterations=40,
        batch_size=d + 1,
        clip=1.0,
    )
    start = time.perf_counter()
    search.run()
    return 1e3 * (time.perf_counter() - start) / 40


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments)
    torch.manual_seed(chosen.seed)
    torch.set_num_threads(1)
    rows = steps(chosen.smoke, chosen.seed)
    whole = whole_iteration()
    print(table(HEADER, rows))
    print(
        f"\na whole iteration of DPGIBO without history, d = 33, ledger in memory: {whole:.1f} ms"
    )
    peer = beside_botorch(chosen.smoke, chosen.seed)
    print(f"\nbeside one proposal by BoTorch: {peer}")
    figures = {
        "steps": named(HEADER, rows),
        "whole iteration, ms": whole,
        "beside a proposal by BoTorch": peer,
    }
    record("gibo_step", figures, chosen)


if __name__ == "__main__":
    main()
