"""Exact draws of the number of runs of a private selection.

A uniform number U of which 64 bits are drawn lies in [w, w + 1] / 2^64; K is the least k with U <
F(k), F its distribution function. Sums of the probabilities up to k are computed by their recursion
in mpmath, at a precision P of 128 bits beyond those drawn. All terms are positive, the first is
right to a relative 2^(24-P) (its exponent, at most 2^24, is rounded once), each step of the
recursion and of the sum adds at most 2^(3-P), so after k steps F(k) is within (k + 2) 2^(26-P)
relative, and `slack` is larger. Where both ends of U's interval lie in one cell, slack included,
further bits could not change k: it is decided, and its law is exactly the stated one for the floats
as given. Otherwise 64 more bits are drawn and P grows with them, which happens with probability
below K 2^-62 and ends with probability 1.
"""

from typing import Any

import mpmath

from dpbo._mpmath import precision
from dpbo.mechanisms.mechanism import Entropy
from dpbo.mechanisms.rounding import random_word
from dpbo.run_counts import RunCountDistribution

_WORD = 64


def draw_run_count(distribution: RunCountDistribution, entropy: Entropy) -> int:
    """Draws one number of runs, in time that grows with it, as that of the runs does."""
    word = random_word(entropy)
    bits = _WORD
    while True:
        with precision(bits + 128):
            found = _decided(distribution, word, bits)
        if found is not None:
            return found
        word = (word << _WORD) | random_word(entropy)
        bits += _WORD


def _decided(distribution: RunCountDistribution, word: int, bits: int) -> int | None:
    """The k whose cell holds [word, word + 1] / 2^bits, or None where a border is too near."""
    low = mpmath.ldexp(mpmath.mpf(word), -bits)
    high = mpmath.ldexp(mpmath.mpf(word + 1), -bits)
    k, mass = distribution.first()
    total: Any = mpmath.mpf(mass)
    steps = 2
    while True:
        slack = mpmath.ldexp(mpmath.mpf(steps), 28 - mpmath.mp.prec)
        if high < total * (1 - slack):
            return k
        mass = mass * distribution.ratio(k)
        # `k` is the last value.
        if mass == 0:
            return k
        # U may lie on either side of the border behind k.
        if low <= total * (1 + slack):
            return None
        k += 1
        total += mass
        steps += 1
