"""The bound on the information gain against the best of all subsets."""

import itertools
import math

import pytest
import torch

from dpbo.errors import InputError
from dpbo.models import information_gain_bound, matern52, squared_exponential
from dpbo.models.information import greedy_gains

DOUBLE = torch.float64


def gain(kernel, X, noise):
    K = kernel(X).to_dense().detach()
    return 0.5 * float(torch.logdet(torch.eye(len(X), dtype=DOUBLE) + K / noise))


@pytest.mark.parametrize("noise", [1.0, 1e-2])
@pytest.mark.parametrize("kernel", [squared_exponential(0.3), matern52(0.3)], ids=["se", "matern"])
def test_never_below_the_best_multiset(kernel, noise):
    X = torch.rand(7, 1, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    for size in (1, 2, 4):
        best = max(gain(kernel, X[list(chosen)], noise) for chosen in itertools.combinations_with_replacement(range(7), size))
        greedy = sum(greedy_gains(X, kernel, noise, size))
        assert best * (1 - math.exp(-1)) - 1e-10 <= greedy <= best + 1e-10
        bound = information_gain_bound(X, kernel, noise, size)
        assert best - 1e-10 <= bound <= min(greedy / (1 - math.exp(-1)), 0.5 * size * math.log1p(1 / noise)) + 1e-10


def test_greedy_gain_is_that_of_its_points():
    X, kernel = torch.rand(20, 2, generator=torch.Generator().manual_seed(0), dtype=DOUBLE), squared_exponential(0.5)
    assert greedy_gains(X, kernel, 0.1, 1)[0] == pytest.approx(gain(kernel, X[:1], 0.1))
    assert greedy_gains(X, kernel, 0.1, 20) == sorted(greedy_gains(X, kernel, 0.1, 20), reverse=True)


def test_what_is_refused():
    with pytest.raises(InputError, match="observations"):
        information_gain_bound(torch.rand(3, 1, dtype=DOUBLE), matern52(0.3), 0.1, 0)
