"""The prior over data sets and candidates; the information gain's bound against the best of all subsets."""

import itertools
import math

import pytest
import torch

from dpbo.errors import InputError
from dpbo.models import FiniteGP
from dpbo.models.datasets import DataSetKernel, chain, hamming, matern52, over_data_sets, squared_exponential
from dpbo.models.finite import greedy_gains, information_gain_bound

DOUBLE, THETA = torch.float64, 4.0


def test_differences():
    data_sets = torch.tensor([[0, 1, 2], [0, 1, 2], [0, 5, 2], [7, 5, 9]])
    expected = torch.tensor([[0.0, 0, 1, 3], [0, 0, 1, 3], [1, 1, 0, 2], [3, 3, 2, 0]], dtype=DOUBLE)
    assert torch.equal(hamming(data_sets), expected)
    rows = torch.stack([data_sets, data_sets], dim=-1)
    rows[3, 0, 0] = 0  # the other column still differs
    assert torch.equal(hamming(rows), expected)
    walk = torch.tril(torch.ones(5, 5), -1)  # each data set changes one more record than the one before
    assert torch.equal(hamming(walk), chain(5))
    assert DataSetKernel(chain(3), THETA).neighbours == pytest.approx(math.exp(-1 / THETA))


@pytest.mark.parametrize("candidates", [squared_exponential(0.3), matern52(0.3)], ids=["se", "matern"])
def test_the_product_is_positive_semi_definite_and_normalised(candidates):
    differences = hamming(torch.randint(0, 3, (6, 10)))
    X = torch.cat([torch.arange(6.0, dtype=DOUBLE).repeat_interleave(5).unsqueeze(-1), torch.rand(30, 2, dtype=DOUBLE)], dim=-1)
    for theta in (0.5, 20.0):
        kernel = over_data_sets(DataSetKernel(differences, theta), candidates, 2)
        K = kernel(X).to_dense()
        assert float(torch.linalg.eigvalsh(K)[0]) > -1e-10
        torch.testing.assert_close(kernel(X, diag=True), torch.ones(30, dtype=DOUBLE))
        k1 = (-differences / theta).exp().repeat_interleave(5, 0).repeat_interleave(5, 1)
        torch.testing.assert_close(K, k1 * candidates(X[:, 1:]).to_dense())


def test_distances_that_no_data_sets_have_are_refused():
    star = torch.ones(5, 5, dtype=DOUBLE) - torch.eye(5, dtype=DOUBLE)
    star[1:, 1:] *= 2.0  # fine: four data sets at one change each from the first
    DataSetKernel(star, THETA)
    k23 = torch.full((5, 5), 2.0, dtype=DOUBLE) - 2.0 * torch.eye(5, dtype=DOUBLE)
    k23[:2, 2:] = k23[2:, :2] = 1.0  # the distances in the graph K_{2,3}: no data sets have them
    for differences in (k23, -star, star + torch.eye(5), star[:2]):
        with pytest.raises(InputError):
            DataSetKernel(differences, 50.0)
    with pytest.raises(InputError):
        over_data_sets(DataSetKernel(chain(2), THETA, active_dims=[0]), matern52(0.3), 1)


def test_over_a_finite_gp():
    """Candidates of two neighbouring data sets at once: what is seen of one is believed of the other, damped by kappa."""
    kernel, x = over_data_sets(DataSetKernel(chain(2), THETA), matern52(0.3), 1), torch.linspace(0.0, 1.0, 9, dtype=DOUBLE)
    candidates = torch.stack([torch.arange(2.0, dtype=DOUBLE).repeat_interleave(9), x.repeat(2)], dim=-1)
    model = FiniteGP(candidates, kernel, 1e-2)
    for index in (1, 5, 7):
        model.observe(index, 1.0)
    torch.testing.assert_close(model.mean[9:], math.exp(-1 / THETA) * model.mean[:9])
    torch.testing.assert_close(model.posterior(candidates.unsqueeze(-2)).mean[:, 0, 0], model.mean)


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
