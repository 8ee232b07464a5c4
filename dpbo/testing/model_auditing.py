"""A lower bound on the epsilon of a training from one run of it (Steinke, Nasr & Jagielski 2023).

    audited = audit_model(train, score, canaries)
    audited.epsilon(delta=1e-5)

Canaries are records that the auditor makes, such as wrongly labelled or out-of-place ones. Each is
in the training with probability 1/2, independently. The auditor sees the model, and guesses of some
canaries whether they were in, of the others nothing. If the training is (epsilon, delta)-DP, hardly
more guesses are right than by coins of bias q = e^epsilon / (1 + e^epsilon):

    P(right >= v) <= P(W >= v) + max { sum_j x_j : 0 <= x_j <= P(W = v - j), sum_j j x_j <= n d },

with W binomial of r guesses at q, over j = 1, 2, ..., n canaries, and d = delta / (1 + e^epsilon).

Proof. Let S_i be whether canary i is in, Y the model, and s what the canaries before i are. Given
s, and averaged over the canaries after i, the laws P and Q of Y with S_i = 1 and 0 are (epsilon,
delta)-close both ways, because each pair of data sets is and H(p || q) = sum (p - e^epsilon q)_+ is
jointly convex. Given s and Y, a guess of S_i is right with probability at most max(P, Q) / (P + Q).
Where P is the larger, this exceeds q by

    P / (P + Q) - q = (P - e^epsilon Q) / ((P + Q) (1 + e^epsilon)),

and Y has the law (P + Q) / 2. So the mean of the excess t_i = (max(P, Q) / (P + Q) - q)_+ is at
most (H(P || Q) + H(Q || P)) / (2 (1 + e^epsilon)) <= d. Draw U_i uniform, such that guess i is
right if U_i <= its probability given s and Y; let B_i be whether U_i <= q, and E_i whether q < U_i
<= q + t_i. Then right <= W + E with W = sum of B_i and E = sum of E_i over the guesses. Given Y,
the B_i are independent coins of bias q, so W is binomial; E has a mean of at most n d. Where W = v
- j, E must be at least j for the event, so the probabilities x_j of these have sum_j j x_j <= n d.
(Steinke et al. have 2 delta in the place of d.)

A bound that is too high means that an epsilon was refuted at which the training is (epsilon,
delta)-DP, since it is so at each one above its own. For each of these the refuted outcomes are
those of v right guesses or more, so all of them together are those of the least such v, and this
happens with at most the error level.

The guesses are those of the largest scores for in and of the least for out, equally many. Their
number is fixed before, as a share of the canaries. Each of `SHARES` is tried at an equal part of
the error level, so that the best of them is still right with the stated confidence. The best of
several audits is not: the canaries, the score and the level are fixed before the run, from other
trainings if they are tried, and one audit is told.

One run shows less than many (`audit`): of r guesses that are all right, with delta 0, at most about
log(r / log(6 / level)) of epsilon, the 6 for as many shares. A bound far below the guarantee says
that the audit is weak.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from dpbo.entropy import bernoulli
from dpbo.errors import InputError
from dpbo.testing.auditing import Level
from dpbo.validation import Delta, checked

SHARES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
"""Shares of the canaries of which the auditor guesses."""
_LEAST = 20
# of the epsilon that is found
_PRECISION = 1e-3

Score = Callable[[Any, Any], float]


@checked
@dataclass(frozen=True)
class ModelAudit:
    """The result of `audit_model`.

    Attributes:
        canaries: number of canaries.
        guesses: (guessed, right) for each share of the canaries.
        level: the error level: largest probability that a bound is wrong.
    """

    canaries: int
    guesses: tuple[tuple[int, int], ...]
    level: float

    def epsilon(self, delta: Delta) -> float:
        """The training is not (epsilon', delta)-DP for any epsilon' below this; 0 where nothing is
        shown.
        """
        return max(self._refuted(guessed, right, delta) for guessed, right in self.guesses)

    def _refuted(self, guessed: int, right: int, delta: float) -> float:
        """The largest epsilon at which so many right guesses are too many."""
        level = self.level / len(self.guesses)
        low = 0.0
        step = 1.0
        while step > _PRECISION:
            if too_likely(guessed, right, self.canaries, low + step, delta) <= level:
                low += step
            else:
                step /= 2
        return low

    def __str__(self) -> str:
        told = ", ".join(f"{right} of {guessed}" for guessed, right in self.guesses)
        return f"{self.canaries} canaries; right guesses: {told}; error level {self.level:g}"


def too_likely(guessed: int, right: int, canaries: int, epsilon: float, delta: float) -> float:
    """The module's bound on the probability of so many right guesses or more."""
    q = scipy.special.expit(epsilon)
    excess = canaries * delta * scipy.special.expit(-epsilon)
    below = scipy.stats.binom.pmf(right - np.arange(1, right + 1), guessed, q)
    costs = np.cumsum(np.arange(1, right + 1) * below)
    whole = int(np.searchsorted(costs, excess, side="right"))
    gained = below[:whole].sum()
    if whole < right:
        gained += (excess - (costs[whole - 1] if whole else 0.0)) / (whole + 1)
    return float(min(scipy.stats.binom.sf(right - 1, guessed, q) + gained, 1.0))


@checked
def audit_model(
    train: Callable[[list[Any]], Any],
    score: Score,
    canaries: Sequence[Any],
    *,
    level: Level = 0.05,
) -> ModelAudit:
    """Lower bound on the epsilon of a training from one run of it.

        def train(canaries):
            records = ConcatDataset([training, canaries])
            ...
            return module

        def score(module, canary):
            features, label = canary
            return -cross_entropy(module(features[None]), label[None]).item()

        audit_model(train, score, canaries).epsilon(1e-5)

    Args:
        train: `train(included)` trains on the auditor's own records together with these canaries,
            as the true training does, and returns what would be released. It is called once. For a
            guarantee under replace-one it puts a fixed record in the place of each canary that is
            left out.
        score: `score(model, canary)`, larger if the canary seems to be in: minus its loss, or how
            far the model moved along its gradient. It must not know which canaries are in.
        canaries: records, 20 at least; a thousand and more show more. What shows most are canaries
            whose clipped gradients are orthogonal to each other and to those of true records.
        level: the error level: largest probability that a bound is wrong, of one audit whose
            canaries and score were fixed before it. The largest of several bounds errs more often.

    Returns:
        A `ModelAudit`: compare its `epsilon(delta)` with the guarantee.

    Raises:
        InputError: too few canaries, or a score that is not a number.

    Source: Steinke, Nasr & Jagielski 2023, "Privacy Auditing with One (1) Training Run".
    """
    count = len(canaries)
    if count < _LEAST:
        raise InputError("canaries", count, f"at least {_LEAST} records")
    included = bernoulli(count, 0.5)
    model = train(list(itertools.compress(canaries, included)))
    given = [score(model, canary) for canary in canaries]
    try:
        scores = np.array(list(map(float, given)))
    except (TypeError, ValueError):
        scores = np.array([np.nan])
    if np.isnan(scores).any():
        raise InputError("score", score, "score(model, canary) giving a number for each canary")
    order = np.argsort(scores, kind="stable")
    guesses = []
    for share in SHARES:
        half = int(share * count / 2)
        if half:
            right = (~included[order[:half]]).sum() + included[order[-half:]].sum()
            guesses.append((2 * half, int(right)))
    return ModelAudit(count, tuple(guesses), level)
