"""`gradient_query.clipped_sum` in one pass on a GPU: W y, whole numbers, clip and sum, without a
vector in memory.

A program takes ROWS units at a time. With y_N a unit's own loss at the last point and s = W 1, its
vector is s y_N + W (y - y_N), where the tensor cores multiply the differences. Differences and W
are each a sum of two bfloat16 numbers, high and low, and three products of these are summed in
float32. So an error is at most 3 2^-18 of |W| |y - y_N|, and 2^-23 more for each of the 3 N / 16
blocks of products, where a tensor core cuts a sum off instead of rounding it. Emulated so, it is
2e-6 for terms of any signs and 3e-6 for terms of one sign, from N = 34 to 1,024. Rows of W nearly
cancel (s is nearly 0): products of y itself would drown the gradient of a unit whose losses are
large but differ little. The vector then goes through the steps of `clipped_sum` in float64 and
integers. So from equal vectors it makes the same whole numbers as the CPU, and int64 sums are the
same in every order. Adding and subtracting 1.5 x 2^52 rounds a float64 to a whole number, which its
low 32 bits then hold: no conversion is needed.

Sensitivity: a unit's vector depends on its own numbers, W and the shape of a block alone, so
rounding, whatever its size, moves each unit's vector by itself. It comes before the clip, and what
is summed is at most floor(B / q) long by exact integers. But rounding moves every unit's vector, so
whether this path is taken must depend on public things: device, weights and clip, never the dtype
or layout of a loss, which may depend on whether the loss failed on some record.

Range: losses are float32 here, so one above 3e38 counts as not finite and one below 1e-38 as zero.
W and the clip B are divided by one power of two near B, exactly, so that a vector as long as the
clip has length 1. Taken only where max |W| / B lies within 2^-64 and 2^64: losses that matter, near
B / max |W|, are then far from float32's ends.

Reads each loss (4 bytes) once. Operations a unit: 6 m d in bfloat16, then for each of the
`width_of(d)` padded coordinates one conversion, six in float64 and about fifteen on integers. A
program adds TOGETHER blocks in 32 bits (7 x 2^28 < 2^31), and these to the total in 64.
"""

import functools
import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch

from dpbo.extras import needs

MOST_DIMENSION = 256
# float32 numbers that the kernel reads at once
_ALIGNED = 4
# of the largest weight over the clip, either way
_MOST_RATIO = 2.0**64


class Launch(NamedTuple):
    """How a kernel of one padded dimension runs."""

    # units a block
    rows: int
    # columns a step
    depth: int
    # blocks added in 32 bits
    together: int
    warps: int
    # buffers of losses are one less
    stages: int
    # per multiprocessor
    programs: int


# about the fastest of some thirty on an H100, for which nothing spills
LAUNCHES = {
    16: Launch(64, 64, 7, 4, 3, 3),
    32: Launch(64, 32, 7, 4, 5, 3),
    64: Launch(64, 32, 7, 4, 5, 2),
    128: Launch(128, 16, 1, 8, 4, 1),
    256: Launch(32, 32, 1, 8, 4, 1),
}


def can_sum_in_one_pass(device: torch.device, weights: torch.Tensor, clip: float) -> bool:
    """Whether gradients by these weights `d x N` on this device are summed in one pass."""
    if device.type != "cuda" or len(weights) > MOST_DIMENSION:
        return False
    ratio = float(weights.abs().max()) / clip
    in_range = ratio == 0.0 or 1.0 / _MOST_RATIO <= ratio <= _MOST_RATIO
    return in_range and _works(device, width_of(len(weights)))


@functools.cache
def _works(device: torch.device, width: int) -> bool:
    """Whether kernels of this width compile and sum rightly, tried once; a warning says why not."""
    # a whole block, and a ragged one
    units = LAUNCHES[width].rows + 1
    weights = torch.zeros(width, 2, dtype=torch.float64, device="cpu")
    weights[0] = 1.0
    reason = "its sums were wrong"
    try:
        losses = torch.ones(2, units, device=device)
        losses[1] = 2.0
        if one_pass_sum([losses], weights, 4.0, 0.5, aim=7.0).tolist() == [
            6 * units,
            *[0] * (width - 1),
        ]:
            return True
    except torch.OutOfMemoryError:
        # says nothing of the next trial: there may be memory then
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    text = (
        f"the one-pass gradient kernel for up to {width} dimensions does not run on {device}"
        f" ({reason}). Sums are right but slower."
    )
    warnings.warn(text, RuntimeWarning, stacklevel=2)
    return False


def one_pass_sum(
    losses: Sequence[torch.Tensor],
    weights: torch.Tensor,
    clip: float,
    quantum: float,
    *,
    aim: float,
) -> torch.Tensor:
    """As `gradient_query.clipped_sum`; `aim` is the length in quanta that long
    vectors are shortened to (`aim_of`).
    """
    with needs("gpu"):
        import triton.language as tl

        from dpbo.gibo.gradient_triton import gradient_sum

    slabs = [_ready(part) for part in losses]
    device = slabs[0].device
    units = slabs[0].shape[1]
    columns = sum(map(len, slabs))
    width = width_of(len(weights))
    launch = LAUNCHES[width]
    steps = math.ceil(columns / launch.depth)
    # the clip is about 1 then; a power of two, so nothing is rounded
    unit = math.ldexp(1.0, math.frexp(clip)[1])
    W = torch.zeros(width, steps * launch.depth, dtype=torch.float64, device="cpu")
    W[: len(weights), :columns] = weights.cpu() / unit
    lead = W.to(torch.bfloat16)
    # Triton's interpreter has no products of bfloat16
    on_gpu = device.type == "cuda"
    factor = torch.bfloat16 if on_gpu else torch.float32
    pair = torch.stack([lead, (W - lead.to(torch.float64)).to(torch.bfloat16)]).to(factor)
    whole, rest = divmod(units, launch.rows)
    # all in memory and in one copy: as arguments floats would be float32, and Triton compiles anew
    # for what divides a number of units
    numbers = torch.tensor([clip / unit, clip / quantum, aim], dtype=torch.float64, device="cpu")
    sizes = torch.tensor([math.floor(clip / quantum) ** 2, units, whole], device="cpu")
    if len(slabs) == 1:
        places = torch.tensor([slabs[0].data_ptr(), slabs[0].stride(0)], device="cpu")
    else:
        size = slabs[0].element_size()
        rows = [
            slab.data_ptr() + slab.stride(0) * size * torch.arange(len(slab), device="cpu")
            for slab in slabs
        ]
        places = torch.cat(rows)
    # W begins at a multiple of 16 bytes
    gap = torch.zeros(len(places) % 2, dtype=torch.int64, device="cpu")
    parts = [numbers, W.sum(1), sizes, places, gap, pair.flatten()]
    there = torch.cat([part.view(torch.int64) for part in parts]).to(device)
    first = len(numbers) + width
    table = there[first + len(sizes) :]
    total = torch.zeros(width, dtype=torch.int64, device=device)
    for blocks, ragged in ((whole, False), (int(rest > 0), True)):
        if blocks:
            programs = min(blocks, launch.programs * _multiprocessors(device))
            # Triton launches on the current device.
            with torch.cuda.device_of(slabs[0]):  # type: ignore[no-untyped-call]
                gradient_sum[(programs,)](
                    table,
                    table[len(places) + len(gap) :].view(factor),
                    total,
                    there.view(torch.float64),
                    there[first:],
                    columns,
                    steps,
                    RAGGED=ragged,
                    ROWS=launch.rows,
                    DEPTH=launch.depth,
                    WIDTH=width,
                    TOGETHER=launch.together,
                    FACTOR=tl.bfloat16 if on_gpu else tl.float32,
                    SLAB=len(slabs) == 1,
                    num_warps=launch.warps,
                    num_stages=launch.stages,
                    enable_fp_fusion=False,
                )
    return total[: len(weights)]


def _ready(losses: torch.Tensor) -> torch.Tensor:
    """Losses of shape `units` or `points x units` as the kernel reads them: float32 rows, dense,
    that begin at multiples of 16 bytes.

    They are copied only if they are not so already.
    """
    dense = by_points(losses).to(torch.float32).resolve_neg()
    aligned = dense.data_ptr() % (4 * _ALIGNED) == 0 and (
        len(dense) == 1 or dense.stride(0) % _ALIGNED == 0
    )
    if aligned and dense.stride(1) == 1:
        return dense
    return empty_slab(len(dense), dense.shape[1], dense.device).copy_(dense)


def by_points(losses: torch.Tensor) -> torch.Tensor:
    """Losses of shape `units` or `points x units` as `points x units`."""
    if losses.ndim == 2:
        return losses
    return losses.unsqueeze(0)


def empty_slab(points: int, units: int, device: torch.device) -> torch.Tensor:
    """Memory for losses as the kernel reads them, `points x units`, float32."""
    # each caller writes all of the view at once
    return torch.empty(
        points, _ALIGNED * math.ceil(units / _ALIGNED), dtype=torch.float32, device=device
    )[:, :units]


def width_of(dimension: int) -> int:
    """The number of coordinates that a unit's vector is padded to."""
    return max(16, 1 << math.ceil(math.log2(dimension)))


def _multiprocessors(device: torch.device) -> int:
    """Multiprocessors of the GPU; 1 where Triton's interpreter runs the kernel."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
