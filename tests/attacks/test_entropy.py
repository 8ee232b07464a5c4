"""A17: processes that were forked draw noise of their own, no global seed reaches it, and a source that repeats voids the statement.

Forked workers that share a generator's state draw the same noise; two releases with it cancel to the exact difference. The children here
are forked after the parent drew, which is when a user-space generator would repeat itself.
"""

import itertools
import multiprocessing
import random
import sys
from typing import Any

import numpy as np
import pytest
import torch

from dpbo import Adjacency, Budget, Curator, PrivacyUnit
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import ClippedMean
from dpbo.testing import SeededEntropy

pytestmark = pytest.mark.attack("A17")
DRAWS = 20


def draws(entropy=None):
    """Released means of the same records: nothing differs but the noise."""
    settings: dict[str, Any] = {} if entropy is None else {"entropy": entropy}
    terms: dict[str, Any] = {"unit": PrivacyUnit("record"), "adjacency": Adjacency.REPLACE_ONE, "budget": Budget.gdp(1e3)}
    curator = Curator(torch.zeros(4, dtype=torch.float64), **terms, **settings)
    query = ClippedMean(lambda _, records: records, score_range=(0.0, 1.0))
    return [curator.release(query, GaussianMechanism(1.0)).value.item() for _ in range(DRAWS)], str(curator.statement())


def seeded_draws(_=None):
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    return draws()[0]


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_workers_draw_noise_of_their_own(measured):
    parent = seeded_draws()
    with multiprocessing.get_context("fork").Pool(3) as pool:
        streams = [parent, *pool.map(seeded_draws, range(6), chunksize=2), seeded_draws()]
    assert len({tuple(stream) for stream in streams}) == len(streams)
    assert min(len(set(stream)) for stream in streams) >= DRAWS - 2
    shared = [len(set(one) & set(other)) for one, other in itertools.combinations(streams, 2)]
    assert max(shared) <= 2, "values lie on a lattice, so two streams may meet by chance, once in hundreds of runs"
    measured(DRAWS * len(streams))


def test_a_source_that_repeats_itself_voids_the_statement():
    first, again = draws(SeededEntropy(3)), draws(SeededEntropy(3))
    assert first[0] == again[0]
    assert "can be repeated" in first[1]
    assert "can be repeated" not in draws()[1]
