"""Closed forms against torch.func on the kernels' definitions, and the products against explicit
sums.
"""

import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel

from dpbo.errors import InputError
from dpbo.models.kernels import ClampFromInside, kernel_derivatives
from tests.setups import DOUBLE
from tests.unit.models.kernels import KERNELS, by_both, by_first, dense, k

D = 3
N = 5
M = 4


@pytest.fixture
def points():
    return [torch.randn(*shape, dtype=DOUBLE) for shape in ((D,), (N, D), (M, D))]


def close(given, expected):
    torch.testing.assert_close(given, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", KERNELS)
def test_values_derivatives_and_products(name, points):
    kernel = KERNELS[name](D)
    theta, X, Z = points
    form = kernel_derivatives(kernel)
    close(form.value(X, Z), dense(kernel, X, Z))
    close(form.value(X, Z), torch.stack([torch.stack([k(kernel, x, z) for z in Z]) for x in X]))
    close(form.variances(X), form.value(X, X).diagonal())
    close(form.gradient(theta, Z), torch.stack([by_first(kernel, theta, z) for z in Z], dim=-1))
    close(form.mixed(theta, Z), torch.stack([by_both(kernel, theta, z) for z in Z]))
    # its limit, where autograd finds none at the point itself
    limit = by_both(kernel, theta, theta + 1e-5 * ("matern" in name))
    torch.testing.assert_close(form.prior(theta), limit, rtol=1e-7, atol=1e-7)
    C = torch.randn(N, M, dtype=DOUBLE)
    P = torch.randn(D, M, dtype=DOUBLE)
    expected = torch.stack(
        [sum(C[n, i] * by_first(kernel, z, X[n]) for n in range(N)) for i, z in enumerate(Z)]
    )
    close(form.values(X, Z)[1](C), expected)
    close(form.gradients(theta, Z)[1](P), torch.einsum("ijk,ji->ik", form.mixed(theta, Z), P))


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
    for kernel in (MaternKernel(nu=0.5), MaternKernel(nu=1.5), MaternKernel(nu=2.5) * RBFKernel()):
        for within in (kernel, ScaleKernel(ScaleKernel(kernel) + RBFKernel())):
            with pytest.raises(InputError, match="twice differentiable"):
                kernel_derivatives(within.double()).prior(points[0])
    with pytest.raises(InputError, match=r"\.double\(\)"):
        kernel_derivatives(RBFKernel())


class InverseQuadratic(Kernel):  # type: ignore[misc]
    """1 / (1 + |x - z|^2), as a user may write it: `clamp` keeps rounding from making the distance
    negative.
    """

    def __init__(self, clamp):
        super().__init__()
        self.clamp = clamp

    def forward(self, x1, x2, diag=False, **params):
        differences = x1 - x2 if diag else x1.unsqueeze(-2) - x2.unsqueeze(-3)
        return 1.0 / (1.0 + self.clamp(differences.square().sum(-1)))


@pytest.mark.parametrize(
    "clamp",
    [
        pytest.param(lambda square: square, id="none"),
        pytest.param(lambda square: torch.clamp(square, min=0.0, max=9.0), id="torch-clamp"),
        pytest.param(lambda square: square.clamp_min_(torch.zeros(())), id="clamp-min-in-place"),
    ],
)
def test_a_kernel_of_a_users_own_has_its_curvature_where_two_points_meet(clamp):
    derivatives = kernel_derivatives(InverseQuadratic(clamp).double())
    at = torch.rand(2, dtype=DOUBLE)
    torch.testing.assert_close(derivatives.prior(at), 2.0 * torch.eye(2, dtype=DOUBLE))
    step = 0.3 * torch.ones(2, dtype=DOUBLE)
    r2 = float(step.square().sum())
    off_diagonal = -8.0 * torch.outer(step, step) / (1.0 + r2) ** 3
    expected = off_diagonal + 2.0 * torch.eye(2, dtype=DOUBLE) / (1.0 + r2) ** 2
    torch.testing.assert_close(derivatives.mixed(at, (at + step).unsqueeze(0))[0], expected)


@pytest.mark.parametrize(
    "kinked",
    [
        pytest.param(lambda x, z: (1.0 - (x - z).abs()).clamp(min=0.0), id="triangle"),
        pytest.param(torch.minimum, id="Brownian"),
        pytest.param(lambda x, z: x - (x - z).clamp(min=0.0), id="Brownian-clamped"),
        pytest.param(lambda x, z: torch.exp(-(x - z).square()) + (x == z), id="white"),
        pytest.param(lambda x, z: torch.exp(-(x - z).square().detach()), id="detached"),
        pytest.param(lambda x, z: torch.exp(-(x - z).square()) * torch.nan, id="NaN"),
    ],
)
def test_a_kernel_whose_process_has_no_gradient_or_whose_code_hides_it_is_refused(kinked):
    class Kinked(Kernel):  # type: ignore[misc]
        def forward(self, x1, x2, diag=False, **params):
            return kinked(x1, x2.mT)

    with pytest.raises(InputError, match="twice differentiable"):
        kernel_derivatives(Kinked().double()).prior(torch.tensor([0.7], dtype=DOUBLE))


def test_a_clamp_keeps_its_values():
    x = torch.tensor([-1.0, 0.0, 2.0, torch.nan, torch.inf], dtype=DOUBLE)
    for clamp in (
        lambda x: torch.clamp(input=x, min=0.0, max=1.0),
        lambda x: x.clamp(torch.zeros(5), torch.ones(())),
        lambda x: x.clone().clamp_max_(1.0),
        lambda x: torch.clamp_max(x, max=0.5),
        lambda x: torch.clip(x, -0.5, out=torch.empty_like(x)),
    ):
        with ClampFromInside():
            kept = clamp(x)
        torch.testing.assert_close(kept, clamp(x), rtol=0.0, atol=0.0, equal_nan=True)
