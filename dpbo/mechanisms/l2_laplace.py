"""The l2-norm Laplace mechanism, drawn exactly: pure differential privacy for a vector whose l2 sensitivity is what is known.

Law: in the coordinates divided by `scale`, noise of density proportional to exp(-|x|_2 / b), b = M l2. By the triangle inequality a
neighbour's density differs by at most e^(l2 / b): pure epsilon = 1 / M in any dimension d (Hardt & Talwar 2010, Section 4, with the l2
ball). Its radius is b times a Gamma(d) number, its direction uniform, each coordinate's variance (d + 1) b^2. The l1 mechanism, where it
may be used, is better only for small l1 / l2; the Gaussian one needs delta > 0 and is better from about d = (sigma epsilon)^2 on.

Released is h_j round((S_j q_j + N_j) / h_j), as in `additive`: post-processing of the continuous vector, so no grid enters the guarantee.
Exactness: the radius is a sum of d exponentials -log U_i, the direction a vector of d normals over its length; every U_i and every
normal is known between two ends, from 64 bits each, and so is every coordinate. Where the ends of one round apart, all get more bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import mpmath
import numpy as np
from numpy.typing import NDArray

from dpbo.errors import InputError
from dpbo.events import Event, L2LaplaceEvent
from dpbo.mechanisms.additive import AdditiveMechanism
from dpbo.mechanisms.gaussian import NORMAL
from dpbo.mechanisms.mechanism import Entropy
from dpbo.mechanisms.rounding import ends_of
from dpbo.privacy import Sensitivity

Floats = NDArray[np.float64]

_WORD = 8
_LAST = (1 << 63) - 1
_WIDEN = 2.0**-40  # far above the relative error of a sum of a million logarithms or squares


@dataclass(frozen=True)
class L2LaplaceMechanism(AdditiveMechanism):
    """Noise of density exp(-|x|_2 / b), b = `noise_multiplier` times the l2 sensitivity."""

    kind: ClassVar[type[Event]] = L2LaplaceEvent

    @staticmethod
    def norm(sensitivity: Sensitivity) -> float:
        return sensitivity.l2

    def std(self, dimension: int) -> float:
        return math.sqrt(dimension + 1)

    def noise(self, fractions: Floats, scale: Floats, entropy: Entropy) -> NDArray[np.int64]:
        draw = _Draw.first(len(fractions), entropy)
        low, high = draw.sizes()
        ends = np.sort([draw.signs * scale * low, draw.signs * scale * high], axis=0) + (fractions + 0.5)
        slack = 2.0**-20 + np.abs(ends).max(axis=0) * 2.0**-50
        with np.errstate(invalid="ignore"):
            result, other = np.floor(ends[0] - slack), np.floor(ends[1] + slack)
        if np.isfinite(other).all() and (result == other).all():
            return result.astype(np.int64)
        return draw.decided(fractions.tolist(), scale.tolist(), entropy)


@dataclass(frozen=True)
class _Draw:
    """What is known so far: uniforms in [k, k+1] / 2^bits, one for the radius and one for a half normal a coordinate, and signs."""

    uniforms: list[int]
    normals: list[int]
    signs: Floats
    bits: int = 64

    @classmethod
    def first(cls, dimension: int, entropy: Entropy) -> _Draw:
        words = _words(2 * dimension, entropy)
        signs = np.array([-1.0 if word > _LAST else 1.0 for word in words[dimension:]])
        return cls(words[:dimension], [word & _LAST for word in words[dimension:]], signs)

    def refined(self, entropy: Entropy) -> _Draw:
        """With 64 more bits in every number."""
        more = _words(2 * len(self.signs), entropy)
        known = [*self.uniforms, *self.normals]
        longer = [(k << 64) | word for k, word in zip(known, more, strict=True)]
        return _Draw(longer[: len(self.signs)], longer[len(self.signs) :], self.signs, self.bits + 64)

    def sizes(self) -> tuple[Floats, Floats]:
        """Bounds on |N_j| / b from 64 bits: the radius times |z_j| over the length of z. Infinite or NaN where a number is 0."""
        uniforms, normals = (np.array(k, dtype=np.uint64) for k in (self.uniforms, self.normals))
        with np.errstate(divide="ignore", invalid="ignore"):
            below, above = (np.ldexp(uniforms.astype(np.float64) + end, -64) for end in (0.0, 1.0))
            radius = -np.log(np.minimum(above, 1.0)).sum() * (1 - _WIDEN), -np.log(below).sum() * (1 + _WIDEN)
            near, far = (np.abs(end) for end in ends_of(NORMAL, normals))
            length = np.sqrt((near**2).sum()) * (1 - _WIDEN), np.sqrt((far**2).sum()) * (1 + _WIDEN)
            return radius[0] * near / length[1], radius[1] * far / length[0]

    def decided(self, fractions: list[float], scale: list[float], entropy: Entropy) -> NDArray[np.int64]:
        """The same draw with more and more bits, in intervals of rising precision."""
        draw = self
        while True:
            draw = draw.refined(entropy)
            with mpmath.workprec(2 * draw.bits + 64):
                result = None if 0 in (*draw.uniforms, *draw.normals) else draw._floors(fractions, scale)
            if result is not None:
                return np.array(result, dtype=np.int64)

    def _exact_sizes(self) -> list[tuple[Any, Any]]:
        """`sizes` at mpmath's working precision."""
        whole = mpmath.mpf(1 << self.bits)
        radius = [-sum(mpmath.log((k + end) / whole) for k in self.uniforms) for end in (1, 0)]
        z = [[-NORMAL.exact((k + end) / whole) for k in self.normals] for end in (1, 0)]
        length = [mpmath.sqrt(sum(value**2 for value in values)) for values in z]
        return [(radius[0] * near / length[1], radius[1] * far / length[0]) for near, far in zip(*z, strict=True)]

    def _floors(self, fractions: list[float], scale: list[float]) -> list[int] | None:
        """floor(fraction + noise + 1/2) of each coordinate, or None where the bits so far leave one open."""
        slack, floors = mpmath.ldexp(1, -(mpmath.mp.prec // 3)), []
        for sizes, sign, fraction, unit in zip(self._exact_sizes(), self.signs.tolist(), fractions, scale, strict=True):
            ends = sorted(mpmath.mpf(sign) * unit * size + mpmath.mpf(fraction) + mpmath.mpf(1) / 2 for size in sizes)
            first, last = mpmath.floor(ends[0] - slack), mpmath.floor(ends[1] + slack)
            if first != last:
                return None
            floors.append(int(first))
        return floors


def _words(count: int, entropy: Entropy) -> list[int]:
    words = np.frombuffer(entropy(_WORD * count), dtype="<u8").tolist()
    if len(words) != count:
        raise InputError("entropy", len(words), f"a source of as many words as it is asked for ({count})")
    return words
