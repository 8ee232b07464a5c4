"""Closed-form designs around theta, best or nearly so before any observation: no optimisation but
of one number, the radius.

With an empty history and a radial kernel (variance 1, whitened coordinates, relative noise s2),
symmetric designs around theta decouple the coordinates, and one radius r is left. With phi and
kappa the kernel's profile and kappa(0) + s2 - kappa the variance of a contrast, the variance left a
coordinate is
    phi(0) - c r^2 phi(r)^2 / (kappa(0) + s2 - kappa(sqrt(2c) r)),
with c = (d + 1)/d for the regular simplex (b = d + 1) and c = 2 for the points +-r e_j (b = 2 d).
For RBF the minima are near (s2 / (c (1 - c/2)))^(1/4) and, for c = 2, (1.5 s2)^(1/6). Theta itself
is not sampled. Derived for this package; it reproduces the optimum that 1000 Adam steps of
DP-GIBO's acquisition (arXiv 2502.06044) reach.
"""

import math
from collections.abc import Callable, Sequence

import scipy
import torch
from torch import Tensor

from dpbo.models.kernels import Radial


def simplex(d: int) -> Tensor:
    """The d + 1 unit vectors of a regular simplex centred at 0, `d + 1 x d`."""
    corner = (
        math.sqrt(1.0 + 1.0 / d) * torch.eye(d, dtype=torch.float64, device="cpu")
        - (math.sqrt(d + 1.0) + 1.0) * d**-1.5
    )
    return torch.cat([corner, corner.new_full((1, d), d**-0.5)])


def central(d: int) -> Tensor:
    """The 2 d vectors e_1, -e_1, e_2, ..., `2 d x d`."""
    unit = torch.eye(d, dtype=torch.float64, device="cpu")
    return torch.stack([unit, -unit], dim=1).reshape(2 * d, d)


def directions(b: int, d: int) -> Tensor:
    """b vectors of about unit length, `b x d`, for any b.

    Up to d + 1 the first b corners of the simplex; up to 2 d - 1 its corners and the first of their
    reflections; from 2 d on the central design and, twice as far out, the directions of the b - 2 d
    that are left.
    """
    if b <= d + 1:
        return simplex(d)[:b]
    if b < 2 * d:
        return torch.cat([simplex(d), -simplex(d)[: b - d - 1]])
    if b == 2 * d:
        return central(d)
    return torch.cat([central(d), 2.0 * directions(b - 2 * d, d)])


def midpoint_grid(count: int, d: int, side: float) -> Tensor:
    """The middles of `count` equal parts of [0, side] in each of d coordinates, `count^d x d`."""
    middles = (torch.arange(count, dtype=torch.float64, device="cpu") + 0.5) * (side / count)
    return torch.cartesian_prod(*[middles] * d).reshape(-1, d)


def rotation(d: int, generator: torch.Generator) -> Tensor:
    """A uniformly random orthogonal `d x d`: the QR of Gaussians, signs fixed (Mezzadri 2007)."""
    Q, R = torch.linalg.qr(
        torch.randn(d, d, dtype=torch.float64, generator=generator, device="cpu")
    )
    return Q * R.diagonal().sign()


Generators = torch.Generator | Sequence[torch.Generator]
"""A source of random numbers on the CPU, or one for each run."""


def rotations(d: int, generators: Generators) -> Tensor:
    """A rotation, `d x d`, or one for each run, `runs x d x d`."""
    if isinstance(generators, torch.Generator):
        return rotation(d, generators)
    return torch.stack([rotation(d, generator) for generator in generators])


def share_left(kernel: Radial, c: float, s2: float) -> Callable[[float], float]:
    """radius -> variance left a coordinate, in whitened units, by the simplex with c = (d + 1)/d
    and by the central design with c = 2.
    """

    def share(r: float) -> float:
        # of squared distances
        kappa, phi, _ = kernel.profile(
            torch.tensor([0.0, r * r, 2.0 * c * r * r], dtype=torch.float64, device="cpu")
        )
        return float(phi[0] - c * r * r * phi[1] ** 2 / (kappa[0] + s2 - kappa[2]))

    return share


def radius(kernel: Radial, b: int, d: int, s2: float) -> float:
    """The best radius for `directions(b, d)` in length-scales: the central design's from b = 2 d
    on, else the simplex's.
    """
    # d = 1: on a line the simplex is the central design
    c = 2.0 if b >= 2 * d else (d + 1) / d
    guess = math.log(
        (1.5 * s2) ** (1.0 / 6.0) if c == 2.0 else (s2 / (c * (1.0 - 0.5 * c))) ** 0.25
    )
    share = share_left(kernel, c, s2)
    ends = (guess - 4.0, guess + 4.0)
    found = scipy.optimize.minimize_scalar(
        lambda t: share(math.exp(t)), bounds=ends, method="bounded", options={"xatol": 1e-5}
    )
    return math.exp(found.x)
