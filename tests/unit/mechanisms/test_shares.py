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
from dpbo.accounting import compose
from dpbo.accounting.filters import PureFilter, ZCDPFilter
from dpbo.curator.pricing import priced
from dpbo.errors import InputError
from dpbo.mechanisms import GaussianMechanism, LaplaceMechanism
from dpbo.mechanisms.polya import parameter
from dpbo.mechanisms.shares import GaussianShare, LaplaceShare
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


def totals(kind, adding, draws):
    """Noise of the total of four ranks, of which so many add their share; at scale 1."""
    share = kind(1.0, ranks=4, tolerate=1)
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


GAUSSIAN = {4: scipy.stats.norm(scale=(4 / 3) ** 0.5), 3: scipy.stats.norm}
LAPLACE = {3: scipy.stats.laplace}


@pytest.mark.parametrize(("kind", "laws"), [(GaussianShare, GAUSSIAN), (LaplaceShare, LAPLACE)])
@attack("A9")
def test_the_total_has_its_law_and_tolerated_silent_ranks_leave_that_of_the_charge(kind, laws):
    draws = 100_000
    for adding, law in laws.items():
        noise = totals(kind, adding, draws)
        ends = law.ppf(np.arange(1, 64) / 64)
        counts = np.bincount(np.searchsorted(ends, noise), minlength=64)
        assert scipy.stats.chisquare(counts).pvalue > LEVEL
        # A scale three hundredths off would be seen.
        wrong = np.bincount(np.searchsorted(ends * 1.03, noise), minlength=64)
        assert scipy.stats.chisquare(wrong).pvalue < LEVEL


@attack("A9")
def test_the_laplace_total_of_all_has_the_quantiles_and_deviation_that_are_stated():
    draws = 100_000
    share = LaplaceShare(1.0, ranks=4, tolerate=1)
    upper = [share.exceeded(cell / 64) for cell in range(1, 33)]
    ends = np.array([-each for each in upper] + upper[-2::-1])
    simulated = share.simulated(draws, np.random.default_rng(0))
    for noise in (totals(LaplaceShare, 4, draws), simulated):
        counts = np.bincount(np.searchsorted(ends, noise), minlength=64)
        assert scipy.stats.chisquare(counts).pvalue > LEVEL
        assert noise.std() == pytest.approx(share.std(1), rel=0.02)
    alone = LaplaceShare(1.0, ranks=2, tolerate=1)
    whole = LaplaceMechanism(1.0)
    assert alone.exceeded(1e-9) > share.exceeded(1e-9) > whole.exceeded(1e-9)
    for ranks in (4_000, 20_000):
        many = LaplaceShare(1.0, ranks=ranks, tolerate=ranks - 2)
        for probability in (0.1, 1e-9):
            normal = many.std(1) * scipy.stats.norm.isf(probability)
            assert many.exceeded(probability) == pytest.approx(normal, rel=3e-3)


def polya(m, scale, reach=2000):
    """The law of one share, from -reach to reach, and the exponential's rate of the total."""
    L = parameter(scale)
    law = scipy.stats.nbinom(1 / m, np.exp(-L)).pmf(np.arange(reach + 1))
    return np.convolve(law, law[::-1]), -np.log(-np.expm1(-L))


@attack("A9")
def test_as_many_laplace_shares_as_count_are_the_discrete_laplace_law_and_more_tell_no_more():
    """From outside: by the negative binomials' own probabilities, at a scale of eight steps."""
    reach, scale = 2000, 8.0
    for m in (2, 3):
        share, rate = polya(m, scale, reach)
        total = share
        for _ in range(m - 1):
            total = np.convolve(total, share)
        middle = len(total) // 2
        n = np.arange(-200, 201)
        law = np.tanh(rate / 2) * np.exp(-rate * np.abs(n))
        assert np.abs(total[middle + n] / law - 1).max() < 1e-9
        for moved in (1, 3, 20):
            for shares in (total, np.convolve(total, share)):
                middle = len(shares) // 2
                losses = np.log(shares[middle + n] / shares[middle + n - moved])
                assert np.abs(losses).max() <= moved / scale * (1 + 1e-9)
            # What a receiver learns where nothing hides it.
            alone = np.log(share[reach] / share[reach + moved])
            assert alone > 1.3 * moved / scale


@pytest.mark.parametrize("multiplier", [0.01, 3.0, 900.0])
@attack("A9")
def test_whatever_a_unit_moves_is_paid_for_with_each_ranks_rounding_to_the_grid(multiplier):
    """Each of d coordinates moves just over a step's edge, and one of them by all that is left."""
    for d in (1, 5, 257):
        unit = Sensitivity(7.0, 3.0, 2.0, (1.0, 0.3, 100.0)[:d] + (1.0,) * (d - 3))
        law = LaplaceShare(multiplier, ranks=5, tolerate=2).distribution(unit, QUANTA * d)
        steps = [Fraction(s) / Fraction(h) for s, h in zip(law.scale, law.grid, strict=True)]
        with mpmath.workdps(40):
            rates = [
                -mpmath.log(-mpmath.expm1(-mpmath.mpf(parameter(float(each))))) for each in steps
            ]
            most = max(
                rate * mpmath.mpf(7.0) * u / h
                for rate, u, h in zip(rates, unit.scale, law.grid, strict=True)
            )
            paid = 1 / mpmath.mpf(multiplier)
            assert most + mpmath.fsum(rates) <= paid
            assert most >= 0.6 * paid


def test_noise_that_rounding_would_use_up_is_refused():
    share = LaplaceShare(2.0**11, ranks=3, tolerate=1)
    share.distribution(Sensitivity(1.0, 1.0, 1.0), QUANTA * 511)
    with pytest.raises(InputError, match="below 1048576 / 512"):
        share.distribution(Sensitivity(1.0, 1.0, 1.0), QUANTA * 512)


@attack("A9", "A15")
def test_the_loss_on_a_grid_is_more_than_that_of_continuous_laplace_noise():
    """Two totals a scale of four steps apart: the profile that is charged is no less."""
    event = LaplaceShare(1.0, ranks=4, tolerate=1).event()
    a = np.exp(-0.25)
    n = np.arange(-300, 301)
    law = (1 - a) / (1 + a) * a ** np.abs(n)
    there = (1 - a) / (1 + a) * a ** np.abs(n - 4)
    delta = float(np.maximum(law - np.exp(0.9) * there, 0).sum())
    charged = compose([event], delta=delta).pld
    continuous = compose([LaplaceMechanism(1.0).event()], delta=delta).pld
    assert charged >= 0.9 > continuous


@pytest.mark.parametrize("accounting", [PureFilter(), ZCDPFilter()])
@attack("A15")
def test_what_a_budget_pays_for_is_priced_as_what_ranks_draw(accounting):
    budget = Budget(1.0, 0.0 if isinstance(accounting, PureFilter) else 1e-6)
    curator = Curator(
        torch.zeros(50, 1), unit="u", adjacency="replace-one", budget=budget, accounting=accounting
    )

    def in_shares(mechanism):
        return LaplaceShare(mechanism.noise_multiplier, ranks=4, tolerate=1)

    (least,) = priced(curator.ledger, [LaplaceMechanism], 1.0, 10, in_shares=in_shares)
    (paid,), (cap,) = accounting.cost(in_shares(least).event(10)).parts, curator.ledger.cap.parts
    assert 0.99 * cap <= paid <= cap


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
