"""Means over a Poisson sample: under the contract with everybody in it, and with a sample its law,
its cost and its variance.
"""

import itertools
import random

import numpy as np
import pytest
import torch
from scipy.stats import binom, chisquare

from dpbo import Adjacency, Budget, Curator, PrivacyUnit, PrivateObjective
from dpbo.accounting import Planned, RDPFilter
from dpbo.curator.records import PrivateView
from dpbo.errors import InputError, UsageError
from dpbo.events import GaussianEvent, PoissonGaussianEvent
from dpbo.mechanisms import GaussianMechanism, LaplaceMechanism
from dpbo.queries import CellMeans, ClippedMean, PoissonSampled
from dpbo.testing.mechanism_contract import LEVEL
from dpbo.testing.query_contract import SumContract
from tests.attacks.marks import attack
from tests.contracts.bases import tries
from tests.setups import DOUBLE, EXACT, FIRST_MEAN


@tries(40)
@attack("A4", "A9")
class TestSampledMean(SumContract):
    """At rate 1 the sample is everybody, so exact answers can be compared."""

    covers = PoissonSampled

    def query(self, score):
        return PoissonSampled(ClippedMean(score, score_range=(0.0, 10.0), divisor=7.0), rate=1.0)


@tries(40)
@attack("A4", "A9", "A20")
class TestSampledMeanOfGroups(TestSampledMean):
    metrics = 2

    def query(self, score):
        return PoissonSampled(
            ClippedMean(
                score, score_range=[(0.0, 1.0), (-5.0, 3.0)], divisor=7.0, max_records_per_unit=3
            ),
            rate=1.0,
        )


def mean(rate=0.25, **settings):
    return PoissonSampled(
        ClippedMean(lambda _, r: r[:, 0], score_range=(0.0, 1.0), **settings), rate=rate
    )


def records(n=1000):
    return torch.linspace(0, 1, n, dtype=DOUBLE).unsqueeze(1)


def make(data, adjacency=Adjacency.REPLACE_ONE, **settings):
    terms = {
        "budget": Budget(8.0, 1e-5),
        "accounting": RDPFilter(8.0),
        "unit": PrivacyUnit("record"),
        **settings,
    }
    return Curator(data, adjacency=adjacency, **terms)


@attack("A23")
@pytest.mark.usefixtures("seeded_noise")
def test_units_are_taken_by_themselves_and_anew():
    """Sizes are binomial, every unit and every pair comes as often as it should, and no two samples
    are alike.
    """
    view = PrivateView.of(torch.arange(40), PrivacyUnit("record"), units_are_public=True)
    samples = [set(view.poisson_sample(0.25).records.tolist()) for _ in range(4000)]
    sizes = np.bincount([len(s) for s in samples], minlength=41)
    expected = 4000 * binom(40, 0.25).pmf(np.arange(41))
    likely = expected > 5
    assert (
        chisquare(
            [*sizes[likely], sizes[~likely].sum()], [*expected[likely], expected[~likely].sum()]
        ).pvalue
        > LEVEL
    )
    units = np.array([sum(i in s for s in samples) for i in range(40)])
    assert np.abs(units - 1000).max() < 6 * np.sqrt(4000 * 0.25 * 0.75)
    for i, j in itertools.combinations(range(8), 2):
        assert abs(sum({i, j} <= s for s in samples) - 250) < 6 * np.sqrt(4000 / 16)


@attack("A20", "A23")
def test_all_rows_of_a_unit_come_together():
    labels = np.arange(300) % 60
    view = PrivateView.of(
        (torch.arange(300), labels.copy()),
        PrivacyUnit("patient", groups=labels),
        units_are_public=True,
    )
    sample = view.poisson_sample(0.3)
    _, taken = sample.records
    assert sample.rows is not None
    assert sample.groups is not None
    counts = np.bincount(taken, minlength=60)
    assert set(counts.tolist()) == {0, 5}
    assert sample.units == (counts > 0).sum() == len(sample.rows)
    assert (np.bincount(sample.groups) == 5).all()
    assert all(len(set(taken[sample.groups == unit])) == 1 for unit in range(sample.units))


@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ADD_OR_REMOVE_ONE])
@attack("A23")
def test_it_is_charged_as_a_sampled_gaussian_of_that_relation(adjacency):
    curator = make(records(), adjacency)
    release = curator.release(mean(divisor=1000.0), GaussianMechanism(1.5))
    assert release.event == PoissonGaussianEvent(1.5, rate=0.25, relation=adjacency.value)
    # M times half the range, under either relation
    assert release.distribution.std[0] == pytest.approx(1.5 * 0.5)
    assert str(curator.statement().spent)
    assert "sample rate 0.25" in str(curator.statement())


def drawn(query, data, times):
    """Exact answers to so many samples, and the variance that is published."""
    curator = make(data, budget=Budget(1e6, 1e-5))
    releases = [curator.release(query, EXACT) for _ in range(times)]
    return np.array([r.value[0].item() for r in releases]), releases[0].variance.tolist()


@pytest.mark.usefixtures("seeded_noise")
def test_the_published_variance_covers_noise_and_sampling():
    # the worst case: every score at an end of the range
    data = (torch.arange(500) % 2).double().unsqueeze(1)
    values, (bound,) = drawn(mean(), data, 300)
    assert bound == pytest.approx(0.75 / 0.25 / 500 * 0.25)
    assert values.var() == pytest.approx(bound, rel=0.35)
    assert values.mean() == pytest.approx(0.5, abs=5 * np.sqrt(bound / 300))
    values, (bound,) = drawn(mean(0.1, divisor=50.0), torch.ones(1000, 1).double(), 100)
    assert bound == pytest.approx(0.9 / 0.1 * 1000 / 50**2 / 4)
    assert values.var() < 2.1 * bound, "of a hundred draws of that variance once in 10^9"
    query = PoissonSampled(CellMeans(lambda _, r: r[:, 0], cells=2), rate=0.25)
    values, bound = drawn(query, torch.zeros(500, 1), 150)
    assert bound == pytest.approx([0.75 / 0.25 / 500] * 2)
    assert values.var() == pytest.approx(bound[0], rel=0.35)


def test_the_published_variance_is_that_of_the_farther_end_of_a_rounded_middle():
    for lower, upper in ((2.0**53 + 2, 2.0**53 + 4), (2.0**53 + 4, 2.0**53 + 6)):
        query = ClippedMean(lambda _, r: r[:, 0], score_range=(lower, upper))
        assert query.origins() == (2.0**53 + 4,)
        assert PoissonSampled(query, rate=0.25).sampling_variance(500) == pytest.approx(
            [0.75 / 0.25 / 500 * 2.0**2]
        )


def test_other_noise_mixed_batches_and_other_relations_are_refused():
    curator = make(records())
    with pytest.raises(InputError, match="GaussianMechanism"):
        curator.release(mean(), LaplaceMechanism(5.0))
    handles = [
        curator.evaluate(mean()),
        curator.evaluate(FIRST_MEAN),
    ]
    with pytest.raises(UsageError, match="charged alike"):
        curator.release_all(handles, GaussianMechanism(5.0))
    with pytest.raises(InputError, match="sliced"):
        make(type("Opaque", (), {"__len__": lambda self: 5})()).evaluate(mean())
    assert curator.ledger.head().kind == "birth"
    with pytest.raises(InputError, match="GDPFilter"):
        make(records(), accounting=None).release(mean(), GaussianMechanism(5.0))
    with pytest.raises(InputError, match="relation"):
        make(
            records(),
            accounting=Planned([PoissonGaussianEvent(6.0, rate=0.5, relation="add-or-remove-one")]),
        )


@pytest.mark.usefixtures("seeded_noise")
@attack("A6")
def test_a_unit_that_the_score_fails_on_is_worst_also_where_it_is_the_whole_sample():
    def fragile(_, r):
        if bool((r == 1).any()):
            raise ValueError
        return torch.ones(len(r))

    query = PoissonSampled(ClippedMean(fragile, score_range=(0.0, 1.0)), rate=0.25)
    curator = make(torch.tensor([[1.0], [0.0]]), budget=Budget(1e6, 1e-5))
    values = {curator.release(query, EXACT).value.item() for _ in range(100)}
    assert values == {
        0.5,
        -0.5,
        1.5,
    }, "nobody or both, the broken unit alone, the sound one alone: all measured from the middle"


def test_an_objective_over_samples_keeps_its_plan():
    curator = make(records(2000))
    mean = ClippedMean(lambda x, r: (r[:, 0] - x[0]).abs(), score_range=(0.0, 1.0))
    query = PoissonSampled(mean, rate=0.5)
    objective = PrivateObjective(curator, query, evaluations=5)
    Y, Yvar = objective(torch.tensor([[0.0], [1.0]], dtype=DOUBLE))
    assert Y.shape == Yvar.shape == (2, 1)
    assert torch.allclose(Yvar, (objective.noise_std**2).expand(2, 1))
    assert (Y - 0.5).abs().max() < 6 * objective.noise_std.max()
    assert objective.remaining == 3
    with pytest.raises(UsageError, match="Planned"):
        PrivateObjective(make(records(), accounting=None), query, evaluations=5)
    event = PoissonGaussianEvent(6.0, 5, rate=0.5, relation="replace-one")
    planned = make(records(), accounting=Planned([event, GaussianEvent(20.0)]))
    objective = PrivateObjective(planned, query, evaluations=5)
    assert objective.noise_multiplier == 6.0


def test_no_seed_decides_who_is_in_a_sample():
    view = PrivateView.of(torch.arange(1000.0), PrivacyUnit("record"), units_are_public=True)
    before = np.random.get_state()
    samples = []
    with torch.random.fork_rng():
        for _ in range(2):
            np.random.seed(0)
            torch.manual_seed(0)
            random.seed(0)
            samples.append(view.poisson_sample(0.5).records.tolist())
    np.random.set_state(before)
    random.seed()
    assert samples[0] != samples[1]
