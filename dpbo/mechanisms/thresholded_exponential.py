"""The exponential mechanism beside a known constant, drawn exactly: one of K candidates, or none of
them.

Utilities are compared with 0, the utility of what the candidates would replace: scores paired with
a reference are such (`CandidateScores`). With lambda the scale of the noise, u_j the utilities and
K numbers a_j = b exp(u_j / lambda), b = total / K, whose sum is s:

    P(j) = P(s) a_j / s,    P(none) = 1 - P(s),    P(s) = s^2 / 2 if s <= 1, else 1 - 1 / (2 s^2).

For K = 1 this is Laplace noise of scale lambda / 2 on u_1 and a threshold. So a candidate is
compared with the constant under half of the noise, and candidates among each other under that of
the exponential mechanism.

Privacy. A neighbour moves each log a_j by at most epsilon / 2 (levels: by s steps of rate 1/(M s) =
epsilon / (2 s)), and so log s. P(j) = a_j g(s) with g(s) = P(s) / s. The slope of log P in log s is
2 up to s = 1 and 2 / (2 s^2 - 1) beyond, within (0, 2], so that of log g is within [-1, 1], and log
P(j) moves by at most epsilon. The slope of log(1 - P) is -2 s^2 / (2 - s^2) up to s = 1 and -2
beyond, within [-2, 0], so log P(none) moves by at most epsilon. Pure epsilon = 2 / M. The loss has
no range of epsilon: for K = 1 and s from exp(-epsilon / 4) to its inverse the two outcomes' losses
are 2 log(2 exp(epsilon / 2) - 1) apart, which is more than epsilon. So it is charged as
permute-and-flip is, and not as the exponential mechanism.

Risk. Whatever the utilities, a candidate of utility at most 0 is chosen with probability at most
`risk`. Let B be the sum of a_j over these; each of their a_j is at most b. If there are no others,
that probability is P(s) with s <= total, and P(total) <= risk because total <= sqrt(2 risk).
Otherwise it is B g(s) with B <= (K - 1) b, and g is at most (2/3)^(3/2), at s^2 = 3/2: at most risk
because total (K - 1) / K <= risk / (2/3)^(3/2). `total` is the largest number that meets both, so
the risk is attained: where all utilities are 0, or where all but one are and that one makes s^2 =
3/2. Levels round utilities down and leave 0 where it is, so this holds as drawn.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import mpmath
import numpy as np
from scipy.special import logsumexp

from dpbo._mpmath import precision
from dpbo.events import ThresholdedExponentialEvent
from dpbo.mechanisms.choice import NONE, ChoiceMechanism
from dpbo.mechanisms.exponential import ExponentialMechanism
from dpbo.mechanisms.mechanism import Entropy, Floats, Integers
from dpbo.mechanisms.rounding import random_word
from dpbo.validation import Risk, checked, checked_constructor

# Of P(s) / s.
_MOST = (2 / 3) ** 1.5
# Far above the error of the logarithm of 2^16 float exponentials, and of one float product.
_WIDEN = 2.0**-36


def total_weight(count: int, risk: float) -> float:
    """The sum of so many candidates' weights at utility 0, at which one of utility 0 or less is
    chosen with probability `risk` at most.
    """
    alone = math.sqrt(2 * risk)
    if count == 1:
        return alone
    return min(alone, risk / _MOST * count / (count - 1))


def chance(log_sum: Any) -> Any:
    """P(s), given log s."""
    small = np.exp(2 * np.minimum(log_sum, 0.0)) / 2
    return np.where(log_sum <= 0, small, 1 - np.exp(-2 * np.maximum(log_sum, 0.0)) / 2)


@checked_constructor
@dataclass(frozen=True)
class ThresholdedExponentialMechanism(ChoiceMechanism):
    """Selects a candidate whose utility is above 0, or none: the published index is then -1.

    Utilities need a zero of their own, as score differences to a reference have it; plain scores
    count from the middle of their range.

    Args:
        noise_multiplier: as in `ChoiceMechanism`: pure epsilon = 2 / noise_multiplier.
        risk: the probability, at most, that a candidate is chosen whose utility is 0 or less; from
            1e-6 to 0.5.
    """

    risk: Risk = 0.1
    may_choose_none: ClassVar[bool] = True

    @checked
    def event(self, count: int = 1) -> ThresholdedExponentialEvent:
        return ThresholdedExponentialEvent(self.noise_multiplier, count)

    def simulated(self, utilities: Floats, random: np.random.Generator) -> Integers:
        count = utilities.shape[1]
        log_sum = logsumexp(utilities, 1) + math.log(total_weight(count, self.risk) / count)
        chosen = ExponentialMechanism(self.noise_multiplier).simulated(utilities, random)
        return np.where(random.random(len(utilities)) < chance(log_sum), chosen, NONE)

    def choose(self, counts: Integers, rate: Fraction, entropy: Entropy) -> int:
        return ExponentialMechanism(self.noise_multiplier).choose(counts, rate, entropy)

    def chooses(self, counts: Integers, best: int, rate: Fraction, entropy: Entropy) -> bool:
        """Draws whether one is chosen, given the candidates at each distance below the best
        level."""
        filled = np.flatnonzero(counts)
        weight = total_weight(int(counts.sum()), self.risk) / int(counts.sum())
        size = float(rate) * best
        log_sum = size + math.log(weight * float(counts[filled] @ np.exp(-float(rate) * filled)))
        error = (1 + abs(size)) * _WIDEN
        word = random_word(entropy)
        bits = 64
        if word + 1 <= 2.0**64 * float(chance(log_sum - error)) * (1 - _WIDEN):
            return True
        # A chance may be too small for a float, and is then not 0.
        if word >= max(1.0, 2.0**64 * float(chance(log_sum + error)) * (1 + _WIDEN)):
            return False
        while True:
            low, high = _exactly(counts[filled], filled, weight, best, rate, bits)
            if word + 1 <= low:
                return True
            if word >= high:
                return False
            word = (word << 64) | random_word(entropy)
            bits += 64


def _exactly(
    counts: Integers, levels: Integers, weight: float, best: int, rate: Fraction, bits: int
) -> tuple[Any, Any]:
    """Bounds on 2^bits P(s), less than one apart."""
    with precision(2 * bits + 64 + best.bit_length()):
        decay = mpmath.mpf(rate.numerator) / rate.denominator
        terms = zip(counts.tolist(), levels.tolist(), strict=True)
        total = weight * sum(count * mpmath.exp(decay * (best - level)) for count, level in terms)
        chance = total**2 / 2 if total <= 1 else 1 - 1 / (2 * total**2)
        middle = mpmath.ldexp(chance, bits)
        return middle - 0.25, middle + 0.25
