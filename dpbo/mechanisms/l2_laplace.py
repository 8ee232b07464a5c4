"""The l2-norm Laplace mechanism, drawn exactly: pure differential privacy for a vector whose l2
sensitivity is what is known.

Law: in the coordinates divided by `scale`, noise of density proportional to exp(-|x|_2 / b), b = M
l2. By the triangle inequality a neighbour's density differs by at most e^(l2 / b): pure epsilon = 1
/ M in any dimension d (Hardt & Talwar 2010, Section 4, with the l2 ball). Its radius is b times a
Gamma(d) number, its direction uniform, each coordinate's variance (d + 1) b^2. The l1 mechanism,
where it may be used, is better only for small l1 / l2; the Gaussian one needs delta > 0 and is
better from about d = (sigma epsilon)^2 on.

Released is h_j round((S_j q_j + N_j) / h_j), as in `additive`: post-processing of the continuous
vector, so no grid enters the guarantee. Exactness: the radius is a sum of d exponentials -log U_i,
the direction a vector of d normals over its length; every U_i and every normal is known between two
ends, from 64 bits each, and so is every coordinate. Where the two ends of a coordinate round to
different multiples, all numbers of the vector get more bits.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import mpmath
import numpy as np

from dpbo._mpmath import precision
from dpbo.events import Event, L2LaplaceEvent
from dpbo.mechanisms.additive import PureNoise
from dpbo.mechanisms.gaussian import NORMAL
from dpbo.mechanisms.mechanism import Entropy, Floats, Integers, Words
from dpbo.mechanisms.rounding import ends_of, random_words
from dpbo.privacy import Sensitivity
from dpbo.validation import checked_constructor

_LAST = (1 << 63) - 1
# Far above the relative error of a sum of a million logarithms or squares, and of what follows
# them.
_WIDEN = 2.0**-40
# Far above the rounding of numbers so small that the relative error is smaller still.
_SLACK = 2.0**-20


@checked_constructor
@dataclass(frozen=True)
class L2LaplaceMechanism(PureNoise):
    """Noise of density exp(-|x|_2 / b), b = `noise_multiplier` times the l2 sensitivity."""

    kind: ClassVar[type[Event]] = L2LaplaceEvent

    @staticmethod
    def norm(sensitivity: Sensitivity) -> float:
        return sensitivity.l2

    def std(self, dimension: int) -> float:
        return math.sqrt(dimension + 1)

    def noise(self, fractions: Floats, scale: Floats, entropy: Entropy) -> Integers:
        rows = fractions.reshape(-1, fractions.shape[-1])
        words = random_words(2 * rows.size, entropy).reshape(len(rows), -1)
        low, high = _sizes(words)
        signed = _signs(words) * scale
        ends = np.sort([signed * low, signed * high], axis=0) + (rows + 0.5)
        with np.errstate(invalid="ignore"):
            result = np.floor(ends[0] - _SLACK)
            other = np.floor(ends[1] + _SLACK)
            known = (np.isfinite(other) & (result == other)).all(axis=1)
        lattice = np.where(known[:, None], result, 0.0).astype(np.int64)
        for i in np.flatnonzero(~known):
            lattice[i] = _decided(words[i], rows[i].tolist(), scale.tolist(), entropy)
        return lattice.reshape(fractions.shape)


def _sizes(words: Words) -> tuple[Floats, Floats]:
    """Bounds on |N_j| / b of each row from 64 bits: the radius times |z_j| over the length of z.
    Infinite or NaN where a number is 0.
    """
    uniforms, normals = np.split(words, 2, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        below = np.ldexp(uniforms.astype(np.float64), -64)
        above = np.ldexp(uniforms.astype(np.float64) + 1.0, -64)
        near, far = np.abs(ends_of(NORMAL, normals & np.uint64(_LAST)))
        shortest = -np.log(above).sum(axis=1, keepdims=True) * (1 - _WIDEN)
        longest = -np.log(below).sum(axis=1, keepdims=True) * (1 + _WIDEN)
        shortest /= _length(far) * (1 + _WIDEN)
        longest /= _length(near) * (1 - _WIDEN)
        return shortest * near, longest * far


def _length(vectors: Floats) -> Floats:
    return np.sqrt((vectors**2).sum(axis=1, keepdims=True))


def _signs(words: Words) -> Floats:
    return np.where(np.split(words, 2, axis=1)[1] > np.uint64(_LAST), -1.0, 1.0)


def _decided(
    words: Words, fractions: list[float], scale: list[float], entropy: Entropy
) -> Integers:
    """The draw that begins with these words: each step adds 64 bits to every number and uses
    intervals of higher precision.
    """
    uniforms, normals = np.split(words, 2)
    known = [*uniforms.tolist(), *(normals & np.uint64(_LAST)).tolist()]
    signs = _signs(words[None])[0].tolist()
    d = len(uniforms)
    bits = 64
    while True:
        more = random_words(2 * d, entropy).tolist()
        known = [(k << 64) | word for k, word in zip(known, more, strict=True)]
        bits += 64
        with precision(2 * bits + 64):
            sizes = _exact_sizes(known[:d], known[d:], bits)
            slack = mpmath.ldexp(1, -(mpmath.mp.prec // 3))
            result = []
            for ends, sign, fraction, unit in zip(sizes, signs, fractions, scale, strict=True):
                middle = mpmath.mpf(fraction) + mpmath.mpf(1) / 2
                low, high = sorted([mpmath.mpf(sign) * unit * end + middle for end in ends])
                first = mpmath.floor(low - slack)
                last = mpmath.floor(high + slack)
                if first != last:
                    break
                result.append(int(first))
        if len(result) == d:
            return np.array(result, dtype=np.int64)


def _exact_sizes(uniforms: list[int], normals: list[int], bits: int) -> list[tuple[Any, Any]]:
    """`_sizes` of one row in mpmath, from numbers in [k, k+1] / 2^bits; infinite where a number or
    the length may be 0.
    """
    shortest, far, length_of_far = _polar(uniforms, normals, bits, nearer=False)
    longest, near, length_of_near = _polar(uniforms, normals, bits, nearer=True)
    least = shortest / length_of_far
    most = mpmath.inf
    if length_of_near:
        most = longest / length_of_near
    return [(least * low, most * high) for low, high in zip(near, far, strict=True)]


def _polar(
    uniforms: list[int], normals: list[int], bits: int, *, nearer: bool
) -> tuple[Any, list[Any], Any]:
    """Radius, |z_j| and the length of z at one end of every interval: the radius is longest, and
    each z_j nearest to 0, at opposite ends.
    """
    whole = mpmath.mpf(1 << bits)
    radius = -sum(mpmath.log((k + (not nearer)) / whole) for k in uniforms)
    z = [-NORMAL.exact((k + nearer) / whole) for k in normals]
    return radius, z, mpmath.sqrt(sum(value**2 for value in z))
