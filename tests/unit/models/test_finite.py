"""FiniteGP against GPs that are solved anew: at its candidates, on each kind
of kernel, very far apart.
"""

import copy
import math

import pytest
import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import AdditiveKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean

from dpbo.errors import InputError
from dpbo.models import FiniteGP
from dpbo.models.fixed_kernels import matern52, squared_exponential
from dpbo.models.noisy_inputs import SameRow
from tests.setups import DOUBLE
from tests.unit.models.kernels import KERNELS

N = 60
D = 2
T = 12
NOISE = 1e-2
MEAN = 0.3


def solved(X, Y, kernel):
    """The same posterior by GPyTorch."""
    mean = ConstantMean().double()
    Y = Y.unsqueeze(-1)
    mean.constant = torch.tensor(MEAN, dtype=DOUBLE)
    settings = {
        "train_Yvar": torch.full_like(Y, NOISE),
        "covar_module": copy.deepcopy(kernel),
        "mean_module": mean,
    }
    return SingleTaskGP(X, Y, **settings, outcome_transform=None).double().eval()


def observe(model, steps=T):
    """Random values at random candidates: their indices and the values."""
    indices = torch.randint(0, len(model.mean), (steps,))
    values = torch.randn(steps, dtype=DOUBLE)
    for index, value in zip(indices, values, strict=True):
        model.observe(index, value)
    return indices, values


def observed(kernel, candidates, **settings):
    model = FiniteGP(candidates, kernel, NOISE, mean=MEAN, **settings)
    return model, *observe(model)


@pytest.mark.parametrize("kernel", KERNELS)
def test_candidates_against_a_gp_solved_anew(kernel):
    candidates = torch.rand(N, D, dtype=DOUBLE)
    for capacity in (1, 64):
        model, indices, values = observed(KERNELS[kernel](D), candidates, capacity=capacity)
        with torch.no_grad():
            expected = solved(candidates[indices], values, KERNELS[kernel](D)).posterior(
                candidates.unsqueeze(-2)
            )
        torch.testing.assert_close(model.mean, expected.mean[..., 0, 0], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(
            model.variance, expected.variance[..., 0, 0], rtol=1e-8, atol=1e-8
        )


def test_many_observations_of_one_candidate_stay_sound_and_forgetting_starts_anew():
    model = FiniteGP(torch.rand(N, D, dtype=DOUBLE), squared_exponential(0.5), 1e-8)
    for _ in range(50):
        model.observe(3, 1.0)
    assert 0.0 <= float(model.variance[3]) < 1e-8
    assert abs(float(model.mean[3]) - 1.0) < 1e-6
    candidates = torch.rand(N, D, dtype=DOUBLE)
    model, indices, values = observed(matern52(0.4), candidates)
    mean = model.mean.clone()
    variance = model.variance.clone()
    model.forget()
    assert model.num_observations == 0
    assert torch.equal(model.mean, torch.full((N,), MEAN, dtype=DOUBLE))
    assert torch.equal(model.variance, torch.ones(N, dtype=DOUBLE))
    for t in range(T):
        model.observe(indices[t], values[t])
    assert torch.equal(model.mean, mean)
    assert torch.equal(model.variance, variance)


@pytest.mark.parametrize(
    ("index", "value"),
    [
        pytest.param(-1, 0.0, id="below"),
        pytest.param(N, 0.0, id="above"),
        pytest.param(0, math.nan, id="nan"),
    ],
)
def test_an_observation_that_is_none_is_refused(index, value):
    model = FiniteGP(torch.rand(N, D, dtype=DOUBLE), squared_exponential(0.5), NOISE)
    with pytest.raises(InputError):
        model.observe(index, value)
    assert model.num_observations == 0


def test_a_batch_of_kernels_is_refused():
    with pytest.raises(InputError, match="kernel"):
        FiniteGP(
            torch.rand(N, D, dtype=DOUBLE), RBFKernel(batch_shape=torch.Size([2])).double(), NOISE
        )


FORMS = {
    squared_exponential: lambda r2: torch.exp(-0.5 * r2),
    matern52: lambda r2: (1.0 + (5.0 * r2).sqrt() + 5.0 * r2 / 3.0) * torch.exp(-(5.0 * r2).sqrt()),
}


def clusters(spread):
    """Ten candidates within a unit of each of twenty places, `spread` apart."""
    return (
        spread * torch.rand(20, 1, D, dtype=DOUBLE) + torch.rand(20, 10, D, dtype=DOUBLE)
    ).flatten(-3, -2)


def close(model, K):
    """After 40 observations the mean and variance are those of a GP of covariance K between
    candidates, `N x N`.
    """
    index, values = observe(model, 40)
    right = torch.cat([values.unsqueeze(-1), K[index]], dim=-1)
    found = torch.linalg.solve(K[index][:, index] + NOISE * torch.eye(40, dtype=DOUBLE), right)
    mean = K[:, index] @ found[:, 0]
    variance = K.diagonal() - (K[:, index] * found[:, 1:].mT).sum(-1)
    torch.testing.assert_close(model.mean, mean, rtol=0.0, atol=1e-8)
    torch.testing.assert_close(model.variance, variance, rtol=0.0, atol=1e-8)


@pytest.mark.parametrize("form", FORMS)
def test_candidates_very_far_apart_one_of_them_or_all(form):
    for spread, scale in (
        (1e2, 1.0),
        (200.0, 1.0),
        (1e3, 2.0**-24),
        (1e6, 1.0),
        (1e8, 1.0),
        (1e8, 2.0**-24),
    ):
        candidates = clusters(spread)
        model = FiniteGP(scale * candidates, form(scale), NOISE)
        close(model, FORMS[form]((candidates.unsqueeze(-2) - candidates).square().sum(-1)))
    near = torch.rand(197, D, dtype=DOUBLE)
    lengths = torch.tensor([0.3, 0.6], dtype=DOUBLE)
    K = torch.eye(200, dtype=DOUBLE)
    K[:-3, :-3] = FORMS[form](((near.unsqueeze(-2) - near) / lengths).square().sum(-1))
    for far in (1e6, 1e9, 1e200, 1.7e308):
        model = FiniteGP(
            torch.cat(
                [near, far * torch.tensor([[1.0], [0.5], [-1.0]], dtype=DOUBLE).expand(3, D)]
            ),
            form(lengths),
            NOISE,
        )
        close(model, K)


def test_multiples_and_rows_of_their_own_very_far_apart():
    candidates = clusters(1e6)
    r2 = (candidates.unsqueeze(-2) - candidates).square().sum(-1)
    smooth = ScaleKernel(squared_exponential(1.0)).double()
    smooth.outputscale = 0.5
    model = FiniteGP(candidates, AdditiveKernel(smooth, SameRow()), NOISE)
    close(model, 0.5 * torch.exp(-0.5 * r2) + torch.eye(200, dtype=DOUBLE))


@pytest.mark.cuda
def test_on_cuda():
    candidates = torch.rand(N, D, dtype=DOUBLE)
    here, there = (
        FiniteGP(candidates.to(device), matern52(0.4).to(device), NOISE)
        for device in ("cpu", "cuda")
    )
    for index, value in zip(torch.randint(0, N, (T,)), torch.randn(T, dtype=DOUBLE), strict=True):
        for model in (here, there):
            model.observe(index, value)
    torch.testing.assert_close(there.mean.cpu(), here.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(there.argmax_upper(4.0).cpu(), here.argmax_upper(4.0))
