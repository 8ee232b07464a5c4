"""GradientInformation against the trace written out, and inside BoTorch's optimiser."""

import pytest
import torch
from botorch.models.transforms.input import Normalize
from botorch.optim import optimize_acqf

from dpbo.acquisition import GradientInformation
from dpbo.errors import InputError
from dpbo.models import GradientGP, GradientPosterior
from tests.models.kernels import DOUBLE, KERNELS, dense

D, N, Q = 3, 6, 2
NOISE, JITTER = 1e-3, 1e-6


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(params=KERNELS)
def kernel(request):
    return KERNELS[request.param](D)


def posterior(kernel, n=N):
    history = GradientPosterior(kernel, NOISE, jitter=JITTER)
    if n:
        history.append(torch.randn(n, D, dtype=DOUBLE))
    return history


def trace(history, kernel, theta, Z):
    """tr(prior - G (K + D)^-1 G^T) with everything stacked."""
    everything = torch.cat([history.points(theta), Z])
    K = dense(kernel, everything, everything)
    G = history.derivatives.gradient(theta, everything)
    A = K + torch.diag(NOISE + JITTER * K.diagonal())
    return (history.derivatives.prior(theta) - G @ torch.linalg.solve(A, G.mT)).trace()


@pytest.mark.parametrize("n", [0, N])
def test_value_is_minus_the_trace(kernel, n):
    history, theta = posterior(kernel, n), torch.randn(D, dtype=DOUBLE)
    X = theta + 0.3 * torch.randn(4, Q, D, dtype=DOUBLE)
    expected = torch.stack([-trace(history, kernel, theta, Z) for Z in X])
    torch.testing.assert_close(GradientInformation(history, theta)(X), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("n", [0, N])
def test_gradient(kernel, n):
    theta = torch.randn(D, dtype=DOUBLE)
    acquisition = GradientInformation(posterior(kernel, n), theta)
    X = (theta + 0.5 * torch.randn(2, Q, D, dtype=DOUBLE)).requires_grad_()
    assert torch.autograd.gradcheck(acquisition, X)


def test_larger_is_better_and_0_is_best():
    theta = torch.zeros(D, dtype=DOUBLE)
    acquisition = GradientInformation(posterior(KERNELS["rbf"](D), 0), theta)
    near = 0.3 * torch.cat([torch.eye(D, dtype=DOUBLE), -torch.eye(D, dtype=DOUBLE)])
    assert float(acquisition(near + 5.0)) < float(acquisition(near)) < 0.0


def test_pending_points_are_history(kernel):
    history, theta = posterior(kernel), torch.randn(D, dtype=DOUBLE)
    X, pending = torch.randn(5, Q, D, dtype=DOUBLE), torch.randn(3, D, dtype=DOUBLE)
    acquisition = GradientInformation(history, theta)
    without = acquisition(X)
    acquisition.set_X_pending(pending)
    torch.testing.assert_close(acquisition(X), GradientInformation(history.conditioned_on(pending), theta)(X))
    acquisition.set_X_pending(None)
    assert torch.equal(acquisition(X), without)
    assert len(history) == N


@pytest.mark.parametrize("sequential", [False, True])
def test_optimize_acqf_improves_within_bounds(sequential):
    theta = torch.full((D,), 0.5, dtype=DOUBLE)
    history = GradientPosterior(KERNELS["rbf"](D), NOISE)
    history.append(torch.rand(N, D, dtype=DOUBLE))
    acquisition, bounds = GradientInformation(history, theta), torch.tensor([[0.4] * D, [0.6] * D], dtype=DOUBLE)
    X, _ = optimize_acqf(acquisition, bounds, q=Q, num_restarts=2, raw_samples=8, sequential=sequential, options={"seed": 1})
    acquisition.set_X_pending(None)
    assert X.shape == (Q, D)
    assert bool(((X >= bounds[0]) & (X <= bounds[1])).all())
    random = bounds[0] + 0.2 * torch.rand(64, Q, D, dtype=DOUBLE)
    assert float(acquisition(X)) > float(acquisition(random).max())


def test_a_model_gives_its_kernel_noise_and_points():
    X = torch.rand(N, D, dtype=DOUBLE)
    model = GradientGP(X, X.sum(-1, keepdim=True).sin(), covar_module=KERNELS["matern"](D), outcome_transform=None).eval()
    theta, Z = torch.rand(D, dtype=DOUBLE), torch.rand(Q, D, dtype=DOUBLE)
    history = GradientPosterior(model.covar_module, model.likelihood.noise.item())
    history.append(X)
    torch.testing.assert_close(GradientInformation(model, theta)(Z), GradientInformation(history, theta)(Z))


def test_a_model_agrees_with_its_own_gradient_posterior():
    X = torch.rand(N, D, dtype=DOUBLE)
    model = GradientGP(X, X.sum(-1, keepdim=True).sin(), covar_module=KERNELS["matern"](D), outcome_transform=None).eval()
    theta = torch.rand(D, dtype=DOUBLE)
    covariance = model.gradient_posterior(theta.unsqueeze(0)).mvn.covariance_matrix
    far = torch.full((1, D), 1e3, dtype=DOUBLE)
    torch.testing.assert_close(-GradientInformation(model, theta)(far), covariance.trace().view(1), rtol=1e-5, atol=1e-5)


def test_what_is_refused():
    history, theta = posterior(KERNELS["rbf"](D)), torch.randn(D, dtype=DOUBLE)
    with pytest.raises(InputError, match=r"\.double\(\)"):
        GradientInformation(history, theta.float())
    with pytest.raises(InputError, match=r"\.double\(\)"):
        GradientInformation(history, theta)(torch.rand(Q, D))
    for wild in (float("nan"), float("inf")):
        with pytest.raises(InputError, match="theta='not finite'"):
            GradientInformation(history, theta + wild)
        with pytest.raises(InputError, match="X='not finite'"):
            GradientInformation(history, theta)(torch.full((Q, D), wild, dtype=DOUBLE))
    X = torch.rand(N, D, dtype=DOUBLE)
    uneven = GradientGP(X, X[:, :1], train_Yvar=torch.linspace(0.1, 1.0, N, dtype=DOUBLE).unsqueeze(-1))
    with pytest.raises(InputError, match="one noise variance"):
        GradientInformation(uneven, theta)
    for model in (GradientGP(X, X[:, :2]), GradientGP(X, X[:, :1], input_transform=Normalize(d=D))):
        with pytest.raises(InputError, match="one outcome"):
            GradientInformation(model, theta)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_on_cuda():
    theta, X, points = torch.randn(D, dtype=DOUBLE), torch.randn(4, Q, D, dtype=DOUBLE), torch.randn(N, D, dtype=DOUBLE)
    values = []
    for device in ("cpu", "cuda"):
        history = GradientPosterior(KERNELS["matern"](D).to(device), NOISE)
        history.append(points.to(device))
        values.append(GradientInformation(history, theta.to(device))(X.to(device)).cpu())
    torch.testing.assert_close(*values, rtol=1e-9, atol=1e-9)
