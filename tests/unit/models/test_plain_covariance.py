"""Plain covariances, likelihoods and fits are GPyTorch's and BoTorch's own, only faster."""

import pytest
import scipy.stats
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from dpbo import Space
from dpbo.models.builders import (
    FIT,
    default_gp,
    gp_of_unknown_noise,
    mute_optimizer_warnings,
    unfitted_gp,
)
from dpbo.models.plain_covariance import covariance, is_plain, plain_closure, plain_loss, variances

SPACES = {
    "numbers": Space(a=scipy.stats.uniform(), b=scipy.stats.uniform(), c=[1, 2, 3]),
    "mixed": Space(a=scipy.stats.uniform(), b=["x", "y"], c=[True, False]),
    "categories": Space(k=["a", "b", "c"], other=["a", "b"]),
}


def model(kind, seed, count=14):
    """A model of noisy values, with hyper-parameters that were drawn."""
    draw = torch.Generator().manual_seed(seed)
    space = SPACES[kind]
    X = space.sample(count, seed=seed)
    noise = torch.randn(count, 1, generator=draw, dtype=torch.float64)
    Y = torch.sin(4.0 * X[:, :1]) + 0.3 * X.sum(1, keepdim=True) + 0.2 * noise
    gp = unfitted_gp(space, X, Y, torch.full_like(Y, 0.04))
    with torch.no_grad():
        for parameter in gp.parameters():
            parameter.add_(0.3 * torch.rand(parameter.shape, generator=draw, dtype=torch.float64))
    return gp, ExactMarginalLogLikelihood(gp.likelihood, gp)


def own_loss(mll):
    mll.train()
    return -mll(mll.model(*mll.model.train_inputs), mll.model.train_targets)


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("seed", range(4))
def test_a_covariance_and_a_likelihood_are_gpytorchs_with_the_same_gradients(kind, seed):
    gp, mll = model(kind, seed)
    A, B = SPACES[kind].sample(5, seed=90), SPACES[kind].sample(7, seed=91)
    assert is_plain(gp.covar_module)
    dense = gp.covar_module(A, B).to_dense()
    assert torch.allclose(covariance(gp.covar_module, A, B), dense, atol=1e-12)
    several = covariance(gp.covar_module, A.expand(3, 5, -1), B)
    assert torch.allclose(several, dense.expand(3, -1, -1), atol=1e-12)
    assert torch.allclose(variances(gp.covar_module, A), gp.covar_module(A, diag=True), atol=1e-12)
    plain = plain_loss(mll)
    assert plain is not None
    mine = plain()
    theirs = own_loss(mll)
    assert mine.item() == pytest.approx(theirs.item(), abs=1e-9)
    for one, other in zip(
        torch.autograd.grad(mine, [*mll.parameters()]),
        torch.autograd.grad(theirs, [*mll.parameters()]),
        strict=True,
    ):
        assert torch.allclose(one, other, atol=1e-7)


@pytest.mark.parametrize("kind", SPACES)
def test_a_fit_is_as_likely_as_botorchs_own(kind):
    for seed in range(4):
        (_, mine), (_, theirs) = model(kind, seed), model(kind, seed)
        with mute_optimizer_warnings():
            fit_gpytorch_mll(mine, closure=plain_closure(mine), optimizer_kwargs={"options": FIT})
            fit_gpytorch_mll(theirs, optimizer_kwargs={"options": FIT})
        # in nats of the whole likelihood; L-BFGS stops within a millionth
        worse = 14 * (own_loss(mine).item() - own_loss(theirs).item())
        assert worse < 0.03


def test_noise_may_be_fitted_as_well():
    X = SPACES["numbers"].sample(30, seed=0)
    Y = X.sum(1, keepdim=True) + 0.1 * torch.randn(
        30, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    gp = gp_of_unknown_noise(SPACES["numbers"], X, Y, torch.zeros_like(Y))
    std = gp.likelihood.noise.sqrt() * gp.outcome_transform.stdvs.flatten()
    assert 0.05 < std.item() < 0.2


def test_of_other_models_botorch_fits_its_own_likelihood():
    X = SPACES["numbers"].sample(8, seed=0)
    for gp in (
        SingleTaskGP(X, X[:, :1], covar_module=ScaleKernel(MaternKernel())),
        SingleTaskGP(X, X[:, :2]),
    ):
        assert plain_closure(ExactMarginalLogLikelihood(gp.likelihood, gp)) is None


@pytest.mark.parametrize("kind", SPACES)
def test_a_model_of_several_metrics_is_the_models_of_each(kind):
    space = SPACES[kind]
    X = space.sample(14, seed=0)
    Y = torch.cat([torch.sin(4.0 * X[:, :1]), X.sum(1, keepdim=True) ** 2], 1)
    Yvar = torch.full_like(Y, 0.01)
    with mute_optimizer_warnings():
        both = default_gp(space, X, Y, Yvar).posterior(space.sample(9, seed=1))
        for k in range(2):
            alone = default_gp(space, X, Y[:, k : k + 1], Yvar[:, k : k + 1])
            told = alone.posterior(space.sample(9, seed=1))
            moved = (both.mean[:, k : k + 1] - told.mean).abs()
            assert (moved < 0.1 * told.variance.sqrt()).all(), "by a tenth of what is unknown"
