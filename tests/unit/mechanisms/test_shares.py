"""Noise in shares: the theorem at scales where its bound is large enough to see, the law of the
total, and ranks that add nothing.
"""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
import scipy.stats
import torch

from dpbo import Budget, Curator
from dpbo.mechanisms import GaussianMechanism
from dpbo.mechanisms.shares import GaussianShare
from dpbo.privacy import Sensitivity
from dpbo.queries import ClippedMean
from dpbo.testing import SeededEntropy
from tests.attacks.marks import attack

ONE = Sensitivity(1.0, 1.0, 1.0)
QUANTA = [2.0**-40]
# Of the tests below, at their fixed seeds.
LEVEL = 1e-6


def rounded_normal(mean, s, reach):
    """P(floor(mean + s z + 1/2) = n) for n from -reach to reach."""
    ends = [(mpmath.mpf(n) - mpmath.mpf(1) / 2 - mean) / s for n in range(-reach, reach + 2)]
    below = [mpmath.erfc(-end / mpmath.sqrt(2)) / 2 for end in ends]
    above = [mpmath.erfc(end / mpmath.sqrt(2)) / 2 for end in ends]
    # The difference of the smaller tails keeps its digits.
    return [
        high - low if end < 0 else left - right
        for low, high, left, right, end in zip(
            below, below[1:], above, above[1:], ends, strict=False
        )
    ]


def smeared(mean, s, n):
    """E b_2(n - Y) for Y ~ N(mean, s^2): the second difference of an antiderivative of the cdf."""

    def area(x):
        z = (x - mean) / s
        cdf = mpmath.erfc(-z / mpmath.sqrt(2)) / 2
        return s * (z * cdf + mpmath.exp(-z * z / 2) / mpmath.sqrt(2 * mpmath.pi))

    return area(n + 1) - 2 * area(n) + area(n - 1)


@pytest.mark.parametrize(("s", "tau"), [(0.5, 0.170), (1.0, 1.03e-4)])
@attack("A9")
def test_two_shares_are_a_rounding_of_one_gaussian_up_to_the_stated_factor(s, tau):
    """Also 14 standard deviations out, where the ratio to one rounded Gaussian has no bound."""
    with mpmath.workdps(250):
        for means in ((0, 0), (0.25, 0.625)):
            first, second = (rounded_normal(mpmath.mpf(mean), s, 40) for mean in means)
            worst = 0.0
            for n in range(-20, 21, 2):
                total = mpmath.fsum(first[40 + j] * second[40 + n - j] for j in range(-20, 21))
                law = smeared(mpmath.mpf(sum(means)), s * mpmath.sqrt(2), n)
                worst = max(worst, abs(float(total / law - 1)))
            assert worst <= tau
            assert worst > tau / 2 or any(means), "the bound is nearly attained"


def test_the_share_is_rounded_up_in_exact_fractions():
    for ranks, tolerate in ((2, 1), (3, 1), (7, 2), (1000, 1)):
        whole = GaussianMechanism(3.0).distribution(ONE, QUANTA)
        law = GaussianShare(3.0, ranks=ranks, tolerate=tolerate).distribution(ONE, QUANTA)
        least = Fraction(whole.scale[0]) ** 2
        assert (ranks - tolerate) * Fraction(law.scale[0]) ** 2 >= least
        assert law.std[0] == pytest.approx(whole.std[0] * (ranks / (ranks - tolerate)) ** 0.5)
        assert 2**20 <= law.scale[0] / law.grid[0] < 2**21


def totals(adding, draws):
    """Noise of the total of four ranks, of which so many add their share; in units of sigma."""
    share = GaussianShare(1.0, ranks=4, tolerate=1)
    law = share.distribution(ONE, QUANTA)
    wide = type(law)(law.name, law.scale * draws, law.std * draws, law.grid * draws)
    exact = np.full(draws, 123_456_789)
    steps = round(law.grid[0] / QUANTA[0])
    total = np.zeros(draws, dtype=np.int64)
    for rank in range(4):
        if rank < adding:
            total += share._sample(exact, QUANTA * draws, wide, SeededEntropy(rank))
        else:
            total += exact // steps
    return (total - 4 * exact[0] / steps) * law.grid[0]


@attack("A9")
def test_the_total_has_its_law_and_as_many_silent_ranks_as_are_tolerated_leave_sigma():
    draws = 100_000
    for adding, std in ((4, (4 / 3) ** 0.5), (3, 1.0)):
        noise = totals(adding, draws)
        ends = scipy.stats.norm.ppf(np.arange(1, 64) / 64) * std
        counts = np.bincount(np.searchsorted(ends, noise), minlength=64)
        assert scipy.stats.chisquare(counts).pvalue > LEVEL
        # A standard deviation three hundredths off would be seen.
        wrong = np.bincount(np.searchsorted(ends * 1.03, noise), minlength=64)
        assert scipy.stats.chisquare(wrong).pvalue < LEVEL


@attack("A9", "A12")
def test_one_process_draws_the_whole_noise_where_it_is_given_a_share():
    """It drew the noise of the share alone, and stated that of all ranks."""
    records = torch.linspace(0, 1, 50).unsqueeze(1)
    curator = Curator(records, unit="u", adjacency="replace-one", budget=Budget.gdp(100.0))
    asked = ClippedMean(lambda _, rows: rows[:, 0], score_range=(0.0, 1.0))
    plan = curator.reserve("plan", GaussianShare(20.0, ranks=4, tolerate=1), slots=300, query=asked)
    assert plan.mechanism == GaussianMechanism(20.0)
    handles = [curator.evaluate(asked) for _ in range(300)]
    released = curator.release_all(handles, GaussianShare(20.0, ranks=4, tolerate=1))
    noise = np.array([each.value.item() for each in released]) - records.mean().item()
    stated = released[0].variance.sqrt().item()
    assert stated == pytest.approx(20.0 / 50)
    ratio = (noise**2).sum() / stated**2
    assert scipy.stats.chi2(300).cdf(ratio) > LEVEL
    assert scipy.stats.chi2(300).sf(ratio) > LEVEL
