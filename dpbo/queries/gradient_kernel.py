"""The kernel of fused.py, in Triton; loaded by it alone, where it is used. A block is ROWS units by WIDTH coordinates."""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def summed(
    places, W, total, numbers, sizes, center, columns, padded,
    RAGGED: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    across = tl.arange(0, WIDTH)
    clip, bound, aim = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2)
    longest, units, whole = tl.load(sizes), tl.load(sizes + 1), tl.load(sizes + 2)
    first, last = (whole, whole + 1) if RAGGED else (whole * 0, whole)
    own = tl.zeros((ROWS, WIDTH), dtype=tl.int64)
    for block in range(first + tl.program_id(0), last, tl.num_programs(0)):
        rows = (tl.zeros((ROWS,), dtype=tl.int64) + block) * ROWS + tl.arange(0, ROWS)  # 64 bits: there may be many units
        p = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
        for step in range(0, columns, DEPTH):
            deep = step + tl.arange(0, DEPTH)
            starts = tl.load(places + deep, mask=deep < columns, other=0).to(tl.pointer_type(tl.float32))
            there = tl.multiple_of(starts, 16)[None, :] + rows[:, None]
            here = deep[None, :] < columns
            if RAGGED:
                here = here & (rows[:, None] < units)
            losses = tl.load(there, mask=here, other=0.0) - center
            part = tl.load(W + across[None, :] * padded + deep[:, None])
            p = tl.dot(losses, part, p, input_precision="tf32x3")
        bits = tl.max(p.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)  # of the largest size; NaN and infinity are above all others
        alive = bits < 0x7F800000
        if RAGGED:
            alive = alive & (rows < units)
        scale = bound / tl.maximum(bits.to(tl.float32, bitcast=True).to(tl.float64), clip)
        k = tl.where(alive[:, None], p, 0.0).to(tl.float64) * scale[:, None] + 6755399441055744.0
        size = tl.abs(k.to(tl.int64, bitcast=True).to(tl.int32)).to(tl.uint32).to(tl.int64)
        squares = tl.sum(size * size, axis=1)
        ratio = tl.where(squares > longest, aim / tl.sqrt(squares.to(tl.float64)), 1.0)
        k = (k - 6755399441055744.0) * ratio[:, None] + 6755399441055744.0
        low = k.to(tl.int64, bitcast=True).to(tl.int32)
        size = tl.abs(low).to(tl.uint32).to(tl.int64)
        own += tl.where((tl.sum(size * size, axis=1) <= longest)[:, None], low, 0)
    tl.atomic_add(total + across, tl.sum(own, axis=0))
