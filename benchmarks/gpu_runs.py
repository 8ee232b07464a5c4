"""Whole steps on a device: a run of GP-UCB, an iteration of DP-GIBO, a private choice,
moments of a mixture.
"""

import warnings
from typing import Any

import torch

from benchmarks.dpsgd_step import HEADER, compared
from benchmarks.finite_gp import LENGTH, by_botorch, by_finite_gp, values_of
from benchmarks.gibo_step import walked
from benchmarks.gpu_sums import Ceilings, seconds
from dpbo import Adjacency, Budget, Curator, PrivacyUnit
from dpbo.curator.handle import Handle
from dpbo.dpsgd.noise import _noised
from dpbo.gibo import ClippedGradient, suggest_gradient_points
from dpbo.mechanisms import PermuteAndFlipMechanism
from dpbo.models.fixed_kernels import squared_exponential
from dpbo.papers.em.mixture_moments import MixtureMoments
from dpbo.privacy import Sensitivity
from dpbo.queries.ball import Ball
from dpbo.testing import SeededEntropy


def ucb(count: int, steps: int, device: torch.device) -> dict[str, float]:
    """Seconds of a run by FiniteGP, of fifty at once, and of the same loop in BoTorch for one."""
    candidates = torch.rand(
        count, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).to(device)
    kernel = squared_exponential(LENGTH).to(device)
    values = values_of(candidates, 1)
    many = values_of(candidates, 1, (50,))
    run, fifty, loop = seconds(
        device,
        lambda: by_finite_gp(candidates, kernel, values, steps),
        lambda: by_finite_gp(candidates, kernel, many, steps),
        lambda: by_botorch(candidates, kernel, values, steps),
        repetitions=3,
    )
    return {
        "run": run,
        "botorch": loop,
        "faster": loop / run,
        "fifty": fifty,
        "fifty faster": 50 * loop / fifty,
    }


def dpsgd_step(width: int, records: int, device: torch.device) -> dict[str, float]:
    """Milliseconds of a step of DP-SGD by Opacus alone and by dpbo, with the loader's work."""
    # Of Opacus' generators and hooks.
    warnings.simplefilter("ignore")
    return dict(zip(HEADER, compared(width, records, 15, str(device.type)), strict=True))


def noise(draws: int, device: torch.device) -> dict[str, float]:
    """Seconds of so many exact normal draws, and of as many by torch's own generator."""
    sums = torch.zeros(draws, dtype=torch.float64, device=device)
    plain = torch.zeros(draws, device=device)
    exact, torchs = seconds(device, lambda: _noised(sums, 1.0), plain.normal_, repetitions=5)
    return {"exact": exact, "torch": torchs, "ns a draw": 1e9 * exact / draws}


def iteration(units: int, d: int, history: int, device: torch.device) -> dict[str, float]:
    """Seconds of an iteration of DP-GIBO over so many users: choosing d + 1 points, weighing, all
    users' gradients.
    """
    posterior, theta = walked(d, d + 1, history, 0, device)
    records = torch.rand(units, d, device=device)
    curator = Curator(
        records, unit=PrivacyUnit("user"), adjacency=Adjacency.REPLACE_ONE, budget=Budget.gdp(1.0)
    )

    def loss(x: torch.Tensor, users: torch.Tensor) -> torch.Tensor:
        return users[:, 0] * x[0].to(users)

    X = posterior.points(theta)
    earlier = []
    for start in range(0, history, d + 1):
        part = X[start : start + d + 1].cpu()
        some = torch.zeros(d, len(part), dtype=torch.float64)
        earlier.append(
            curator.evaluate(ClippedGradient(loss, part, weights=some, clip=1.0, keep=True))
        )

    def choose() -> torch.Tensor:
        return suggest_gradient_points(posterior, theta, d + 1)

    def ask(Z: torch.Tensor) -> None:
        W = posterior.conditioned_on(Z).weights(theta).cpu()
        curator.evaluate(ClippedGradient(loss, Z.cpu(), weights=W, clip=1.0, earlier=earlier))

    Z = choose()
    whole, choosing, asking = seconds(
        device, lambda: ask(choose()), choose, lambda: ask(Z), repetitions=5
    )
    return {"whole": whole, "choosing": choosing, "asking": asking}


def streamed(users: int, d: int, points: int, device: torch.device) -> dict[str, float]:
    """Seconds of a question about one more point, on pinned records with losses kept at so many;
    and of copying as many bytes.
    """
    records = torch.rand(users, d)
    landing = torch.zeros(users, d + points, device=device)
    bytes_alone = torch.zeros_like(landing, device="cpu")
    if device.type == "cuda":
        records = records.pin_memory()
        bytes_alone = bytes_alone.pin_memory()
    curator = Curator(
        records,
        unit=PrivacyUnit("user"),
        adjacency=Adjacency.REPLACE_ONE,
        budget=Budget.gdp(1.0),
        device=device,
    )

    def gradient(X: torch.Tensor, **more: Any) -> Handle:
        W = torch.randn(
            d,
            len(X) + points * ("earlier" in more),
            generator=torch.Generator().manual_seed(0),
            dtype=torch.float64,
        )
        return curator.evaluate(
            ClippedGradient(
                lambda x, part: part[:, 0] * x[0].to(part), X, weights=W, clip=1.0, **more
            )
        )

    X = torch.linspace(0.0, 1.0, points + 1, dtype=torch.float64).unsqueeze(1)
    kept = gradient(X[:-1], keep=True)
    asking, copying = seconds(
        device,
        lambda: gradient(X[-1:], earlier=[kept]),
        lambda: landing.copy_(bytes_alone, non_blocking=True),
        repetitions=9,
    )
    return {
        "streamed": asking,
        "copies alone": copying,
        "ratio": asking / copying,
        "GB/s": 4e-9 * landing.numel() / copying,
    }


def choice(count: int, ceilings: Ceilings, device: torch.device) -> dict[str, float]:
    """Seconds of a private choice among so many utilities, and the share of the time to read them
    three times.
    """
    utilities = torch.randint(-(1 << 40), 1 << 40, (count,), device=device)
    mechanism = PermuteAndFlipMechanism.of(1.0)
    law = mechanism.distribution(Sensitivity(1.0, 1.0, 1.0), [2.0**-20])
    entropy = SeededEntropy(0)
    (own,) = seconds(
        device, lambda: mechanism._sample(utilities, [2.0**-20], law, entropy), repetitions=5
    )
    return {"seconds": own, "share": 24.0 * count / ceilings.read / own}


def plain_moments(X: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
    """One step of EM in torch, in floats: `K x F` of (1, z, z_i z_j) for two dimensions."""
    z = X / X.norm(dim=1, keepdim=True).clamp(min=1.0)
    phi = torch.stack(
        [torch.ones_like(z[:, 0]), z[:, 0], z[:, 1], z[:, 0] ** 2, z[:, 0] * z[:, 1], z[:, 1] ** 2],
        dim=1,
    )
    return torch.softmax(phi @ theta.T, dim=1).T @ phi


def mixture(
    count: int, ceilings: Ceilings, device: torch.device, *, compiled: bool
) -> dict[str, float]:
    """Seconds of the moments of so many records in two dimensions under five components, and of the
    peers.
    """
    K = 5
    draw = torch.Generator().manual_seed(0)
    theta = torch.randn(K, 6, generator=draw, dtype=torch.float64)
    X = torch.randn(count, 2, device=device)
    curator = Curator(
        X, unit=PrivacyUnit("record"), adjacency=Adjacency.REPLACE_ONE, budget=Budget.gdp(1.0)
    )
    query = MixtureMoments(2, ball=Ball(1.0), natural=theta)
    small = theta.to(device, torch.float32)
    fast = torch.compile(plain_moments, dynamic=False) if compiled else plain_moments
    own, plain, quick = seconds(
        device,
        lambda: curator.evaluate(query),
        lambda: plain_moments(X, small),
        lambda: fast(X, small),
        repetitions=5,
    )
    return {
        "own": own,
        "torch": plain,
        "compiled": quick,
        "faster": quick / own,
        "read": 8.0 * count / ceilings.read,
    }
