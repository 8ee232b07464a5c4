"""Private Bayesian optimisation since 2020 beside ours: one problem, one budget for each user, the
same functions.

Each of n users has a score in [0, 1] at every candidate of a grid: a function of GP(0, k2) that all
share and one of the user's own, both of deviation 0.1 in units of the score, which is one prior
deviation below. The mean over users is to be maximised. Every method knows the kernel. One that has
a setting takes the one of least mean loss on thirty functions of other seeds; random points and
permute-and-flip have none. Loss: f* - f(recommended).

- Ours: `PrivateObjective` and GP-UCB on released means; random search on the same releases; where
  all candidates can be scored, one choice by permute-and-flip.
- Zhou & Tan 2021 (arXiv 2010.06709): each user answers once, with Laplace noise of its own, so
  nobody is trusted; GP-UCB on kernel features of these rewards, each point asked of k users, and of
  their k regressions the one of least median distance (MoMA-GP-UCB; k = 1: on all rewards).
- Dai et al. 2021 (arXiv 2110.14153): each user searches its own function by Thompson sampling; a
  trusted server clips the users' samples of the feature weights, adds them up with noise and sends
  the sum back. Without sub-sampling of users and without distributed exploration. The points that
  users evaluate are seen by nobody.
- Pavlovic, Salgia & Zhao 2025 (arXiv 2501.07046), as far as the abstract tells: points drawn
  uniformly whatever the values, and a kernel regression whose covariance is that of the uniform
  law, so that one reward moves it by O(effective dimension / n). The rest is derived here. Theirs
  protects contexts as well; here there are none.

    python -m benchmarks.papers.private_bo [--smoke] [--seed N] [--json FILE] [--runs N]
"""

import argparse
import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import options, record, table_of, with_bar
from benchmarks.papers import kusner_problems as problems
from benchmarks.papers.kusner_problems import LENGTH, REACH
from dpbo import Adjacency, Budget, Curator, PrivateObjective
from dpbo.accounting import PureFilter, calibrate
from dpbo.accounting.gdp import mu_within
from dpbo.acquisition.ucb import suggest_ucb
from dpbo.mechanisms import GaussianMechanism, PermuteAndFlipMechanism
from dpbo.models import FiniteGP
from dpbo.models.fixed_kernels import squared_exponential
from dpbo.objective import NoiseWarning
from dpbo.papers.em.point_sums import VectorSum
from dpbo.queries import CandidateScores
from dpbo.queries.ball import Ball

COUNT = 100
DELTA = 1e-5
STEPS = 20
# of a feature's own observations in federated Thompson sampling, prior deviations squared
LOCAL_NOISE = 0.01
# the best setting is chosen on functions of these seeds
OTHER_SEEDS = range(1_000_000, 1_000_030)


@dataclass(frozen=True, eq=False)
class Users:
    """Scores of each user at each candidate, `n x COUNT`, in [0, 1]; a seed for the method."""

    scores: Tensor
    seed: int

    @classmethod
    def drawn(cls, n: int, seed: int) -> "Users":
        """A function for all, and one for each user."""
        generator = torch.Generator().manual_seed(seed)
        functions = problems.draws(COUNT, n + 1, generator)
        return cls(problems.level(functions[:1] + functions[1:]), seed)

    @property
    def f(self) -> Tensor:
        """The mean over users in prior deviations, `COUNT`."""
        return in_deviations(self.scores.mean(0))

    def curator(self, epsilon: float, records: Any = None, **terms: Any) -> Curator:
        """Of these users' scores, or of other records of theirs."""
        return Curator(
            self.scores if records is None else records,
            unit="user",
            adjacency=Adjacency.REPLACE_ONE,
            allow_repeated=True,
            **{"budget": Budget(epsilon, DELTA), **terms},
        )


def in_deviations(score: Any) -> Any:
    """From units of the score to prior deviations."""
    return 2 * REACH * (score - 0.5)


@functools.cache
def features() -> Tensor:
    """F with F F' = k2 at the candidates, `COUNT x M`: those of eigenvalues above 1e-6."""
    with torch.no_grad():
        K = squared_exponential(LENGTH)(problems.grid_of(COUNT)).to_dense()
    values, vectors = torch.linalg.eigh(K)
    kept = values > 1e-6
    return vectors[:, kept] * values[kept].sqrt()


def by_released_means(users: Users, epsilon: float, beta: float) -> int:
    """GP-UCB on released means; at random points where beta is infinite."""
    objective = PrivateObjective(
        users.curator(epsilon),
        lambda x, records: records[:, problems.index_in(COUNT, x)],
        score_range=(0.0, 1.0),
        evaluations=STEPS,
        progress=False,
    )
    grid = problems.grid_of(COUNT)
    noise = (2 * REACH * float(torch.as_tensor(objective.noise_std).max())) ** 2
    model = FiniteGP(grid, squared_exponential(LENGTH), noise, capacity=STEPS)
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(users.seed))
    for t in range(STEPS):
        index = int(order[t] if math.isinf(beta) else suggest_ucb(model, lambda _: beta))
        Y, _ = objective(grid[index : index + 1])
        model.observe(index, in_deviations(float(Y)))
    return int(model.mean.argmax())


def by_a_choice(users: Users, epsilon: float, _: float) -> int:
    """Permute-and-flip on all candidates."""
    question = CandidateScores(
        lambda index, records: records[:, index], list(range(COUNT)), score_range=(0.0, 1.0)
    )
    curator = users.curator(epsilon, budget=Budget(epsilon, 0.0), accounting=PureFilter())
    return int(curator.release(question, PermuteAndFlipMechanism.of(epsilon)).value)


def by_local_noise(users: Users, epsilon: float, groups: float) -> int:
    """Zhou & Tan's: each user's reward carries Laplace(1 / epsilon), which hides a score in [0, 1].
    The noise is drawn by numpy, because no curator has a part in it.
    """
    k = int(groups)
    rng = np.random.default_rng(users.seed)
    F = features().numpy()
    noise = (2 * REACH) ** 2 * 2 / epsilon**2
    order = rng.permutation(len(users.scores))
    scores = users.scores.numpy()
    inverse = np.eye(F.shape[1]) / noise
    V = noise * np.eye(F.shape[1])
    b = np.zeros((k, F.shape[1]))
    theta = b[0]
    width = np.full(COUNT, 1.0)
    for epoch in range(len(order) // k):
        index = int(np.argmax(F @ theta + 2.0 * width))
        asked = order[epoch * k : (epoch + 1) * k]
        rewards = in_deviations(scores[asked, index] + rng.laplace(scale=1 / epsilon, size=k))
        b += rewards[:, None] * F[index]
        V += np.outer(F[index], F[index])
        moved = inverse @ F[index]
        inverse -= np.outer(moved, moved) / (1.0 + F[index] @ moved)
        each = b @ inverse
        white = each @ np.linalg.cholesky(V) if k > 1 else each
        apart = np.linalg.norm(white[:, None] - white[None], axis=2)
        theta = each[int(np.median(apart, axis=1).argmin())]
        width = np.sqrt(noise * (F @ inverse * F).sum(1).clip(0.0))
    return int(np.argmax(F @ theta))


def by_federated_sampling(users: Users, epsilon: float, clip: float) -> int:
    """Dai et al.'s: in round t a user follows its own sample with probability 1 - 1/t, and the
    server's vector otherwise.
    """
    generator = torch.Generator().manual_seed(users.seed)
    F = features()
    n, M = len(users.scores), F.shape[1]
    K = F @ F.mT
    values = in_deviations(users.scores)
    # each round's share in Gaussian differential privacy
    share = Budget.gdp(mu_within(epsilon, DELTA) / STEPS**0.5)
    asked = torch.randint(COUNT, (n, 1), generator=generator)
    total = torch.zeros(M, dtype=torch.float64)
    for t in range(1, STEPS + 1):
        # samples of each user's posterior: of the prior, moved by the residual of its observations
        prior = torch.randn(n, M, generator=generator, dtype=torch.float64)
        noise = LOCAL_NOISE**0.5 * torch.randn(n, t, generator=generator, dtype=torch.float64)
        inner = K[asked.unsqueeze(2), asked.unsqueeze(1)] + LOCAL_NOISE * torch.eye(t)
        residual = (values - prior @ F.mT).gather(1, asked) - noise
        weights = torch.cholesky_solve(residual.unsqueeze(2), torch.linalg.cholesky(inner))
        spread = torch.zeros(n, COUNT, dtype=torch.float64).scatter_add_(
            1, asked, weights.squeeze(2)
        )
        sample = prior + spread @ F
        sent = sum_of(users.curator(epsilon, sample, budget=share), VectorSum(M, ball=Ball(clip)))
        server = clip / n * sent
        total += server if t > STEPS // 2 else 0.0
        follows = torch.rand(n, generator=generator) < 1 / (t + 1)
        own = (sample @ F.mT).argmax(1)
        upcoming = torch.where(follows, (F @ server).argmax(), own)
        asked = torch.cat([asked, upcoming.unsqueeze(1)], 1)
    return int((F @ total).argmax())


def by_uniform_points(users: Users, epsilon: float, ridge: float) -> int:
    """Pavlovic et al.'s, as far as known: each user is asked at one public uniform point, and the
    sum of reward times whitened feature is one Gaussian release.
    """
    generator = torch.Generator().manual_seed(users.seed)
    F = features()
    points = torch.randint(COUNT, (len(users.scores),), generator=generator)
    covariance = F.mT @ F / COUNT
    values, vectors = torch.linalg.eigh(covariance)
    half = vectors / (values + ridge).sqrt() @ vectors.mT
    white = F @ half

    def vectors_of(records: Any) -> Tensor:
        scores, where = records
        rewards = scores.gather(1, where.unsqueeze(1)).clamp(0.0, 1.0) - 0.5
        return rewards * white[where]

    curator = users.curator(epsilon, (users.scores, points))
    ball = Ball(0.5 * float(white.norm(dim=1).max()))
    question = VectorSum(F.shape[1], ball=ball, vectors=vectors_of)
    return int((white @ sum_of(curator, question)).argmax())


def sum_of(curator: Curator, question: VectorSum) -> Tensor:
    """The noised sum of vectors in units of the ball, for the curator's whole budget."""
    mechanism = GaussianMechanism(calibrate(curator.budget, releases=1))
    return curator.release(question, mechanism).value[1:]


class Method(NamedTuple):
    """How to search, what a setting is, those tried, what is promised, score calls of each user."""

    search: Callable[[Users, float, float], int]
    setting: str
    settings: tuple[float, ...]
    promise: str
    calls: int


OURS = "PrivateObjective, GP-UCB"
CENTRAL = "(epsilon, delta), a trusted curator"
METHODS = {
    OURS: Method(by_released_means, "beta", (1.0, 4.0, 16.0, 64.0), CENTRAL, STEPS),
    "PrivateObjective, random points": Method(
        by_released_means, "beta", (math.inf,), CENTRAL, STEPS
    ),
    "permute-and-flip on all": Method(by_a_choice, "", (0.0,), "epsilon, a trusted curator", COUNT),
    "Zhou & Tan 2021": Method(
        by_local_noise,
        "k",
        (1.0, 2.0, 5.0, 20.0),
        "another: epsilon for each answer, nobody trusted",
        1,
    ),
    "Dai et al. 2021": Method(
        by_federated_sampling,
        "clip",
        # no sample is shorter than 1, and with less the release differs by a factor only
        (1.0, 3.0, 9.0, 27.0),
        "another: (epsilon, delta) for what the server sends; own points unseen",
        STEPS,
    ),
    "Pavlovic et al. 2025": Method(
        # no eigenvalue of the covariance exceeds 1, and above 100 the ridge is a factor only
        by_uniform_points,
        "ridge",
        (1e-2, 1e-1, 1.0, 10.0, 100.0),
        CENTRAL,
        1,
    ),
}


def losses(method: Method, setting: float, epsilon: float, n: int, seeds: range) -> list[float]:
    """f* - f(recommended) on the functions of these seeds."""
    found = []
    for seed in seeds:
        users = Users.drawn(n, seed)
        with warnings.catch_warnings(action="ignore", category=NoiseWarning):
            index = method.search(users, epsilon, setting)
        found.append(float(users.f.max() - users.f[index]))
    return found


def measured(name: str, n: int, epsilon: float, seeds: range, others: range) -> dict[str, Any]:
    """A method's row: the losses with the setting that is best on the other seeds' functions."""
    method = METHODS[name]
    best = method.settings[0]
    if len(method.settings) > 1:
        tried = {each: sum(losses(method, each, epsilon, n, others)) for each in method.settings}
        best = min(tried, key=tried.__getitem__)
    return {
        "n": n,
        "epsilon": epsilon,
        "method": name,
        "setting": f"{method.setting} = {best:g}" if len(method.settings) > 1 else "",
        "promise": method.promise,
        "score calls": method.calls,
        "loss": losses(method, best, epsilon, n, seeds),
    }


def by_chance(n: int, epsilon: float, seeds: range) -> dict[str, Any]:
    """The row of a random candidate: its expected loss on each function."""
    every = (Users.drawn(n, seed).f for seed in seeds)
    row = {"n": n, "epsilon": epsilon, "method": "a random candidate", "setting": ""}
    lost = [float(f.max() - f.mean()) for f in every]
    return row | {"promise": "nothing is read", "score calls": 0, "loss": lost}


def main(arguments: list[str] | None = None) -> None:
    chosen = options(__doc__, arguments, runs=60)
    torch.set_num_threads(1)
    runs, others = (2, OTHER_SEEDS[:1]) if chosen.smoke else (chosen.runs, OTHER_SEEDS)
    n, epsilon = (60 if chosen.smoke else 500), 1.0
    seeds = range(1_000 * chosen.seed, 1_000 * chosen.seed + runs)
    rows = [measured(name, n, epsilon, seeds, others) for name in with_bar(METHODS)]
    rows.append(by_chance(n, epsilon, seeds))
    told(rows, chosen)


def told(rows: list[dict[str, Any]], chosen: argparse.Namespace) -> None:
    """Print and record the rows, each with its difference to ours."""
    ours = rows[0]["loss"]
    for row in rows:
        row["minus ours"] = [a - b for a, b in zip(row["loss"], ours, strict=True)]
    print(f"{len(ours)} functions, delta = {DELTA:g}\n" + table_of(rows))
    record("private_bo", {"rows": rows}, chosen)


if __name__ == "__main__":
    main()
