"""Exact Gaussians: the inverse cdf's assumed accuracy, the slow path against the fast one, the law
on real entropy.
"""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy.special import ndtri

from dpbo.errors import InputError
from dpbo.mechanisms import GaussianMechanism, L2LaplaceMechanism
from dpbo.mechanisms.additive import IndependentNoise
from dpbo.mechanisms.gaussian import NORMAL
from dpbo.mechanisms.laplace import LAPLACE
from dpbo.mechanisms.rounding import decide, ends_of, rounded
from dpbo.privacy import Sensitivity
from tests.unit.mechanisms.words import Words

_MASK = (1 << 63) - 1
CDF = {NORMAL: mpmath.ncdf, LAPLACE: lambda z: mpmath.exp(z) / 2}
LAWS = pytest.mark.parametrize("law", CDF, ids=["normal", "laplace"])


def test_the_laws_tested_here_are_those_of_all_mechanisms():
    laws = {
        kind.base_distribution
        for kind in IndependentNoise.__subclasses__()
        if kind.__module__.startswith("dpbo.")
    }
    assert laws == set(CDF)


@LAWS
def test_the_inverse_cdf_is_as_flat_as_assumed(law):
    """dz/dp <= 1.26/p: else the interval of one word may be wider than the slack."""
    with mpmath.workdps(50):
        for exponent in range(1, 65):
            p = mpmath.mpf(2) ** -exponent
            # at 1/2 from the left, where laws are defined
            slope = mpmath.diff(law.exact, p, direction=-1)
            assert 0 < slope * p <= 1.26, f"p = 2^-{exponent}"


@LAWS
def test_the_cdf_is_the_inverse_of_the_exact_quantile(law):
    with mpmath.workprec(320):
        near_half = mpmath.mpf(0.5 - 2.0**-40)
        for p in (mpmath.mpf(2) ** -128, mpmath.mpf(2) ** -17, mpmath.mpf(1) / 3, near_half):
            assert abs(law.cdf(law.exact(p)) - p) < mpmath.mpf(2) ** -300
        assert law.cdf(mpmath.mpf(2) ** -60) >= 0.5


@pytest.mark.parametrize("count", [6000, pytest.param(100_000, marks=pytest.mark.deep)])
def test_ndtri_is_as_accurate_as_assumed(count):
    """Relative error of ndtri below 2^-46, also at the joints of its rational pieces and near 1/2:
    (Phi(z) - p) / (phi(z) z).
    """
    rng, tenth = np.random.default_rng(0), count // 10
    joints = [
        p * (1 + rng.uniform(-1, 1, tenth // 4) * 10.0 ** rng.uniform(-15, -1, tenth // 4))
        for p in (math.exp(-2), math.exp(-32))
    ]
    middle, tail = (
        0.5 - 10.0 ** rng.uniform(-16, -0.4, tenth),
        10.0 ** rng.uniform(-19.2, -0.31, 8 * tenth),
    )
    points = np.concatenate([*joints, middle, tail, rng.uniform(0, 0.5, tenth // 2)])
    with mpmath.workdps(30):
        pairs = [
            (mpmath.mpf(float(p)), mpmath.mpf(float(z)))
            for p, z in zip(points, ndtri(points), strict=True)
            if z != 0.0
        ]
        assert max(abs((mpmath.ncdf(z) - p) / (mpmath.npdf(z) * z)) for p, z in pairs) < 2.0**-46


def test_the_laplace_quantile_is_as_accurate_as_assumed():
    rng = np.random.default_rng(1)
    points = np.concatenate(
        [10.0 ** rng.uniform(-19.2, -0.31, 2500), 0.5 - 10.0 ** rng.uniform(-16, -0.4, 2500)]
    )
    with mpmath.workdps(30):
        truths = [mpmath.log(2 * mpmath.mpf(float(p))) for p in points]
        errors = [
            abs(float((mpmath.mpf(float(z)) - t) / t))
            for z, t in zip(LAPLACE.quantile(points), truths, strict=True)
            if t
        ]
    assert max(errors) < 2.0**-46


@LAWS
@pytest.mark.attack("A14")
def test_the_ends_of_a_word_enclose_its_numbers_and_lie_on_one_side_of_zero(law):
    """From the least words, where one more is a lot, to those next to zero, where a float is
    coarser than a word.
    """
    words = [1, 2, 5, 1000, 1 << 20, (1 << 30) + 1, (1 << 53) - 1, (1 << 53) + 1, _MASK]
    words += [(1 << 63) - (1 << j) + more for j in range(1, 62) for more in (-1, 0, 1)]
    near, far = ends_of(law, np.array(words, dtype=np.uint64))
    with mpmath.workdps(60):
        for word, inner, outer in zip(words, near.tolist(), far.tolist(), strict=True):
            at = [law.exact(mpmath.mpf(end) / 2**64) for end in (word, word + 1)]
            assert outer <= at[0] < at[1] <= inner <= 0


@LAWS
def test_the_extreme_word_is_decided_by_more_bits(law):
    """So many zero bits leave the tail open: the value is that of 5.5 words, once the next words
    are 5 and 2^63.
    """
    for zeros in (1, 3):
        words = Words(*[0] * zeros, 5, 1 << 63, 0)
        value = rounded(law, np.zeros(1), np.full(1, 2.0**20), words)
        with mpmath.workdps(100):
            expected = -law.exact(mpmath.mpf(11) / mpmath.mpf(2) ** (64 * (zeros + 1) + 1)) * 2**20
            assert value[0] == int(mpmath.floor(expected + mpmath.mpf(1) / 2))
        assert words.asked == zeros + 2


@LAWS
@pytest.mark.attack("A14")
def test_two_words_that_are_an_edges_own_bits_leave_it_to_the_third(law):
    scale, fraction = 2.0**20 * 1.37, 0.8125
    for edge in (3, 700_001, 2**22):
        with mpmath.workdps(90):
            z = (edge - mpmath.mpf(fraction) - mpmath.mpf(1) / 2) / scale
            bits = int(mpmath.floor(CDF[law](-z) * mpmath.mpf(2) ** 192))
        first, second, third = bits >> 128, bits >> 64 & 2**64 - 1, bits & 2**64 - 1
        for last, value in (
            (third - 2, edge),
            (third + 2, edge - 1),
            (0, edge),
            (2**64 - 1, edge - 1),
        ):
            words = Words(first, second, last)
            assert rounded(law, np.array([fraction]), np.array([scale]), words).tolist() == [value]
            assert words.asked == 3


@LAWS
@pytest.mark.attack("A14")
def test_ends_that_the_digits_carried_cannot_tell_from_an_edge_wait_for_more_bits(law):
    """A scale so small that two words leave less open than mpmath's margin: the edge lies between
    their ends, and either may be over it.
    """
    fraction = math.nextafter(0.5, 0.0)
    for scale in (2.0**-54 / 1.37, 2.0**-54 / 0.3):
        with mpmath.workdps(90):
            bits = int(
                mpmath.floor(
                    CDF[law](-(mpmath.mpf(1) / 2 - mpmath.mpf(fraction)) / scale)
                    * mpmath.mpf(2) ** 192
                )
            )
        first, second, third = bits >> 128, bits >> 64 & 2**64 - 1, bits & 2**64 - 1
        for last, value in ((third - 2**30, 1), (third + 2**30, 0), (0, 1), (2**64 - 1, 0)):
            words = Words(second, last)
            assert decide(law, first, False, fraction, scale, words) == value
            assert words.asked == 2


def test_a_scale_exceeds_its_product_by_more_than_a_sensitivity_may_be_rounded():
    random = np.random.default_rng(0)
    for multiplier, norm_, unit in (10.0 ** random.uniform(-1, 1, (300, 3))).tolist():
        law = GaussianMechanism(multiplier).distribution(
            Sensitivity(norm_, norm_, norm_, (unit,)), [2.0**-40]
        )
        rounded_up = 1 + Fraction(1, 2**48) - Fraction(1, 2**50)
        assert (
            Fraction(law.scale[0])
            >= Fraction(multiplier) * Fraction(norm_) * Fraction(unit) * rounded_up
        )


@pytest.mark.parametrize("multiplier", [0.011, 0.9, 1.0, 7.6, 1e5])
def test_the_grid_is_a_power_of_two(multiplier):
    law = GaussianMechanism(multiplier).distribution(Sensitivity(1.0, 1.0, 1.0), [2.0**-40])
    assert math.frexp(law.grid[0])[0] == 0.5
    assert 2.0**20 <= law.std[0] / law.grid[0] < 2.0**21
    assert law.std[0] >= multiplier


def too_short(size):
    """An entropy of too few bytes."""
    return bytes(size - 8)


@LAWS
@pytest.mark.attack("A12")
def test_an_entropy_of_too_few_bytes_is_refused(law):
    for draw in (lambda *given: rounded(law, *given), L2LaplaceMechanism(1.0).noise):
        with pytest.raises(InputError, match="entropy"):
            draw(np.zeros(2), np.full(2, 2.0**20), too_short)


def test_noise_that_one_lattice_cannot_hold_is_refused_before_anything_is_drawn():
    mechanism = GaussianMechanism(1.0)
    (grid,) = mechanism.distribution(Sensitivity(1.0, 1.0, 1.0), [2.0**-40]).grid
    pair = Sensitivity(1.0, 1.0, 1.0, (1.0, 1.0))
    for shift in (1, 53):
        quanta = [grid / 2, math.ldexp(grid, -shift)]
        assert mechanism.distribution(pair, quanta).grid == (grid, grid)
    for shift in (0, 54):
        with pytest.raises(InputError, match="lattice"):
            mechanism.distribution(pair, [grid / 2, math.ldexp(grid, -shift)])
