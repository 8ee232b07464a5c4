"""Plain covariances, likelihoods and fits are GPyTorch's and BoTorch's own, only faster."""

import itertools

import numpy as np
import pytest
import scipy.stats
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import MixedSingleTaskGP, SingleTaskGP
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from dpbo import Space
from dpbo.models.builders import (
    mute_optimizer_warnings,
    unfitted_gp,
)
from dpbo.models.plain_covariance import MarginalLikelihood, PlainCovariance, fit, is_plain
from tests.setups import DOUBLE

SPACES = {
    "numbers": Space(a=scipy.stats.uniform(), b=scipy.stats.uniform(), c=[1, 2, 3]),
    "mixed": Space(a=scipy.stats.uniform(), b=["x", "y"], c=[True, False]),
    "categories": Space(k=["a", "b", "c"], other=["a", "b"]),
}


def model(kind, seed, *, known=True):
    """An unfitted model of noisy values, whose noise is known or not."""
    draw = torch.Generator().manual_seed(seed)
    space = SPACES[kind]
    X = space.sample(14, seed=seed)
    noise = torch.randn(14, 1, generator=draw, dtype=DOUBLE)
    Y = torch.sin(4.0 * X[:, :1]) + 0.3 * X.sum(1, keepdim=True) + 0.2 * noise
    if known:
        return unfitted_gp(space, X, Y, torch.full_like(Y, 0.04))
    if space.cat_dims:
        return MixedSingleTaskGP(X, Y, [*space.cat_dims])
    return SingleTaskGP(X, Y)


def own_loss(gp):
    """GPyTorch's, in nats of all values."""
    gp.train()
    mll = ExactMarginalLogLikelihood(gp.likelihood, gp)
    with torch.no_grad():
        return -len(gp.train_targets) * mll(gp(*gp.train_inputs), gp.train_targets).item()


@pytest.mark.parametrize("kind", SPACES)
def test_a_covariance_is_gpytorchs(kind):
    gp = model(kind, 0)
    likelihood = MarginalLikelihood(gp)
    likelihood.keep(likelihood.start + np.random.default_rng(0).normal(size=len(likelihood.start)))
    A, B = SPACES[kind].sample(5, seed=90), SPACES[kind].sample(7, seed=91)
    assert is_plain(gp.covar_module)
    plain = PlainCovariance(gp.covar_module, A.shape[1])
    dense = gp.covar_module(A, B).to_dense()
    assert torch.allclose(plain(A.expand(3, 5, -1), B), dense.expand(3, -1, -1), atol=1e-12)
    assert torch.allclose(plain.variances(A), gp.covar_module(A, diag=True), atol=1e-12)


@pytest.mark.parametrize("kind", SPACES)
def test_a_likelihood_is_gpytorchs_with_its_gradient(kind):
    for seed, known in itertools.product(range(2), (True, False)):
        gp = model(kind, seed, known=known)
        likelihood = MarginalLikelihood(gp)
        draw = np.random.default_rng(seed)
        constants = []
        for _ in range(3):
            theta = likelihood.start + 0.5 * draw.normal(size=len(likelihood.start))
            value, gradient = likelihood(theta)
            likelihood.keep(theta)
            assert MarginalLikelihood(gp).start == pytest.approx(theta), "what was kept is read"
            constants.append(own_loss(gp) / 14 - value)
            mean = gp.mean_module.raw_constant
            for moved in (0.01, -0.02):
                with torch.no_grad():
                    mean += moved
                assert own_loss(gp) > 14 * (value + constants[-1]), "the mean is the likeliest"
            step = 1e-5 * draw.normal(size=len(theta))
            slope = (likelihood(theta + step)[0] - likelihood(theta - step)[0]) / 2
            assert gradient @ step == pytest.approx(slope, rel=1e-4, abs=1e-12)
        assert np.ptp(constants) < 1e-9


def test_a_fit_is_as_likely_as_botorchs_own():
    mine, theirs = model("mixed", 0), model("mixed", 0)
    fit(mine)
    with mute_optimizer_warnings():
        fit_gpytorch_mll(
            ExactMarginalLogLikelihood(theirs.likelihood, theirs),
            optimizer_kwargs={"options": {"maxiter": 200, "ftol": 1e-6}},
        )
    # L-BFGS stops within a millionth a value
    assert own_loss(mine) < own_loss(theirs) + 0.03


def test_where_rounding_makes_the_covariance_singular_the_likelihood_is_low():
    X = SPACES["mixed"].sample(4, seed=0).repeat(10, 1)
    gp = unfitted_gp(SPACES["mixed"], X, X.sum(1, keepdim=True), torch.zeros(40, 1).double())
    likelihood = MarginalLikelihood(gp)
    value, gradient = likelihood(np.array([most for _, most in likelihood.bounds]))
    assert likelihood(likelihood.start)[0] < value < np.inf
    assert np.isfinite(gradient).all()


def test_other_kernels_are_not_plain():
    for kernel in (ScaleKernel(MaternKernel()), RBFKernel(batch_shape=torch.Size([2]))):
        assert not is_plain(kernel)
