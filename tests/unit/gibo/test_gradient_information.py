"""GradientInformation against the trace written out, and inside BoTorch's optimiser."""

import pytest
import torch
from botorch.generation import gen_candidates_scipy
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import Log10, Normalize
from botorch.optim import optimize_acqf
from gpytorch.kernels import RBFKernel

from dpbo.errors import InputError
from dpbo.gibo import GradientInformation, GradientPosterior
from tests.setups import DOUBLE
from tests.unit.models.kernels import KERNELS, batched, dense

D = 3
N = 6
Q = 2
NOISE = 1e-3
JITTER = 1e-6


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
def test_value_is_minus_the_trace_and_its_gradient_that_of_autograd(kernel, n):
    history = posterior(kernel, n)
    theta = torch.randn(D, dtype=DOUBLE)
    acquisition = GradientInformation(history, theta)
    X = theta + 0.3 * torch.randn(4, Q, D, dtype=DOUBLE)
    expected = torch.stack([-trace(history, kernel, theta, Z) for Z in X])
    torch.testing.assert_close(acquisition(X), expected, rtol=1e-9, atol=1e-9)
    assert torch.autograd.gradcheck(
        acquisition, (theta + 0.5 * torch.randn(2, Q, D, dtype=DOUBLE)).requires_grad_()
    )


def test_pending_points_are_history(kernel):
    history = posterior(kernel)
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
    assert len(history) == N


@pytest.mark.parametrize("sequential", [False, True])
def test_optimize_acqf_improves_within_bounds(sequential):
    theta = torch.full((D,), 0.5, dtype=DOUBLE)
    history = GradientPosterior(KERNELS["rbf"](D), NOISE)
    history.append(torch.rand(N, D, dtype=DOUBLE))
    acquisition = GradientInformation(history, theta)
    bounds = torch.tensor([[0.4] * D, [0.6] * D], dtype=DOUBLE)
    X, _ = optimize_acqf(
        acquisition,
        bounds,
        q=Q,
        num_restarts=2,
        raw_samples=8,
        sequential=sequential,
        options={"seed": 1},
    )
    acquisition.set_X_pending(None)
    assert X.shape == (Q, D)
    assert bool(((X >= bounds[0]) & (X <= bounds[1])).all())
    random = bounds[0] + 0.2 * torch.rand(64, Q, D, dtype=DOUBLE)
    assert float(acquisition(X)) > float(acquisition(random).max())


def test_a_model_gives_its_kernel_noise_and_points():
    X = torch.rand(N, D, dtype=DOUBLE)
    model = SingleTaskGP(
        X, X.sum(-1, keepdim=True).sin(), covar_module=KERNELS["matern"](D), outcome_transform=None
    ).eval()
    theta = torch.rand(D, dtype=DOUBLE)
    Z = torch.rand(Q, D, dtype=DOUBLE)
    history = GradientPosterior(model.covar_module, model.likelihood.noise.item())
    history.append(X)
    torch.testing.assert_close(
        GradientInformation(model, theta)(Z), GradientInformation(history, theta)(Z)
    )


def test_models_and_points_in_batches_equal_loops():
    """A value for each run, of models, posteriors or thetas."""
    X = torch.rand(4, N, D, dtype=DOUBLE)
    Y = X.sum(-1, keepdim=True).sin()
    thetas = torch.rand(4, D, dtype=DOUBLE)
    Z = torch.rand(5, 4, Q, D, dtype=DOUBLE)
    pending = torch.rand(4, 2, D, dtype=DOUBLE)
    models = SingleTaskGP(X, Y, covar_module=batched("matern-scaled", D, 4)).eval()
    models.likelihood.noise = torch.rand(4, 1, dtype=DOUBLE)
    history = GradientPosterior(batched("rbf", D, 4), NOISE).conditioned_on(X)
    shared = posterior(KERNELS["rq"](D))
    for model, theta, known in (
        (models, thetas, None),
        (models, thetas[0], pending),
        (history, thetas, pending[0]),
        (shared, thetas, pending),
    ):
        batch = GradientInformation(model, theta, known)
        found = batch(Z)
        assert found.shape == (5, 4)
        torch.testing.assert_close(batch(Z[:, :1]), batch(Z[:, :1].expand(5, 4, Q, D)))
        torch.testing.assert_close(batch(Z[0]), found[0])
        for run in (0, 3):
            number = torch.tensor([run])
            one = GradientInformation(
                batch.posterior.of_runs(torch.Size([4]), number),
                theta if theta.dim() == 1 else theta[run],
                known if known is None or known.dim() == 2 else known[run],
            )
            torch.testing.assert_close(found[:, run], one(Z[:, run]), rtol=1e-9, atol=1e-9)
        with pytest.raises(InputError, match=r"^X=.*fits the runs, \(4,\)"):
            batch(Z[:3, 0])
    with pytest.raises(InputError, match=r"^theta=.*fits the runs, \(4,\)"):
        GradientInformation(models, thetas[:3])
    batch = GradientInformation(models, thetas)
    # BoTorch's default leaves finished runs out, and with them their models' places
    candidates, best = gen_candidates_scipy(
        Z[0], batch, lower_bounds=0.0, upper_bounds=1.0, use_parallel_mode=False
    )
    assert candidates.shape == Z[0].shape
    assert bool((best > batch(Z[0])).all())


def test_an_affine_input_transform_is_carried():
    X = 3.0 + 5.0 * torch.rand(N, D, dtype=DOUBLE)
    model = SingleTaskGP(
        X, X.sum(-1, keepdim=True), covar_module=KERNELS["rbf"](D), input_transform=Normalize(d=D)
    )
    ranges = X.amax(0) - X.amin(0)
    kernel = RBFKernel(ard_num_dims=D).double()
    kernel.lengthscale = model.covar_module.lengthscale * ranges
    history = GradientPosterior(kernel, model.likelihood.noise.item()).conditioned_on(X)
    theta = X.mean(0)
    Z = theta + torch.rand(4, Q, D, dtype=DOUBLE)
    expected = GradientInformation(history, theta)(Z)
    for state in (model.train(), model.eval()):
        torch.testing.assert_close(GradientInformation(state, theta)(Z), expected)
    chosen, _ = optimize_acqf(
        GradientInformation(model, theta),
        torch.stack([theta - 1.0, theta + 1.0]),
        q=Q,
        num_restarts=1,
        raw_samples=4,
    )
    assert float(GradientInformation(model, theta)(chosen)) > float(expected.max())


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
