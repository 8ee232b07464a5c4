"""A17, A25: processes that were forked draw noise of their own, and no global seed reaches it.

Forked workers that share a generator's state draw the same noise; two releases with it cancel to
the exact difference. The children here are forked after the parent drew, which is when a user-space
generator would repeat itself.
"""

import itertools
import multiprocessing
import random
import sys

import numpy as np
import pytest
import torch

from dpbo import Budget
from dpbo.mechanisms import GaussianMechanism
from tests.attacks.marks import attack
from tests.attacks.setups import MEAN, owner
from tests.setups import DOUBLE

pytestmark = attack("A17")
DRAWS = 20


def draws(_=None):
    """Released means of the same records, all global generators seeded: nothing differs but the
    noise.
    """
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(0)
    curator = owner(torch.zeros(4, dtype=DOUBLE), budget=Budget.gdp(1e3))
    return [curator.release(MEAN, GaussianMechanism(1.0)).value.item() for _ in range(DRAWS)]


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_workers_draw_noise_of_their_own(measured):
    parent = draws()
    with multiprocessing.get_context("fork").Pool(3) as pool:
        streams = [parent, *pool.map(draws, range(6), chunksize=2), draws()]
    assert len({tuple(stream) for stream in streams}) == len(streams)
    assert min(len(set(stream)) for stream in streams) >= DRAWS - 2
    shared = [len(set(one) & set(other)) for one, other in itertools.combinations(streams, 2)]
    assert max(shared) <= 2, (
        "values lie on a lattice, so two streams may meet by chance, once in hundreds of runs"
    )
    measured(DRAWS * len(streams))
