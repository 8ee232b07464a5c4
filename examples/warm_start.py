"""What others learned privately warms up the next search, twice, by the two models of DP-EM (Park,
Foulds, Chaudhuri & Welling 2016).

(a) 3,000 teams each know their best setting of four hyper-parameters. A mixture of Gaussians is
    released on them at (1, 1e-5), each team
protected, and weights expected improvement on a new task (dpbo.acquisition.prior_guidance). (b) A
table of 4,000 candidates with 40 columns, each row protected, is searched by somebody who may see
only what is released: factor analysis at (2, 1e-5) gives a public linear map to three numbers, on
which a Gaussian process sees the objective far sooner. Neither has a free choice: no team's setting
and no row of the table is public.

    python -m examples.warm_start
"""

import statistics
from collections.abc import Callable
from typing import Any

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.models import SingleTaskGP
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from dpbo import Budget, Statement
from dpbo.acquisition import prior_guided
from dpbo.papers.em import DPFactorAnalysis, DPGaussianMixture, embedding

CENTERS = torch.tensor([[0.2, 0.7, 0.3, 0.8], [0.75, 0.3, 0.6, 0.2]]).double()


def best_settings(count: int, seed: int) -> Tensor:
    """Where so many tasks have their optimum, in the unit box: two schools."""
    generator = torch.Generator().manual_seed(seed)
    school = (torch.rand(count, generator=generator) < 0.35).long()
    return (
        CENTERS[school] + 0.06 * torch.randn(count, 4, dtype=torch.float64, generator=generator)
    ).clamp(0, 1)


def surrogate(X: Tensor, Y: Tensor, length: float) -> Any:
    """A GP with fixed length-scale on standardised values."""
    kernel = ScaleKernel(RBFKernel()).double()
    kernel.base_kernel.lengthscale, kernel.outputscale = length, 1.0
    values = (Y - Y.mean()) / Y.std().clamp(min=1e-9)
    return (
        SingleTaskGP(
            X,
            values,
            train_Yvar=torch.full_like(Y, 1e-4),
            covar_module=kernel,
            outcome_transform=None,
        ),
        values.max(),
    )


def searched(
    f: Callable[[Tensor], Tensor], mixture: DPGaussianMixture | None, evaluations: int, seed: int
) -> float:
    """The best value found from three random points on; with a mixture, guided by it."""
    bounds = torch.tensor([[0.0] * 4, [1.0] * 4]).double()
    generator = torch.Generator().manual_seed(seed)
    grid = torch.rand(3000, 4, dtype=torch.float64, generator=generator)
    X = grid[:3]
    for t in range(1, evaluations - 2):
        model, best = surrogate(X, f(X), 0.4)
        acquisition = LogExpectedImprovement(model, best)
        guided = (
            acquisition
            if mixture is None
            else prior_guided(acquisition, mixture.log_density, t=t, beta=4.0, bounds=bounds)
        )
        with torch.no_grad():
            X = torch.cat([X, grid[guided(grid.unsqueeze(1)).argmax()].unsqueeze(0)])
    return float(f(X).max())


def guided_by_teams(tasks: int = 12, evaluations: int = 8) -> tuple[float, float, Statement]:
    """(median regret of plain search, of guided search, what was guaranteed)."""
    mixture = DPGaussianMixture(
        2, budget=Budget(1.0, 1e-5), radius=1.0, center=[0.5] * 4, random_state=0
    )
    mixture.fit(best_settings(3000, seed=0).numpy())
    plain, guided = [], []
    for task, optimum in enumerate(best_settings(tasks, seed=1)):

        def f(X: Tensor, optimum: Tensor = optimum) -> Tensor:
            return -(X - optimum).square().sum(1, keepdim=True)

        plain.append(-searched(f, None, evaluations, task))
        guided.append(-searched(f, mixture, evaluations, task))
    return statistics.median(plain), statistics.median(guided), mixture.statement()


def candidates(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """(table `count x 40`, the three numbers behind each row)."""
    generator = torch.Generator().manual_seed(7)
    loadings = torch.randn(3, 40, dtype=torch.float64, generator=generator)
    generator.manual_seed(seed)
    hidden = torch.randn(count, 3, dtype=torch.float64, generator=generator)
    return (
        hidden @ loadings + 2.0 * torch.randn(count, 40, dtype=torch.float64, generator=generator),
        hidden,
    )


def found_in_table(
    encode: Callable[[Tensor], Tensor], length: float, evaluations: int, seed: int
) -> float:
    """The best hidden score found among 300 fresh candidates, by a GP on what `encode` makes of
    them.
    """
    table, hidden = candidates(300, seed=100 + seed)
    scores = -(hidden - torch.tensor([0.8, -0.5, 0.3]).double()).square().sum(1, keepdim=True)
    Z, taken = encode(table), [0, 1, 2]
    for _ in range(evaluations - 3):
        model, best = surrogate(Z[taken], scores[taken], length)
        with torch.no_grad():
            value = LogExpectedImprovement(model, best)(Z.unsqueeze(1))
        value[taken] = -torch.inf
        taken.append(int(value.argmax()))
    return float(scores.max() - scores[taken].max())


def embedded_table(runs: int = 20, evaluations: int = 10) -> tuple[float, float, Statement]:
    """(mean regret on the 40 columns, on three private factors, what was guaranteed)."""
    table, _ = candidates(4000, seed=0)
    analysis = DPFactorAnalysis(
        3, budget=Budget(2.0, 1e-5), radius=25.0, center=[0.0] * 40, random_state=0
    ).fit(table.numpy())
    encode = embedding(analysis)
    wide = [found_in_table(lambda x: x, 2 * 40**0.5, evaluations, run) for run in range(runs)]
    narrow = [found_in_table(encode, 2.0, evaluations, run) for run in range(runs)]
    return statistics.mean(wide), statistics.mean(narrow), analysis.statement()


def main() -> None:
    plain, guided, statement = guided_by_teams()
    print(
        f"(a) median regret after 8 evaluations: {plain:.4f} without, {guided:.4f} with what 3,000"
        " teams released privately"
    )
    wide, narrow, _ = embedded_table()
    print(
        f"(b) mean regret after 10 evaluations: {wide:.3f} on 40 columns, {narrow:.3f} on three"
        " private factors"
    )
    print(statement)


if __name__ == "__main__":
    main()
