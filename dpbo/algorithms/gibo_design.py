"""Which points to ask for next, and the weights that turn losses there into a gradient. Public: it never sees a loss.

A point's design depends on theta, earlier points and the seed of its step alone, so a run that is resumed asks for the same points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dpbo.acquisition.designs import directions, rotation
from dpbo.acquisition.gradient_design import adaptive_points, choose_points
from dpbo.errors import InputError
from dpbo.models.gradient_posterior import GradientPosterior
from dpbo.validation import checked

# ========== MERGED The box of a search, and the coordinates in which it is searched.


class Frame:
    """The algorithm's coordinates: box widths, or x's own."""

    def __init__(self, bounds: torch.Tensor, unit_box: bool) -> None:
        self.bounds = bounds
        self._origin, self._width = (
            (bounds[0], bounds[1] - bounds[0]) if unit_box else (torch.zeros_like(bounds[0]), torch.ones_like(bounds[0]))
        )
        self.box = self.inward(bounds)

    def inward(self, x: torch.Tensor) -> torch.Tensor:
        """From x to the algorithm's coordinates."""
        return (x - self._origin) / self._width

    def outward(self, z: torch.Tensor) -> torch.Tensor:
        """Back to x, inside the bounds whatever rounding does."""
        return (self._origin + z * self._width).clamp(self.bounds[0], self.bounds[1])


def require_bounds(bounds: Any) -> torch.Tensor:
    """`bounds` if it is a box, else InputError."""
    shaped = isinstance(bounds, torch.Tensor) and bounds.ndim == 2 and len(bounds) == 2 and bounds.numel() and bounds.dtype == torch.float64
    if not shaped or not bool((bounds[0] < bounds[1]).all()) or not bool(bounds.isfinite().all()):
        shown = tuple(bounds.shape) if isinstance(bounds, torch.Tensor) else type(bounds).__name__
        raise InputError("bounds", shown, "a finite float64 tensor of shape 2 x d with lower ends below upper ends")
    return bounds.detach().clone()


def require_start(start: torch.Tensor | None, bounds: torch.Tensor) -> torch.Tensor:
    """`start`, or the centre of the box; InputError where it lies outside."""
    if start is None:
        return bounds.mean(0)
    if not isinstance(start, torch.Tensor) or start.shape != bounds[0].shape or start.dtype != torch.float64:
        raise InputError("start", tuple(getattr(start, "shape", ())), f"a float64 tensor of shape ({len(bounds[0])},)")
    if not bool(((bounds[0] <= start) & (start <= bounds[1])).all()):
        raise InputError("start", "outside the bounds", "inside the bounds")
    return start.detach().clone()


# ========== MERGED How DP-GIBO chooses points and steps, as data: the paper's way and the recommended one.
#
# Both are the same algorithm; `dataclasses.replace(RECOMMENDED, learning_rate=0.1)` changes one thing.
#

_NOISY = 0.2  # rho above which smaller steps and a longer average pay (paired simulations on six tasks)


@checked
@dataclass(frozen=True)
class GIBOSettings:
    """Everything about a run that is neither the problem nor the budget.

    Attributes:
        unit_box: work in coordinates where the box is [0, 1]^d, so that clip, lengths and steps are per box width; else in x's own.
        rotate: turn each design at random, so that no direction is favoured.
        radius: of the design, in those coordinates; None, and wherever losses carry noise: the one that leaves the gradient most certain.
            Losses that bend within a twentieth of the box want 0.002 to 0.01 and a smaller clip (benchmarks.dpgibo, experiment 4.3).
        history: use the losses at all earlier points again.
        jitter: relative variance that the posterior takes every loss to carry, at least 1e-6.
        optimizer: a class of torch.optim, fed with the released gradient.
        learning_rate: its `lr`; None: 0.2, or 0.1 where rho > 0.2.
        tail: share of the last iterates that are averaged into the result; None: 0.25, or 0.5 where rho > 0.2; 0: the last one.
    """

    unit_box: bool = True
    rotate: bool = True
    radius: float | None = 0.04
    history: bool = False
    jitter: float = 1e-6
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adagrad
    learning_rate: float | None = None
    tail: float | None = None

    def step_size(self, rho: float) -> float:
        """The learning rate for this noise."""
        return self.learning_rate if self.learning_rate is not None else 0.1 if rho > _NOISY else 0.2

    def __post_init__(self) -> None:
        tried = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        tried.grad = torch.zeros_like(tried)
        try:
            self.optimizer([tried], lr=1.0).step()
        except TypeError:
            name = getattr(self.optimizer, "__name__", type(self.optimizer).__name__)
            raise InputError("optimizer", name, "a class of torch.optim that steps on a gradient, as Adagrad") from None

    def averaged(self, rho: float, iterations: int) -> int:
        """How many of the last iterates make up the result."""
        share = self.tail if self.tail is not None else 0.5 if rho > _NOISY else 0.25
        return max(1, round(share * iterations))


RECOMMENDED = GIBOSettings()
PAPER = GIBOSettings(unit_box=False, rotate=False, radius=None, history=True, jitter=5e-6, learning_rate=1.0, tail=0.0)


_SEEDS = 1_000_003  # apart from any number of steps


class GIBOPoints:
    """Designs around theta within a box, in the algorithm's own coordinates.

    Args:
        posterior: kernel, noise and jitter, without points.
        box: `2 x d`.
        batch_size: b, or at most b where `tolerance` is given.
        tolerance: Algorithm 2: as few points as bring the gradient's total variance down to this.
        seed: of the rotations.
    """

    def __init__(
        self, posterior: GradientPosterior, box: torch.Tensor, batch_size: int, tolerance: float | None, seed: int, settings: GIBOSettings
    ) -> None:
        self._posterior, self._box, self._settings = posterior, box, settings
        self._batch_size, self._tolerance, self._seed = batch_size, tolerance, seed
        self._last: tuple[torch.Tensor, torch.Tensor] | None = None

    def propose(self, theta: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(Z, W): b points, `b x d`, and weights, `d x N`, over earlier points (with history) and these."""
        generator = torch.Generator().manual_seed(_SEEDS * self._seed + step) if self._settings.rotate else None
        Z = self._design(theta, generator)
        after = self._posterior.conditioned_on(Z)
        if self._settings.history:
            self._posterior, self._last = after, (Z, theta)
        return Z, after.weights(theta)

    def _design(self, theta: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
        if self._tolerance is not None:
            Z = adaptive_points(self._posterior, theta, self._tolerance, self._batch_size, bounds=self._box, generator=generator)
            return Z if len(Z) else theta.unsqueeze(0)  # all is known: one point keeps the loop going
        if self._settings.radius is not None and not len(self._posterior) and self._posterior.noise == 0:
            return self._stencil(theta, self._settings.radius, generator)
        settings: dict[str, Any] = {"bounds": self._box, "start": self._moved(theta), "generator": generator}
        return choose_points(self._posterior, theta, self._batch_size, **settings)

    def _stencil(self, theta: torch.Tensor, radius: float, generator: torch.Generator | None) -> torch.Tensor:
        """The closed-form directions at a fixed radius, pulled inside the box as a whole."""
        unit = directions(self._batch_size, len(theta))
        if generator is not None:
            unit = unit @ rotation(len(theta), generator)
        centre = torch.maximum(torch.minimum(theta, self._box[1] - radius), self._box[0] + radius)
        return (centre + radius * unit).clamp(self._box[0], self._box[1])

    def _moved(self, theta: torch.Tensor) -> torch.Tensor | None:
        """The last design, shifted as theta was."""
        if self._last is None or len(self._last[0]) != self._batch_size:
            return None
        Z, before = self._last
        return (Z + (theta - before)).clamp(self._box[0], self._box[1])
