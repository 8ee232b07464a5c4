"""The sampled Gaussian's Renyi divergence against integrals in many digits, and its loss against
its definition.
"""

import itertools
import math

import mpmath
import numpy as np
import pytest

from dpbo.accounting import dominating_pairs, pld
from dpbo.accounting.composition import compose
from dpbo.accounting.dominating_pairs import PoissonPair
from dpbo.accounting.renyi import sampled_gaussian
from dpbo.events import GaussianEvent, PoissonGaussianEvent
from tests.attacks.marks import attack

ADD = "add-or-remove-one"
REPLACE = "replace-one"
RELATIONS = pytest.mark.parametrize("relation", [ADD, REPLACE])


def divergence(sigma, rate, relation, order):
    """The larger of both directions' Renyi divergences, by quadrature over the output; replace-one
    is symmetric.
    """
    with mpmath.workdps(22):
        s = mpmath.mpf(sigma)
        q = mpmath.mpf(rate)
        a = mpmath.mpf(order)

        def mixed(x):
            return 1 - q + q * mpmath.exp((2 * x - 1) / (2 * s**2))

        def forward(x):
            below = mixed(-x) if relation == REPLACE else 1
            return mpmath.npdf(x, 0, s) * mixed(x) ** a * below ** (1 - a)

        def backward(x):
            return mpmath.npdf(x, 0, s) * mixed(x) ** (1 - a)

        wide = 12 * sigma + 2 * order
        ends = sorted({-wide, -6 * sigma, 0, order / 2, order, 6 * sigma + order, wide})
        found = [
            mpmath.quad(f, ends) for f in ((forward, backward) if relation == ADD else (forward,))
        ]
        return float(mpmath.log(max(found)) / (a - 1))


@RELATIONS
@attack("A15")
def test_divergences_are_the_integrals(relation):
    for sigma, rate, order in (
        (0.6, 0.3, 5.5),
        (4.0, 0.01, 1.5),
        (2.0, 0.9, 12.0),
        (8.0, 1e-4, 3.0),
    ):
        found = float(sampled_gaussian(sigma, rate, relation, np.array([order]))[0])
        true = divergence(sigma, rate, relation, order)
        assert true * (1 - 1e-12) <= found <= true * (1 + 1e-8), (sigma, rate, order)


@RELATIONS
@attack("A15")
def test_a_divergence_near_order_one_is_not_below_the_true_one(relation):
    """There what rounding takes away is divided by order - 1."""
    sigma = 316.2277660168379
    for above_one in (1e-9, 1e-3):
        found = float(sampled_gaussian(sigma, 0.5, relation, np.array([1 + above_one]))[0])
        true = divergence(sigma, 0.5, relation, 1 + above_one)
        assert true * (1 - 1e-12) <= found <= true * 1.002


@RELATIONS
@attack("A15")
def test_a_tiny_divergence_keeps_its_digits_and_a_large_order_is_the_unsampled_one(relation):
    """For small rates chi^2 grows as rate^2; above order 128, and for all units, it is that of no
    sampling.
    """
    shift = 1.0 if relation == ADD else 2.0
    for rate in (1e-6, 1e-9):
        found = float(sampled_gaussian(1.0, rate, relation, np.array([2.0]))[0])
        # int (p1 - p0)^2 / p0, or of p1 - p-1, over rate^2
        chi = math.e - 1 if relation == ADD else 2 * (math.e - 1 / math.e)
        assert found == pytest.approx(rate**2 * chi, rel=1e-4, abs=0)
    orders = np.array([128.5, 1000.0])
    assert sampled_gaussian(3.0, 0.5, relation, orders) == pytest.approx(orders * shift**2 / 18)
    assert sampled_gaussian(3.0, 1.0, relation, np.array([2.0])) == pytest.approx(
        2.0 * shift**2 / 18
    )
    assert sampled_gaussian(1e-6, 1.0, relation, np.array([100.0])) == pytest.approx(
        100.0 * shift**2 / 2e-12
    ), "no grid is fine enough there"


def inverse(loss, sigma, rate, relation):
    """The output of this loss in as many digits as its terms have in common; -inf where there is
    none.
    """
    with mpmath.workdps(60 + int(1 / sigma**2 + abs(loss))):
        level = mpmath.mpf(loss)
        s = mpmath.mpf(sigma)
        q = mpmath.mpf(rate)
        if relation == ADD:
            grown = (mpmath.exp(level) - 1 + q) / q
            return mpmath.mpf(0.5) + s**2 * mpmath.log(grown) if grown > 0 else -mpmath.inf
        c = q * mpmath.exp(-1 / (2 * s**2))
        b = (1 - q) * mpmath.expm1(level)
        e = mpmath.exp(level)
        # q c u^2 - b u - e q c = 0, of u = e^(x/s^2)
        root = mpmath.sqrt(b**2 + 4 * c**2 * e)
        return s**2 * mpmath.log((b + root) / (2 * c))


@RELATIONS
@pytest.mark.filterwarnings("error")
@attack("A15")
def test_a_loss_is_inverted_however_large_it_is_on_either_side(relation):
    sizes = [1e-6, 0.4, 0.6, 5.0, 39.0, 41.0, 354.0, 357.0, 600.0, 720.0]
    losses = np.array([-size for size in sizes] + [0.0] + sizes)
    for sigma, rate in itertools.product([0.04, 0.3, 100.0], [1e-9, 0.5, 1.0]):
        found = dominating_pairs.output_of(losses, sigma, rate, relation)
        true = np.array([float(inverse(float(loss), sigma, rate, relation)) for loss in losses])
        # near the least loss, log(1 - rate), outputs are far apart
        off = 1e-9 if rate < 1e-6 else 1e-12
        assert found == pytest.approx(true, rel=off, abs=off * sigma), (sigma, rate)


@attack("A15")
def test_an_epsilon_of_hundreds_is_a_bound_that_is_reached():
    """delta at epsilon, with P and Q the mass of all outputs on the far side of the one whose loss
    is epsilon.
    """
    for sigma, rate, relation, reverse, delta in (
        (0.04, 0.5, REPLACE, False, 1e-6),
        (0.08, 1.0, ADD, True, 1e-6),
        (0.3, 0.5, ADD, False, 1e-3),
    ):
        epsilon = pld.epsilon({PoissonPair(sigma, rate, relation, reverse): 1}, delta)
        found = []
        for at in (epsilon, epsilon * 0.99):
            x = inverse(-at if reverse else at, sigma, rate, relation)
            with mpmath.workdps(400):
                s = mpmath.mpf(sigma)
                q = mpmath.mpf(rate)
                sign = 1 if reverse else -1
                plain, up, down = (mpmath.ncdf(sign * (x - shift) / s) for shift in (0, 1, -1))
                mixed = (1 - q) * plain + q * up
                other = plain if relation == ADD else (1 - q) * plain + q * down
                found.append(
                    (other - mpmath.exp(at) * mixed)
                    if reverse
                    else (mixed - mpmath.exp(at) * other)
                )
        assert found[0] <= delta < found[1], (sigma, rate, relation, reverse)
    sampled = compose([PoissonGaussianEvent(0.08, rate=1.0, relation=ADD)], delta=1e-6)
    plain = compose([GaussianEvent(0.08)], delta=1e-6)
    assert plain.gdp <= sampled.epsilon <= plain.gdp * 1.01, (
        "all units sampled, with little noise: the plain Gaussian"
    )
