"""Audits reach nine tenths of every claim, never pass it, and catch what is sabotaged."""

import dataclasses

import numpy as np
import pytest
import torch

from dpbo import Adjacency, Budget, Curator, PrivacyUnit, PrivateObjective
from dpbo.errors import InputError
from dpbo.mechanisms import GaussianMechanism, LaplaceMechanism
from dpbo.privacy import Sensitivity
from dpbo.queries import ClippedMean
from dpbo.testing import SeededEntropy, audit, reachable

UNIT, QUANTUM = Sensitivity(1.0, 1.0, 1.0), 2.0**-30


def drawing(mechanism, seed, factor=1.0):
    """Outputs of a mechanism on sums 0 and 1, its sensitivity apart, many at once."""
    law, entropy = mechanism.law(UNIT, [QUANTUM]), SeededEntropy(seed)

    def draw(which, count):
        many = dataclasses.replace(law, scale=(factor * law.scale[0],) * count, grid=law.grid * count)
        sums = np.full(count, which << 30, dtype=np.int64)
        return mechanism._sample(sums, [QUANTUM] * count, many, entropy) * law.grid[0]

    return draw


@pytest.mark.parametrize("mu", [0.5, 1.0, 3.0])
def test_the_gaussian_mechanism_is_as_private_as_it_says_and_no_more(mu):
    runs = int(3 * (125 / mu) ** 2)
    found = audit(drawing(GaussianMechanism(1 / mu), seed=1), runs=runs)
    assert 0.9 * mu <= found.mu <= mu
    assert reachable(mu, runs) == pytest.approx(found.mu, rel=0.03)
    assert f"{runs:,} measured runs" in str(found)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_the_laplace_mechanism_is_as_private_as_it_says_and_no_more(epsilon):
    found = audit(drawing(LaplaceMechanism(1 / epsilon), seed=2), runs=300_000, delta=0.0)
    assert 0.9 * epsilon <= found.epsilon(0.0) <= epsilon


@pytest.mark.parametrize("mechanism", [GaussianMechanism(1.0), LaplaceMechanism(1.0)])
def test_too_little_noise_is_caught(mechanism):
    found = audit(drawing(mechanism, seed=3, factor=0.7), runs=100_000, delta=0.0 if isinstance(mechanism, LaplaceMechanism) else None)
    claim = found.epsilon(0.0) if isinstance(mechanism, LaplaceMechanism) else found.mu
    assert claim > 1.15


def worst_case(query, mechanism, runs, **settings):
    """The whole way through a curator, on records that all sit at one end but for one unit."""
    records = [torch.zeros(5, dtype=torch.float64) for _ in range(2)]
    records[1][0] = 1e9
    terms = {"unit": PrivacyUnit("record"), "adjacency": Adjacency.REPLACE_ONE, "budget": Budget.gdp(1e4), **settings}
    curators = [Curator(r, entropy=SeededEntropy(5 + i), **terms) for i, r in enumerate(records)]
    handles = [lambda c=c: c.evaluate(query) for c in curators]

    def draw(which, count):
        return np.array([r.value.item() for r in curators[which].release_all([handles[which]() for _ in range(count)], mechanism)])

    return audit(draw, runs=runs)


def identity(_x, records):
    return records


class NeverClips(ClippedMean):
    """The clip is computed and dropped."""

    def lattices(self, units):
        return [dataclasses.replace(grid, low=-(2**60), high=2**60) for grid in super().lattices(units)]


def test_a_release_through_the_curator_is_as_private_as_it_says_and_a_dropped_clip_is_caught():
    found = worst_case(ClippedMean(identity, score_range=(0.0, 1.0)), GaussianMechanism(0.5), 8000)
    assert 0.85 * 2 <= found.mu <= 2
    assert found.mu >= 0.95 * reachable(2.0, 8000)
    leaking = worst_case(NeverClips(identity, score_range=(0.0, 1.0)), GaussianMechanism(0.5), 500)
    assert leaking.mu > 2


@pytest.mark.filterwarnings("ignore::dpbo.objective.NoiseWarning")
def test_a_whole_plan_is_audited_as_one_transcript():
    """Eight releases of one plan: their log-likelihood ratio is Gaussian with the plan's mu; the attack finds what so many runs can."""
    records = [torch.zeros(5, dtype=torch.float64), torch.tensor([1.0, 0, 0, 0, 0], dtype=torch.float64)]
    X, mu, runs = torch.rand(8, 2, dtype=torch.float64), 3.0, 400
    transcripts = []
    for i, data in enumerate(records):
        entropy = SeededEntropy(20 + i)
        rows = []
        for _ in range(2 * runs):
            curator = Curator(data, unit=PrivacyUnit("record"), adjacency=Adjacency.REPLACE_ONE, budget=Budget.gdp(mu), entropy=entropy)
            Y, _ = PrivateObjective(curator, identity, score_range=(0.0, 1.0), evaluations=8, mechanism=GaussianMechanism)(X)
            rows.append(Y.flatten().numpy())
        transcripts.append(np.stack(rows))
    used = [0, 0]

    def draw(which, count):
        start, used[which] = used[which], used[which] + count
        return transcripts[which][start : start + count]

    found = audit(draw, runs=runs)
    assert 0.9 * reachable(mu, runs) <= found.mu <= mu


def test_an_audit_too_small_to_say_anything_is_refused():
    with pytest.raises(InputError, match="runs"):
        audit(drawing(GaussianMechanism(1.0), seed=1), runs=10)
    assert reachable(0.01, 100) == 0.0


def test_draws_that_break_the_audits_assumptions_are_refused():
    with pytest.raises(InputError, match="independent in every call"):
        audit(lambda which, count: np.random.default_rng(which).normal(size=(count, 5)), runs=200)
    with pytest.raises(InputError, match="as many outputs"):
        audit(lambda which, count: np.zeros(count // 2), runs=200)
    with pytest.raises(InputError, match="level"):
        audit(drawing(GaussianMechanism(1.0), seed=1), runs=200, level=0.0)


def test_equal_laws_show_nothing():
    rng = np.random.default_rng(0)
    assert audit(lambda which, count: rng.normal(size=count), runs=20_000).mu == 0.0


def test_the_fixture_is_seeded_by_the_tests_name(seeded_entropy):
    again = SeededEntropy(seeded_entropy._seed)
    assert seeded_entropy(16) == again(16)
