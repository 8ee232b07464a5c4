"""Exact draws of a rounded continuous law: floor(c + s z + 1/2) for an exact dyadic c, s in [2^20,
2^21) and a true draw z.

Rounding is post-processing, so the result inherits the continuous mechanism's guarantee exactly, in
any dimension; float noise on a float value does not (its low bits give the value away).

z is the inverse cdf of a uniform number of which 64 bits are drawn: a sign and k < 2^63, so p in
[k/2^64, (k+1)/2^64]. Both ends of that interval are pushed outward (p by one float, z by 2^-45
relative, the sum by 2^-24 absolute) and rounded; when both round alike, which fails 2 times in
10^7, the rest of the bits cannot matter. Otherwise 64 more bits are drawn, and the law's cdf
decides, in mpmath. One evaluation usually does for both ends: dz/dp <= 1.26/p for every law here
(Gaussian: p/phi(z) <= sqrt(pi/2); Laplace: 1), so at k >= 2^47 the interval and the rounding of p,
2^-47 + 2^-52 of p in all, move s z by less than 2^-25, which the 2^-24 cover. Assumption: each
law's float inverse cdf is within 2^-46 relative of the truth (measured far below; tested at 10^5
points).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
from numpy.typing import NDArray

from dpbo._mpmath import precision
from dpbo.errors import InputError
from dpbo.mechanisms.mechanism import Entropy, Floats, Integers, Words

WIDEN = 2.0**-45
SLACK = 2.0**-24
_WORD = 8
_FEW = 1 << 47


@dataclass(frozen=True)
class SymmetricDistribution:
    """A continuous law symmetric about zero, by the inverse of its cdf at p in (0, 1/2].

    A law must meet what the head of this module assumes: dz/dp <= 1.26/p, and `quantile` within
    2^-46 relative of the truth. The tests of this module check both for every mechanism's law.

    Args:
        quantile: float inverse cdf of an array, -inf at 0.
        exact: the same for one mpmath number, at mpmath's working precision.
        cdf: its inverse, likewise; at numbers above 0 anything of at least 1/2.
    """

    quantile: Callable[[Floats], Any]
    exact: Callable[[mpmath.mpf], mpmath.mpf]
    cdf: Callable[[mpmath.mpf], mpmath.mpf]


def random_word(entropy: Entropy) -> int:
    """64 random bits."""
    return int.from_bytes(entropy(_WORD), "little")


def random_words(count: int, entropy: Entropy) -> Words:
    """Words of 64 random bits. Raises InputError where the source gives another number of bytes."""
    words = np.frombuffer(entropy(_WORD * count), dtype="<u8")
    if len(words) != count:
        raise InputError(
            "entropy", entropy, "a function where entropy(size) returns exactly size bytes"
        )
    return words


def rounded(
    distribution: SymmetricDistribution,
    fractions: Floats,
    scale: Floats,
    entropy: Entropy,
) -> Integers:
    """floor(fraction + scale * z + 1/2) for independent z of the law.

    Args:
        distribution: the law of z.
        fractions: exact, in [0, 1).
        scale: scale parameters in units of the result, in [2^20, 2^21).
        entropy: source of unpredictable bytes.
    """
    words = random_words(len(fractions), entropy)
    negative, k = _sign_and_size(words)
    # Negative or zero; -inf at k = 0.
    z = distribution.quantile(np.ldexp(k.astype(np.float64), -64))
    wide = scale * WIDEN
    with np.errstate(invalid="ignore"):
        centre = np.where(negative, z, -z) * scale + (fractions + 0.5)
        slack = SLACK - z * wide
        result = np.floor(centre - slack)
        close = np.flatnonzero((k < _FEW) | (result != np.floor(centre + slack)))
        lattice = np.where(np.isfinite(result), result, 0.0).astype(np.int64)
    lattice[close] = by_both_ends(
        distribution, words[close], fractions[close], scale[close], entropy
    )
    return lattice


def _sign_and_size(words: Words) -> tuple[NDArray[np.bool_], Words]:
    return (words >> np.uint64(63)).astype(bool), words & np.uint64((1 << 63) - 1)


def by_both_ends(
    distribution: SymmetricDistribution,
    words: Words,
    fractions: Any,
    scale: Any,
    entropy: Entropy,
) -> Integers:
    """The same from given words, for draws near an edge of the grid or far in the tail; what both
    ends leave undecided gets more bits.
    """
    negative, k = _sign_and_size(words)
    # Near zero, far from zero: both negative, |near| <= |far|.
    near, far = ends_of(distribution, k)
    low = np.where(negative, far, -near) * scale + (fractions + 0.5) - SLACK
    high = np.where(negative, near, -far) * scale + (fractions + 0.5) + SLACK
    with np.errstate(invalid="ignore"):
        result = np.floor(low)
        undecided = np.flatnonzero(
            ~np.isfinite(low) | ~np.isfinite(high) | (result != np.floor(high))
        )
        lattice = np.where(np.isfinite(result), result, 0.0).astype(np.int64)
    for i in undecided:
        lattice[i] = decide(
            distribution,
            int(k[i]),
            bool(negative[i]),
            float(fractions[i]),
            float(scale[i]),
            entropy,
        )
    return lattice


def ends_of(distribution: SymmetricDistribution, k: Words) -> tuple[Floats, Floats]:
    """Outward bounds of the inverse cdf over [k, k+1]/2^64: (the one nearer zero, the one further
    away); -inf where k = 0.
    """
    below = np.nextafter(np.ldexp(k.astype(np.float64), -64), 0.0)
    above = np.minimum(np.nextafter(np.ldexp((k + np.uint64(1)).astype(np.float64), -64), 1.0), 0.5)
    far = distribution.quantile(below)
    near = distribution.quantile(above)
    return near + np.abs(near) * WIDEN, far - np.abs(far) * WIDEN


def decide(
    distribution: SymmetricDistribution,
    k: int,
    negative: bool,
    fraction: float,
    scale: float,
    entropy: Entropy,
) -> int:
    """The same draw with 64 more bits at a time.

    Once k >= 2^47 floats leave two integers at most, as in `rounded`, and between these the law's
    cdf decides: a number z reaches the edge t exactly where its p reaches cdf(t).
    """
    bits = 64
    while True:
        k = (k << 64) | random_word(entropy)
        bits += 64
        if k < _FEW:
            continue
        z = float(distribution.quantile(np.array(k / (1 << bits))))
        centre = (z if negative else -z) * scale + (fraction + 0.5)
        slack = SLACK - z * scale * WIDEN
        low, high = math.floor(centre - slack), math.floor(centre + slack)
        if low == high:
            return low
        with precision(2 * bits + 64):
            edge = (mpmath.mpf(high) - fraction - mpmath.mpf(1) / 2) / scale
            at_edge = mpmath.ldexp(distribution.cdf(edge if negative else -edge), bits)
            # mpmath is right to half of its digits and more
            lost = mpmath.ldexp(1, -32)
            if k + 1 < at_edge - lost:
                return low if negative else high
            if k > at_edge + lost:
                return high if negative else low
