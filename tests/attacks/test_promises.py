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
from dpbo import DPGIBO, Adjacency, Budget, PrivacyUnit, PrivateObjective
from dpbo.errors import BudgetExceeded, InputError
from dpbo.gibo import ClippedGradient
from dpbo.mechanisms import ExponentialMechanism, GaussianMechanism
from dpbo.papers.em import DPKMeans
from dpbo.queries import ClippedSum
from dpbo.testing import replay
from tests.attacks.marks import attack
from tests.attacks.setups import DOUBLE, EXACT, FIRST_MEAN, TERMS, first_column, owner
from tests.attacks.test_replays import BOX, GRID, POINTS, distance, near
from tests.unit.papers.test_kusner_search import make, search
from tests.unit.papers.test_po_gp_ucb_transform import BRANCHES, grid, published, released


@attack("A19")
def test_a_gain_outside_the_prior_breaks_the_bound_and_the_release_says_so():
    """The construction: one record turns the whole gain about."""
    calm, wild = (torch.full((40,), 0.7, dtype=DOUBLE) for _ in range(2))
    wild[0] = 1e6
    query = search(
        gain=lambda x, records: 30.0 if float(records.max()) > 1.0 else -30.0,
        value_range=(-30.0, 30.0),
    ).best()
    values = [make(records).release(query, EXACT).value for records in (calm, wild)]
    assert (values[0] - values[1]).abs().max() > query.sensitivity(Adjacency.REPLACE_ONE).linf
    refusing = make(calm, allow_conditional=False)
    with pytest.raises(InputError, match="gp-prior"):
        refusing.release(query, ExponentialMechanism.of(1.0))
    assert refusing.ledger.verify().total.parts == (0,)
    allowed = make(calm)
    allowed.release(query, ExponentialMechanism.of(1.0))
    lines = allowed.statement().lines
    assert lines[0] == "not bounded"
    assert "gp-prior" in str(allowed.statement())


@attack("A20")
@pytest.mark.parametrize(
    "query",
    [
        pytest.param(FIRST_MEAN, id="mean"),
        pytest.param(
            ClippedSum(first_column, score_range=(0.0, 1.0), max_records_per_unit=3),
            id="capped sum",
        ),
        pytest.param(
            ClippedGradient(
                first_column,
                torch.zeros(1, 1).double(),
                weights=torch.ones(2, 1).double(),
                clip=0.3,
                loss_range=(-9.0, 9.0),
            ),
            id="gradient",
        ),
    ],
)
def test_all_rows_of_a_patient_move_a_release_by_one_units_bound(query):
    unit = PrivacyUnit("patient", groups=torch.arange(400) // 50)
    records = torch.rand(400, 1, dtype=DOUBLE)
    for worst in (1e9, -1e9, float("nan")):
        other = records.clone()
        # All fifty rows of patient 2.
        other[100:150] = worst
        settings = {**TERMS, "unit": unit}
        assert replay(
            lambda curator, _: curator.release(query, GaussianMechanism(5.0)).value,
            records,
            other,
            **settings,
        )


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
    """60 pairs of tables: always for the published transform, within 5 standard deviations of a
    coin at epsilon = 0.01 for the shipped.
    """
    X = grid(12)
    trials = 60
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
