"""Which points to ask for next, and the weights that turn losses there into a gradient. Public: it never sees a loss.

A point's design depends on theta, earlier points and the seed of its step alone, so a run that is resumed asks for the same points.
"""

from __future__ import annotations

from typing import Any

import torch

from dpbo.acquisition.choose import adaptive_points, choose_points
from dpbo.acquisition.designs import directions, rotation
from dpbo.algorithms.gibo_settings import GIBOSettings
from dpbo.models.gradient_posterior import GradientPosterior

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
