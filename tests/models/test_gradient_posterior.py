"""The posterior gradient against autograd of the posterior mean, and the growing factor against a fresh one."""

import pytest
import torch
from gpytorch.kernels import RBFKernel

from dpbo.errors import InputError
from dpbo.models import GradientPosterior
from tests.models.kernels import DOUBLE, KERNELS, dense

D = 3
NOISE = 1e-3
devices = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"))]
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def observed(kernel, X, noise=NOISE, **settings):
    posterior = GradientPosterior(kernel, noise, **settings)
    posterior.append(X)
    return posterior


def noisy(kernel, X, noise=NOISE, jitter=1e-6):
    K = dense(kernel, X, X)
    return K + torch.diag(noise + jitter * K.diagonal())


@pytest.mark.parametrize("name", KERNELS)
def test_weights_give_the_slope_of_the_posterior_mean(name):
    kernel, theta = KERNELS[name](D), torch.randn(D, dtype=DOUBLE)
    X, y, mean = torch.randn(7, D, dtype=DOUBLE), torch.randn(7, dtype=DOUBLE), 0.3
    posterior = observed(kernel, X, mean=mean)
    solved = torch.linalg.solve(noisy(kernel, X), y - mean)
    x = theta.clone().requires_grad_()
    (slope,) = torch.autograd.grad(mean + kernel(x.unsqueeze(0), X).to_dense().squeeze(0) @ solved, x)
    torch.testing.assert_close(posterior.weights(theta) @ (y - posterior.mean), slope, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", KERNELS)
def test_covariance_is_prior_less_explained(name):
    kernel, theta, X = KERNELS[name](D), torch.randn(D, dtype=DOUBLE), torch.randn(7, D, dtype=DOUBLE)
    posterior = observed(kernel, X)
    G = posterior.derivatives.gradient(theta, X)
    expected = posterior.derivatives.prior(theta) - G @ torch.linalg.solve(noisy(kernel, X), G.mT)
    torch.testing.assert_close(posterior.covariance(theta), expected, rtol=1e-9, atol=1e-9)


def test_an_empty_history_is_the_prior():
    kernel, theta = KERNELS["matern"](D), torch.randn(D, dtype=DOUBLE)
    posterior = GradientPosterior(kernel, NOISE)
    assert len(posterior) == 0
    assert posterior.weights(theta).shape == (D, 0)
    torch.testing.assert_close(posterior.covariance(theta), posterior.derivatives.prior(theta))


def test_an_appended_factor_is_a_fresh_one():
    kernel, X = KERNELS["rbf"](10), 0.2 * torch.randn(330, 10, dtype=DOUBLE)
    theta = torch.zeros(10, dtype=DOUBLE)
    grown = GradientPosterior(kernel, 0.0)
    for part in X.split(11):
        grown.append(part)
    fresh = observed(kernel, X, noise=0.0)
    torch.testing.assert_close(grown.factor(X) @ grown.factor(X).mT, noisy(kernel, X, noise=0.0), rtol=0.0, atol=1e-12)
    torch.testing.assert_close(grown.weights(theta), fresh.weights(theta), rtol=1e-6, atol=1e-6 * float(fresh.weights(theta).abs().max()))


def test_a_factor_that_has_drifted_is_made_afresh():
    kernel, X = KERNELS["rbf"](D), torch.randn(12, D, dtype=DOUBLE)
    posterior = observed(kernel, X[:8])
    posterior._factor._L[3, 1] += 1e-9
    assert posterior._factor.drift() > 1e-13
    posterior.append(X[8:])
    torch.testing.assert_close(posterior.factor(X), torch.linalg.cholesky(noisy(kernel, X)), rtol=0.0, atol=1e-12)


def test_coincident_points_are_only_noise_apart():
    kernel, x, theta = KERNELS["rbf"](D), torch.randn(1, D, dtype=DOUBLE), torch.randn(D, dtype=DOUBLE)
    twice = observed(kernel, x.expand(2, D), noise=1e-2, jitter=1e-12)
    once = observed(kernel, x, noise=0.5e-2, jitter=1e-12)
    torch.testing.assert_close(twice.covariance(theta), once.covariance(theta), rtol=1e-9, atol=1e-9)


def test_polynomials_beyond_their_rank():
    """21 points determine a quadratic in 5 dimensions; 60 must still give its gradient, to the jitter."""
    kernel, X, theta = KERNELS["poly2"](5), torch.randn(60, 5, dtype=DOUBLE), torch.randn(5, dtype=DOUBLE)
    posterior = GradientPosterior(kernel, 0.0)
    for part in X.split(3):
        posterior.append(part)
    A, c = torch.randn(5, 5, dtype=DOUBLE), torch.randn(5, dtype=DOUBLE)
    y = (X @ A * X).sum(-1) + X @ c + 0.5
    torch.testing.assert_close(posterior.weights(theta) @ y, (A + A.mT) @ theta + c, rtol=1e-4, atol=1e-4)
    assert float(posterior.covariance(theta).trace()) < 1e-4


@pytest.mark.parametrize("name", ["rbf", "matern-scaled", "poly2", "rq"])
def test_a_batch_of_runs_equals_a_loop(name):
    kernel, X, theta = KERNELS[name](D), torch.randn(2, 9, D, dtype=DOUBLE), torch.randn(2, D, dtype=DOUBLE)
    batch = GradientPosterior(kernel, NOISE)
    batch.append(X[:, :4])
    batch.append(X[:, 4:])
    assert batch.batch_shape == (2,)
    for run in range(2):
        single = observed(kernel, X[run])
        torch.testing.assert_close(batch.weights(theta)[run], single.weights(theta[run]), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(batch.covariance(theta)[run], single.covariance(theta[run]), rtol=1e-9, atol=1e-9)


def test_conditioning_leaves_the_original_alone():
    kernel, X, theta = KERNELS["rbf"](D), torch.randn(6, D, dtype=DOUBLE), torch.randn(D, dtype=DOUBLE)
    posterior = observed(kernel, X[:4])
    before = posterior.weights(theta)
    more = posterior.conditioned_on(X[4:])
    assert (len(posterior), len(more)) == (4, 6)
    assert torch.equal(posterior.weights(theta), before)
    torch.testing.assert_close(more.weights(theta), observed(kernel, X).weights(theta))
    posterior.append(X[:1])
    assert torch.equal(more.points(theta), X)


def test_no_points_change_nothing():
    posterior, none = GradientPosterior(KERNELS["rbf"](D), NOISE), torch.empty(0, D, dtype=DOUBLE)
    posterior.append(none)
    assert len(posterior) == 0
    posterior.append(torch.randn(2, D, dtype=DOUBLE))
    posterior.append(none)
    assert len(posterior) == 2


def test_storage_grows_beyond_its_block():
    kernel, X = KERNELS["rbf"](D), torch.randn(300, D, dtype=DOUBLE)
    posterior = GradientPosterior(kernel, 0.1)
    for part in X.split(70):
        posterior.append(part)
    assert torch.equal(posterior.points(X), X)
    torch.testing.assert_close(posterior.factor(X), torch.linalg.cholesky(noisy(kernel, X, noise=0.1)), rtol=0.0, atol=1e-10)


@devices
def test_on_each_device(device):
    kernel, X, theta = KERNELS["matern"](D), torch.randn(7, D, dtype=DOUBLE), torch.randn(D, dtype=DOUBLE)
    expected = observed(kernel, X).weights(theta)
    there = observed(kernel.to(device), X.to(device))
    torch.testing.assert_close(there.weights(theta.to(device)).cpu(), expected, rtol=1e-9, atol=1e-9)


def test_what_is_refused():
    kernel, X = KERNELS["rbf"](D), torch.randn(4, D, dtype=DOUBLE)
    with pytest.raises(InputError, match="noise"):
        GradientPosterior(kernel, -1.0)
    with pytest.raises(InputError, match="jitter"):
        GradientPosterior(kernel, 0.0, jitter=0.0)
    with pytest.raises(InputError, match=r"\.double\(\)"):
        GradientPosterior(RBFKernel(), 0.0)
    posterior = observed(kernel, X)
    with pytest.raises(InputError, match=r"\.double\(\)"):
        posterior.append(X.float())
    with pytest.raises(InputError, match=r"\.double\(\)"):
        posterior.weights(X[0].float())
    for wild in (float("nan"), float("inf")):
        for ask in (posterior.weights, posterior.covariance, GradientPosterior(kernel, 0.0).weights):
            with pytest.raises(InputError, match="theta='not finite'"):
                ask(X[0] * wild)
        with pytest.raises(InputError, match="mean="):
            GradientPosterior(kernel, 0.0, mean=wild)
    with pytest.raises(InputError, match="as the points before"):
        posterior.append(X[:, :2])
    with pytest.raises(InputError, match="finite"):
        posterior.append(X * float("nan"))
    assert len(posterior) == 4


def test_a_jitter_below_rounding_is_refused():
    posterior = GradientPosterior(KERNELS["rbf"](D), 0.0, jitter=1e-18)
    with pytest.raises(InputError, match="jitter"):
        posterior.append(torch.zeros(3, D, dtype=DOUBLE))
    assert len(posterior) == 0
