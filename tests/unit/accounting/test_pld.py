"""The parts of a composition one by one: the grid keeps both masses, the window holds the tilted
mass, sums and crossings are exact.
"""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binom, norm

from dpbo.accounting import gdp, pld
from dpbo.accounting.dominating_pairs import (
    GaussianPair,
    LaplacePair,
    Pair,
    PoissonPair,
    ResponsePair,
)
from dpbo.accounting.pld import _discretised
from tests.attacks.marks import attack

PAIRS = [
    GaussianPair(0.4),
    ResponsePair(0.37),
    LaplacePair(0.8),
    PoissonPair(0.9, 0.3, "add-or-remove-one", True),
    PoissonPair(0.9, 0.3, "replace-one", False),
]


@attack("A15")
def test_on_the_grid_both_masses_are_kept():
    """P adds up to 1, and Q = P e^-loss to what Q has there: so no point of the curve falls, and
    none is far off.
    """
    for pair, step in itertools.product(PAIRS, [0.3, 0.011]):
        part = _discretised(pair, 3, step, 1e-9)
        assert part.count == 3
        losses = step * (part.first + np.arange(len(part.masses)))
        assert part.masses.min() >= 0
        assert part.masses.sum() + part.infinite == pytest.approx(1.0, rel=1e-12)
        assert part.masses @ np.exp(-losses) == pytest.approx(1.0, rel=1e-6)
        assert losses[0] <= pair.span(1e-9)[0] + step
        assert losses[-1] >= pair.span(1e-9)[1]
        for epsilon in losses[:: max(len(losses) // 7, 1)]:
            on_grid = part.infinite + part.masses @ np.maximum(
                -np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0
            )
            assert on_grid >= true_delta(pair, float(epsilon)) - 1e-12, (pair, step)


def true_delta(pair, epsilon):
    """On cells so fine that what is left of them does not matter: from below."""
    low, high = pair.span(1e-12)
    edges = np.linspace(max(epsilon, low), max(high, epsilon + 1e-9), 4001)
    p, q = pair.masses(edges)
    atoms = sum(mass * max(-math.expm1(epsilon - loss), 0.0) for loss, mass in pair.atoms())
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum()) + atoms


@attack("A15")
def test_what_the_transform_may_round_away_is_added_at_every_point(monkeypatch):
    """2^-51 of the spectrum's mean modulus for each of log2(points) stages, and for each factor of
    the product and two more.
    """
    tilted = pld._tilted({ResponsePair(0.5): 1, LaplacePair(0.3): 4}, 1e-6, 1e-5)
    assert tilted is not None
    points = tilted.points
    rounding = 2**-51 * math.log2(points) * np.abs(tilted.spectrum()).mean() * (1 + 4 + 2)
    read = []
    for share in (pld._ROUNDING, 0.0):
        monkeypatch.setattr(pld, "_ROUNDING", share)
        found = pld._curve(tilted, 1e-6)
        assert found is not None
        read.append(found)
    (losses, deltas), (_, without) = read
    beyond = np.flatnonzero(losses > 0.5 + 4 * 0.3 + 5 * tilted.step)[:-2]
    assert len(beyond) > 20
    for j in beyond:
        above = losses[j + 1 :]
        added = rounding * np.exp(tilted.level - tilted.tilt * above) @ -np.expm1(losses[j] - above)
        assert deltas[j] - without[j] == pytest.approx(added, rel=1e-3, abs=0)


@attack("A15")
def test_the_grid_is_the_finest_that_fits(monkeypatch):
    """Neither one pair's span nor the window takes more points than there may be; what is read on a
    coarse grid is a bound all the same.
    """
    monkeypatch.setattr(pld, "_MOST_POINTS", 4096)
    wide = pld._tilted({ResponsePair(1e-3): 1, ResponsePair(30.0): 1}, 1e-6, 1e-4)
    assert wide is not None
    assert wide.step >= 60 / 4096
    assert wide.points <= 4096
    many: dict[Pair, int] = {GaussianPair(0.01): 25_000}
    tilted = pld._tilted(many, 1e-6, 1e-4)
    assert tilted is not None
    assert 2000 < tilted.points <= 4096, "half the step takes twice as many"
    exact = gdp.epsilon_at(0.01 * math.sqrt(25_000), 1e-6)
    assert exact <= pld.epsilon(many, 1e-6) <= exact * 1.1


def test_losses_too_large_for_floats_are_left_to_other_bounds():
    """Whichever of the pairs has them, and at whichever end."""
    low, high = (PoissonPair(0.03, 0.5, "add-or-remove-one", reverse) for reverse in (True, False))
    for pairs in ((ResponsePair(650.0), GaussianPair(0.1)), (GaussianPair(30.0),), (low,), (high,)):
        assert pld.epsilon(dict.fromkeys(pairs, 1), 1e-6) == math.inf, pairs


@attack("A15")
def test_many_responses_cost_what_their_binomial_says():
    cases = [
        (0.05, 400),
        (0.7, 1),
        (0.7, 3),
        (2.0, 20_000),
    ]
    for (size, slots), delta in itertools.product(cases, [0.3, 1e-3, 1e-8]):
        pair = ResponsePair(size)
        k = np.arange(slots + 1)
        found = pld.epsilon({pair: slots}, delta)
        losses = size * (2 * k - slots)
        masses = binom.pmf(k, slots, 1 - pair.rare)

        def true(epsilon, losses=losses, masses=masses):
            return float(masses @ np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0))

        assert true(found) <= delta, (size, slots, delta)
        if found > 0:
            assert true(min(found, size * slots) * 0.998 - 1e-4) > delta, (size, slots, delta)


def test_what_lies_beyond_the_grids_counts_once_a_slot():
    """A hundred slots of which each loses all with probability 1e-5 are no (e, 5e-4)-DP, and hardly
    more than (e, 1e-3).
    """

    class Broken(GaussianPair):
        def beyond(self, loss):
            return 1e-5

    assert pld.epsilon({Broken(0.1): 100}, 0.9e-3) == math.inf
    assert pld.epsilon({Broken(0.1): 100}, 2e-3) < 6.0
    assert pld.epsilon({Broken(0.1): 50, Broken(0.1001): 50}, 0.9e-3) == math.inf


@attack("A15")
def test_chords_meet_a_curve_where_it_was_read_and_stay_above_it_beyond():
    # beyond its last point a curve falls no further for all that is known
    read = [(np.array([0.0, 1.0, 2.0]), np.array([0.5, 0.2, 0.1]))]
    assert pld.chords(read, np.array([-0.5, 1.0, 2.0, 2.5, 9.0])) == pytest.approx(
        [1.0, 0.2, 0.1, 0.1, 0.1], rel=1e-9
    )


def test_losses_that_do_not_vary_end_at_their_end():
    """All of them together, rounded up."""
    tiny = ResponsePair(1e-200)
    less = ResponsePair(4e-201)
    assert pld.epsilon({tiny: 7}, 1e-6) == pytest.approx(7e-200, rel=1e-9, abs=0)
    assert Fraction(pld.epsilon({tiny: 7, less: 3}, 1e-6)) >= 7 * Fraction(1e-200) + 3 * Fraction(
        4e-201
    )
    assert pld.epsilon({tiny: 7, less: 3}, 1e-6) == pytest.approx(8.2e-200, rel=1e-9, abs=0)
    assert pld.epsilon({}, 1e-6) == 0.0
    # Gaussians end where a ten-thousandth of delta, shared by all slots, is left
    small: dict[Pair, int] = {GaussianPair(1e-200): 5, GaussianPair(3e-200): 2}
    expected = -norm.ppf(1e-10 / 7) * (5 + 3 * 2) * 1e-200
    assert pld.epsilon(small, 1e-6) == pytest.approx(expected, rel=1e-9, abs=0)
    sure = ResponsePair(800.0)
    assert pld.epsilon({sure: 2}, 1e-6) == pytest.approx(1600.0)
    assert pld.epsilon({sure: 1, tiny: 3}, 1e-6) == pytest.approx(800.0)
