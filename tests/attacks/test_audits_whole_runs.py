"""A24: whole runs through the real curator, every release of a run as one transcript, on pairs that
are worst at every step.

Exact answers differ by the declared sensitivity at every step, whatever was released before. So a
run's log-likelihood ratio is linear in its releases and exactly Gaussian: v . (e1 - e0) / sigma^2,
with e0, e1 the transcripts without noise. Its middle is the threshold, fixed before any private
run, so that all runs measure. Levels: tests/attacks/family.py. Would fail if a step were charged
for less than it leaks (noise, clip, sensitivity, slots) and, the other way, if the audit could not
have seen it.
"""

import dataclasses
import math
import types
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import binom, norm
from torch.utils.data import TensorDataset

from dpbo import DPGIBO, Adjacency, Budget, PrivateObjective, Space
from dpbo.accounting import compose
from dpbo.dpsgd import DPSGDConfig, Session, hidden_runs, plan_tuning, tune
from dpbo.dpsgd.hidden_runs import best_of
from dpbo.entropy import system_entropy
from dpbo.events import RolesEvent
from dpbo.gibo import gradient_query as gradient
from dpbo.mechanisms.additive import IndependentNoise
from dpbo.papers.em import DPGaussianMixture
from dpbo.queries import ball
from dpbo.queries.clipped import ClippedScores
from dpbo.run_counts import FixedRuns
from dpbo.testing import SeededEntropy
from tests.attacks.family import audited
from tests.attacks.marks import attack
from tests.attacks.setups import DOUBLE, EXACT, RATES, first_column, of, owner
from tests.setups import box

pytestmark = [
    attack("A24"),
    pytest.mark.filterwarnings("ignore::dpbo.objective.NoiseWarning"),
]
STEPS = 2


def dpgibo(curator, mechanism):
    """Every unit's gradient is zero but one's, a hundred clips long, which points one way or the
    other: 2 B apart.
    """
    bounds = box(1)

    def slope(x, records):
        return records[:, 0] * x[0]

    DPGIBO(
        curator,
        slope,
        bounds=bounds,
        mechanism=mechanism,
        iterations=STEPS,
        batch_size=2,
        clip=1.0,
        name="run",
    ).run()


def objective(curator, mechanism):
    """One unit's scores lie far above the range, or far below."""
    plan = PrivateObjective(
        curator,
        first_column,
        score_range=(0.0, 1.0),
        evaluations=STEPS,
        name="run",
        mechanism=mechanism,
    )
    for step in range(STEPS):
        plan(torch.full((1, 1), 0.1 * step, dtype=DOUBLE))


def mixture(curator, mechanism):
    """One record outside the ball, in directions a third of a turn apart: the worst pair of means
    and second moments.
    """
    terms = of(frame_iter=0, max_iter=STEPS, shares=(1.0, 1.0, 1.0), settle=None, random_state=0)
    DPGaussianMixture(
        1, budget=1.0, mechanism=mechanism, radius=1.0, dimension=2, name="run", **terms
    ).fit(curator)


PAIRS: dict[Any, Any] = {
    dpgibo: ([[0.0], [-100.0]], [[0.0], [100.0]]),
    objective: ([[0.5], [-1e9]], [[0.5], [1e9]]),
    mixture: (
        [[0.0, 0.0], [3.0, 0.0]],
        [[0.0, 0.0], [3 * math.cos(2 * math.pi / 3), 3 * math.sin(2 * math.pi / 3)]],
    ),
}
ALGORITHMS = pytest.mark.parametrize("algorithm", PAIRS, ids=lambda algorithm: algorithm.__name__)


class Runs:
    """Log-likelihood ratios of whole runs under a budget of mu, their middle at 0: N(-mu/2, 1) or
    N(mu/2, 1) where nothing is wrong.
    """

    def __init__(self, algorithm, mu, seed):
        self._algorithm = algorithm
        self._terms = {"budget": Budget.gdp(mu), "entropy": SeededEntropy(seed)}
        low, high = (self._transcript(which, EXACT)[0] for which in (0, 1))
        _, variances = self._transcript(0)
        self._middle = (low + high) / 2
        slopes = (high - low) / variances
        self._direction = slopes / np.sqrt((slopes**2 * variances).sum())

    def __call__(self, which, count):
        return np.array(
            [(self._transcript(which)[0] - self._middle) @ self._direction for _ in range(count)]
        )

    def _transcript(self, which, mechanism=None):
        """Every value that left, and its variance."""
        curator = owner(torch.tensor(PAIRS[self._algorithm][which], dtype=DOUBLE), **self._terms)
        self._algorithm(curator, mechanism)
        values = curator.ledger.values("run")
        assert len(values) == STEPS
        return tuple(
            np.concatenate([value[key] for value in values]) for key in ("value", "variance")
        )


def found(name, algorithm, mu, runs, seed):
    return audited(name, Runs(algorithm, mu, seed), runs=runs, threshold=0.0).mu


@pytest.mark.deep
@pytest.mark.timeout(3600)
@ALGORITHMS
def test_a_whole_run_is_as_private_as_it_says_and_no_more(algorithm, measured):
    """The claim: the budget's mu for the whole run; near 3.2 fewest runs show nine tenths."""
    measured(8000, found(algorithm.__name__, algorithm, 3.2, 8000, seed=1), 3.2, least=0.9)


TWO_STEPS = DPSGDConfig(noise_multiplier=0.5, epochs=STEPS, batches=1, batch_size=1)
# One of them has no record. The gradient of the other is a thousand clips long.
ONE_RECORD = [torch.zeros(1, 1), torch.tensor([[0.0], [1e3]])]


def trained(_, session):
    """The weight that two steps leave: minus the sum of two noised sums of clipped gradients."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    module, optimizer, loader = session.make_private(
        model, torch.optim.SGD(model.parameters(), 1.0), max_grad_norm=1.0
    )
    for (rows,) in loader:
        optimizer.zero_grad()
        module(rows).mean().backward()
        optimizer.step()
    return model


def weights(train, noise_multiplier):
    """Final weights as log-likelihood ratios: N(0, 1), or N(mu, 1) with mu = sqrt(STEPS) /
    noise_multiplier, less mu / 2.
    """
    middle = STEPS / 2
    scale = math.sqrt(STEPS) * noise_multiplier
    return lambda which, count: np.array(
        [(-train(which).weight.item() - middle) / scale for _ in range(count)]
    )


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_dpsgd_and_a_tuned_model_are_as_private_as_they_say_and_no_more(measured):
    """Of the training record, from the model alone. The claim: that of the plan's events, near 3.2
    as above.
    """
    plan = plan_tuning(
        Budget(17.6, 1e-5), TWO_STEPS, runs=1, validation=2, adjacency=Adjacency.ADD_OR_REMOVE_ONE
    )["once"]

    def session(which):
        return trained(None, Session(TensorDataset(ONE_RECORD[which]), plan.config))

    def through_tune(which):
        records = of(
            training=TensorDataset(ONE_RECORD[which]),
            validation=torch.zeros(2, 1),
            allow_repeated=True,
        )
        return tune(
            trained,
            first_column,
            space=RATES,
            parameters={"lr": 0.5},
            plan=plan,
            try_first=False,
            **records,
        ).model

    claim = math.sqrt(STEPS) / plan.config.noise_multiplier
    assert 3.0 < claim < 3.4
    for name, train in (("dp-sgd", session), ("tune", through_tune)):
        draw = weights(train, plan.config.noise_multiplier)
        measured(8000, audited(name, draw, runs=8000, threshold=0.0).mu, claim, least=0.9)


SEVERAL = [
    DPSGDConfig(epochs=STEPS, batches=1, batch_size=1),
    DPSGDConfig(epochs=STEPS, batches=2, batch_size=1),
]
PAIR = FixedRuns(2)


def of_several(budget):
    """A selection whose two runs each draw one of both configurations, and what it costs."""
    plan = plan_tuning(
        budget,
        SEVERAL,
        runs=2,
        validation=2,
        adjacency=Adjacency.ADD_OR_REMOVE_ONE,
        run_count=PAIR,
    )["selection"]
    (charge,) = plan.events
    assert isinstance(charge, RolesEvent)
    return plan.configs, compose(charge.of("training"), delta=budget.delta).epsilon


def test_the_law_of_the_best_of_runs_of_several_batch_sizes_stays_below_its_charge():
    """Without sampling: of the model's minus weight, to which each step adds noise and, where the
    sample has the record, 1. The run with the lowest wins, so that both must tell of the record.
    """
    delta = 1e-5
    configs, claim = of_several(Budget(3.0, delta))
    grid = np.linspace(-20.0, 24.0, 200_001)
    width = grid[1] - grid[0]
    laws: list[list[Any]] = [[], []]
    for config in configs:
        std = math.sqrt(config.steps) * config.noise_multiplier
        taken = np.arange(config.steps + 1)
        often = binom.pmf(taken, config.steps, config.rate)
        laws[0].append(norm.pdf(grid, 0.0, std) / len(configs))
        laws[1].append(often @ norm.pdf(grid, taken[:, None], std) / len(configs))
    winners = []
    for law in laws:
        # of runs that score higher
        better = np.cumsum(np.sum(law, axis=0)) * width
        winners.append(np.array(law) * PAIR.slope(np.clip(better, 0.0, 1.0)))

    def excess(epsilon):
        without, beside = winners
        return np.maximum(beside - math.exp(epsilon) * without, 0.0).sum() * width - delta

    assert 0.8 * claim < brentq(excess, 0.0, 20.0) < claim


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_best_of_runs_of_several_batch_sizes_is_as_private_as_it_says(measured, monkeypatch):
    """The same by true runs, which show less in so few."""
    # These runs leave no garbage that a collection could make print.
    monkeypatch.setattr(hidden_runs, "gc", types.SimpleNamespace(collect=lambda: None))
    configs, claim = of_several(Budget(5.0, 0.01))
    drawn = set()

    def draw(which, count):
        records = TensorDataset(ONE_RECORD[which])

        def work(parameters):
            config = configs[parameters["place"]]
            drawn.add(config.batches)
            return None, trained(None, Session(records, config)).weight.item()

        space = Space(place=[0, 1])
        runs = [best_of(work, space, PAIR, system_entropy) for _ in range(count)]
        return -np.array([run.score for run in runs if run is not None])

    found = audited("several configurations", draw, runs=1500, threshold=2.0)
    measured(1500, found.epsilon(0.01), claim, least=0.1)
    assert drawn == {1, 2}


@pytest.mark.deep
@ALGORITHMS
def test_noise_of_seven_tenths_is_caught(algorithm, monkeypatch, measured):
    """Power: with 0.7 of the noise, which the ledger does not see, the same audit refutes the claim
    of mu = 2.
    """
    honest = IndependentNoise.noise
    monkeypatch.setattr(
        IndependentNoise,
        "noise",
        lambda self, fractions, scale, entropy: honest(self, fractions, 0.7 * scale, entropy),
    )
    leaked = found(f"noise 0.7: {algorithm.__name__}", algorithm, 2.0, 800, seed=2)
    assert leaked > 2.0
    measured(800, leaked)


def unclipped(Z, _norm, _steps):
    """ball._whole without its clip."""
    alive = Z.isfinite().all(0)
    return torch.where(alive, Z, 0.0).round_(), alive


@pytest.mark.deep
@ALGORITHMS
def test_a_clip_that_is_dropped_is_caught(algorithm, monkeypatch, measured):
    """Power: in each algorithm's own question the clip is computed and the raw number used; the
    ledger does not see it.
    """
    # Direction and middle of the honest run.
    runs = Runs(algorithm, 1.0, seed=3)
    lattices = ClippedScores.lattices

    def widened(self, units):
        return [
            dataclasses.replace(grid, low=-(2**59), high=2**59) for grid in lattices(self, units)
        ]

    monkeypatch.setattr(
        gradient, "_clipped", lambda g, _clip, quantum, _: (g / quantum).trunc().to(torch.int64)
    )
    monkeypatch.setattr(ClippedScores, "lattices", widened)
    monkeypatch.setattr(ball, "_whole", unclipped)
    leaked = audited(f"no clip: {algorithm.__name__}", runs, runs=100, threshold=0.0).mu
    assert leaked > 1.0
    measured(100, leaked)
