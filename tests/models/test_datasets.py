"""The prior over data sets and candidates: positive semi-definite, a product, usable in an ExactGP."""

import math

import gpytorch
import pytest
import torch

from dpbo.errors import InputError
from dpbo.models import DataSetKernel, FiniteGP, chain, hamming, matern52, over_data_sets, squared_exponential

DOUBLE, THETA = torch.float64, 4.0


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_differences():
    data_sets = torch.tensor([[0, 1, 2], [0, 1, 2], [0, 5, 2], [7, 5, 9]])
    expected = torch.tensor([[0.0, 0, 1, 3], [0, 0, 1, 3], [1, 1, 0, 2], [3, 3, 2, 0]], dtype=DOUBLE)
    assert torch.equal(hamming(data_sets), expected)
    rows = torch.stack([data_sets, data_sets], dim=-1)
    rows[3, 0, 0] = 0  # the other column still differs
    assert torch.equal(hamming(rows), expected)
    walk = torch.tril(torch.ones(5, 5), -1)  # each data set changes one more record than the one before
    assert torch.equal(hamming(walk), chain(5))


@pytest.mark.parametrize("candidates", [squared_exponential(0.3), matern52(0.3)], ids=["se", "matern"])
@pytest.mark.parametrize("theta", [0.5, 20.0])
def test_the_product_is_positive_semi_definite_and_normalised(candidates, theta):
    differences = hamming(torch.randint(0, 3, (6, 10)))
    kernel = over_data_sets(DataSetKernel(differences, theta), candidates, 2)
    X = torch.cat([torch.arange(6.0, dtype=DOUBLE).repeat_interleave(5).unsqueeze(-1), torch.rand(30, 2, dtype=DOUBLE)], dim=-1)
    K = kernel(X).to_dense()
    assert float(torch.linalg.eigvalsh(K)[0]) > -1e-10
    torch.testing.assert_close(kernel(X, diag=True), torch.ones(30, dtype=DOUBLE))
    k1 = (-differences / theta).exp().repeat_interleave(5, 0).repeat_interleave(5, 1)
    torch.testing.assert_close(K, k1 * candidates(X[:, 1:]).to_dense())


def test_normalised_kernels():
    X = torch.tensor([[0.0, 0.0], [0.3, 0.4]], dtype=DOUBLE)
    assert float(squared_exponential(0.5)(X).to_dense()[0, 1]) == pytest.approx(math.exp(-0.5))
    a = math.sqrt(5.0)
    assert float(matern52(0.5)(X).to_dense()[0, 1]) == pytest.approx((1 + a + 5 / 3) * math.exp(-a))
    lengths = torch.tensor([0.3, 0.4], dtype=DOUBLE)
    assert float(squared_exponential(lengths)(X).to_dense()[0, 1]) == pytest.approx(math.exp(-1.0))
    assert not any(p.requires_grad for p in matern52(0.5).parameters())


def test_neighbours():
    assert DataSetKernel(chain(3), THETA).neighbours == pytest.approx(math.exp(-1 / THETA))


class Joint(gpytorch.models.ExactGP):  # type: ignore[misc]
    def __init__(self, X, Y, kernel):
        super().__init__(X, Y, gpytorch.likelihoods.GaussianLikelihood().double())
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

    def forward(self, X):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))


def test_in_an_exact_gp_a_neighbour_says_more_than_a_stranger():
    kernel = over_data_sets(DataSetKernel(chain(4), THETA), squared_exponential(0.3), 1)
    X, Y = torch.tensor([[0.0, 0.5]], dtype=DOUBLE), torch.ones(1, dtype=DOUBLE)
    model = Joint(X, Y, kernel).eval()
    at = torch.cat([torch.arange(4.0, dtype=DOUBLE).unsqueeze(-1), torch.full((4, 1), 0.5, dtype=DOUBLE)], dim=-1)
    with torch.no_grad():
        mean = model(at).mean
    torch.testing.assert_close(mean / mean[0], torch.exp(-torch.arange(4.0, dtype=DOUBLE) / THETA))


def test_what_is_refused():
    star = torch.ones(5, 5, dtype=DOUBLE) - torch.eye(5, dtype=DOUBLE)
    star[1:, 1:] *= 2.0  # fine: four data sets at one change each from the first
    DataSetKernel(star, THETA)
    k23 = torch.full((5, 5), 2.0, dtype=DOUBLE) - 2.0 * torch.eye(5, dtype=DOUBLE)
    k23[:2, 2:] = k23[2:, :2] = 1.0  # the distances in the graph K_{2,3}: no data sets have them
    for make in (
        lambda: DataSetKernel(k23, 50.0),
        lambda: DataSetKernel(-star, THETA),
        lambda: DataSetKernel(star + torch.eye(5), THETA),
        lambda: DataSetKernel(star[:2], THETA),
        lambda: DataSetKernel(star, 0.0),
        lambda: DataSetKernel(star, THETA)(torch.full((1, 1), 9.0, dtype=DOUBLE)).to_dense(),
        lambda: hamming(torch.ones(3)),
        lambda: squared_exponential(-1.0),
        lambda: squared_exponential(torch.ones(2)),
        lambda: over_data_sets(DataSetKernel(chain(2), THETA, active_dims=[0]), matern52(0.3), 1),
    ):
        with pytest.raises(InputError):
            make()


def test_over_a_finite_gp():
    """Candidates of two neighbouring data sets at once: what is seen of one is believed of the other, damped by kappa."""
    kernel, x = over_data_sets(DataSetKernel(chain(2), THETA), matern52(0.3), 1), torch.linspace(0.0, 1.0, 9, dtype=DOUBLE)
    candidates = torch.stack([torch.arange(2.0, dtype=DOUBLE).repeat_interleave(9), x.repeat(2)], dim=-1)
    model = FiniteGP(candidates, kernel, 1e-2)
    for index in (1, 5, 7):
        model.observe(index, 1.0)
    torch.testing.assert_close(model.mean[9:], math.exp(-1 / THETA) * model.mean[:9])
    torch.testing.assert_close(model.posterior(candidates.unsqueeze(-2)).mean[:, 0, 0], model.mean)
