"""The points that tell most about a gradient: closed-form designs, and the search for points."""

import itertools
import math

import pytest
import torch
from gpytorch.kernels import RBFKernel

from dpbo.acquisition import designs
from dpbo.errors import InputError, UsageError
from dpbo.gibo import GradientPosterior, suggest_gradient_points
from dpbo.gibo.gradient_points import GradientTrace, fewest_gradient_points
from dpbo.models.kernels import RBF, Matern52
from tests.setups import DOUBLE, box, of, point
from tests.unit.models.kernels import KERNELS, batched

D = 3
ONE = point(1.0)


def posterior(name="rbf", n=8, d=D, noise=1e-4):
    history = GradientPosterior(KERNELS[name](d), noise)
    if n:
        history.append(0.5 * torch.randn(n, d, dtype=DOUBLE))
    return history


def value(history, theta, Z):
    return float(GradientTrace(history, theta).value(Z))


def adam(history, theta, b, steps=1000):
    """The peer's optimiser: Adam at 0.01 from theta + 1e-5 N(0, I/d), here with the analytic
    gradient.
    """
    trace = GradientTrace(history, theta)
    Z = (
        theta + 1e-5 * torch.randn(b, len(theta), dtype=DOUBLE) / len(theta) ** 0.5
    ).requires_grad_()
    optimiser = torch.optim.Adam([Z], lr=1e-2)
    for _ in range(steps):
        Z.grad = trace.value_and_gradient(Z.detach())[1]
        optimiser.step()
    return Z.detach()


@pytest.mark.parametrize("name", ["rbf", "matern+linear"])
def test_the_value_and_slope_of_a_design_are_those_of_a_batch_and_of_differences(name):
    trace = GradientTrace(posterior(name), 0.1 * torch.randn(D, dtype=DOUBLE))
    Z = 0.3 * torch.randn(D + 1, D, dtype=DOUBLE)
    slope = trace.value_and_gradient(Z)[1]
    torch.testing.assert_close(slope, trace.value_and_gradient(Z[None])[1][0], rtol=1e-7, atol=1e-9)
    step = 1e-5 * torch.randn(D + 1, D, dtype=DOUBLE)
    difference = float(trace.value(Z + step) - trace.value(Z - step))
    assert difference == pytest.approx(2.0 * float((slope * step).sum()), rel=1e-3, abs=1e-9)


def test_points_upon_each_other_without_noise_are_refused():
    history = GradientPosterior(KERNELS["rbf"](D), 0.0, jitter=1e-300)
    history.append(torch.eye(D, dtype=DOUBLE))
    trace = GradientTrace(history, torch.zeros(D, dtype=DOUBLE))
    close = torch.full((20, D), 0.3, dtype=DOUBLE)
    with pytest.raises(UsageError, match="jitter"):
        trace.value(close)
    # a search looks elsewhere
    assert trace.value_and_gradient(close)[0] == math.inf


def test_as_good_as_a_thousand_adam_steps():
    history = posterior("rbf")
    theta = 0.1 * torch.randn(D, dtype=DOUBLE)
    reference = value(history, theta, adam(history, theta, D + 2))
    generator = torch.Generator().manual_seed(0)
    terms = of(steps=200, close=1e-6, generator=generator)
    reached = [
        value(history, theta, suggest_gradient_points(history, theta, D + 2, **terms))
        for _ in range(3)
    ]
    assert min(reached) <= 1.03 * reference


@pytest.mark.parametrize("b", [D + 1, 2 * D])
def test_an_empty_history_gives_the_closed_form(b):
    history = posterior(n=0)
    theta = torch.randn(D, dtype=DOUBLE)
    Z = suggest_gradient_points(history, theta, b, generator=torch.Generator().manual_seed(0))
    whitened = (Z - theta) / torch.linspace(0.7, 1.6, D, dtype=DOUBLE)
    radius = designs.radius(history.derivatives, b, D, 1e-4 + 1e-6)
    torch.testing.assert_close(whitened.norm(dim=-1), torch.full((b,), radius, dtype=DOUBLE))
    assert torch.equal(
        Z, suggest_gradient_points(history, theta, b, generator=torch.Generator().manual_seed(0))
    )


@pytest.mark.parametrize("name", ["poly2", "rq", "matern+linear"])
def test_a_kernel_without_a_closed_form_starts_from_a_grid(name):
    history = posterior(name, n=0)
    theta = torch.full((D,), 0.2, dtype=DOUBLE)
    Z = suggest_gradient_points(history, theta, D + 1)
    assert value(history, theta, Z) < 0.2 * float(GradientTrace(history, theta).prior)


def test_bounds_are_respected_and_cost_little():
    theta = torch.full((D,), 0.999, dtype=DOUBLE)
    bounds = box(D)
    for n in (0, 8):
        history = posterior(n=n)
        Z = suggest_gradient_points(history, theta, D + 1, bounds=bounds)
        assert bool(((Z >= bounds[0]) & (Z <= bounds[1])).all())
        assert value(history, theta, Z) < 3.0 * value(
            history, theta, suggest_gradient_points(history, theta, D + 1)
        )


def test_a_search_for_a_batch_of_runs_is_that_of_each_run():
    X = 0.5 * torch.randn(2, 3, 8, D, dtype=DOUBLE)
    thetas = 0.1 * torch.randn(2, 3, D, dtype=DOUBLE)
    boxes = torch.stack([thetas - 0.1, thetas + 0.3], dim=-2)
    start = thetas.unsqueeze(-2) + 0.1 * torch.randn(2, 3, D + 1, D, dtype=DOUBLE)
    noises = torch.full((2, 3), 1e-4, dtype=DOUBLE) + 1e-2 * torch.rand(2, 3, dtype=DOUBLE)
    run = (1, 2)

    def found(posterior, theta, bounds, begin):
        generator = torch.Generator().manual_seed(0)
        terms = {"bounds": bounds, "start": begin, "generator": generator, "steps": 5}
        return suggest_gradient_points(posterior, theta, D + 1, **terms)

    for name, own in (("rbf", ()), ("matern-scaled", (2, 3))):
        kernel = batched(name, D, *own) if own else KERNELS[name](D)
        of_run = kernel[run[2 - len(own) :]] if own else kernel
        for n in (0, 8):
            batch = GradientPosterior(kernel, noises).conditioned_on(X[:, :, :n])
            single = GradientPosterior(of_run, float(noises[run])).conditioned_on(X[run][:n])
            for bounds, begin in ((None, None), (boxes, start)):
                told = [None if part is None else part[run] for part in (bounds, begin)]
                together = found(batch, thetas, bounds, begin)[run]
                alone = found(single, thetas[run], *told)
                torch.testing.assert_close(together, alone, rtol=1e-6, atol=1e-6)


def test_what_fits_no_batch_is_named():
    history = GradientPosterior(KERNELS["rbf"](D), 1e-4)
    runs = history.conditioned_on(torch.rand(5, 8, D, dtype=DOUBLE))
    theta = torch.full((5, D), 0.5, dtype=DOUBLE)
    good = {"theta": theta, "bounds": box(D), "start": torch.rand(5, D, D, dtype=DOUBLE)}
    assert suggest_gradient_points(runs, b=D, steps=1, **good).shape == (5, D, D)
    for name, wrong in (
        ("theta", theta[:2]),
        ("theta", theta[0, 0]),
        ("bounds", box(D).expand(2, 2, D)),
        ("bounds", box(D) + 0.6),
        ("start", torch.rand(5, D + 1, D, dtype=DOUBLE)),
    ):
        with pytest.raises(InputError, match=f"^{name}="):
            suggest_gradient_points(runs, b=D, **{**good, name: wrong})
    with pytest.raises(InputError, match=r"^posterior=\(5,\).*of one run"):
        fewest_gradient_points(runs, theta[0], 0.1)
    with pytest.raises(InputError, match=r"^theta=.*of one run"):
        fewest_gradient_points(history, theta, 0.1)


def test_the_fewest_points_are_the_fewest():
    for n in (0, 8):
        history = posterior(n=n)
        theta = torch.zeros(D, dtype=DOUBLE)
        least = [
            value(history, theta, suggest_gradient_points(history, theta, b))
            for b in range(1, D + 2)
        ]
        for b in range(1, D + 2):
            tolerance = 1.001 * least[b - 1]
            Z = fewest_gradient_points(history, theta, tolerance)
            assert len(Z) == b
            assert value(history, theta, Z) <= tolerance
    assert fewest_gradient_points(history, theta, 1e9).shape == (0, D)
    assert fewest_gradient_points(history, theta, 1e-9).shape == (D + 1, D)
    assert fewest_gradient_points(history, theta, 1e-9, 2).shape == (2, D)


@pytest.mark.parametrize("kind", [RBF, Matern52])
@pytest.mark.parametrize("d", [1, 2, 5])
def test_the_shares_are_the_trace(kind, d):
    lengths = torch.linspace(0.7, 1.6, d, dtype=DOUBLE).unsqueeze(0)
    posterior = GradientPosterior(kind(lengths), 1e-3)
    theta = torch.randn(d, dtype=DOUBLE)
    trace = GradientTrace(posterior, theta)
    weight = float((lengths**-2).sum())
    turn = designs.rotation(d, torch.Generator().manual_seed(0))
    for unit, share in (
        (designs.simplex(d), designs.share_left(kind(ONE), (d + 1) / d, 1e-3 + 1e-6)),
        (designs.central(d), designs.share_left(kind(ONE), 2.0, 1e-3 + 1e-6)),
    ):
        assert float(trace.value(theta + 0.2 * (unit @ turn) * lengths)) == pytest.approx(
            weight * share(0.2), rel=1e-9
        )


def test_radii_are_minima():
    for kernel, d, s2 in itertools.product(
        (RBF(ONE), Matern52(ONE)), (1, 2, 10), (1e-6, 1e-3, 1e-1, 1.0)
    ):
        for b, c in ((d + 1, (d + 1) / d), (2 * d, 2.0)):
            radius = designs.radius(kernel, b, d, s2)
            share = designs.share_left(kernel, c, s2)
            assert share(radius) < min(share(0.98 * radius), share(1.02 * radius)), (kernel, d, s2)


def test_in_a_corner_or_on_a_face_no_coordinate_stays_unknown():
    """Mirrored one by one, the unturned points of three dimensions met in one place."""
    for d in (1, 2, 3, 5, 8):
        for face in (False, True):
            kernel = RBFKernel(ard_num_dims=d).double()
            kernel.lengthscale = 0.5 + 2.0 * torch.rand(d, dtype=DOUBLE)
            history = GradientPosterior(kernel, 0.0)
            theta = 4.0 * torch.randint(0, 2, (d,)).to(DOUBLE)
            if face:
                theta = torch.where(torch.arange(d) > 0, 4.0 * torch.rand(d, dtype=DOUBLE), theta)
            Z = suggest_gradient_points(history, theta, d + 1, bounds=4.0 * box(d))
            left = history.conditioned_on(Z).covariance(theta).diagonal()
            assert bool((left < 0.05 * history.covariance(theta).diagonal()).all()), (d, face)
