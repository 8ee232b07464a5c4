"""FiniteGP against GPs that are solved anew: at its candidates, at any X, in batches, on each kind of kernel."""

import copy

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP
from gpytorch.kernels import RBFKernel
from gpytorch.means import ConstantMean

from dpbo.errors import InputError
from dpbo.models import FiniteGP, matern52, squared_exponential
from tests.models.kernels import DOUBLE, KERNELS

N, D, T, NOISE, MEAN = 60, 2, 12, 1e-2, 0.3


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def solved(X, Y, kernel, noise=NOISE):
    """The same posterior by GPyTorch."""
    mean = ConstantMean().double()
    mean.constant = torch.tensor(MEAN, dtype=DOUBLE)
    Y = Y.unsqueeze(-1)
    model = SingleTaskGP(
        X, Y, train_Yvar=torch.full_like(Y, noise), covar_module=copy.deepcopy(kernel), mean_module=mean, outcome_transform=None
    )
    return model.double().eval()


def observed(kernel, candidates, batch_shape=(), steps=T, **settings):
    model = FiniteGP(candidates, kernel, NOISE, mean=MEAN, batch_shape=batch_shape, **settings)
    indices = torch.randint(0, candidates.shape[-2], (*model.batch_shape, steps))
    values = torch.randn(*model.batch_shape, steps, dtype=DOUBLE)
    for t in range(steps):
        model.observe(indices[..., t], values[..., t])
    return model, indices, values


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("capacity", [1, 64])
def test_candidates_against_a_gp_solved_anew(kernel, capacity):
    candidates = torch.rand(N, D, dtype=DOUBLE)
    model, indices, values = observed(KERNELS[kernel](D), candidates, capacity=capacity)
    with torch.no_grad():
        expected = solved(candidates[indices], values, KERNELS[kernel](D)).posterior(candidates.unsqueeze(-2))
    torch.testing.assert_close(model.mean, expected.mean[..., 0, 0], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(model.variance, expected.variance[..., 0, 0], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("shape", [(7, D), (1, D), (5, 3, D), (2, 4, 1, D)])
@pytest.mark.parametrize("kernel", ["rbf", "matern-scaled", "rq"])
def test_posterior_anywhere(kernel, shape):
    candidates, X = torch.rand(N, D, dtype=DOUBLE), torch.rand(*shape, dtype=DOUBLE)
    model, indices, values = observed(KERNELS[kernel](D), candidates)
    reference = solved(candidates[indices], values, KERNELS[kernel](D))
    for noisy in (False, True):
        posterior, expected = model.posterior(X, observation_noise=noisy), reference.posterior(X, observation_noise=noisy)
        torch.testing.assert_close(posterior.mean, expected.mean, rtol=1e-8, atol=1e-8)
        covariance, dense = posterior.distribution.covariance_matrix, expected.distribution.covariance_matrix
        torch.testing.assert_close(covariance, dense, rtol=1e-8, atol=1e-8)


def test_posterior_agrees_with_the_candidates_and_before_any_observation_is_the_prior():
    candidates = torch.rand(N, D, dtype=DOUBLE)
    model, _, _ = observed(matern52(0.4), candidates)
    posterior = model.posterior(candidates.unsqueeze(-2))
    torch.testing.assert_close(posterior.mean[:, 0, 0], model.mean)
    torch.testing.assert_close(posterior.variance[:, 0, 0], model.variance, rtol=1e-8, atol=1e-10)
    prior = FiniteGP(candidates, matern52(0.4), NOISE, mean=MEAN).posterior(candidates[:3])
    assert torch.equal(prior.mean, torch.full((3, 1), MEAN, dtype=DOUBLE))
    torch.testing.assert_close(prior.distribution.covariance_matrix, matern52(0.4)(candidates[:3]).to_dense())


@pytest.mark.parametrize("kernel", ["rbf", "matern-scaled", "rq"])
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("batch_shape", [(3,), (2, 3)])
def test_batches_equal_loops(kernel, own, batch_shape):
    candidates = torch.rand(*(batch_shape if own else ()), N, D, dtype=DOUBLE)
    model, indices, values = observed(KERNELS[kernel](D), candidates, batch_shape)
    X = torch.rand(5, *batch_shape, 2, D, dtype=DOUBLE)
    batch = model.posterior(X)
    assert model.batch_shape == torch.Size(batch_shape)
    assert batch.mean.shape == (5, *batch_shape, 2, 1)
    for run in torch.cartesian_prod(*[torch.arange(size) for size in batch_shape]).view(-1, len(batch_shape)).tolist():
        at = tuple(run)
        single = FiniteGP(candidates[at] if own else candidates, KERNELS[kernel](D), NOISE, mean=MEAN)
        for index, value in zip(indices[at], values[at], strict=True):
            single.observe(index, value)
        torch.testing.assert_close(model.mean[at], single.mean, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(model.variance[at], single.variance, rtol=1e-10, atol=1e-10)
        alone = single.posterior(X[(slice(None), *at)])
        torch.testing.assert_close(batch.mean[(slice(None), *at)], alone.mean, rtol=1e-10, atol=1e-10)


def test_large_candidate_sets_take_the_same_way_run_by_run(monkeypatch):
    candidates = torch.rand(N, D, dtype=DOUBLE)
    torch.manual_seed(1)
    together, _, _ = observed(matern52(0.4), candidates, (5,))
    monkeypatch.setattr("dpbo.models.finite._CACHED", 2 * N)
    torch.manual_seed(1)
    parts, _, _ = observed(matern52(0.4), candidates, (5,))
    torch.testing.assert_close(parts.mean, together.mean, rtol=1e-11, atol=1e-11)
    assert torch.equal(parts.argmax_upper(4.0), together.argmax_upper(4.0))


def test_posterior_is_differentiable_in_x():
    model, _, _ = observed(squared_exponential(0.5), torch.rand(N, D, dtype=DOUBLE))
    X = torch.rand(3, 2, D, dtype=DOUBLE, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: model.posterior(x).mean, X)
    assert torch.autograd.gradcheck(lambda x: model.posterior(x).variance, X)


def test_later_changes_of_the_kernel_change_nothing():
    kernel, candidates = RBFKernel().double(), torch.rand(N, D, dtype=DOUBLE)
    model, _, _ = observed(kernel, candidates)
    X = candidates[:3].clone()
    before = model.posterior(X).mean
    kernel.lengthscale = 5.0
    assert torch.equal(model.posterior(X).mean, before)


def test_many_observations_of_one_candidate_stay_sound():
    model = FiniteGP(torch.rand(N, D, dtype=DOUBLE), squared_exponential(0.5), 1e-8)
    for _ in range(50):
        model.observe(3, 1.0)
    assert 0.0 <= float(model.variance[3]) < 1e-8
    assert abs(float(model.mean[3]) - 1.0) < 1e-6


def test_forgetting_starts_anew():
    candidates = torch.rand(N, D, dtype=DOUBLE)
    model, indices, values = observed(matern52(0.4), candidates, (3,))
    mean, variance = model.mean.clone(), model.variance.clone()
    model.forget()
    assert model.num_observations == 0
    assert torch.equal(model.mean, torch.full((3, N), MEAN, dtype=DOUBLE))
    assert torch.equal(model.variance, torch.ones(3, N, dtype=DOUBLE))
    for t in range(T):
        model.observe(indices[..., t], values[..., t])
    assert torch.equal(model.mean, mean)
    assert torch.equal(model.variance, variance)


def test_what_is_refused():
    candidates = torch.rand(N, D, dtype=DOUBLE)
    model = FiniteGP(candidates, squared_exponential(0.5), NOISE)
    for index in (-1, N, torch.tensor(0.5)):
        with pytest.raises(InputError, match="index"):
            model.observe(index, 0.0)
    with pytest.raises(InputError, match="value"):
        model.observe(0, float("nan"))
    with pytest.raises(InputError, match=r"\.double\(\)"):
        model.posterior(candidates.float())
    with pytest.raises(InputError, match=r"\.double\(\)"):
        FiniteGP(candidates.float(), squared_exponential(0.5), NOISE)
    with pytest.raises(InputError, match="finite"):
        FiniteGP(candidates * float("inf"), squared_exponential(0.5), NOISE)
    with pytest.raises(InputError, match="mean="):
        FiniteGP(candidates, squared_exponential(0.5), NOISE, mean=float("inf"))
    with pytest.raises(InputError, match="noise"):
        FiniteGP(candidates, squared_exponential(0.5), 0.0)
    with pytest.raises(InputError, match="shape"):
        FiniteGP(candidates[0], squared_exponential(0.5), NOISE)
    assert model.num_observations == 0
    for refused in (
        lambda: model.posterior(candidates, output_indices=[1]),
        lambda: model.posterior(candidates, observation_noise=torch.ones(1)),
        lambda: model.condition_on_observations(candidates, candidates),
        lambda: model.subset_output([0]),
        lambda: FiniteGP(candidates, RBFKernel(batch_shape=torch.Size([2])).double(), NOISE),
    ):
        with pytest.raises(UnsupportedError):
            refused()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("kernel", ["rbf", "matern-scaled", "rq"])
def test_on_cuda(kernel):
    candidates, X = torch.rand(N, D, dtype=DOUBLE), torch.rand(4, 1, D, dtype=DOUBLE)
    indices, values = torch.randint(0, N, (T, 3)), torch.randn(T, 3, dtype=DOUBLE)
    models = [FiniteGP(candidates.to(device), KERNELS[kernel](D).to(device), NOISE, batch_shape=(3,)) for device in ("cpu", "cuda")]
    moved = FiniteGP(candidates, KERNELS[kernel](D), NOISE, batch_shape=(3,)).to("cuda")
    for index, value in zip(indices, values, strict=True):
        for model in (*models, moved):
            model.observe(index, value)
    for model in (models[1], moved):
        torch.testing.assert_close(model.mean.cpu(), models[0].mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(model.argmax_upper(4.0).cpu(), models[0].argmax_upper(4.0))
        mean = model.posterior(X.unsqueeze(1).to("cuda")).mean.cpu()
        torch.testing.assert_close(mean, models[0].posterior(X.unsqueeze(1)).mean, rtol=1e-9, atol=1e-9)
