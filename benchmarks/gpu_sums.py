"""The clipped sum of linear maps of losses, beside its roofs and beside what torch does of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu_device import Ceilings, seconds
from dpbo.queries.fused import width_of
from dpbo.queries.vectors import clipped_sum, quantum_of

CLIP = 1.0
# of each padded coordinate in fused.py: a conversion and six operations in float64, about fifteen on integers
_FLOATS, _INTEGERS = 7.0, 15.0

Sizes = list[tuple[int, int]]
SIZES: Sizes = [(256, 33), (64, 8), (64, 16), (64, 64), (1024, 8), (1024, 16), (1024, 64), (64, 33), (1024, 33), (256, 8), (256, 128)]


def losses_of(units: int, points: int, device: torch.device) -> list[torch.Tensor]:
    """One column a point."""
    draw = torch.Generator(device).manual_seed(points)
    return [torch.randn(units, generator=draw, device=device) for _ in range(points)]


def weights_of(dimension: int, points: int, device: torch.device) -> torch.Tensor:
    """W, such that about half of the vectors are clipped."""
    draw = torch.Generator().manual_seed(dimension)
    return (torch.randn(dimension, points, generator=draw, dtype=torch.float64) * CLIP / math.sqrt(points * dimension)).to(device)


def ours(columns: list[torch.Tensor], W: torch.Tensor) -> torch.Tensor:
    """In whole numbers."""
    return clipped_sum(columns, W, CLIP, quantum_of(CLIP, len(W)))


def plain(L: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
    """What one would write in torch, in floats: `n x d` gradients, clipped and summed."""
    g = L @ W.T
    return (g * (CLIP / g.norm(dim=1, keepdim=True).clamp(min=CLIP))).sum(0)


def with_precision(work: Callable[[], Any], precision: str) -> Callable[[], Any]:
    """The same, at torch's precision of float32 products."""

    def run() -> Any:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(precision)
        try:
            return work()
        finally:
            torch.set_float32_matmul_precision(before)

    return run


def bounds_of(units: int, points: int, dimension: int, ceilings: Ceilings) -> tuple[float, float]:
    """(seconds to read the losses once, seconds of the products and of what follows them if nothing overlapped)."""
    width = width_of(dimension)
    computing = 6.0 * points * width / ceilings.tf32
    if ceilings.float64_steps:
        computing += width * (_FLOATS / ceilings.float64_steps + _INTEGERS / ceilings.int32_steps)
    return 4.0 * units * points / ceilings.read, units * computing


def speed(units: int, sizes: Sizes, ceilings: Ceilings, device: torch.device, *, compiled: bool) -> list[list[Any]]:
    """A row for each (points, dimensions): milliseconds, share of the roof, bounds, and the peers' milliseconds."""
    return [[*size, *_timed(units, *size, ceilings, device, compiled)] for size in sizes]


def _timed(units: int, points: int, dimension: int, ceilings: Ceilings, device: torch.device, compiled: bool) -> list[float]:
    columns, W = losses_of(units, points, device), weights_of(dimension, points, device)
    L, small = torch.stack(columns, dim=1), W.float()
    works = [lambda: ours(columns, W), *(with_precision(lambda: plain(L, small), name) for name in ("highest", "high"))]
    if compiled:
        fast = torch.compile(plain)
        works.append(with_precision(lambda: fast(L, small), "high"))
    own, *peers = seconds(device, *works)
    read, computing = bounds_of(units, points, dimension, ceilings)
    return [1e3 * own, read / own, 1e3 * read, 1e3 * computing, *(1e3 * time for time in peers)]


def scaling(most: int, device: torch.device) -> list[list[Any]]:
    """Milliseconds and gigabytes a second from 10^4 units on, at 16 points and 8 dimensions."""
    rows, units = [], 10_000
    while units <= most:
        columns, W = losses_of(units, 16, device), weights_of(8, 16, device)
        (own,) = seconds(device, lambda: ours(columns, W))  # noqa: B023
        rows.append([units, 1e3 * own, 64.0 * units / own / 1e9])
        units *= 10
    return rows


def errors(units: int, device: torch.device) -> list[list[Any]]:
    """How far each way's sum lies from that in float64, relative to it; losses are offset, so that digits cancel."""
    points, dimension = 256, 33
    columns, W = losses_of(units, points, device), weights_of(dimension, points, device)
    W = W - W.mean(1, keepdim=True)
    columns = [10.0 + column for column in columns]
    L, small = torch.stack(columns, dim=1), W.float()
    truth = plain(L.double(), W)
    ways = {
        "dpbo": ours(columns, W).double() * quantum_of(CLIP, dimension),
        "torch, float32": with_precision(lambda: plain(L, small), "highest")().double(),
        "torch, tf32": with_precision(lambda: plain(L, small), "high")().double(),
    }
    return [[name, float((found - truth).norm() / truth.norm())] for name, found in ways.items()]
