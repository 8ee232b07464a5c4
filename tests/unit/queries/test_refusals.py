"""What a question refuses, by the name of its argument, and what lies just inside."""

from typing import Any

import pytest
import torch

from dpbo import Adjacency, PrivacyUnit, RowChange
from dpbo.errors import InputError, ScoreError
from dpbo.gibo import ClippedGradient
from dpbo.papers.em.mixture_moments import MixtureMoments
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
from dpbo.queries.ball import MOST_DIMENSION, Ball
from dpbo.queries.integers import MOST_ROWS_PER_UNIT
from dpbo.records.view import PrivateView
from tests.attacks.marks import attack
from tests.setups import DOUBLE

ONES = torch.ones(2, 2, dtype=DOUBLE)


def score(_subject, records):
    return records


GOOD: dict[type, dict[str, Any]] = {
    ClippedMean: {"score": score, "score_range": (0.0, 1.0)},
    CandidateScores: {"score": score, "candidates": [1, 2], "score_range": (0.0, 1.0)},
    CellMeans: {"score": score, "cells": 2},
    ClippedGradient: {"loss": score, "X": ONES, "weights": ONES, "clip": 1.0},
    ClusterSums: {"dimension": 2, "ball": Ball(1.0), "centers": ONES},
    MixtureMoments: {"dimension": 2, "ball": Ball(1.0), "natural": torch.ones(2, 6, dtype=DOUBLE)},
    QuantileUtilities: {"score": score, "candidates": [0.0, 1.0], "quantile": 0.5},
    RowOutcome: {"outcome": len, "row": 0, "value_range": (0.0, 1.0)},
    RowTable: {"center": [0.0, 0.0], "radius": 1.0},
    SecondMoment: {"dimension": 2, "ball": Ball(1.0)},
    VectorSum: {"dimension": 2, "ball": Ball(1.0)},
}
BROKEN = torch.tensor([[1.0, float("nan")], [1.0, 1.0]], dtype=DOUBLE)
# just outside what numbers of 64 bits and the proofs allow; wrong types are fuzzed elsewhere
REFUSED: list[tuple[type, str, Any]] = [
    (ClippedMean, "divisor", 0.99),
    (ClippedMean, "divisor", 1.5e18),
    (ClippedMean, "weights", (1.5e6,)),
    (ClippedMean, "weights", (1.0, 1.0)),
    (ClippedMean, "worst", 1.5),
    (ClippedMean, "max_records_per_unit", MOST_ROWS_PER_UNIT + 1),
    (CandidateScores, "score_range", (1.0, 0.0)),
    (CellMeans, "cells", 1),
    (ClippedGradient, "clip", 0.9e-100),
    (ClippedGradient, "clip", 1.5e100),
    (ClippedGradient, "divisor", 1.5e18),
    (ClippedGradient, "X", BROKEN),
    (ClippedGradient, "weights", ONES.float()),
    (ClippedGradient, "weights", ONES[:, :1]),
    (ClusterSums, "centers", ONES[:0]),
    (ClusterSums, "weights", (1.5e3, 1.0)),
    (SecondMoment, "norm", Ball(1.0, norm="linf")),
    (VectorSum, "dimension", MOST_DIMENSION + 1),
    (MixtureMoments, "natural", torch.zeros(1025, 6, dtype=DOUBLE)),
    (MixtureMoments, "natural", torch.ones(2, 5, dtype=DOUBLE)),
    (MixtureMoments, "weights", (1.0, 1.0, 0.9e-3)),
    (MixtureMoments, "orders", (0, 2)),
    (VectorSum, "center", Ball(1.0, center=torch.zeros(3, dtype=DOUBLE))),
    (QuantileUtilities, "candidates", [0.0, 1.0, 1.0]),
    (QuantileUtilities, "quantile", 1.0),
    (QuantileUtilities, "quantile", 0.1234567),
    (QuantileUtilities, "step_cost", 1.5e6),
    (RowOutcome, "row", -1),
    (RowOutcome, "declassified", " "),
    (RowTable, "center", [0.0, 1.5e100]),
    (RowTable, "radius", 0.9e-100),
    (RowTable, "radius", 1.5e100),
    (RowTable, "projection", ONES[:, :0]),
    (RowTable, "projection", ONES * 1e-100),
]
ACCEPTED: list[tuple[type, str, Any]] = [
    *((ClippedMean, "divisor", divisor) for divisor in (1.0, 1e18)),
    *((ClippedMean, "weights", (weight,)) for weight in (1e-6, 1e6)),
    (ClippedMean, "max_records_per_unit", MOST_ROWS_PER_UNIT),
    *((ClippedGradient, "clip", clip) for clip in (1e-100, 1e100)),
    (MixtureMoments, "weights", (1e-3, 1.0, 1e3)),
    *((QuantileUtilities, "quantile", quantile) for quantile in (0.123456, 2.0**-20)),
    *((RowTable, "radius", radius) for radius in (1e-100, 1e100)),
    (RowTable, "projection", -ONES * 1.5e-100),
]


def test_numbers_at_the_limits_are_taken_and_those_beyond_refused_by_name():
    for kind, name, value in REFUSED:
        with pytest.raises(InputError) as refused:
            kind(**{**GOOD[kind], "ball" if isinstance(value, Ball) else name: value})
        assert refused.value.parameter == name, (kind, value)
    for kind, name, value in ACCEPTED:
        kind(**{**GOOD[kind], name: value})


def test_a_relation_or_units_that_it_says_nothing_about_are_refused():
    bounded = Adjacency.BOUNDED_ROW_CHANGE
    pairs = [
        (kind, bounded)
        for kind in (
            ClippedGradient,
            ClusterSums,
            MixtureMoments,
            SecondMoment,
            VectorSum,
            RowTable,
        )
    ]
    for kind, adjacency in [
        *pairs,
        (RowOutcome, Adjacency.ADD_OR_REMOVE_ONE),
        (RowTable, Adjacency.ADD_OR_REMOVE_ONE),
    ]:
        with pytest.raises(InputError, match="adjacency"):
            kind(**GOOD[kind]).sensitivity(adjacency)
    mean = ClippedMean(score, score_range=(0.0, 1.0))
    mean.require_public(Adjacency.REPLACE_ONE)
    with pytest.raises(InputError, match="divisor"):
        ClippedMean(score, score_range=(0.0, 1.0), max_records_per_unit=2).require_public(
            Adjacency.REPLACE_ONE
        )
    records = torch.zeros((1 << 22) + 1, dtype=torch.uint8)
    with pytest.raises(InputError, match="at most 4194304 records each"):
        PrivateView.of(
            records, PrivacyUnit("patient", groups=records.numpy()), units_are_public=True
        )


TRIED: list[tuple[type, str, torch.Tensor]] = [
    *(
        (kind, "score", torch.zeros(5))
        for kind in (ClippedMean, CandidateScores, CellMeans, QuantileUtilities)
    ),
    (ClippedGradient, "loss", torch.zeros(5)),
    *(
        (kind, "vectors", torch.zeros(5, 2))
        for kind in (ClusterSums, MixtureMoments, SecondMoment, VectorSum)
    ),
]


@attack("A6")
def test_a_score_of_another_length_or_shape_is_found_on_public_stand_ins():
    """Before a private record is touched: there it would be a failure that nothing is told of."""
    for kind, name, example in TRIED:
        sound, broken = (
            kind(**{**GOOD[kind], name: function})
            for function in (lambda *given: given[-1], lambda *given: given[-1][1:])
        )
        sound.probe(example, 5, sound.prepare())
        with pytest.raises(ScoreError, match="must return"):
            broken.probe(example, 5, broken.prepare())
    with pytest.raises(ScoreError, match="public records before any private one"):
        RowTable([0.0, 0.0], 1.0).probe(torch.ones(5, 3, dtype=DOUBLE), 5, None)
    wide = ClippedSum(lambda _, r: r.new_ones(len(r), 3), score_range=[(0.0, 1.0)] * 2)
    with pytest.raises(ScoreError, match="2 numbers a record"):
        wide.probe(torch.zeros(4, 2), 4, None)


def test_whole_numbers_of_a_row_table_fit_64_bits():
    """The ball is 2^56 quanta wide in each direction of such a change; 2^61 are allowed, which the
    root of 1024 coordinates makes of it.
    """
    for radius in (1.0, 2.0**-40, 2.0**40):
        change = RowChange(norm=radius * 2.0**-23, diameter=2 * radius)
        RowTable([0.0] * 1024, radius, row_change=change).sensitivity(Adjacency.BOUNDED_ROW_CHANGE)
        with pytest.raises(InputError, match="row_change"):
            RowTable([0.0] * 1025, radius, row_change=change).sensitivity(
                Adjacency.BOUNDED_ROW_CHANGE
            )
