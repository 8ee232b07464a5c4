"""The Triton kernels of gpu/gradient.py and gpu/moments.py, which import this module only when they run a kernel.

`gradient_sum`: a block is ROWS units by WIDTH coordinates; W holds its high parts, then its low ones. `moment_sum`: a record is one lane;
coordinates, statistics, weights and sums are tuples, whose lengths the compiler knows.
"""

# mypy: ignore-errors
# ruff: noqa: RUF005, SIM108  Triton's language has neither starred tuples nor a choice between tuples in one line

from dpbo.extras import needs

with needs("gpu"):
    import triton
    import triton.language as tl


@triton.jit(do_not_specialize=["columns", "steps"])  # what was tried once is then what runs
def gradient_sum(
    places, W, total, numbers, sizes, columns, steps,
    RAGGED: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, WIDTH: tl.constexpr, TOGETHER: tl.constexpr, FACTOR: tl.constexpr,
):  # fmt: skip
    across, padded = tl.arange(0, WIDTH), steps * DEPTH
    clip, bound, aim = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2)
    longest, units, whole = tl.load(sizes), tl.load(sizes + 1), tl.load(sizes + 2)
    first, last = (whole, whole + 1) if RAGGED else (whole * 0, whole)
    latest = tl.load(places + columns - 1).to(tl.pointer_type(tl.float32))
    sums = tl.load(numbers + 3 + across).to(tl.float32)
    turns = tl.cdiv(last - first - tl.program_id(0), tl.num_programs(0))
    for start in range(0, turns, TOGETHER):
        own = tl.zeros((ROWS, WIDTH), dtype=tl.int32)
        for turn in range(start, min(start + TOGETHER, turns)):
            block = first + tl.program_id(0) + (tl.zeros((ROWS,), dtype=tl.int64) + turn) * tl.num_programs(0)  # there may be many units
            rows = block * ROWS + tl.arange(0, ROWS)
            level = tl.load(latest + rows, mask=rows < units, other=0.0) if RAGGED else tl.load(latest + rows)
            p = level[:, None] * sums[None, :]
            for step in range(steps):
                deep = step * DEPTH + tl.arange(0, DEPTH)
                starts = tl.load(places + deep, mask=deep < columns, other=0).to(tl.pointer_type(tl.float32))
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
            bits = tl.max(p.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)  # of the largest size; NaN and infinity are above all others
            valid = bits < 0x7F800000
            if RAGGED:
                valid = valid & (rows < units)
            scale = bound / tl.maximum(bits.to(tl.float32, bitcast=True).to(tl.float64), clip)
            k = tl.where(valid[:, None], p, 0.0).to(tl.float64) * scale[:, None] + 6755399441055744.0
            size = tl.abs(k.to(tl.int64, bitcast=True).to(tl.int32)).to(tl.uint32).to(tl.int64)
            squares = tl.sum(size * size, axis=1)
            ratio = tl.where(squares > longest, aim / tl.sqrt(squares.to(tl.float64)), 1.0)
            k = (k - 6755399441055744.0) * ratio[:, None] + 6755399441055744.0
            counted = k.to(tl.int64, bitcast=True).to(tl.int32)
            size = tl.abs(counted).to(tl.uint32).to(tl.int64)
            own += tl.where((tl.sum(size * size, axis=1) <= longest)[:, None], counted, 0)
        tl.atomic_add(total + across, tl.sum(own.to(tl.int64), axis=0))


@triton.jit
def nearest(v):
    return (v + 6755399441055744.0) - 6755399441055744.0  # 1.5 x 2^52


@triton.jit
def placed(X, numbers, at, units, down, across, D: tl.constexpr, TURNED: tl.constexpr):
    moved = ()
    for j in tl.static_range(D):
        x = tl.load(X + at * down + j * across, mask=at < units, other=float("nan")).to(tl.float64)
        moved = moved + (x - tl.load(numbers + 2 + j),)
    z = ()
    for i in tl.static_range(D):
        if TURNED:
            value = moved[0] * tl.load(numbers + 2 + D + i * D)
            for j in tl.static_range(1, D):
                value = value + moved[j] * tl.load(numbers + 2 + D + i * D + j)
        else:
            # moved / radius by the reciprocal and one correction, which rounds as a division does (Markstein 1990)
            about = moved[i] * tl.load(numbers + 2 + D)
            value = tl.fma(tl.fma(-about, tl.load(numbers + 1), moved[i]), tl.load(numbers + 2 + D), about)
        z = z + (value,)
    return z


@triton.jit
def whole_numbers(z, steps, D: tl.constexpr):
    """The steps of `ball._clipped` after rounding."""
    rounded = ()
    largest = z[0] * 0.0
    valid = largest == largest
    for j in tl.static_range(D):
        value = z[j] * steps
        value = tl.where(tl.abs(value) < 2251799813685248.0, nearest(value), value)  # above 2^51 it is rounded once it is scaled
        rounded = rounded + (value,)
        valid = valid & (tl.abs(value) < steps * 1e100)  # False for NaN
        largest = tl.maximum(largest, tl.abs(value))
    scale = steps / tl.maximum(largest, steps)
    k = ()
    for j in tl.static_range(D):
        k = k + (nearest(tl.where(valid, rounded[j] * scale, 0.0)),)
    squares = k[0] * k[0]
    for j in tl.static_range(1, D):
        squares = squares + k[j] * k[j]
    ratio = tl.where(squares > steps * steps, steps / (tl.floor(tl.sqrt(squares)) + 2.0), 1.0)
    short = ()
    for j in tl.static_range(D):
        short = short + ((k[j] * ratio).to(tl.int32).to(tl.float64),)  # towards zero
    return short, valid


@triton.jit
def statistics(k, one, D: tl.constexpr, COVARIANCE: tl.constexpr):
    phi = (one,) + k
    if COVARIANCE == "spherical":
        squares = k[0] * k[0]
        for j in tl.static_range(1, D):
            squares = squares + k[j] * k[j]
        phi = phi + (squares,)
    else:
        for i in tl.static_range(D):
            for j in tl.static_range(i, D):
                if COVARIANCE == "full" or i == j:
                    phi = phi + (k[i] * k[j],)
    return phi


@triton.jit
def weights(phi, valid, theta, K: tl.constexpr, F: tl.constexpr, WHOLE: tl.constexpr):
    """`mixture_moments.responsibilities`."""
    logits = ()
    for k in tl.static_range(K):
        # volatile, many numbers are read again for each record, and leave their registers to the sums
        logit = phi[0] * tl.load(theta + k * F, volatile=K * F > 40)
        for f in tl.static_range(1, F):
            logit = tl.fma(phi[f], tl.load(theta + k * F + f, volatile=K * F > 40), logit)
        logits = logits + (logit,)
    top = logits[0]
    for k in tl.static_range(1, K):
        top = tl.where(logits[k] > top, logits[k], top)
    shares = ()
    total = tl.zeros_like(top).to(tl.float32)
    for k in tl.static_range(K):
        share = tl.exp((logits[k] - top).to(tl.float32))
        shares = shares + (share,)
        total = total + share
    times = WHOLE / total
    gammas = ()
    left = tl.zeros_like(total) + WHOLE
    for k in tl.static_range(K):
        gamma = tl.fma(shares[k], times, 12582912.0) - 12582912.0  # 1.5 x 2^23: weights are below 2^21
        gammas = gammas + (gamma,)
        left = left - gamma
    sound = valid & (left == left)
    rest = ()
    open_ = valid | ~valid
    for k in tl.static_range(K):
        largest = open_ & (logits[k] == top)
        open_ = open_ & ~largest
        gamma = gammas[k] + tl.where(largest, left, 0.0)
        if 2 * WHOLE <= K * K:  # else the largest weight, at least WHOLE / K, exceeds what rounding left, at most K / 2
            sound = sound & (gamma >= 0.0)
        rest = rest + (gamma,)
    sound = sound & ~open_  # one component took what rounding left
    found = ()
    for k in tl.static_range(K):
        found = found + (tl.where(sound, rest[k], 0.0).to(tl.float64),)
    return found


@triton.jit
def moment_sum(
    X, total, numbers, shape,
    D: tl.constexpr, K: tl.constexpr, COVARIANCE: tl.constexpr, TURNED: tl.constexpr, WHOLE: tl.constexpr,
    ROWS: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    F: tl.constexpr = 1 + D + (D * (D + 1) // 2 if COVARIANCE == "full" else D if COVARIANCE == "diag" else 1)
    units, down, across = tl.load(shape), tl.load(shape + 1), tl.load(shape + 2)
    steps, theta = tl.load(numbers), numbers + 2 + D + (D * D if TURNED else 1)
    own = tl.cdiv(tl.cdiv(units, ROWS) - tl.program_id(0), tl.num_programs(0))  # blocks
    for start in range(0, own, TOGETHER):
        sums = ()
        for _ in tl.static_range(K * F):
            sums = sums + (tl.zeros((ROWS,), tl.float64),)
        for turn in range(start, min(start + TOGETHER, own)):
            block = tl.zeros((ROWS,), tl.int64) + turn  # 64 bits: there may be many records
            at = (block * tl.num_programs(0) + tl.program_id(0)) * ROWS + tl.arange(0, ROWS)
            k, valid = whole_numbers(placed(X, numbers, at, units, down, across, D, TURNED), steps, D)
            phi = statistics(k, tl.zeros((ROWS,), tl.float64) + 1.0, D, COVARIANCE)
            if K == 1:
                gamma = (tl.where(valid, 1.0, 0.0).to(tl.float64),)
            else:
                gamma = weights(phi, valid, theta, K, F, WHOLE)
            more = ()
            for i in tl.static_range(K * F):
                more = more + (tl.fma(gamma[i // F], phi[i % F], sums[i]),)
            sums = more
        for i in tl.static_range(K * F):
            tl.atomic_add(total + i, tl.sum(sums[i].to(tl.int64), axis=0))
