"""A8: where the number of units is private, one unit fewer changes nothing but the exact sum, by the declared sensitivity at most.

Replay under ADD_OR_REMOVE_ONE on n and n - 1 units: noise scale, grid, quanta, divisor, plan, shapes and all that is public must be the
same.
"""

from typing import Any

import pytest

from dpbo import DPGIBO, Adjacency, Budget, PrivacyUnit, PrivateObjective
from dpbo.algorithms import choose_start
from dpbo.algorithms.em import DPFactorAnalysis, DPGaussianMixture, DPKMeans, DPLloyd
from dpbo.errors import InputError
from dpbo.mechanisms import GaussianMechanism
from dpbo.queries import ClippedMean, ClippedSum
from dpbo.testing import SeededEntropy, replay
from tests.attacks.public import public
from tests.attacks.test_replays import BOX, GRID, POINTS, distance, near

pytestmark = pytest.mark.attack("A8")
TERMS: dict[str, Any] = {"unit": PrivacyUnit("record"), "adjacency": Adjacency.ADD_OR_REMOVE_ONE, "budget": Budget(8.0, 1e-5)}


def objective(curator):
    plan = PrivateObjective(curator, near, score_range=(0.0, 1.0), evaluations=3, divisor=100.0)
    return plan(GRID[:3]), plan, curator.statement()


def gibo(curator):
    return DPGIBO(curator, distance, bounds=BOX, budget=0.9, iterations=3, batch_size=3, clip=1.0, divisor=100.0).run()


def fitted(kind, **settings):
    return lambda curator: kind(budget=0.9, radius=2.0, dimension=2, random_state=0, **settings).fit(curator)


RUNS: dict[str, Any] = {
    "objective": objective,
    "sum": lambda curator: curator.release(ClippedSum(lambda _, r: r[:, 0], score_range=(0.0, 1.0)), GaussianMechanism(9.0)),
    "gibo": gibo,
    "start": lambda curator: choose_start(curator, distance, GRID, loss_range=(0.0, 2.0), budget_share=0.3),
    "mixture": fitted(DPGaussianMixture, n_components=2, max_iter=2),
    "k-means": fitted(DPKMeans, n_clusters=2, max_iter=2),
    "lloyd": fitted(DPLloyd, n_clusters=2, max_iter=2),
    "factors": fitted(DPFactorAnalysis, n_components=1),
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("n", [128, 129])  # a power of two fewer, or more: where a size would be rounded
@pytest.mark.filterwarnings("ignore::dpbo.objective.NoiseWarning")
def test_one_unit_fewer_changes_the_exact_sum_alone(name, n):
    assert replay(lambda c, _: public(RUNS[name](c)), POINTS[:n], POINTS[: n - 1], **TERMS, entropy=SeededEntropy(1))


def test_a_mean_over_a_private_number_is_refused():
    with pytest.raises(InputError, match="divisor"):
        replay(
            lambda c, _: c.release(ClippedMean(lambda _, r: r[:, 0], score_range=(0.0, 1.0)), GaussianMechanism(9.0)),
            POINTS, POINTS[:-1], **TERMS,
        )  # fmt: skip


def test_a_divisor_that_is_the_number_is_seen():
    """Power: the number of records as a public divisor."""

    def run(curator, records):
        return PrivateObjective(curator, near, score_range=(0.0, 1.0), evaluations=2, divisor=float(len(records)))(GRID[:2])

    with pytest.raises(AssertionError, match="divisor"):
        replay(run, POINTS, POINTS[:-1], **TERMS)
