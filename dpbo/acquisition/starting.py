"""Where the search for a design begins.

With no history that is the closed form. With one, it is the closed form turned and stretched along the gradient's posterior covariance:
what is known well needs less room. Kernels without a closed form take the best of a grid of radii.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpbo.acquisition import designs
from dpbo.acquisition.trace import GradientTrace
from dpbo.models.gradient_posterior import GradientPosterior
from dpbo.models.kernel_derivatives import Derivatives, Scaled
from dpbo.models.radial import Radial

_STRETCH = 0.25  # power of the covariance's eigenvalues; 0, 1/4 and 1/2 were tried, 1/4 needs the fewest steps
_LEAST = 1e-8  # least share of an eigenvalue: points stay apart even where everything is known


def starting_design(trace: GradientTrace, b: int, generator: torch.Generator | None) -> Tensor:
    """The closed form for b points, turned, and stretched along what the history leaves unknown."""
    theta, posterior, d = trace.theta, trace.posterior, len(trace.theta)
    unit = designs.directions(b, d).to(theta.device)
    if generator is not None:
        unit = unit @ designs.rotation(d, generator).to(theta.device)
    lengths = lengths_at(posterior.derivatives, theta)
    if len(posterior):
        unit = unit @ _stretch(lengths.unsqueeze(-1) * posterior.covariance(theta) * lengths)
    return theta + _radius(trace, unit * lengths) * unit * lengths


def is_final(posterior: GradientPosterior, b: int, d: int) -> bool:
    """Whether the closed form needs no improvement."""
    return len(posterior) == 0 and _radial(posterior.derivatives) is not None and b in (d + 1, 2 * d)


def lengths_at(kernel: Derivatives, theta: Tensor) -> Tensor:
    """The scale on which the kernel changes in each coordinate, `d`: its length-scales, or sqrt(variance / gradient's variance)."""
    radial = _radial(kernel)
    if radial is not None:
        return radial[0].lengthscale.flatten().expand(len(theta))
    slopes = kernel.prior(theta).diagonal()
    return (kernel.variances(theta.unsqueeze(0)) / slopes.clamp_min(1e-12 * slopes.max())).sqrt()


def _radial(kernel: Derivatives) -> tuple[Radial, float] | None:
    """The radial kernel and its variance, if it is one."""
    if isinstance(kernel, Scaled) and isinstance(kernel.base, Radial):
        return kernel.base, float(kernel.scale)
    return (kernel, 1.0) if isinstance(kernel, Radial) else None


def _stretch(covariance: Tensor) -> Tensor:
    """The eigenvectors of the whitened covariance as rows, each shortened by a power of its eigenvalue, `d x d`."""
    eigenvalues, vectors = torch.linalg.eigh(covariance)
    shares = (eigenvalues / eigenvalues[-1].clamp_min(1e-300)).clamp(_LEAST, 1.0)
    return shares.pow(_STRETCH).unsqueeze(-1) * vectors.mT


def _radius(trace: GradientTrace, steps: Tensor) -> float:
    """The closed form's radius; for a kernel without one, the best of a grid, tried at once."""
    posterior, (b, d) = trace.posterior, steps.shape
    radial = _radial(posterior.derivatives)
    if radial is not None:
        return designs.radius(radial[0], b, d, posterior.noise / radial[1] + posterior.jitter)
    radii = torch.logspace(-3.0, 0.0, 25, dtype=steps.dtype, device=steps.device)
    return float(radii[trace.value(trace.theta + radii[:, None, None] * steps).argmin()])
