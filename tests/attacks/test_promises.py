"""A19, A20, A22, A18: promises about the data are named as such, units are whole, studies add up,
and released rows stay rows with noise.

A19 a gain outside the prior moves a Kusner search further than its theorem says, so the release
must be conditional and refused by default. A20 fifty rows of one patient, all replaced, move a
release by one unit's bound. A22 two algorithms on one data set share one budget. A18 the
column-space attack that always wins against the published transform guesses at the shipped one.
"""

from fractions import Fraction

import pytest
import torch
from scipy.stats import binom

from benchmarks.papers.po_gp_ucb_attack import identify_table
from dpbo import DPGIBO, Budget, PrivateObjective
from dpbo.errors import BudgetExceeded
from dpbo.papers.em import DPKMeans
from tests.attacks.marks import attack
from tests.attacks.setups import DOUBLE, owner
from tests.attacks.test_replays import BOX, GRID, POINTS, distance, near
from tests.unit.papers.test_po_gp_ucb_transform import BRANCHES, grid, published, released


@attack("A22")
@pytest.mark.filterwarnings("ignore::dpbo.objective.NoiseWarning")
def test_studies_of_any_kind_on_one_data_set_share_one_budget(on_disk):
    """Three algorithms, three processes' worth of curators, one ledger: the sum is charged, and
    what is beyond it refused uncharged.
    """

    def curator():
        return owner(POINTS, **on_disk, budget=Budget.gdp(2.0))

    def clusters(budget):
        DPKMeans(2, budget=budget, radius=2.0, dimension=2).fit(curator())

    PrivateObjective(curator(), near, score_range=(0.0, 1.0), evaluations=3, budget=0.5)(GRID[:1])
    DPGIBO(curator(), distance, bounds=BOX, budget=0.25, iterations=2, batch_size=3, clip=1.0).run()
    ledger = curator().ledger
    spent = ledger.verify().total
    assert ledger.cap * Fraction(74, 100) <= spent <= ledger.cap * Fraction(3, 4)
    with pytest.raises(BudgetExceeded):
        clusters(0.5)
    assert ledger.verify().total == spent
    clusters(0.25)
    assert ledger.verify().total <= ledger.cap


@attack("A18")
@pytest.mark.filterwarnings("ignore:noise .* a coordinate on rows")
def test_the_column_space_tells_neighbours_of_the_shipped_release_apart_by_chance(measured):
    """40 pairs of tables: always for the published transform, within 5 standard deviations of a
    coin at epsilon = 0.01 for the shipped.
    """
    X = grid(12)
    trials = 40
    right = {"published": 0, "shipped": 0}
    for trial in range(trials):
        neighbour = X.clone()
        truth = trial % 2
        neighbour[7] += torch.tensor([1.0, 0.0], dtype=DOUBLE)
        tables = (X, neighbour)
        right["published"] += (
            identify_table(published(tables[truth], BRANCHES["if"], seed=trial).Z, tables) == truth
        )
        right["shipped"] += (
            identify_table(released(tables[truth], "l2-laplace", 0.01)[0], tables) == truth
        )
    assert right["published"] == trials
    assert 1e-6 < binom.cdf(right["shipped"], trials, 0.5) < 1 - 1e-6
    measured(trials, right["shipped"] / trials)
