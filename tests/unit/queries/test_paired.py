"""Paired scores: differences to a fixed public reference, clipped, under every query that takes
them.
"""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from dpbo import Adjacency, Budget, PrivateObjective
from dpbo.accounting import PureFilter
from dpbo.errors import InputError, LedgerMismatch, ScoreError
from dpbo.queries import CandidateScores, CellMeans, ClippedMean, ClippedSum
from tests.contracts.bases import exact_sum
from tests.setups import DOUBLE, owner

RECORDS = torch.tensor([0.0, 0.25, 0.5, 1.0, math.nan], dtype=DOUBLE)


class Model:
    """Scores a record as slope * record."""

    def __init__(self, slope):
        self.slope = slope


def score(model, records):
    return model.slope * records


def mean(reference, c=0.3, **settings: Any):
    return ClippedMean(
        score,
        Model(0.5),
        score_range=(0.0, 1.0),
        reference=reference,
        largest_difference=c,
        **settings,
    )


def values_of(query):
    found = exact_sum(query, RECORDS)
    return (found.numerators.double() * torch.tensor(found.quanta, dtype=DOUBLE)).tolist()


def test_each_score_is_clipped_then_their_difference():
    """Of the slopes 0.5 and 2: 0 - 0, 0.125 - 0.5, 0.25 - 1, 0.5 - 1 (2 is clipped to 1), and NaN
    against NaN, the worst both.
    """
    assert values_of(mean(Model(2.0), c=1.0)) == pytest.approx(
        [0.0 - 0.375 - 0.75 - 0.5 + 0.0], abs=1e-6
    )
    assert values_of(mean(Model(2.0), c=0.4)) == pytest.approx([-0.375 - 0.4 - 0.4], abs=1e-6)
    candidates = CandidateScores(
        score,
        [Model(0.5), Model(2.0)],
        score_range=(0.0, 1.0),
        reference=Model(2.0),
        largest_difference=0.4,
    )
    assert values_of(candidates) == pytest.approx([-1.175, 0.0], abs=1e-6)


class Refuses(Model):
    """Cannot take records from a number on."""

    limit = 1.0

    def __rmul__(self, records):
        if bool((records >= self.limit).any()):
            raise ValueError(f"{records.max()}")
        return records * self.slope

    def __mul__(self, records):
        return self.__rmul__(records)


def side(model, records):
    return model * records if isinstance(model, Refuses) else score(model, records)


@pytest.mark.parametrize("one_at_a_time", [False, True])
@pytest.mark.parametrize("refused", [True, False], ids=["reference", "subject"])
def test_a_record_that_one_side_cannot_take_is_the_others_gain(refused, one_at_a_time):
    """It counted as a loss on both, so a model that can take it seemed the worse one."""
    records = torch.tensor([0.0, 0.25, 0.5, 0.75], dtype=DOUBLE)
    able, unable = Model(0.5), Refuses(1.0)
    unable.limit = 0.5
    subject, reference = (able, unable) if refused else (unable, able)
    query = ClippedMean(
        side, subject, score_range=(0.0, 1.0), reference=reference, largest_difference=1.0
    )
    found = exact_sum(query, records, one_at_a_time=one_at_a_time)
    total = float(found.numerators) * found.quanta[0]
    expected = [0.0, 0.125 - 0.25, 0.25 - 0.0, 0.375 - 0.0]
    assert total == pytest.approx(sum(expected) * (1 if refused else -1), abs=1e-6)


def test_a_reference_that_changes_later_changes_nothing():
    reference = Model(2.0)
    query = mean(reference, c=0.4)
    choice = CandidateScores(
        score, [Model(0.5)], score_range=(0.0, 1.0), reference=reference, largest_difference=0.4
    )
    curator = owner(RECORDS, budget=Budget(100.0, 0.0), accounting=PureFilter())
    objective = PrivateObjective(
        curator,
        ClippedMean(
            lambda x, records: x * records,
            score_range=(0.0, 1.0),
            reference=torch.ones(1).double(),
            largest_difference=0.3,
        ),
        evaluations=2,
    )
    reference.slope = 0.0
    assert values_of(query) == values_of(choice) == pytest.approx([-1.175], abs=1e-6)
    assert objective.noise_std.item() == pytest.approx(math.sqrt(2) * 2 * 0.6 / 500, rel=1e-3), (
        "half of epsilon 100, range 0.6, 5 records"
    )


def test_the_statement_names_the_reference_and_c_and_a_resumed_plan_needs_the_same(on_disk):
    def objective(slope):
        curator = owner(
            RECORDS,
            budget=Budget(100.0, 0.0),
            accounting=PureFilter(),
            **on_disk,
        )
        fit = lambda x: Model(float(x[0]))  # noqa: E731
        query = ClippedMean(
            score,
            score_range=(0.0, 1.0),
            fit=fit,
            reference=Model(slope),
            largest_difference=0.3,
        )
        return PrivateObjective(curator, query, evaluations=2)

    first = objective(2.0)
    first(torch.ones(1, 1).double())
    assert "largest difference 0.3, " in str(first.curator.statement())
    assert "reference Model" in str(first.curator.statement())
    assert objective(2.0).remaining == 1
    with pytest.raises(LedgerMismatch, match="reference"):
        objective(3.0)


def test_what_cannot_be_paired_is_refused():
    refused: list[tuple[str, dict[str, Any]]] = [
        ("largest_difference", {"c": None}),
        ("largest_difference", {"c": 1.5}),
        ("largest_difference", {"c": -0.1}),
        ("largest_difference", {"reference": None}),
        ("worst", {"worst": 0.0, "c": 1.0}),
        ("reference", {"reference": (number for number in range(3))}),
    ]
    for name, changed in refused:
        with pytest.raises(InputError, match=f"^{name}="):
            mean(**{"reference": Model(1.0), **changed})
    sums = ClippedSum(
        score, Model(1.0), score_range=(2.0, 3.0), reference=Model(2.0), largest_difference=0.5
    )
    assert sums.sensitivity(Adjacency.ADD_OR_REMOVE_ONE).linf == 0.5, (
        "differences, not scores, are summed"
    )


def test_cells_take_no_reference_and_shapes_must_agree():
    with pytest.raises(InputError, match=r"^reference=.*cells"):
        CellMeans(score, Model(1.0), cells=3, reference=Model(1.0), largest_difference=0.1)

    def lazy(model, records):
        return (
            (model.slope * records).mean(0, keepdim=True)
            if model.slope < 1
            else model.slope * records
        )

    query = ClippedMean(
        lazy, Model(0.5), score_range=(0.0, 1.0), reference=Model(2.0), largest_difference=0.4
    )
    with pytest.raises(ScoreError, match="another shape"):
        query.probe(RECORDS[:4], 4, query.prepare())
    infinite = torch.tensor([math.inf, 0.5], dtype=DOUBLE)
    found = exact_sum(mean(Model(2.0), c=1.0), infinite)
    assert found.numerators.item() * found.quanta[0] == pytest.approx(-0.75), (
        "infinity counts as the worst, for both"
    )


def test_batches_and_several_metrics_are_paired_record_by_record():
    def batched(model, records):
        return iter([score(model, records[:2]), score(model, records[2:])])

    def twice(model, records):
        return np.stack([score(model, records), -score(model, records)], 1)

    terms: dict[str, Any] = {"reference": Model(2.0), "largest_difference": 0.4}
    one = ClippedMean(batched, Model(0.5), score_range=(0.0, 1.0), **terms)
    assert values_of(one) == values_of(mean(Model(2.0), c=0.4))
    assert values_of(dataclasses.replace(one, reference=Model(0.5))) == [0.0], (
        "a query made from another has the reference it is given"
    )
    ranges = [(0.0, 1.0), (-1.0, 0.0)]
    two = ClippedMean(twice, Model(0.5), score_range=ranges, worst="upper", **terms)
    assert values_of(two) == pytest.approx([-1.175, 1.175], abs=1e-6)
