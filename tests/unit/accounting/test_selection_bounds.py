"""Bounds on private selection: against exact enumeration, an independent implementation, and
mistakes that they must not make.
"""

import functools
import math

import mpmath
import numpy as np
import pytest

from dpbo.accounting import compose, gdp, selection_bounds, selection_pairs
from dpbo.accounting import renyi as event_renyi
from dpbo.accounting.selection_bounds import (
    RunProfiles,
    envelope_bound,
    ratio_bound,
    winner_profile,
)
from dpbo.events import GaussianEvent, SelectionEvent
from dpbo.run_counts import (
    FixedRuns,
    PoissonRuns,
    TruncatedNegativeBinomial,
)
from tests.attacks.marks import attack
from tests.unit.accounting.enumerated import (
    EPSILONS,
    LAWS,
    ORDERS,
    best_of,
    curve_of,
    delta,
    pairs,
    profiles_of_laws,
    renyi,
)

PAIRS = 500
ROOM = 1e-9
INNER = np.array([1.01, 1.1, 1.5, 2.0, 4.0, 10.0, 30.0, 100.0])
NEGATIVE_BINOMIALS = [law for law in LAWS if isinstance(law, TruncatedNegativeBinomial)]


def renyi_curve(event, orders):
    curve = event_renyi.curve(event, orders)
    assert curve is not None
    return curve


def renyi_bound(law, p, q, base):
    return selection_bounds.renyi(law, curve_of(p, q), ORDERS, lambda: base, inner=INNER)


# two for each pair: every law meets a sixth of them all
def laws_of(i):
    return LAWS[i % len(LAWS)], LAWS[(7 * i + 5) % len(LAWS)]


@attack("A10")
def test_no_mechanism_passes_the_profile_bounds():
    worst = {"ratio": 0.0, "envelope": 0.0}
    for i, (p, q) in enumerate(pairs(PAIRS, 1)):
        base = profiles_of_laws(p, q)
        for law in laws_of(i):
            exact = delta(best_of(law, p), best_of(law, q))
            ratio = ratio_bound(law, base, EPSILONS)
            envelope = envelope_bound(law, base, EPSILONS, cells=240)
            for name, bound in (("ratio", ratio), ("envelope", envelope)):
                assert (exact <= bound * (1 + ROOM) + 1e-13).all(), (name, law, p, q)
                seen = exact > 1e-6
                worst[name] = max(worst[name], float((exact[seen] / bound[seen]).max(initial=0.0)))
            if i % 8 == 0:
                found = winner_profile(law, base, EPSILONS, cells=240)
                lesser = np.minimum(np.minimum(ratio, envelope), 1.0)
                assert found == pytest.approx(lesser, rel=2e-9)
                assert (found >= lesser).all()
    assert worst["ratio"] > 0.99, "bounds that nobody reaches would hide a mistake"
    assert worst["envelope"] > 0.9


@attack("A10")
def test_no_mechanism_passes_the_renyi_bounds():
    worst = 0.0
    for i, (p, q) in enumerate(pairs(PAIRS, 2, leaks=False)):
        base = profiles_of_laws(p, q)
        for law in laws_of(i):
            bound = renyi_bound(law, p, q, base)
            exact = renyi(best_of(law, p), best_of(law, q))
            assert (exact <= bound + 1e-9 * (1 + bound)).all(), (law, p, q)
            worst = max(worst, float((exact / (bound + 1e-12)).max()))
    assert worst > 0.95


@attack("A10")
def test_no_mechanism_passes_the_pure_bound():
    reached = 0.0
    for i, (p, q) in enumerate(pairs(PAIRS, 3)):
        if (p == 0).any() or (q == 0).any():
            continue
        epsilon = float(np.abs(np.log(p / q)).max())
        for law in laws_of(i):
            first = best_of(law, p)
            second = best_of(law, q)
            # below, differences of f have too few digits
            seen = first > 1e-5
            loss = float(np.log(first[seen] / second[seen]).max())
            assert loss <= selection_bounds.pure(law, epsilon) + 1e-9
            reached = max(reached, loss / (selection_bounds.pure(law, epsilon) + 1e-12))
    assert reached > 0.95


# epsilon of one run; runs; shape; epsilon by dp_accounting, ratio, envelope; and what a concrete
# score reaches
TABLE = [
    (0.5, 30, 0.0, 1.01, 0.82, 0.79, 0.78),
    (1.0, 30, None, 4.57, 3.99, 3.37, 3.22),
    (1.0, 100, 1.0, 2.67, 2.03, 1.93, 1.91),
    (2.0, 10, None, 4.62, 3.99, 3.68, 3.63),
]
FINE = 1 + np.geomspace(0.05, 300.0, 500)


def crossing(bound, delta):
    low = 0.0
    high = 64.0
    while high - low > 1e-4:
        grid = np.linspace(low, high, 65)
        below = int(np.flatnonzero(bound(grid) <= delta)[0])
        low = float(grid[max(below - 1, 0)])
        high = float(grid[below])
    return high


def test_the_table_of_gaussian_runs():
    for epsilon, runs, shape, published, by_ratio, by_envelope, reached in TABLE:
        law = (
            PoissonRuns(float(runs))
            if shape is None
            else TruncatedNegativeBinomial.of_mean(runs, shape=shape)
        )
        event = SelectionEvent(
            base=(GaussianEvent(1 / gdp.mu_within(epsilon, 1e-6)),), run_count=law
        )
        base = selection_pairs.run_profiles(event.run())
        assert base is not None
        ratio = crossing(functools.partial(ratio_bound, law, base), 1e-6)
        envelope = crossing(functools.partial(envelope_bound, law, base), 1e-6)
        bound = compose([event], delta=1e-6)
        assert ratio == pytest.approx(by_ratio, rel=0.006, abs=0.006)
        assert by_envelope * 0.97 - 0.006 <= envelope <= by_envelope + 0.006, (
            "the table's cells were coarser"
        )
        assert envelope <= min(ratio, published) + 1e-3
        if shape is None:
            assert bound.rdp <= published, "ours is tighter than the published one"
        else:
            fine = renyi_curve(event, FINE) + event_renyi.conversions(FINE, 1e-6)
            assert float(fine.min()) == pytest.approx(published, abs=0.006)
            assert bound.rdp <= float(fine.min()) * 1.01
        assert bound.epsilon >= reached - 0.006


def exact_pure(law, epsilon):
    """The winner's pure epsilon of randomised responses in 60 digits: epsilon and the law's
    log-ratio, each in closed form.
    """
    with mpmath.workdps(60):
        e = mpmath.mpf(epsilon)
        grown = mpmath.exp(mpmath.mpf(epsilon))
        match law:
            case TruncatedNegativeBinomial():
                g = mpmath.mpf(law.gamma)
                power = 1 + mpmath.mpf(law.shape)
                return e + power * mpmath.log((grown + g) / (1 + g * grown))
            case PoissonRuns():
                return e + mpmath.mpf(law.rate) * mpmath.tanh(e / 2)
        return law.runs * e


MANY = [
    FixedRuns(1),
    FixedRuns(1000),
    TruncatedNegativeBinomial(1e4, 0.999),
    TruncatedNegativeBinomial(-0.5, 1e-4),
    TruncatedNegativeBinomial(0.0, 1 - 1e-9),
    TruncatedNegativeBinomial(0.0, 1e-6),
    TruncatedNegativeBinomial(0.0, 0.9),
    PoissonRuns(60.0),
]


@attack("A10")
def test_a_pure_epsilon_keeps_its_digits_however_small_and_is_rounded_up():
    for law in MANY:
        for epsilon in (1e-15, 1e-12, 1e-9, 1e-6, 1e-3, 0.1, 1.0, 30.0, 300.0):
            true = exact_pure(law, epsilon)
            found = selection_bounds.pure(law, epsilon)
            assert true <= found <= true * (1 + mpmath.mpf(1e-11)), (law, epsilon)
    for law in NEGATIVE_BINOMIALS:
        assert selection_bounds.pure(law, 1.0) <= (2 + law.shape) * (1 + 1e-9), (
            "(2 + s) epsilon at most"
        )
    assert selection_bounds.pure(FixedRuns(2), 301.0) == math.inf


def generated(law, x):
    """E x^K in mpmath."""
    match law:
        # of shape 1
        case TruncatedNegativeBinomial():
            g = mpmath.mpf(law.gamma)
            return g * x / (1 - (1 - g) * x)
        case PoissonRuns():
            return mpmath.exp(-mpmath.mpf(law.rate) * (1 - x))
    return x**law.runs


def exact_divergence(order, *laws):
    """The larger Renyi divergence of two laws on finitely many outcomes, in mpmath."""
    a = mpmath.mpf(order)
    return max(
        mpmath.log(sum(x**a * y ** (1 - a) for x, y in zip(p, q, strict=True))) / (a - 1)
        for p, q in (laws, laws[::-1])
    )


NEAR_ONE = [
    FixedRuns(1),
    FixedRuns(30),
    TruncatedNegativeBinomial(1.0, 1 - 1e-9),
    TruncatedNegativeBinomial(1.0, 0.01),
    PoissonRuns(1e-6),
    PoissonRuns(7.0),
]


@attack("A10")
def test_renyi_bounds_of_an_order_near_one_are_rounded_up():
    """There the rounding of a logarithm is divided by the order less one: no price may be below the
    divergence, nor below 0.
    """
    orders = np.array([1.000001, 1.0001, 1.02, 3.0])
    for epsilon in (1e-9, 1e-6, 1e-3, 1.0):
        with mpmath.workdps(60):
            rare = 1 / (1 + mpmath.exp(mpmath.mpf(epsilon)))
            one = (rare, 1 - rare)
            other = (1 - rare, rare)

            def curve(at, one=one, other=other):
                return np.array(
                    [
                        math.nextafter(float(exact_divergence(order, one, other)), 1.0)
                        for order in at
                    ]
                )

            for law in NEAR_ONE:
                outcomes = [
                    (
                        generated(law, x) - generated(law, 0),
                        1 - generated(law, x),
                        generated(law, 0),
                    )
                    for x in (rare, 1 - rare)
                ]
                winners = [[mass for mass in winner if mass > 0] for winner in outcomes]
                response = functools.partial(RunProfiles.response, epsilon)
                bounds = selection_bounds.renyi(
                    law, curve, orders, response, inner=np.array([1.5, 30.0])
                )
                for order, bound in zip(orders.tolist(), bounds.tolist(), strict=True):
                    assert bound >= exact_divergence(order, *winners) >= 0, (law, epsilon, order)
