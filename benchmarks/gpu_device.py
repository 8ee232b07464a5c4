"""The device that is measured, and its ceilings: how fast it reads, multiplies on tensor cores, and computes in registers."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.harness import interleaved

_LANES, _ROUNDS = 1024, 4096  # of the kernel that computes in registers


def wait(device: torch.device) -> Callable[[], None]:
    """What ends all work on the device."""
    return functools.partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None


def seconds(device: torch.device, *works: Callable[[], Any], repetitions: int = 7) -> list[float]:
    """The median of each, run in turn."""
    return [statistics.median(times) for times in interleaved(*works, repetitions=repetitions, wait=wait(device))]


@dataclass(frozen=True)
class Ceilings:
    """What this device reached, each the best of several tries; operations of registers are 0 where no GPU is there to measure."""

    read: float  # bytes a second
    copy: float  # bytes a second, read and written
    tf32: float  # flops a second of a product of matrices
    float64: float  # flops a second of the same
    float64_steps: float  # fused multiply-adds a second in registers
    int32_steps: float  # multiply-adds a second in registers

    @classmethod
    def of(cls, device: torch.device, numbers: int, side: int) -> Ceilings:
        """By a sum and a copy of so many float32, and products of square matrices."""
        data = torch.ones(numbers, device=device)
        other = torch.empty_like(data)
        single, double = torch.randn(side, side, device=device), torch.randn(side, side, device=device, dtype=torch.float64)
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        works = (data.sum, lambda: other.copy_(data), lambda: single @ single, lambda: double @ double)
        times = [min(found) for found in interleaved(*works, repetitions=9, wait=wait(device))]
        torch.set_float32_matmul_precision(before)
        products = 2.0 * side**3
        steps = [_steps(device, dtype) for dtype in (torch.float64, torch.int32)] if device.type == "cuda" else [0.0, 0.0]
        return cls(4.0 * numbers / times[0], 8.0 * numbers / times[1], products / times[2], products / times[3], *steps)

    def rows(self) -> list[list[Any]]:
        """For a table."""
        return [
            ["read, GB/s", self.read / 1e9], ["copy, GB/s", self.copy / 1e9], ["tf32 product, TFLOP/s", self.tf32 / 1e12],
            ["float64 product, TFLOP/s", self.float64 / 1e12], ["float64 multiply-adds, 10^12/s", self.float64_steps / 1e12],
            ["int32 multiply-adds, 10^12/s", self.int32_steps / 1e12],
        ]  # fmt: skip


def _steps(device: torch.device, dtype: torch.dtype) -> float:
    """Multiply-adds a second of a kernel that reads its numbers once and then only computes."""
    programs = 64 * torch.cuda.get_device_properties(device).multi_processor_count
    numbers = torch.ones(programs * _LANES, dtype=dtype, device=device)
    (times,) = interleaved(lambda: _kernel()[(programs,)](numbers, LANES=_LANES, ROUNDS=_ROUNDS), repetitions=9, wait=wait(device))
    return 4.0 * len(numbers) * _ROUNDS / min(times)


@functools.cache
def _kernel() -> Any:
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def computing(numbers, LANES: tl.constexpr, ROUNDS: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * LANES + tl.arange(0, LANES)
        a = tl.load(numbers + at)
        b, c, e = a + a, a + a + a, a * a  # four chains, so that none waits for the one before
        for _ in range(ROUNDS):
            a = a * e + b
            b = b * e + c
            c = c * e + a
            e = e * e + a
        tl.store(numbers + at, a + b + c + e)

    return computing
