"""`queries.gradient.clipped_sum` in one pass on a GPU: W y, whole numbers, clip and sum, without a vector in memory.

A program takes ROWS units at a time: each product by three tf32 products on the tensor cores, which together have float32's precision;
float32 sums; then the steps of `clipped_sum` in float64 and integers. So from equal vectors it makes the same whole numbers as the CPU, and
int64 sums are the same in every order. A unit's vector depends on its own numbers, W and the shape of a block alone. Adding and subtracting
1.5 x 2^52 rounds a float64 to a whole number, which its low 32 bits then hold: no conversion is needed.

One tf32 product would not do: rows of W nearly cancel, and its error of 1e-3 a term, the same for all units, drowned gradients in
simulation. Rounding to float32 comes before the clip, so the sensitivity does not depend on it. But it moves every unit's vector, so
whether this path is taken must depend on public things: device and dimension, never the dtype or layout of a column, which may depend on
whether the loss failed on some record.

Reads each loss (4 bytes) once. Operations a unit: 6 m d in tf32, then for each of the `width_of(d)` padded coordinates one conversion, six
in float64 and about fifteen on integers. Each program keeps its own sums until the end, so no step waits for another program.
"""

import functools
import math
from collections.abc import Sequence

import torch

MOST_DIMENSION = 256
_ALIGNED = 16  # bytes that the kernel reads at once
_PROGRAMS = 2  # per multiprocessor


def can_sum_in_one_pass(device: torch.device, dimension: int) -> bool:
    """Whether gradients of this dimension on this device are summed in one pass."""
    return device.type == "cuda" and dimension <= MOST_DIMENSION and _works(device)


@functools.cache
def _works(device: torch.device) -> bool:
    """Whether the kernel compiles and gives a right sum, tried once: Triton, its compiler, or this GPU's tensor cores may be missing."""
    try:
        ones = torch.ones(3, dtype=torch.float32, device=device)
        return one_pass_sum([ones], torch.ones(1, 1, dtype=torch.float64), 4.0, 0.5, aim=7.0).tolist() == [6]
    except torch.OutOfMemoryError:  # not cached: there may be memory the next time
        raise
    except Exception:
        return False


def one_pass_sum(columns: Sequence[torch.Tensor], weights: torch.Tensor, clip: float, quantum: float, *, aim: float) -> torch.Tensor:
    """As `queries.gradient.clipped_sum` with center 0; `aim` is the length in quanta that long vectors are shortened to (`aim_of`)."""
    from dpbo.queries.gpu.kernels import gradient_sum

    columns = [_ready(column) for column in columns]
    one, d, width = columns[0], len(weights), width_of(len(weights))
    rows, depth = (128, 32) if width <= 32 else (64, 32)  # units a block, columns a step
    warps = 4 if width <= 64 else 8 if width <= 128 else 16
    padded = depth * math.ceil(len(columns) / depth)
    W = torch.zeros(width, padded, dtype=torch.float32, device=one.device)
    W[:d, : len(columns)] = weights
    places = torch.tensor([column.data_ptr() for column in columns], dtype=torch.int64, device=one.device)
    numbers = torch.tensor([clip, clip / quantum, aim], dtype=torch.float64, device=one.device)  # as arguments they would be float32
    whole, rest = divmod(len(one), rows)
    # in memory: Triton compiles anew for what divides an argument, and the number of units is private
    counts = [math.floor(clip / quantum) ** 2, len(one), whole]
    sizes = torch.tensor(counts, dtype=torch.int64, device=one.device)
    total = torch.zeros(width, dtype=torch.int64, device=one.device)
    for blocks, ragged in ((whole, False), (int(rest > 0), True)):
        if blocks:
            programs = min(blocks, _PROGRAMS * multiprocessors(one.device))
            with torch.cuda.device_of(one):  # type: ignore[no-untyped-call]  # Triton launches on the current device
                gradient_sum[(programs,)](
                    places, W, total, numbers, sizes, len(columns), padded,
                    RAGGED=ragged, ROWS=rows, DEPTH=depth, WIDTH=width, num_warps=warps, enable_fp_fusion=False,
                )  # fmt: skip
    return total[:d]


def _ready(column: torch.Tensor) -> torch.Tensor:
    """The column as the kernel reads it: float32, contiguous, aligned. It is copied only if it is not so already."""
    dense = column.to(torch.float32).resolve_neg().contiguous()
    return dense if dense.data_ptr() % _ALIGNED == 0 else dense.clone()


def width_of(dimension: int) -> int:
    """The number of coordinates that a unit's vector is padded to."""
    return max(16, 1 << math.ceil(math.log2(dimension)))


def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of the GPU; 1 where Triton's interpreter runs the kernel."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1
