"""GradientInformation against the trace written out, and inside BoTorch's optimiser."""

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import Log10, Normalize
from gpytorch.kernels import RBFKernel

from dpbo.errors import InputError
from dpbo.gibo import GradientInformation, GradientPosterior
from tests.setups import DOUBLE
from tests.unit.models.kernels import KERNELS, dense

D = 3
N = 6
Q = 2
NOISE = 1e-3
JITTER = 1e-6


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
@pytest.mark.parametrize("name", ["matern-scaled", "rq"])
def test_value_is_minus_the_trace_and_its_gradient_that_of_autograd(name, n):
    kernel = KERNELS[name](D)
    history = posterior(kernel, n)
    theta = torch.randn(D, dtype=DOUBLE)
    acquisition = GradientInformation(history, theta)
    X = theta + 0.3 * torch.randn(4, Q, D, dtype=DOUBLE)
    expected = torch.stack([-trace(history, kernel, theta, Z) for Z in X])
    torch.testing.assert_close(acquisition(X), expected, rtol=1e-9, atol=1e-9)
    assert torch.autograd.gradcheck(
        acquisition, (theta + 0.5 * torch.randn(2, Q, D, dtype=DOUBLE)).requires_grad_()
    )


def test_pending_points_are_history():
    history = posterior(KERNELS["rq"](D))
    theta = torch.randn(D, dtype=DOUBLE)
    X = torch.randn(5, Q, D, dtype=DOUBLE)
    pending = torch.randn(3, D, dtype=DOUBLE)
    acquisition = GradientInformation(history, theta)
    without = acquisition(X)
    acquisition.set_X_pending(pending)
    torch.testing.assert_close(
        acquisition(X), GradientInformation(history.conditioned_on(pending), theta)(X)
    )
    acquisition.set_X_pending(None)
    assert torch.equal(acquisition(X), without)


def test_an_affine_input_transform_is_carried():
    X = 3.0 + 5.0 * torch.rand(N, D, dtype=DOUBLE)
    model = SingleTaskGP(
        X, X.sum(-1, keepdim=True), covar_module=KERNELS["rbf"](D), input_transform=Normalize(d=D)
    )
    kernel = RBFKernel(ard_num_dims=D).double()
    kernel.lengthscale = model.covar_module.lengthscale * (X.amax(0) - X.amin(0))
    history = GradientPosterior(kernel, model.likelihood.noise.item()).conditioned_on(X)
    theta = X.mean(0)
    Z = theta + torch.rand(4, Q, D, dtype=DOUBLE)
    expected = GradientInformation(history, theta)(Z)
    for state in (model.train(), model.eval()):
        torch.testing.assert_close(GradientInformation(state, theta)(Z), expected)


X = torch.linspace(0.1, 1.0, N * D, dtype=DOUBLE).reshape(N, D)


@pytest.mark.parametrize(
    ("Y", "settings", "message"),
    [
        pytest.param(
            X[:, :1],
            {"train_Yvar": torch.linspace(0.1, 1.0, N, dtype=DOUBLE).unsqueeze(-1)},
            "one noise variance",
            id="noises",
        ),
        pytest.param(X[:, :2], {}, "one outcome", id="outcomes"),
        pytest.param(
            X[:, :1],
            {"input_transform": Log10(indices=[0]), "covar_module": RBFKernel().double()},
            "^input_transform=",
            id="input transform",
        ),
    ],
)
def test_a_model_of_several_outcomes_or_noises_is_refused(Y, settings, message):
    with pytest.raises(InputError, match=message):
        GradientInformation(SingleTaskGP(X, Y, **settings), torch.zeros(D, dtype=DOUBLE))
