"""Exact draws of the difference of two negative binomials (Polya laws) with 1/m successes each: of
the discrete Laplace law, one of m shares.

Law. For L > 0 let a = 1 - e^-L, and NB(r, a) the law on n >= 0 with generating function ((1 - a) /
(1 - a z))^r = exp(r L (G(z) - 1)), G(z) = -log(1 - a z) / L. G is that of the logarithmic law a^n /
(n L), n >= 1, so NB(r, a) is that of a sum of Poisson(r L) logarithmic numbers, and the difference
of two that of Poisson(2 r L) of them, each of either sign. A logarithmic number is 1 + floor(log V
/ log q) with q = 1 - e^(-L U), for uniform U and V: given U it is n with probability (1 - q) q^(n -
1), and as dq = L (1 - q) dU, the integral of this over U is that of q^(n - 1) / L over q from 0 to
a (Kemp 1981).

Exactness. U, V and the uniform number behind a Poisson count are real numbers of which 63, 63 and
64 bits are drawn. A count exceeds n where its number is below the law's tail P(K > n); tails are
whole multiples of 2^-64, up to one, in mpmath. log V / log q rises with U and falls with V, so two
corners of their intervals bound it; U and V are pushed outward by one float and the quotient by
2^-45 relative. Where a tail lies within the interval, or the corners have different floors, 64 more
bits are drawn, as often as it takes, and mpmath computes both ends. Assumption: floats are within
2^-46 relative of the true quotient for L < 20 (tested at 10^5 points).
"""

import functools
import math
from collections.abc import Sequence

import mpmath
import numpy as np

from dpbo._mpmath import precision
from dpbo.mechanisms.mechanism import Entropy, Floats, Integers, Words
from dpbo.mechanisms.rounding import WIDEN, random_word, random_words

# Covers the rounding of the floats that make L.
ROUND_UP = 1.0 + 2.0**-48
_HALF = np.uint64((1 << 63) - 1)
_BLOCK = 1 << 14


def parameter(scale: float) -> float:
    """L for a discrete Laplace law of this scale in steps or a little more: log 1/a <= 1/scale."""
    return -math.log(-math.expm1(-1.0 / scale)) * ROUND_UP


def differences(L: float, m: int, count: int, entropy: Entropy) -> Integers:
    """So many independent draws of X - X', where X and X' are NB(1/m, 1 - e^-L); L below 20."""
    # In blocks, as each number takes several terms.
    sizes = [min(_BLOCK, count - start) for start in range(0, count, _BLOCK)]
    drawn = [_differences(L, m, size, entropy) for size in sizes]
    return np.concatenate([np.zeros(0, dtype=np.int64), *drawn])


def _differences(L: float, m: int, count: int, entropy: Entropy) -> Integers:
    terms = poisson(L, m, count, entropy)
    expected = 2.0 * L / m * count
    # More than are needed, so that the time tells nothing of their number.
    spare = math.ceil(expected + 8.0 * math.sqrt(expected)) + 64
    drawn = max(int(terms.sum()), spare)
    words = random_words(2 * drawn, entropy).reshape(2, drawn)
    sizes = logarithmic(L, words & _HALF, entropy)
    signed = np.where(words[0] > _HALF, -sizes, sizes)
    ends = terms.cumsum()
    sums = np.concatenate([[0], signed.cumsum()])
    difference: Integers = sums[ends] - sums[ends - terms]
    return difference


def poisson(L: float, m: int, count: int, entropy: Entropy) -> Integers:
    """Draws of Poisson(2 L / m)."""
    words = random_words(count, entropy)
    tails = _tails(L, m, 64)[::-1]
    surely, perhaps = (
        len(tails) - np.searchsorted(np.array(ends, dtype=np.uint64), words, side="right")
        for ends in ([max(tail, 1) - 1 for tail in tails], [tail + 2 for tail in tails])
    )
    for i in np.flatnonzero(surely != perhaps):
        surely[i] = _decide_count(L, m, int(words[i]), entropy)
    return surely


def logarithmic(L: float, words: Words, entropy: Entropy) -> Integers:
    """Logarithmic numbers from words below 2^63, `2 x n`."""
    below = np.nextafter(np.ldexp(words.astype(np.float64), -63), 0.0)
    above = np.minimum(
        np.nextafter(np.ldexp((words + np.uint64(1)).astype(np.float64), -63), 1.0), 1.0
    )
    # of both 0 it is no number, which leaves it undecided
    with np.errstate(invalid="ignore"):
        low = np.floor(quotient(L, below[0], above[1]) * (1.0 - WIDEN))
        high = np.floor(quotient(L, above[0], below[1]) * (1.0 + WIDEN))
        numbers = np.where(np.isfinite(high), low, 0.0).astype(np.int64) + 1
    for i in np.flatnonzero(~np.isfinite(high) | (low != high)):
        numbers[i] = _decide_number(L, int(words[0, i]), int(words[1, i]), entropy)
    return numbers


def quotient(L: float, u: Floats, v: Floats) -> Floats:
    """log v / log(1 - e^(-L u)), for u and v in [0, 1]."""
    t = L * u
    # log 0 is right at an end
    with np.errstate(divide="ignore", invalid="ignore"):
        # each form keeps its digits on its side of 1/2
        log_q = np.where(t < np.log(2.0), np.log(-np.expm1(-t)), np.log1p(-np.exp(-t)))
        found: Floats = np.log(v) / log_q
    return found


@functools.lru_cache(maxsize=256)
def _tails(L: float, m: int, bits: int) -> Sequence[int]:
    """P(K > n) 2^bits for K ~ Poisson(2 L / m), n = 0, 1, ..., as whole numbers that are off by
    less than 2, down to 0.
    """
    tails = list[int]()
    with precision(2 * bits + 64):
        rate = 2 * mpmath.mpf(L) / m
        term = mpmath.exp(-rate)
        tail = 1 - term
        while not tails or tails[-1]:
            tails.append(max(int(mpmath.floor(mpmath.ldexp(tail, bits))), 0))
            term *= rate / len(tails)
            tail -= term
    return tuple(tails)


def _decide_count(L: float, m: int, word: int, entropy: Entropy) -> int:
    """The same count with 64 more bits at a time."""
    bits = 64
    while True:
        word = (word << 64) | random_word(entropy)
        bits += 64
        tails = _tails(L, m, bits)
        surely = sum(tail - 1 > word for tail in tails)
        if surely == sum(tail + 2 > word for tail in tails):
            return surely


def _decide_number(L: float, u: int, v: int, entropy: Entropy) -> int:
    """The same number with 64 more bits of each at a time."""
    bits = 63
    while True:
        u = (u << 64) | random_word(entropy)
        v = (v << 64) | random_word(entropy)
        bits += 64
        if u == 0 or v == 0:
            continue
        with precision(2 * bits + 64):
            unit = mpmath.ldexp(1, -bits)

            def exact(u: int, v: int, unit: mpmath.mpf = unit) -> mpmath.mpf:
                return mpmath.log(v * unit) / mpmath.log(-mpmath.expm1(-L * (u * unit)))

            # mpmath is right to half of its digits and more
            low = int(mpmath.floor(exact(u, v + 1) * (1 - unit)))
            high = int(mpmath.floor(exact(u + 1, v) * (1 + unit)))
        if low == high:
            return low + 1
