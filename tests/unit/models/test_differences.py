"""FiniteGP over candidates very many length-scales apart, against a GP solved from differences."""

import pytest
import torch
from gpytorch.kernels import AdditiveKernel, ScaleKernel

from dpbo.models import FiniteGP, SameRow, matern52, squared_exponential
from tests.unit.models.kernels import DOUBLE

N, D, T, NOISE = 200, 2, 40, 1e-2
FORMS = {
    squared_exponential: lambda r2: torch.exp(-0.5 * r2),
    matern52: lambda r2: (1.0 + (5.0 * r2).sqrt() + 5.0 * r2 / 3.0) * torch.exp(-(5.0 * r2).sqrt()),
}


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
    for given in (model, posterior):
        torch.testing.assert_close(given.mean.flatten(), mean, rtol=0.0, atol=1e-8)
        torch.testing.assert_close(given.variance.flatten(), variance, rtol=0.0, atol=1e-8)


@pytest.mark.parametrize("form", FORMS)
def test_however_far_they_lie_apart(form):
    for spread, scale in ((1e2, 1.0), (200.0, 1.0), (1e3, 2.0**-24), (1e6, 1.0), (1e8, 1.0), (1e8, 2.0**-24)):
        candidates = clusters(spread)
        model = FiniteGP(scale * candidates, form(scale), NOISE)
        close(model, FORMS[form]((candidates.unsqueeze(-2) - candidates).square().sum(-1)), *observed(model))


@pytest.mark.parametrize("form", FORMS)
def test_one_far_candidate_changes_no_other(form):
    near, lengths, K = torch.rand(N - 3, D, dtype=DOUBLE), torch.tensor([0.3, 0.6], dtype=DOUBLE), torch.eye(N, dtype=DOUBLE)
    K[:-3, :-3] = FORMS[form](((near.unsqueeze(-2) - near) / lengths).square().sum(-1))
    for far in (1e6, 1e9, 1e200, 1.7e308):
        model = FiniteGP(torch.cat([near, far * torch.tensor([[1.0], [0.5], [-1.0]], dtype=DOUBLE).expand(3, D)]), form(lengths), NOISE)
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
