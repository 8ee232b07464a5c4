"""The device and its ceilings; the clipped sum of linear maps of losses, beside these and beside
what torch does of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch

from benchmarks.harness import interleaved
from dpbo.gibo.gradient_kernel import empty_slab, width_of
from dpbo.gibo.gradient_query import clipped_sum, quantum_of

_LANES = 1024
# Of the kernel that computes in registers.
_ROUNDS = 4096
CLIP = 1.0
# of each padded coordinate in gpu/gradient.py: a conversion and six operations in float64, about
# fifteen on integers
_FLOATS = 7.0
_INTEGERS = 15.0

Sizes = list[tuple[int, int]]
SIZES: Sizes = [
    (256, 33),
    (64, 8),
    (64, 16),
    (64, 64),
    (1024, 8),
    (1024, 16),
    (1024, 64),
    (64, 33),
    (1024, 33),
    (256, 8),
    (256, 128),
]


def wait(device: torch.device) -> Callable[[], None]:
    """What ends all work on the device."""
    return (
        functools.partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    )


def seconds(device: torch.device, *works: Callable[[], Any], repetitions: int = 7) -> list[float]:
    """The median of each, run in turn."""
    return [
        statistics.median(times)
        for times in interleaved(*works, repetitions=repetitions, wait=wait(device))
    ]


@dataclass(frozen=True)
class Ceilings:
    """What this device reached, each the best of several tries; operations of registers are 0 where
    no GPU is there to measure.
    """

    # Bytes a second.
    read: float
    # Bytes a second, read and written.
    copy: float
    # Flops a second of a product of matrices.
    bf16: float
    # Flops a second of the same.
    tf32: float
    # Flops a second of the same.
    float64: float
    # Fused multiply-adds a second in registers.
    float64_steps: float
    # Multiply-adds a second in registers.
    int32_steps: float

    @classmethod
    def unknown(cls) -> Self:
        return cls(*(math.nan for _ in dataclasses.fields(cls)))

    @classmethod
    def of(cls, device: torch.device, numbers: int, side: int) -> Self:
        """By a sum and a copy of so many float32, and products of square matrices."""
        data = torch.ones(numbers, device=device)
        other = torch.zeros_like(data)
        single = torch.randn(side, side, device=device)
        half = single.bfloat16()
        double = torch.randn(side, side, device=device, dtype=torch.float64)
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        works = (
            data.sum,
            lambda: other.copy_(data),
            lambda: half @ half,
            lambda: single @ single,
            lambda: double @ double,
        )
        times = [min(found) for found in interleaved(*works, repetitions=9, wait=wait(device))]
        torch.set_float32_matmul_precision(before)
        products = 2.0 * side**3
        steps = (
            [_steps(device, dtype) for dtype in (torch.float64, torch.int32)]
            if device.type == "cuda"
            else [0.0, 0.0]
        )
        return cls(
            4.0 * numbers / times[0],
            8.0 * numbers / times[1],
            products / times[2],
            products / times[3],
            products / times[4],
            *steps,
        )

    def rows(self) -> list[list[Any]]:
        """For a table."""
        return [
            ["read, GB/s", self.read / 1e9],
            ["copy, GB/s", self.copy / 1e9],
            ["bf16 product, TFLOP/s", self.bf16 / 1e12],
            ["tf32 product, TFLOP/s", self.tf32 / 1e12],
            ["float64 product, TFLOP/s", self.float64 / 1e12],
            ["float64 multiply-adds, 10^12/s", self.float64_steps / 1e12],
            ["int32 multiply-adds, 10^12/s", self.int32_steps / 1e12],
        ]


def _steps(device: torch.device, dtype: torch.dtype) -> float:
    """Multiply-adds a second of a kernel that reads its numbers once and then only computes."""
    programs = 64 * torch.cuda.get_device_properties(device).multi_processor_count
    numbers = torch.ones(programs * _LANES, dtype=dtype, device=device)
    (times,) = interleaved(
        lambda: _kernel()[(programs,)](numbers, LANES=_LANES, ROUNDS=_ROUNDS),
        repetitions=9,
        wait=wait(device),
    )
    return 4.0 * len(numbers) * _ROUNDS / min(times)


@functools.cache
def _kernel() -> Any:
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def computing(  # type: ignore[no-untyped-def]
        numbers, LANES: tl.constexpr, ROUNDS: tl.constexpr
    ):
        at = tl.program_id(0) * LANES + tl.arange(0, LANES)
        a = tl.load(numbers + at)
        b = a + a
        c = a + a + a
        # Four chains, so that none waits for the one before.
        e = a * a
        for _ in range(ROUNDS):
            a = a * e + b
            b = b * e + c
            c = c * e + a
            e = e * e + a
        tl.store(numbers + at, a + b + c + e)

    return computing


def ours(losses: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
    """In whole numbers."""
    return clipped_sum([losses], W, CLIP, quantum_of(CLIP, len(W)))


def plain(L: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
    """What one would write in torch, in floats: `n x d` gradients, clipped and summed."""
    g = L @ W.T
    return (g * (CLIP / g.norm(dim=1, keepdim=True).clamp(min=CLIP))).sum(0)


def queued(work: Callable[[], Any]) -> None:
    """Ten in a row: what a GPU takes where the next call is prepared meanwhile."""
    for _ in range(10):
        work()


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
    """(seconds to read the losses once, seconds of the products and of what follows them if nothing
    overlapped).
    """
    width = width_of(dimension)
    computing = 6.0 * points * width / ceilings.bf16
    if ceilings.float64_steps:
        computing += width * (_FLOATS / ceilings.float64_steps + _INTEGERS / ceilings.int32_steps)
    return 4.0 * units * points / ceilings.read, units * computing


def speed(
    units: int,
    points: int,
    dimension: int,
    ceilings: Ceilings,
    device: torch.device,
    *,
    compiled: bool,
) -> dict[str, float]:
    """Milliseconds, share of the roof, bounds, and the peers' milliseconds."""
    here = torch.Generator().manual_seed(dimension)
    draw = torch.Generator(device).manual_seed(points)
    # As the query keeps them, a point a row; the peers get the order that is better for them.
    losses = empty_slab(points, units, device)
    losses.normal_(generator=draw)
    W = torch.randn(dimension, points, generator=here, dtype=torch.float64)
    # So that about half of the vectors are clipped.
    W *= CLIP / math.sqrt(points * dimension)
    L = losses.T.contiguous()
    small = W.float().to(device)
    works = [
        lambda: ours(losses, W),
        lambda: queued(lambda: ours(losses, W)),
        *(with_precision(lambda: plain(L, small), name) for name in ("highest", "high")),
    ]
    if compiled:
        # Or the second shape's code would be for shapes of all sizes, and slower.
        torch.compiler.reset()
        fast = torch.compile(plain, dynamic=False)
        works.append(with_precision(lambda: fast(L, small), "high"))
    own, ten, *peers = seconds(device, *works)
    read, computing = bounds_of(units, points, dimension, ceilings)
    names = ("torch, ms", "torch in tf32, ms", "compiled in tf32, ms")
    bounds = {
        "ms": 1e3 * own,
        "ms where ten wait in a queue": 1e2 * ten,
        "share of reading once": 10.0 * read / ten,
        "reading, ms": 1e3 * read,
        "arithmetic alone, ms": 1e3 * computing,
    }
    return bounds | {name: 1e3 * time for name, time in zip(names, peers, strict=False)}
