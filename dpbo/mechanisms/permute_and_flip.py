"""Permute-and-flip, drawn exactly.

Law: candidates in random order, each accepted with probability exp(-d_j / (M s)); the best one
always is. Pure epsilon = 2/M, and never worse than the exponential mechanism (McKenna & Sheldon
2020, Theorem 2). It equals report-noisy-max with exponential noise of scale M s (Ding et al. 2021,
Theorem 5), which is how it is drawn: the largest of n exponentials is -log(1 - U^(1/n)), so one
number a level suffices. Its privacy loss is not of range epsilon: it is charged (epsilon^2 /
2)-zCDP, as any pure mechanism, four times the exponential's.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np

from dpbo._mpmath import precision
from dpbo.events import PermuteAndFlipEvent
from dpbo.mechanisms.choice import ChoiceMechanism
from dpbo.mechanisms.mechanism import Entropy, Floats, Integers, Words
from dpbo.mechanisms.rounding import random_word, random_words
from dpbo.validation import checked, checked_constructor

_WIDEN = 2.0**-36


@checked_constructor
@dataclass(frozen=True)
class PermuteAndFlipMechanism(ChoiceMechanism):
    """Selects the best candidate more often than the exponential mechanism does."""

    @checked
    def event(self, count: int = 1) -> PermuteAndFlipEvent:
        return PermuteAndFlipEvent(self.noise_multiplier, count)

    def simulated(self, utilities: Floats, random: np.random.Generator) -> Integers:
        return np.asarray((utilities + random.exponential(size=utilities.shape)).argmax(1))

    def choose(self, counts: Integers, rate: Fraction, entropy: Entropy) -> int:
        filled = np.flatnonzero(counts)
        words = random_words(len(filled), entropy)
        low = _noisy(counts[filled], filled, float(rate), words, 0)
        high = _noisy(counts[filled], filled, float(rate), words, 1)
        rivals = np.flatnonzero(high >= low.max())
        draws = {int(i): (int(words[i]), 64) for i in rivals}
        while len(draws) > 1:
            ends = {}
            for i, (word, bits) in draws.items():
                draws[i] = ((word << 64) | random_word(entropy), bits + 64)
                ends[i] = _exactly(int(counts[filled[i]]), int(filled[i]), rate, *draws[i])
            best = max(lower for lower, _ in ends.values())
            draws = {i: draw for i, draw in draws.items() if ends[i][1] >= best}
        return int(filled[next(iter(draws))])


def _noisy(
    counts: Integers,
    levels: Integers,
    rate: float,
    words: Words,
    end: int,
) -> Any:
    """Bound (0 lower, 1 upper) on each level's noisy best: -log(1 - U^(1/n)) - rate * level."""
    sign = 2 * end - 1
    share = np.minimum(np.ldexp(words.astype(np.float64) + end, -64) * (1 + sign * 2.0**-52), 1.0)
    with np.errstate(divide="ignore"):
        # 0 at share 0, infinite at share 1.
        noise = -np.log(-np.expm1(np.log(share) / counts))
    return noise * (1 + sign * _WIDEN) - rate * levels + sign * (1 + rate * levels) * _WIDEN


def _exactly(count: int, level: int, rate: Fraction, word: int, bits: int) -> tuple[Any, Any]:
    """(lower, upper) from more bits, in mpmath."""
    with precision(2 * bits + 64):
        offset = mpmath.mpf(rate.numerator) / rate.denominator * level
        slack = mpmath.ldexp(1, -bits)
        ends = []
        for end in (word, word + 1):
            # as above at shares 0 and 1
            share = mpmath.ldexp(end, -bits)
            ends.append(-mpmath.log(-mpmath.expm1(mpmath.log(share) / count)) - offset)
        return ends[0] - slack, ends[1] + slack
