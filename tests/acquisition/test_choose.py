"""choose_points against 1000 Adam steps, the closed form and the bounds; adaptive_points is minimal."""

import pytest
import torch

from dpbo.acquisition import adaptive_points, choose_points, designs
from dpbo.acquisition.trace import GradientTrace
from dpbo.errors import InputError
from dpbo.models import GradientPosterior
from tests.models.kernels import DOUBLE, KERNELS

D = 3


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def posterior(name="rbf", n=8, d=D, noise=1e-4):
    history = GradientPosterior(KERNELS[name](d), noise)
    if n:
        history.append(0.5 * torch.randn(n, d, dtype=DOUBLE))
    return history


def value(history, theta, Z):
    return float(GradientTrace(history, theta).value(Z))


def adam(history, theta, b, steps=1000):
    """The peer's optimiser: Adam at 0.01 from theta + 1e-5 N(0, I/d), here with the analytic gradient."""
    trace = GradientTrace(history, theta)
    Z = (theta + 1e-5 * torch.randn(b, len(theta), dtype=DOUBLE) / len(theta) ** 0.5).requires_grad_()
    optimiser = torch.optim.Adam([Z], lr=1e-2)
    for _ in range(steps):
        Z.grad = trace.value_and_gradient(Z.detach())[1]
        optimiser.step()
    return Z.detach()


@pytest.mark.parametrize("b", [2, D + 1, D + 2])
@pytest.mark.parametrize("name", ["rbf", "matern-scaled", "poly2"])
def test_as_good_as_a_thousand_adam_steps(name, b):
    history, theta = posterior(name), 0.1 * torch.randn(D, dtype=DOUBLE)
    reference = value(history, theta, adam(history, theta, b))
    Z = choose_points(history, theta, b, steps=200, close=1e-6, restarts=3, generator=torch.Generator().manual_seed(0))
    assert Z.shape == (b, D)
    assert value(history, theta, Z) <= 1.03 * reference


@pytest.mark.parametrize("b", [D + 1, 2 * D])
def test_an_empty_history_gives_the_closed_form(b):
    history, theta = posterior(n=0), torch.randn(D, dtype=DOUBLE)
    Z = choose_points(history, theta, b, generator=torch.Generator().manual_seed(0))
    whitened = (Z - theta) / torch.linspace(0.7, 1.6, D, dtype=DOUBLE)
    radius = designs.radius(history.derivatives, b, D, 1e-4 + 1e-6)
    torch.testing.assert_close(whitened.norm(dim=-1), torch.full((b,), radius, dtype=DOUBLE))
    assert torch.equal(Z, choose_points(history, theta, b, generator=torch.Generator().manual_seed(0)))


def test_a_scaled_kernel_sees_the_noise_in_its_own_units():
    history, theta = posterior("rbf-isotropic-scaled", n=0), torch.zeros(D, dtype=DOUBLE)
    Z = choose_points(history, theta, D + 1)
    best = value(history, theta, Z)
    assert best < min(value(history, theta, 0.97 * Z), value(history, theta, 1.03 * Z))


@pytest.mark.parametrize("name", ["poly2", "rq", "matern+linear"])
def test_kernels_without_a_closed_form_start_from_a_grid(name):
    history, theta = posterior(name, n=0), torch.full((D,), 0.2, dtype=DOUBLE)
    Z = choose_points(history, theta, D + 1)
    assert value(history, theta, Z) < 0.2 * float(GradientTrace(history, theta).prior)


def test_nothing_left_to_learn():
    """40 points determine a quadratic in 3 dimensions: the trace is rounding, and the points must still be distinct and finite."""
    history, theta = posterior("poly2", n=40, noise=0.0), torch.zeros(D, dtype=DOUBLE)
    Z = choose_points(history, theta, D + 1)
    assert bool(Z.isfinite().all())
    assert float(torch.pdist(Z).min()) > 1e-6


@pytest.mark.parametrize("n", [0, 8])
def test_bounds_are_respected_and_cost_little(n):
    history, theta = posterior(n=n), torch.full((D,), 0.999, dtype=DOUBLE)
    bounds = torch.tensor([[0.0] * D, [1.0] * D], dtype=DOUBLE)
    Z = choose_points(history, theta, D + 1, bounds=bounds)
    assert bool(((Z >= bounds[0]) & (Z <= bounds[1])).all())
    assert value(history, theta, Z) < 3.0 * value(history, theta, choose_points(history, theta, D + 1))


def test_a_good_start_is_used():
    history, theta = posterior(), torch.zeros(D, dtype=DOUBLE)
    good = choose_points(history, theta, D + 1, steps=200, close=1e-9)
    assert value(history, theta, choose_points(history, theta, D + 1, start=good, steps=1)) <= value(history, theta, good)
    bad = choose_points(history, theta, D + 1, start=good + 10.0, steps=5)
    assert torch.equal(bad, choose_points(history, theta, D + 1, steps=5))


def test_more_steps_and_restarts_never_hurt():
    history, theta = posterior(d=5, n=20), torch.zeros(5, dtype=DOUBLE)
    values = [value(history, theta, choose_points(history, theta, 6, steps=steps)) for steps in (1, 5, 50)]
    assert values == sorted(values, reverse=True)
    single = choose_points(history, theta, 6, generator=torch.Generator().manual_seed(0))
    several = choose_points(history, theta, 6, restarts=3, generator=torch.Generator().manual_seed(0))
    assert value(history, theta, several) <= value(history, theta, single)


@pytest.mark.parametrize("n", [0, 8])
def test_adaptive_points_are_the_fewest(n):
    history, theta = posterior(n=n), torch.zeros(D, dtype=DOUBLE)
    least = [value(history, theta, choose_points(history, theta, b)) for b in range(1, D + 2)]
    for b in range(1, D + 2):
        tolerance = 1.001 * least[b - 1]
        Z = adaptive_points(history, theta, tolerance)
        assert len(Z) == b
        assert value(history, theta, Z) <= tolerance


def test_adaptive_points_may_be_none_and_are_capped():
    history, theta = posterior(), torch.zeros(D, dtype=DOUBLE)
    assert adaptive_points(history, theta, 1e9).shape == (0, D)
    assert adaptive_points(history, theta, 1e-9).shape == (D + 1, D)
    assert adaptive_points(history, theta, 1e-9, 2).shape == (2, D)


def test_what_is_refused():
    history, theta = posterior(), torch.zeros(D, dtype=DOUBLE)
    with pytest.raises(InputError, match=r"\.double\(\)"):
        choose_points(history, theta.float(), 2)
    with pytest.raises(InputError, match="b="):
        choose_points(history, theta, 0)
    with pytest.raises(InputError, match="start"):
        choose_points(history, theta, 2, start=torch.zeros(3, D, dtype=DOUBLE))
    with pytest.raises(InputError, match="bounds"):
        choose_points(history, theta, 2, bounds=torch.ones(2, D, dtype=DOUBLE))
    box = torch.tensor([[-1.0] * D, [1.0] * D], dtype=DOUBLE)
    for wild in (float("nan"), float("inf")):
        with pytest.raises(InputError, match="theta='not finite'"):
            choose_points(history, theta + wild, 2, bounds=box)
        with pytest.raises(InputError, match="theta='not finite'"):
            adaptive_points(history, theta + wild, 1.0)
        with pytest.raises(InputError, match="start='not finite'"):
            choose_points(history, theta, 2, start=torch.full((2, D), wild, dtype=DOUBLE))
    with pytest.raises(InputError, match="generator"):
        choose_points(history, theta, 2, restarts=2)
    with pytest.raises(InputError, match="steps"):
        choose_points(history, theta, 2, steps=0)
    with pytest.raises(InputError, match="close"):
        choose_points(history, theta, 2, close=0.0)
    with pytest.raises(InputError, match="tolerance"):
        adaptive_points(history, theta, 0.0)
    runs = GradientPosterior(KERNELS["rbf"](D), 1e-3)
    runs.append(torch.randn(2, 4, D, dtype=DOUBLE))
    with pytest.raises(InputError, match="one run"):
        choose_points(runs, theta, 2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_on_cuda():
    theta, points = torch.zeros(D, dtype=DOUBLE), torch.randn(8, D, dtype=DOUBLE)
    chosen = []
    for device in ("cpu", "cuda"):
        history = GradientPosterior(KERNELS["matern"](D).to(device), 1e-3)
        history.append(points.to(device))
        chosen.append(value(history, theta.to(device), choose_points(history, theta.to(device), D + 1, steps=200)))
    assert chosen[1] == pytest.approx(chosen[0], rel=1e-3)
