"""What `benchmarks.papers.kusner` measures on: pairs of neighbouring functions drawn from the
prior, and records that carry them.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpbo import Adjacency, Budget, Curator, PrivacyUnit
from dpbo.accounting import PureFilter
from dpbo.acquisition.ucb import kusner_beta, suggest_ucb
from dpbo.models import FiniteGP
from dpbo.models.fixed_kernels import squared_exponential
from dpbo.papers.kusner import KusnerSearch
from dpbo.records.view import PrivateView

SIDES = {100: (10, 10), 1_000: (25, 40), 10_000: (100, 100)}
LENGTH = 0.2
NOISE = 0.01
KAPPA = 0.99
DELTA = 0.1
EVALUATIONS = 30
# Gains are clipped to [-REACH, REACH], prior deviations; per-record scores in [0, 1] are f / (2
# REACH) + 1/2.
REACH = 5.0


@dataclass(frozen=True)
class Pairs:
    """GP-UCB on noisy f and on noisy f', runs x ...: functions, posterior means, observations and
    their noises; 0 is V, 1 is V'.
    """

    functions: tuple[Tensor, Tensor]
    means: tuple[Tensor, Tensor]
    observed: tuple[Tensor, Tensor]
    noises: tuple[Tensor, Tensor]

    def noise_at_best(self) -> Tensor:
        """The larger of the noises (in size) that the two best observations carry: `runs`."""
        both = [
            n.gather(1, v.argmax(1, keepdim=True)).abs()
            for v, n in zip(self.observed, self.noises, strict=True)
        ]
        return torch.cat(both, dim=1).amax(1)

    def apart(self) -> dict[str, Tensor]:
        """How far V and V' are apart in what Theorems 1, 3 and 5 (all candidates evaluated, Omega =
        0) bound.
        """
        tops = [f.amax(1) for f in self.functions]
        best = [v.amax(1) for v in self.observed]
        moved = {"1": (self.means[0] - self.means[1]).abs().amax(1)}
        return moved | {
            theorem: (mine - other).abs() for theorem, (mine, other) in (("3", best), ("5", tops))
        }


def grid_of(count: int) -> Tensor:
    """A public grid of [0, 1]^2 with `count` points."""
    return torch.cartesian_prod(
        *(torch.linspace(0, 1, side, dtype=torch.float64) for side in SIDES[count])
    )


def index_in(count: int, x: Tensor) -> int:
    """Which point of that grid x is."""
    rows, columns = SIDES[count]
    return round(float(x[0]) * (rows - 1)) * columns + round(float(x[1]) * (columns - 1))


def draws(count: int, runs: int, generator: torch.Generator) -> Tensor:
    """So many functions of GP(0, k2) on the grid, `runs x count`: the kernel is a product over the
    axes, and so is its root.
    """
    roots = []
    for side in SIDES[count]:
        axis = torch.linspace(0, 1, side, dtype=torch.float64)
        values, vectors = torch.linalg.eigh(
            (-0.5 * (axis[:, None] - axis).square() / LENGTH**2).exp()
        )
        roots.append(vectors * values.clamp_min(0).sqrt())
    white = torch.randn(runs, *SIDES[count], generator=generator, dtype=torch.float64)
    return (roots[0] @ white @ roots[1].mT).flatten(1)


def neighbours(count: int, runs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """f and f' with k1(V, V') = KAPPA."""
    first = draws(count, runs, generator)
    other = draws(count, runs, generator)
    return first, KAPPA * first + (1 - KAPPA**2) ** 0.5 * other


def searched_pairs(count: int, runs: int, generator: torch.Generator) -> Pairs:
    """Algorithm 1's search on both functions of each pair."""
    functions = neighbours(count, runs, generator)
    found = [_searched(count, f, generator) for f in functions]
    means, observed, noises = zip(*found, strict=True)
    return Pairs(functions, means, observed, noises)


def public_search(count: int) -> KusnerSearch:
    """Algorithm 1's terms on the grid, for its public design."""
    return KusnerSearch(
        lambda _x, _records: 0.0,
        grid_of(count),
        kernel=squared_exponential(LENGTH),
        noise=NOISE,
        evaluations=EVALUATIONS,
        kappa=KAPPA,
        delta=DELTA,
        value_range=(-REACH, REACH),
    )


def branch_and_bound(count: int, f: Tensor, evaluations: int) -> list[float]:
    """The values of Algorithm 2's noise-free search of f, in order."""
    search = dataclasses.replace(
        public_search(count),
        gain=lambda x, _records: float(f[index_in(count, x)]),
        evaluations=evaluations,
    )
    nobody = PrivateView.of(torch.zeros(1), PrivacyUnit("record"), units_are_public=True)
    return search.run_branch_and_bound(nobody)


def designed_means(
    count: int, functions: tuple[Tensor, Tensor], generator: torch.Generator
) -> list[Tensor]:
    """Posterior means after the public design, of noisy evaluations of both functions."""
    design = public_search(count).design()
    grid = grid_of(count)
    kernel = squared_exponential(LENGTH)
    inner = kernel(grid[design], grid[design]).to_dense()
    noise = NOISE * torch.eye(len(design), dtype=torch.float64)
    weights = torch.linalg.solve(inner + noise, kernel(grid[design], grid).to_dense())
    found = []
    for f in functions:
        white = torch.randn(len(f), len(design), generator=generator, dtype=torch.float64)
        found.append((f[:, design] + NOISE**0.5 * white) @ weights)
    return found


def _searched(
    count: int, functions: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Posterior means, observations and their noises of a search of each function, all at once."""
    model = FiniteGP(
        grid_of(count),
        squared_exponential(LENGTH),
        NOISE,
        batch_shape=functions.shape[:1],
        capacity=EVALUATIONS,
    )
    schedule = kusner_beta(count, DELTA)
    noise = NOISE**0.5 * torch.randn(
        len(functions), EVALUATIONS, generator=generator, dtype=torch.float64
    )
    observed = torch.zeros_like(noise)
    for t in range(EVALUATIONS):
        index = suggest_ucb(model, schedule)
        observed[:, t] = functions.gather(1, index.unsqueeze(1)).squeeze(1) + noise[:, t]
        model.observe(index, observed[:, t])
    return model.mean.clone(), observed, noise


def thresholds(records: int) -> Tensor:
    """Records whose 0/1 scores average to any level in [0, 1] up to 1/(2 m): record i scores 1
    where it lies below the level.
    """
    return (torch.arange(records, dtype=torch.float64) + 0.5) / records


def level(f: Tensor) -> Tensor:
    """The mean per-record score that stands for the gain f."""
    return (f / (2 * REACH) + 0.5).clamp(0, 1)


def curator_of(records: Any, budget: Budget | None = None, *, conditional: bool = False) -> Curator:
    """Of made-up or published records; by default with a budget that nothing here exhausts."""
    terms: dict[str, Any] = {
        "unit": PrivacyUnit("record"),
        "adjacency": Adjacency.REPLACE_ONE,
        "accounting": PureFilter(),
    }
    return Curator(
        records, budget=budget or Budget(1e6, 0.0), allow_conditional=conditional, **terms
    )
