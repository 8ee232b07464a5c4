"""The test that a recommendation passes, and what is told of it.

theta is the candidate that a search proposes, fixed before the test; u is the mean over the
protected units of its score differences to the default model, clipped to [-c, c]. Released is D =
u + N, with N of the mechanism's law: of Laplace's the scale b is 2 c / (n epsilon) under
REPLACE_ONE. With h the number that N exceeds with probability `risk` (b log(1 / (2 risk))), theta
is recommended if D > h, else the default model is kept. D - h is told, a lower bound on u:

    P(recommended, and u < D - h) <= P(N > h) = risk, whatever the records,

because u < D - h says N > h. With u <= 0 it is the probability that theta is recommended at all; at
u = 0 it is attained. A gain is found with probability .8 from h + the number that N exceeds with
probability .2: of Laplace's 2 c log(1.25 / risk) / (n epsilon).

As drawn: h is computed from the scale as it is drawn, and 2^-20 of it larger, because D is rounded
to a grid of at most 2^-20 of the scale; up to a million units this covers the rounding of each
unit's difference to a whole quantum, too. The theorem is about clipped differences: they hide what
a few records lose, or gain, beyond c. So c is a quarter of the width of the score's range or more.
"""

import decimal
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbo.mechanisms.additive import IndependentNoise
from dpbo.mechanisms.mechanism import Mechanism
from dpbo.planning import two_digits

Array = NDArray[np.float64]
# Of a gain, if it is as large as `Detectable` says.
POWER = 0.8
# Half a step of the grid is at most 2^-21 of the scale.
_ROUNDING = 1 + 2.0**-20
# Clips, as shares of the width of the score's range, the widest first.
_CLIPS = np.array([1.0, 0.5, 0.25])


@dataclass(frozen=True)
class Recommendation:
    """What a search recommends; `str()` is a sentence.

    Attributes:
        parameters: of the recommended configuration; those of the default model where it was kept.
        kept: whether the default model was kept.
        risk: the probability, at most, that a candidate is recommended that is no better than the
            default model, or by less than `gain`; None where nothing was tested.
        gain: the gain over the default model on the protected records is larger than this, in the
            score's units; 0 where the default model was kept; NaN where no number was released.
        difference: the released noised gain D, of which `gain` is D - h; NaN where there is none.
        score: the released score, where no gain can be: scores of single records cannot be paired.
        noise_std: standard deviation of the noise of the released number.
        clip: c, to which score differences were clipped; None where none were.
        divisor: public number that their sum was divided by, where the number of records is
            private; `gain` is then of that quotient. None: their mean.
        untested: why nothing was tested.
        protected: "records", or "units" where a unit is all records with one label.
    """

    parameters: dict[str, Any]
    kept: bool
    risk: float | None = None
    gain: float = math.nan
    difference: float = math.nan
    score: float = math.nan
    noise_std: float = math.nan
    clip: float | None = None
    divisor: float | None = None
    untested: str = ""
    protected: str = "records"

    def __str__(self) -> str:
        if self.kept and self.risk is None:
            return f"your default model was kept: {self.untested}"
        if self.kept:
            return (
                "your default model was kept: no candidate was shown to be better"
                f" (risk {self.risk:g})"
            )
        shown = ", ".join(f"{name}={value!r}" for name, value in self.parameters.items())
        told = f"recommended: {shown}; "
        if self.risk is None:
            return f"{told}not tested against your model: {self.untested}"
        better = "better"
        if not math.isnan(self.gain):
            better = f"at least {two_digits(self.gain, decimal.ROUND_DOWN)} better"
        summed = ""
        if self.divisor is not None:
            summed = f", their sum divided by {self.divisor:g}"
        return (
            f"{told}{better} than your model on the protected {self.protected}, by differences"
            f" clipped at {self.clip:g}{summed} (risk {self.risk:g})"
        )


def exceeded(mechanism: Mechanism, std: float, probability: float) -> float:
    """What noise of this standard deviation exceeds with this probability, from 1e-100 to 1/2."""
    if not isinstance(mechanism, IndependentNoise):
        # No noise.
        return 0.0
    return std / mechanism.std(1) * mechanism.exceeded(probability) * _ROUNDING


def clip_of(gains: Array, width: float) -> Array:
    """The clip of each candidate's score differences (`... x records`, public): the one at which
    their mean is largest beside the noise, which grows with the clip.
    """
    signs = np.sign(gains.mean(-1))
    clips = width * _CLIPS
    kept = [signs * np.clip(gains, -c, c).mean(-1) / c for c in clips]
    return np.asarray(clips[np.argmax(kept, axis=0)])
