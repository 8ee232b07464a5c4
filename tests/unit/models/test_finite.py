"""FiniteGP against GPs that are solved anew: at its candidates, at any X, in batches, on each kind
of kernel, very far apart; in BoTorch's acquisition functions.
"""

import copy
import functools
import itertools
import math
import pickle
from typing import Any

import pytest
import torch
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP
from gpytorch.kernels import AdditiveKernel, RBFKernel, RQKernel, ScaleKernel
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
    """Random values at random candidates: their indices and the values, `batch_shape x steps`."""
    indices = torch.randint(0, model.mean.shape[-1], (*model.batch_shape, steps))
    values = torch.randn(*model.batch_shape, steps, dtype=DOUBLE)
    for index, value in zip(indices.unbind(-1), values.unbind(-1), strict=True):
        model.observe(index, value)
    return indices, values


def observed(kernel, candidates, **settings):
    model = FiniteGP(candidates, kernel, NOISE, mean=MEAN, **settings)
    return model, *observe(model)


def equal(found, expected, tolerance=1e-9):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kernel", KERNELS)
def test_candidates_and_points_anywhere_against_a_gp_solved_anew(kernel):
    candidates = torch.rand(N, D, dtype=DOUBLE)
    model, indices, values = observed(KERNELS[kernel](D), candidates, capacity=1)
    reference = solved(candidates[indices], values, KERNELS[kernel](D))
    with torch.no_grad():
        expected = reference.posterior(candidates.unsqueeze(-2))
    equal(model.mean, expected.mean[..., 0, 0], 1e-8)
    equal(model.variance, expected.variance[..., 0, 0], 1e-8)
    for shape, noisy in (((7, D), False), ((2, 4, 1, D), True)):
        X = torch.rand(*shape, dtype=DOUBLE, requires_grad=True)
        weights = torch.randn(*shape[:-1], shape[-2], dtype=DOUBLE)
        results = []
        for gp in (model, reference):
            posterior = gp.posterior(X, observation_noise=noisy)
            covariance = posterior.distribution.covariance_matrix
            loss = posterior.mean.square().sum() + (weights * covariance).sum()
            results.append((posterior.mean, covariance, *torch.autograd.grad(loss, X)))
        for found, expected, close in zip(*results, (1e-8, 1e-8, 1e-7), strict=True):
            equal(found, expected, close)


def test_one_output_and_one_noise():
    model, _, _ = observed(squared_exponential(0.5), torch.rand(N, D, dtype=DOUBLE))
    X = torch.rand(4, D, dtype=DOUBLE)
    half = ScalarizedPosteriorTransform(torch.tensor([0.5], dtype=DOUBLE))
    equal(model.posterior(X, posterior_transform=half).mean, 0.5 * model.posterior(X).mean)
    equal(model.posterior(X, output_indices=[0]).mean, model.posterior(X).mean)
    assert torch.equal(model.subset_output([0]).mean, model.mean)
    for refused in (
        lambda: model.posterior(X, output_indices=[1]),
        lambda: model.posterior(X, observation_noise=torch.ones(4, 1, dtype=DOUBLE)),
        lambda: model.subset_output([1]),
    ):
        with pytest.raises(UnsupportedError):
            refused()


def single_kernel(name, runs):
    return KERNELS[name](D)


def batch_of_kernels(runs):
    kernel = ScaleKernel(RBFKernel(ard_num_dims=D, batch_shape=runs), batch_shape=runs).double()
    kernel.outputscale = 0.5 + torch.rand(runs, dtype=DOUBLE)
    kernel.base_kernel.lengthscale = 0.5 + torch.rand(*runs, 1, D, dtype=DOUBLE)
    return kernel


def batch_of_called_kernels(runs):
    kernel = RQKernel(batch_shape=runs).double()
    kernel.lengthscale = 0.5 + torch.rand(*runs, 1, 1, dtype=DOUBLE)
    return kernel


def batch_of_kernels_and_rows(runs):
    own = ScaleKernel(SameRow(), batch_shape=runs).double()
    own.outputscale = 0.1 + torch.rand(runs, dtype=DOUBLE)
    return AdditiveKernel(batch_of_kernels(runs), own)


BATCHED: dict[str, Any] = {
    **{name: functools.partial(single_kernel, name) for name in KERNELS},
    "a kernel a run": batch_of_kernels,
    "a called kernel a run": batch_of_called_kernels,
    "a kernel and a row's own variance a run": batch_of_kernels_and_rows,
}


@pytest.mark.parametrize("kernel", ["matern", *(name for name in BATCHED if "run" in name)])
@pytest.mark.parametrize(("own", "runs"), [(False, (3,)), (True, (2, 3))], ids=["shared", "own"])
def test_a_batch_equals_single_runs(kernel, own, runs):
    shape = torch.Size(runs)
    candidates = torch.rand(*(runs if own else ()), N, D, dtype=DOUBLE)
    whole = BATCHED[kernel](shape)
    model, indices, values = observed(whole, candidates, batch_shape=runs, capacity=2)
    X = torch.rand(5, *runs, 2, D, dtype=DOUBLE)
    found = model.posterior(X)
    best = model.argmax_upper(4.0, exclude=indices)
    assert (model.batch_shape, best.shape) == (shape, shape)
    assert found.mean.shape == (5, *runs, 2, 1)
    assert model.observed.shape == (*runs, T, D)
    each_run: Any = itertools.product(*map(range, runs))
    for at in each_run:
        single = FiniteGP(
            candidates[at] if own else candidates,
            whole[at] if len(whole.batch_shape) else whole,
            NOISE,
            mean=MEAN,
        )
        for index, value in zip(indices[at], values[at], strict=True):
            single.observe(index, value)
        equal(model.mean[at], single.mean)
        equal(model.variance[at], single.variance)
        assert best[at] == single.argmax_upper(4.0, exclude=indices[at])
        alone = single.posterior(X[(slice(None), *at)])
        equal(found.mean[(slice(None), *at)], alone.mean)
        equal(found.variance[(slice(None), *at)], alone.variance)


@pytest.mark.parametrize("kernel", ["rbf", "rq"])
def test_many_candidates_take_the_same_way_in_parts(kernel, monkeypatch):
    candidates = torch.rand(7, N, D, dtype=DOUBLE)
    models = []
    for cached in (1 << 16, 3 * N):
        monkeypatch.setattr("dpbo.models.kernel_rows._CACHED", cached)
        torch.manual_seed(1)
        model, indices, _ = observed(KERNELS[kernel](D), candidates)
        models.append((model.mean, model.variance, model.argmax_upper(4.0, exclude=indices)))
    for together, parts in zip(*models, strict=True):
        equal(together, parts)


def test_copies_hold_the_rows_that_were_written_and_go_on():
    runs = torch.Size([3])
    model, _, _ = observed(
        batch_of_kernels_and_rows(runs), torch.rand(N, D, dtype=DOUBLE), batch_shape=runs
    )
    others = torch.rand(N, D, dtype=DOUBLE)
    loaded = FiniteGP(others, batch_of_kernels_and_rows(runs), NOISE, batch_shape=runs)
    loaded.load_state_dict(model.state_dict())
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded]
    for each in (model, *copies):
        each.observe(4, 0.7)
    X = torch.rand(2, D, dtype=DOUBLE)
    for each in copies:
        assert torch.equal(each.observed, model.observed)
        assert torch.equal(each.mean, model.mean)
        assert torch.equal(each.posterior(X).variance, model.posterior(X).variance)
        each.forget()
        assert each.mean.eq(MEAN).all()
    assert model.state_dict()["_V"].shape[1] == T + 1


def test_conditioning_on_candidates_leaves_the_model_and_equals_observing():
    for kernel in ("matern", "a kernel and a row's own variance a run"):
        runs = () if kernel == "matern" else (3,)
        candidates = torch.rand(*runs, N, D, dtype=DOUBLE)
        model, _, _ = observed(BATCHED[kernel](torch.Size(runs)), candidates)
        before = model.mean.clone()
        X = candidates[..., [5, 9], :]
        Y = torch.randn(4, *runs, 2, 1, dtype=DOUBLE)
        conditioned = model.condition_on_observations(X, Y)
        assert conditioned.batch_shape == (4, *runs)
        assert torch.equal(model.mean, before)
        expected = copy.deepcopy(model)
        for j, index in enumerate((5, 9)):
            expected.observe(index, Y[2, ..., j, 0])
        equal(conditioned.mean[2], expected.mean)
        points = torch.rand(2, D, dtype=DOUBLE)
        equal(conditioned.posterior(points).variance[2], expected.posterior(points).variance)
        with pytest.raises(InputError, match=r"^X=.* candidates, bit for bit"):
            model.condition_on_observations(X + 1e-9, Y)
        with pytest.raises(InputError, match=r"^Y="):
            model.condition_on_observations(X, Y[..., :1, :])
        with pytest.raises(UnsupportedError):
            model.condition_on_observations(X, Y, noise=torch.ones_like(Y))


def test_many_observations_of_one_candidate_stay_sound_and_forgetting_starts_anew():
    model = FiniteGP(torch.rand(N, D, dtype=DOUBLE), squared_exponential(0.5), 1e-8)
    for _ in range(50):
        model.observe(3, 1.0)
    assert 0.0 <= float(model.variance[3]) < 1e-8
    assert abs(float(model.mean[3]) - 1.0) < 1e-6
    model.forget()
    assert model.num_observations == 0
    assert torch.equal(model.mean, torch.zeros(N, dtype=DOUBLE))
    assert torch.equal(model.variance, torch.ones(N, dtype=DOUBLE))


def test_what_is_no_observation_is_refused():
    model = FiniteGP(torch.rand(N, D, dtype=DOUBLE), squared_exponential(0.5), NOISE)
    for index, value, name in ((N, 0.0, "index"), (0, math.nan, "value")):
        with pytest.raises(InputError, match=f"^{name}="):
            model.observe(index, value)
    with pytest.raises(InputError, match=r"^exclude="):
        model.argmax_upper(1.0, exclude=torch.tensor(0))
    assert model.num_observations == 0


def test_batch_shapes_that_do_not_broadcast_are_refused():
    candidates = torch.rand(2, N, D, dtype=DOUBLE)
    with pytest.raises(InputError, match=r"^candidates="):
        FiniteGP(candidates, squared_exponential(0.5), NOISE, batch_shape=(3,))
    with pytest.raises(InputError, match=r"^kernel="):
        FiniteGP(candidates, batch_of_kernels(torch.Size([3])), NOISE)
    with pytest.raises(InputError, match=r"^candidates="):
        FiniteGP(candidates.float(), squared_exponential(0.5), NOISE)
    model = FiniteGP(candidates, squared_exponential(0.5), NOISE)
    with pytest.raises(InputError, match=r"^X="):
        model.posterior(torch.rand(3, 1, D, dtype=DOUBLE))


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
    for spread, scale in ((1e3, 2.0**-24), (1e6, 1.0)):
        candidates = clusters(spread)
        model = FiniteGP(scale * candidates, form(scale), NOISE)
        close(model, FORMS[form]((candidates.unsqueeze(-2) - candidates).square().sum(-1)))
    near = torch.rand(197, D, dtype=DOUBLE)
    lengths = torch.tensor([0.3, 0.6], dtype=DOUBLE)
    K = torch.eye(200, dtype=DOUBLE)
    K[:-3, :-3] = FORMS[form](((near.unsqueeze(-2) - near) / lengths).square().sum(-1))
    apart = torch.tensor([[1.0], [0.5], [-1.0]], dtype=DOUBLE).expand(3, D)
    for far in (1e6, 1.7e308):
        close(FiniteGP(torch.cat([near, far * apart]), form(lengths), NOISE), K)
