"""A1, A2: what is released lies on a public grid, its support and its low bits are the same
whatever the exact value was.

On a coarse grid (sigma = 4 steps) every cell that 10^5 releases should hit 30 times or more is hit
under both neighbours; floats added to floats leave holes there (Mironov 2012). At full size every
release is a whole multiple of a grid that public numbers alone decide, and trailing zeros are as
frequent for 0 as for 2^k (precision attacks: Haney 2022).
"""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpbo import Budget
from dpbo.mechanisms import GaussianMechanism, L2LaplaceMechanism, LaplaceMechanism
from dpbo.mechanisms.mechanism import AdditiveDistribution
from dpbo.privacy import Sensitivity
from dpbo.testing import SeededEntropy
from tests.attacks.marks import attack
from tests.attacks.setups import MEAN, owner
from tests.setups import DOUBLE

UNIT = Sensitivity(1.0, 1.0, 1.0)
QUANTUM = 2.0**-30
DRAWS = 100_000
# The l2-Laplace law is that of one dimension.
LAWS = {"gaussian": stats.norm.cdf, "laplace": stats.laplace.cdf, "l2-laplace": stats.laplace.cdf}
KINDS = [GaussianMechanism(1.0), LaplaceMechanism(1.0), L2LaplaceMechanism(1.0)]
NOISY = pytest.mark.parametrize("mechanism", KINDS, ids=list(LAWS))


def drawn(mechanism, law, value, draws, seed):
    """Independent releases of one number, as whole multiples of the grid."""
    many = dataclasses.replace(
        law, scale=law.scale * draws, std=law.std * draws, grid=law.grid * draws
    )
    # A table of rows of one number each.
    if isinstance(mechanism, L2LaplaceMechanism):
        many = dataclasses.replace(law, block=1)
    values = np.full(draws, value, dtype=np.int64)
    quanta = [QUANTUM] * (1 if many.block else draws)
    return mechanism._sample(values, quanta, many, SeededEntropy(seed)).reshape(-1)


@attack("A1")
@NOISY
def test_supports_of_neighbours_are_equal_at_four_grid_units(mechanism, request, measured):
    cdf = LAWS[request.node.callspec.id]
    grid = 0.25
    law = AdditiveDistribution("coarse", (1.0,), (1.0,), (grid,))
    step = round(grid / QUANTUM)
    # In quanta: less than a step of the grid, half, one, several.
    for neighbour in (1, step // 2, step, 3 * step + 7):
        seen = [
            set(drawn(mechanism, law, value, DRAWS, seed).tolist())
            for value, seed in ((0, 1), (neighbour, 2))
        ]
        shift = neighbour / step
        for centre in (0.0, shift):
            chance = {
                k: DRAWS * float(cdf((k + 0.5 - centre) * grid) - cdf((k - 0.5 - centre) * grid))
                for k in range(-80, 80)
            }
            likely = {k for k, count in chance.items() if count >= 30}
            assert len(likely) > 20
            assert likely <= (seen[0] if centre == 0.0 else seen[1])
        assert max(abs(k) for k in seen[0] ^ seen[1]) > 10, "they differ in the far tails alone"
    measured(DRAWS)


@attack("A1")
@settings(deadline=None, max_examples=40)
@given(
    st.integers(-(2**40), 2**40),
    st.integers(-(2**31), 2**31),
    st.sampled_from(KINDS),
    st.integers(0, 2**32),
)
def test_the_same_noise_moves_every_neighbour_to_the_same_residues(
    value, distance, mechanism, seed
):
    """Of any two values, with one entropy, releases differ by their distance on the grid, to one
    step: no value has holes of its own.
    """
    law = mechanism.distribution(UNIT, [QUANTUM])
    step = round(law.grid[0] / QUANTUM)
    a, b = (drawn(mechanism, law, v, 20, seed) for v in (value, value + distance))
    assert np.abs((b - a) - distance / step).max() <= 1


@attack("A2")
@NOISY
@pytest.mark.parametrize("power", [0, 10, 30, 40])
def test_trailing_zeros_are_as_frequent_for_nothing_as_for_a_power_of_two(
    mechanism, power, measured
):
    """Chi-square over how often 2^j divides the release; float addition would tell 0, whose noise
    keeps its own last bits, from 2^k.
    """
    law = mechanism.distribution(UNIT, [QUANTUM])
    draws = 40_000
    tables = []
    for value, seed in ((0, 3), (1 << power, 4)):
        k = np.abs(drawn(mechanism, law, value, draws, seed))
        zeros = np.minimum(np.log2(np.maximum(k & -k, 1)), 8).astype(int)
        tables.append(np.bincount(zeros, minlength=9))
    assert stats.chi2_contingency(np.array(tables)).pvalue > 1e-6
    expected = draws * np.array([*(2.0 ** -(j + 1) for j in range(8)), 2.0**-8])
    assert stats.chisquare(tables[1], expected).pvalue > 1e-6
    measured(draws)


@attack("A2")
def test_a_released_mean_is_a_whole_multiple_of_its_public_grid():
    """After the addition, not only before it: release x units / grid is whole, and the grid is the
    same for every data set.
    """
    for values in ([0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [1 / 3, 0.1, 0.7, 1e-9]):
        curator = owner(torch.tensor(values, dtype=DOUBLE), budget=Budget.gdp(1e4))
        for release in curator.release_all(
            [curator.evaluate(MEAN) for _ in range(50)], GaussianMechanism(1.0)
        ):
            # Scores count from the middle of their range, and there are four units.
            steps = (release.value.item() - 0.5) * 4 / 2.0**-20
            assert steps == round(steps)
            assert release.distribution.to_json()["grid"] == [2.0**-20]
