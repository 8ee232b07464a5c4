"""The test that a tuned model passes against that of the default parameters, and what is told of
it.

On the validation records the default's model has the score s_0, and the candidates' models have
s_1, ..., s_K. Seen are s_i + z_i, with independent Gaussian noises z_i of one standard deviation,
and K of a public law, drawn before and independent of the noises; of a search it is fixed. Let h be
the 1 - risk quantile of max(z_1, ..., z_K) - z_0. The default is replaced only by a w with D =
(s_w + z_w) - (s_0 + z_0) > h, and D - h is told as its gain. Else the default is kept, and its gain
over itself is 0. Then

    P(w replaces the default, and s_w - s_0 < D - h) <= P(max(z_1, ..., z_K) - z_0 > h) <= risk,

whatever the records, the models, and the rule that picks w, because s_w - s_0 < D - h says z_w -
z_0 > h, and z_w is one of the K noises. The scores may depend on one another, and on the noises of
earlier ones, as in a search or in hidden runs with proposals. The probability is over K and all
noises, conditional on nothing. So the told gain is a lower bound on the true one, and if no model
is better than the default's, the default is replaced with probability at most `risk`.

The scores are of these models on these records: another training, or other records, may differ.

With f(x) = E x^K, Phi and phi the normal distribution function and density,

    P(max(z_1, ..., z_K) - z_0 <= h) = integral of phi(z) f(Phi(z + h)) dz,

which the trapezoidal rule gives to the last digits, because the integrand is smooth. As drawn, a
score is rounded to a grid of at most 2^-20 of a deviation, so h is so much larger.
"""

import numpy as np
import scipy

from dpbo.run_counts import RunCountDistribution
from dpbo.validation import Risk, checked

_PLACES = np.linspace(-12.0, 12.0, 3073)
_DENSITY = np.exp(-0.5 * _PLACES**2)
_WEIGHTS = _DENSITY / _DENSITY.sum()
# h is below 13 at the least risk, with the most runs
_MOST = 20.0
_ROUNDING = 2.0**-20


@checked
def gain_test(run_count: RunCountDistribution, *, risk: Risk = 0.1) -> float:
    """By how many standard deviations of a score's noise a score must exceed the default's, so that
    the default is replaced: the module's h; 0 where the quantile is negative.

    Args:
        run_count: distribution of the number of candidates, without the default.
        risk: the probability, at most, that the default is replaced where no model is better than
            its own, or by one that is better by less than is told.
    """

    def exceeded(h: float) -> float:
        return float(_WEIGHTS @ run_count.generating(scipy.special.ndtr(_PLACES + h))) - (1 - risk)

    if exceeded(0.0) >= 0.0:
        return 0.0
    return float(scipy.optimize.brentq(exceeded, 0.0, _MOST, xtol=1e-12)) + _ROUNDING
