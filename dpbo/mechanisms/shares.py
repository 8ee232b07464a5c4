"""Gaussian noise in shares: each of k ranks rounds its own sum with noise of its own, and only the
total of all is opened (curator/secure_sum.py).

Rank i holds c_i, an exact multiple of a fraction of the grid step h, and sends R_i = floor(c_i +
G_i + 1/2) with G_i ~ N(0, s^2), in steps of h: the draw of `rounding`, on the grid of the share's
scale s. At most c = `tolerate` ranks add nothing or tell their share to others, so that m >= k - c
honest shares count: s = sigma / (h sqrt(k - c)), rounded up, for noise of standard deviation sigma.
A sum of rounded Gaussians is not a rounded Gaussian: the ratio of their laws has no bound.

Law. Let b_m be the density of a sum of m uniforms on [-1/2, 1/2], T the sum of the honest R_i, and
Y that of the honest c_i + G_i, which is N(sum of c_i, m s^2). For every integer n, real w and all
c_i, P(T = n | Y = w) is within a factor (1 +- tau) of b_m(n - w), where tau <= 2.1 m exp(-pi^2 s^2)
if s >= 1 and m exp(-pi^2 s^2) <= .01. As the sum of b_m(n - w) over n is 1, b_m rounds Y at random
whatever the records are: T is post-processing of one Gaussian of variance m s^2, up to (1 +- tau)
on every event.
Proof. Given Y = w, the first m - 1 of the c_i + G_i are normal with covariance s^2 (I - 11'/m); the
c_i move their mean alone. By Poisson's summation their density modulo 1 is within tau, the sum of
exp(-2 pi^2 s^2 Q(k)) over k != 0 in Z^(m-1), of 1, with Q = |k|^2 - (sum of k)^2 / m. T is a
function of w and of these numbers modulo 1: with rounding errors u_i, T = floor(w - sum of u_i +
1/2). Were the numbers uniform modulo 1, the u_i would be independent uniforms on [-1/2, 1/2], and
P(T = n | Y = w) = b_m(n - w). Appended by a zero, k lies in Z^m, where Q does not change if all
coordinates move by one whole number; with |sum of k| <= m/2 it is Q >= |k|^2 - |sum of k|/2 >=
|k|^2 / 2. So tau <= (sum over j in Z of exp(-pi^2 s^2 j^2))^m - 1. For m = 1 it is 0.

Price. Let t = -d log(1 - tau) <= .01 for d numbers. Two laws within e^(+-t) of a mu-GDP pair on
every event are (mu + 2.6 t)-GDP: an error of probability a becomes at most min(e^t a, 1 - e^-t (1 -
a)), which moves its normal quantile by at most 1.3 t, since the ratio of the normal's cdf to its
density is at most 1.27 up to .0126, and for a > 1/2 the same holds of the upper tail; and so for
the other error. Here s >= 2^20, so t is below 10^-1000 for every d and m that a computer holds, and
ROUND_UP of `additive` covers 2.6 t many times over: the release costs its `GaussianEvent`, without
a delta.

Where all k ranks add their share, the value's standard deviation is sqrt(k / (k - c)) sigma. One
share alone is sqrt(k - c) / noise_multiplier-GDP, exactly: what its receiver learns where nothing
hides it.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpbo.accounting.gdp import root_up
from dpbo.mechanisms.gaussian import GaussianMechanism
from dpbo.mechanisms.mechanism import Floats, Mechanism
from dpbo.privacy import Sensitivity
from dpbo.validation import Count, checked_constructor


def whole(mechanism: Mechanism) -> Mechanism:
    """The mechanism, or the one that it is a share of."""
    if isinstance(mechanism, GaussianShare):
        return GaussianMechanism(mechanism.noise_multiplier)
    return mechanism


@checked_constructor
@dataclass(frozen=True)
class GaussianShare(GaussianMechanism):
    """One rank's share of the noise of `GaussianMechanism(noise_multiplier)`. Its distribution has
    the scale and grid of the share, and the standard deviation of the total.

    Args:
        ranks: ranks that add a share.
        tolerate: ranks whose share does not count.
    """

    ranks: Count
    tolerate: Count

    def scale(self, sensitivity: Sensitivity) -> tuple[float, ...]:
        whole = super().scale(sensitivity)
        honest = self.ranks - self.tolerate
        # a vector of many numbers has few scales
        shares = {each: root_up(Fraction(each) ** 2 / honest) for each in {*whole}}
        return tuple(shares[each] for each in whole)

    def std(self, dimension: int) -> float:
        return math.sqrt(self.ranks)

    def simulated(self, count: int, random: np.random.Generator) -> Floats:
        return math.sqrt(self.ranks) * super().simulated(count, random)

    def exceeded(self, probability: float) -> float:
        # each share is rounded by half a step at most
        rounding = self.ranks * 2.0**-21
        return math.sqrt(self.ranks) * super().exceeded(probability) + rounding
