"""A11: dpbo ships no sparse vector technique; the published variants live here as targets, and the
auditor rejects each broken one.

Numbered as in Lyu, Su & Li 2017: 1 is theirs and private; 4 (Lee & Clifton) does not scale the
noise by the number c of answers; 5 (Stoddard et al.) adds no noise to the queries; 6 (Chen et al.)
neither refreshes nor stops. Each claims epsilon = 1. The attack is the published one: queries all
at the threshold that move by one, up for those that pass and down for the rest. A pattern of
answers is its event; the level is 1e-6 a target.
"""

import numpy as np
import pytest

from dpbo.testing import audit
from tests.attacks.marks import attack

pytestmark = attack("A11")
EPSILON = 1.0
RUNS = 400_000


def laplace(rng, scale, shape):
    return rng.laplace(scale=scale, size=shape) if scale else np.zeros(shape)


def answers(rng, queries, runs, *, threshold_scale, query_scale, stop):
    """1 above, 0 below, -1 after the stop: `runs x queries`."""
    rho = laplace(rng, threshold_scale, (runs, 1))
    noisy = np.asarray(queries) + laplace(rng, query_scale, (runs, len(queries)))
    above = noisy >= rho
    over = np.cumsum(above, axis=1) - above >= stop
    return np.where(over, -1, above)


PRIVATE = {"threshold_scale": 2.0 / EPSILON, "query_scale": 2 * 2.0 * 4 / EPSILON, "stop": 4}
# Settings, queries on either data set, event.
VARIANTS = {
    4: ({"threshold_scale": 4.0, "query_scale": 4.0 / 3, "stop": 4}, 8),
    5: ({"threshold_scale": 2.0, "query_scale": 0.0, "stop": 10**6}, 2),
    6: ({"threshold_scale": 2.0, "query_scale": 2.0, "stop": 10**6}, 10),
}


def pattern(length, passing):
    """Below `length - passing` times, then above."""
    return np.array([0] * (length - passing) + [1] * passing)


def pair(wanted):
    """Queries that make the pattern likelier under 1 than under 0: sensitivity 1 each."""
    return np.where(wanted == 1, -0.5, 0.5), np.where(wanted == 1, 0.5, -0.5)


def rejected(settings, wanted):
    rng = np.random.default_rng(0)
    queries = pair(wanted)

    def draw(which, count):
        told = answers(rng, queries[which], count, **settings)
        return (told == wanted).all(1).astype(float)

    return audit(draw, runs=RUNS, statistic=lambda x: x[:, 0], threshold=0.5).epsilon(0.0)


@pytest.mark.parametrize("number", VARIANTS)
def test_a_broken_variant_is_rejected(number, measured):
    settings, length = VARIANTS[number]
    wanted = pattern(length, {4: 4, 5: 1, 6: 5}[number])
    found = rejected(settings, wanted)
    assert found > EPSILON
    measured(RUNS, found)


@pytest.mark.parametrize(
    "wanted",
    [pattern(length, passing) for length, passing in ((8, 4), (2, 1))],
    ids=str,
)
def test_the_correct_one_passes_the_same_attacks(wanted, measured):
    measured(RUNS, rejected(PRIVATE, wanted), EPSILON, least=0.0)
