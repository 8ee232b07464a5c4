"""What a guarantee means to a person: how well anybody can test whether they are in the data."""

from __future__ import annotations

import math

import mpmath
from mpmath.libmp import dps_to_prec

from dpbo.digits import precision
from dpbo.statement import Guarantee

_DIGITS = 50


def true_positive_rate(guarantee: Guarantee, false_positive_rate: float) -> float:
    """Highest true-positive rate of any membership test at this false-positive rate.

    From mu: Phi(Phi^-1(rate) + mu) (Dong, Roth & Su 2022, Definition 2.6). From (epsilon, delta): the lesser of the two bounds of
    Kairouz, Oh & Viswanath 2015, Theorem 2.1.
    """
    if guarantee.mu is not None:
        with precision(dps_to_prec(_DIGITS)):
            start = mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(false_positive_rate) - 1)
            return float(mpmath.ncdf(start + guarantee.mu))
    if guarantee.epsilon is None or guarantee.delta is None:
        return 1.0
    by_growth = math.exp(min(guarantee.epsilon, 700.0)) * false_positive_rate + guarantee.delta
    by_complement = 1.0 - math.exp(-guarantee.epsilon) * (1.0 - false_positive_rate - guarantee.delta)
    return min(by_growth, by_complement, 1.0)
