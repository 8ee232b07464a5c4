"""The parts of a composition one by one: the grid keeps both masses, the window holds the tilted mass, sums and crossings are exact."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binom, norm

from dpbo.accounting import gdp, pld
from dpbo.accounting.pairs import GaussianPair, LaplacePair, Pair, PoissonPair, ResponsePair
from dpbo.accounting.pld import _after, _crossing, _discounted, _discretised, _Tilted

PAIRS = [
    GaussianPair(0.4), ResponsePair(0.37), LaplacePair(0.8), PoissonPair(0.9, 0.3, "add-or-remove-one", True),
    PoissonPair(0.9, 0.3, "replace-one", False),
]  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: type(pair).__name__)
@pytest.mark.parametrize("step", [0.3, 0.011])
@pytest.mark.attack("A15")
def test_on_the_grid_both_masses_are_kept(pair, step):
    """P adds up to 1, and Q = P e^-loss to what Q has there: so no point of the curve falls, and none is far off."""
    part = _discretised(pair, 3, step, 1e-9)
    assert part.count == 3
    losses = step * (part.first + np.arange(len(part.masses)))
    assert part.masses.min() >= 0
    assert part.masses.sum() + part.infinite == pytest.approx(1.0, rel=1e-12)
    assert part.masses @ np.exp(-losses) == pytest.approx(1.0, rel=1e-6)
    assert losses[0] <= pair.span(1e-9)[0] + step
    assert losses[-1] >= pair.span(1e-9)[1]
    for epsilon in losses[:: max(len(losses) // 7, 1)]:
        on_grid = part.infinite + part.masses @ np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0)
        assert on_grid >= true_delta(pair, float(epsilon)) - 1e-12


def true_delta(pair, epsilon):
    """On cells so fine that what is left of them does not matter: from below."""
    low, high = pair.span(1e-12)
    edges = np.linspace(max(epsilon, low), max(high, epsilon + 1e-9), 4001)
    p, q = pair.masses(edges)
    atoms = sum(mass * max(-math.expm1(epsilon - loss), 0.0) for loss, mass in pair.atoms())
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum()) + atoms


@pytest.mark.parametrize(("size", "slots"), [(0.3, 40), (1.0, 12)])
@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-14])
@pytest.mark.attack("A15")
def test_the_window_holds_all_but_a_little_of_the_tilted_mass(size, slots, delta):
    pair = ResponsePair(size)
    tilted = _Tilted([_discretised(pair, slots, 0.01, 1e-9)], 0.01, delta)
    k = np.arange(slots + 1)
    losses = size * (2 * k - slots)
    weights = binom.logpmf(k, slots, 1 - pair.rare) + tilted.tilt * losses
    weights = np.exp(weights - weights.max())
    weights /= weights.sum()
    outside = weights[np.abs(losses - tilted.mean) > tilted.half_width()].sum()
    assert outside < 1e-14
    assert tilted.mean == pytest.approx(weights @ losses, abs=0.02)
    spread = math.sqrt(weights @ (losses - weights @ losses) ** 2)
    assert tilted.deviation == pytest.approx(spread, rel=0.05)
    assert tilted.half_width() < 20 * spread + 2 * size * slots, "not much wider than it must be"
    assert tilted.points() >= 2 * tilted.half_width() / 0.01
    assert pld._curve(tilted, delta) is not None


@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-14])
@pytest.mark.attack("A15")
def test_of_a_gaussian_the_half_width_is_chernoffs(delta):
    """Its log moments are squares, so t standard deviations off the tilt e^-35 is reached at t/2 + 35/t: least at t = 8 of those tried."""
    tilted = _Tilted([_discretised(GaussianPair(0.7), 3, 0.01, 1e-40)], 0.01, delta)
    assert tilted.half_width() == pytest.approx((8 / 2 + 35 / 8) * tilted.deviation, rel=1e-3)
    assert tilted.deviation == pytest.approx(0.7 * math.sqrt(3), rel=1e-3)


@pytest.mark.attack("A15")
def test_the_window_reaches_the_half_width_on_either_side(monkeypatch):
    """Wherever in its cell the mean lies, what is left outside is further off; and no side is longer than it must be."""
    monkeypatch.setattr(pld, "next_fast_len", lambda points, real: points)
    for delta in np.geomspace(1e-2, 1e-12, 60):
        tilted = _Tilted([_discretised(ResponsePair(0.3), 40, 0.02, 1e-15)], 0.02, float(delta))
        read = pld._curve(tilted, float(delta))
        assert read is not None
        highest = read[0][-1]
        lowest = highest - (tilted.points() - 1) * tilted.step
        for reached in (highest - tilted.mean, tilted.mean - lowest):
            assert tilted.half_width() - tilted.step <= reached <= tilted.half_width() + 3 * tilted.step


@pytest.mark.attack("A15")
def test_what_the_transform_may_round_away_is_added_at_every_point(monkeypatch):
    """2^-51 of the spectrum's mean modulus for each of log2(points) stages, and for each factor of the product and two more."""
    tilted = pld._tilted({ResponsePair(0.5): 1, LaplacePair(0.3): 4}, 1e-6, 1e-3)
    assert tilted is not None
    points = tilted.points()
    rounding = 2**-51 * math.log2(points) * np.abs(tilted.spectrum(points)).mean() * (1 + 4 + 2)
    read = []
    for share in (pld._ROUNDING, 0.0):
        monkeypatch.setattr(pld, "_ROUNDING", share)
        found = pld._curve(tilted, 1e-6)
        assert found is not None
        read.append(found)
    (losses, deltas), (_, without) = read
    for j in range(len(losses) - 40, len(losses) - 2):
        above = losses[j + 1 :]
        added = rounding * np.exp(tilted.level - tilted.tilt * above) @ -np.expm1(losses[j] - above)
        assert deltas[j] - without[j] == pytest.approx(added, rel=1e-3, abs=0)


@pytest.mark.attack("A15")
def test_the_grid_inflates_the_variance_by_the_share_asked_for():
    """A cell's loss, moved to its ends, gains h^2 / 6 or so: of k slots of variance V in all, h = sqrt(6 a V / k) makes that a V."""
    pairs = {GaussianPair(0.3): 5, LaplacePair(0.8): 2, ResponsePair(0.4): 1}
    tilted = pld._tilted(pairs, 1e-6, 1e-3)
    assert tilted is not None
    total = 5 * GaussianPair(0.3).variance() + 2 * LaplacePair(0.8).variance() + ResponsePair(0.4).variance()
    assert tilted.step == pytest.approx(math.sqrt(6 * 1e-3 * total / 8), rel=1e-12)


@pytest.mark.attack("A15")
def test_the_grid_is_the_finest_that_fits(monkeypatch):
    """Neither one pair's span nor the window takes more points than there may be; what is read on a coarse grid is a bound all the same."""
    monkeypatch.setattr(pld, "_MOST_POINTS", 4096)
    wide = pld._tilted({ResponsePair(1e-3): 1, ResponsePair(30.0): 1}, 1e-6, 1e-4)
    assert wide is not None
    assert wide.step >= 60 / 4096
    assert wide.points() <= 4096
    many: dict[Pair, int] = {GaussianPair(0.01): 25_000}
    tilted = pld._tilted(many, 1e-6, 1e-4)
    assert tilted is not None
    assert 2000 < tilted.points() <= 4096, "half the step takes twice as many"
    exact = gdp.epsilon_at(0.01 * math.sqrt(25_000), 1e-6)
    assert exact <= pld.epsilon(many, 1e-6) <= exact * 1.1


@pytest.mark.parametrize(
    "pairs",
    [
        {ResponsePair(650.0): 1, GaussianPair(0.1): 1}, {GaussianPair(30.0): 1},
        {PoissonPair(0.03, 0.5, "add-or-remove-one", True): 1}, {PoissonPair(0.03, 0.5, "add-or-remove-one", False): 1},
    ],
    ids=["response", "gaussian", "low", "high"],
)  # fmt: skip
def test_losses_too_large_for_floats_are_left_to_other_bounds(pairs):
    """Whichever of the pairs has them, and at whichever end."""
    assert pld.epsilon(pairs, 1e-6) == math.inf


@pytest.mark.parametrize(("size", "slots"), [(0.3, 40), (1.0, 12), (0.05, 400), (0.7, 1), (0.7, 2), (0.7, 3)])
@pytest.mark.parametrize("delta", [0.3, 1e-3, 1e-8])
@pytest.mark.attack("A15")
def test_many_responses_cost_what_their_binomial_says(size, slots, delta):
    pair = ResponsePair(size)
    found = pld.epsilon({pair: slots}, delta)
    k = np.arange(slots + 1)
    losses, masses = size * (2 * k - slots), binom.pmf(k, slots, 1 - pair.rare)

    def true(epsilon):
        return float(masses @ np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0))

    assert true(found) <= delta
    if found > 0:
        assert true(min(found, size * slots) * 0.998 - 1e-4) > delta
    else:
        assert true(0.0) <= delta


def test_what_lies_beyond_the_grids_counts_once_a_slot():
    """A hundred slots of which each loses all with probability 1e-5 are no (e, 5e-4)-DP, and hardly more than (e, 1e-3)."""

    class Broken(GaussianPair):
        def beyond(self, loss):
            return 1e-5

    assert pld.epsilon({Broken(0.1): 100}, 0.9e-3) == math.inf
    assert pld.epsilon({Broken(0.1): 100}, 2e-3) < 6.0
    assert pld.epsilon({Broken(0.1): 50, Broken(0.1001): 50}, 0.9e-3) == math.inf


def test_sums_of_what_comes_after():
    values, step = np.array([0.5, 0.1, 0.25, 0.0, 0.7]), 0.3
    after = [values[i + 1 :].sum() for i in range(5)]
    discounted = [sum(v * math.exp(-step * (j + 1)) for j, v in enumerate(values[i + 1 :])) for i in range(5)]
    assert _after(values) == pytest.approx(after)
    assert _discounted(values, step) == pytest.approx(discounted)


def test_where_a_curve_of_chords_passes_delta():
    """Between grid points it is linear in e^epsilon; at the first point nothing lower is known; nothing is below 0."""
    losses, curve = np.array([0.5, 1.0, 1.5, 2.0]), np.array([0.4, 0.2, 0.1, 0.05])
    for share in (0.25, 0.9):
        delta = 0.2 - share * 0.1
        x = math.e + share * (math.exp(1.5) - math.e)
        assert _crossing(losses, curve, delta) == pytest.approx(math.log(x), rel=1e-11)
        assert _crossing(losses, curve, delta) >= math.log(x)
    assert _crossing(losses, curve, 0.45) == 0.5
    assert _crossing(losses, curve, 0.4) == 0.5
    assert _crossing(losses, curve, 0.04) == math.inf
    assert _crossing(losses - 3.0, curve, 0.15) == 0.0
    assert _crossing(losses - 1.0, curve, 0.2) == 0.0
    assert _crossing(losses - 1.2, curve, 0.15) == pytest.approx(math.log((math.exp(-0.2) + math.exp(0.3)) / 2), rel=1e-9)


@pytest.mark.attack("A15")
def test_chords_bound_a_curve_everywhere_and_meet_it_where_it_was_read():
    pair, epsilons = GaussianPair(1.0), np.linspace(0.0, 9.0, 200)
    read = pld.readings({pair: 1}, (1e-2, 1e-5, 1e-10))
    assert len(read) == 3
    bound, exact = pld.chords(read, epsilons), gdp.curve(1.0, epsilons)
    assert (bound >= exact * (1 - 1e-9)).all()
    for target in (1e-2, 1e-5, 1e-10):
        at = np.array([gdp.epsilon_at(1.0, target)])
        assert float(pld.chords(read, at)[0]) == pytest.approx(target, rel=1e-3, abs=0)
    for losses, deltas in read:
        inside = losses[5:-5:50]
        assert pld.chords([(losses, deltas)], inside) == pytest.approx(deltas[5:-5:50], rel=1e-9, abs=0)
        assert (pld.chords([(losses, deltas)], np.array([losses[0] - 1.0])) == 1.0).all()
        assert pld.chords([(losses, deltas)], np.array([losses[-1] + 1.0])) == pytest.approx(deltas[-1], rel=1e-9, abs=0)


@pytest.mark.attack("A15")
def test_beyond_its_last_point_a_curve_keeps_its_last_value():
    """It falls no further for all that is known, however steep the last chord was; before its first point it says nothing."""
    read = [(np.array([0.0, 1.0, 2.0]), np.array([0.5, 0.2, 0.1]))]
    assert pld.chords(read, np.array([-0.5, 1.0, 2.0, 2.5, 9.0])) == pytest.approx([1.0, 0.2, 0.1, 0.1, 0.1], rel=1e-9)


def test_losses_that_do_not_vary_end_at_their_end():
    """All of them together, rounded up; nothing is said where more than delta lies beyond their ends."""
    tiny, less = ResponsePair(1e-200), ResponsePair(4e-201)
    assert pld.epsilon({tiny: 7}, 1e-6) == pytest.approx(7e-200, rel=1e-9, abs=0)
    assert Fraction(pld.epsilon({tiny: 7, less: 3}, 1e-6)) >= 7 * Fraction(1e-200) + 3 * Fraction(4e-201)
    assert pld.epsilon({tiny: 7, less: 3}, 1e-6) == pytest.approx(8.2e-200, rel=1e-9, abs=0)

    class Broken(ResponsePair):
        def beyond(self, loss):
            return 1e-5

    assert pld.epsilon({Broken(1e-200): 100}, 0.9e-3) == math.inf
    assert pld.epsilon({Broken(1e-200): 50, Broken(2e-200): 50}, 0.9e-3) == math.inf
    assert pld.epsilon({Broken(1e-200): 100}, 1.1e-3) == pytest.approx(1e-198, rel=1e-9, abs=0)
    assert pld.epsilon({}, 1e-6) == 0.0
    for slots, others in ((1, 0), (5, 2)):  # Gaussians end where a ten-thousandth of delta, shared by all slots, is left
        small: dict[Pair, int] = {GaussianPair(1e-200): slots, **({GaussianPair(3e-200): others} if others else {})}
        found = pld.epsilon(small, 1e-6)
        assert found == pytest.approx(-norm.ppf(1e-10 / (slots + others)) * (slots + 3 * others) * 1e-200, rel=1e-9, abs=0)
    sure = ResponsePair(800.0)
    assert pld.epsilon({sure: 2}, 1e-6) == pytest.approx(1600.0)
    assert pld.epsilon({sure: 1, tiny: 3}, 1e-6) == pytest.approx(800.0)


@pytest.mark.attack("A15")
def test_the_order_and_grouping_of_slots_does_not_matter():
    pairs = [GaussianPair(0.5), LaplacePair(0.4), ResponsePair(0.2)]
    whole = pld.epsilon(dict.fromkeys(pairs, 4), 1e-5)
    for turned in itertools.permutations(pairs):
        assert pld.epsilon(dict.fromkeys(turned, 4), 1e-5) == pytest.approx(whole, rel=1e-9)
    assert pld.epsilon({GaussianPair(1.0): 1}, 1e-5) == pytest.approx(pld.epsilon({GaussianPair(0.5): 4}, 1e-5), rel=1e-3)
