"""Theorem B.2's design: a finite set of points whose losses tell every unit's gradient everywhere
in a ball.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from gpytorch.kernels import Kernel

from dpbo.accounting.roots import least_scale
from dpbo.acquisition.designs import midpoint_grid, rotation, simplex
from dpbo.errors import InputError
from dpbo.gibo.gradient_posterior import GradientPosterior
from dpbo.validation import POINT, Positive, checked

# of the design's Gaussian process, which the theorem takes to be without any
_JITTER = 1e-10
_MOST_POINTS = 10**7


@dataclass(frozen=True, eq=False)
class LatticeDesign:
    """Theorem B.2's finite set of points.

    Attributes:
        points: `m x d`: a pattern of d + 1 points around the centre of every cell of a cube.
        reach: largest distance from a cell's centre at which its pattern keeps the trace below the
            tolerance.
        cells: number of cells.
    """

    points: torch.Tensor
    reach: float
    cells: int


@checked
def lattice_design(
    kernel: Kernel, start: Annotated[torch.Tensor, POINT], *, tolerance: Positive, radius: Positive
) -> LatticeDesign:
    """Public points after which the trace is below the tolerance everywhere within 2 `radius` of
    the start.

    Around a centre c, d + 1 points leave a trace below tolerance / 2 at c and, as the kernel's
    derivatives are continuous, one below the tolerance within `reach` of c. Cells of side 2 reach /
    sqrt(d) lie within reach of their centres; ceil(2 radius sqrt(d) / reach)^d of them cover the
    cube around the ball of radius 2 `radius`. More points never raise a trace. `reach` is checked
    along 17 (d + 1) directions, not proven.

    Args:
        kernel: stationary and twice differentiable, with public parameters.
        start: theta_0, `d`, float64.
        tolerance: in units of the squared gradient.
        radius: of a ball around the minimum that holds all iterates (`bounds.ball_radius`).

    Raises:
        InputError: a kernel that is not stationary; a tolerance that float64 cannot reach, or one
            that needs more than 10^7 points.
    """
    d = start.shape[0]
    origin = torch.zeros_like(start)
    corners = simplex(d)
    apart = torch.stack([origin, corners[0], 3.0 * corners[0]])
    if not torch.allclose(
        kernel(apart, apart - corners[0]).to_dense().diagonal(),
        kernel(origin[None], -corners[:1]).to_dense()[0],
    ):
        raise InputError(
            "kernel",
            type(kernel).__name__,
            "stationary, with the same values for points equally far apart",
        )

    def trace(pattern: GradientPosterior, thetas: torch.Tensor) -> float:
        return float(pattern.covariance(thetas).diagonal(dim1=-2, dim2=-1).sum(-1).max())

    def pattern(size: float) -> GradientPosterior:
        return GradientPosterior(kernel, 0.0, jitter=_JITTER).conditioned_on(size * corners)

    for exponent in range(-8, 33):
        good = 10.0 ** (-exponent / 8.0)
        chosen = pattern(good)
        if trace(chosen, origin.unsqueeze(0)) < tolerance / 2.0:
            break
    else:
        remedy = "The trace that d + 1 points leave is limited by float64's rounding."
        raise InputError("tolerance", tolerance, "larger", remedy)
    generator = torch.Generator().manual_seed(0)
    turned = [corners]
    for sign in (1.0, -1.0):
        turned += [sign * corners @ rotation(d, generator) for _ in range(8)]
    unit = torch.cat(turned)

    def near_enough(share: float) -> bool:
        """Whether the tolerance is kept at this share of the farthest distance's inverse."""
        distance = farthest / share
        return max(trace(chosen, part * distance * unit) for part in (0.5, 1.0)) < tolerance

    farthest = 4.0 * radius * math.sqrt(d)
    reach = farthest / max(1.0, least_scale(near_enough, precision=1e-9, most=2.0**30))
    side = _MOST_POINTS
    if reach > 0.0:
        side = math.ceil(2.0 * radius * math.sqrt(d) / reach)
    if side**d * (d + 1) > _MOST_POINTS:
        raise InputError(
            "tolerance",
            tolerance,
            f"one for which {_MOST_POINTS:,} points are enough",
            "It grows as radius^d.",
        )
    centres = start - 2.0 * radius + midpoint_grid(side, d, 4.0 * radius)
    points = (centres.unsqueeze(1) + good * corners).reshape(-1, d)
    return LatticeDesign(points, reach, side**d)
