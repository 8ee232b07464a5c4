"""GradientGP's gradient against finite differences of `posterior`, in the units of Y over those of
X, and all that SingleTaskGP has.
"""

import copy
import pickle

import pytest
import torch
from botorch import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import (
    InputStandardize,
    Log10,
    Normalize,
)
from botorch.models.transforms.outcome import ChainedOutcomeTransform, Standardize
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import CosineKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean, LinearMean
from gpytorch.mlls import ExactMarginalLogLikelihood

from dpbo.errors import InputError, UsageError
from dpbo.gibo import GradientGP, posterior_of_one_unit
from tests.setups import DOUBLE
from tests.unit.models.kernels import KERNELS, Exponential, batched

D = 2
H = 1e-4
# units of X far from the unit cube's
LOW = torch.tensor([-3.0, 10.0], dtype=DOUBLE)
WIDE = torch.tensor([5.0, 0.5], dtype=DOUBLE)


def points(*shape, d=D):
    return LOW[:d] + WIDE[:d] * torch.rand(*shape, d, dtype=DOUBLE)


def values(X):
    return 5.0 + 3.0 * torch.sin(((X - LOW[: X.shape[-1]]) / WIDE[: X.shape[-1]]).sum(-1, True))


def model(batch=(), d=D, kernel=None, **settings):
    X = points(*batch, 8, d=d)
    if kernel is None:
        kernel = KERNELS["rbf-isotropic-scaled"](d)
    gp = GradientGP(X, values(X), covar_module=kernel, **settings)
    if not settings.get("mean_module"):
        gp.mean_module.constant.data += 0.4
    return gp.eval()


def differences(gp, X):
    """Mean and covariance of ((f(x + h e_j) - f(x - h e_j)) / 2h)_j for each row of X, from
    `posterior` alone.
    """
    q, d = X.shape[-2:]
    steps = torch.diag(H * WIDE[:d])
    around = (X.unsqueeze(-2) + torch.cat([steps, -steps])).flatten(-3, -2)
    inverse = torch.diag(0.5 / steps.diagonal())
    A = torch.block_diag(*[torch.cat([inverse, -inverse], dim=1)] * q)
    with torch.no_grad():
        found = gp.posterior(around)
        mean = (A @ found.mean).view(*found.mean.shape[:-2], q, d)
        return mean, A @ found.covariance_matrix @ A.T


def compare(gp, X, case):
    mean, covariance = differences(gp, X)
    found = gp.gradient_posterior(X)
    slopes = mean.abs().amax().item()
    torch.testing.assert_close(found.mean, mean, rtol=1e-5, atol=1e-5 * slopes, msg=case)
    largest = float(covariance.abs().max())
    torch.testing.assert_close(
        found.mvn.covariance_matrix, covariance, rtol=1e-3, atol=1e-3 * largest, msg=case
    )


def test_against_finite_differences_of_the_posterior():
    noises = torch.linspace(1e-3, 1e-1, 8, dtype=DOUBLE).unsqueeze(-1)
    shares = torch.stack([LOW, LOW + 0.5 / WIDE])
    for case, settings in {
        "plain": {},
        "no outcome transform": {"outcome_transform": None},
        "Matern": {"kernel": KERNELS["matern"](D)},
        "any kernel": {"kernel": KERNELS["rq"](D)},
        "sum, normalized": {
            "kernel": KERNELS["matern+linear"](D),
            "input_transform": Normalize(d=D),
        },
        "one input": {"input_transform": Normalize(d=D, indices=[1])},
        "reversed": {"input_transform": Normalize(d=D, bounds=shares, reverse=True)},
        "standardized": {"input_transform": InputStandardize(d=D)},
        "known noise": {"train_Yvar": noises, "input_transform": Normalize(d=D)},
        "slope of the mean": {"mean_module": LinearMean(D), "input_transform": Normalize(d=D)},
        "models, each normalized": {
            "batch": (3,),
            "kernel": batched("matern-scaled", D, 3),
            "input_transform": Normalize(d=D, batch_shape=torch.Size([3])),
        },
    }.items():
        gp = model(**settings)
        X = points(4, 1, 2)
        compare(gp, X, case)
        before = gp.gradient_posterior(X).mean
        gp.train()
        torch.testing.assert_close(gp.gradient_posterior(X).mean, before, msg=case)


def test_all_that_a_model_can_do_it_does_as_before():
    X = points(8)
    settings = {"input_transform": Normalize(d=D), "outcome_transform": Standardize(m=1)}
    ours, theirs = (
        kind(X, values(X), **copy.deepcopy(settings)) for kind in (GradientGP, SingleTaskGP)
    )
    for gp in (ours, theirs):
        fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    at = points(3)
    torch.testing.assert_close(ours.posterior(at).mean, theirs.posterior(at).mean)
    compare(ours, at, "fitted")
    compare(ours.condition_on_observations(points(2), values(points(2))), at, "conditioned")
    sampler = SobolQMCNormalSampler(torch.Size([4]))
    compare(ours.fantasize(points(1), sampler=sampler), at, "fantasies")
    expected = ours.gradient_posterior(at)
    loaded = GradientGP(X, values(X), **copy.deepcopy(settings))
    loaded.load_state_dict(ours.state_dict())
    for twin in (pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours), loaded):
        found = twin.gradient_posterior(at)
        torch.testing.assert_close(found.mean, expected.mean)
        torch.testing.assert_close(found.variance, expected.variance)


def test_a_posterior_of_one_unit_is_in_the_units_of_x_and_y():
    at = points(1)
    for batch in ((), (3,)):
        kernel = batched("rq", D, 3) if batch else KERNELS["rq"](D)
        gp = model(batch, kernel=kernel, input_transform=Normalize(d=D))
        X = points(*batch, 8)
        observed = gp.of_one_unit(0.1).conditioned_on(X)
        assert observed.batch_shape == batch
        # a model of these values with that noise, and otherwise the same
        known = 0.1 + 1e-6 * gp.outcome_transform.stdvs.square().expand(*batch, 8, 1)
        other = GradientGP(X, values(X), known, covar_module=kernel, outcome_transform=None)
        other.input_transform = gp.input_transform
        other.mean_module = ConstantMean(batch_shape=torch.Size(batch)).double()
        other.mean_module.constant.data = torch.as_tensor(observed.mean)
        other.covar_module = ScaleKernel(kernel, batch_shape=torch.Size(batch)).double()
        other.covar_module.outputscale = gp.outcome_transform.stdvs[..., 0, 0].square()
        found = other.gradient_posterior(at)
        residual = values(X)[..., 0] - torch.as_tensor(observed.mean).unsqueeze(-1)
        mean = observed.weights(at[0]) @ residual.unsqueeze(-1)
        torch.testing.assert_close(mean[..., 0], found.mean[..., 0, :], rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(
            observed.covariance(at[0]), found.mvn.covariance_matrix, rtol=1e-6, atol=1e-9
        )
        gp.train()
        again = posterior_of_one_unit(gp, 0.1).conditioned_on(X).weights(at[0])
        torch.testing.assert_close(again, observed.weights(at[0]))


def test_what_is_refused():
    X = torch.rand(6, D, dtype=DOUBLE)
    Y = values(X)
    chained = ChainedOutcomeTransform(s=Standardize(m=1))
    logged = {"input_transform": Log10(indices=[1]), "covar_module": RBFKernel().double()}
    for gp, at, message in (
        (model(), X.float(), r"^X=.*\.double\(\)"),
        (GradientGP(X, Y.expand(6, 2)), X, "one outcome"),
        (GradientGP(X, Y).float(), X, "^train_X="),
        (GradientGP(X, Y, **logged), X, "^input_transform="),
        (GradientGP(X, Y, outcome_transform=chained), X, "^outcome_transform="),
        (GradientGP(X, Y, covar_module=Exponential().double()), X, "twice differentiable"),
    ):
        with pytest.raises(InputError, match=message):
            gp.gradient_posterior(at)
    noise = torch.full((6, 1), 1e-9, dtype=DOUBLE)
    with pytest.raises(UsageError, match="noise"):
        GradientGP(X, Y, noise, covar_module=CosineKernel().double()).gradient_posterior(X)
    with pytest.raises(InputError, match=r"^mean_module="):
        GradientGP(X, Y, mean_module=LinearMean(D)).of_one_unit()
