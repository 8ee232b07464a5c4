"""The Triton kernels of device_noise.py, which imports this module only when it runs them."""

# mypy: ignore-errors

from dpbo.extras import needs

with needs("gpu"):
    import triton
    import triton.language as tl


@triton.jit
def _quarter_round(a, b, c, d):
    a = a + b
    d = d ^ a
    d = (d << 16) | (d >> 16)
    c = c + d
    b = b ^ c
    b = (b << 12) | (b >> 20)
    a = a + b
    d = d ^ a
    d = (d << 8) | (d >> 24)
    c = c + d
    b = b ^ c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _ratio(r, table):
    """A quotient of two polynomials of degree 7, lowest coefficients first."""
    above = tl.load(table + 7) * r + tl.load(table + 6)
    below = tl.load(table + 15) * r + tl.load(table + 14)
    for i in tl.static_range(5, -1, -1):
        above = above * r + tl.load(table + i)
        below = below * r + tl.load(table + 8 + i)
    return above / below


@triton.jit
def _round(low, high, at, count, fractions, lattice, undecided, numbers):
    """One draw a lane: as `mechanisms.rounding.rounded` by one end, from a word of 64 bits."""
    inside = at < count
    word = (high.to(tl.uint64) << 32) | low.to(tl.uint64)
    k = (word & 0x7FFFFFFFFFFFFFFF).to(tl.int64)
    p = k.to(tl.float64) * tl.load(numbers)
    middle = tl.load(numbers + 1)
    q = p - middle
    near = q * _ratio(tl.load(numbers + 2) - q * q, numbers + 8)
    # far from zero: p is below .075; elsewhere the result of these lines is not used
    root = tl.sqrt(-tl.log(tl.maximum(p, tl.load(numbers))))
    far = -_ratio(root - tl.load(numbers + 3), numbers + 24)
    # negative or zero
    z = tl.where(-q <= tl.load(numbers + 4), near, far)
    scale = tl.load(numbers + 5)
    slack = tl.load(numbers + 7) - z * (scale * tl.load(numbers + 6))
    signed = tl.where((word >> 63) != 0, z, -z)
    centre = signed * scale + (tl.load(fractions + at, mask=inside, other=0.0) + middle)
    lower = tl.floor(centre - slack)
    open_ = (k < (1 << 47)) | (lower != tl.floor(centre + slack))
    tl.store(undecided + at, open_.to(tl.int8), mask=inside)
    result = tl.where(open_, word.to(tl.int64, bitcast=True), lower.to(tl.int64))
    tl.store(lattice + at, result, mask=inside)


@triton.jit
def rounded_normals(fractions, lattice, undecided, key, numbers, count, LANES: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)
    block = program * LANES + lane
    zero = tl.zeros((LANES,), dtype=tl.uint32)
    s4 = zero + tl.load(key + 4).to(tl.uint32)
    s5 = zero + tl.load(key + 5).to(tl.uint32)
    s6 = zero + tl.load(key + 6).to(tl.uint32)
    s7 = zero + tl.load(key + 7).to(tl.uint32)
    s8 = zero + tl.load(key + 8).to(tl.uint32)
    s9 = zero + tl.load(key + 9).to(tl.uint32)
    s10 = zero + tl.load(key + 10).to(tl.uint32)
    s11 = zero + tl.load(key + 11).to(tl.uint32)
    s0 = zero + tl.load(key + 0).to(tl.uint32)
    s1 = zero + tl.load(key + 1).to(tl.uint32)
    s2 = zero + tl.load(key + 2).to(tl.uint32)
    s3 = zero + tl.load(key + 3).to(tl.uint32)
    s12 = block.to(tl.uint32)
    s13 = (block >> 32).to(tl.uint32)
    x0, x1, x2, x3 = s0, s1, s2, s3
    x4, x5, x6, x7 = s4, s5, s6, s7
    x8, x9, x10, x11 = s8, s9, s10, s11
    x12, x13, x14, x15 = s12, s13, zero, zero
    for _ in range(10):
        x0, x4, x8, x12 = _quarter_round(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter_round(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter_round(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter_round(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter_round(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter_round(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter_round(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter_round(x3, x4, x9, x14)
    at = program * (8 * LANES) + lane
    _round(x0 + s0, x1 + s1, at, count, fractions, lattice, undecided, numbers)
    _round(x2 + s2, x3 + s3, at + LANES, count, fractions, lattice, undecided, numbers)
    _round(x4 + s4, x5 + s5, at + 2 * LANES, count, fractions, lattice, undecided, numbers)
    _round(x6 + s6, x7 + s7, at + 3 * LANES, count, fractions, lattice, undecided, numbers)
    _round(x8 + s8, x9 + s9, at + 4 * LANES, count, fractions, lattice, undecided, numbers)
    _round(x10 + s10, x11 + s11, at + 5 * LANES, count, fractions, lattice, undecided, numbers)
    _round(x12 + s12, x13 + s13, at + 6 * LANES, count, fractions, lattice, undecided, numbers)
    _round(x14, x15, at + 7 * LANES, count, fractions, lattice, undecided, numbers)


# what was tried once is then what runs
@triton.jit(do_not_specialize=["count", "length"])
def weighted_rows(rows, factors, total, count, length, WIDTH: tl.constexpr, TOGETHER: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    some = tl.arange(0, TOGETHER)
    places = rows + some.to(tl.int64)[:, None] * length + at[None, :]
    own = tl.zeros((TOGETHER, WIDTH), dtype=tl.float64)
    for first in range(0, count, TOGETHER):
        here = first + some < count
        factor = tl.load(factors + first + some, mask=here, other=0.0)[:, None]
        inside = here[:, None] & (at < length)[None, :]
        part = tl.load(places, mask=inside, other=0.0).to(tl.float64)
        own += tl.where(factor > 0.0, part, 0.0) * factor
        places += TOGETHER * length
    tl.store(total + at, tl.sum(own, axis=0), mask=at < length)


@triton.jit(do_not_specialize=["length"])
def squared_rows(rows, parts, length, WIDTH: tl.constexpr, TURNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1).to(tl.int64) * (WIDTH * TURNS)
    own = tl.zeros((WIDTH,), dtype=tl.float64)
    for turn in range(TURNS):
        at = first + turn * WIDTH + tl.arange(0, WIDTH)
        number = tl.load(rows + row * length + at, mask=at < length, other=0.0).to(tl.float64)
        own += number * number
    tl.store(parts + row * tl.num_programs(1) + tl.program_id(1), tl.sum(own))
