"""A24: whole runs through the real curator, every release of a run as one transcript, on pairs that are worst at every step.

Exact answers differ by the declared sensitivity at every step, whatever was released before. So a run's log-likelihood ratio is linear in
its releases and exactly Gaussian: v . (e1 - e0) / sigma^2, with e0, e1 the transcripts without noise. Its middle is the threshold, fixed
before any private run, so that all runs measure. Levels: tests/attacks/family.py. Would fail if a step were charged for less than it leaks
(noise, clip, sensitivity, slots) and, the other way, if the audit could not have seen it.
"""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch.utils.data import TensorDataset

from dpbo import DPGIBO, Adjacency, Budget, Curator, PrivacyUnit, PrivateObjective, Space
from dpbo.dpsgd import DPSGDConfig, Session, plan_tuning, tune
from dpbo.gibo import gradient_query as gradient
from dpbo.mechanisms import NoNoise
from dpbo.mechanisms.additive import IndependentNoise
from dpbo.papers.em import DPGaussianMixture
from dpbo.queries import ball
from dpbo.queries.clipped import ClippedScores
from dpbo.testing import SeededEntropy
from tests.attacks.family import audited

pytestmark = [pytest.mark.attack("A24"), pytest.mark.filterwarnings("ignore::dpbo.objective.NoiseWarning")]
EXACT = NoNoise(allow_not_private=True)
STEPS = 2


def dpgibo(curator, spending):
    """Every unit's gradient is zero but one's, a hundred clips long, which points one way or the other: 2 B apart."""
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64)

    def slope(x, records):
        return records[:, 0] * x[0]

    mechanism = spending if isinstance(spending, NoNoise) else None
    DPGIBO(curator, slope, bounds=bounds, mechanism=mechanism, iterations=STEPS, batch_size=2, clip=1.0, name="run").run()


def objective(curator, spending):
    """One unit's scores lie far above the range, or far below."""
    mechanism = spending if isinstance(spending, NoNoise) else None
    plan = PrivateObjective(
        curator, lambda _, records: records[:, 0], score_range=(0.0, 1.0), evaluations=STEPS, name="run", mechanism=mechanism
    )
    for step in range(STEPS):
        plan(torch.full((1, 1), 0.1 * step, dtype=torch.float64))


def mixture(curator, spending):
    """One record outside the ball, in directions a third of a turn apart: the worst pair of means and second moments."""
    mechanism = spending if isinstance(spending, NoNoise) else None
    DPGaussianMixture(
        1, budget=1.0, mechanism=mechanism, radius=1.0, frame_iter=0, max_iter=STEPS, shares=(1.0, 1.0, 1.0), dimension=2, random_state=0,
        settle=None, name="run",
    ).fit(curator)  # fmt: skip


TURN = [math.cos(2 * math.pi / 3), math.sin(2 * math.pi / 3)]
PAIRS: dict[Any, Any] = {
    dpgibo: ([[0.0], [-100.0]], [[0.0], [100.0]]),
    objective: ([[0.5], [-1e9]], [[0.5], [1e9]]),
    mixture: ([[0.0, 0.0], [3.0, 0.0]], [[0.0, 0.0], [3 * TURN[0], 3 * TURN[1]]]),
}
ALGORITHMS = pytest.mark.parametrize("algorithm", PAIRS, ids=lambda algorithm: algorithm.__name__)
ONE_QUICK = [objective, *(pytest.param(algorithm, marks=pytest.mark.deep) for algorithm in (dpgibo, mixture))]


class Runs:
    """Log-likelihood ratios of whole runs under a budget of mu, their middle at 0: N(-mu/2, 1) or N(mu/2, 1) where nothing is wrong."""

    def __init__(self, algorithm, mu, seed):
        self._algorithm, self._mu, self._entropy = algorithm, mu, SeededEntropy(seed)
        ends = [self._transcript(which, EXACT)[0] for which in (0, 1)]
        _, variances = self._transcript(0, 1.0)
        self._middle, slopes = (ends[0] + ends[1]) / 2, (ends[1] - ends[0]) / variances
        self._direction = slopes / np.sqrt((slopes**2 * variances).sum())

    def __call__(self, which, count):
        return np.array([(self._transcript(which, 1.0)[0] - self._middle) @ self._direction for _ in range(count)])

    def _transcript(self, which, spending):
        """Every value that left, and its variance."""
        terms: dict[str, Any] = {"unit": PrivacyUnit("record"), "adjacency": Adjacency.REPLACE_ONE, "budget": Budget.gdp(self._mu)}
        curator = Curator(torch.tensor(PAIRS[self._algorithm][which], dtype=torch.float64), entropy=self._entropy, **terms)
        self._algorithm(curator, spending)
        values = curator.ledger.values("run")
        assert len(values) == STEPS
        return tuple(np.concatenate([value[key] for value in values]) for key in ("value", "variance"))


def found(name, algorithm, mu, runs, seed):
    return audited(name, Runs(algorithm, mu, seed), runs=runs, statistic=lambda ratios: ratios[:, 0], threshold=0.0).mu


@pytest.mark.deep
@pytest.mark.timeout(3600)
@ALGORITHMS
def test_a_whole_run_is_as_private_as_it_says_and_no_more(algorithm, measured):
    """The claim: the budget's mu for the whole run; near 3.2 fewest runs show nine tenths."""
    measured(8000, found(algorithm.__name__, algorithm, 3.2, 8000, seed=1), 3.2, least=0.9)


TWO_STEPS = DPSGDConfig(noise_multiplier=0.5, epochs=STEPS, batches=1, batch_size=1)
ONE_RECORD = [torch.zeros(1, 1), torch.tensor([[0.0], [1e3]])]  # under add-or-remove-one; its gradient is a thousand clips long


def trained(_, session):
    """The weight that two steps leave: minus the sum of two noised sums of clipped gradients."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    module, optimizer, loader = session.make_private(model, torch.optim.SGD(model.parameters(), 1.0), max_grad_norm=1.0)
    for (rows,) in loader:
        optimizer.zero_grad()
        module(rows).mean().backward()
        optimizer.step()
    return model


def weights(train, noise_multiplier):
    """Final weights as log-likelihood ratios: N(0, 1), or N(mu, 1) with mu = sqrt(STEPS) / noise_multiplier, less mu / 2."""
    middle, scale = STEPS / 2, math.sqrt(STEPS) * noise_multiplier
    return lambda which, count: np.array([(-train(which).weight.item() - middle) / scale for _ in range(count)])


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_dpsgd_and_a_tuned_model_are_as_private_as_they_say_and_no_more(measured):
    """Of the training record, from the model alone. The claim: that of the plan's events, near 3.2 as above."""
    plan = plan_tuning(Budget(17.6, 1e-5), TWO_STEPS, runs=1, validation=2, adjacency=Adjacency.ADD_OR_REMOVE_ONE)["once"]

    def session(which):
        return trained(None, Session(TensorDataset(ONE_RECORD[which]), plan.config))

    def through_tune(which):
        found = tune(
            trained, lambda _, rows: rows[:, 0], training=TensorDataset(ONE_RECORD[which]), validation=torch.zeros(2, 1),
            space=Space(lr=scipy.stats.uniform(0, 1)), parameters={"lr": 0.5}, plan=plan, try_first=False,
            allow_repeated=True,
        )  # fmt: skip
        return found.model

    claim = math.sqrt(STEPS) / plan.config.noise_multiplier
    assert 3.0 < claim < 3.4
    for name, train in (("dp-sgd", session), ("tune", through_tune)):
        draw = weights(train, plan.config.noise_multiplier)
        measured(8000, audited(name, draw, runs=8000, statistic=lambda ratios: ratios[:, 0], threshold=0.0).mu, claim, least=0.9)


@pytest.mark.deep
@ALGORITHMS
def test_noise_of_seven_tenths_is_caught(algorithm, monkeypatch, measured):
    """Power: with 0.7 of the noise, which the ledger does not see, the same audit refutes the claim of mu = 2."""
    honest = IndependentNoise.noise
    monkeypatch.setattr(IndependentNoise, "noise", lambda self, fractions, scale, entropy: honest(self, fractions, 0.7 * scale, entropy))
    leaked = found(f"noise 0.7: {algorithm.__name__}", algorithm, 2.0, 800, seed=2)
    assert leaked > 2.0
    measured(800, leaked)


def unclipped(Z, _norm, _steps):
    """ball._whole without its clip."""
    alive = Z.isfinite().all(0)
    return torch.where(alive, Z, 0.0).round_(), alive


@pytest.mark.parametrize("algorithm", ONE_QUICK, ids=lambda algorithm: algorithm.__name__)
def test_a_clip_that_is_dropped_is_caught(algorithm, monkeypatch, measured):
    """Power: in each algorithm's own question the clip is computed and the raw number used; the ledger does not see it."""
    runs = Runs(algorithm, 1.0, seed=3)  # direction and middle of the honest run
    lattices = ClippedScores.lattices
    wide = {"low": -(2**59), "high": 2**59}
    monkeypatch.setattr(gradient, "_clipped", lambda g, clip, quantum: (g / quantum).trunc().to(torch.int64))
    monkeypatch.setattr(
        ClippedScores, "lattices", lambda self, units: [dataclasses.replace(grid, **wide) for grid in lattices(self, units)]
    )
    monkeypatch.setattr(ball, "_whole", unclipped)
    leaked = audited(f"no clip: {algorithm.__name__}", runs, runs=100, statistic=lambda ratios: ratios[:, 0], threshold=0.0).mu
    assert leaked > 1.0
    measured(100, leaked)
