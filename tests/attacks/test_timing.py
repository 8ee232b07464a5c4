"""A3: how long a draw takes does not go with how large its noise is, nor with the value beneath it.

Draws are made a batch at a time, one vectorised pass whose work is fixed by the batch's length; a
word that leaves an outcome open (2 in 10^6) is decided by more bits whatever the value. The timing
is the machine's, so the test must not flake: rank correlation, which no slow moment sways, between
time and mean |noise| of a batch is below 6 / sqrt(N) under independence but 2 times in 10^9; of the
coin-tossing sampler that the attack was published against (Jin et al. 2022) it is near 1. Discrete
time differences that need 10^8 draws to see are not excluded: SECURITY.md names
`timing-not-observed`.
"""

import time

import numpy as np
import pytest
from scipy.stats import spearmanr

from dpbo.entropy import system_entropy
from dpbo.mechanisms import GaussianMechanism, LaplaceMechanism
from dpbo.privacy import Sensitivity
from tests.attacks.family import drawn
from tests.attacks.marks import attack

pytestmark = [attack("A3"), pytest.mark.deep]
BATCH = 4
BATCHES = 20_000
BOUND = 6 / BATCHES**0.5


def timed(draw, value):
    """(seconds, mean |noise|) of every batch."""
    for _ in range(200):
        draw(value)
    seconds = np.empty(BATCHES)
    sizes = np.empty(BATCHES)
    for i in range(BATCHES):
        start = time.perf_counter_ns()
        noise = draw(value)
        seconds[i], sizes[i] = time.perf_counter_ns() - start, np.abs(noise - value).mean()
    return seconds, sizes


def sampler(mechanism):
    distribution = mechanism.distribution(Sensitivity(1.0, 1.0, 1.0), [2.0**-30])
    return lambda value: drawn(mechanism, distribution, [value << 30] * BATCH, system_entropy)


@pytest.mark.parametrize(
    "mechanism", [GaussianMechanism(1.0), LaplaceMechanism(1.0)], ids=["gaussian", "laplace"]
)
@pytest.mark.parametrize("value", [0, 1 << 20])
def test_time_does_not_go_with_the_size_of_the_noise(mechanism, value, measured):
    correlation = abs(float(spearmanr(*timed(sampler(mechanism), value)).statistic))
    measured(BATCHES, correlation, BOUND, least=0.0)
