"""A query of one's own: what is made of a score and its range, and what is refused."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from dpbo import Adjacency, PrivacyUnit
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import ClippedSum, UnitSum
from dpbo.testing import SumContract
from tests.attacks.marks import attack
from tests.contracts.bases import exact_sum, tries
from tests.setups import DOUBLE, owner

RECORDS = torch.linspace(-1.0, 2.0, 24, dtype=DOUBLE).reshape(12, 2)


@dataclass(frozen=True, eq=False)
class Totals(UnitSum):
    """The records' own numbers, two a record, each times a factor."""

    factors: Any = field(default=(1.0, 1.0))
    most: float = 3.0
    max_records_per_unit = 4
    worst = "upper"

    @property
    def score_range(self):
        return [(-self.most, self.most), (0.0, 1.0)]

    def score(self, records):
        return records * torch.as_tensor(self.factors)


@tries(30)
@attack("A4", "A5", "A9", "A20", "A36")
class TestTotals(SumContract):
    covers = Totals
    metrics = 2

    def query(self, score):
        return Totals()


@attack("A9", "A36")
def test_it_declares_and_answers_what_the_clipped_sum_does():
    like = ClippedSum(
        lambda _, r: r, score_range=[(-3.0, 3.0), (0.0, 1.0)], max_records_per_unit=4, worst="upper"
    )
    for adjacency in (Adjacency.REPLACE_ONE, Adjacency.ADD_OR_REMOVE_ONE):
        assert Totals().sensitivity(adjacency) == like.sensitivity(adjacency)
    unit = PrivacyUnit("patient", groups=[0] * 7 + [1] * 5)
    for public in (True, False):
        a, b = (exact_sum(query, RECORDS, unit, public=public) for query in (Totals(), like))
        assert (a.numerators.tolist(), a.quanta) == (b.numerators.tolist(), b.quanta)
    assert Totals().affine(None) == ((0.0, 0.0), 1.0), "nothing is divided by a number of units"
    assert Totals().public_inputs() == {**like.public_inputs(), "most": 3.0}


def curator(**settings):
    return owner(RECORDS, allow_repeated=True, **settings)


class Changing(UnitSum):
    """A range that is another one whenever it is asked for."""

    def __init__(self):
        self.times_asked = []

    @property
    def score_range(self):
        self.times_asked.append(1)
        return (0.0, 1.0 / len(self.times_asked))

    def score(self, records):
        return records[:, 0]


@attack("A6", "A36")
def test_noise_is_for_the_question_that_was_answered():
    held = torch.ones(2)
    query = Totals(held)
    held.zero_()
    assert query.factors.tolist() == [1.0, 1.0]
    private = curator()
    handle = private.evaluate(Changing())
    assert private.release(handle, GaussianMechanism(10.0)).distribution.scale[0] == pytest.approx(
        10.0
    )
