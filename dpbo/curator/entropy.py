"""The only source of randomness: the operating system's entropy. Neither torch's nor numpy's
generators are used.
"""

import os
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray


def system_entropy(size: int) -> bytes:
    """`size` unpredictable bytes."""
    return os.urandom(size)


def bernoulli(count: int, rate: float) -> NDArray[np.bool_]:
    """`count` independent coins, each heads with probability `rate` rounded down to a multiple of
    2^-64; rate 1 is always heads.
    """
    threshold = int(Fraction(rate) * (1 << 64))
    words = np.frombuffer(system_entropy(8 * count), dtype="<u8")
    if threshold >> 64:
        return np.ones(count, dtype=np.bool_)
    return words < np.uint64(threshold)
