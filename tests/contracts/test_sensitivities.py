"""What each question declares, number by number: the contracts see that no neighbour passes it,
this sees that none of it is given away.
"""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch

from dpbo import Adjacency, RowChange
from dpbo.gibo import ClippedGradient
from dpbo.papers.em.mixture_moments import MixtureMoments
from dpbo.papers.em.moment_features import COVARIANCES, distance_squared, isometry, width_of
from dpbo.papers.em.point_sums import ClusterSums, SecondMoment, VectorSum
from dpbo.papers.po_gp_ucb import RowTable
from dpbo.papers.po_gp_ucb.rows import RowOutcome
from dpbo.queries import (
    CandidateScores,
    CellMeans,
    ClippedMean,
    ClippedSum,
    QuantileUtilities,
)
from dpbo.queries.ball import Ball
from tests.attacks.marks import attack
from tests.contracts.bases import exact_sum
from tests.setups import DOUBLE

REPLACE = Adjacency.REPLACE_ONE
ADD = Adjacency.ADD_OR_REMOVE_ONE
BOUNDED = Adjacency.BOUNDED_ROW_CHANGE


def score(_subject, records):
    return records


def declared(question, adjacency):
    s = question.sensitivity(adjacency)
    return pytest.approx((s.l1, s.l2, s.linf, *s.scale), rel=1e-12)


@pytest.mark.parametrize(
    ("adjacency", "part"), [(REPLACE, 1.0), (Adjacency.BOUNDED_ROW_CHANGE, 1.0), (ADD, 0.5)]
)
@attack("A5")
def test_a_mean_of_two_metrics_counts_from_the_middle_of_each_range(adjacency, part):
    """Widths 1 and 4 over weights 1 and 1/4: units 1 and 16, so in units of the larger one weight
    times 16 each.
    """
    question = ClippedMean(
        score, score_range=[(0.0, 1.0), (-1.0, 3.0)], weights=(1.0, 0.25), divisor=10.0
    )
    assert (part * 20.0, part * math.sqrt(272.0), part * 16.0, 1 / 16, 1.0) == declared(
        question, adjacency
    )
    assert question.affine(None) == ((0.5, 1.0), 0.1)


@attack("A5")
def test_a_sum_counts_from_zero_and_a_unit_of_several_records_more():
    question = ClippedSum(score, score_range=(-1.0, 3.0))
    assert (4.0, 4.0, 4.0, 1.0) == declared(question, REPLACE)
    assert (3.0, 3.0, 3.0, 1.0) == declared(question, ADD)
    three = ClippedSum(score, score_range=(-1.0, 3.0), max_records_per_unit=3)
    assert (12.0, 12.0, 12.0, 1.0) == declared(three, REPLACE), "from three at -1 to three at 3"
    assert (9.0, 9.0, 9.0, 1.0) == declared(three, ADD)
    for one_sided in ((1.0, 3.0), (-3.0, -1.0)):
        positive = ClippedSum(score, score_range=one_sided, max_records_per_unit=3)
        assert (8.0, 8.0, 8.0, 1.0) == declared(positive, REPLACE), (
            "from one record at 1 to three at 3"
        )
        assert (9.0, 9.0, 9.0, 1.0) == declared(positive, ADD)
    assert (5.0, 5.0, 5.0, 1.0) == declared(ClippedSum(score, score_range=(-5.0, 1.0)), ADD)
    assert question.affine(7) == ((0.0,), 1.0)


@attack("A5")
def test_what_floats_cannot_hold_is_rounded_up():
    for width in (0.1, 1.1, 2.7):
        for weights in ((1.0, 3.0), (1.0, 1.0), (0.3, 0.7, 0.9)):
            ranges = [(0.0, width)] * len(weights)
            found = ClippedSum(score, score_range=ranges, weights=weights).sensitivity(REPLACE)
            largest = Fraction(width) / min(map(Fraction, weights))
            for value, exact in (
                (Fraction(found.l1), largest * sum(map(Fraction, weights))),
                (
                    Fraction(found.l2) ** 2,
                    largest**2 * sum(Fraction(weight) ** 2 for weight in weights),
                ),
                (Fraction(found.linf), largest * max(map(Fraction, weights))),
            ):
                assert exact <= value <= exact * (1 + Fraction(1, 2**50))
    assert (
        ClippedSum(score, score_range=[(0.0, 3.0), (0.0, 4.0)], weights=(3.0, 4.0))
        .sensitivity(REPLACE)
        .l2
        == 5.0
    )


@pytest.mark.parametrize("ends", [(-0.3, 0.0011), (-10.3, 0.6), (0.1, 0.9)])
@attack("A5")
def test_the_way_from_the_middle_to_an_end_is_rounded_up_where_no_float_is_it(ends):
    for most in (1, 3):
        question = ClippedMean(score, score_range=ends, divisor=10.0, max_records_per_unit=most)
        (origin,), found = question.origins(), question.sensitivity(ADD)
        exact = most * max(abs(Fraction(end) - Fraction(origin)) for end in ends)
        for value in (found.l1, found.l2, found.linf):
            assert exact <= Fraction(value) <= exact * (1 + Fraction(1, 2**50))


CELLS = CellMeans(score, cells=3)
GRADIENT = ClippedGradient(
    score,
    torch.zeros(2, 3, dtype=DOUBLE),
    weights=torch.zeros(4, 2, dtype=DOUBLE),
    clip=1.5,
    divisor=8.0,
)
# question; l1, l2 and linf of a replaced unit, and of an added one; offset and gain
IN_UNITS_OF_ONE = [
    (CELLS, (2.0, math.sqrt(2.0), 1.0), (1.0, 1.0, 1.0), None),
    (
        CandidateScores(score, [1, 2, 3, 4], score_range=(0.0, 3.0)),
        (12.0, 6.0, 3.0),
        (6.0, 3.0, 1.5),
        ((0.0,) * 4, 1.0),
    ),
    (
        CandidateScores(
            score, [1, 2, 3, 4], score_range=(0.0, 3.0), reference="r", largest_difference=0.5
        ),
        (4.0, 2.0, 1.0),
        (2.0, 1.0, 0.5),
        ((0.0,) * 4, 1.0),
    ),
    (
        ClippedMean(
            score, score_range=(0.0, 3.0), reference="r", largest_difference=0.5, divisor=8.0
        ),
        (1.0, 1.0, 1.0),
        (0.5, 0.5, 0.5),
        ((0.0,), 0.125),
    ),
    (
        QuantileUtilities(score, candidates=[0.0, 1.0, 2.0, 4.0], quantile=0.75),
        (4.0, 2.0, 1.0),
        (3.0, 1.5, 0.75),
        ((0.0,) * 4, 1.0),
    ),
    (GRADIENT, (6.0, 3.0, 3.0), (3.0, 1.5, 1.5), ((0.0,) * 4, 1 / 8)),
]


@attack("A5")
def test_a_unit_moves_a_cell_every_candidate_every_utility_and_one_gradient():
    for question, replaced, added, affine in IN_UNITS_OF_ONE:
        for adjacency, norms in ((REPLACE, replaced), (ADD, added)):
            found = question.sensitivity(adjacency)
            assert (*norms, *(1.0,) * len(found.scale)) == declared(question, adjacency), question
            assert found.l1 >= norms[0], question
            assert found.l2 >= norms[1], question
        assert affine is None or question.affine(7) == affine
    assert (2.0, math.sqrt(2.0), 1.0, 1.0, 1.0, 1.0) == declared(CELLS, BOUNDED)
    assert CELLS.ranges == ((0.0, 1.0),) * 3


@attack("A5")
def test_moments_move_as_far_as_two_records_can():
    """Against a search over lengths and angles, where the docstring solves for them."""
    r = np.linspace(0.0, 1.0, 101)
    t = np.linspace(-1.0, 1.0, 401)
    a, b, turned = np.meshgrid(r, r[::2], t, indexing="ij")
    inner = a * b * turned
    for m in (0.05, 0.3, 0.65, 1.0, 3.0):
        linear = m**2 * (a**2 + b**2 - 2 * inner)
        for covariance, quadratic in (
            ("full", a**4 + b**4 - 2 * inner**2),
            ("spherical", (a**2 - b**2) ** 2),
        ):
            reached = float((linear + quadratic).max())
            for c in (0.5, 1.0, 4.0):
                found = distance_squared((7.0, c * m, c), covariance)
                assert c**2 * reached <= found * (1 + 1e-12), (m, covariance)
                assert found <= c**2 * reached * (1 + 1e-4), (m, covariance)
        assert distance_squared((7.0, 2 * m, 2.0), "diag") == distance_squared(
            (7.0, 2 * m, 2.0), "full"
        )


WEIGHTS = [
    (1.0, 1.0, 1.0),
    (0.3, 0.7, 0.9),
    (0.9, 0.3, 0.49),
    (1e3, 1e-3, 0.37),
]


def just_above(value, exact):
    return exact <= mpmath.mpf(value) <= exact * (1 + mpmath.mpf(10) ** -14)


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
@attack("A5")
def test_clusters_are_rounded_up_in_the_very_units_that_are_declared(weights):
    """With fifty digits, from the declared units themselves."""
    for d, K, norm, adjacency in itertools.product(
        (1, 2, 3, 7), (1, 2), ("l2", "linf"), (REPLACE, ADD)
    ):
        question = ClusterSums(
            d,
            ball=Ball(1.0, norm=norm),
            centers=torch.ones(K, d, dtype=DOUBLE),
            weights=weights[:2],
        )
        found = question.sensitivity(adjacency)
        times = 2 if adjacency is REPLACE else 1
        with mpmath.workdps(50):
            q, m = (1 / mpmath.mpf(unit) for unit in found.scale[:2])
            longest = mpmath.sqrt(d) if norm == "linf" else mpmath.mpf(1)
            alone = q**2 + (longest * m) ** 2
            apart = (
                max(min(K, 2) * alone, (2 * longest * m) ** 2) if adjacency is REPLACE else alone
            )
            assert just_above(found.l2, mpmath.sqrt(apart))
            assert just_above(found.l1, times * (q + m * (d if norm == "linf" else mpmath.sqrt(d))))
            assert just_above(found.linf, max(q, times * m))


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
@attack("A5")
def test_moments_are_rounded_up_in_the_very_units_that_are_declared(weights):
    """The same; a block counts by the largest of its coordinates' weights, as a root of two is no
    float.
    """
    for covariance, d, K, adjacency, orders in itertools.product(
        COVARIANCES, (1, 2, 3, 5), (1, 3), (REPLACE, ADD), ((0, 1, 2), (0, 1), (2,))
    ):
        natural = torch.zeros(K, width_of(covariance, d), dtype=DOUBLE)
        question = MixtureMoments(
            d,
            ball=Ball(1.0),
            natural=natural,
            covariance=covariance,
            weights=weights,
            orders=orders,
        )
        found = question.sensitivity(adjacency)
        with mpmath.workdps(50):
            root = [
                mpmath.sqrt(2) if counted > 1 else mpmath.mpf(1)
                for counted in isometry(covariance, d).tolist()
            ]
            # of one component, then of all together
            once = 1 if covariance == "tied" and 2 in orders else 0
            first = len(found.scale) - once * (len(root) - 1 - d)
            units = [*found.scale[: first // K], *found.scale[first:]]
            answered = [
                root[place]
                for place, degree in enumerate([0] + [1] * d + [2] * len(root))
                if place < len(root) and degree in orders
            ]
            own = [
                1 / (mpmath.mpf(unit) * counted)
                for unit, counted in zip(units, answered, strict=True)
            ]
            q, m = (own[0], max(own[1 : 1 + d])) if 0 in orders else (0, 0)
            c = max(own[-(len(root) - 1 - d) :]) if 2 in orders else mpmath.mpf(0)
            alone = q**2 + m**2 + c**2
            apart = (
                max(min(K, 2) * alone, furthest(m**2, c**2, covariance))
                if adjacency is REPLACE
                else alone
            )
            assert just_above(found.l2, mpmath.sqrt(apart))
            if 2 in orders:
                assert just_above(found.l1, mpmath.sqrt(apart * len(found.scale)))
                assert found.linf == found.l2
            else:
                times = 2 if adjacency is REPLACE else 1
                assert just_above(found.l1, times * (q + m * mpmath.sqrt(d)))
                assert just_above(found.linf, max(q, times * m))


def furthest(m, c, covariance):
    """`distance_squared` of the squared weights, with all digits."""
    if c == 0:
        return 4 * m
    if covariance == "spherical":
        inner = max(1 - 2 * m / c, 0)
        return max((2 - e) ** 2 * (m + c * e**2) for e in (0, (1 + mpmath.sqrt(inner)) / 2))
    t = min(1, m / (2 * c))
    return 2 * m * (1 + t) + 2 * c * (1 - t**2)


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
@attack("A5")
def test_sums_of_vectors_are_rounded_up_in_the_very_units_that_are_declared(weights):
    for d, nonnegative, adjacency in itertools.product((1, 3), (False, True), (REPLACE, ADD)):
        found = VectorSum(
            d, ball=Ball(1.0), weights=weights[:2], nonnegative=nonnegative
        ).sensitivity(adjacency)
        with mpmath.workdps(50):
            q, m = (1 / mpmath.mpf(unit) for unit in found.scale[:2])
            alone = q**2 + m**2
            apart = max((2 if nonnegative else 4) * m**2, alone) if adjacency is REPLACE else alone
            assert just_above(found.l2, mpmath.sqrt(apart))


@attack("A5")
def test_second_moments_are_rounded_up_in_every_norm():
    cases = ((REPLACE, False, 2), (REPLACE, True, 2), (ADD, False, 1), (ADD, True, 2))
    for d, (adjacency, counted, squared) in itertools.product(range(1, 30), cases):
        found = SecondMoment(d, ball=Ball(1.0), counted=counted).sensitivity(adjacency)
        with mpmath.workdps(50):
            own = [mpmath.mpf(1)] * counted + [
                mpmath.sqrt(1 if i == j else mpmath.mpf(0.5))
                for i, j in itertools.combinations_with_replacement(range(d), 2)
            ]
            assert all(map(just_above, found.scale, own)), (
                "below these a record's products would count for more"
            )
            assert just_above(found.l2, mpmath.sqrt(squared))
            assert just_above(found.l1, mpmath.sqrt(squared * mpmath.mpf(len(found.scale))))
            assert found.linf == found.l2


def test_an_outcome_is_a_mean_over_one_record():
    question = RowOutcome(len, row=2, value_range=(-1.0, 3.0))
    assert (4.0, 4.0, 4.0, 1.0) == declared(question, REPLACE)
    assert question.affine(7) == ((1.0,), 1.0)


def answer(query, rows):
    """Whole numbers of each row, and what they count."""
    table = rows if isinstance(rows, torch.Tensor) else torch.tensor(rows, dtype=DOUBLE)
    found = exact_sum(query, table)
    return found.numerators.reshape(len(table), -1).tolist(), Fraction(found.quanta[0])


def rank_one(d, k, seed):
    """A matrix of small whole numbers whose both norms are the root of a whole number: the matrix,
    and that number.
    """
    rng = np.random.default_rng(seed)
    u, v = (rng.integers(1, 1000, size) * rng.choice([-1, 1], size) for size in (d, k))
    return torch.from_numpy(np.outer(u, v)).double(), int((u**2).sum()) * int((v**2).sum())


@attack("A5")
def test_norms_of_the_projection_are_rounded_up():
    for seed in range(60):
        d = 1 + seed % 7
        k = 1 + seed % 5
        projection, squared = rank_one(d, k, seed)
        query = RowTable((0.0,) * d, 1.0, projection=projection)
        for norm in (query.spectral_norm(), query._frobenius()):
            assert squared <= Fraction(norm) ** 2 <= squared * (1 + Fraction(1, 2**38))
    wide, squared = rank_one(3000, 1000, 0)
    norm = RowTable((0.0,) * 3000, 1.0, projection=wide)._frobenius()
    assert squared <= Fraction(norm) ** 2 <= squared * (1 + Fraction(1, 2**38)), (
        "also over millions of entries"
    )


@pytest.mark.parametrize("narrow", [1.0, 2.0**-23])
@pytest.mark.parametrize(
    ("d", "k"), [(1, None), (3, None), (7, None), (40, None), (1, 2), (5, 3), (30, 1)]
)
@pytest.mark.parametrize("adjacency", [REPLACE, BOUNDED])
@attack("A5")
@mpmath.workprec(200)
def test_what_is_declared_is_the_sum_of_distance_floats_and_lattice(d, k, narrow, adjacency):
    """A table much wider than a row moves owes most of it to floats."""
    projection, squared = (None, 1) if k is None else rank_one(d, k, d)
    for radius in (0.7, 1.3e5):
        change = RowChange(narrow * 2 * radius, diameter=2 * radius)
        query = RowTable(
            (0.0,) * d,
            radius,
            row_change=change if adjacency is BOUNDED else None,
            projection=projection,
        )
        found = query.sensitivity(adjacency)
        width = query.dimension
        norm = mpmath.sqrt(squared)
        frobenius = mpmath.sqrt(squared if k else d)
        moves = norm * (mpmath.mpf(change.norm) if adjacency is BOUNDED else 2 * mpmath.mpf(radius))
        quantum = (
            mpmath.mpf(answer(query, torch.zeros(1, d))[1].numerator)
            / answer(query, torch.zeros(1, d))[1].denominator
        )
        assert 2**33 <= moves / quantum <= 2**34 * (1 + mpmath.mpf(2) ** -39)
        floats = 2 * (d + 16) * mpmath.mpf(2) ** -50 * mpmath.mpf(radius) * frobenius
        exact = moves + floats + mpmath.sqrt(width) * quantum
        assert exact <= mpmath.mpf(found.l2) <= exact * (1 + mpmath.mpf(2) ** -38)
        assert found.linf == found.l2
        assert (
            mpmath.sqrt(width) * mpmath.mpf(found.l2)
            <= mpmath.mpf(found.l1)
            <= mpmath.sqrt(width) * exact * (1 + mpmath.mpf(2) ** -37)
        )


@pytest.mark.parametrize(("d", "k"), [(1, None), (2, None), (6, None), (3, 2), (8, 5)])
@attack("A5")
@mpmath.workprec(300)
def test_what_float64_does_to_a_row_stays_within_its_allowance(d, k):
    """Against the true map in many digits, for rows inside, on and far outside the ball, and
    outside the box around it.
    """
    projection = None if k is None else torch.randn(d, k, dtype=DOUBLE)
    center = torch.randn(d, dtype=DOUBLE)
    radius = 1.1
    query = RowTable(center.tolist(), radius, projection=projection)
    X = torch.randn(120, d, dtype=DOUBLE)
    X = (
        X / X.norm(dim=1, keepdim=True) * torch.logspace(-3, 3, 120, dtype=DOUBLE).unsqueeze(1)
    ) + center
    X[:20] = center + 1.1 * (X[:20] - center) / (X[:20] - center).norm(dim=1, keepdim=True)
    X[-20:] *= 1e300
    found = query._mapped(X)
    A = mpmath.eye(d) if projection is None else mpmath.matrix(projection.tolist())
    allowed = (d + 16) * mpmath.mpf(2) ** -50 * mpmath.mpf(radius) * mpmath.norm(A)
    for x, z in zip(X.tolist(), found.tolist(), strict=True):
        v = mpmath.matrix(
            [
                mpmath.mpf(max(-(2.0**53), min(a, 2.0**53))) - mpmath.mpf(b)
                for a, b in zip(x, center.tolist(), strict=True)
            ]
        )
        true = A.T * (v * min(mpmath.mpf(1), mpmath.mpf(radius) / mpmath.norm(v)))
        assert mpmath.norm(mpmath.matrix(z) - true) <= allowed
