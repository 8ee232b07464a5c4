"""The posterior gradient against autograd of the posterior mean."""

import itertools
import math

import pytest
import torch

from dpbo.errors import InputError, UsageError
from dpbo.gibo import GradientPosterior
from tests.setups import DOUBLE
from tests.unit.models.kernels import KERNELS, batched, dense

D = 3
NOISE = 1e-3


def observed(kernel, X, noise=NOISE, **settings):
    posterior = GradientPosterior(kernel, noise, **settings)
    posterior.append(X)
    return posterior


def noisy(kernel, X, noise=NOISE, jitter=1e-6):
    K = dense(kernel, X, X)
    return K + torch.diag(noise + jitter * K.diagonal())


@pytest.mark.parametrize("name", KERNELS)
def test_weights_give_the_slope_of_the_mean_and_covariance_what_is_left(name):
    kernel = KERNELS[name](D)
    theta = torch.randn(D, dtype=DOUBLE)
    mean = 0.3
    X = torch.randn(7, D, dtype=DOUBLE)
    y = torch.randn(7, dtype=DOUBLE)
    posterior = observed(kernel, X, mean=mean)
    K = noisy(kernel, X)
    x = theta.clone().requires_grad_()
    (slope,) = torch.autograd.grad(
        mean + kernel(x.unsqueeze(0), X).to_dense().squeeze(0) @ torch.linalg.solve(K, y - mean), x
    )
    torch.testing.assert_close(
        posterior.weights(theta) @ (y - posterior.mean), slope, rtol=1e-9, atol=1e-9
    )
    G = posterior.derivatives.gradient(theta, X)
    expected = posterior.derivatives.prior(theta) - G @ torch.linalg.solve(K, G.mT)
    torch.testing.assert_close(posterior.covariance(theta), expected, rtol=1e-9, atol=1e-9)


def test_a_batch_of_runs_equals_a_loop():
    X = torch.randn(2, 3, 9, D, dtype=DOUBLE)
    thetas = torch.randn(2, 3, D, dtype=DOUBLE)
    noises = 1e-3 + torch.rand(2, 3, dtype=DOUBLE)
    # all runs observe the same points first
    shared = X[0, 0, :2]
    for name, own in itertools.product(("rbf", "matern+linear"), ((), (2, 3))):
        kernel = batched(name, D, *own) if own else KERNELS[name](D)
        batch = GradientPosterior(kernel, noises if own else NOISE)
        assert batch.batch_shape == ((2, 3) if own else ())
        for part in (shared, X[:, :, :5], X[:, :, 5:]):
            batch.append(part)
        for i, j in ((0, 0), (1, 2)):
            kernel_of_run = kernel[(i, j)[2 - len(own) :]] if own else kernel
            single = GradientPosterior(kernel_of_run, float(noises[i, j]) if own else NOISE)
            single.append(torch.cat([shared, X[i, j]]))
            for asked in ("weights", "covariance"):
                expected = getattr(single, asked)(thetas[i, j])
                for at in (thetas[i, j], thetas):
                    found = getattr(batch, asked)(at)[i, j]
                    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_what_is_refused():
    kernel = KERNELS["rbf"](D)
    X = torch.randn(4, D, dtype=DOUBLE)
    posterior = observed(kernel, X)
    tiny = GradientPosterior(kernel, 0.0, jitter=1e-18)
    for wrong in (X.float(), X[:, :2], X * math.nan, X[0]):
        with pytest.raises(InputError, match=r"^X="):
            posterior.append(wrong)
    runs = posterior.conditioned_on(X.expand(5, 4, D))
    with pytest.raises(InputError, match=r"^X=\(2, 4, 3\).*fits the runs, \(5,\)"):
        runs.append(X.expand(2, 4, D))
    with pytest.raises(InputError, match=r"^theta=\(2, 3\).*fits the runs, \(5,\)"):
        runs.weights(X[:2])
    with pytest.raises(InputError, match=r"^noise="):
        GradientPosterior(batched("rbf", D, 5), torch.ones(2, dtype=DOUBLE))
    with pytest.raises(UsageError, match="of one run, and this posterior is of 5"):
        runs.gradient_query(X[0], X, torch.dot, clip=1.0)
    with pytest.raises(InputError, match=r"^theta=.*of one run"):
        GradientPosterior(kernel, NOISE).gradient_query(X, X, torch.dot, clip=1.0)
    # below rounding
    with pytest.raises(UsageError, match="jitter"):
        tiny.append(torch.zeros(3, D, dtype=DOUBLE))
    assert (len(posterior), len(tiny)) == (4, 0)
