"""The information gain's bound against the best of all subsets."""

import itertools
import math

import pytest
import torch

from dpbo.models.finite import greedy_gains, information_gain_bound
from dpbo.models.fixed_kernels import matern52, squared_exponential
from tests.setups import DOUBLE


def gain(kernel, X, noise):
    K = kernel(X).to_dense().detach()
    return 0.5 * float(torch.logdet(torch.eye(len(X), dtype=DOUBLE) + K / noise))


@pytest.mark.parametrize("noise", [1.0, 1e-2])
@pytest.mark.parametrize("kernel", [squared_exponential(0.3), matern52(0.3)], ids=["se", "matern"])
def test_never_below_the_best_multiset(kernel, noise):
    X = torch.rand(7, 1, dtype=DOUBLE)
    for size in (1, 2, 4):
        best = max(
            gain(kernel, X[list(chosen)], noise)
            for chosen in itertools.combinations_with_replacement(range(7), size)
        )
        greedy = sum(greedy_gains(X, kernel, noise, size))
        assert best * (1 - math.exp(-1)) - 1e-10 <= greedy <= best + 1e-10
        bound = information_gain_bound(X, kernel, noise, size)
        assert (
            best - 1e-10
            <= bound
            <= min(greedy / (1 - math.exp(-1)), 0.5 * size * math.log1p(1 / noise)) + 1e-10
        )
