"""Audits of each law of noise and of choice at its worst-case neighbours: nine tenths of the claim are measured, and never more.

Outputs are drawn by the mechanisms themselves, many at a time. The claim is mu for the Gaussian, epsilon at delta 0 for pure mechanisms and
choices, and epsilon at a stated delta for sampled units. Levels: tests/attacks/family.py. Each would fail if its mechanism drew less noise
than its event charges for, or favoured one candidate more, or if its event promised a smaller loss than its law has.
"""

import contextlib
import dataclasses

import numpy as np
import pytest
import scipy.stats
import torch

from dpbo import PrivacyUnit, Space
from dpbo.accounting import compose
from dpbo.curator.records import PrivateView
from dpbo.dpsgd import hidden_runs
from dpbo.dpsgd.hidden_runs import best_of
from dpbo.events import LaplaceEvent, PoissonGaussianEvent, SelectionEvent
from dpbo.mechanisms import ExponentialMechanism, GaussianMechanism, L2LaplaceMechanism, LaplaceMechanism, PermuteAndFlipMechanism
from dpbo.privacy import Sensitivity
from dpbo.run_counts import FixedRuns
from dpbo.testing import SeededEntropy
from tests.attacks.family import audited

UNIT, QUANTUM = Sensitivity(1.0, 1.0, 1.0), 2.0**-30
pytestmark = [pytest.mark.dpbo_audit, pytest.mark.attack("A24")]


def drawing(mechanism, seed, factor=1.0):
    """Outputs of a mechanism on sums 0 and 1, its sensitivity apart."""
    law, entropy = mechanism.distribution(UNIT, [QUANTUM]), SeededEntropy(seed)

    def draw(which, count):
        many = dataclasses.replace(law, scale=(factor * law.scale[0],) * count, grid=law.grid * count)
        return mechanism._sample(np.full(count, which << 30, dtype=np.int64), [QUANTUM] * count, many, entropy) * law.grid[0]

    return draw


def first(outputs):
    return outputs[:, 0]


@pytest.mark.attack("A9")
@pytest.mark.parametrize("mu", [pytest.param(0.5, marks=pytest.mark.deep), 1.0, 3.0])
def test_the_gaussian_mechanism_is_as_private_as_it_says_and_no_more(mu, measured):
    runs = int(4 * (125 / mu) ** 2)
    found = audited(f"gaussian {mu:g}", drawing(GaussianMechanism(1 / mu), seed=1), runs=runs, statistic=first, threshold=0.5)
    measured(runs, found.mu, mu, least=0.9)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_the_laplace_mechanism_is_as_private_as_it_says_and_no_more(epsilon, measured):
    """The best event is all above both means: its chance under one is e^epsilon times that under the other."""
    runs = int(150_000 / epsilon)
    found = audited(f"laplace {epsilon:g}", drawing(LaplaceMechanism(1 / epsilon), seed=2), runs=runs, statistic=first, threshold=1.0)
    measured(runs, found.epsilon(0.0), epsilon, least=0.9)


def test_l2_noise_is_as_private_as_it_says_and_no_more(measured):
    mechanism, epsilon, runs = L2LaplaceMechanism(1 / 4.0), 4.0, 300_000
    law = mechanism.distribution(Sensitivity(2.0, 1.0, 1.0, (1.0, 1.0)), [QUANTUM] * 2)
    law, entropy = dataclasses.replace(law, block=2), SeededEntropy(4)  # a table of independent rows: many runs in one draw

    def draw(which, count):
        rows = np.tile(np.array([which << 30, 0]), count)
        return mechanism._sample(rows, [QUANTUM] * 2, law, entropy).reshape(count, 2) * np.array(law.grid)

    def ratio(x):
        return np.linalg.norm(x, axis=1) - np.linalg.norm(x - [1.0, 0.0], axis=1)

    found = audited("l2-laplace", draw, runs=runs, statistic=ratio, delta=0.0)
    measured(runs, found.epsilon(0.0), epsilon, least=0.9)


@pytest.mark.attack("A23")
@pytest.mark.parametrize("relation", ["add-or-remove-one", "replace-one"])
def test_a_sampled_mean_is_as_private_as_it_says_and_no_more(relation, measured):
    """The curator's own sampler decides for each of N units, one a run, whether it is in; replaced, it pulls the other way when it is."""
    rate, sigma, runs, delta = 0.9, 0.6, 1_000_000, 0.05
    mechanism, entropy = GaussianMechanism(sigma), SeededEntropy(5)
    law = mechanism.distribution(UNIT, [QUANTUM])

    def draw(which, count):
        taken = np.zeros(count, dtype=np.int64)
        taken[PrivateView.of(torch.arange(count), PrivacyUnit("unit"), units_are_public=True).poisson_sample(rate).records.numpy()] = 1
        pull = 1 if which else -1 if relation == "replace-one" else 0
        many = dataclasses.replace(law, scale=law.scale * count, grid=law.grid * count)
        return mechanism._sample(pull * taken << 30, [QUANTUM] * count, many, entropy) * law.grid[0]

    claim = compose([PoissonGaussianEvent(sigma, rate=rate, relation=relation)], delta=delta, refine=True).epsilon
    found = audited(f"poisson {relation}", draw, runs=runs, statistic=first, delta=delta)
    measured(runs, found.epsilon(delta), claim, least=0.9)


@pytest.mark.parametrize("mechanism", [GaussianMechanism(1.0), LaplaceMechanism(1.0)], ids=["gaussian", "laplace"])
def test_noise_of_seven_tenths_is_caught(mechanism, measured):
    """Power: what is charged as 1 leaks 1.43, and the audit says so."""
    pure = isinstance(mechanism, LaplaceMechanism)
    draw = drawing(mechanism, seed=3, factor=0.7)
    found = audited(f"noise 0.7: {'laplace' if pure else 'gaussian'}", draw, runs=60_000, statistic=first, threshold=1.0 if pure else 0.5)
    leaked = found.epsilon(0.0) if pure else found.mu
    assert leaked > 1.15
    measured(60_000, leaked)


def choosing(mechanism, distances, seed):
    """Whether the second of two candidates is chosen, when it lies so many sensitivities below the first, on either data set."""
    law, entropy = mechanism.distribution(Sensitivity(2.0, 2**0.5, 1.0), [2.0**-20] * 2), SeededEntropy(seed)

    def draw(which, count):
        levels = np.zeros(distances[which] * law.moves + 1, dtype=np.int64)
        np.add.at(levels, [0, -1], 1)
        far = len(levels) - 1
        if far == 0:  # equal candidates: a fair coin
            return np.frombuffer(entropy(count), dtype=np.uint8) % 2
        return np.array([mechanism.choose(levels, law.rate, entropy) == far for _ in range(count)], dtype=float)

    return draw


@pytest.mark.attack("A10")
def test_permute_and_flip_is_as_private_as_it_says_and_no_more(measured):
    """From two sensitivities apart to none, the lesser one's chance grows by e^epsilon exactly."""
    found = audited("permute-and-flip", choosing(PermuteAndFlipMechanism.of(3.0), (2, 0), 1), runs=30_000, statistic=first, threshold=0.5)
    measured(30_000, found.epsilon(0.0), 3.0, least=0.9)


@pytest.mark.attack("A10")
@pytest.mark.deep
def test_the_exponential_mechanism_is_as_private_as_it_says_and_no_more(measured):
    """The rarer the lesser candidate, the nearer its chance grows by e^epsilon, and the more runs it takes to see."""
    found = audited("exponential", choosing(ExponentialMechanism.of(4.0), (3, 1), 2), runs=350_000, statistic=first, threshold=0.5)
    measured(350_000, found.epsilon(0.0), 4.0, least=0.9)


@pytest.mark.attack("A10")
def test_permute_and_flip_charged_as_exponential_is_caught(measured):
    """Its range is 2 epsilon: a claim of mu for range epsilon is refuted (opendp#2911), what dpbo charges is not."""
    claim = compose([ExponentialMechanism.of(1.5).event()], delta=1e-5).mu or 0.0
    draw = choosing(PermuteAndFlipMechanism.of(1.5), (2, 0), 3)
    found = audited("permute-and-flip as exponential", draw, runs=8000, statistic=first, threshold=0.5)
    assert found.mu > claim
    measured(8000, found.mu, compose([PermuteAndFlipMechanism.of(1.5).event()], delta=1e-5).mu, least=0.0)


def best_of_hidden_runs(law, seed):
    """The released score: the highest of the runs', each with Laplace noise of epsilon 1 on 0 or on 1."""
    mechanism, entropy, space = LaplaceMechanism(1.0), SeededEntropy(seed), Space(x=scipy.stats.uniform(0, 1))
    one = mechanism.distribution(Sensitivity(1.0, 1.0, 1.0), [2.0**-30])

    def scores(which, count):
        many = dataclasses.replace(one, scale=one.scale * count, grid=one.grid * count)
        sums = np.full(count, which << 30, dtype=np.int64)
        return iter((mechanism._sample(sums, [2.0**-30] * count, many, entropy) * one.grid[0]).tolist())

    def draw(which, count):
        left = scores(1 - which, law.runs * count)
        runs = [best_of(lambda _: (None, next(left)), space, law, entropy, threshold=None, pad_to=None) for _ in range(count)]
        return -np.array([run.score for run in runs if run is not None])

    return draw


class Untouched:
    """In place of ProcessState: the noise of all runs is drawn beforehand, and no run may find what the one before it found."""

    def __init__(self, work):
        pass

    @contextlib.contextmanager
    def first_run(self, entropy):
        yield lambda function, *arguments: function(*arguments)

    def leave(self):
        pass


@pytest.mark.attack("A10")
@pytest.mark.deep
def test_the_best_of_two_hidden_runs_is_as_private_as_it_says_and_charged_as_one_run_it_is_caught(measured, monkeypatch):
    """Both runs score below where neither mean lies: e^epsilon twice. The claim is that of the selection's event at delta 0."""
    monkeypatch.setattr(hidden_runs, "ProcessState", Untouched)
    claim = compose([SelectionEvent(base=(LaplaceEvent(1.0),), run_count=FixedRuns(2))], delta=0.0).epsilon
    found = audited("private selection", best_of_hidden_runs(FixedRuns(2), 4), runs=40_000, statistic=first, threshold=0.0)
    measured(40_000, found.epsilon(0.0), claim, least=0.9)
    found = audited("visible runs", best_of_hidden_runs(FixedRuns(2), 5), runs=8_000, statistic=first, threshold=0.0)
    assert found.epsilon(0.0) > 1.0
    measured(8_000, found.epsilon(0.0))
