"""The clipped sum of vectors.py in one pass on a GPU: W y, whole numbers, clip and sum, without the vectors ever standing in memory.

A program takes BLOCK units at a time: products in tf32 on the tensor cores, float32 sums, then the recipe of vectors.py in float64 and
int64. So from equal vectors it makes the same integers as the CPU, and int64 sums are the same in every order. Each unit's vector depends
on its own numbers, W and the shape of a block alone. Rounding to tf32 (1e-3 of a term) comes before the clip, where nothing rests on it.

Reads 4 bytes a loss once. Operations a unit: 2 m d in tf32, about 10 d in float64 and 10 d in int64.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Sequence
from typing import Any

import torch

MOST_DIMENSION = 256
_PROGRAMS = 4  # for each multiprocessor


def can_fuse(columns: Sequence[torch.Tensor], dimension: int) -> bool:
    """Whether these columns can be summed so: float32 on a GPU, without gaps, where Triton is."""
    one = columns[0]
    fits = one.is_cuda and dimension <= MOST_DIMENSION and importlib.util.find_spec("triton") is not None
    return fits and all(column.dtype == torch.float32 and column.is_contiguous() for column in columns)


def fused_sum(
    columns: Sequence[torch.Tensor], weights: torch.Tensor, clip: float, quantum: float, offset: torch.Tensor, *, shorter: float
) -> torch.Tensor:
    """As `vectors.clipped_sum`; `shorter` is its share of the clip that the floats aim at."""
    one, d = columns[0], len(weights)
    width = max(16, 1 << math.ceil(math.log2(d)))
    rows, depth, warps = _shape(width)
    W = torch.zeros(len(columns), width, dtype=torch.float32, device=one.device)
    W[:, :d] = weights.T
    shift = torch.zeros(width, dtype=torch.float64, device=one.device)
    shift[:d] = offset
    places = torch.tensor([column.data_ptr() for column in columns], dtype=torch.int64, device=one.device)
    most = math.floor(clip / quantum)
    numbers = torch.tensor([clip, clip / quantum, most * shorter], dtype=torch.float64, device=one.device)  # an argument would be float32
    total = torch.zeros(width, dtype=torch.int64, device=one.device)
    blocks = math.ceil(len(one) / rows)
    programs = min(blocks, _PROGRAMS * _multiprocessors(one.device))
    if blocks:
        _kernel()[(programs,)](
            places, W, shift, total, numbers, len(one), len(columns), blocks, most,
            ROWS=rows, DEPTH=depth, WIDTH=width, num_warps=warps,
        )  # fmt: skip
    return total[:d]


def _shape(width: int) -> tuple[int, int, int]:
    """(units a block, columns a step, warps)."""
    if width <= 32:
        return 128, 32, 4
    return (64, 32, 4) if width <= 64 else (32, 32, 4) if width <= 128 else (32, 32, 8)


def _multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


@functools.cache
def _kernel() -> Any:
    """Compiled when it is first asked for, so that dpbo loads where there is no Triton."""
    import triton
    import triton.language as tl

    @triton.jit
    def summed(  # type: ignore[no-untyped-def]
        places, W, shift, total, numbers, units, columns, blocks, whole,
        ROWS: tl.constexpr, DEPTH: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        across = tl.arange(0, WIDTH)
        offset = tl.load(shift + across)
        most = tl.zeros((1,), dtype=tl.int64) + whole  # its square passes 32 bits
        clip, bound, aim = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2)
        own = tl.zeros((WIDTH,), dtype=tl.int64)
        for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
            rows = (tl.zeros((1,), dtype=tl.int64) + block) * ROWS + tl.arange(0, ROWS)  # 64 bits, also for many units
            product = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
            for first in range(0, columns, DEPTH):
                deep = first + tl.arange(0, DEPTH)
                starts = tl.load(places + deep, mask=deep < columns, other=0).to(tl.pointer_type(tl.float32))
                here = (rows[:, None] < units) & (deep[None, :] < columns)
                losses = tl.load(starts[None, :] + rows[:, None], mask=here, other=0.0)
                part = tl.load(W + deep[:, None] * WIDTH + across[None, :], mask=deep[:, None] < columns, other=0.0)
                product = tl.dot(losses, part, product, input_precision="tf32")
            g = product.to(tl.float64) - offset[None, :]
            broken = tl.max(((g - g) != 0.0).to(tl.int32), axis=1) > 0  # NaN or infinite
            alive = (rows < units) & (broken == 0)
            g = tl.where(alive[:, None], g, 0.0)
            largest = tl.maximum(tl.max(tl.abs(g), axis=1), clip)
            k = (g * (bound / largest)[:, None]).to(tl.int64)
            k = tl.minimum(tl.maximum(k, -most[:, None]), most[:, None])
            squares = tl.sum(k * k, axis=1)
            ratio = tl.where(squares > most * most, aim / tl.sqrt(tl.maximum(squares, 1).to(tl.float64)), 1.0)
            k = (k.to(tl.float64) * ratio[:, None]).to(tl.int64)
            squares = tl.sum(k * k, axis=1)
            if tl.max((squares > most * most).to(tl.int32), axis=0) > 0:  # never, where floats are IEEE's
                root = tl.sqrt(squares.to(tl.float64)).to(tl.int64) + 2
                least = (tl.abs(k) * most[:, None]) // root[:, None]
                k = tl.where((squares > most * most)[:, None], tl.where(k < 0, -least, least), k)
            own += tl.sum(k, axis=0)
        tl.atomic_add(total + across, own)

    return summed
