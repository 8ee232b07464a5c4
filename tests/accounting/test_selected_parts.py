"""What the bounds on a private selection are made of, each by its definition, over a few small bases: quick, and close on both sides."""

import functools
import math

import mpmath
import numpy as np
import pytest

from dpbo.accounting import selected
from dpbo.accounting.selected import _PLAIN, _levels, _upper, _weights
from dpbo.accounting.sides import Base
from dpbo.laws import BinomialRuns, FixedRuns, PoissonRuns, ThresholdStop, TruncatedNegativeBinomial, TruncatedPoisson
from tests.accounting.enumerated import EPSILONS, LAWS, ORDERS, best_of, curve_of, delta, pairs, renyi

BASES = [Base.of_laws(p, q) for p, q in pairs(12, 11, leaks=False)]
STOPS = [ThresholdStop(0.02), ThresholdStop(0.4)]
IDS = [f"{law.name}-{i}" for i, law in enumerate([*LAWS, *STOPS])]


@pytest.mark.parametrize("law", [*LAWS, *STOPS], ids=IDS)
@pytest.mark.attack("A10")
def test_the_ratio_is_the_largest_over_all_levels(law):
    """sup f'(1 - u) / f'(1 - v) over all u and v <= T(u) of the other direction; of Poisson runs, the rate times how far apart they lie."""
    u = np.unique(np.concatenate([np.linspace(0.0, 0.999, 20_001), np.geomspace(1e-9, 0.999, 4000)]))
    for base in BASES:
        slopes = [law.slope(u), law.slope(base.reverse.tradeoff(u))]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(slopes[1] > 0, slopes[0] / slopes[1], np.where(slopes[0] > 0, np.inf, 1.0))
        true, found = math.log(ratios.max()), selected.log_ratio(law, base)
        assert found >= true - 1e-5, "losses on a grid of 2^-30, felt a thousandfold where u is near 1"
        assert found <= true * 1.02 + 1e-3 or math.isinf(true)


@pytest.mark.attack("A10")
def test_the_ratio_of_one_run_is_one_and_of_leaking_runs_without_end():
    (p, q) = np.array([0.5, 0.5, 0.0]), np.array([0.4, 0.4, 0.2])
    leaking = Base.of_laws(p, q)
    assert selected.log_ratio(FixedRuns(1), leaking) == 0.0
    assert max(selected.log_ratio(FixedRuns(3), one) for one in (leaking, leaking.swapped())) == math.inf
    epsilons = np.array([0.0, 1.0])
    shiftless = [base for base in (leaking, leaking.swapped()) if math.isinf(selected.log_ratio(FixedRuns(3), base))]
    assert selected.by_ratio(FixedRuns(3), shiftless[0], epsilons).tolist() == [1.0, 1.0]


@pytest.mark.attack("A10")
def test_the_hull_of_lines_is_the_largest_of_them_all():
    random = np.random.default_rng(3)
    for count in (1, 2, 3, 50):
        first = np.sort(random.uniform(0, 5, count))[::-1]
        second = np.sort(random.uniform(0, 5, count))[::-1]
        z = np.concatenate([np.linspace(0.0, 3.0, 200), [1e3]])
        true = np.maximum((first - z[:, None] * second).max(1), 0.0)
        assert _upper(first, second).at(z) == pytest.approx(true, abs=1e-12)
    level = np.array([3.0, 3.0, 1.0])
    assert _upper(level, np.array([2.0, 2.0, 2.0])).at(np.array([0.5])) == pytest.approx([2.0])


@pytest.mark.parametrize("spread", [_PLAIN, (0.5, 2.0), (0.9, 1.1)])
@pytest.mark.parametrize("law", [LAWS[0], LAWS[5], ThresholdStop(0.2)], ids=["geometric", "poisson", "threshold"])
@pytest.mark.attack("A10")
def test_cells_weigh_their_worst_ends(law, spread):
    """The largest f'(1 - u) in a cell is at its left end, the least f'(1 - T(u)) at its right; rounds of densities in (c, C) move both."""
    c, C = spread
    for base in BASES[:3]:
        u = _levels(law, base, 400)
        assert u[0] == 0.0
        assert u[-1] == 1.0
        assert (np.diff(u) > 0).all()
        first, second = _weights(law, base, 400, spread)
        for i in range(0, len(first), 17):
            inside = np.linspace(u[i], u[i + 1], 9)
            own = np.maximum(c * inside, 1 - C * (1 - inside))
            other = base.reverse.tradeoff(inside)
            moved = np.minimum(1 - c * (1 - other), C * other)
            assert first[i] == pytest.approx(C * law.slope(own).max(), rel=1e-9)
            assert second[i] == pytest.approx(c * law.slope(moved).min(), rel=1e-9)


@pytest.mark.parametrize("law", LAWS, ids=IDS[: len(LAWS)])
@pytest.mark.attack("A10")
def test_profiles_lie_above_the_exact_ones_and_touch_some(law):
    nearest = 0.0
    for p, q in pairs(30, 21):
        base, exact = Base.of_laws(p, q), delta(best_of(law, p), best_of(law, q))
        ratio, envelope = selected.by_ratio(law, base, EPSILONS), selected.by_envelope(law, base, EPSILONS, cells=400)
        found = selected.profile(law, base, EPSILONS, cells=400)
        assert (exact <= found * (1 + 1e-9) + 1e-13).all()
        assert found == pytest.approx(np.minimum(np.minimum(ratio, envelope), 1.0), rel=2e-9)
        assert (found >= np.minimum(np.minimum(ratio, envelope), 1.0)).all()
        apart = selected.profile(law, base, EPSILONS, cells=400, spread=(0.8, 1.3))
        assert (apart >= found * (1 - 1e-9)).all()
        assert apart == pytest.approx(np.minimum(selected.by_envelope(law, base, EPSILONS, cells=400, spread=(0.8, 1.3)), 1.0), rel=2e-9)
        told = exact > 1e-6
        nearest = max(nearest, float((exact[told] / found[told]).max(initial=0.0)))
    assert nearest > 0.7


@pytest.mark.attack("A10")
def test_poisson_runs_pay_for_the_lesser_of_two_bounds_on_one_distance():
    """How far apart two laws lie is the same in both directions, so whichever bound is lower holds."""
    tight, loose = Base.response(0.5).forward, Base.response(0.9).forward
    for base in (Base(tight, loose), Base(loose, tight)):
        assert selected.log_ratio(PoissonRuns(3.0), base) == pytest.approx(3 * math.tanh(0.25), rel=1e-12)


@pytest.mark.attack("A10")
def test_rounds_that_look_at_nothing_are_plain_ones():
    """Densities between 1 and 1 times the prior's: the lesser of both bounds, of which the ratio's is lower where cells are coarse."""
    base = Base.response(0.5)
    for law in (LAWS[0], PoissonRuns(6.0)):
        plain = selected.profile(law, base, EPSILONS, cells=8)
        assert selected.profile(law, base, EPSILONS, cells=8, spread=(1.0, 1.0)).tolist() == plain.tolist()
        assert plain == pytest.approx(np.minimum(selected.by_ratio(law, base, EPSILONS), 1.0), rel=2e-9)
        assert (plain < selected.by_envelope(law, base, EPSILONS, cells=8) * 0.999).any()


@pytest.mark.attack("A10")
def test_mass_that_only_one_law_has_counts_for_every_run():
    p, q = np.array([0.6, 0.3, 0.1]), np.array([0.6, 0.4, 0.0])
    base, law, far = Base.of_laws(p, q), FixedRuns(4), np.array([50.0])
    exact = delta(best_of(law, p), best_of(law, q), far)[0]
    found = selected.by_envelope(law, base, far)[0]
    assert exact <= found <= 4 * 0.1 * 1.02
    assert selected.by_envelope(law, base, far, spread=(1.0, 1.5))[0] == pytest.approx(1.5 * found, rel=0.02)


@pytest.mark.parametrize("law", [law for law in LAWS if not isinstance(law, PoissonRuns) or law.rate > 1], ids=lambda law: law.name)
@pytest.mark.attack("A10")
def test_renyi_bounds_lie_above_the_exact_divergences(law):
    inner, nearest = np.array([1.01, 1.1, 1.5, 2.0, 4.0, 10.0, 30.0, 100.0]), 0.0
    for p, q in pairs(40, 5, leaks=False):
        base = Base.of_laws(p, q)
        for one, other, own in ((p, q, base), (q, p, base.swapped())):
            bound = selected.renyi(law, curve_of(p, q), ORDERS, functools.partial(_same, own), inner=inner)
            exact = renyi(best_of(law, one), best_of(law, other))
            assert (exact <= bound + 1e-9 * (1 + bound)).all()
            nearest = max(nearest, float((exact / (bound + 1e-12)).max()))
    assert nearest > 0.25


def _same(base):
    return base


@pytest.mark.attack("A10")
def test_renyi_bounds_are_their_formulas():
    """Of a base whose directions differ, of which the dearer counts; what K = 0 or a threshold adds is neither left out nor doubled."""
    p, q = np.array([0.5, 0.2, 0.2, 0.1]), np.array([0.1, 0.3, 0.5, 0.1])
    base, orders = Base.of_laws(p, q), np.array([1.5, 4.0, 40.0])

    def found(law, curve):
        return selected.renyi(law, curve, orders, lambda: base)

    best = 2 * math.sqrt(0.05 * math.log(5)) - 0.05  # of all h, of (1 - 1/h) 0.05 h + log(5) / h
    assert found(ThresholdStop(0.2), lambda a: 0.05 * a) == pytest.approx(0.05 * orders + best + math.log(5) / (orders - 1), rel=1e-3)

    x = orders[:, None] / (orders[:, None] - 1)
    apart = np.maximum(np.maximum(p - x * q, 0).sum(1), np.maximum(q - x * p, 0).sum(1))
    assert (np.maximum(p - x * q, 0).sum(1) < apart * 0.9).any() or (np.maximum(q - x * p, 0).sum(1) < apart * 0.9).any()
    moments = 1 + 3 * np.exp(3 * (orders - 1) * apart) * np.expm1((orders - 1) * 0.3)
    assert found(PoissonRuns(3.0), lambda a: np.full_like(a, 0.3)) == pytest.approx(np.log(moments) / (orders - 1), rel=1e-6)

    law = BinomialRuns(2, 0.5)  # no run with probability 1/4, one in the mean
    shift = max(selected.log_ratio(law, base), selected.log_ratio(law, base.swapped()))
    by_shift = np.log(0.25 + np.exp((orders - 1) * (2.0 + shift))) / (orders - 1)
    assert (by_shift < 2 * 2.0).all(), "two runs' Renyi bounds say less"
    assert found(law, lambda a: np.full_like(a, 2.0)) == pytest.approx(by_shift, rel=1e-9)


def test_renyi_bounds_where_nothing_follows():
    orders = np.array([2.0, 5.0])
    plain = functools.partial(np.full_like, fill_value=0.3)
    assert (selected.renyi(PoissonRuns(3.0), plain, orders, lambda: None) == math.inf).all()
    assert selected.renyi(FixedRuns(4), plain, orders, lambda: None) == pytest.approx([1.2, 1.2])
    assert (selected.renyi(LAWS[7], plain, orders, lambda: None) == math.inf).all()


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.attack("A10")
def test_pure_runs(epsilon):
    """Of randomised responses; the negative binomial's closed form, and twice or thrice what one run has for fixed numbers of runs."""
    g = 0.3
    geometric = selected.pure(TruncatedNegativeBinomial(1.0, g), epsilon)
    assert geometric == pytest.approx(epsilon + 2 * math.log((math.exp(epsilon) + g) / (1 + g * math.exp(epsilon))), rel=1e-9)
    for runs in (1, 2, 3):
        found = selected.pure(FixedRuns(runs), epsilon)
        assert runs * epsilon <= found <= runs * epsilon * (1 + 1e-9)
    assert selected.pure(FixedRuns(2), 300.0) == pytest.approx(600.0)
    assert selected.pure(FixedRuns(2), 301.0) == math.inf


def exact_pure(law, epsilon):
    """The winner's pure epsilon of randomised responses in 60 digits: epsilon and the law's log-ratio, each in closed form."""
    with mpmath.workdps(60):
        e, grown = mpmath.mpf(epsilon), mpmath.exp(mpmath.mpf(epsilon))
        match law:
            case TruncatedNegativeBinomial() | ThresholdStop():
                g, power = mpmath.mpf(law.gamma), 1 + mpmath.mpf(getattr(law, "shape", 0.0))
                return e + power * mpmath.log((grown + g) / (1 + g * grown))
            case BinomialRuns():
                c = mpmath.mpf(law.chance)
                return e + (law.trials - 1) * mpmath.log1p(c * (grown - 1) / ((1 - c) * (1 + grown) + c))
            case PoissonRuns() | TruncatedPoisson():
                return e + mpmath.mpf(law.rate) * mpmath.tanh(e / 2)
        return law.runs * e


MANY = [
    BinomialRuns(10**6, 1e-6), BinomialRuns(10**6, 0.5), BinomialRuns(3, 1 - 1e-12), BinomialRuns(1, 0.3), FixedRuns(1), FixedRuns(1000),
    TruncatedNegativeBinomial(1e4, 0.999), TruncatedNegativeBinomial(-0.5, 1e-4), TruncatedNegativeBinomial(0.0, 1 - 1e-9),
    ThresholdStop(1e-6), ThresholdStop(0.9), PoissonRuns(60.0), TruncatedPoisson(1e-3),
]  # fmt: skip


@pytest.mark.parametrize("law", MANY, ids=str)
@pytest.mark.attack("A10")
def test_a_pure_epsilon_keeps_its_digits_however_small_and_is_rounded_up(law):
    for epsilon in (1e-15, 1e-12, 1e-9, 1e-6, 1e-3, 0.1, 1.0, 30.0, 300.0):
        true, found = exact_pure(law, epsilon), selected.pure(law, epsilon)
        assert true <= found <= true * (1 + mpmath.mpf(1e-11))


def generated(law, x):
    """E x^K in mpmath."""
    match law:
        case TruncatedNegativeBinomial():  # of shape 1
            g = mpmath.mpf(law.gamma)
            return g * x / (1 - (1 - g) * x)
        case BinomialRuns():
            return (1 - mpmath.mpf(law.chance) * (1 - x)) ** law.trials
        case PoissonRuns():
            return mpmath.exp(-mpmath.mpf(law.rate) * (1 - x))
        case TruncatedPoisson():
            return mpmath.expm1(mpmath.mpf(law.rate) * x) / mpmath.expm1(mpmath.mpf(law.rate))
    return x**law.runs


def exact_divergence(order, *laws):
    """The larger Renyi divergence of two laws on finitely many outcomes, in mpmath."""
    a = mpmath.mpf(order)
    return max(mpmath.log(sum(x**a * y ** (1 - a) for x, y in zip(p, q, strict=True))) / (a - 1) for p, q in (laws, laws[::-1]))


NEAR_ONE = [
    BinomialRuns(1, 1e-6), BinomialRuns(1, 0.9), BinomialRuns(10**6, 1e-6), BinomialRuns(10**4, 1e-9), FixedRuns(1), FixedRuns(30),
    TruncatedNegativeBinomial(1.0, 1 - 1e-9), TruncatedNegativeBinomial(1.0, 0.01), TruncatedPoisson(1e-9),
    PoissonRuns(1e-6), PoissonRuns(7.0),
]  # fmt: skip


@pytest.mark.parametrize("law", NEAR_ONE, ids=str)
@pytest.mark.attack("A10")
def test_renyi_bounds_of_an_order_near_one_are_rounded_up(law):
    """There the rounding of a logarithm is divided by the order less one: no price may be below the divergence, nor below 0."""
    orders = np.array([1.000001, 1.0001, 1.02, 3.0])
    for epsilon in (1e-9, 1e-6, 1e-3, 1.0):
        with mpmath.workdps(60):
            rare = 1 / (1 + mpmath.exp(mpmath.mpf(epsilon)))
            one, other = (rare, 1 - rare), (1 - rare, rare)

            def curve(at, one=one, other=other):
                return np.array([math.nextafter(float(exact_divergence(order, one, other)), 1.0) for order in at])

            outcomes = [(generated(law, x) - generated(law, 0), 1 - generated(law, x), generated(law, 0)) for x in (rare, 1 - rare)]
            winners = [[mass for mass in winner if mass > 0] for winner in outcomes]
            base = Base.response(epsilon)
            bounds = selected.renyi(law, curve, orders, functools.partial(_same, base), inner=np.array([1.5, 30.0]))
            for order, bound in zip(orders.tolist(), bounds.tolist(), strict=True):
                assert bound >= exact_divergence(order, *winners) >= 0


@pytest.mark.parametrize("runs", [2.0, 20.0, 300.0])
@pytest.mark.attack("A10")
def test_what_rounding_is_allowed_for_grows_with_the_logarithm_of_the_runs(runs):
    """Of runs that tell nothing, the bound is that logarithm over the order less one; half to three halves of the allowance lie above."""
    order, empty = np.array([1.000001]), Base.of_laws(np.array([1.0]), np.array([1.0]))
    rate = mpmath.findroot(lambda rate: rate / -mpmath.expm1(-rate) - runs, runs)
    for law in (ThresholdStop(1 / runs), TruncatedPoisson(float(rate))):
        with mpmath.workdps(60):
            gone = mpmath.mpf(float(order[0])) - 1
            if isinstance(law, ThresholdStop):
                often, ratio = -mpmath.log(law.gamma), -mpmath.log(law.gamma) / 3
            else:
                often, ratio = mpmath.log(law.rate / -mpmath.expm1(-mpmath.mpf(law.rate))), 0
            exact = ratio + often / gone
            (found,) = selected.renyi(law, np.zeros_like, order, functools.partial(_same, empty), inner=np.array([3.0]))
            assert 0.5 < (found - exact) * gone / (1 + often) / 1e-15 < 1.5


def test_the_noisy_largest():
    assert selected.noisy_max_delta(lambda e: 0.01 * e, lambda e: 0.5, 3, 2.0) == pytest.approx(0.06)
    assert selected.noisy_max_delta(lambda e: 0.3, lambda e: 0.5, 3, 2.0) == 0.5
    assert selected.noisy_max_delta(lambda e: 0.9, lambda e: 3.0, 3, 2.0) == 1.0
