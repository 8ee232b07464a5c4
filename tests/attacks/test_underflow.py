"""A14: choices among utilities 10^6 noise scales apart, far ties, and no best at all: never a failed draw, never a zero that should not be.

exp(-10^6) is 0 as a float; weights relative to the best never all vanish, and the exact law is what is drawn (diffprivlib#108).
"""

import numpy as np
import pytest
from scipy.stats import binomtest, chisquare

from dpbo.mechanisms import ExponentialMechanism, PermuteAndFlipMechanism
from dpbo.privacy import Sensitivity
from dpbo.testing import SeededEntropy

pytestmark = pytest.mark.attack("A14")
BOTH = pytest.mark.parametrize("kind", [ExponentialMechanism, PermuteAndFlipMechanism])


def choosing(kind, utilities, draws, epsilon=2.0, seed=0):
    mechanism, entropy = kind.of(epsilon), SeededEntropy(seed)
    law = mechanism.law(Sensitivity(1.0, 1.0, 1.0), [2.0**-20])
    levels = (np.asarray(utilities, dtype=float) * law.moves * law.width).astype(np.int64)  # utilities in sensitivities
    return np.array([int(mechanism._sample(levels, [2.0**-20] * len(levels), law, entropy)[0]) for _ in range(draws)])


@BOTH
@pytest.mark.parametrize("offset", [0.0, -1e6, 1e6])
def test_a_spread_of_a_million_keeps_the_law_at_the_top(kind, offset):
    """Two near the best and others 10^6 below, wherever the zero lies."""
    chosen = choosing(kind, np.array([0.0, -1.0, -1e6, -1e6, -2e6]) + offset, 4000)
    assert set(chosen.tolist()) <= {0, 1}
    share = np.exp(-1.0) / (1 + np.exp(-1.0)) if kind is ExponentialMechanism else np.exp(-1.0) / 2
    assert binomtest(int((chosen == 1).sum()), 4000, share).pvalue > 1e-6


@BOTH
def test_ties_far_from_zero_are_drawn_alike(kind):
    chosen = choosing(kind, [-1e6] * 7, 4200)
    assert chisquare(np.bincount(chosen, minlength=7)).pvalue > 1e-6


@BOTH
def test_many_far_candidates_do_not_outweigh_the_best(kind):
    """10^5 candidates 60 sensitivities below weigh 10^5 e^-60 together."""
    assert set(choosing(kind, np.concatenate([[0.0], np.full(100_000, -60.0)]), 20).tolist()) == {0}


@BOTH
def test_many_near_candidates_do(kind):
    """The other way: 10^4 candidates 3 below win together, as the law says: no weight is lost in the sum."""
    chosen = choosing(kind, np.concatenate([[0.0], np.full(10_000, -3.0)]), 400)
    assert (chosen > 0).mean() > 0.9
