"""A13: without noise the best is the best: the largest utility, the smallest loss, the highest
score, in every place that has a direction.

Each algorithm runs without noise on records whose best point is known; a swapped sign would return
the worst.
"""

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.metrics import get_scorer
from sklearn.tree import DecisionTreeClassifier

from dpbo import DPGIBO, Budget, DPSearch, Privacy, PrivateObjective
from dpbo.algorithms import search_then_choose
from dpbo.gibo import choose_start
from tests.attacks.marks import attack
from tests.attacks.setups import EXACT, of, owner
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


def test_a_search_keeps_the_better_model():
    """Labels that a tree of depth 1 can tell, and one with huge leaves cannot: a loss, negated."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1200, 2))
    y = (X[:, 0] > 0).astype(int)
    space = {"min_samples_leaf": scipy.stats.randint(1, 200), "max_depth": [1, 2]}
    settings = of(n_iter=6, scoring="neg_log_loss", privacy=Privacy(allow_repeated=True))
    guess = DecisionTreeClassifier(max_depth=1, min_samples_leaf=201, random_state=0)
    search = DPSearch(guess, space, budget=Budget(50.0, 1e-6), **settings)
    search.fit(X[:400], y[:400], X[400:], y[400:])
    assert get_scorer("neg_log_loss")(search.best_estimator_, X[400:], y[400:]) >= -0.3
    assert search.best_gain_ > 0.0, "a default model of one leaf"
