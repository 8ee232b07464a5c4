"""What a row table adds to the distance of two rows for float64 and for its lattice: as much as is written, and never less than happens."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch

from dpbo import Adjacency, PrivacyUnit, RowChange
from dpbo.curator.records import PrivateView
from dpbo.queries import RowTable
from dpbo.queries.query import IntegerSum

REPLACE, BOUNDED = Adjacency.REPLACE_ONE, Adjacency.BOUNDED_ROW_CHANGE
DOUBLE = torch.float64


def answer(query, rows):
    """Whole numbers of each row, and what they count."""
    table = rows if isinstance(rows, torch.Tensor) else torch.tensor(rows, dtype=DOUBLE)
    found = query._evaluate(PrivateView.of(table, PrivacyUnit("row"), units_are_public=True), None)
    assert isinstance(found, IntegerSum)
    return found.numerators.reshape(len(table), -1).tolist(), Fraction(found.quanta[0])


def rank_one(d, k, seed):
    """A matrix of small whole numbers whose both norms are the root of a whole number: the matrix, and that number."""
    rng = np.random.default_rng(seed)
    u, v = (rng.integers(1, 1000, size) * rng.choice([-1, 1], size) for size in (d, k))
    return torch.from_numpy(np.outer(u, v)).double(), int((u**2).sum()) * int((v**2).sum())


@pytest.mark.attack("A5")
def test_norms_of_the_projection_are_rounded_up():
    for seed in range(60):
        d, k = 1 + seed % 7, 1 + seed % 5
        projection, squared = rank_one(d, k, seed)
        query = RowTable((0.0,) * d, 1.0, projection=projection)
        for norm in (query.spectral_norm(), query._frobenius()):
            assert squared <= Fraction(norm) ** 2 <= squared * (1 + Fraction(1, 2**38))
    wide, squared = rank_one(3000, 1000, 0)
    norm = RowTable((0.0,) * 3000, 1.0, projection=wide)._frobenius()
    assert squared <= Fraction(norm) ** 2 <= squared * (1 + Fraction(1, 2**38)), "also over millions of entries"


@pytest.mark.parametrize("narrow", [1.0, 2.0**-23])
@pytest.mark.parametrize(("d", "k"), [(1, None), (3, None), (7, None), (40, None), (1, 2), (5, 3), (30, 1)])
@pytest.mark.parametrize("adjacency", [REPLACE, BOUNDED])
@pytest.mark.attack("A5")
@mpmath.workprec(200)
def test_what_is_declared_is_the_sum_of_distance_floats_and_lattice(d, k, narrow, adjacency):
    """A table much wider than a row moves owes most of it to floats."""
    projection, squared = (None, 1) if k is None else rank_one(d, k, d)
    for radius in (0.7, 1.3e5):
        change = RowChange(narrow * 2 * radius, diameter=2 * radius)
        query = RowTable((0.0,) * d, radius, row_change=change if adjacency is BOUNDED else None, projection=projection)
        found, width = query.sensitivity(adjacency), query.dimension
        norm, frobenius = mpmath.sqrt(squared), mpmath.sqrt(squared if k else d)
        moves = norm * (mpmath.mpf(change.norm) if adjacency is BOUNDED else 2 * mpmath.mpf(radius))
        quantum = mpmath.mpf(answer(query, torch.zeros(1, d))[1].numerator) / answer(query, torch.zeros(1, d))[1].denominator
        assert 2**33 <= moves / quantum <= 2**34 * (1 + mpmath.mpf(2) ** -39)
        floats = 2 * (d + 16) * mpmath.mpf(2) ** -50 * mpmath.mpf(radius) * frobenius
        exact = moves + floats + mpmath.sqrt(width) * quantum
        assert exact <= mpmath.mpf(found.l2) <= exact * (1 + mpmath.mpf(2) ** -38)
        assert found.linf == found.l2
        assert mpmath.sqrt(width) * mpmath.mpf(found.l2) <= mpmath.mpf(found.l1) <= mpmath.sqrt(width) * exact * (1 + mpmath.mpf(2) ** -37)


@pytest.mark.parametrize(
    ("norm", "radius", "center", "row", "other"),
    [
        (1 + 2.0**-52, 2.0, 0.0, -(1 + 2.0**-52), 0.0),  # the lattice takes nearly one quantum more
        (1 + 2.0**-30, 2.0**23, 2.0**-31, 2.0**22 + 2.0**-30, 2.0**22 + 1 + 2.0**-29),  # ties in x - c, rounded apart
    ],
    ids=["lattice", "floats"],
)
@pytest.mark.attack("A5")
def test_a_row_that_moves_further_than_its_distance_stays_within_what_is_declared(norm, radius, center, row, other):
    query = RowTable((center,), radius, row_change=RowChange(norm, diameter=2 * radius))
    assert Fraction(other) - Fraction(row) == Fraction(norm)
    ((one,), (two,)), quantum = answer(query, [[row], [other]])
    moved, declared = (two - one) * quantum, Fraction(query.sensitivity(BOUNDED).l2)
    assert Fraction(norm) * (1 + Fraction(1, 2**34)) < moved <= declared


@pytest.mark.parametrize(("d", "k"), [(1, None), (2, None), (6, None), (3, 2), (8, 5)])
@pytest.mark.attack("A5")
@mpmath.workprec(300)
def test_what_float64_does_to_a_row_stays_within_its_allowance(d, k):
    """Against the true map in many digits, for rows inside, on and far outside the ball, and outside the box around it."""
    generator = torch.Generator().manual_seed(d)
    projection = None if k is None else torch.randn(d, k, dtype=DOUBLE, generator=generator)
    center, radius = torch.randn(d, dtype=DOUBLE, generator=generator), 1.1
    query = RowTable(center.tolist(), radius, projection=projection)
    X = torch.randn(120, d, dtype=DOUBLE, generator=generator)
    X = (X / X.norm(dim=1, keepdim=True) * torch.logspace(-3, 3, 120, dtype=DOUBLE).unsqueeze(1)) + center
    X[:20] = center + 1.1 * (X[:20] - center) / (X[:20] - center).norm(dim=1, keepdim=True)
    X[-20:] *= 1e300
    found = query._mapped(X)
    A = mpmath.eye(d) if projection is None else mpmath.matrix(projection.tolist())
    allowed = (d + 16) * mpmath.mpf(2) ** -50 * mpmath.mpf(radius) * mpmath.norm(A)
    for x, z in zip(X.tolist(), found.tolist(), strict=True):
        v = mpmath.matrix([mpmath.mpf(max(-(2.0**53), min(a, 2.0**53))) - mpmath.mpf(b) for a, b in zip(x, center.tolist(), strict=True)])
        true = A.T * (v * min(mpmath.mpf(1), mpmath.mpf(radius) / mpmath.norm(v)))
        assert mpmath.norm(mpmath.matrix(z) - true) <= allowed


@pytest.mark.parametrize(("d", "k"), [(1, None), (4, None), (3, 2)])
@pytest.mark.attack("A5")
def test_no_two_rows_in_reach_come_further_apart_than_declared(d, k):
    """In whole numbers: along every direction, wide tables and narrow moves, opposite rows under replacement."""
    generator = torch.Generator().manual_seed(d)
    projection = None if k is None else torch.randn(d, k, dtype=DOUBLE, generator=generator)
    steps = torch.randn(300, d, dtype=DOUBLE, generator=generator)
    steps /= steps.norm(dim=1, keepdim=True)
    if projection is not None:
        steps[:100] = torch.linalg.svd(projection)[0][:, 0]
    for radius, norm in ((2.0**22, 1.0), (1.0, 1.0)):
        query = RowTable((0.3,) * d, radius, row_change=RowChange(norm, diameter=2 * radius), projection=projection)
        rows = torch.randn(300, d, dtype=DOUBLE, generator=generator) * radius / math.sqrt(d)
        others = rows + norm * steps
        whole, quantum = answer(query, torch.cat([rows, others]))
        declared = query.sensitivity(BOUNDED)
        for x, y, one, two in zip(rows.tolist(), others.tolist(), whole[:300], whole[300:], strict=True):
            reach = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(x, y, strict=True)) / Fraction(norm) ** 2
            if reach <= 1:
                assert sum((a - b) ** 2 for a, b in zip(one, two, strict=True)) * quantum**2 <= Fraction(declared.l2) ** 2
        anywhere = RowTable((0.3,) * d, radius, projection=projection)
        whole, quantum = answer(anywhere, torch.cat([1e9 * steps, -1e9 * steps]))
        for one, two in zip(whole[:300], whole[300:], strict=True):
            assert sum((a - b) ** 2 for a, b in zip(one, two, strict=True)) * quantum**2 <= Fraction(anywhere.sensitivity(REPLACE).l2) ** 2


def test_whole_numbers_of_either_sign_are_mapped_as_floats_are():
    table = torch.tensor([[-3, 4], [2**60, 0], [-(2**60), 0], [0, -7]])
    query = RowTable((0.0, 0.0), 25.0)
    assert answer(query, table) == answer(query, table.double())
    assert answer(query, table)[0][0] == [-3 / float(answer(query, table)[1]), 4 / float(answer(query, table)[1])]
