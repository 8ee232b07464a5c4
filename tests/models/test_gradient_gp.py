"""GradientGP's gradient against finite differences of `posterior`, in the units of Y."""

import pytest
import torch
from botorch.models.transforms.input import Normalize
from botorch.models.transforms.outcome import ChainedOutcomeTransform, Standardize
from gpytorch.kernels import CosineKernel, MaternKernel, RBFKernel, ScaleKernel

from dpbo.errors import InputError
from dpbo.models import GradientGP
from tests.models.kernels import DOUBLE, KERNELS, Exponential

D, H = 2, 1e-4


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def model(d=D, kernel="rbf-isotropic-scaled", **settings):
    X = torch.rand(8, d, dtype=DOUBLE)
    Y = 5.0 + 3.0 * torch.sin(3.0 * X.sum(-1, keepdim=True))
    gp = GradientGP(X, Y, covar_module=KERNELS[kernel](d), **settings)
    gp.mean_module.constant = torch.tensor(0.4, dtype=DOUBLE)
    return gp.eval()


def differences(gp, X):
    """Mean and covariance of ((f(x + h e_j) - f(x - h e_j)) / 2h)_j for each row of X, from `posterior` alone."""
    q, d = X.shape
    shifts = H * torch.cat([torch.eye(d, dtype=DOUBLE), -torch.eye(d, dtype=DOUBLE)])
    around = (X.unsqueeze(1) + shifts).reshape(-1, d)
    A = torch.block_diag(*[torch.cat([torch.eye(d), -torch.eye(d)], dim=1).to(DOUBLE) / (2.0 * H)] * q)
    with torch.no_grad():
        values = gp.posterior(around)
        return (A @ values.mean).reshape(q, d), A @ values.mvn.covariance_matrix @ A.T


@pytest.mark.parametrize("kernel", ["rbf-isotropic-scaled", "matern", "poly2", "rq"])
@pytest.mark.parametrize("settings", [{"outcome_transform": None}, {"outcome_transform": Standardize(m=1)}], ids=["plain", "standardised"])
def test_against_finite_differences(kernel, settings):
    gp, X = model(kernel=kernel, **settings), torch.rand(3, D, dtype=DOUBLE)
    mean, covariance = differences(gp, X)
    posterior = gp.gradient_posterior(X)
    torch.testing.assert_close(posterior.mean, mean, rtol=1e-5, atol=1e-5)
    scale = float(covariance.abs().max())
    torch.testing.assert_close(posterior.mvn.covariance_matrix, covariance, rtol=1e-3, atol=1e-3 * scale)


def test_with_known_noise():
    X = torch.rand(8, D, dtype=DOUBLE)
    gp = GradientGP(X, X.sum(-1, keepdim=True).sin(), train_Yvar=torch.linspace(1e-3, 1e-1, 8, dtype=DOUBLE).unsqueeze(-1)).double().eval()
    at = torch.rand(2, D, dtype=DOUBLE)
    torch.testing.assert_close(gp.gradient_posterior(at).mean, differences(gp, at)[0], rtol=1e-5, atol=1e-5)


def test_batches_equal_loops():
    gp, X = model(), torch.rand(4, 3, D, dtype=DOUBLE)
    batch = gp.gradient_posterior(X)
    assert batch.mean.shape == (4, 3, D)
    for i in range(4):
        single = gp.gradient_posterior(X[i])
        torch.testing.assert_close(batch.mean[i], single.mean)
        torch.testing.assert_close(batch.mvn.covariance_matrix[i], single.mvn.covariance_matrix)
    assert batch.rsample(torch.Size([5])).shape == (5, 4, 3, D)


def test_a_batched_model_equals_a_loop():
    X, Y = torch.rand(2, 6, D, dtype=DOUBLE), torch.rand(2, 6, 1, dtype=DOUBLE)
    at = torch.rand(2, 3, D, dtype=DOUBLE)
    gp = GradientGP(X, Y).eval()
    for i in range(2):
        single = GradientGP(X[i], Y[i]).eval()
        torch.testing.assert_close(gp.gradient_posterior(at).mean[i], single.gradient_posterior(at[i]).mean)


def test_one_dimension():
    gp = model(d=1)
    X = torch.rand(3, 1, dtype=DOUBLE)
    posterior = gp.gradient_posterior(X)
    assert posterior.mean.shape == (3, 1)
    torch.testing.assert_close(posterior.mean, differences(gp, X)[0], rtol=1e-5, atol=1e-5)


def test_in_training_mode_too():
    gp, X = model(), torch.rand(3, D, dtype=DOUBLE)
    expected = gp.gradient_posterior(X).mean
    gp.train()
    torch.testing.assert_close(gp.gradient_posterior(X).mean, expected)


@pytest.mark.parametrize("kernel", [Exponential(), ScaleKernel(Exponential()), RBFKernel() + MaternKernel(nu=1.5)])
def test_a_process_without_a_gradient_is_refused(kernel):
    X = torch.rand(6, D, dtype=DOUBLE)
    gp = GradientGP(X, X.sum(-1, keepdim=True), covar_module=kernel.double())
    with pytest.raises(InputError, match="twice differentiable"):
        gp.gradient_posterior(X[:2].requires_grad_())


def test_a_kernel_that_is_not_positive_definite_is_told_by_names_that_exist():
    X = torch.rand(12, D, dtype=DOUBLE)
    gp = GradientGP(X, X.sum(-1, keepdim=True), torch.full((12, 1), 1e-6, dtype=DOUBLE), covar_module=CosineKernel().double())
    with pytest.raises(InputError, match=r"noise='too small'.*train_Yvar"):
        gp.gradient_posterior(X)


def test_what_is_refused():
    X, Y = torch.rand(6, D, dtype=DOUBLE), torch.rand(6, 1, dtype=DOUBLE) + 1.0
    with pytest.raises(InputError, match=r"\.double\(\)"):
        model().gradient_posterior(X.float())
    with pytest.raises(InputError, match="X='not finite'"):
        model().gradient_posterior(X / 0.0)
    with pytest.raises(InputError, match="num_outputs"):
        GradientGP(X, Y.expand(6, 2)).gradient_posterior(X)
    with pytest.raises(InputError, match="input_transform"):
        GradientGP(X, Y, input_transform=Normalize(d=D)).gradient_posterior(X)
    with pytest.raises(InputError, match="outcome_transform"):
        GradientGP(X, Y, outcome_transform=ChainedOutcomeTransform(s=Standardize(m=1))).gradient_posterior(X)
