"""The kernel of rows known with noise: against Monte Carlo over the true rows, in FiniteGP, in
GPyTorch, and what its nugget means.
"""

from typing import Any

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from dpbo.errors import InputError
from dpbo.models import FiniteGP
from dpbo.models.fixed_kernels import matern52, squared_exponential
from dpbo.models.noisy_inputs import noisy_inputs, unprojected
from tests.setups import DOUBLE

NOISE = 1e-3


def scaled(lengthscale, outputscale):
    kernel = ScaleKernel(squared_exponential(lengthscale)).double()
    kernel.outputscale = torch.tensor(outputscale, dtype=DOUBLE)
    return kernel.requires_grad_(False)


ORIGINALS: dict[str, Any] = {
    "isotropic": (scaled(0.8, 1.7), 0.3, 2),
    "by coordinate": (
        scaled(torch.tensor([0.5, 1.0, 2.0], dtype=DOUBLE), 0.6),
        torch.tensor([0.1, 0.0, 0.7], dtype=DOUBLE),
        3,
    ),
    "variance 1": (squared_exponential(1.2), 0.5, 1),
}


@pytest.mark.parametrize("case", ORIGINALS)
def test_covariances_are_expectations_over_the_true_rows(case):
    """Cov(f_i, f_j | Z) = E k(x_i, x_j) with x_i, x_j drawn around what is known of them; five
    standard errors of 100,000 draws.
    """
    original, variance, d = ORIGINALS[case]
    Z = torch.randn(4, d, dtype=DOUBLE)
    drawn = Z + torch.as_tensor(variance, dtype=DOUBLE).sqrt() * torch.randn(
        100_000, 4, d, dtype=DOUBLE
    )
    values = original(drawn).to_dense()
    error = values.std(0) / len(values) ** 0.5
    found = noisy_inputs(original, variance, dimension=d)(Z).to_dense()
    assert bool((error < 2e-3).all()), "the draws are many enough to tell"
    assert bool(((found - values.mean(0)).abs() <= 5 * error + 1e-12).all())
    torch.testing.assert_close(found.diagonal(), original(Z, diag=True))


def test_rows_of_equal_coordinates_never_learn_more_than_they_share():
    # l^2 / leff^2 in two dimensions
    kept = 0.5
    Z = torch.tensor([[0.0, 0.0], [1e-9, 0.0]], dtype=DOUBLE)
    model = FiniteGP(Z, noisy_inputs(squared_exponential(1.0), 0.5, dimension=2), NOISE)
    for _ in range(200):
        model.observe(0, 1.0)
    assert float(model.variance[0]) < 1e-5
    assert abs(float(model.variance[1]) - (1.0 - kept**2)) < 1e-4


def test_unprojected_rows_are_the_rows_turned_with_noise_of_known_size():
    n = 200_000
    d = 2
    k = 5
    variance = 0.04
    X = torch.randn(n, d, dtype=DOUBLE)
    P = torch.randn(d, k, dtype=DOUBLE)
    exact, variances = unprojected(X @ P, P, variance)
    torch.testing.assert_close(torch.pdist(exact[:50]), torch.pdist(X[:50]))
    noisy, _ = unprojected(X @ P + variance**0.5 * torch.randn(n, k, dtype=DOUBLE), P, variance)
    covariance = (noisy - exact).T.cov()
    assert bool(((covariance.diagonal() / variances - 1).abs() < 5 * (2 / n) ** 0.5).all())
    assert abs(float(covariance[0, 1])) < 5 * float((variances.prod() / n).sqrt())


def test_what_is_refused():
    for wrong in (
        matern52(1.0),
        RBFKernel(active_dims=[0]).double(),
        RBFKernel(batch_shape=torch.Size([2])).double(),
        RBFKernel(),
    ):
        with pytest.raises(InputError, match=r"kernel|double"):
            noisy_inputs(wrong, 0.1, dimension=2)
    with pytest.raises(InputError, match="within reach of the length-scales"):
        noisy_inputs(squared_exponential(1.0), 1e300, dimension=3)
    for P in (torch.ones(3, 2, dtype=DOUBLE), torch.ones(2, 3, dtype=DOUBLE)):
        with pytest.raises(InputError, match="P="):
            unprojected(torch.ones(4, P.shape[1], dtype=DOUBLE), P, 0.1)
