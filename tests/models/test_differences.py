"""FiniteGP over candidates very many length-scales apart, against a GP solved from differences."""

import copy

import pytest
import torch
from gpytorch.kernels import AdditiveKernel, LinearKernel, RBFKernel, ScaleKernel

from dpbo.models import FiniteGP, SameRow, matern52, squared_exponential
from dpbo.models.differences import ByDifferences
from dpbo.models.rows import CalledRows, RadialRows
from tests.models.kernels import DOUBLE

N, D, T, NOISE = 200, 2, 40, 1e-2
FORMS = {
    squared_exponential: lambda r2: torch.exp(-0.5 * r2),
    matern52: lambda r2: (1.0 + (5.0 * r2).sqrt() + 5.0 * r2 / 3.0) * torch.exp(-(5.0 * r2).sqrt()),
}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def clusters(spread, *runs):
    """Ten candidates within a unit of each of twenty places, `spread` apart."""
    return (spread * torch.rand(*runs, 20, 1, D, dtype=DOUBLE) + torch.rand(*runs, 20, 10, D, dtype=DOUBLE)).flatten(-3, -2)


def observed(model):
    index, values = torch.randint(0, N, (*model.batch_shape, T)), torch.randn(*model.batch_shape, T, dtype=DOUBLE)
    for t in range(T):
        model.observe(index[..., t], values[..., t])
    return index, values


def solved(K, index, values):
    """Mean and variance at all candidates for their covariance K, `N x N`."""
    right = torch.cat([values.unsqueeze(-1), K[index]], dim=-1)
    found = torch.linalg.solve(K[index][:, index] + NOISE * torch.eye(T, dtype=DOUBLE), right)
    return K[:, index] @ found[:, 0], K.diagonal() - (K[:, index] * found[:, 1:].mT).sum(-1)


def close(model, K, index, values):
    mean, variance = solved(K, index, values)
    posterior = model.posterior(model.candidates)
    for given, expected in (
        (model.mean, mean),
        (model.variance, variance),
        (posterior.mean[:, 0], mean),
        (posterior.variance[:, 0], variance),
    ):
        torch.testing.assert_close(given, expected, rtol=0.0, atol=1e-8)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("spread", [1e2, 200.0, 1e3, 1e6, 1e8])
@pytest.mark.parametrize("scale", [1.0, 2.0**-24])
def test_however_far_they_lie_apart(form, spread, scale):
    candidates = clusters(spread)
    model = FiniteGP(scale * candidates, form(scale), NOISE)
    differences = (candidates.unsqueeze(-2) - candidates).square().sum(-1)
    close(model, FORMS[form](differences), *observed(model))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("far", [1e6, 1e9, 1e200, 1.7e308])
def test_one_far_candidate_changes_no_other(form, far):
    near = torch.rand(N - 3, D, dtype=DOUBLE)
    candidates = torch.cat([near, torch.full((3, D), far, dtype=DOUBLE) * torch.tensor([[1.0], [0.5], [-1.0]])])
    lengths = torch.tensor([0.3, 0.6], dtype=DOUBLE)
    model = FiniteGP(candidates, form(lengths), NOISE)
    K = torch.eye(N, dtype=DOUBLE)
    K[:-3, :-3] = FORMS[form](((near.unsqueeze(-2) - near) / lengths).square().sum(-1))
    close(model, K, *observed(model))


def test_sums_multiples_and_rows_of_their_own():
    candidates = clusters(1e6)
    r2 = (candidates.unsqueeze(-2) - candidates).square().sum(-1)
    smooth = ScaleKernel(squared_exponential(1.0)).double()
    smooth.outputscale = 0.5
    model = FiniteGP(candidates, AdditiveKernel(smooth, SameRow()), NOISE)
    close(model, 0.5 * torch.exp(-0.5 * r2) + torch.eye(N, dtype=DOUBLE), *observed(model))
    several = FiniteGP(candidates, ScaleKernel(AdditiveKernel(matern52(1.0), smooth)).double(), NOISE)
    factor = float(several.kernel.outputscale)
    close(several, factor * (FORMS[matern52](r2) + 0.5 * torch.exp(-0.5 * r2)), *observed(several))


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_runs_in_a_batch(own):
    candidates = clusters(1e7, 3) if own else clusters(1e7)
    model = FiniteGP(candidates, matern52(1.0), NOISE, batch_shape=(3,))
    index, values = observed(model)
    for run in range(3):
        here = candidates[run] if own else candidates
        K = FORMS[matern52]((here.unsqueeze(-2) - here).square().sum(-1))
        mean, variance = solved(K, index[run], values[run])
        torch.testing.assert_close(model.mean[run], mean, rtol=0.0, atol=1e-8)
        torch.testing.assert_close(model.variance[run], variance, rtol=0.0, atol=1e-8)


@pytest.mark.parametrize("form", FORMS)
def test_a_posterior_is_differentiable_also_where_points_meet(form):
    model = FiniteGP(clusters(1e6), form(1.0), NOISE)
    index, _ = observed(model)
    X = torch.cat([model.candidates[index[:1]], model.candidates[index[:1]] + 0.3]).requires_grad_()
    assert torch.autograd.gradcheck(lambda Z: model.posterior(Z.unsqueeze(-2)).mean, X[1:].detach().requires_grad_(), atol=1e-4)
    posterior = model.posterior(X)
    (slope,) = torch.autograd.grad(posterior.mean.sum() + posterior.variance.sum(), X)
    assert bool(slope.isfinite().all())


def test_usual_candidates_keep_the_fast_rows_and_the_callers_kernel_is_left_alone():
    kernel = ScaleKernel(squared_exponential(1.0) + LinearKernel()).double()
    before = copy.deepcopy(kernel.state_dict())
    assert type(FiniteGP(clusters(100.0), squared_exponential(1.0), NOISE)._rows) is RadialRows
    far = FiniteGP(clusters(1e4), kernel, NOISE)
    assert type(far._rows) is CalledRows
    assert type(far.kernel.base_kernel.kernels[0]) is ByDifferences
    assert type(kernel.base_kernel.kernels[0]) is RBFKernel
    assert all(torch.equal(kernel.state_dict()[name], value) for name, value in before.items())
    part = FiniteGP(clusters(1e4), RBFKernel(active_dims=(0,)).double(), NOISE)
    assert type(part.kernel) is RBFKernel
