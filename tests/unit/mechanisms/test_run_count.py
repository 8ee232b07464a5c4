"""The number of runs is drawn by its law, exactly, and no run too many."""

from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import stats

from dpbo.errors import InputError
from dpbo.mechanisms.run_count import _decided, draw_run_count
from dpbo.run_counts import (
    FixedRuns,
    PoissonRuns,
    RunCountDistribution,
    TruncatedNegativeBinomial,
    run_count_from_json,
)
from dpbo.testing import SeededEntropy
from tests.attacks.marks import attack
from tests.unit.mechanisms.words import Words, words_of

NEGATIVE_BINOMIALS = [
    TruncatedNegativeBinomial.of_mean(mean, shape=shape)
    for mean, shape in ((6.0, 1.0), (6.0, 0.0), (4.0, 0.5), (9.0, 20.0), (2.0, -0.5))
]
OTHERS = [PoissonRuns(5.0), PoissonRuns(0.3), FixedRuns(7)]
LAWS: list[RunCountDistribution] = [*NEGATIVE_BINOMIALS, *OTHERS]
DRAWS = 1000
BAD: Any = "3"


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_generating_function_slope_mean_and_quantiles_are_those_of_the_probabilities(law):
    start, masses = law.probabilities(4000)
    k, x = start + np.arange(4000.0), np.array([0.0, 0.3, 0.9, 0.999])
    assert masses.sum() == pytest.approx(1.0, rel=1e-9)
    assert (masses @ k) == pytest.approx(law.mean, rel=1e-7)
    assert law.generating(x) == pytest.approx(
        (masses[:, None] * x ** k[:, None]).sum(0), rel=1e-9, abs=1e-12
    )
    slope = (masses[:, None] * k[:, None] * np.maximum(x, 1e-300) ** (k[:, None] - 1)).sum(0)
    assert law.slope(1 - x) == pytest.approx(slope, rel=1e-6, abs=1e-9)
    assert float(law.slope(np.zeros(1))[0]) == pytest.approx(law.mean)
    assert law.none == pytest.approx(masses[0] if start == 0 else 0.0, rel=1e-12, abs=1e-300)
    assert run_count_from_json(law.to_json()) == law
    reached = np.cumsum(masses)
    for p in (0.05, 0.5, 0.95, 0.999):  # the quantile is the least number that reaches p
        k = law.quantile(p)
        assert reached[k - start] >= p
        assert k == start or reached[k - start - 1] < p


def test_the_probabilities_are_those_of_scipy():
    k = np.arange(1, 60)
    assert LAWS[0].probabilities(59)[1] == pytest.approx(
        stats.geom(NEGATIVE_BINOMIALS[0].gamma).pmf(k), rel=1e-9
    )
    assert LAWS[1].probabilities(59)[1] == pytest.approx(
        stats.logser(1 - NEGATIVE_BINOMIALS[1].gamma).pmf(k), rel=1e-9
    )
    whole = stats.nbinom(20.0, NEGATIVE_BINOMIALS[3].gamma)
    assert LAWS[3].probabilities(59)[1] == pytest.approx(whole.pmf(k) / whole.sf(0), rel=1e-9)
    assert LAWS[5].probabilities(60)[1] == pytest.approx(
        stats.poisson(5.0).pmf(np.arange(60)), rel=1e-9
    )


def statistic(law, draws, shift=0):
    """p-value of a chi-square test on cells of at least 30 expected draws."""
    start, masses = law.probabilities(4000)
    cdf = np.cumsum(masses)
    edges = [0.0]
    for value in cdf:
        if value - edges[-1] >= 30 / len(draws) and 1 - value >= 30 / len(draws):
            edges.append(float(value))
    edges.append(1.0)
    bins = (
        np.searchsorted(edges, cdf[np.clip(np.array(draws) + shift - start, 0, 3999)] - 1e-12) - 1
    )
    expected = np.diff(edges) * len(draws)
    observed = np.bincount(np.clip(bins, 0, len(expected) - 1), minlength=len(expected))
    return (
        1.0
        if len(expected) == 1
        else float(stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)
    )


@pytest.mark.parametrize("law", [NEGATIVE_BINOMIALS[2], OTHERS[0]], ids=repr)
def test_draws_follow_the_law_and_one_off_is_caught(law):
    entropy = SeededEntropy(11)
    draws = [draw_run_count(law, entropy) for _ in range(DRAWS)]
    assert statistic(law, draws) > 1e-6
    assert statistic(law, draws, shift=1) < 1e-12, "a sampler off by one must be seen"


def test_the_outermost_words_end():
    assert draw_run_count(PoissonRuns(3.0), Words((1 << 64) - 1, (1 << 64) - 1, 0)) > 20
    assert draw_run_count(PoissonRuns(3.0), Words(0)) == 0
    assert draw_run_count(FixedRuns(7), Words(2**64 - 1)) == 7, "no further word is asked for"


@pytest.mark.parametrize(
    ("law", "least", "distribution"),
    [
        (TruncatedNegativeBinomial(1.0, 0.3), 2, lambda k: 1 - (1 - mpmath.mpf(0.3)) ** k),
        (PoissonRuns(5.0), 0, lambda k: mpmath.gammainc(k + 1, 5, regularized=True)),
    ],
    ids=["geometric", "poisson"],
)
@attack("A14")
def test_at_a_border_the_next_word_decides(law, least, distribution):
    """Of the first 64 bits the share of a cell ends within; the border's own further bits say where
    the next word may lie.
    """
    for k in range(least, least + 9):
        with mpmath.workdps(60):
            border = distribution(k) * mpmath.mpf(2) ** 64
            word = int(mpmath.floor(border))
            rest = int(mpmath.floor((border - word) * mpmath.mpf(2) ** 64))
        for second, runs in ((rest - 2, k), (rest + 2, k + 1)):
            words = Words(word, second)
            assert (draw_run_count(law, words), words.asked) == (runs, 2)
        for alone, runs in ((word - 2, k), (word + 2, k + 1)):
            assert _decided(law, alone, 64) is None or draw_run_count(law, Words(alone)) == runs


@attack("A14")
def test_two_words_that_are_a_borders_own_bits_leave_it_to_the_third():
    law = TruncatedNegativeBinomial(1.0, 0.3)
    for runs in (5, 9):
        with mpmath.workdps(90):
            first, second, third = words_of(1 - (1 - mpmath.mpf(0.3)) ** runs)
        for last, number in (
            (third - 2, runs),
            (third + 2, runs + 1),
            (0, runs),
            (2**64 - 1, runs + 1),
        ):
            words = Words(first, second, last)
            assert (draw_run_count(law, words), words.asked) == (number, 3)


@attack("A14")
def test_a_word_that_ends_at_a_border_itself_is_left_to_the_next():
    """With chances of a half every border is a word: computed in floats of any length, it may lie
    on either side of the true one.
    """
    law = TruncatedNegativeBinomial(1.0, 0.5)
    for runs in range(1, 12):
        border = 2**64 - 2 ** (64 - runs)
        for word, number in ((border - 1, runs), (border, runs + 1)):
            for second in (1, 2**63, 2**64 - 2):
                words = Words(word, second)
                assert (draw_run_count(law, words), words.asked) == (number, 2)


def test_shapes_and_rates_that_floats_lose_and_means_of_no_law_are_refused():
    # 4.79: floats make it 4.33, and would promise less delta than there is
    with mpmath.workdps(700):
        shape, gamma = mpmath.mpf(5e-324), mpmath.mpf(0.0743)
        assert shape * (1 - gamma) / gamma / (1 - gamma**shape) > 4.7
    with pytest.raises(InputError, match="shape"):
        TruncatedNegativeBinomial(5e-324, 0.0743)
    assert TruncatedNegativeBinomial(1e-100, 0.0743).mean == pytest.approx(
        TruncatedNegativeBinomial(0.0, 0.0743).mean, rel=1e-12
    )
    with pytest.raises(InputError, match="mean"):
        TruncatedNegativeBinomial.of_mean(1000.0, shape=-0.9)
