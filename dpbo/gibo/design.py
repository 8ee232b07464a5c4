"""Settings of DP-GIBO, its coordinates, and the points of each iteration. All of it is public:
nothing here sees a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from dpbo.acquisition.designs import Generators, directions, rotations
from dpbo.errors import InputError
from dpbo.gibo.gradient_points import fewest_gradient_points, suggest_gradient_points
from dpbo.gibo.gradient_posterior import GradientPosterior
from dpbo.isolation import without_default_device
from dpbo.models.kernels import require_float64
from dpbo.validation import Positive, Seed, Within, checked

BOUNDS = Within(
    "a finite float64 tensor of shape 2 x d with lower ends below upper ends",
    lambda bounds: (
        bounds.ndim == 2
        and len(bounds) == 2
        and bounds.numel() > 0
        and bounds.dtype == torch.float64
        and bool(bounds.isfinite().all())
        and bool((bounds[0] < bounds[1]).all())
    ),
)
# rho above which smaller steps and a longer average pay (paired simulations on six tasks)
_NOISY = 0.2
# more than any number of iterations, so that seeds of different runs do not meet
_SEEDS = 1_000_003


@checked
@dataclass(frozen=True)
class GIBOSettings:
    """The settings of a DP-GIBO run besides the problem and the budget.

    `GIBOSettings.paper()` runs Algorithm 1 as printed, with the AdaGrad of its experiments: the
    posterior gradient rests on the losses at all points so far, each iteration's points are those
    that leave the least uncertainty, and the result is the last iterate.
    `GIBOSettings.recommended()`, the default, keeps the private step alone: earlier losses are
    dropped, the points are a rotated design of fixed radius (so the gradient is nearly a finite
    difference), and the result is the mean of the last iterates.
    `dataclasses.replace(GIBOSettings.recommended(), learning_rate=0.1)` changes one thing.

    Two defaults depend on rho, the length of one gradient's noise divided by the clip, which
    `DPGIBO.rho` holds.

    Attributes:
        unit_box: use coordinates in which the box is [0, 1]^d, so that clip, lengths and steps are
            per box width; else x's own.
        radius: distance of the design's points from theta, in those coordinates. If it is None,
            losses have noise, or earlier losses are used again, the points are instead those that
            leave the least uncertainty about the gradient. Use 0.002 to 0.01 and a smaller clip if
            the loss's slope changes much within a twentieth of the box (benchmarks.papers.dpgibo,
            experiment 4.3).
        seed: of the random rotation of each design, which prefers no direction; None: not rotated.
            The noise depends on no seed.
        tolerance: eps_tol of Algorithm 2: each iteration takes as few points as reduce the total
            variance of the gradient to this, `batch_size` at most. Only without observation noise.
        history: use the losses at all earlier points again.
        jitter: variance of every loss relative to its prior variance, at least 1e-6.
        optimizer: a class of torch.optim, which gets the released gradient.
        learning_rate: its `lr`; None: 0.2, or 0.1 where rho > 0.2.
        tail: share of the last iterates that are averaged into the result; None: 0.25, or 0.5 where
            rho > 0.2; 0: the last iterate.
    """

    unit_box: bool = True
    radius: float | None = 0.04
    seed: Seed | None = 0
    tolerance: Positive | None = None
    history: bool = False
    jitter: float = 1e-6
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adagrad
    learning_rate: float | None = None
    tail: float | None = None

    def __post_init__(self) -> None:
        probe = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64, device="cpu"))
        probe.grad = torch.zeros_like(probe)
        try:
            with without_default_device():
                self.optimizer([probe], lr=1.0).step()
        except TypeError:
            name = getattr(self.optimizer, "__name__", type(self.optimizer).__name__)
            raise InputError(
                "optimizer",
                name,
                "a class of torch.optim that steps on a gradient, such as Adagrad",
            ) from None

    @classmethod
    def recommended(cls) -> GIBOSettings:
        """The settings that did best in paired simulations on six tasks; the default of DPGIBO."""
        return cls()

    @classmethod
    def paper(cls) -> GIBOSettings:
        """The settings of Sopa, Marusic, Avella-Medina & Cunningham 2025."""
        return cls(
            unit_box=False,
            radius=None,
            seed=None,
            history=True,
            jitter=5e-6,
            learning_rate=1.0,
            tail=0.0,
        )

    def step_size(self, rho: float) -> float:
        """The learning rate at this noise."""
        if self.learning_rate is not None:
            return self.learning_rate
        if rho > _NOISY:
            return 0.1
        return 0.2

    def averaged_iterates(self, rho: float, iterations: int) -> int:
        """Number of last iterates whose mean is the result."""
        share = self.tail
        if share is None:
            share = 0.5 if rho > _NOISY else 0.25
        return max(1, round(share * iterations))


class Frame:
    """The coordinates z: fractions of the box `bounds` (`2 x d`) with `unit_box`, else x itself."""

    def __init__(self, bounds: torch.Tensor, unit_box: bool) -> None:
        self.bounds = bounds.detach().clone()
        lower, upper = self.bounds
        self._origin = lower if unit_box else torch.zeros_like(lower)
        self._width = upper - lower if unit_box else torch.ones_like(lower)
        self.box = self.inward(self.bounds)

    def inward(self, x: torch.Tensor) -> torch.Tensor:
        """z of x."""
        return (x - self._origin) / self._width

    def outward(self, z: torch.Tensor) -> torch.Tensor:
        """x of z, inside the bounds whatever the rounding."""
        return (self._origin + z * self._width).clamp(*self.bounds)

    def start(self, start: torch.Tensor | None) -> torch.Tensor:
        """`start` in x, or the box's centre. Raises InputError if it is no point of the box."""
        if start is None:
            return self.bounds.mean(0)
        if require_float64("start", start).shape != self.bounds[0].shape:
            raise InputError("start", tuple(start.shape), f"of shape ({self.bounds.shape[1]},)")
        start = start.detach().to(self.bounds.device, copy=True)
        if not bool(((self.bounds[0] <= start) & (start <= self.bounds[1])).all()):
            raise InputError("start", tuple(start.tolist()), "inside the bounds")
        return start


class GIBODesign:
    """Chooses the points of each iteration around theta, within a box in the algorithm's
    coordinates.

    A design depends on theta, earlier points and the settings only, so a resumed run chooses the
    same points.

    Args:
        box: `2 x d`.
        batch_size: number of points; the most that are chosen if there is a tolerance.
        seeds: of the rotations, one a run; omitted, the settings' for one run.
    """

    def __init__(
        self,
        box: torch.Tensor,
        batch_size: int,
        settings: GIBOSettings,
        seeds: Sequence[int] | None = None,
    ) -> None:
        self._box = box
        self._batch_size = batch_size
        self._settings = settings
        self._seeds = seeds
        self._last: tuple[torch.Tensor, torch.Tensor] | None = None

    def points(
        self, posterior: GradientPosterior, theta: torch.Tensor, iteration: int
    ) -> torch.Tensor:
        """The points of this iteration, `batch_shape x b x d` for theta `batch_shape x d`; to be
        called once for each. `posterior` holds the points whose losses are used again. With a
        tolerance there is one run.
        """
        settings = self._settings
        generator = self._generators(iteration)
        if settings.tolerance is not None:
            Z = fewest_gradient_points(
                posterior,
                theta,
                settings.tolerance,
                self._batch_size,
                bounds=self._box,
                generator=generator,
            )
            # nothing is uncertain: one point keeps the loop going
            Z = Z if len(Z) else theta.unsqueeze(0)
        elif settings.radius is not None and not len(posterior) and posterior.noise == 0:
            Z = self._at_radius(settings.radius, theta, generator)
        else:
            start = None
            # the last design, shifted as theta was
            if self._last is not None and self._last[0].shape[-2] == self._batch_size:
                Z, before = self._last
                start = Z + (theta - before).unsqueeze(-2)
            Z = suggest_gradient_points(
                posterior,
                theta,
                self._batch_size,
                bounds=self._box,
                start=start,
                generator=generator,
            )
        self._last = (Z, theta) if settings.history else None
        return Z

    def _generators(self, iteration: int) -> Generators | None:
        """Sources of this iteration's rotation, or of each run's."""
        if self._seeds is not None:
            return [torch.Generator().manual_seed(_SEEDS * own + iteration) for own in self._seeds]
        seed = self._settings.seed
        if seed is None:
            return None
        return torch.Generator().manual_seed(_SEEDS * seed + iteration)

    def _at_radius(
        self, radius: float, theta: torch.Tensor, generator: Generators | None
    ) -> torch.Tensor:
        """Points so far from theta, shifted into the box as a whole."""
        d = theta.shape[-1]
        unit = directions(self._batch_size, d)
        if generator is not None:
            unit = unit @ rotations(d, generator)
        lower, upper = self._box
        centre = torch.maximum(torch.minimum(theta, upper - radius), lower + radius)
        return (centre.unsqueeze(-2) + radius * unit.to(theta.device)).clamp(lower, upper)
