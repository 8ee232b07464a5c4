"""The Triton kernel of gradient_kernel.py, which imports this module only when it runs the kernel.

A block is ROWS units by WIDTH coordinates; W holds its high parts, then its low ones.
"""

# mypy: ignore-errors

from dpbo.extras import needs

with needs("gpu"):
    import triton
    import triton.language as tl


@triton.jit(do_not_specialize=["columns", "steps"])  # what was tried once is then what runs
def gradient_sum(
    places,
    W,
    total,
    numbers,
    sizes,
    columns,
    steps,
    RAGGED: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDTH: tl.constexpr,
    TOGETHER: tl.constexpr,
    FACTOR: tl.constexpr,
    SLAB: tl.constexpr,
):
    across, padded = tl.arange(0, WIDTH), steps * DEPTH
    clip, bound, aim = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2)
    longest, units, whole = tl.load(sizes), tl.load(sizes + 1), tl.load(sizes + 2)
    first, last = (whole, whole + 1) if RAGGED else (whole * 0, whole)
    if SLAB:
        origin = tl.load(places).to(tl.pointer_type(tl.float32))
        stride = tl.load(places + 1)
        latest = origin + (columns - 1) * stride
    else:
        latest = tl.load(places + columns - 1).to(tl.pointer_type(tl.float32))
    sums = tl.load(numbers + 3 + across).to(tl.float32)
    turns = tl.cdiv(last - first - tl.program_id(0), tl.num_programs(0))
    for start in range(0, turns, TOGETHER):
        own = tl.zeros((ROWS, WIDTH), dtype=tl.int32)
        for turn in range(start, min(start + TOGETHER, turns)):
            # there may be many units
            block = (
                first
                + tl.program_id(0)
                + (tl.zeros((ROWS,), dtype=tl.int64) + turn) * tl.num_programs(0)
            )
            rows = block * ROWS + tl.arange(0, ROWS)
            if RAGGED:
                level = tl.load(latest + rows, mask=rows < units, other=0.0)
            else:
                level = tl.load(latest + rows)
            p = level[:, None] * sums[None, :]
            for step in range(steps):
                deep = step * DEPTH + tl.arange(0, DEPTH)
                # addresses that are computed let the compiler copy further ahead than loaded ones
                if SLAB:
                    starts = origin + deep * stride
                else:
                    starts = tl.load(places + deep, mask=deep < columns, other=0).to(
                        tl.pointer_type(tl.float32)
                    )
                there = tl.multiple_of(starts, 16)[None, :] + rows[:, None]
                here = deep[None, :] < columns
                if RAGGED:
                    here = here & (rows[:, None] < units)
                losses = tl.load(there, mask=here, other=0.0) - level[:, None]
                high = losses.to(tl.bfloat16)
                low = (losses - high.to(tl.float32)).to(tl.bfloat16)
                at = W + across[None, :] * padded + deep[:, None]
                lead, rest = tl.load(at), tl.load(at + WIDTH * padded)
                p = tl.dot(high.to(FACTOR), lead, p)
                p = tl.dot(high.to(FACTOR), rest, p)
                p = tl.dot(low.to(FACTOR), lead, p)
            # of the largest size; NaN and infinity are above all others
            bits = tl.max(p.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)
            valid = bits < 0x7F800000
            if RAGGED:
                valid = valid & (rows < units)
            scale = bound / tl.maximum(bits.to(tl.float32, bitcast=True).to(tl.float64), clip)
            k = (
                tl.where(valid[:, None], p, 0.0).to(tl.float64) * scale[:, None]
                + 6755399441055744.0
            )
            size = tl.abs(k.to(tl.int64, bitcast=True).to(tl.int32)).to(tl.uint32).to(tl.int64)
            squares = tl.sum(size * size, axis=1)
            ratio = tl.where(squares > longest, aim / tl.sqrt(squares.to(tl.float64)), 1.0)
            k = (k - 6755399441055744.0) * ratio[:, None] + 6755399441055744.0
            counted = k.to(tl.int64, bitcast=True).to(tl.int32)
            size = tl.abs(counted).to(tl.uint32).to(tl.int64)
            own += tl.where((tl.sum(size * size, axis=1) <= longest)[:, None], counted, 0)
        tl.atomic_add(total + across, tl.sum(own.to(tl.int64), axis=0))
