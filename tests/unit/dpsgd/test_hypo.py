"""Proposals that follow hidden runs: within the bounds to the last bit, exactly drawn, and paid for
as enumeration says they must be.
"""

import itertools
import math

import mpmath
import numpy as np
import pytest
import scipy.stats
import torch

from dpbo import Space
from dpbo.accounting import selection_bounds
from dpbo.dpsgd.hidden_runs import (
    DensityRatioProposals,
    Run,
    draw_index,
    integer_weights,
    upper_bound,
)
from dpbo.run_counts import FixedRuns, RunCountDistribution
from dpbo.testing import SeededEntropy
from tests.setups import DOUBLE
from tests.unit.accounting.enumerated import profiles_of_laws

ONE = 1 << 40
SPACE = Space(a=scipy.stats.uniform(), kind=["x", "y", "z"])


def _run(x, score):
    return Run(torch.as_tensor(x, dtype=DOUBLE), None, score)


def test_weights_keep_the_bounds_exactly_and_their_mean_is_one():
    peak = torch.zeros(300).double()
    peak[17] = 50.0
    interests = {
        "random": torch.randn(300).double(),
        "one peak": peak,
        "flat": torch.full((300,), 7.0).double(),
        "steep": torch.linspace(-1e4, 1e4, 300).double(),
    }
    for spread in ((0.5, 2.0), (0.9, 1.2), (1.0, 1.0), (1e-3, 500.0), (1.0, 3.0), (0.2, 1.0)):
        for kind, values in interests.items():
            weights = integer_weights(values, spread)
            assert sum(weights) == ONE * 300, (kind, spread)
            assert min(weights) >= spread[0] * ONE, (kind, spread)
            assert max(weights) <= spread[1] * ONE, (kind, spread)
            if kind == "one peak" and spread[0] < 1.0 < spread[1]:
                assert weights[17] == max(weights) > ONE


def test_an_index_is_drawn_by_its_weight():
    weights, entropy = [1, 0, 5, 2], SeededEntropy(3)
    counts = np.bincount([draw_index(weights, entropy) for _ in range(8000)], minlength=4)
    assert counts[1] == 0
    assert scipy.stats.chisquare(counts[[0, 2, 3]], [1000, 5000, 2000]).pvalue > 1e-6


def test_later_runs_look_where_earlier_ones_did_well():
    adaptive = DensityRatioProposals(SPACE, spread=(0.1, 5.0), noise_std=0.01)
    runs = [
        _run([a, k], a - 0.5 * (k == 1)) for a in (0.1, 0.4, 0.7, 0.95) for k in (0.0, 1.0, 2.0)
    ]
    points = SPACE.sample(adaptive.candidates, seed=0)
    interests = adaptive.interests(runs, points, SeededEntropy(1))
    weights = integer_weights(interests, adaptive.spread)
    entropy = SeededEntropy(0)
    follow = torch.stack([points[draw_index(weights, entropy)] for _ in range(200)])
    plain = SPACE.sample(200, seed=1)
    assert follow[:, 0].mean() > plain[:, 0].mean() + 0.2
    assert (follow[:, 1] == 1).float().mean() < (plain[:, 1] == 1).float().mean() / 2


def test_runs_that_failed_or_a_model_that_cannot_be_fitted_say_nothing():
    def breaks(model, X):
        raise RuntimeError("no")

    def leaves(model, X):
        raise SystemExit(3)

    def column(model, X):
        return model.posterior(X).mean

    runs = [_run([0.5, 1.0], 0.3), _run([0.1, 0.0], 0.2), _run([0.2, 2.0], 0.6)]
    given = dict.fromkeys(
        (breaks, leaves, column, lambda m, X: X[:5, 0], lambda m, X: X[:, 0] / 0),
        runs,
    )
    for interest, known in {upper_bound: [_run([0.5, 1.0], -math.inf)] * 5, **given}.items():
        adaptive = DensityRatioProposals(
            SPACE, spread=(0.5, 2.0), noise_std=0.1, candidates=32, interest=interest
        )
        assert not adaptive.interests(known, SPACE.sample(32, seed=0), SeededEntropy(5)).any()


def _policies(draw, outcomes, prior, spread, depth):
    """For each history of outcomes a density over two proposals, at an end of what the spread
    allows.
    """
    c, C = spread
    table = {}
    for length in range(depth):
        for history in itertools.product(range(outcomes), repeat=length):
            low, high = max(c, (1 - C * prior[1]) / prior[0]), min(C, (1 - c * prior[1]) / prior[0])
            first = prior[0] * (low if draw.random() < 0.5 else high)
            table[history] = (first, 1 - first)
    return table


def _winner(law, policy, p, proposal_of, prior, order, depth):
    """The winner's law by enumeration: p[i] is an outcome's probability under the prior; a policy
    reweighs its proposal.
    """
    masses, start = np.zeros(len(p) + 1), law.first()[0]
    pmf = dict(zip(range(start, depth + 1), law.probabilities(depth + 1 - start)[1], strict=True))
    for k, weight in pmf.items():
        if k == 0:
            masses[-1] += weight
            continue
        for history in itertools.product(range(len(p)), repeat=k):
            chance = weight
            for j, outcome in enumerate(history):
                proposal = proposal_of[outcome]
                chance *= p[outcome] / prior[proposal] * policy[history[:j]][proposal]
            masses[max(history, key=lambda outcome: order[outcome])] += chance
    return masses


class ThreeCoins(RunCountDistribution):
    """Binomial: each of three runs is made with probability 1/2."""

    name = "three coins"
    none = 0.125
    mean = 1.5

    def slope(self, u):
        return 1.5 * (1 - 0.5 * u) ** 2

    def generating(self, x):
        return (0.5 + 0.5 * x) ** 3

    def first(self):
        return 0, mpmath.mpf(0.125)

    def ratio(self, k):
        return (3 - k) / (k + 1)


@pytest.mark.parametrize("law", [FixedRuns(2), FixedRuns(3), ThreeCoins()], ids=repr)
def test_no_policy_beats_the_bound(law):
    draw, epsilons, depth = np.random.default_rng(7), np.linspace(0.0, 3.0, 7), 3
    worst, beaten = 0.0, 0
    for _ in range(25):
        prior = np.array([0.3, 0.7]) if draw.random() < 0.5 else np.array([0.5, 0.5])
        spread = [(0.8, 1.25), (0.5, 2.0), (0.9, 1.1)][draw.integers(3)]
        proposal_of = [0, 0, 1, 1]
        inside = [draw.dirichlet([1.0, 1.0], size=2) for _ in range(2)]
        tilt = math.exp(draw.uniform(0.1, 1.0))
        inside[1] = np.array(
            [[a * tilt, b] if draw.random() < 0.5 else [a, b * tilt] for a, b in inside[0]]
        )
        inside[1] /= inside[1].sum(1, keepdims=True)
        p, q = (
            np.array([prior[proposal_of[i]] * side[proposal_of[i]][i % 2] for i in range(4)])
            for side in inside
        )
        order, policy = draw.permutation(4), _policies(draw, 4, prior, spread, depth)
        A, B = (_winner(law, policy, masses, proposal_of, prior, order, depth) for masses in (p, q))
        assert A.sum() == pytest.approx(1.0)
        base = profiles_of_laws(p, q)
        for one, other, side in ((A, B, base), (B, A, base.swapped())):
            true = np.array([np.maximum(one - math.exp(e) * other, 0.0).sum() for e in epsilons])
            bound, plain = (
                selection_bounds.winner_profile(law, side, epsilons, cells=1000, spread=s)
                for s in (spread, (1.0, 1.0))
            )
            beaten += int((true > plain + 1e-9).any())
            assert (true <= bound + 1e-12).all()
            worst = max(worst, float((true / np.maximum(bound, 1e-9)).max()))
    assert worst > 0.05, "the bound says something"
    if isinstance(law, ThreeCoins):
        assert beaten > 0, (
            "the policies are strong enough to break the bound for runs that do not look at each"
            " other"
        )
