"""Shares of a discrete Laplace law: the law of each, the assumed accuracy of floats, and draws that
64 bits leave undecided.
"""

import mpmath
import numpy as np
import pytest
import scipy.stats

from dpbo.mechanisms.polya import differences, logarithmic, parameter, poisson, quotient
from dpbo.testing import SeededEntropy
from tests.attacks.marks import attack
from tests.unit.mechanisms.words import Words

LEVEL = 1e-6
L = parameter(2.0**20 * 1.37)
HALF = 2**63 - 1


def number(u, v):
    """The exact quotient for a uniform u and v."""
    return mpmath.log(v) / mpmath.log(-mpmath.expm1(-L * u))


@pytest.mark.parametrize("scale", [1.0, 4.0, 2.0**20, 2.0**21])
def test_the_parameter_is_rounded_up_so_that_the_price_holds(scale):
    with mpmath.workdps(60):
        for step in range(300):
            size = scale * (1 + step / 300)
            a = -mpmath.expm1(-mpmath.mpf(parameter(size)))
            assert (1 - 1e-10) / size <= -mpmath.log(a) <= 1 / mpmath.mpf(size)


@pytest.mark.parametrize("m", [1, 3, 9])
def test_a_share_has_its_law(m):
    """At a scale of four steps, where every number is a cell."""
    drawn = differences(parameter(4.0), m, 100_000, SeededEntropy(m))
    law = scipy.stats.nbinom(1 / m, -np.expm1(-1 / 4.0)).pmf(np.arange(400))
    cells = np.convolve(law, law[::-1])
    likely = np.flatnonzero(cells * 100_000 >= 30)
    counts = np.array([np.count_nonzero(drawn == cell - 399) for cell in likely])
    expected = np.append(cells[likely], 1 - cells[likely].sum()) * 100_000
    assert len(likely) > 15
    found = np.append(counts, 100_000 - counts.sum())
    assert scipy.stats.chisquare(found, expected).pvalue > LEVEL


@pytest.mark.parametrize("count", [3000, pytest.param(100_000, marks=pytest.mark.deep)])
def test_the_quotient_is_as_accurate_as_assumed(count):
    draw = np.random.default_rng(0)
    small = 2.0 ** -draw.uniform(0, 63, count)
    u = np.where(draw.random(count) < 0.5, small, 1 - small)
    v = np.where(draw.random(count) < 0.5, draw.permutation(small), 1 - draw.permutation(small))
    inside = (u > 0) & (u < 1) & (v > 0) & (v < 1)
    found = quotient(L, u, v)
    with mpmath.workdps(60):
        for x, y, near in zip(u[inside], v[inside], found[inside], strict=True):
            true = number(mpmath.mpf(float(x)), mpmath.mpf(float(y)))
            assert abs(mpmath.mpf(float(near)) / true - 1) < 2.0**-46


@attack("A14")
def test_what_64_bits_decide_is_the_number_of_any_further_bits():
    words = np.frombuffer(SeededEntropy(1)(16 * 2000), dtype="<u8").reshape(2, -1) & np.uint64(HALF)
    numbers = logarithmic(L, words, SeededEntropy(2))
    with mpmath.workdps(60):
        for (u, v), drawn in zip(words.T.tolist(), numbers.tolist(), strict=True):
            true = number((u + mpmath.mpf(1) / 2) / 2**63, (v + mpmath.mpf(1) / 2) / 2**63)
            assert drawn == 1 + int(mpmath.floor(true))


@attack("A14")
def test_a_number_next_to_an_edge_waits_for_the_bits_that_decide_it():
    for u, edge in ((2**62 + 12_345, 1), (2**62 + 12_345, 2), (2**63 - 2**40, 400_000)):
        later = 3**39
        with mpmath.workdps(120):
            u_exact = mpmath.mpf(u * 2**128 + later * 2**64 + later) / mpmath.mpf(2) ** 191
            q = -mpmath.expm1(-L * u_exact)
            bits = int(mpmath.floor(q**edge * mpmath.mpf(2) ** 191))
        first, second, third = bits >> 128, bits >> 64 & 2**64 - 1, bits & 2**64 - 1
        words = np.array([[u], [first]], dtype=np.uint64)
        for last, value in ((third - 2**40, edge + 1), (third + 2**40, edge)):
            asked = Words(later, second, later, last)
            assert logarithmic(L, words, asked).tolist() == [value]
            assert asked.asked == 4


@attack("A14")
def test_words_of_zero_bits_are_decided_by_more():
    """They leave open how large the number is."""
    words = np.zeros((2, 1), dtype=np.uint64)
    asked = Words(0, 0, 1 << 63, 5)
    with mpmath.workdps(60):
        true = number(mpmath.mpf(2) ** -128, 5 * mpmath.mpf(2) ** -191)
    assert logarithmic(L, words, asked).tolist() == [1 + int(mpmath.floor(true))]


@attack("A14")
def test_a_count_next_to_a_tail_waits_for_the_bits_that_decide_it():
    for m in (1, 4):
        for n in (0, 3, 20):
            with mpmath.workdps(120):
                tail = mpmath.gammainc(n + 1, 0, 2 * mpmath.mpf(L) / m, regularized=True)
                bits = int(mpmath.floor(tail * mpmath.mpf(2) ** 192))
            first, second, third = bits >> 128, bits >> 64 & 2**64 - 1, bits & 2**64 - 1
            for last, value in ((third - 9, n + 1), (third + 9, n)):
                asked = Words(first, second, last)
                assert poisson(L, m, 1, asked).tolist() == [value]
                assert asked.asked == 3
            assert poisson(L, m, 2, Words((first - 9, first + 9))).tolist() == [n + 1, n]
