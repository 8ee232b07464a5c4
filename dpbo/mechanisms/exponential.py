"""The exponential mechanism, drawn exactly.

Law: P(j) proportional to exp(-d_j / (M s)). A neighbour moves each level by at most s, so log P(j)
moves by at most 2/M = epsilon (McSherry & Talwar 2007, Theorem 6); the privacy loss has range
epsilon for each pair, so it is also (epsilon^2 / 8)-zCDP (Cesar & Rogers 2021, Lemma 3.2), which
permute-and-flip is not.
"""

from dataclasses import dataclass
from fractions import Fraction

import mpmath
import numpy as np

from dpbo._mpmath import precision
from dpbo.events import ExponentialEvent
from dpbo.mechanisms.choice import ChoiceMechanism
from dpbo.mechanisms.mechanism import Entropy, Floats, Integers
from dpbo.mechanisms.rounding import random_word
from dpbo.validation import checked, checked_constructor

# Far above the error of 2^16 float exponentials and their running sum.
_WIDEN = 2.0**-36


@checked_constructor
@dataclass(frozen=True)
class ExponentialMechanism(ChoiceMechanism):
    """Selects with probability proportional to exp(epsilon utility / (2 sensitivity))."""

    @checked
    def event(self, count: int = 1) -> ExponentialEvent:
        return ExponentialEvent(self.noise_multiplier, count)

    def simulated(self, utilities: Floats, random: np.random.Generator) -> Integers:
        return np.asarray((utilities + random.gumbel(size=utilities.shape)).argmax(1))

    def choose(self, counts: Integers, rate: Fraction, entropy: Entropy) -> int:
        filled = np.flatnonzero(counts)
        sums = np.cumsum(counts[filled] * np.exp(-float(rate) * filled))
        word = random_word(entropy)
        bits = 64
        low = int(np.searchsorted(sums * (1 + _WIDEN), word / 2.0**64 * sums[-1] * (1 - _WIDEN)))
        high = int(
            np.searchsorted(sums * (1 - _WIDEN), (word + 1) / 2.0**64 * sums[-1] * (1 + _WIDEN))
        )
        while low != high:
            word = (word << 64) | random_word(entropy)
            bits += 64
            low, high = _exactly(counts[filled], filled, rate, word, bits)
        return int(filled[low])


def _exactly(
    counts: Integers, levels: Integers, rate: Fraction, word: int, bits: int
) -> tuple[int, int]:
    """The first level whose cumulative weight passes the drawn share, at both ends of the interval
    that the bits leave.
    """
    with precision(bits + 64):
        step = mpmath.exp(-mpmath.mpf(rate.numerator) / rate.denominator)
        sums = []
        total = mpmath.mpf(0)
        for count, level in zip(counts.tolist(), levels.tolist(), strict=True):
            total += count * step**level
            sums.append(total)
        slack = mpmath.ldexp(total, -bits - 8)
        low = mpmath.ldexp(word, -bits) * total
        high = mpmath.ldexp(word + 1, -bits) * total
        first = next(i for i, value in enumerate(sums) if value + slack > low)
        last = first
        while last < len(sums) - 1 and sums[last] - slack <= high:
            last += 1
    return first, last
