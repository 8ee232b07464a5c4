"""DP-GIBO's theorems against simulated runs, brute force and counter-examples to what is
printed.
"""

import math

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel

from dpbo.errors import InputError
from dpbo.gibo import bounds
from dpbo.gibo.gradient_posterior import GradientPosterior
from tests.setups import DOUBLE, of

SETTING = of(units=40_000, dimension=4, iterations=30, clip=1.5, mu=1.0, delta=0.1)


def descents(step, curvature, start, runs):
    """Iterates, `runs x T + 1 x d`, of gradient descent on the mean of curvature theta^2 / 2, with
    the algorithm's noise.
    """
    T = SETTING["iterations"]
    std = (
        2 * SETTING["clip"] * math.sqrt(SETTING["iterations"]) / (SETTING["units"] * SETTING["mu"])
    )
    theta = start.expand(runs, -1)
    path = [start.expand(runs, -1)]
    for _ in range(T):
        theta = theta - step * (curvature * theta + std * torch.randn(theta.shape, dtype=DOUBLE))
        path.append(theta)
    return torch.stack(path, 1)


@pytest.mark.parametrize("step", [1.0, 0.3])
def test_the_bounds_hold_in_simulated_runs_and_not_only_by_far(step):
    curvature = torch.tensor([1.0, 0.8, 0.5, 0.25], dtype=DOUBLE)
    start = torch.full((4,), 0.7, dtype=DOUBLE)
    path = descents(step, curvature, start, 400)
    values = 0.5 * (curvature * path**2).sum(-1)
    gradients = (curvature * path).square().sum(-1)
    assert float(gradients.max().sqrt()) < SETTING["clip"], "Assumption 2.9 holds in these runs"
    V = bounds.noise_term(**SETTING)
    gap = float(values[0, 0])
    assert 20 * V < SETTING["clip"] ** 2, "else Assumption 2.9 alone implies the bounds"
    common = of(gap=gap, iterations=30, step=step, norm=0.0, traces=0.0, noise_term=V)
    squared = bounds.mean_squared_gradient(**common)
    final = bounds.suboptimality(convexity=0.25, **common)
    far = bounds.distance(suboptimality=final, convexity=0.25)
    found = gradients[:, :-1].mean(1), values[:, -1], path[:, -1].norm(dim=1)
    for seen, bound in zip(found, (squared, final, far), strict=True):
        assert float((seen > bound).double().mean()) <= SETTING["delta"]
    assert float(found[0].quantile(0.9)) > 0.2 * squared
    quiet = {**common, "noise_term": 0.0}
    radius = float(start.norm())
    assert (
        float((curvature * descents(step, curvature, start, 1)[0, :-1]).square().sum(-1).mean())
        < bounds.mean_squared_gradient(**quiet) + V
    )
    assert 0.5 * (
        curvature * ((1 - step * curvature) ** 30 * start) ** 2
    ).sum() <= bounds.suboptimality(convexity=0.25, **quiet)
    ball = bounds.ball_radius(
        distance=radius,
        norm=0.0,
        trace=0.0,
        longest_noise=bounds.longest_noise(**SETTING),
        convexity=0.25,
    )
    assert float((path.norm(dim=-1).amax(1) > ball).double().mean()) <= SETTING["delta"]
    near = bounds.ball_radius(
        distance=0.0,
        norm=0.0,
        trace=0.0,
        longest_noise=bounds.longest_noise(**SETTING),
        convexity=0.25,
    )
    stays = descents(step, curvature, torch.zeros(4, dtype=DOUBLE), 400).norm(dim=-1).amax(1)
    assert 0.05 * near < float(stays.max()) < near


def test_what_is_printed_fails_where_the_module_says_so():
    """On f = theta^2 / 2 without noise, L = tau = 1: small steps leave the gradient as it is, and
    theta_1 outside Corollary 3.4.
    """
    step = 0.01
    T = 10
    theta = 1.0
    gap = 0.5
    squares = [((1 - step) ** t * theta) ** 2 for t in range(T)]
    ours = bounds.mean_squared_gradient(
        gap=gap, iterations=T, step=step, norm=0.0, traces=0.0, noise_term=0.0
    )
    assert 2 * gap / T < sum(squares) / T <= ours, "printed: 2 F_0 L / T"
    bound = bounds.suboptimality(
        gap=gap, iterations=1, step=step, convexity=1.0, norm=0.0, traces=0.0, noise_term=0.0
    )
    assert math.sqrt(bound) < 1 - step <= bounds.distance(suboptimality=bound, convexity=1.0)


def test_the_longest_noise_is_longer_than_simulated_but_not_by_half():
    std = 2 * 1.5 * math.sqrt(30) / 40_000
    longest = (std * torch.randn(4000, 30, 4, dtype=DOUBLE)).norm(dim=-1).amax(1)
    bound = bounds.longest_noise(**SETTING)
    assert float((longest > bound).double().mean()) <= 0.1
    assert float(longest.quantile(0.9)) > 0.7 * bound
    assert bound < bounds.longest_noise(**SETTING, constants="paper") < 4 * bound


@pytest.mark.parametrize("kernel", [RBFKernel(), MaternKernel(nu=2.5)])
def test_the_bias_of_a_function_of_known_norm_is_within_lemma_a_2(kernel):
    """f = sum a_i k(., z_i) has norm sqrt(a^T K a). The last f of each d attains the bound with the
    largest eigenvalue for the trace.
    """
    kernel = kernel.double().requires_grad_(False)
    kernel.lengthscale = 1.0
    for case in range(90):
        d = 1 + case // 30
        X = torch.randn(1 + case % 3, d, dtype=DOUBLE)
        theta = torch.randn(d, dtype=DOUBLE)
        posterior = GradientPosterior(kernel, 0.0, jitter=1e-12).conditioned_on(X)
        values, vectors = torch.linalg.eigh(posterior.covariance(theta))
        if case % 30 < 29:
            Z = torch.randn(3, d, dtype=DOUBLE)
            a = torch.randn(3, dtype=DOUBLE)
        else:
            # dk(., theta) in the worst direction, by differences, minus what X tells of it
            u = vectors[:, -1]
            h = 1e-3
            Z = torch.cat([theta + h * u[None], theta - h * u[None], X])
            a = torch.cat([torch.tensor([0.5 / h, -0.5 / h]), -(u @ posterior.weights(theta))])
        norm = float((a @ kernel(Z).to_dense() @ a).sqrt())
        point = theta.clone().requires_grad_(True)
        (true,) = torch.autograd.grad((kernel(point.unsqueeze(0), Z).to_dense() @ a).sum(), point)
        error = float((posterior.weights(theta) @ (kernel(X, Z).to_dense() @ a) - true).norm())
        assert error <= bounds.gradient_bias(norm=norm, trace=float(values.sum())) * (1 + 1e-6)
        assert error <= norm * float(values[-1].sqrt()) * (1 + 1e-4)
        assert case % 30 < 29 or error >= 0.99 * norm * float(values[-1].sqrt())


def test_theorem_b_2s_numbers_reach_the_target_and_fewer_units_do_not():
    problem = of(target=0.1, gap=0.5, step=0.5, convexity=0.5, norm=1.0)
    noise = of(dimension=2, clip=1.0, mu=1.0, delta=0.05)
    enough = bounds.theorem_b_2(prior_trace=2.0, points=36, batch_size=3, **problem, **noise)
    V = bounds.noise_term(units=enough.units, iterations=enough.iterations, **noise)
    traces = [2.0 if t <= 12 else enough.tolerance for t in range(enough.iterations)]
    rest = {name: problem[name] for name in ("gap", "step", "convexity", "norm")}
    assert (
        bounds.suboptimality(iterations=enough.iterations, traces=traces, noise_term=V, **rest)
        <= problem["target"]
    )
    fewer = bounds.noise_term(units=enough.units - 1, iterations=enough.iterations, **noise)
    assert V / 0.5 <= 0.1 / 3 * (1 + 1e-12) < fewer / 0.5


def test_wrong_numbers_are_refused_by_name():
    good = of(gap=0.5, iterations=3, step=0.5, norm=1.0, noise_term=0.1)
    with pytest.raises(InputError, match=r"^traces="):
        bounds.mean_squared_gradient(traces=[0.1, 0.2], **good)
    with pytest.raises(InputError, match=r"^traces="):
        bounds.mean_squared_gradient(traces=math.nan, **good)
    with pytest.raises(InputError, match=r"^step="):
        bounds.suboptimality(traces=0.1, convexity=3.0, **good)
