"""A4: no order, magnitude or dtype lets a sum move further than declared; A8 of the sum: nothing
else of it depends on how many there are.

Each record is a whole number before it is added, so a permutation changes no bit and one replaced
record moves the integer sum by its own two contributions. Float sums fail both at once (Casacuberta
et al. 2022: 4 million float32 scores permuted moved by 238).
"""

import numpy as np
import pytest
import torch

from dpbo import Adjacency
from dpbo.gibo import ClippedGradient
from dpbo.papers.em.mixture_moments import MixtureMoments
from dpbo.papers.em.point_sums import ClusterSums, SecondMoment, VectorSum
from dpbo.queries import ClippedMean, ClippedSum
from dpbo.queries.ball import Ball
from dpbo.testing.query_contract import require_within
from tests.attacks.marks import attack
from tests.attacks.setups import first_column
from tests.contracts.bases import exact_sum
from tests.setups import DOUBLE

pytestmark = attack("A4")
N = 100_003
BIG = 1e8


def plane(records):
    return records[:, :2]


BALL = Ball(BIG)
QUERIES = {
    "mean": ClippedMean(first_column, score_range=(-BIG, BIG)),
    "sum": ClippedSum(first_column, score_range=(0.0, BIG)),
    "gradient": ClippedGradient(
        first_column, torch.zeros(1, 1).double(), weights=torch.full((3, 1), 0.7).double(), clip=BIG
    ),
    "clusters": ClusterSums(
        2, ball=BALL, centers=torch.tensor([[0.1, 0.0], [-0.1, 0.0]]).double(), vectors=plane
    ),
    "moments": MixtureMoments(2, ball=BALL, natural=torch.zeros(2, 6).double(), vectors=plane),
    "second moment": SecondMoment(2, ball=BALL, vectors=plane),
    "sum of vectors": VectorSum(2, ball=BALL, vectors=plane),
}


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_permuted_and_one_record_swapped_a_sum_moves_as_declared(name, dtype, measured):
    """In exact whole numbers, of 10^5 records at 10^8 of either sign, with fractions that no float
    sum keeps.
    """
    rng = np.random.default_rng(0)
    records = torch.from_numpy(rng.uniform(-1.5 * BIG, 1.5 * BIG, size=(N, 2))).to(dtype)
    permuted = records[torch.from_numpy(rng.permutation(N))]
    query = QUERIES[name]
    first = exact_sum(query, records)
    again = exact_sum(query, permuted)
    assert first.numerators.tolist() == again.numerators.tolist()
    for other in ([3e8, 0.0], [-3e8, 1e-30], [float("nan"), 0.0]):
        swapped = permuted.clone()
        swapped[7] = torch.tensor(other, dtype=dtype)
        moved = exact_sum(query, swapped)
        require_within(
            first.numerators.tolist(),
            moved.numerators.tolist(),
            first.quanta,
            query.sensitivity(Adjacency.REPLACE_ONE),
            name,
        )
    measured(N)


def test_the_largest_numbers_of_many_records_are_added_exactly():
    """Records within a few quanta of the top of the range: float sums of blocks beyond 2^53 would
    round their last bits away.
    """
    query = ClippedSum(first_column, score_range=(0.0, 1.0))
    n = 3 * 2**16 + 5
    (grid,) = query.lattices(n)
    numbers = grid.high - torch.arange(n).square() % 7
    records = (numbers.double() * grid.quantum).unsqueeze(1)
    assert exact_sum(query, records).numerators.tolist() == [sum(numbers.tolist())]
