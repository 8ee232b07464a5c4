"""Audits of each law of noise and of choice at its worst-case neighbours: nine tenths of the claim
are measured, and never more.

Outputs are drawn by the mechanisms themselves, many at a time. The claim is mu for the Gaussian,
epsilon at delta 0 for pure mechanisms and choices, and epsilon at a stated delta for sampled units.
Levels: tests/attacks/family.py. Each would fail if its mechanism drew less noise than its event
charges for, or favoured one candidate more, or if its event promised a smaller loss than its law
has.
"""

import dataclasses
import types

import numpy as np
import pytest

from dpbo.accounting import compose
from dpbo.dpsgd import hidden_runs
from dpbo.dpsgd.hidden_runs import best_of
from dpbo.entropy import bernoulli
from dpbo.events import LaplaceEvent, PoissonGaussianEvent, SelectionEvent
from dpbo.mechanisms import (
    ExponentialMechanism,
    GaussianMechanism,
    L2LaplaceMechanism,
    LaplaceMechanism,
    PermuteAndFlipMechanism,
)
from dpbo.privacy import Sensitivity
from dpbo.run_counts import FixedRuns
from dpbo.testing import SeededEntropy
from tests.attacks.family import audited, drawn
from tests.attacks.marks import attack
from tests.attacks.setups import RATES

UNIT = Sensitivity(1.0, 1.0, 1.0)
QUANTUM = 2.0**-30
pytestmark = [pytest.mark.dpbo_audit, attack("A24")]


def drawing(mechanism, seed):
    """Outputs of a mechanism on sums 0 and 1, its sensitivity apart."""
    distribution = mechanism.distribution(UNIT, [QUANTUM])
    entropy = SeededEntropy(seed)
    return lambda which, count: drawn(mechanism, distribution, [which << 30] * count, entropy)


@attack("A9")
@pytest.mark.parametrize("mu", [pytest.param(0.5, marks=pytest.mark.deep), 1.0, 3.0])
def test_the_gaussian_mechanism_is_as_private_as_it_says_and_no_more(mu, measured):
    runs = int(4 * (125 / mu) ** 2)
    found = audited(
        f"gaussian {mu:g}", drawing(GaussianMechanism(1 / mu), seed=1), runs=runs, threshold=0.5
    )
    measured(runs, found.mu, mu, least=0.9)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_the_laplace_mechanism_is_as_private_as_it_says_and_no_more(epsilon, measured):
    """The best event is all above both means: its chance under one is e^epsilon times that under
    the other.
    """
    runs = int(150_000 / epsilon)
    found = audited(
        f"laplace {epsilon:g}",
        drawing(LaplaceMechanism(1 / epsilon), seed=2),
        runs=runs,
        threshold=1.0,
    )
    measured(runs, found.epsilon(0.0), epsilon, least=0.9)


def test_l2_noise_is_as_private_as_it_says_and_no_more(measured):
    mechanism = L2LaplaceMechanism(1 / 4.0)
    entropy = SeededEntropy(4)
    one = mechanism.distribution(Sensitivity(2.0, 1.0, 1.0, (1.0, 1.0)), [QUANTUM] * 2)
    # A table of independent rows: many runs in one draw.
    distribution = dataclasses.replace(one, block=2)

    def draw(which, count):
        rows = np.tile(np.array([which << 30, 0]), count)
        return mechanism._sample(rows, [QUANTUM] * 2, distribution, entropy).reshape(
            count, 2
        ) * np.array(distribution.grid)

    def ratio(x):
        return np.linalg.norm(x, axis=1) - np.linalg.norm(x - [1.0, 0.0], axis=1)

    found = audited("l2-laplace", draw, runs=300_000, statistic=ratio, delta=0.0)
    measured(300_000, found.epsilon(0.0), 4.0, least=0.9)


@attack("A23")
@pytest.mark.parametrize(("relation", "elsewhere"), [("add-or-remove-one", 0), ("replace-one", -1)])
def test_a_sampled_mean_is_as_private_as_it_says_and_no_more(relation, elsewhere, measured):
    """The curator's own sampler decides for each of N units, one a run, whether it is in.

    A unit that is in pulls one way; removed, it does not pull, and replaced, it pulls the other
    way.
    """
    runs = 1_000_000
    delta = 0.05
    mechanism = GaussianMechanism(0.6)
    entropy = SeededEntropy(5)
    distribution = mechanism.distribution(UNIT, [QUANTUM])

    def draw(which, count):
        taken = bernoulli(count, 0.9).astype(np.int64)
        return drawn(mechanism, distribution, (elsewhere, 1)[which] * taken << 30, entropy)

    claim = compose(
        [PoissonGaussianEvent(0.6, rate=0.9, relation=relation)], delta=delta, refine=True
    ).epsilon
    found = audited(f"poisson {relation}", draw, runs=runs, delta=delta)
    measured(runs, found.epsilon(delta), claim, least=0.9)


def choosing(mechanism, distances, seed):
    """Whether the second of two candidates is chosen, when it lies so many sensitivities below the
    first, on either data set.
    """
    distribution = mechanism.distribution(Sensitivity(2.0, 2**0.5, 1.0), [2.0**-20] * 2)
    entropy = SeededEntropy(seed)

    def draw(which, count):
        far = distances[which] * distribution.moves
        levels = np.zeros(far + 1, dtype=np.int64)
        np.add.at(levels, [0, -1], 1)
        # Of equal candidates a fair coin chooses.
        if far == 0:
            return np.frombuffer(entropy(count), dtype=np.uint8) % 2
        return np.array(
            [mechanism.choose(levels, distribution.rate, entropy) == far for _ in range(count)],
            dtype=float,
        )

    return draw


@attack("A10")
def test_permute_and_flip_is_as_private_as_it_says_and_no_more(measured):
    """From two sensitivities apart to none, the lesser one's chance grows by e^epsilon exactly."""
    found = audited(
        "permute-and-flip",
        choosing(PermuteAndFlipMechanism.of(3.0), (2, 0), 1),
        runs=30_000,
        threshold=0.5,
    )
    measured(30_000, found.epsilon(0.0), 3.0, least=0.9)


@attack("A10")
@pytest.mark.deep
def test_the_exponential_mechanism_is_as_private_as_it_says_and_no_more(measured):
    """The rarer the lesser candidate, the nearer its chance grows by e^epsilon, and the more runs
    it takes to see.
    """
    found = audited(
        "exponential",
        choosing(ExponentialMechanism.of(4.0), (3, 1), 2),
        runs=350_000,
        threshold=0.5,
    )
    measured(350_000, found.epsilon(0.0), 4.0, least=0.9)


TWO = FixedRuns(2)


def best_of_two_runs(seed):
    """The released score: the higher one of two, each with Laplace noise of epsilon 1 on 0 or on
    1.
    """
    entropy = SeededEntropy(seed)
    noised = drawing(LaplaceMechanism(1.0), seed)

    def draw(which, count):
        left = iter(noised(1 - which, 2 * count).tolist())
        runs = [best_of(lambda _: (None, next(left)), RATES, TWO, entropy) for _ in range(count)]
        return -np.array([run.score for run in runs if run is not None])

    return draw


@pytest.fixture
def uncollected(monkeypatch):
    """These runs leave no garbage that a collection could make print."""
    monkeypatch.setattr(hidden_runs, "gc", types.SimpleNamespace(collect=lambda: None))


@attack("A10")
@pytest.mark.deep
@pytest.mark.usefixtures("uncollected")
def test_the_best_of_two_hidden_runs_is_as_private_as_it_says_and_no_more(measured):
    """Both runs score below where neither mean lies: e^epsilon twice. The claim is that of the
    selection's event at delta 0.
    """
    claim = compose([SelectionEvent(base=(LaplaceEvent(1.0),), run_count=TWO)], delta=0.0).epsilon
    found = audited("private selection", best_of_two_runs(4), runs=60_000, threshold=0.0)
    measured(60_000, found.epsilon(0.0), claim, least=0.9)


@attack("A10")
@pytest.mark.deep
@pytest.mark.usefixtures("uncollected")
def test_the_best_of_two_hidden_runs_that_is_charged_as_one_is_caught(measured):
    found = audited("visible runs", best_of_two_runs(5), runs=8_000, threshold=0.0)
    assert found.epsilon(0.0) > 1.0
    measured(8_000, found.epsilon(0.0))
