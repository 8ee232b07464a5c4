"""The public lattice: rounded inward, as fine as no sum overflows; units of several records; any
cut into pieces.
"""

import itertools
import math
from fractions import Fraction

import pytest
import torch

from dpbo.errors import InputError
from dpbo.queries.integers import (
    Lattice,
    quantise,
    sum_records,
    sum_units,
    unit_means,
)
from tests.attacks.marks import attack
from tests.setups import DOUBLE

RANGES = [
    (0.0, 1.0, 0.5),
    (0.0, 1.0, 0.0),
    (-0.3, 7.7, 0.0),
    (1.1, 2.3, 1.7),
    (1e-9, 3e-9, 0.0),
    (-5e12, -1e12, -3e12),
    (-7.7, 0.3, 0.0),
]


@attack("A5")
def test_ends_are_rounded_inward_on_the_finest_grid_that_no_sum_overflows():
    for (lower, upper, origin), units, repeats in itertools.product(
        RANGES, (None, 1, 1000, 1 << 22, 1 << 30), (1, 3)
    ):
        grid = Lattice.over(
            lower, upper, origin=origin, worst="lower", units=units, repeats=repeats
        )
        quantum = Fraction(grid.quantum)
        below = Fraction(lower) - Fraction(origin)
        above = Fraction(upper) - Fraction(origin)
        assert math.frexp(grid.quantum)[0] == 0.5
        assert below <= grid.low * quantum < below + quantum
        assert above - quantum < grid.high * quantum <= above
        largest = max(abs(below), abs(above))
        most = (1 << 32 if units is None else units) * repeats
        bits = min(39, 61 - math.ceil(math.log2(most)))
        assert largest / quantum <= 2**bits < 2 * largest / quantum
        assert most * max(abs(grid.low), grid.high) <= 2**61


def test_what_cannot_be_scored_falls_where_it_was_said():
    ends = {
        worst: Lattice.over(-1.0, 3.0, origin=1.0, worst=worst, units=10)
        for worst in ("lower", "upper", 0.25, 2.5)
    }
    for worst, grid in ends.items():
        meant = {"lower": -1.0, "upper": 3.0}.get(worst, worst) if isinstance(worst, str) else worst
        assert abs(grid.worst * grid.quantum + 1.0 - float(meant)) <= grid.quantum
        scores = torch.tensor([math.nan, math.inf, -math.inf, 5.0, -5.0, 1.0], dtype=DOUBLE)
        assert quantise(scores, grid, torch.empty(6, dtype=DOUBLE)).tolist() == [grid.worst] * 3 + [
            grid.high,
            grid.low,
            0,
        ]


def test_the_finest_grid_is_what_floats_resolve():
    assert Lattice.over(0.0, 2.0**-924, origin=0.0, worst="lower", units=1).quantum == 2.0**-963


@pytest.mark.parametrize(
    ("lower", "upper", "origin"),
    [(0.0, 2.0**-925, 0.0), (1.0, 1.0 + 2.0**-52, 0.0), (0.0, 1e-300, 0.0), (0.0, 1e-280, 1e200)],
)
def test_a_range_that_floats_cannot_resolve_is_refused(lower, upper, origin):
    with pytest.raises(InputError, match="score_range"):
        Lattice.over(lower, upper, origin=origin, worst="lower", units=1)


@pytest.mark.parametrize(
    ("lower", "upper"), [(1e160, 2e160), (-1e300, 1e300), (1.0, 1.0 + 2.0**-20)]
)
def test_a_range_far_from_zero_is_resolved(lower, upper):
    grid = Lattice.over(lower, upper, origin=lower, worst="lower", units=1)
    assert math.isfinite(grid.origin / grid.quantum)
    scores = torch.tensor([lower, upper], dtype=DOUBLE)
    assert quantise(scores, grid, torch.empty(2, dtype=DOUBLE)).tolist() == [0, grid.high]


@pytest.mark.parametrize("most", [1, 2, 5])
@attack("A5")
def test_units_count_by_the_mean_of_their_records_whatever_the_pieces(most):
    """Against whole numbers in Python: trunc(min(most, rows) * sum / rows), and no record beyond
    its range.
    """
    scores = 3 * torch.randn(500, 2, dtype=DOUBLE)
    groups = torch.randint(0, 60, (500,))
    groups[:60] = torch.arange(60)
    scores[7, 0] = math.nan
    scores[8, 1] = math.inf
    rows = groups.bincount(minlength=60)
    grids = [
        Lattice.over(-1.0, 2.0, origin=0.0, worst="lower", units=60, repeats=most),
        Lattice.over(0.0, 1.0, origin=0.5, worst=0.25, units=60),
    ]
    expected = []
    for j, grid in enumerate(grids):
        units = [
            [_number(float(score), grid) for score in scores[groups == unit, j]]
            for unit in range(60)
        ]
        expected.append(
            sum(_towards_zero(min(most, len(unit)) * sum(unit), len(unit)) for unit in units)
        )
        means = [_towards_zero(sum(unit), len(unit)) for unit in units]
        assert unit_means([scores[:, j : j + 1]], grid, groups, rows).tolist() == means
        own = [_number(float(score), grid) for score in scores[:, j]]
        assert unit_means(scores[:, j : j + 1].split(99), grid, None, None).tolist() == own
        assert int(sum_records(scores[:, j : j + 1].split(99), [grid])[0]) == sum(own)
    for size in (500, 333, 7):
        assert sum_units(scores.split(size), grids, groups, rows, most).tolist() == expected
    assert sum_records([], grids).tolist() == [0, 0]
    assert unit_means([], grids[0], None, None).tolist() == []


def _number(score, grid):
    if not math.isfinite(score):
        return grid.worst
    return min(
        max(
            math.trunc((Fraction(score) - Fraction(grid.origin)) / Fraction(grid.quantum)), grid.low
        ),
        grid.high,
    )


def _towards_zero(total, count):
    return abs(total) // count * (1 if total >= 0 else -1)
