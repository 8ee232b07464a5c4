"""What the modeler of `benchmarks.papers.po_gp_ucb` is given (true rows, the published transform's,
rows released with noise), and fifty searches at once: GP-UCB over these rows, and the regret after
each answer.

Sound transforms protect one row's move by a norm of at most 1, of rows with norm up to 25: one
fiftieth of the diameter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.papers.po_gp_ucb_printed import po_gp_ucb_transform
from benchmarks.papers.po_gp_ucb_problems import Problem
from dpbo import Budget, Curator, PrivacyUnit, RowChange
from dpbo.accounting import GDPFilter, PureFilter, calibrate
from dpbo.accounting.filters import Accounting
from dpbo.acquisition.ucb import SrinivasFinite, suggest_ucb
from dpbo.mechanisms import GaussianMechanism, L2LaplaceMechanism
from dpbo.mechanisms.additive import AdditiveMechanism
from dpbo.models import FiniteGP, noisy_inputs
from dpbo.models.noisy_inputs import unprojected
from dpbo.papers.po_gp_ucb import RowTable, release_rows

# delta' of Algorithm 2: half of the paper's delta_ucb.
DELTA = 0.025
SOUND = ("l2-Laplace", "Gaussian", "projection + Gaussian")
PUBLISHED = "published, NOT PRIVATE"
# Rows scaled to norm 25 may end a rounding above it.
CHANGE = RowChange(1.0, diameter=50.0 * (1 + 1e-9))


@dataclass(frozen=True, eq=False)
class Rows:
    """What a modeler holds: `Z`, `n x k`; the noise variance of each coordinate of a row in the
    coordinates of `Z` (0 if none).
    """

    Z: Tensor
    variance: float | Tensor = 0.0

    def kernel(self, problem: Problem) -> Any:
        """Of the value over these rows: the original one where they carry no noise, and in the
        paper's transform.
        """
        original = problem.kernel()
        noiseless = isinstance(self.variance, float) and self.variance == 0.0
        return (
            original
            if noiseless
            else noisy_inputs(original, self.variance, dimension=self.Z.shape[1])
        )


def published(problem: Problem, epsilon: float, r: int, generator: torch.Generator) -> Rows:
    """PO-GP-UCB's Z, turned into d coordinates where it has more columns: it has rank d, no
    distance changes, and searches are faster.
    """
    made = po_gp_ucb_transform(
        problem.X, epsilon=epsilon, delta=problem.delta, r=r, generator=generator
    )
    d = problem.X.shape[1]
    return Rows(
        made.Z if r <= d else made.Z @ torch.linalg.eigh(made.Z.mT @ made.Z).eigenvectors[:, -d:]
    )


def released(
    X: Tensor, transform: str, epsilon: float, delta: float, k: int, generator: np.random.Generator
) -> Rows:
    """A curator's release of the rows `X` by one of SOUND, charged to a ledger of its own, for one
    row that moves by a norm of at most 1.

    `k` is the number of columns of the projection, iid N(0, 1/k), drawn from `generator` and
    published with the rows.
    """
    d = X.shape[1]
    pure = transform == "l2-Laplace"
    projection = (
        torch.from_numpy(generator.standard_normal((d, k)) / k**0.5)
        if transform == "projection + Gaussian"
        else None
    )
    accounting: Accounting = PureFilter() if pure else GDPFilter()
    budget = Budget(epsilon, 0.0 if pure else delta)
    curator = Curator(
        X,
        unit=PrivacyUnit("row"),
        adjacency=CHANGE,
        budget=budget,
        accounting=accounting,
        role="candidate",
    )
    law: type[AdditiveMechanism] = L2LaplaceMechanism if pure else GaussianMechanism
    mechanism = law(calibrate(budget, releases=1, accounting=accounting, event=law.kind))
    table = RowTable((0.0,) * d, CHANGE.diameter / 2, row_change=CHANGE, projection=projection)
    sent = release_rows(curator, table, mechanism)
    return (
        Rows(sent.Z, sent.variance)
        if projection is None
        else Rows(*unprojected(sent.Z, projection, sent.variance))
    )


@dataclass(frozen=True, eq=False)
class Experiment:
    """A problem searched `runs` times. Each method sees the same functions, first rows and answers'
    noise, so that differences pair.

    One random row is answered before the T that GP-UCB chooses; every method asks a row once.
    """

    problem: Problem
    runs: int
    seed: int

    def non_private(self) -> Tensor:
        """On the true rows: simple regrets, `runs x (T + 1)`."""
        return self._over([Rows(self.problem.X)] * self.runs)

    def random(self) -> Tensor:
        """Rows in random order."""
        scores = torch.rand(self.runs, len(self.problem.X), generator=self._generator(2))
        scores.scatter_(1, self._starts().unsqueeze(1), 2.0)
        return _regrets(self._values(), scores.topk(self.problem.steps + 1).indices)

    def published(self, epsilon: float, r: int) -> Tensor:
        """On the paper's transform, with the original kernel; a fresh projection for each run."""
        generator = self._generator(3)
        return self._over(
            [published(self.problem, epsilon, r, generator) for _ in range(self.runs)]
        )

    def sound(
        self, transform: str, epsilon: float, *, kernel: Callable[[Rows], Any] | None = None
    ) -> Tensor:
        """On rows released with noise, with the kernel of rows known with noise unless another is
        given; a fresh release for each run.
        """
        problem = self.problem
        generator = np.random.default_rng(self.seed)
        release = [
            released(problem.X, transform, epsilon, problem.delta, problem.r, generator)
            for _ in range(self.runs)
        ]
        return self._over(release, kernel=kernel)

    def _over(self, rows: list[Rows], *, kernel: Callable[[Rows], Any] | None = None) -> Tensor:
        """A search of each run's own rows, by the kernel of rows known with noise unless another is
        given.
        """
        values = self._values()
        noise = self.problem.answers**0.5 * torch.randn(
            self.runs, self.problem.steps + 1, generator=self._generator(1), dtype=torch.float64
        )
        parts = [slice(run, run + 1) for run in range(self.runs)]
        # one kernel for all runs, unless each has a projection of its own
        if isinstance(rows[0].variance, float):
            parts = [slice(self.runs)]
        asked = []
        for runs in parts:
            some = rows[runs]
            shared = all(own is some[0] for own in some)
            asked.append(
                self._searched(
                    some[0].Z if shared else torch.stack([own.Z for own in some]),
                    some[0].kernel(self.problem) if kernel is None else kernel(some[0]),
                    self._starts()[runs],
                    values[runs],
                    noise[runs],
                )
            )
        return _regrets(values, torch.cat(asked))

    def _searched(
        self, Z: Tensor, kernel: Any, index: Tensor, values: Tensor, noise: Tensor
    ) -> Tensor:
        """Indices of the rows that each run asks, in their order, `runs x (T + 1)`; Z is `n x k` or
        `runs x n x k`, values are `runs x n`, their noises `runs x (T + 1)`.
        """
        steps = self.problem.steps
        model = FiniteGP(Z, kernel, self.problem.noise, batch_shape=index.shape, capacity=steps + 1)
        schedule = SrinivasFinite(count=Z.shape[-2], delta=DELTA)
        asked = index.unsqueeze(1)
        for t in range(steps):
            last = asked[:, -1:]
            model.observe(last.squeeze(1), values.gather(1, last).squeeze(1) + noise[:, t])
            index = suggest_ucb(model, schedule, exclude=asked)
            asked = torch.cat([asked, index.unsqueeze(1)], dim=1)
        return asked

    def _values(self) -> Tensor:
        return self.problem.values.expand(self.runs, -1)

    def _starts(self) -> Tensor:
        return torch.randint(len(self.problem.X), (self.runs,), generator=self._generator(0))

    def _generator(self, stream: int) -> torch.Generator:
        return torch.Generator().manual_seed(10 * self.seed + stream)


def summary(regrets: Tensor, baseline: Tensor | None = None) -> Sequence[float]:
    """At T: mean, its standard error, quartiles; then the mean difference to a baseline and its
    standard error, by run.
    """
    last = regrets[:, -1]
    found = [
        float(last.mean()),
        _error(last),
        *(float(last.quantile(q)) for q in (0.25, 0.5, 0.75)),
    ]
    if baseline is None:
        return found
    apart = last - baseline[:, -1]
    return [*found, float(apart.mean()), _error(apart)]


def _regrets(values: Tensor, asked: Tensor) -> Tensor:
    """Of values `runs x n` at indices `runs x (T + 1)`: what the best so far falls short of the
    best there is.
    """
    return values.amax(1, keepdim=True) - values.gather(1, asked).cummax(1).values


def _error(numbers: Tensor) -> float:
    return float(numbers.std() / len(numbers) ** 0.5)
