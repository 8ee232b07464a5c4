"""The curator's side: the least noisy law, rows released once, answers by name, and audits that
reach what is claimed.
"""

import math

import numpy as np
import pytest
import torch

import dpbo
from dpbo import Adjacency, Budget, Curator, PrivacyUnit, RowChange
from dpbo.accounting import GDPFilter, PureFilter
from dpbo.errors import BudgetExceeded, InputError, LedgerMismatch
from dpbo.events import L2LaplaceEvent
from dpbo.mechanisms import GaussianMechanism, L2LaplaceMechanism, LaplaceMechanism
from dpbo.objective import NoiseWarning
from dpbo.papers.po_gp_ucb import Outcomes, RowTable, plan_rows, release_rows, row_noises
from dpbo.papers.po_gp_ucb.row_noise import random_projection
from tests.setups import DOUBLE, of

CHANGE = RowChange(1.0, diameter=50.0, table="rows")


def rows_of(n, d=2, seed=0):
    X = torch.randn(n, d, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))
    return 20.0 * X / X.norm(dim=1).max()


def terms(**changed):
    given = of(
        unit=PrivacyUnit("row"),
        budget=Budget(4.0, 0.0),
        accounting=PureFilter(),
        role="candidate",
        adjacency=CHANGE,
    )
    return {**given, **changed}


def curator(n=40, **changed):
    X = rows_of(n)
    return Curator({"rows": X, "y": X[:, 0].sigmoid()}, **terms(**changed))


def table(**changed):
    return RowTable((0.0, 0.0), 25.0, row_change=CHANGE, **changed)


def test_the_sheets_table_of_noise():
    """Root mean squares of a row's noise, to the printed digits; which law is the least noisy
    depends on the dimension.
    """
    printed = [
        (1.0, 1e-5, 2, 2.45, 5.28),
        (1.0, 1e-5, 3, 3.46, 6.46),
        (math.exp(1.1), 1e-5, 2, 0.815, 1.96),
        (math.exp(2.9), 1e-5, 3, 0.191, 0.540),
        (math.exp(2.8), 1e-4, 2, 0.149, 0.440),
    ]
    for epsilon, delta, dimension, laplace, gaussian in printed:
        best, other = row_noises(dimension, budget=Budget(epsilon, delta), sensitivity=1.0)
        assert isinstance(best.mechanism, L2LaplaceMechanism)
        assert isinstance(other.mechanism, GaussianMechanism)
        for found, root in ((best, laplace), (other, gaussian)):
            assert math.sqrt(found.variance * dimension) == pytest.approx(root, rel=5e-3)
    kinds = [
        type(row_noises(d, budget=Budget(1.0, 1e-5), sensitivity=1.0)[0].mechanism)
        for d in (2, 12, 13, 40)
    ]
    assert kinds == [L2LaplaceMechanism, L2LaplaceMechanism, GaussianMechanism, GaussianMechanism]


def test_a_projection_pays_for_l2_laplace_noise_and_never_for_the_gaussian():
    pure = of(budget=Budget(3.0, 0.0), sensitivity=1.0, accounting=PureFilter())
    ways = row_noises(300, **pure, projections=[30, 100], lengthscale=50.0)
    plain = next(way for way in ways if way.projection is None)
    assert ways[0].projection is not None
    assert ways[0].error(50.0) < 0.8 * plain.error(50.0)
    assert f"projection onto {ways[0].dimension}" in str(ways[0])
    assert row_noises(300, **pure, projections=[30], lengthscale=1e6)[0].projection is None
    gaussian = row_noises(
        300,
        budget=Budget(3.0, 1e-5),
        sensitivity=1.0,
        accounting=GDPFilter(),
        projections=[30, 100, 299],
        lengthscale=100.0,
    )
    assert (
        next(way.dimension for way in gaussian if isinstance(way.mechanism, GaussianMechanism))
        == 300
    )


def test_the_error_of_distances_is_that_of_released_rows():
    """Two rows a length-scale apart, many releases: the squared distance less its noise, against
    the formula.
    """
    for way in row_noises(
        6, budget=Budget(6.0, 1e-5), sensitivity=1.0, projections=[3], lengthscale=4.0
    ):
        if isinstance(way.mechanism, GaussianMechanism):
            k = way.dimension
            deviation = math.sqrt(way.variance)
            estimates = []
            x = 4.0 * torch.nn.functional.normalize(torch.ones(6, dtype=DOUBLE), dim=0)
            generator = torch.Generator().manual_seed(0)
            for seed in range(4000):
                A = (
                    torch.eye(6, dtype=DOUBLE)
                    if way.projection is None
                    else random_projection(6, 3, seed=seed)
                )
                z = x @ A + math.sqrt(2) * deviation * torch.randn(
                    k, dtype=DOUBLE, generator=generator
                )
                estimates.append(float(z.square().sum()) / 16 - 2 * k * way.variance / 16)
            assert np.std(estimates) == pytest.approx(way.error(4.0), rel=0.1)
            assert np.mean(estimates) == pytest.approx(
                1.0, abs=5 * way.error(4.0) / math.sqrt(4000)
            )


def test_what_the_noise_means_is_said_before_anything_is_charged():
    """By the formula of `dpbo.plan`; with the epsilon that is named a good row can be found."""
    whole = RowTable((0.0, 0.0), 25.0, table="rows")
    plan = dpbo.plan(4000, Budget(4.0, 1e-5)).strategies[0]
    assert plan.noise is not None
    assert plan.detectable_difference is not None
    for law, changed in (
        (L2LaplaceMechanism, {}),
        (GaussianMechanism, of(budget=Budget(4.0, 1e-5), accounting=GDPFilter())),
    ):
        owner = curator(adjacency=Adjacency.REPLACE_ONE, **changed)

        def way(epsilon, law=law, owner=owner):
            budget = Budget(epsilon, owner.budget.delta or 0.0)
            ways = row_noises(2, budget=budget, sensitivity=50.0, accounting=owner.accounting)
            return next(way for way in ways if isinstance(way.mechanism, law))

        planned = plan_rows(owner, whole, way(4.0).mechanism)
        assert planned.noise == pytest.approx(math.sqrt(way(4.0).variance), rel=1e-6)
        assert planned.detectable_distance / planned.noise == pytest.approx(
            plan.detectable_difference / plan.noise
        )
        needed = f"the best row will hardly be found; epsilon >= {planned.epsilon:.2g}"
        assert f"on rows of norm up to 25: {needed}" in str(planned)
        assert ("fewer coordinates" in str(planned)) is (law is L2LaplaceMechanism)
        enough = plan_rows(owner, whole, way(1.001 * (planned.epsilon or 0.0)).mechanism)
        assert "a good row can be found" in str(enough)
        with pytest.warns(NoiseWarning, match="hardly be found"):
            release_rows(owner, whole, way(4.0).mechanism)
    assert "the best row can be found" in str(
        plan_rows(curator(), table(), L2LaplaceMechanism.of(4.0))
    )


def test_rows_are_drawn_once_whoever_asks_again(on_disk):
    kept = on_disk
    two = L2LaplaceMechanism.of(2.0)
    divided = {"divided by": [1.0, 2.0]}
    first, again = (release_rows(curator(**kept), table(), two, terms=divided) for _ in range(2))
    assert torch.equal(first.Z, again.Z)
    assert len(curator(**kept).ledger.charges("rows")) == 1
    assert first.variance == pytest.approx(again.variance)
    for asked in (
        lambda: release_rows(
            curator(**kept), RowTable((0.0, 0.0), 20.0, row_change=CHANGE), two, terms=divided
        ),
        lambda: release_rows(curator(**kept), table(), two, terms={"divided by": [2.0, 1.0]}),
        lambda: release_rows(curator(n=39, **kept), table(), two, terms=divided),
        lambda: release_rows(
            curator(**kept), table(projection=torch.eye(2, dtype=DOUBLE)), two, terms=divided
        ),
    ):
        with pytest.raises(LedgerMismatch):
            asked()
    with pytest.raises(BudgetExceeded):
        release_rows(curator(**kept), table(), L2LaplaceMechanism.of(3.0), name="another")
    assert curator(**kept).ledger.charges("rows")[0].body["event"] == L2LaplaceEvent(0.5).to_json()


def answers(private, **changed):
    return Outcomes(
        private,
        lambda records: records["y"],
        **{"value_range": (0.0, 1.0), "budget": 0.5, **changed},
    )


@pytest.mark.usefixtures("seeded_noise")
def test_distinct_rows_cost_what_one_does():
    private = curator()
    asked = answers(private)
    for row in range(40):
        assert asked.value(row, request=f"{row}").row == row
    assert float(private.ledger.head().total.parts[0]) == 2.0
    assert asked.variance == asked.history()[0].variance == pytest.approx(2 / 2.0**2)
    with pytest.raises(BudgetExceeded):
        asked.value(0, request="again")
    residues = np.array([a.value for a in asked.history()]) - rows_of(40)[:, 0].sigmoid().numpy()
    assert abs(residues.mean()) < 5 * math.sqrt(asked.variance / 40)


def test_the_less_noisy_law_is_taken_and_repeats_share_the_budget():
    assert isinstance(answers(curator()).mechanism, LaplaceMechanism)
    gaussian = answers(curator(budget=Budget(0.5, 1e-2), accounting=GDPFilter()))
    assert isinstance(gaussian.mechanism, GaussianMechanism)
    assert answers(curator(), repeats=4).variance == pytest.approx(2 / 0.5**2)
    private = curator(allow_conditional=True)
    asked = Outcomes(
        private, lambda records: None, value_range=(0.0, 1.0), declassified="a test", worst="upper"
    )
    assert asked.value(0, request="a").value == pytest.approx(1.0)


def test_an_answer_has_one_name(on_disk):
    first = answers(curator(**on_disk)).value(7, request="a")
    assert answers(curator(**on_disk)).value(7, request="a") == first
    for request in ("a", ""):
        with pytest.raises(InputError, match="request"):
            answers(curator(**on_disk)).value(8, request=request)
    assert len(curator(**on_disk).ledger.charges("outcomes")) == 1


def test_an_outcome_is_not_looked_at_where_its_row_has_no_answer_left():
    looked = []

    def outcome(records):
        looked.append(1)
        return 0.5

    asked = Outcomes(curator(), outcome, value_range=(0.0, 1.0), budget=0.5, limit=2)
    asked.value(1, request="a")
    for request in ("b", "c"):
        with pytest.raises(BudgetExceeded):
            asked.value(1, request=request)
    asked.value(2, request="d")
    with pytest.raises(BudgetExceeded, match="answers"):
        asked.value(3, request="e")
    assert len(looked) == 2
