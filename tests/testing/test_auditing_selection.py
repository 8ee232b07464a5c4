"""Audits of choices, of l2 noise and of sampled means at their worst-case neighbours; and a claim that is four times too small."""

import numpy as np
import pytest

from dpbo.accounting import compose
from dpbo.events import PoissonGaussianEvent
from dpbo.mechanisms import ExponentialMechanism, L2LaplaceMechanism, PermuteAndFlipMechanism
from dpbo.privacy import Sensitivity
from dpbo.testing import SeededEntropy, audit

pytestmark = pytest.mark.dpbo_audit


def choosing(mechanism, distances, seed):
    """How often the second of two candidates is chosen, when it lies so many sensitivities below the first, on either data set."""
    law = mechanism.law(Sensitivity(2.0, 2**0.5, 1.0), [2.0**-20] * 2)
    entropy = SeededEntropy(seed)

    def draw(which, count):
        levels = np.zeros(distances[which] * law.moves + 1, dtype=np.int64)
        levels[0] += 1
        levels[-1] += 1
        far = len(levels) - 1
        if far == 0:  # equal candidates: a fair coin
            return np.frombuffer(entropy(count), dtype=np.uint8) % 2
        return np.array([mechanism.choose(levels, law.rate, entropy) == far for _ in range(count)], dtype=float)

    return draw


def test_permute_and_flip_is_as_private_as_it_says_and_no_more():
    """Two candidates: from two sensitivities apart to none, the lesser one's chance grows by e^epsilon exactly."""
    found = audit(choosing(PermuteAndFlipMechanism.of(3.0), (2, 0), 1), runs=60_000, statistic=lambda x: x[:, 0], delta=0.0)
    assert 0.9 * 3.0 <= found.epsilon(0.0) <= 3.0


def test_the_exponential_mechanism_is_as_private_as_it_says_and_no_more():
    """The rarer the lesser candidate, the nearer its chance grows by e^epsilon, and the more runs it takes to see."""
    found = audit(choosing(ExponentialMechanism.of(4.0), (3, 1), 2), runs=280_000, statistic=lambda x: x[:, 0], delta=0.0)
    assert 0.9 * 4.0 <= found.epsilon(0.0) <= 4.0


def test_permute_and_flip_charged_as_exponential_is_caught():
    """Its range is 2 epsilon, so a claim of mu for range epsilon is refuted by one choice."""
    event = ExponentialMechanism.of(3.0).event()
    claim = compose([event], delta=1e-5).mu or 0.0
    found = audit(choosing(PermuteAndFlipMechanism.of(3.0), (2, 0), 3), runs=40_000, statistic=lambda x: x[:, 0])
    assert found.mu > claim
    assert (compose([PermuteAndFlipMechanism.of(3.0).event()], delta=1e-5).mu or 0.0) >= found.mu


def test_l2_noise_is_as_private_as_it_says_and_no_more():
    mechanism = L2LaplaceMechanism(1 / 4.0)
    law = mechanism.law(Sensitivity(2.0, 1.0, 1.0, (1.0, 1.0)), [2.0**-30] * 2)
    entropy = SeededEntropy(4)

    def draw(which, count):
        sums = np.array([which << 30, 0])
        return np.array([mechanism._sample(sums, [2.0**-30] * 2, law, entropy) for _ in range(count)]) * np.array(law.grid)

    found = audit(draw, runs=80_000, delta=0.0, statistic=lambda x: np.linalg.norm(x, axis=1) - np.linalg.norm(x - [1.0, 0.0], axis=1))
    assert 0.9 * 4.0 <= found.epsilon(0.0) <= 4.0


@pytest.mark.parametrize("relation", ["add-or-remove-one", "replace-one"])
def test_a_sampled_mean_is_as_private_as_it_says_and_no_more(relation):
    """In the law itself: the unit is taken with probability q, then noise; replaced, it pulls the other way."""
    rate, sigma, runs, delta = 0.3, 0.8, 3_000_000, 1e-3
    rng = np.random.default_rng(5)

    def draw(which, count):
        pull = 1.0 if which else (-1.0 if relation == "replace-one" else 0.0)
        return pull * (rng.random(count) < rate) + sigma * rng.normal(size=count)

    claim = compose([PoissonGaussianEvent(sigma, rate=rate, relation=relation)], delta=delta, refine=True).epsilon
    found = audit(draw, runs=runs, delta=delta, statistic=lambda x: x[:, 0])
    assert 0.9 * claim <= found.epsilon(delta) <= claim
