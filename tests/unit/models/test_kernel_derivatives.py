"""Closed forms against torch.func on the kernels' definitions, and the products against explicit
sums.
"""

import gpytorch
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, RQKernel, ScaleKernel

from dpbo.errors import InputError
from dpbo.models.kernels import kernel_derivatives
from tests.unit.models.kernels import DOUBLE, KERNELS, Exponential, by_both, by_first, dense, k

D = 3
N = 5
M = 4


@pytest.fixture(params=KERNELS)
def kernel(request):
    return KERNELS[request.param](D)


@pytest.fixture
def points():
    return [torch.randn(*shape, dtype=DOUBLE) for shape in ((D,), (N, D), (M, D))]


def close(given, expected):
    torch.testing.assert_close(given, expected, rtol=1e-12, atol=1e-12)


def test_values_derivatives_and_products(kernel, points):
    theta, X, Z = points
    form = kernel_derivatives(kernel)
    close(form.value(X, Z), dense(kernel, X, Z))
    close(form.value(X, Z), torch.stack([torch.stack([k(kernel, x, z) for z in Z]) for x in X]))
    close(form.variances(X), form.value(X, X).diagonal())
    close(form.gradient(theta, Z), torch.stack([by_first(kernel, theta, z) for z in Z], dim=-1))
    close(form.mixed(theta, Z), torch.stack([by_both(kernel, theta, z) for z in Z]))
    C = torch.randn(N, M, dtype=DOUBLE)
    P = torch.randn(D, M, dtype=DOUBLE)
    expected = torch.stack(
        [sum(C[n, i] * by_first(kernel, z, X[n]) for n in range(N)) for i, z in enumerate(Z)]
    )
    close(form.values(X, Z)[1](C), expected)
    close(form.gradients(theta, Z)[1](P), torch.einsum("ijk,ji->ik", form.mixed(theta, Z), P))


@pytest.mark.parametrize("name", KERNELS)
def test_prior_is_what_autograd_says_or_its_limit(name, points):
    theta = points[0]
    kernel = KERNELS[name](D)
    if "matern" in name:
        torch.testing.assert_close(
            kernel_derivatives(kernel).prior(theta),
            by_both(kernel, theta, theta + 1e-5),
            rtol=1e-7,
            atol=1e-7,
        )
    else:
        close(kernel_derivatives(kernel).prior(theta), by_both(kernel, theta, theta))


def test_active_dimensions_and_points_far_from_the_origin(points):
    theta, _, Z = points
    whole = kernel_derivatives(RBFKernel(active_dims=(0, 2)).double())
    part = kernel_derivatives(RBFKernel().double())
    close(whole.mixed(theta, Z)[:, ::2, ::2], part.mixed(theta[::2], Z[:, ::2]))
    assert whole.mixed(theta, Z)[:, 1].abs().max() == 0.0
    form = kernel_derivatives(KERNELS["rbf"](D))
    Z = torch.randn(M, D, dtype=DOUBLE)
    torch.testing.assert_close(form.value(Z + 1e4, Z + 1e4), form.value(Z, Z), rtol=0.0, atol=1e-11)


def test_kernels_without_a_gradient_are_refused_also_within_others(points):
    for kernel in (
        MaternKernel(nu=0.5),
        MaternKernel(nu=1.5),
        MaternKernel(nu=2.5) * RBFKernel(),
        Exponential(),
    ):
        for within in (
            kernel,
            ScaleKernel(kernel),
            kernel + RBFKernel(),
            ScaleKernel(ScaleKernel(kernel) + RBFKernel()),
        ):
            with pytest.raises(InputError, match="twice differentiable"):
                kernel_derivatives(within.double()).prior(points[0])
    with pytest.raises(InputError, match=r"\.double\(\)"):
        kernel_derivatives(RBFKernel())


def test_hyperparameters_are_read_once(kernel, points):
    theta, X, _ = points
    form = kernel_derivatives(kernel)
    before = form.gradient(theta, X)
    for parameter in kernel.parameters():
        parameter.data += 1.0
    assert torch.equal(form.gradient(theta, X), before)
    assert not before.requires_grad
    assert gpytorch.settings.trace_mode.off()


@pytest.mark.parametrize("length", [1e-5, 1.0, 1e5])
def test_the_prior_is_a_finite_difference_whatever_the_scale_of_the_inputs(length):
    kernel = RQKernel().double()
    kernel.lengthscale = length
    theta = length * torch.tensor([0.3, 0.7], dtype=DOUBLE)
    step = 1e-3 * length
    moved = theta + torch.tensor([step, 0.0], dtype=DOUBLE)
    K = dense(kernel, torch.stack([theta, moved]), torch.stack([theta, moved]))
    difference = (K[0, 0] - 2.0 * K[0, 1] + K[1, 1]) / step**2
    torch.testing.assert_close(
        kernel_derivatives(kernel).prior(theta)[0, 0], difference, rtol=1e-5, atol=0.0
    )
