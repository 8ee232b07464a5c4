"""What each question declares, number by number: the contracts see that no neighbour passes it, this sees that none of it is given away."""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch

from dpbo import Adjacency
from dpbo.queries import (
    CandidateScores,
    CellMeans,
    ClippedGradient,
    ClippedMean,
    ClippedSum,
    ClusterSums,
    MixtureMoments,
    PoissonSampled,
    QuantileUtilities,
    RowOutcome,
    RowTable,
    SecondMoment,
)
from dpbo.queries.ball import Ball
from dpbo.queries.features import COVARIANCES, distance_squared, isometry, width_of

REPLACE, ADD = Adjacency.REPLACE_ONE, Adjacency.ADD_OR_REMOVE_ONE
DOUBLE = torch.float64


def score(_subject, records):
    return records


def declared(question, adjacency):
    s = question.sensitivity(adjacency)
    return pytest.approx((s.l1, s.l2, s.linf, *s.scale), rel=1e-12)


@pytest.mark.parametrize(("adjacency", "part"), [(REPLACE, 1.0), (Adjacency.BOUNDED_ROW_CHANGE, 1.0), (ADD, 0.5)])
@pytest.mark.attack("A5")
def test_a_mean_of_two_metrics_counts_from_the_middle_of_each_range(adjacency, part):
    """Widths 1 and 4 over weights 1 and 1/4: units 1 and 16, so in units of the larger one weight times 16 each."""
    question = ClippedMean(score, score_range=[(0.0, 1.0), (-1.0, 3.0)], weights=(1.0, 0.25), divisor=10.0)
    assert (part * 20.0, part * math.sqrt(272.0), part * 16.0, 1 / 16, 1.0) == declared(question, adjacency)
    assert question.affine(None) == ((0.5, 1.0), 0.1)


@pytest.mark.attack("A5")
def test_a_sum_counts_from_zero_and_a_unit_of_several_records_more():
    question = ClippedSum(score, score_range=(-1.0, 3.0))
    assert (4.0, 4.0, 4.0, 1.0) == declared(question, REPLACE)
    assert (3.0, 3.0, 3.0, 1.0) == declared(question, ADD)
    three = ClippedSum(score, score_range=(-1.0, 3.0), max_records_per_unit=3)
    assert (12.0, 12.0, 12.0, 1.0) == declared(three, REPLACE), "from three at -1 to three at 3"
    assert (9.0, 9.0, 9.0, 1.0) == declared(three, ADD)
    for one_sided in ((1.0, 3.0), (-3.0, -1.0)):
        positive = ClippedSum(score, score_range=one_sided, max_records_per_unit=3)
        assert (8.0, 8.0, 8.0, 1.0) == declared(positive, REPLACE), "from one record at 1 to three at 3"
        assert (9.0, 9.0, 9.0, 1.0) == declared(positive, ADD)
    assert (5.0, 5.0, 5.0, 1.0) == declared(ClippedSum(score, score_range=(-5.0, 1.0)), ADD)
    assert question.affine(7) == ((0.0,), 1.0)


@pytest.mark.attack("A5")
def test_what_floats_cannot_hold_is_rounded_up():
    for width in (0.1, 1.1, 2.7):
        for weights in ((1.0, 3.0), (1.0, 1.0), (0.3, 0.7, 0.9)):
            ranges = [(0.0, width)] * len(weights)
            found = ClippedSum(score, score_range=ranges, weights=weights).sensitivity(REPLACE)
            largest = Fraction(width) / min(map(Fraction, weights))
            for value, exact in (
                (Fraction(found.l1), largest * sum(map(Fraction, weights))),
                (Fraction(found.l2) ** 2, largest**2 * sum(Fraction(weight) ** 2 for weight in weights)),
                (Fraction(found.linf), largest * max(map(Fraction, weights))),
            ):
                assert exact <= value <= exact * (1 + Fraction(1, 2**50))
    assert ClippedSum(score, score_range=[(0.0, 3.0), (0.0, 4.0)], weights=(3.0, 4.0)).sensitivity(REPLACE).l2 == 5.0


@pytest.mark.parametrize("ends", [(-0.3, 0.0011), (-5.3, 0.01), (-10.3, 0.6), (0.1, 0.9), (-0.3, 10.7)])
@pytest.mark.attack("A5")
def test_the_way_from_the_middle_to_an_end_is_rounded_up_where_no_float_is_it(ends):
    for most in (1, 3):
        question = ClippedMean(score, score_range=ends, divisor=10.0, max_records_per_unit=most)
        ((origin,), found) = question.origins(), question.sensitivity(ADD)
        exact = most * max(abs(Fraction(end) - Fraction(origin)) for end in ends)
        for value in (found.l1, found.l2, found.linf):
            assert exact <= Fraction(value) <= exact * (1 + Fraction(1, 2**50))


@pytest.mark.attack("A5")
def test_a_unit_is_in_one_cell():
    question = CellMeans(score, cells=3)
    for adjacency in (REPLACE, Adjacency.BOUNDED_ROW_CHANGE):
        assert (2.0, math.sqrt(2.0), 1.0, 1.0, 1.0, 1.0) == declared(question, adjacency)
    assert (1.0, 1.0, 1.0, 1.0, 1.0, 1.0) == declared(question, ADD)
    assert question.ranges == ((0.0, 1.0),) * 3


@pytest.mark.attack("A5")
def test_a_unit_moves_every_candidate():
    question = CandidateScores(score, [1, 2, 3, 4], score_range=(0.0, 3.0))
    assert (12.0, 6.0, 3.0, 1.0, 1.0, 1.0, 1.0) == declared(question, REPLACE)
    assert (6.0, 3.0, 1.5, 1.0, 1.0, 1.0, 1.0) == declared(question, ADD)
    assert question.affine(7) == ((0.0,) * 4, 1.0)
    assert question.sensitivity(REPLACE).l2 >= 6.0


@pytest.mark.attack("A5")
def test_a_gradient_has_one_length():
    X = torch.zeros(2, 3, dtype=DOUBLE)
    question = ClippedGradient(score, X, weights=torch.zeros(4, 2, dtype=DOUBLE), clip=1.5, divisor=8.0)
    assert (6.0, 3.0, 3.0, 1.0, 1.0, 1.0, 1.0) == declared(question, REPLACE)
    assert (3.0, 1.5, 1.5, 1.0, 1.0, 1.0, 1.0) == declared(question, ADD)
    assert question.sensitivity(REPLACE).l1 >= 6.0
    assert question.affine(5) == ((0.0,) * 4, 1 / 8)


@pytest.mark.parametrize(("q", "m"), [(1.0, 1.0), (2.0, 1.0), (1.0, 3.0), (0.5, 3.0), (3.0, 0.5)])
@pytest.mark.parametrize("K", [1, 2, 3])
@pytest.mark.attack("A5")
def test_a_record_is_in_one_cluster(q, m, K):
    """Two records in different clusters, or opposite ones in the same: whichever is further apart."""
    for norm, longest, around in (("l2", 1.0, math.sqrt(2.0)), ("linf", 2.0, 2.0)):
        question = ClusterSums(2, ball=Ball(1.0, norm=norm), centers=torch.eye(4, dtype=DOUBLE)[:K, :2], weights=(q, m))
        q, m = q / min(q, m), m / min(q, m)  # in units of the block of less weight
        scale = (1.0 / q, 1.0 / m, 1.0 / m) * K
        apart = max((2.0 if K > 1 else 1.0) * (q**2 + longest * m**2), 4.0 * longest * m**2)
        assert (2.0 * (q + m * around), math.sqrt(apart), max(q, 2.0 * m), *scale) == declared(question, REPLACE)
        assert (q + m * around, math.sqrt(q**2 + longest * m**2), max(q, m), *scale) == declared(question, ADD)


@pytest.mark.parametrize("m", [0.05, 0.3, 0.6, 0.65, 1.0, 3.0])
@pytest.mark.attack("A5")
def test_moments_move_as_far_as_two_records_can(m):
    """Against a search over lengths and angles, where the docstring solves for them."""
    r, t = np.linspace(0.0, 1.0, 201), np.linspace(-1.0, 1.0, 401)
    a, b, turned = np.meshgrid(r, r[::4], t, indexing="ij")
    inner = a * b * turned
    linear = m**2 * (a**2 + b**2 - 2 * inner)
    for covariance, quadratic in (("full", a**4 + b**4 - 2 * inner**2), ("spherical", (a**2 - b**2) ** 2)):
        reached = float((linear + quadratic).max())
        for c in (0.5, 1.0, 4.0):
            found = distance_squared((7.0, c * m, c), covariance)
            assert c**2 * reached <= found * (1 + 1e-12)
            assert found <= c**2 * reached * (1 + 1e-4)
    assert distance_squared((7.0, 2 * m, 2.0), "diag") == distance_squared((7.0, 2 * m, 2.0), "full")


@pytest.mark.attack("A5")
def test_mixture_moments_are_one_vector_of_all_their_coordinates():
    question = MixtureMoments(2, ball=Ball(1.0), natural=torch.ones(3, 6, dtype=DOUBLE), weights=(2.0, 1.0, 4.0))
    scale = (0.5, 1.0, 1.0, 0.25, 0.25 / math.sqrt(2.0), 0.25) * 3
    l2 = math.sqrt(max(2.0 * (4.0 + 1.0 + 16.0), distance_squared((2.0, 1.0, 4.0), "full")))
    assert (l2 * math.sqrt(18.0), l2, l2, *scale) == declared(question, REPLACE)
    assert question.affine(5) == ((0.0,) * 18, 1.0)


WEIGHTS = [(1.0, 1.0, 1.0), (0.3, 0.7, 0.9), (1.1, 2.7, 0.1), (7.7, 0.013, 3.3), (0.9, 0.3, 0.49), (1e3, 1e-3, 0.37)]


def just_above(value, exact):
    return exact <= mpmath.mpf(value) <= exact * (1 + mpmath.mpf(10) ** -14)


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
@pytest.mark.attack("A5")
def test_clusters_are_rounded_up_in_the_very_units_that_are_declared(weights):
    """With fifty digits, from the declared units themselves."""
    for d, K, norm, adjacency in itertools.product((1, 2, 3, 7), (1, 2), ("l2", "linf"), (REPLACE, ADD)):
        question = ClusterSums(d, ball=Ball(1.0, norm=norm), centers=torch.ones(K, d, dtype=DOUBLE), weights=weights[:2])
        found, times = question.sensitivity(adjacency), 2 if adjacency is REPLACE else 1
        with mpmath.workdps(50):
            q, m = (1 / mpmath.mpf(unit) for unit in found.scale[:2])
            longest = mpmath.sqrt(d) if norm == "linf" else mpmath.mpf(1)
            alone = q**2 + (longest * m) ** 2
            apart = max(min(K, 2) * alone, (2 * longest * m) ** 2) if adjacency is REPLACE else alone
            assert just_above(found.l2, mpmath.sqrt(apart))
            assert just_above(found.l1, times * (q + m * (d if norm == "linf" else mpmath.sqrt(d))))
            assert just_above(found.linf, max(q, times * m))


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
@pytest.mark.attack("A5")
def test_moments_are_rounded_up_in_the_very_units_that_are_declared(weights):
    """The same; a block counts by the largest of its coordinates' weights, as a root of two is no float."""
    for covariance, d, K, adjacency in itertools.product(COVARIANCES, (1, 2, 3, 5), (1, 3), (REPLACE, ADD)):
        natural = torch.zeros(K, width_of(covariance, d), dtype=DOUBLE)
        found = MixtureMoments(d, ball=Ball(1.0), natural=natural, covariance=covariance, weights=weights).sensitivity(adjacency)
        with mpmath.workdps(50):
            root = [mpmath.sqrt(2) if counted > 1 else mpmath.mpf(1) for counted in isometry(covariance, d).tolist()]
            own = [1 / (mpmath.mpf(unit) * counted) for unit, counted in zip(found.scale, root, strict=False)]
            q, m, c = own[0], max(own[1 : 1 + d]), max(own[1 + d :])
            alone = q**2 + m**2 + c**2
            apart = max(min(K, 2) * alone, furthest(m**2, c**2, covariance)) if adjacency is REPLACE else alone
            assert just_above(found.l2, mpmath.sqrt(apart))
            assert just_above(found.l1, mpmath.sqrt(apart * natural.numel()))
            assert found.linf == found.l2


def furthest(m, c, covariance):
    """`distance_squared` of the squared weights, with all digits."""
    if covariance == "spherical":
        inner = max(1 - 2 * m / c, 0)
        return max((2 - e) ** 2 * (m + c * e**2) for e in (0, (1 + mpmath.sqrt(inner)) / 2))
    t = min(1, m / (2 * c))
    return 2 * m * (1 + t) + 2 * c * (1 - t**2)


@pytest.mark.attack("A5")
def test_second_moments_are_rounded_up_in_every_norm():
    for d, (adjacency, squared) in itertools.product(range(1, 30), ((REPLACE, 2), (ADD, 1))):
        found = SecondMoment(d, ball=Ball(1.0)).sensitivity(adjacency)
        with mpmath.workdps(50):
            own = [mpmath.sqrt(1 if i == j else mpmath.mpf(0.5)) for i, j in itertools.combinations_with_replacement(range(d), 2)]
            assert all(map(just_above, found.scale, own)), "below these a record's products would count for more"
            assert just_above(found.l2, mpmath.sqrt(squared))
            assert just_above(found.l1, mpmath.sqrt(squared * mpmath.mpf(len(found.scale))))
            assert found.linf == found.l2


@pytest.mark.attack("A5")
def test_a_row_moves_by_twice_the_radius_and_by_what_the_projection_makes_of_it():
    projection = torch.tensor([[3.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=DOUBLE)
    for question, k, l2 in ((RowTable((1.0, 2.0), 0.5), 2, 1.0), (RowTable((1.0, 2.0), 0.5, projection=projection), 3, 3.0)):
        found = question.sensitivity(REPLACE)
        assert l2 <= found.l2 == found.linf <= l2 * (1 + 1e-9)
        assert found.l1 == pytest.approx(found.l2 * math.sqrt(k), rel=1e-12)
        assert (found.scale, found.block) == ((1.0,) * k, k)


@pytest.mark.attack("A5")
def test_a_unit_moves_every_utility_of_a_quantile_by_one_at_most():
    question = QuantileUtilities(score, candidates=[0.0, 1.0, 2.0, 4.0], quantile=0.75)
    assert (4.0, 2.0, 1.0, *(1.0,) * 4) == declared(question, REPLACE)
    assert (3.0, 1.5, 0.75, *(1.0,) * 4) == declared(question, ADD)
    assert question.sensitivity(REPLACE).l2 >= 2.0
    assert question.affine(7) == ((0.0,) * 4, 1.0)


@pytest.mark.attack("A5")
def test_a_sampled_unit_counts_once_or_twice_and_the_sample_varies():
    question = PoissonSampled(ClippedMean(score, score_range=(0.0, 3.0), divisor=40.0), rate=0.25)
    assert (3.0, 3.0, 3.0, 1.0) == declared(question, REPLACE)
    assert (1.5, 1.5, 1.5, 1.0) == declared(question, ADD)
    assert question.variance_within(None) == pytest.approx([0.75 / 0.25 * 40 * (1.5 / 40) ** 2])
    assert question.variance_within(80) == pytest.approx([0.75 / 0.25 * 80 * (1.5 / 40) ** 2])
    assert question.affine(None) == ((1.5,), 0.1)
    two = PoissonSampled(ClippedMean(score, score_range=[(1.0, 3.0), (-5.0, 3.0)], divisor=40.0), rate=0.5)
    assert two.variance_within(None) == pytest.approx([40 * (1.0 / 40) ** 2, 40 * (4.0 / 40) ** 2])


@pytest.mark.attack("A5")
def test_a_second_moment_is_one_symmetric_matrix():
    """Off the diagonal each number stands twice in it, so it counts sqrt 2 times."""
    question, off = SecondMoment(3, ball=Ball(2.0)), math.sqrt(0.5)
    for adjacency, squared in ((REPLACE, 2.0), (ADD, 1.0)):
        l2 = math.sqrt(squared)
        assert (l2 * math.sqrt(6.0), l2, l2, 1.0, off, off, 1.0, off, 1.0) == declared(question, adjacency)
    found = question.sensitivity(REPLACE)
    assert Fraction(found.scale[1]) * Fraction(found.l2) >= 1, "(1, 1) and (1, -1) over the root of 2 differ there alone, and by 1"


def test_an_outcome_is_a_mean_over_one_record():
    question = RowOutcome(len, row=2, value_range=(-1.0, 3.0))
    assert (4.0, 4.0, 4.0, 1.0) == declared(question, REPLACE)
    assert question.affine(7) == ((1.0,), 1.0)
