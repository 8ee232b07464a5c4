"""The box of a search, and the coordinates in which it is searched."""

from __future__ import annotations

from typing import Any

import torch

from dpbo.errors import InputError


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
