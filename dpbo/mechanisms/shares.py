"""Noise in shares: each of k ranks rounds its own sum with noise of its own, and only the total of
all is opened (curator/secure_sum.py). At most c = `tolerate` ranks add nothing or tell their share
to others, so that m >= k - c honest shares count.

Gaussian. Rank i holds c_i, an exact multiple of a fraction of the grid step h, and sends R_i =
floor(c_i + G_i + 1/2) with G_i ~ N(0, s^2), in steps of h: the draw of `rounding`, on the grid of
the share's scale: s = sigma / (h sqrt(k - c)), rounded up, for noise of standard deviation sigma. A
sum of rounded Gaussians is not a rounded Gaussian: the ratio of their laws has no bound.

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

One share alone is sqrt(k - c) / noise_multiplier-GDP, exactly: what its receiver learns where
nothing hides it.

Laplace. Rank i sends R_i = floor(c_i + 1/2) + X_i - X'_i, where X_i and X'_i are negative binomials
with 1 / (k - c) successes and parameter a (`polya`). Their generating function to the power of k -
c is (1 - a) / (1 - a z), the geometric law's, so k - c differences add up to the discrete Laplace
law (1 - a) / (1 + a) a^|n|, exactly. Further shares are independent of these: post-processing.

Price. A unit has records at one rank. There coordinate j of c moves by x_j steps of its grid h_j,
with sum of |x_j| h_j / u_j <= l1 for the sensitivity's scales u_j, and floor(c + 1/2) by less than
|x_j| + 1. Each total's probability changes by a factor of at most exp(sum of (|x_j| + 1) log 1/a_j)
over d coordinates. With log 1/a_j <= h_j / b_j <= 2^-20 and scales b_j >= M l1 u_j / (1 - d M /
2^20), that exponent is at most (1 - d M / 2^20) / M + d / 2^20 = 1 / M: pure epsilon. As a = 1 -
e^-L for a float L, L is -log(1 - e^(-h/b)) rounded up. The loss is epsilon with probability 1 / (1
+ a) > 1/2, so the profile of `LaplaceEvent` is no bound, and `DiscreteLaplaceEvent` is charged for
its pure epsilon alone. Where d M reaches 2^20, no noise is enough.

One share alone is weak, because it is 0 with probability (1 - a)^(2 / (k - c)) or more, and falls
steeply from there. Between the totals 0 and n = 26,214 steps of one share, epsilon .1 of scale 2^18
becomes 1.79, 4.65 and 10.1 for k - c = 2, 3 and 9 (computed).

Where all k ranks add their share, the value's variance is k / (k - c) times that of the charge.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
import scipy

from dpbo.accounting.gdp import root_up, rounded_up
from dpbo.errors import InputError
from dpbo.events import DiscreteLaplaceEvent, Event
from dpbo.mechanisms.gaussian import GaussianMechanism
from dpbo.mechanisms.laplace import LaplaceMechanism
from dpbo.mechanisms.mechanism import AdditiveDistribution, Entropy, Floats, Integers, Mechanism
from dpbo.mechanisms.polya import differences, parameter
from dpbo.privacy import Sensitivity
from dpbo.validation import Count, checked_constructor

# In steps of the grid, no scale of noise is less.
_LEAST_STEPS = 2**20


def whole(mechanism: Mechanism) -> Mechanism:
    """The mechanism, or the one that it is a share of."""
    match mechanism:
        case GaussianShare():
            return GaussianMechanism(mechanism.noise_multiplier)
        case LaplaceShare():
            return LaplaceMechanism(mechanism.noise_multiplier)
    return mechanism


def share_of(mechanism: Mechanism, ranks: int, tolerate: int) -> Mechanism | None:
    """What each rank draws in place of one process; None where no sum of shares is proved."""
    # of these laws alone, not of what is derived from them
    if type(mechanism) is GaussianMechanism:
        return GaussianShare(mechanism.noise_multiplier, ranks, tolerate)
    if type(mechanism) is LaplaceMechanism:
        return LaplaceShare(mechanism.noise_multiplier, ranks, tolerate)
    return None


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


@checked_constructor
@dataclass(frozen=True)
class LaplaceShare(LaplaceMechanism):
    """One rank's share of the noise of `LaplaceMechanism(noise_multiplier)`, on a grid. Its
    distribution has the scale of the discrete Laplace law that the shares add up to without those
    of `tolerate` ranks, and the standard deviation of the total of all. Arguments as in
    `GaussianShare`.
    """

    ranks: Count
    tolerate: Count
    kind: ClassVar[type[Event]] = DiscreteLaplaceEvent

    def distribution(
        self, sensitivity: Sensitivity, quanta: Sequence[float]
    ) -> AdditiveDistribution:
        coordinates = sensitivity.block or len(quanta)
        left = 1 - coordinates * Fraction(self.noise_multiplier) / _LEAST_STEPS
        if left <= 0:
            raise InputError(
                "noise_multiplier",
                self.noise_multiplier,
                f"below {_LEAST_STEPS} / {coordinates} for Laplace noise in shares on"
                f" {coordinates} numbers",
                "Give the Curator accounting=GDPFilter(), which pays for Gaussian noise.",
            )
        widened = rounded_up(Fraction(sensitivity.l1) / left)
        return super().distribution(dataclasses.replace(sensitivity, l1=widened), quanta)

    def noise(self, fractions: Floats, scale: Floats, entropy: Entropy) -> Integers:
        wide = np.broadcast_to(scale, fractions.shape)
        noise = (fractions >= 0.5).astype(np.int64)
        # a vector of many numbers has few scales
        for each in np.unique(wide):
            places = wide == each
            honest = self.ranks - self.tolerate
            count = int(np.count_nonzero(places))
            noise[places] += differences(parameter(float(each)), honest, count, entropy)
        return noise

    @property
    def _shape(self) -> float:
        """The total is the difference of two gamma variables of this shape, up to its grid."""
        return self.ranks / (self.ranks - self.tolerate)

    def std(self, dimension: int) -> float:
        return math.sqrt(self._shape) * super().std(dimension)

    def simulated(self, count: int, random: np.random.Generator) -> Floats:
        return random.gamma(self._shape, size=count) - random.gamma(self._shape, size=count)

    def exceeded(self, probability: float) -> float:
        # each share is rounded by half a step at most, and the total's law by a few
        return _exceeded(self._shape, probability) + (self.ranks + 8) * 2.0**-20


@functools.lru_cache(maxsize=256)
def _exceeded(shape: float, probability: float) -> float:
    """What the difference of two gamma variables of this shape exceeds with this probability, from
    1e-100 to 1/2.
    """

    # what lies beyond this is far less than any probability that is asked for
    end = float(scipy.special.gammainccinv(shape, 1e-300))

    def tail(x: float) -> float:
        def part(g: float) -> float:
            density = math.exp((shape - 1.0) * math.log(g) - g - math.lgamma(shape))
            return density * float(scipy.special.gammaincc(shape, max(x + g, 0.0)))

        return float(scipy.integrate.quad(part, 0.0, end, epsabs=0.0, points=[shape])[0])

    # Chernoff's bound: E exp(t (G - G')) = (1 - t^2)^-shape, which is at most exp(level) at t^2 =
    # level / (shape + level). And 1/2 is exceeded at 0.
    level = -math.log(probability)
    most = 2.0 * math.sqrt(level * (shape + level))
    return float(scipy.optimize.brentq(lambda x: math.log(tail(x) / probability), -1.0, most))
