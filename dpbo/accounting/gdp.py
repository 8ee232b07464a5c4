"""Gaussian differential privacy: the exact exchange between mu, epsilon and delta, and what a
guarantee says of membership tests.

A release is mu-GDP when telling two neighbours apart is at least as hard as telling N(0, 1) from
N(mu, 1). Its exact curve is

    delta(epsilon) = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2)

(Dong, Roth & Su 2022, Corollary 2.13), and releases of mu_1, mu_2, ... compose to
sqrt(mu_1^2 + mu_2^2 + ...) (their Corollary 3.3).
Epsilon and delta are rounded up and mu down: the float answer is checked, and moved if need be, in
arithmetic of at least 50 digits.
"""

import functools
import math
from fractions import Fraction

import mpmath
import numpy as np
import scipy
from mpmath.libmp import dps_to_prec
from numpy.typing import NDArray

from dpbo._mpmath import precision
from dpbo.accounting.roots import moved_until, rising_root
from dpbo.statement import Guarantee

_DIGITS = 50
_SMALL = Fraction(1, 2**900)


def rounded_up(exact: Fraction) -> float:
    """The least float that is not below an exact number."""
    value = float(exact)
    if Fraction(value) >= exact:
        return value
    return math.nextafter(value, math.inf)


def root_up(square: Fraction) -> float:
    """The square root, as a float that is not below it."""
    # the float of a smaller square would be 0 or lose digits
    root = math.sqrt(square) if square > _SMALL else math.ldexp(math.sqrt(square * 2**1200), -600)
    while Fraction(root) ** 2 < square:
        root = math.nextafter(root, math.inf)
    return root


def curve(mu: float, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    """Upper bounds on delta at each epsilon >= 0, in floats, rounding included."""
    first = scipy.special.log_ndtr(-epsilons / mu + mu / 2)
    second = epsilons + scipy.special.log_ndtr(-epsilons / mu - mu / 2)
    # error of the difference of two logarithms that are right to a few units in their last place
    lost = 1e-14 * (10.0 - first)
    return np.minimum(np.exp(first) * (-np.expm1(np.minimum(second - first, 0.0)) + lost), 1.0)


def epsilon_at(mu: float, delta: float) -> float:
    """Smallest epsilon at which mu-GDP is (epsilon, delta)-DP, rounded up; infinite for delta =
    0.
    """
    if delta <= 0.0 or math.isinf(mu):
        return math.inf
    if mu == 0.0 or _exact_delta(mu, 0.0) <= delta:
        return 0.0
    # where mu is so small that the two tails are equal in floats, by delta(eps) <= Phi(-eps/mu +
    # mu/2)
    answer = mu * mu / 2 - mu * min(float(scipy.special.ndtri(delta)), 0.0) + 1e-12
    if _log_delta(mu, 0.0) > math.log(delta):
        answer = max(rising_root(lambda epsilon: -_excess(mu, epsilon, delta)), 1e-300)
    return moved_until(answer, lambda epsilon: _exact_delta(mu, epsilon) <= delta, up=True)


@functools.lru_cache(maxsize=256)
def mu_within(epsilon: float, delta: float) -> float:
    """Largest mu that is (epsilon, delta)-DP, rounded down; 0 for delta = 0 (no Gaussian is pure).

    Below about 1e-15, where the two tails are equal in floats, by up to a half.
    """
    if delta <= 0.0:
        return 0.0
    answer = rising_root(lambda mu: _excess(mu, epsilon, delta))
    return moved_until(answer, lambda mu: _exact_delta(mu, epsilon) <= delta, up=False)


def _excess(mu: float, epsilon: float, delta: float) -> float:
    """log of delta(epsilon) over delta, in floats; finite."""
    return max(_log_delta(mu, epsilon), -1e4) - math.log(delta)


def _exact_delta(mu: float, epsilon: float) -> mpmath.mpf:
    # digits that the two tails have in common
    lost = -math.log10(mu) if 0.0 < mu < 1.0 else 0.0
    with precision(dps_to_prec(_DIGITS + math.ceil(lost))):
        m = mpmath.mpf(mu)
        eps = mpmath.mpf(epsilon)
        if m == 0:
            return mpmath.mpf(0)
        # mpmath has no such tail; both terms lie below this
        if -eps / m + m / 2 < -1e6:
            return mpmath.mpf(10) ** -400
        return mpmath.ncdf(-eps / m + m / 2) - mpmath.exp(eps) * mpmath.ncdf(-eps / m - m / 2)


def _log_delta(mu: float, epsilon: float) -> float:
    first = float(scipy.special.log_ndtr(-epsilon / mu + mu / 2))
    second = epsilon + float(scipy.special.log_ndtr(-epsilon / mu - mu / 2))
    if second >= first:
        return -math.inf
    return first + math.log(-math.expm1(second - first))


def true_positive_rate(guarantee: Guarantee, false_positive_rate: float) -> float:
    """Highest true-positive rate of any membership test at this false-positive rate.

    From mu: Phi(Phi^-1(rate) + mu) (Dong, Roth & Su 2022, Definition 2.6). From (epsilon, delta):
    the lesser of the two bounds of Kairouz, Oh & Viswanath 2015, Theorem 2.1.
    """
    if guarantee.mu is not None:
        with precision(dps_to_prec(_DIGITS)):
            start = mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(false_positive_rate) - 1)
            return float(mpmath.ncdf(start + guarantee.mu))
    if guarantee.epsilon is None or guarantee.delta is None:
        return 1.0
    by_growth = math.exp(min(guarantee.epsilon, 700.0)) * false_positive_rate + guarantee.delta
    by_complement = 1.0 - math.exp(-guarantee.epsilon) * (
        1.0 - false_positive_rate - guarantee.delta
    )
    return min(by_growth, by_complement, 1.0)
