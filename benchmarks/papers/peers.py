"""What DP-GIBO is measured against: random search, a global GP search with qUCB or qLogNEI, TuRBO,
and noisy gradient descent.

A search maximises `objective(X) -> (Y, Yvar)` in rounds of q points. The objective is open (exact
means) or a PrivateObjective, whose values are released, so the same code serves both. A search
recommends the point of highest posterior mean among those it tried; random search, which is open
only, the best.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from botorch.acquisition import qLogNoisyExpectedImprovement, qUpperConfidenceBound
from botorch.generation import MaxPosteriorSampling
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.optim.fit import fit_gpytorch_mll_scipy
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.sampling import draw_sobol_samples, manual_seed
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.papers.dpgibo_problems import Problem, huber_gradient
from dpbo.curator.curator import Curator
from dpbo.gibo import ClippedGradient
from dpbo.mechanisms import GaussianMechanism, NoNoise
from dpbo.objective import NoiseWarning, PrivateObjective

Objective = Callable[[Tensor], tuple[Tensor, Tensor]]
Search = Callable[["Told", int, int], Tensor]
# Added to the seeds of peers, once for each purpose: the first numbers of a problem's own stream
# may be its optimum or its records.
STREAM = 1_000_000


class Told:
    """What a search has asked and been told, in unit coordinates: X `t x d`, Y and Yvar `t x 1`."""

    def __init__(self, objective: Objective, bounds: Tensor, start: Tensor) -> None:
        self._objective = objective
        self.bounds = bounds
        self.first = (start - bounds[0]) / (bounds[1] - bounds[0])
        self.X, self.Y, self.Yvar = (
            torch.zeros(0, k, dtype=torch.float64) for k in (len(start), 1, 1)
        )
        self._model: SingleTaskGP | None = None

    def ask(self, Z: Tensor) -> Tensor:
        """Values at the rows of Z, `q x d`, as `q x 1`; kept."""
        Y, Yvar = self._objective(self.outward(Z))
        self.X, self.Y, self.Yvar = (
            torch.cat([self.X, Z]),
            torch.cat([self.Y, Y]),
            torch.cat([self.Yvar, Yvar]),
        )
        return Y

    def begin(self, count: int, seed: int) -> None:
        """The start and `count - 1` Sobol points."""
        unit = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, len(self.first))
        rest = draw_sobol_samples(unit, max(count - 1, 1), 1, seed=seed).squeeze(1)
        self.ask(torch.cat([self.first.unsqueeze(0), rest])[:count])

    def model(self, since: int = 0, steps: int = 25) -> SingleTaskGP:
        """BoTorch's usual GP on what was told since then, its hyperparameters improved from where
        they were.
        """
        Y = self.Y[since:]
        noise = self.Yvar[since:].clamp_min(1e-6 * max(float(Y.var()), 1e-12))
        gp = SingleTaskGP(self.X[since:], Y, noise)
        if self._model is not None:
            gp.covar_module.load_state_dict(self._model.covar_module.state_dict())
            gp.mean_module.load_state_dict(self._model.mean_module.state_dict())
        fit_gpytorch_mll_scipy(
            ExactMarginalLogLikelihood(gp.likelihood, gp), options={"maxiter": steps}
        )
        self._model = gp.eval()
        return gp

    def best(self, gp: SingleTaskGP | None = None) -> Tensor:
        """The point tried whose posterior mean is highest, `d`, in the problem's coordinates."""
        fitted = self.model() if gp is None else gp
        with torch.no_grad():
            return self.outward(self.X[fitted.posterior(self.X).mean.argmax()])

    def outward(self, Z: Tensor) -> Tensor:
        """From the unit box to the problem's."""
        return (self.bounds[0] + Z * (self.bounds[1] - self.bounds[0])).clamp(
            self.bounds[0], self.bounds[1]
        )


def openly(
    problem: Problem,
    search: Search,
    evaluations: int,
    q: int,
    seed: int,
    truth: Problem | None = None,
) -> tuple[Tensor, list[float]]:
    """The point that a search without privacy recommends, `d`, and the loss of the best point seen
    after 1, 1 + q, 1 + 2 q, ... evaluations.

    Where the problem's values are noisy, `truth` has them without noise, and the loss is its: the
    least noisy value would flatter the search.
    """
    asked: list[Tensor] = []
    seen: list[float] = []

    def exact(X: Tensor) -> tuple[Tensor, Tensor]:
        Y = torch.tensor([[-problem.value(x)] for x in X], dtype=torch.float64)
        asked.extend(X)
        seen.extend((-Y[:, 0]).tolist())
        return Y, torch.zeros_like(Y)

    found = _run(problem, exact, search, evaluations, q, seed)
    least, at = torch.tensor(seen, dtype=torch.float64).cummin(0)
    if truth is None:
        return found, least[::q].tolist()
    return found, [truth.value(asked[i]) for i in at[::q].tolist()]


def privately(
    problem: Problem, search: Search, evaluations: int, q: int, seed: int, mu: float
) -> tuple[Tensor, Curator]:
    """The point that the same search recommends when every evaluation is released (mu-GDP in all),
    and the curator it spent.
    """
    curator = problem.curator(mu, seed)
    low, high = problem.reach
    terms: dict[str, Any] = {"score_range": (-high, -low), "evaluations": evaluations}
    with warnings.catch_warnings(action="ignore", category=NoiseWarning):
        objective = PrivateObjective(curator, lambda x, records: -problem.loss(x, records), **terms)
    return _run(problem, objective, search, evaluations, q, seed), curator


def random_search(told: Told, evaluations: int, _: int) -> Tensor:
    """The best of the start and uniform points."""
    others = torch.rand(evaluations - 1, len(told.first), dtype=torch.float64)
    values = told.ask(torch.cat([told.first.unsqueeze(0), others]))
    return told.outward(told.X[values.argmax()])


def ucb(told: Told, evaluations: int, q: int) -> Tensor:
    """Global Bayesian optimisation by the upper confidence bound, beta = 4."""
    return _global(
        told,
        evaluations,
        q,
        lambda gp, sampler: qUpperConfidenceBound(gp, beta=4.0, sampler=sampler),
    )


def log_nei(told: Told, evaluations: int, q: int) -> Tensor:
    """Global Bayesian optimisation by noisy expected improvement."""
    return _global(
        told,
        evaluations,
        q,
        lambda gp, sampler: qLogNoisyExpectedImprovement(gp, told.X, sampler=sampler),
    )


class _Region(NamedTuple):
    """TuRBO's box: its side in length-scales, and how many rounds in a row won or lost."""

    side: float = 0.8
    wins: int = 0
    losses: int = 0

    def after(self, won: bool, patience: int) -> _Region:
        """Doubled after three rounds that won, halved after `patience` that lost."""
        wins, losses = (self.wins + 1, 0) if won else (0, self.losses + 1)
        if wins == 3:
            return _Region(min(2 * self.side, 1.6))
        return _Region(self.side / 2) if losses == patience else _Region(self.side, wins, losses)


def turbo(told: Told, evaluations: int, q: int) -> Tensor:
    """One trust region with Thompson sampling (Eriksson et al. 2019), which begins afresh where it
    has shrunk to 2^-7.

    With noise, a round wins where the highest posterior mean rises.
    """
    d = len(told.first)
    since = 0
    region = _Region()
    known = -math.inf
    while len(told.X) < evaluations:
        if region.side < 2**-7:
            since = len(told.X)
            region = _Region()
            known = -math.inf
            told.ask(torch.rand(min(2 * q, evaluations - since), d, dtype=torch.float64))
            continue
        gp = told.model(since)
        with torch.no_grad():
            means = gp.posterior(told.X[since:]).mean.squeeze(1)
            top = float(means.max())
            centre = told.X[since:][means.argmax()]
            if known > -math.inf:
                region = region.after(top > known + 1e-3 * abs(known), max(4, math.ceil(d / q)))
            known = max(known, top)
            told.ask(_thompson(gp, centre, region.side, min(q, evaluations - len(told.X))))
    return told.best()


def gradient_descent(
    problem: Problem, mu: float, seed: int, iterations: int, clip: float, step: float
) -> Tensor:
    """Iterates of noisy gradient descent on the Huber loss, `iterations + 1 x d`, in the same
    accounting as DP-GIBO.

    A record's "losses" at the unit vectors are its gradient's coordinates, so the very query of
    DP-GIBO clips, sums and releases them; without noise where mu is infinite.
    """
    curator = problem.curator(mu, seed)
    d = len(problem.start)
    eye = torch.eye(d, dtype=torch.float64)
    path = [problem.start]
    mechanism = (
        GaussianMechanism(math.sqrt(iterations) / mu)
        if math.isfinite(mu)
        else NoNoise(allow_not_private=True)
    )
    for _ in range(iterations):
        query = ClippedGradient(
            lambda e, records: huber_gradient(path[-1], records) @ e, eye, weights=eye, clip=clip
        )
        path.append(path[-1] - step * curator.release(query, mechanism).value)
    return torch.stack(path)


def _run(
    problem: Problem, objective: Objective, search: Search, evaluations: int, q: int, seed: int
) -> Tensor:
    told = Told(objective, problem.bounds, problem.start)
    # No advice on stalled line searches and jitter.
    with manual_seed(STREAM + seed), warnings.catch_warnings(action="ignore"):
        if search is not random_search:
            told.begin(min(2 * q, evaluations), STREAM + seed)
        return search(told, evaluations, q)


def _global(
    told: Told,
    evaluations: int,
    q: int,
    acquisition: Callable[[SingleTaskGP, SobolQMCNormalSampler], object],
) -> Tensor:
    unit = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, len(told.first))
    while len(told.X) < evaluations:
        count = min(q, evaluations - len(told.X))
        rule = acquisition(told.model(), SobolQMCNormalSampler(torch.Size([32]), seed=len(told.X)))
        Z, _ = optimize_acqf(
            rule,
            unit,
            q=count,
            num_restarts=2,
            raw_samples=32,
            options={"maxiter": 25, "batch_limit": 2},
        )
        told.ask(Z.detach())
    return told.best()


def _thompson(
    gp: SingleTaskGP, centre: Tensor, side: float, q: int, candidates: int = 1000
) -> Tensor:
    """q points that maximise samples of the posterior within the region: a few coordinates of the
    centre moved in each, `q x d`.
    """
    d = len(centre)
    lengths = (
        gp.covar_module.lengthscale.flatten()
        if gp.covar_module.has_lengthscale
        else torch.ones(d, dtype=torch.float64)
    )
    half = side / 2 * lengths / lengths.log().mean().exp()
    low = (centre - half).clamp(0.0, 1.0)
    high = (centre + half).clamp(0.0, 1.0)
    moved = torch.rand(candidates, d, dtype=torch.float64) <= min(20.0 / d, 1.0)
    moved[torch.arange(candidates), torch.randint(d, (candidates,))] = True
    Z = torch.where(
        moved, low + (high - low) * torch.rand(candidates, d, dtype=torch.float64), centre
    )
    return MaxPosteriorSampling(gp, replacement=False)(Z, num_samples=q)
