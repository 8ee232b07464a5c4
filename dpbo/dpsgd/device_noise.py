"""Where a GPU holds the gradients: norms, sums of clipped ones and exact noise, a kernel each.

Randomness: the 64-bit words are the stream of ChaCha20 (Bernstein 2008; RFC 8439 with its block
counter and nonce read as one counter of 64 bits and zeros), keyed with 256 bits of the operating
system's entropy for each call. Linux's own source is the same cipher. A word is as hard to tell
from a fair one as the cipher is to break.

Law: that of `mechanisms.rounding.rounded`, word for word. A word gives a sign and k < 2^63, and the
result is floor(fraction + scale z + 1/2) wherever both ends of [k, k + 1] / 2^64, pushed outward,
round alike. The inverse cdf is another one, Wichura's AS 241 (1988; 1e-16 relative), for which the
same 2^-46 suffices (tested at 10^5 points). Where the ends differ or k < 2^47, about
twice in 10^5 draws, the kernel hands its word to the host, which settles it as `rounded` does.

Bytes a number: 8 read, 9 written; some 120 float64 and 150 integer operations.
"""

import functools
import math
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpbo.entropy import system_entropy
from dpbo.extras import needs
from dpbo.mechanisms.gaussian import NORMALS
from dpbo.mechanisms.mechanism import Entropy
from dpbo.mechanisms.rounding import SLACK, WIDEN, by_both_ends, rounded

# blocks of 64 bytes a program
LANES = 128
_DRAWS = 8
# "expand 32-byte k", as little-endian words
_CONSTANTS = np.frombuffer(b"expand 32-byte k", dtype="<u4")
_TRIAL_KEY = bytes(range(32))
# columns a program, and rows at a time
_WIDTH = 512
_TOGETHER = 4
# columns at a time of a norm, and how often
_NORM_WIDTH = 1024
_NORM_TURNS = 8
# AS 241: |p - 1/2| up to .425 by a polynomial quotient in .425^2 - (p - 1/2)^2, below that in
# sqrt(-log p) - 1.6; numerator, then denominator, lowest first
_CENTRAL, _MOVED = 0.425, 1.6
_NEAR = (
    3.3871328727963666080e0,
    1.3314166789178437745e2,
    1.9715909503065514427e3,
    1.3731693765509461125e4,
    4.5921953931549871457e4,
    6.7265770927008700853e4,
    3.3430575583588128105e4,
    2.5090809287301226727e3,
    1.0,
    4.2313330701600911252e1,
    6.8718700749205790830e2,
    5.3941960214247511077e3,
    2.1213794301586595867e4,
    3.9307895800092710610e4,
    2.8729085735721942674e4,
    5.2264952788528545610e3,
)
_FAR = (
    1.42343711074968357734e0,
    4.63033784615654529590e0,
    5.76949722146069140550e0,
    3.64784832476320460504e0,
    1.27045825245236838258e0,
    2.41780725177450611770e-1,
    2.27238449892691845833e-2,
    7.74545014278341407640e-4,
    1.0,
    2.05319162663775882187e0,
    1.67638483018380384940e0,
    6.89767334985100004550e-1,
    1.48103976427480074590e-1,
    1.51986665636164571966e-2,
    5.47593808499534494600e-4,
    1.05075007164441684324e-9,
)


def runs_on(device: torch.device) -> bool:
    """Whether this device sums and draws so; otherwise torch sums, and the CPU draws."""
    return device.type == "cuda" and _works(device)


@functools.cache
def _works(device: torch.device) -> bool:
    """Whether the kernels compile, sum and give the integers of the CPU, tried once; a warning says
    why not.
    """
    reason = "its norms, sums or draws were wrong"
    try:
        # more than a block, each way
        rows = torch.arange(5.0 * (_WIDTH + 1), device=device).view(5, _WIDTH + 1)
        rows[1, 0] = math.nan
        factors = torch.tensor([0.5, 0.0, 0.25, 0.0, 0.5], dtype=torch.float64, device=device)
        total = (0.5 * rows[0] + 0.25 * rows[2] + 0.5 * rows[4]).tolist()
        summed = weighted_sum_on_device(rows, factors).tolist() == total
        squares = rows[::2].double().square().sum(1).tolist()
        squared = squared_norms_on_device(rows)[::2].tolist() == squares
        count = 2 * _DRAWS * LANES + 3
        scale = 1.5 * 2.0**20
        fractions = np.arange(count) / count
        there = torch.from_numpy(fractions).to(device)
        found = rounded_on_device(there, scale, lambda _: _TRIAL_KEY).tolist()
        words = stream(_TRIAL_KEY, count)
        wanted = rounded(NORMALS, fractions, np.full(count, scale), lambda _: words.tobytes())
        if summed and squared and found == wanted.tolist():
            return True
    except torch.OutOfMemoryError:
        # says nothing of the next trial: there may be memory then
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    warnings.warn(
        f"the kernels of DP-SGD do not run on {device} ({reason}). Noise is drawn on the CPU, which"
        " is as exact but slower.",
        RuntimeWarning,
        stacklevel=2,
    )
    return False


def weighted_sum_on_device(rows: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """The sum of the rows times their factors, in float64; a row with factor zero counts as zero
    even if it is not finite. Each number is read once.
    """
    with needs("gpu"):
        from dpbo.dpsgd.noise_triton import weighted_rows

    count, length = rows.shape
    total = factors.new_zeros(length)
    # Triton launches on the current device
    with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]
        weighted_rows[(math.ceil(length / _WIDTH),)](
            rows.contiguous(),
            factors,
            total,
            count,
            length,
            WIDTH=_WIDTH,
            TOGETHER=_TOGETHER,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return total


def squared_norms_on_device(rows: torch.Tensor) -> torch.Tensor:
    """Each row's sum of squares, in float64. Each number is read once."""
    with needs("gpu"):
        from dpbo.dpsgd.noise_triton import squared_rows

    count, length = rows.shape
    chunks = math.ceil(length / (_NORM_WIDTH * _NORM_TURNS))
    parts = torch.zeros(count, chunks, dtype=torch.float64, device=rows.device)
    # Triton launches on the current device
    with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]
        squared_rows[(count, chunks)](
            rows.contiguous(), parts, length, WIDTH=_NORM_WIDTH, TURNS=_NORM_TURNS, num_warps=4
        )
    return parts.sum(1)


def rounded_on_device(
    fractions: torch.Tensor, scale: float, entropy: Entropy = system_entropy
) -> torch.Tensor:
    """floor(fraction + scale * z + 1/2) for independent normal z, int64, on the fractions' device.

    Args:
        fractions: exact, in [0, 1), float64, of one dimension.
        scale: standard deviation in units of the result, in [2^20, 2^21).
        entropy: source of unpredictable bytes, for the key and for what the host settles.
    """
    with needs("gpu"):
        from dpbo.dpsgd.noise_triton import rounded_normals

    device = fractions.device
    count = len(fractions)
    key = np.concatenate([_CONSTANTS, np.frombuffer(entropy(32), dtype="<u4")]).astype(np.int64)
    constants = [2.0**-64, 0.5, _CENTRAL**2, _MOVED, _CENTRAL, scale, WIDEN, SLACK]
    numbers = torch.tensor([*constants, *_NEAR, *_FAR], dtype=torch.float64, device="cpu")
    # in one copy
    there = torch.cat([torch.from_numpy(key), numbers.view(torch.int64)]).to(device)
    lattice = torch.zeros(count, dtype=torch.int64, device=device)
    undecided = torch.zeros(count, dtype=torch.int8, device=device)
    programs = math.ceil(count / (_DRAWS * LANES))
    # Triton launches on the current device
    with torch.cuda.device_of(fractions):  # type: ignore[no-untyped-call]
        rounded_normals[(programs,)](
            fractions,
            lattice,
            undecided,
            there,
            there[len(key) :].view(torch.float64),
            count,
            LANES=LANES,
            num_warps=4,
            enable_fp_fusion=False,
        )
    places = undecided.nonzero().flatten()
    if len(places):
        words = lattice[places].cpu().numpy().view(np.uint64)
        settled = by_both_ends(
            NORMALS, words, fractions[places].cpu().numpy(), np.full(len(words), scale), entropy
        )
        lattice[places] = torch.from_numpy(settled).to(device)
    return lattice


def stream(key: bytes, count: int) -> NDArray[np.uint64]:
    """The words of so many draws, in the kernel's order: a program's lanes take a word of each of
    their blocks in turn.
    """
    programs = math.ceil(count / (_DRAWS * LANES))
    blocks = chacha20(key, programs * LANES).view("<u8")
    return np.ascontiguousarray(blocks.reshape(programs, LANES, _DRAWS).swapaxes(1, 2)).reshape(-1)[
        :count
    ]


def chacha20(key: bytes, blocks: int) -> NDArray[np.uint32]:
    """The first blocks of the cipher's stream, `blocks x 16` words."""
    initial = np.zeros((16, blocks), dtype="<u4")
    initial[:4] = _CONSTANTS[:, None]
    initial[4:12] = np.frombuffer(key, dtype="<u4")[:, None]
    counter = np.arange(blocks, dtype=np.uint64)
    initial[12] = counter.astype(np.uint32)
    initial[13] = (counter >> np.uint64(32)).astype(np.uint32)
    x = initial.copy()
    columns = [(i, i + 4, i + 8, i + 12) for i in range(4)]
    diagonals = [(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4) for i in range(4)]
    for _ in range(10):
        for a, b, c, d in columns + diagonals:
            for first, second, third, bits in (
                (a, b, d, 16),
                (c, d, b, 12),
                (a, b, d, 8),
                (c, d, b, 7),
            ):
                x[first] += x[second]
                x[third] = _turned(x[third] ^ x[first], bits)
    return np.ascontiguousarray((x + initial).T)


def _turned(words: NDArray[np.uint32], bits: int) -> Any:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))
