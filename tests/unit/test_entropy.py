"""Poisson samples of units: each is taken by itself, with exactly its rate."""

import itertools

import numpy as np
import pytest
from scipy.stats import binom, chisquare

from dpbo.entropy import bernoulli
from tests.attacks.marks import attack
from tests.contracts.mechanism_contract import LEVEL


@attack("A23")
@pytest.mark.usefixtures("seeded_noise")
def test_units_are_taken_by_themselves_and_anew():
    """Sizes are binomial, and every unit and every pair comes as often as it should."""
    samples = np.array([bernoulli(40, 0.25) for _ in range(4000)])
    sizes = np.bincount(samples.sum(1), minlength=41)
    expected = 4000 * binom(40, 0.25).pmf(np.arange(41))
    likely = expected > 5
    assert (
        chisquare(
            [*sizes[likely], sizes[~likely].sum()], [*expected[likely], expected[~likely].sum()]
        ).pvalue
        > LEVEL
    )
    assert np.abs(samples.sum(0) - 1000).max() < 6 * np.sqrt(4000 * 0.25 * 0.75)
    for i, j in itertools.combinations(range(8), 2):
        both = (samples[:, i] & samples[:, j]).sum()
        assert abs(both - 250) < 6 * np.sqrt(4000 / 16)
