"""The points to evaluate next so that the gradient at theta becomes as certain as possible, in
milliseconds, for one run or for many at once.

`suggest_gradient_points` gives so many points, `fewest_gradient_points` as few as reach a given
trace (DP-GIBO's Algorithm 2). With no history a closed-form design is returned as it is. Otherwise
the search starts from the closed form turned and stretched along the gradient's posterior
covariance, and L-BFGS improves it by the analytic gradient of `GradientTrace`, in whitened
coordinates; nothing passes through autograd. A step costs one value and gradient, 15 MFLOP at N =
400, b = 34, d = 33, on some 1.5 MB that stay in cache; at d = 10 most of its time goes into
starting its hundred small operations, which fifty runs share. The search is where theta lies, and
of one run it is that of a batch of one.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dpbo.acquisition import designs
from dpbo.acquisition.designs import Generators
from dpbo.errors import InputError
from dpbo.gibo.box_search import Objective, minimize_in_boxes
from dpbo.gibo.gradient_posterior import (
    GradientPosterior,
    add_noise_,
    broadcast,
    require_positive_definite,
)
from dpbo.models.builders import require_constant
from dpbo.models.kernels import (
    KernelDerivatives,
    Pull,
    of_runs,
    radial_part,
    require_finite,
    require_float64,
)
from dpbo.validation import Count, Positive, checked

_STEPS = 60
# costs about 0.5 % of the trace and saves up to half of the time against 1e-6
_CLOSE = 1e-4
# of an eigenvalue: points stay distinct even where everything is known
_LEAST_SHARE = 1e-8


@checked
def suggest_gradient_points(
    posterior: GradientPosterior,
    theta: Tensor,
    b: Count,
    *,
    bounds: Tensor | None = None,
    start: Tensor | None = None,
    steps: Count = _STEPS,
    close: Positive = _CLOSE,
    generator: Generators | None = None,
) -> Tensor:
    """b points that leave the gradient at theta as certain as can be, `batch_shape x b x d`: a
    design for each of a batch of independent runs, by one search for all.

    Args:
        posterior: kernel, noise and history, of one run or of a batch.
        theta: where the gradient is wanted, `batch_shape x d`; the search runs and the points lie
            on its device.
        b: how many points.

    Keyword args:
        bounds: lower and upper ends, `2 x d` or `batch_shape x 2 x d`; theta lies between them.
        start: a design to improve, `batch_shape x b x d`, e.g. the previous one moved by theta's
            last step; used in the runs where it beats the stretched design.
        steps: most steps of L-BFGS in a run, those too long included.
        close: a step that gains less, as a share of the start's trace, is a run's last; 1e-6 for
            the last half per cent.
        generator: source of the start's rotation, on the CPU, one for all runs or one for each;
            without it there is none. Local optima differ by a few per cent.

    Raises:
        InputError: an argument out of range, of another shape, not float64, or theta or start not
            finite.
    """
    batch_shape, box, start = _arguments(posterior, theta, b, bounds, start)
    if isinstance(generator, Sequence) and len(generator) != batch_shape.numel():
        allowed = f"one for all runs, or one for each of the {batch_shape.numel()}"
        raise InputError("generator", len(generator), allowed)
    trace = GradientTrace(
        posterior.of_runs(batch_shape), of_runs(theta, batch_shape, slice(None), 1)
    )
    Z = _suggested(trace, b, box, start, steps=steps, close=close, generator=generator)
    return Z.view(*batch_shape, *Z.shape[-2:])


def _suggested(
    trace: GradientTrace,
    b: int,
    box: Tensor,
    start: Tensor | None = None,
    *,
    steps: int,
    close: float = _CLOSE,
    generator: Generators | None,
) -> Tensor:
    """A design for each run, `r x b x d`, in boxes `r x 2 x d`."""
    lower, upper = box.unsqueeze(-2).unbind(1)
    turned = starting_design(trace, b, generator)
    Z = _into_box(turned, lower, upper)
    going = torch.ones_like(trace.prior, dtype=torch.bool)
    if start is not None:
        start = _into_box(start, lower, upper)
        better = trace.value(start) < trace.value(Z)
        Z = torch.where(better[:, None, None], start, Z)
    elif _is_closed_form(trace, b):
        going = (Z != turned).flatten(1).any(1)
        if not bool(going.any()):
            return Z
    return _improve(trace, Z, lower, upper, going, steps, close)


@checked
def fewest_gradient_points(
    posterior: GradientPosterior,
    theta: Tensor,
    tolerance: Positive,
    most: Count | None = None,
    *,
    bounds: Tensor | None = None,
    steps: Count = _STEPS,
    generator: Generators | None = None,
) -> Tensor:
    """The fewest points that bring the trace down to `tolerance`, `b x d` (DP-GIBO, arXiv
    2502.06044, Algorithm 2).

    The least trace falls with b, so b is found by doubling and halving. It depends on points alone
    and leaks nothing. If the history already suffices, none (`0 x d`); if `most` points do not,
    `most` of them.

    Args:
        posterior, theta: as in `suggest_gradient_points`, of one run.
        tolerance: the trace to reach, above 0, in units of y^2 / x^2.
        most: at most so many; d + 1 by default, more are never needed without noise.

    Keyword args:
        bounds, steps, generator: as in `suggest_gradient_points`.

    Raises:
        InputError: as in `suggest_gradient_points`.
    """
    if posterior.batch_shape:
        allowed = "of one run: another may need another number of points"
        raise InputError("posterior", tuple(posterior.batch_shape), allowed)
    if theta.dim() != 1:
        raise InputError("theta", tuple(theta.shape), "of shape d, of one run")
    _, box, _ = _arguments(posterior, theta, 1, bounds, None)
    if most is None:
        most = len(theta) + 1
    trace = GradientTrace(posterior.of_runs(torch.Size()), theta.unsqueeze(0))
    if float(trace.prior) <= tolerance:
        return theta.new_zeros(0, len(theta))

    def attempt(b: int) -> tuple[Tensor, bool]:
        Z = _suggested(trace, b, box, steps=steps, generator=generator)
        return Z[0], float(trace.value(Z)) <= tolerance

    short = 0
    b = 1
    best, reached = attempt(b)
    while not reached and b < most:
        short = b
        b = min(2 * b, most)
        best, reached = attempt(b)
    while reached and b - short > 1:
        middle = (short + b) // 2
        Z, enough = attempt(middle)
        if enough:
            b = middle
            best = Z
        else:
            short = middle
    return best


class GradientTrace:
    """alpha(Z), the trace of the gradient's posterior covariance after observing a design Z, and
    its derivative, without autograd.

    With history X (N points), factor L, A = L^-1 (dk(theta, X)/dtheta)^T and V = L^-1 k(X, Z):
        S = k(Z, Z) + D - V^T V,   R = (dk(theta, Z)/dtheta)^T - V^T A,   P = S^-1 R,
        alpha(Z) = alpha(nothing) - sum(P * R),
        d alpha = <2 L^-T (A - V P) P^T, dk(X, Z)> + <P P^T, d(k(Z, Z) + D)>
                  - 2 <P, d(dk(theta, Z)/dtheta)^T>
    (DP-GIBO, arXiv 2502.06044, Algorithm 1's alpha). Cost: N^2 (b + d) + 8 N b d + 2 N b^2 + b^3/3
    flops; bytes: 8 N^2 of L (1.3 MB at N = 400, stays in cache) and a few N x b temporaries, so
    arithmetic bounds it.

    Args:
        posterior: kernel, noise and history.
        theta: `batch_shape x d`.

    Attributes:
        covariance: of the gradient, as the history leaves it, `batch_shape x d x d`.
        prior: its trace, alpha of an empty design, `batch_shape`.
    """

    def __init__(self, posterior: GradientPosterior, theta: Tensor) -> None:
        self.posterior = posterior
        self.theta = theta
        self.X = posterior.points(theta).contiguous()
        self.L = posterior.factor(theta).contiguous()
        # elsewhere than on the CPU a product is much faster than a batch of solves
        self.inverse: Tensor | None = None
        if theta.device.type != "cpu":
            unit = torch.eye(self.L.shape[-1], dtype=theta.dtype, device=theta.device)
            self.inverse = torch.linalg.solve_triangular(self.L, unit, upper=False)
        self.around = posterior.derivatives.around(theta, self.X)
        # as are the rows of some runs: products of other strides have other last bits
        self.A = posterior.whitened_cross(theta).contiguous()
        before = posterior.derivatives.prior(theta)
        self.covariance = before - self.A.mT @ self.A
        self.prior = before.diagonal(dim1=-2, dim2=-1).sum(-1) - self.A.square().sum((-2, -1))

    def of_runs(self, runs: Tensor) -> GradientTrace:
        """The runs of these numbers, of a flat batch."""
        twin = copy.copy(self)
        batch_shape = self.prior.shape
        twin.posterior = self.posterior.of_runs(batch_shape, runs)
        for name, dims in _OF_RUNS.items():
            value = getattr(self, name)
            if value is not None:
                setattr(twin, name, of_runs(value, batch_shape, runs, dims))
        twin.around = twin.posterior.derivatives.around(twin.theta, twin.X)
        return twin

    def value(self, Z: Tensor) -> Tensor:
        """alpha(Z) for Z `... x b x d`. Raises UsageError where Z needs more noise or jitter."""
        alpha, info, *_ = self._parts(Z)
        require_positive_definite(info)
        return alpha

    def value_and_gradient(self, Z: Tensor) -> tuple[Tensor, Tensor]:
        """alpha(Z) and d alpha / dZ for Z `... x b x d`; alpha is infinite where Z needs more noise
        or jitter.
        """
        alpha, info, V, P, pull_values, pull_gradient = self._parts(Z)
        Q = P @ P.mT
        C = self._solved((self.A - V @ P) @ P.mT, transposed=True)
        # D moves with k(z, z)
        Q.diagonal(dim1=-2, dim2=-1).mul_(1.0 + self.posterior.jitter)
        slope = 2.0 * (pull_values(torch.cat([C, Q], dim=-2)) - pull_gradient(P.mT))
        return torch.where(info == 0, alpha, math.inf), slope

    def _solved(self, B: Tensor, *, transposed: bool = False) -> Tensor:
        """L^-1 B, or L^-T B."""
        if self.inverse is not None:
            return (self.inverse.mT if transposed else self.inverse) @ B
        L = self.L.mT if transposed else self.L
        return torch.linalg.solve_triangular(L, B, upper=transposed)

    def _parts(self, Z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Pull, Pull]:
        # k(X, Z) and k(Z, Z) in one go: k is symmetric, so moving both points of the second does
        # twice what the pull says
        (K, pull_values), (G, pull_gradient) = self.around(Z)
        N = self.X.shape[-2]
        V = self._solved(K[..., :N, :])
        R = G.mT - V.mT @ self.A
        S = add_noise_(self.posterior, Z, K[..., N:, :] - V.mT @ V)
        factor, info = torch.linalg.cholesky_ex(S)
        P = torch.cholesky_solve(R, factor)
        return self.prior - (P * R).sum((-2, -1)), info, V, P, pull_values, pull_gradient


# what a trace holds for each run, with its dimensions besides
_OF_RUNS = {"theta": 1, "X": 2, "L": 2, "inverse": 2, "A": 2, "covariance": 2, "prior": 0}


def starting_design(trace: GradientTrace, b: int, generator: Generators | None) -> Tensor:
    """The closed form for b points of each run, `r x b x d`, turned at random (by a generator or
    one for each run) and stretched along what the history leaves unknown.

    A direction that is known well needs less room: the eigenvectors of the whitened covariance are
    shortened by a power of their eigenvalues. The radius is the closed form's; for a kernel without
    one, the best of a grid.
    """
    posterior = trace.posterior
    theta = trace.theta.unsqueeze(-2)
    d = theta.shape[-1]
    unit = designs.directions(b, d)
    if generator is not None:
        unit = unit @ designs.rotations(d, generator)
    # of each run, so that a run's product has the same bits alone as in a batch
    unit = unit.to(theta.device).expand(len(theta), b, d)
    lengths = lengths_at(posterior.derivatives, trace.theta).unsqueeze(-2)
    if len(posterior):
        eigenvalues, vectors = torch.linalg.eigh(lengths.mT * trace.covariance * lengths)
        shares = eigenvalues / eigenvalues[:, -1:].clamp_min(1e-300)
        # of the powers 0, 1/4 and 1/2 this one needs the fewest steps; roots are exact wherever a
        # number lies, a power is not
        stretch = shares.clamp(_LEAST_SHARE, 1.0).sqrt().sqrt()
        unit = unit @ (stretch.unsqueeze(-1) * vectors.mT)
    step = unit * lengths
    radial = radial_part(posterior.derivatives)
    if radial is not None:
        shares = posterior.noise / radial[1].flatten() + posterior.jitter
        each = shares.tolist()
        found = {s2: designs.radius(radial[0], b, d, s2) for s2 in set(each)}
        radius = shares.new_tensor([found[s2] for s2 in each])
    else:
        grid = torch.logspace(-3.0, 0.0, 25, dtype=unit.dtype, device="cpu").to(theta.device)
        radius = grid[trace.value(theta + grid.view(-1, 1, 1, 1) * step).argmin(0)]
    return theta + radius.view(-1, 1, 1) * step


def _is_closed_form(trace: GradientTrace, b: int) -> bool:
    """Whether the starting design of b points leaves the least trace there is."""
    d = trace.theta.shape[-1]
    radial = radial_part(trace.posterior.derivatives) is not None
    return radial and len(trace.posterior) == 0 and b in (d + 1, 2 * d)


def lengths_at(kernel: KernelDerivatives, theta: Tensor) -> Tensor:
    """The scale on which the kernel changes in each coordinate, `... x d`: its length-scales, or
    sqrt(variance / gradient's variance).
    """
    radial = radial_part(kernel)
    if radial is not None:
        return radial[0].lengthscale.squeeze(-2).expand(theta.shape)
    slopes = kernel.prior(theta).diagonal(dim1=-2, dim2=-1)
    least = 1e-12 * slopes.amax(-1, keepdim=True)
    return (kernel.variances(theta.unsqueeze(-2)) / torch.maximum(slopes, least)).sqrt()


def _improve(
    trace: GradientTrace,
    Z: Tensor,
    lower: Tensor,
    upper: Tensor,
    going: Tensor,
    steps: int,
    close: float,
) -> Tensor:
    """L-BFGS from Z, `r x b x d`, within the boxes, for the runs that are `going`."""
    theta = trace.theta.unsqueeze(1)
    lengths = lengths_at(trace.posterior.derivatives, trace.theta).unsqueeze(1)

    def flat(part: Tensor) -> Tensor:
        return ((part - theta) / lengths).expand_as(Z).flatten(1)

    # the search's many small operations cost a tenth less without autograd's records
    with torch.inference_mode():

        def objective_of(runs: Tensor | None) -> Objective:
            some, centre, length = trace, theta, lengths
            if runs is not None:
                some, centre, length = trace.of_runs(runs), theta[runs], lengths[runs]

            def objective(U: Tensor) -> tuple[Tensor, Tensor]:
                at = torch.addcmul(centre, U.view(-1, *Z.shape[1:]), length)
                alpha, slope = some.value_and_gradient(at)
                return alpha, (slope * length).flatten(1)

            return objective

        U = minimize_in_boxes(
            objective_of, flat(Z), flat(lower), flat(upper), going=going, steps=steps, close=close
        )
    found = torch.addcmul(theta, U.view_as(Z), lengths).clamp(lower, upper)
    return torch.where(going[:, None, None], found, Z)


def _into_box(Z: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Designs `r x b x d`, each shifted into its box as a whole, and narrowed where it is wider
    than that: clamped or mirrored one by one, points would lie upon each other in a corner.
    """
    low = Z.amin(-2, keepdim=True)
    width = Z.amax(-2, keepdim=True) - low
    # points of one coordinate need no room
    narrower = ((upper - lower) / width.clamp_min(1e-300)).clamp_max(1.0)
    # a design that fits keeps its bits
    Z = torch.where(narrower < 1.0, low + (Z - low) * narrower, Z)
    high = low + width * narrower
    shift = (lower - low).clamp_min(0.0) - (high - upper).clamp_min(0.0)
    return (Z + shift).clamp(lower, upper)


def _arguments(
    posterior: GradientPosterior,
    theta: Tensor,
    b: int,
    bounds: Tensor | None,
    start: Tensor | None,
) -> tuple[torch.Size, Tensor, Tensor | None]:
    """The runs' shape, their boxes (`r x 2 x d`; without bounds infinite ones) and starts, `r x b x
    d`, where theta lies. Raises InputError for arguments that do not fit.
    """
    require_constant("theta", theta)
    batch_shape = posterior.shape_with("theta", require_finite("theta", theta), 1)
    d = theta.shape[-1]
    if d == 0:
        raise InputError("theta", tuple(theta.shape), "of 1 dimension or more")
    if bounds is None:
        box = torch.full_like(theta[..., None, :], math.inf) * theta.new_tensor([[-1.0], [1.0]])
    else:
        require_constant("bounds", bounds)
        box = require_float64("bounds", bounds).to(theta.device)
        allowed = (
            f"of shape (2, {d}) or batch_shape x 2 x {d}, lower ends first, with theta between"
        )
        refusal = InputError("bounds", tuple(bounds.shape), allowed)
        if box.shape[-2:] != (2, d):
            raise refusal
        batch_shape = broadcast("bounds", box.shape, batch_shape, box.shape[:-2])
        lower, upper = box.unbind(-2)
        if not bool(((lower <= theta) & (theta <= upper)).all()):
            raise refusal
    if start is not None:
        require_constant("start", start)
        if require_finite("start", start).shape[-2:] != (b, d):
            allowed = f"of shape ({b}, {d}) or batch_shape x {b} x {d}"
            raise InputError("start", tuple(start.shape), allowed)
        batch_shape = broadcast("start", start.shape, batch_shape, start.shape[:-2])
        start = of_runs(start.to(theta.device), batch_shape, slice(None), 2)
    return batch_shape, of_runs(box, batch_shape, slice(None), 2), start
