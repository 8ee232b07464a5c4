"""ClippedMean and ClippedSum under the query contract, in every form they take."""

import torch

from dpbo.queries import ClippedMean, ClippedSum
from dpbo.testing.query_contract import SumContract
from tests.attacks.marks import attack
from tests.contracts.bases import tries
from tests.setups import DOUBLE

pytestmark = attack("A4", "A5", "A9", "A20")


@tries(50)
class TestClippedMean(SumContract):
    covers = ClippedMean

    def query(self, score):
        return ClippedMean(score, score_range=(0.0, 1.0), divisor=10)


@tries(30)
class TestClippedMeanOfOddRange(SumContract):
    covers = ClippedMean

    def query(self, score):
        return ClippedMean(score, score_range=(-0.3, 10.7), divisor=10, worst="upper")


@tries(50)
class TestClippedMeanOfSeveralMetrics(SumContract):
    covers = ClippedMean
    metrics = 3

    def query(self, score):
        return ClippedMean(
            score,
            score_range=[(0.0, 1.0), (-5.0, 0.1), (2.0, 3.0)],
            weights=[1.0, 2.0, 0.3],
            divisor=10,
        )


@tries(50)
class TestPairedMean(SumContract):
    """Against a reference whose score is the middle of the range, so that a difference reaches both
    ends of [-c, c].
    """

    covers = ClippedMean

    def query(self, score):
        def against(subject, records):
            own = score(None, records)
            return (
                own if subject is None else torch.full_like(torch.as_tensor(own, dtype=DOUBLE), 0.5)
            )

        return ClippedMean(
            against,
            score_range=(0.0, 1.0),
            divisor=10,
            reference="the middle",
            largest_difference=0.3,
        )


@tries(30)
class TestClippedSum(SumContract):
    covers = ClippedSum

    def query(self, score):
        return ClippedSum(score, score_range=(-1.0, 2.0))


@tries(30)
class TestClippedSumOfFewRecordsAUnit(SumContract):
    covers = ClippedSum

    def query(self, score):
        return ClippedSum(score, score_range=(2.0, 3.0), max_records_per_unit=3)


@tries(30)
class TestClippedSumBelowZero(SumContract):
    covers = ClippedSum

    def query(self, score):
        return ClippedSum(score, score_range=(-3.0, -0.7), max_records_per_unit=2)
