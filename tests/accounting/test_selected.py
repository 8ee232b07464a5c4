"""Bounds on private selection against exact enumeration, an independent implementation, and the mistakes they must not make."""

import functools
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant

from dpbo.accounting import compose, dominating, gdp, profiles, rdp, selected
from dpbo.accounting.dominating import selection_delta
from dpbo.accounting.sides import Base
from dpbo.events import GaussianEvent, PoissonGaussianEvent, SelectionEvent
from dpbo.laws import FixedRuns, PoissonRuns, ThresholdStop, TruncatedNegativeBinomial
from tests.accounting.enumerated import EPSILONS, LAWS, ORDERS, at_threshold, best_of, curve_of, delta, pairs, renyi

PAIRS = 4000
ROOM = 1e-9
INNER = np.array([1.01, 1.1, 1.5, 2.0, 4.0, 10.0, 30.0, 100.0])


def base_of(events):
    """One run's profiles, which it must have."""
    base = dominating.base_of(events)
    assert base is not None
    return base


def renyi_curve(event, orders):
    """Its Renyi bounds, which it must have."""
    curve = profiles.renyi_curve(event, orders)
    assert curve is not None
    return curve


def _same(base):
    return base


def laws_of(i):
    """Two of the laws for each pair: every law meets a sixth of them all."""
    return LAWS[i % len(LAWS)], LAWS[(7 * i + 5) % len(LAWS)]


@pytest.mark.attack("A10")
def test_no_mechanism_passes_the_profile_bounds():
    worst = {"ratio": 0.0, "envelope": 0.0}
    for i, (p, q) in enumerate(pairs(PAIRS, 1)):
        base = Base.of_laws(p, q)
        for law in laws_of(i):
            exact = delta(best_of(law, p), best_of(law, q))
            for name, bound in (("ratio", selected.by_ratio(law, base, EPSILONS)),
                                ("envelope", selected.by_envelope(law, base, EPSILONS, cells=240))):  # fmt: skip
                assert (exact <= bound * (1 + ROOM) + 1e-13).all(), (name, law, p, q)
                told = exact > 1e-6
                worst[name] = max(worst[name], float((exact[told] / bound[told]).max(initial=0.0)))
    assert worst["ratio"] > 0.99, "bounds that nobody reaches would hide a mistake"
    assert worst["envelope"] > 0.9


@pytest.mark.attack("A10")
def test_no_mechanism_passes_the_renyi_bounds():
    worst = 0.0
    for i, (p, q) in enumerate(pairs(PAIRS, 2, leaks=False)):
        base, curve = Base.of_laws(p, q), curve_of(p, q)
        for law in laws_of(i):
            bound = selected.renyi(law, curve, ORDERS, functools.partial(_same, base), inner=INNER)
            exact = renyi(best_of(law, p), best_of(law, q))
            assert (exact <= bound + 1e-9 * (1 + bound)).all(), (law, p, q)
            worst = max(worst, float((exact / (bound + 1e-12)).max()))
    assert worst > 0.95


def test_no_mechanism_passes_the_pure_bound_or_the_threshold_bounds():
    reached = 0.0
    for i, (p, q) in enumerate(pairs(PAIRS, 3)):
        base = Base.of_laws(p, q)
        stop = ThresholdStop((0.001, 0.02, 0.2, 0.7)[i % 4])
        place = i % len(p)
        a, b = at_threshold(stop.gamma, p, place), at_threshold(stop.gamma, q, place)
        assert (delta(a, b) <= selected.profile(stop, base, EPSILONS, cells=240) * (1 + ROOM) + 1e-13).all()
        if (p == 0).any() or (q == 0).any():
            continue
        bound = selected.renyi(stop, curve_of(p, q), ORDERS, functools.partial(_same, base), inner=INNER)
        assert (renyi(a, b) <= bound + 1e-9 * (1 + bound)).all()
        epsilon = float(np.abs(np.log(p / q)).max())
        for law, first, second in ((stop, a, b), *((law, best_of(law, p), best_of(law, q)) for law in laws_of(i))):
            seen = first > 1e-5  # below, differences of f have too few digits
            loss = float(np.log(first[seen] / second[seen]).max())
            assert loss <= selected.pure(law, epsilon) + 1e-9
            reached = max(reached, loss / (selected.pure(law, epsilon) + 1e-12))
    assert reached > 0.95


def test_the_pure_forms():
    for epsilon in (0.01, 0.5, 2.0):
        for shape in (-0.5, 0.0, 1.0, 3.0):
            law = TruncatedNegativeBinomial.of_mean(20.0, shape=shape)
            grown = math.exp(epsilon)
            closed = epsilon + (1 + shape) * math.log((grown + law.gamma) / (1 + law.gamma * grown))
            assert selected.pure(law, epsilon) == pytest.approx(closed, rel=1e-9)
            assert selected.pure(law, epsilon) <= (2 + shape) * epsilon
        assert selected.pure(PoissonRuns(7.0), epsilon) == pytest.approx(epsilon + 7 * math.tanh(epsilon / 2), rel=1e-9)
        assert selected.pure(ThresholdStop(0.01), epsilon) <= 2 * epsilon
        assert selected.pure(FixedRuns(5), epsilon) == pytest.approx(5 * epsilon, rel=1e-9)


def violations(count, law_of, bound_of, seed=4):
    """How many pairs pass a would-be bound."""
    found = 0
    for p, q in pairs(count, seed, leaks=False):
        law = law_of
        found += bool((renyi(best_of(law, p), best_of(law, q)) > bound_of(law, p, q) + 1e-6).any())
    return found


@pytest.mark.parametrize("gamma", [0.6, 0.9])
def test_the_figures_misprint_is_no_bound(gamma):
    law = TruncatedNegativeBinomial(2.0, gamma)

    def misprint(law, p, q):
        ratio = (1 + law.shape) * float(((1 - 1 / INNER) * curve_of(p, q)(INNER) + math.log(1 / law.gamma - 1) / INNER).min())
        return curve_of(p, q)(ORDERS) + ratio + math.log(law.mean) / (ORDERS - 1)

    assert violations(100, law, misprint) > 20


def test_the_published_poisson_bound_is_none_below_one_run_and_ours_is_below_it_above():
    def published(law, p, q):
        base = Base.of_laws(p, q)
        crossed = np.log1p(1 / (ORDERS - 1))
        dh = np.maximum(base.forward.delta(crossed), base.reverse.delta(crossed))
        return curve_of(p, q)(ORDERS) + law.rate * dh + math.log(law.rate) / (ORDERS - 1)

    assert violations(100, PoissonRuns(0.4), published) > 20
    assert violations(100, PoissonRuns(4.0), published) == 0
    for p, q in pairs(100, 5, leaks=False):
        base = Base.of_laws(p, q)
        ours = selected.renyi(PoissonRuns(4.0), curve_of(p, q), ORDERS, functools.partial(_same, base))
        assert (ours <= published(PoissonRuns(4.0), p, q) + 1e-9).all()


def test_one_direction_of_the_base_is_not_enough():
    passed = 0
    for i, (p, q) in enumerate(pairs(600, 6)):
        law, base = LAWS[i % 5], Base.of_laws(p, q)
        one_sided = Base(base.forward, base.forward)
        bound = selected.profile(law, one_sided, EPSILONS, cells=240)
        passed += bool((delta(best_of(law, p), best_of(law, q)) > bound * 1.001 + 1e-9).any())
    assert passed > 10


@pytest.mark.attack("A10")
def test_a_visible_number_of_runs_passes_the_bound():
    law, passed = LAWS[0], 0
    start, masses = law.probabilities(400)
    powers = start + np.arange(400)[:, None]
    for p, q in pairs(60, 7, leaks=False):
        both = []
        for one in (p, q):
            levels = np.concatenate([[0.0], np.minimum(np.cumsum(one), 1.0)])
            both.append((masses[:, None] * np.diff(levels**powers, axis=1)).ravel())
        bound = selected.profile(law, Base.of_laws(p, q), EPSILONS, cells=240)
        passed += bool((delta(*both) > bound * 1.001 + 1e-9).any())
    assert passed > 20


TABLE = {  # epsilon of the base: {runs: cells of dp_accounting / ratio / envelope, for three laws}
    0.5: {10: "1.12 .79 .75 .93 .73 .71 1.20 1.06 .96", 30: "1.26 .91 .87 1.01 .82 .79 2.31 2.07 1.73",
          100: "1.39 1.05 .99 1.10 .91 .87 4.12 5.57 3.27"},
    1.0: {10: "2.15 1.54 1.47 1.80 1.44 1.40 2.36 2.06 1.88", 30: "2.42 1.78 1.70 1.96 1.61 1.55 4.57 3.99 3.37",
          100: "2.67 2.03 1.93 2.12 1.77 1.70 8.65 10.6 6.63"},
    2.0: {10: "4.08 3.01 2.90 3.46 2.83 2.75 4.62 3.99 3.68", 30: "4.59 3.47 3.32 3.77 3.13 3.04 9.03 7.63 6.58",
          100: "5.07 3.94 3.76 4.06 3.44 3.33 18.8 20.1 13.8"},
}  # fmt: skip
LOWER = {0.5: {10: ".74 .70 .94", 30: ".86 .78 1.62", 100: ".98 .86 2.61"},
         1.0: {10: "1.46 1.39 1.85", 30: "1.68 1.54 3.22", 100: "1.91 1.69 5.54"},
         2.0: {10: "2.89 2.74 3.63", 30: "3.30 3.03 6.43", 100: "3.74 3.32 12.1"}}  # fmt: skip
FINE = 1 + np.geomspace(0.05, 300.0, 500)
CELLS = [(epsilon, runs, kind) for epsilon in TABLE for runs in (10, 30, 100) for kind in range(3)]


def crossing(bound, delta):
    """Where a falling bound passes delta."""
    low, high = 0.0, 64.0
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (low, middle) if bound(np.array([middle]))[0] <= delta else (middle, high)
    return high


@pytest.mark.parametrize(("epsilon", "runs", "kind"), CELLS)
def test_the_table_of_gaussian_runs(epsilon, runs, kind):
    mu = gdp.mu_within(epsilon, 1e-6)
    law = PoissonRuns(float(runs)) if kind == 2 else TruncatedNegativeBinomial.of_mean(runs, shape=(1.0, 0.0)[kind])
    event = SelectionEvent(base=(GaussianEvent(1 / mu),), law=law)
    base = base_of(event.run())
    published, by_ratio, by_envelope = map(float, TABLE[epsilon][runs].split()[3 * kind : 3 * kind + 3])
    ratio, envelope = (crossing(lambda e, f=f: f(law, base, e), 1e-6) for f in (selected.by_ratio, selected.by_envelope))
    bound = compose([event], delta=1e-6)
    assert ratio == pytest.approx(by_ratio, rel=0.006, abs=0.006)
    assert by_envelope * 0.97 - 0.006 <= envelope <= by_envelope + 0.006, "the sheet's cells were coarser"
    assert envelope <= ratio + 1e-3
    assert envelope <= published + 1e-3
    if kind < 2:
        fine = renyi_curve(event, FINE) + rdp.conversions(FINE, 1e-6)
        assert float(fine.min()) == pytest.approx(published, abs=0.006)
        assert bound.rdp <= float(fine.min()) * 1.01
    else:
        assert bound.rdp <= published, "its own sheds the published one's slack"
    lowest = float(LOWER[epsilon][runs].split()[kind])
    assert bound.epsilon >= lowest - 0.006, "a concrete score reaches this"


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 3.0])
def test_renyi_bounds_are_those_of_another_implementation(shape):
    orders = np.concatenate([1 + np.geomspace(0.1, 3.0, 40), np.arange(4.5, 120.0, 1.5)])
    law = TruncatedNegativeBinomial.of_mean(20.0, shape=shape)
    steps = PoissonGaussianEvent(1.1, 500, rate=0.004, relation="add-or-remove-one")
    theirs = RdpAccountant(orders)
    inner = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.004, dp_event.GaussianDpEvent(1.1)), 500)
    theirs.compose(dp_event.RepeatAndSelectDpEvent(inner, 20.0, shape))
    ours = selected.renyi(law, lambda at: renyi_curve(steps, at), orders, lambda: None, inner=orders)
    ours = np.minimum.accumulate(ours[::-1])[::-1]  # divergences rise with the order
    assert ours == pytest.approx(theirs._rdp, rel=2e-3)
    assert float((ours + rdp.conversions(orders, 1e-6)).min()) == pytest.approx(theirs.get_epsilon(1e-6), rel=1e-6)


def test_the_published_poisson_renyi_bound_is_anothers():
    orders = np.concatenate([1 + np.geomspace(0.1, 3.0, 40), np.arange(4.5, 120.0, 1.5)])
    theirs = RdpAccountant(orders)
    theirs.compose(dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(4.0), 10.0, math.inf))
    ours = compose([SelectionEvent(base=(GaussianEvent(4.0),), law=PoissonRuns(10.0))], delta=1e-6)
    assert 0.7 * theirs.get_epsilon(1e-6) <= ours.rdp <= theirs.get_epsilon(1e-6)


def test_the_base_of_sampled_steps_is_its_composition_in_both_directions():
    steps = PoissonGaussianEvent(1.1, 2000, rate=0.004, relation="add-or-remove-one")
    base = base_of((steps,))
    assert base.forward is not base.reverse
    for at in (1e-3, 1e-6, 1e-9):
        epsilon = compose([steps], delta=at, refine=True).pld
        either = max(float(side.delta(np.array([epsilon]))[0]) for side in (base.forward, base.reverse))
        assert at * (1 - 1e-3) <= either <= at * 1.01


def test_selections_compose_with_everything_else():
    chosen, plain = SelectionEvent(base=(GaussianEvent(8.0), GaussianEvent(6.0, 3)), law=PoissonRuns(5.0)), GaussianEvent(4.0)
    alone, both = compose([chosen], delta=1e-6), compose([chosen, plain], delta=1e-6)
    assert compose([plain], delta=1e-6).epsilon < both.pld < alone.pld + compose([plain], delta=1e-6).epsilon
    assert alone.mu is None
    assert alone.gdp == math.inf
    twice = compose([chosen.repeated(2)], delta=1e-6)
    assert alone.pld < twice.pld < 2 * alone.pld
    finer = compose([chosen, plain], delta=1e-6, refine=True)
    assert both.pld * 0.999 <= finer.pld <= both.pld
    once_more = SelectionEvent(base=(chosen,), law=TruncatedNegativeBinomial.of_mean(3.0))
    assert alone.pld < compose([once_more], delta=1e-6).pld < 4 * alone.pld


def test_the_pair_of_a_selection_keeps_its_profile():
    event = SelectionEvent(base=(GaussianEvent(4.0),), law=TruncatedNegativeBinomial.of_mean(30.0))
    one = compose([event], delta=1e-6).pld
    beside = compose([event, GaussianEvent(1e4)], delta=1e-6, refine=True).pld
    assert one <= beside <= one * 1.003
    assert selection_delta(event, np.array([one]))[0] == pytest.approx(1e-6, rel=1e-4)


def test_noisy_maximum():
    rng = np.random.default_rng(0)
    grid, step = np.linspace(-12, 14, 1301), 0.02

    def density(shift):
        return np.exp(-((grid[:, None] - shift) ** 2) / 2) / math.sqrt(2 * math.pi)

    def below(shift):
        return np.cumsum(density(shift), axis=0) * step

    for _ in range(40):
        scores = rng.normal(size=4)
        moved = scores + rng.choice([-0.3, 0.3], size=4)
        wins = [np.array([(density(s)[:, i] * np.delete(below(s), i, axis=1).prod(1)).sum() * step for i in range(4)])
                for s in (scores, moved)]  # fmt: skip
        for epsilon in (0.0, 0.3, 0.8):
            exact = float(np.maximum(wins[0] - math.exp(epsilon) * wins[1], 0.0).sum())
            bound = selected.noisy_max_delta(lambda e: gdp.delta_at(0.6, e), lambda e: gdp.delta_at(0.6, e), 4, epsilon)
            assert exact <= bound + 1e-6


def test_adaptive_rounds_cost_their_spread():
    law, base = LAWS[0], base_of((GaussianEvent(4.0),))
    plain = selected.by_envelope(law, base, EPSILONS)
    assert selected.by_envelope(law, base, EPSILONS, spread=(1.0 - 1e-12, 1.0 + 1e-12)) == pytest.approx(plain, rel=1e-6)
    assert (selected.by_envelope(law, base, EPSILONS, spread=(0.5, 2.0)) >= plain).all()
