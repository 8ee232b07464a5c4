"""Closed forms against torch.func on the kernels' definitions, and the products against explicit sums."""

import gpytorch
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from dpbo.errors import InputError
from dpbo.models import derivatives
from tests.unit.models.kernels import DOUBLE, KERNELS, Exponential, by_both, by_first, dense, k

D, N, M = 3, 5, 4


@pytest.fixture(params=KERNELS)
def kernel(request):
    return KERNELS[request.param](D)


@pytest.fixture
def points():
    return [torch.randn(*shape, dtype=DOUBLE) for shape in ((D,), (N, D), (M, D))]


def close(given, expected):
    torch.testing.assert_close(given, expected, rtol=1e-12, atol=1e-12)


def test_values_and_variances(kernel, points):
    _, X, Z = points
    form = derivatives(kernel)
    close(form.value(X, Z), dense(kernel, X, Z))
    close(form.value(X, Z), torch.stack([torch.stack([k(kernel, x, z) for z in Z]) for x in X]))
    close(form.variances(X), form.value(X, X).diagonal())


def test_gradients_and_mixed_derivatives(kernel, points):
    theta, _, Z = points
    form = derivatives(kernel)
    close(form.gradient(theta, Z), torch.stack([by_first(kernel, theta, z) for z in Z], dim=-1))
    close(form.mixed(theta, Z), torch.stack([by_both(kernel, theta, z) for z in Z]))


def test_products(kernel, points):
    theta, X, Z = points
    form = derivatives(kernel)
    C, P = torch.randn(N, M, dtype=DOUBLE), torch.randn(D, M, dtype=DOUBLE)
    expected = torch.stack([sum(C[n, i] * by_first(kernel, z, X[n]) for n in range(N)) for i, z in enumerate(Z)])
    close(form.values(X, Z)[1](C), expected)
    close(form.gradients(theta, Z)[1](P), torch.einsum("ijk,ji->ik", form.mixed(theta, Z), P))


@pytest.mark.parametrize("name", KERNELS)
def test_prior_is_what_autograd_says_or_its_limit(name, points):
    theta, kernel = points[0], KERNELS[name](D)
    if "matern" in name:
        torch.testing.assert_close(derivatives(kernel).prior(theta), by_both(kernel, theta, theta + 1e-5), rtol=1e-7, atol=1e-7)
    else:
        close(derivatives(kernel).prior(theta), by_both(kernel, theta, theta))


def test_prior_of_matern_in_closed_form():
    kernel = KERNELS["matern-scaled"](D)
    expected = torch.diag(5.0 / 3.0 * kernel.outputscale.detach() / kernel.base_kernel.lengthscale.detach().squeeze() ** 2)
    close(derivatives(kernel).prior(torch.zeros(D, dtype=DOUBLE)), expected)


def test_a_batch_of_runs_equals_a_loop(kernel):
    theta, X, Z = (torch.randn(2, *shape, dtype=DOUBLE) for shape in ((D,), (N, D), (M, D)))
    form = derivatives(kernel)
    close(form.value(X, Z), torch.stack([form.value(*pair) for pair in zip(X, Z, strict=True)]))
    close(form.gradient(theta, Z), torch.stack([form.gradient(*pair) for pair in zip(theta, Z, strict=True)]))
    close(form.mixed(theta, Z), torch.stack([form.mixed(*pair) for pair in zip(theta, Z, strict=True)]))
    close(form.prior(theta), torch.stack([form.prior(one) for one in theta]))


def test_a_batch_of_kernels_equals_a_loop():
    kernel = ScaleKernel(RBFKernel(batch_shape=torch.Size([2])), batch_shape=torch.Size([2])).double()
    kernel.outputscale = torch.tensor([0.5, 2.0], dtype=DOUBLE)
    kernel.base_kernel.lengthscale = torch.tensor([0.4, 1.5], dtype=DOUBLE).view(2, 1, 1)
    theta, Z = torch.randn(2, D, dtype=DOUBLE), torch.randn(2, M, D, dtype=DOUBLE)
    for run in range(2):
        single = ScaleKernel(RBFKernel()).double()
        single.outputscale, single.base_kernel.lengthscale = kernel.outputscale[run], kernel.base_kernel.lengthscale[run]
        close(derivatives(kernel).value(Z, Z)[run], derivatives(single).value(Z[run], Z[run]))
        close(derivatives(kernel).mixed(theta, Z)[run], derivatives(single).mixed(theta[run], Z[run]))
        close(derivatives(kernel).prior(theta)[run], derivatives(single).prior(theta[run]))


def test_far_from_the_origin_nothing_cancels():
    kernel = KERNELS["rbf"](D)
    Z = torch.randn(M, D, dtype=DOUBLE)
    torch.testing.assert_close(derivatives(kernel).value(Z + 1e4, Z + 1e4), derivatives(kernel).value(Z, Z), rtol=0.0, atol=1e-11)


def test_active_dimensions(points):
    theta, _, Z = points
    whole, part = derivatives(RBFKernel(active_dims=(0, 2)).double()), derivatives(RBFKernel().double())
    close(whole.mixed(theta, Z)[:, ::2, ::2], part.mixed(theta[::2], Z[:, ::2]))
    assert whole.mixed(theta, Z)[:, 1].abs().max() == 0.0


def test_kernels_without_a_gradient_are_refused_also_within_others(points):
    for kernel in (MaternKernel(nu=0.5), MaternKernel(nu=1.5), MaternKernel(nu=2.5) * RBFKernel(), Exponential()):
        for within in (kernel, ScaleKernel(kernel), kernel + RBFKernel(), ScaleKernel(ScaleKernel(kernel) + RBFKernel())):
            with pytest.raises(InputError, match="twice differentiable"):
                derivatives(within.double()).prior(points[0])
    with pytest.raises(InputError, match=r"\.double\(\)"):
        derivatives(RBFKernel())


def test_hyperparameters_are_read_once(kernel, points):
    theta, X, _ = points
    form = derivatives(kernel)
    before = form.gradient(theta, X)
    for parameter in kernel.parameters():
        parameter.data += 1.0
    assert torch.equal(form.gradient(theta, X), before)
    assert not before.requires_grad
    assert gpytorch.settings.trace_mode.off()
