"""A13: without noise the best is the best: the largest utility, the smallest loss, the highest
score, in every place that has a direction.

Each algorithm runs without noise on records whose best point is known; a swapped sign would return
the worst.
"""

import pytest
import torch

from dpbo import DPGIBO, Budget, PrivateObjective
from dpbo.algorithms import search_then_choose
from dpbo.gibo import choose_start
from tests.attacks.marks import attack
from tests.attacks.setups import EXACT, owner
from tests.attacks.test_replays import BOX, GRID, distance, near
from tests.setups import DOUBLE

pytestmark = [
    attack("A13"),
    pytest.mark.filterwarnings("ignore::dpbo.objective.NoiseWarning"),
]
RECORDS = torch.full((4000, 2), 0.2, dtype=DOUBLE)
BEST = 0.2


def curator(mu=200.0):
    return owner(RECORDS, budget=Budget.gdp(mu))


def test_scores_are_maximised_and_losses_minimised():
    plan = PrivateObjective(
        curator(), near, score_range=(0.0, 1.0), evaluations=36, mechanism=EXACT
    )
    assert torch.equal(GRID[plan(GRID)[0].argmax()], GRID[distance(RECORDS[0], GRID).argmin()])
    start = choose_start(curator(5.0), distance, GRID, loss_range=(0.0, 2.0), budget=0.9)
    assert torch.allclose(start, torch.full((2,), BEST, dtype=DOUBLE))
    found = DPGIBO(
        curator(), distance, bounds=BOX, mechanism=EXACT, iterations=25, batch_size=3, clip=1.0
    ).run()
    assert (found.x - BEST).abs().max() < 0.05
    chosen = search_then_choose(curator(5.0), near, GRID, score_range=(0.0, 1.0), evaluations=12)
    assert (chosen.x - BEST).abs().max() < 0.21
