"""A1, A2: what is released lies on a public grid, and its support is the same whatever the exact
value was.

Floats added to floats leave holes in the support (Mironov 2012), and keep low bits of the value
(Haney 2022). Here every release is a whole multiple of a grid that public numbers alone decide. The
contract of each law (`tests/contracts`) counts supports and trailing zeros.
"""

import dataclasses

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbo import Budget
from dpbo.mechanisms import GaussianMechanism, L2LaplaceMechanism, LaplaceMechanism
from dpbo.privacy import Sensitivity
from dpbo.testing import SeededEntropy
from tests.attacks.marks import attack
from tests.attacks.setups import MEAN, owner
from tests.setups import DOUBLE

UNIT = Sensitivity(1.0, 1.0, 1.0)
QUANTUM = 2.0**-30
KINDS = [GaussianMechanism(1.0), LaplaceMechanism(1.0), L2LaplaceMechanism(1.0)]


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
