"""GradientGP's gradient against finite differences of `posterior`, in the units of Y."""

import pytest
import torch
from botorch.models.transforms.input import Normalize
from botorch.models.transforms.outcome import ChainedOutcomeTransform, Standardize
from gpytorch.kernels import CosineKernel, Kernel, MaternKernel, RBFKernel, ScaleKernel

from dpbo.errors import InputError, UsageError
from dpbo.gibo import GradientGP
from dpbo.models.kernels import ClampFromInside, kernel_derivatives
from tests.unit.models.kernels import DOUBLE, KERNELS, Exponential

D = 2
H = 1e-4


def model(d=D, kernel="rbf-isotropic-scaled", **settings):
    X = torch.rand(8, d, dtype=DOUBLE)
    Y = 5.0 + 3.0 * torch.sin(3.0 * X.sum(-1, keepdim=True))
    gp = GradientGP(X, Y, covar_module=KERNELS[kernel](d), **settings)
    gp.mean_module.constant = torch.tensor(0.4, dtype=DOUBLE)
    return gp.eval()


def differences(gp, X):
    """Mean and covariance of ((f(x + h e_j) - f(x - h e_j)) / 2h)_j for each row of X, from
    `posterior` alone.
    """
    q, d = X.shape
    shifts = H * torch.cat([torch.eye(d, dtype=DOUBLE), -torch.eye(d, dtype=DOUBLE)])
    around = (X.unsqueeze(1) + shifts).reshape(-1, d)
    A = torch.block_diag(
        *[torch.cat([torch.eye(d), -torch.eye(d)], dim=1).to(DOUBLE) / (2.0 * H)] * q
    )
    with torch.no_grad():
        values = gp.posterior(around)
        return (A @ values.mean).reshape(q, d), A @ values.mvn.covariance_matrix @ A.T


@pytest.mark.parametrize("kernel", ["rbf-isotropic-scaled", "matern", "poly2", "rq"])
def test_against_finite_differences(kernel):
    for d, transform in ((D, None), (D, Standardize(m=1)), (1, None)):
        gp = model(d, kernel, outcome_transform=transform)
        X = torch.rand(3, d, dtype=DOUBLE)
        mean, covariance = differences(gp, X)
        posterior = gp.gradient_posterior(X)
        torch.testing.assert_close(posterior.mean, mean, rtol=1e-5, atol=1e-5)
        scale = float(covariance.abs().max())
        torch.testing.assert_close(
            posterior.mvn.covariance_matrix, covariance, rtol=1e-3, atol=1e-3 * scale
        )
        # in training mode too
        gp.train()
        torch.testing.assert_close(gp.gradient_posterior(X).mean, posterior.mean)


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
        pytest.param(lambda square: square.clamp(0.0), id="clamp"),
        pytest.param(lambda square: torch.clamp(square, min=0.0, max=9.0), id="torch-clamp"),
        pytest.param(lambda square: square.clamp_min(0), id="clamp-min"),
        pytest.param(lambda square: square.clamp_min_(torch.zeros(())), id="clamp-min-in-place"),
        pytest.param(lambda square: torch.clip(square, 0.0), id="clip"),
    ],
)
def test_a_kernel_of_a_users_own_has_its_curvature_where_two_points_meet(clamp):
    derivatives = kernel_derivatives(InverseQuadratic(clamp).double())
    at = torch.rand(D, dtype=DOUBLE)
    torch.testing.assert_close(derivatives.prior(at), 2.0 * torch.eye(D, dtype=DOUBLE))
    step = 0.3 * torch.ones(D, dtype=DOUBLE)
    r2 = float(step.square().sum())
    off_diagonal = -8.0 * torch.outer(step, step) / (1.0 + r2) ** 3
    expected = off_diagonal + 2.0 * torch.eye(D, dtype=DOUBLE) / (1.0 + r2) ** 2
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


def test_with_known_noise():
    X = torch.rand(8, D, dtype=DOUBLE)
    gp = (
        GradientGP(
            X,
            X.sum(-1, keepdim=True).sin(),
            train_Yvar=torch.linspace(1e-3, 1e-1, 8, dtype=DOUBLE).unsqueeze(-1),
        )
        .double()
        .eval()
    )
    at = torch.rand(2, D, dtype=DOUBLE)
    torch.testing.assert_close(
        gp.gradient_posterior(at).mean, differences(gp, at)[0], rtol=1e-5, atol=1e-5
    )


def test_batches_equal_loops():
    gp = model()
    X = torch.rand(4, 3, D, dtype=DOUBLE)
    batch = gp.gradient_posterior(X)
    assert batch.mean.shape == (4, 3, D)
    for i in range(4):
        single = gp.gradient_posterior(X[i])
        torch.testing.assert_close(batch.mean[i], single.mean)
        torch.testing.assert_close(batch.mvn.covariance_matrix[i], single.mvn.covariance_matrix)
    assert batch.rsample(torch.Size([5])).shape == (5, 4, 3, D)
    many = torch.rand(2, 6, D, dtype=DOUBLE)
    Y = torch.rand(2, 6, 1, dtype=DOUBLE)
    models = GradientGP(many, Y).eval().gradient_posterior(X[:2]).mean
    for i in range(2):
        torch.testing.assert_close(
            models[i], GradientGP(many[i], Y[i]).eval().gradient_posterior(X[i]).mean
        )


def test_what_is_refused():
    X = torch.rand(6, D, dtype=DOUBLE)
    Y = torch.rand(6, 1, dtype=DOUBLE) + 1.0
    chained = ChainedOutcomeTransform(s=Standardize(m=1))
    for gp, at, message in (
        (model(), X.float(), r"\.double\(\)"),
        (model(), X / 0.0, "X must be finite"),
        (GradientGP(X, Y.expand(6, 2)), X, "num_outputs"),
        (GradientGP(X, Y, input_transform=Normalize(d=D)), X, "input_transform"),
        (GradientGP(X, Y, outcome_transform=chained), X, "outcome_transform"),
    ):
        with pytest.raises(InputError, match=message):
            gp.gradient_posterior(at)
    cosine = GradientGP(
        X, Y, torch.full((6, 1), 1e-6, dtype=DOUBLE), covar_module=CosineKernel().double()
    )
    with pytest.raises(UsageError, match=r"noise is too small.*train_Yvar"):
        cosine.gradient_posterior(X)
    for rough in (Exponential(), ScaleKernel(Exponential()), RBFKernel() + MaternKernel(nu=1.5)):
        with pytest.raises(InputError, match="twice differentiable"):
            GradientGP(X, Y, covar_module=rough.double()).gradient_posterior(
                X[:2].clone().requires_grad_()
            )
