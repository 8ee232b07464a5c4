"""The sampled Gaussian's Renyi divergence against integrals in thirty digits, and its loss against its definition."""

import math

import mpmath
import numpy as np
import pytest

from dpbo.accounting import pld, poisson
from dpbo.accounting.composition import compose
from dpbo.accounting.pairs import PoissonPair
from dpbo.events import GaussianEvent, PoissonGaussianEvent

ADD, REPLACE = "add-or-remove-one", "replace-one"


def divergence(sigma, rate, relation, order):
    """The larger of both directions' Renyi divergences, by quadrature over the output."""

    def mixed(x, shift):
        return (1 - mpmath.mpf(rate)) * mpmath.npdf(x, 0, sigma) + rate * mpmath.npdf(x, shift, sigma)

    def other(x):
        return mpmath.npdf(x, 0, sigma) if relation == ADD else mixed(x, -1)

    with mpmath.workdps(30):
        wide = 12 * sigma + 2 * order
        parts = [-wide, -6 * sigma, -1, 0, 1, order / 2, order, 6 * sigma + order, wide]
        found = [
            mpmath.quad(lambda x, p=p, q=q: q(x) * (p(x) / q(x)) ** order, sorted(set(parts)))
            for p, q in ((lambda x: mixed(x, 1), other), (other, lambda x: mixed(x, 1)))
        ]
        return float(max(mpmath.log(value) for value in found) / (order - 1))


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize(
    ("sigma", "rate", "order"), [(1.0, 0.1, 2.0), (0.6, 0.3, 5.5), (4.0, 0.01, 1.5), (2.0, 0.9, 12.0), (8.0, 1e-4, 3.0), (30.0, 0.5, 1.1)]
)
@pytest.mark.attack("A15")
def test_divergences_are_the_integrals(sigma, rate, order, relation):
    found = float(poisson.renyi(sigma, rate, relation, np.array([order]))[0])
    true = divergence(sigma, rate, relation, order)
    assert true * (1 - 1e-12) <= found <= true * (1 + 1e-8)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("above_one", [1e-9, 1e-6, 1e-3])
@pytest.mark.attack("A15")
def test_a_divergence_near_order_one_is_not_below_the_true_one(above_one, relation):
    """There what rounding takes away is divided by order - 1."""
    sigma = 316.2277660168379
    found = float(poisson.renyi(sigma, 0.5, relation, np.array([1 + above_one]))[0])
    true = divergence(sigma, 0.5, relation, 1 + above_one)
    assert true * (1 - 1e-12) <= found <= true * 1.002


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_all_units_are_no_sample_however_little_the_noise(relation):
    """There no grid would be fine enough."""
    assert poisson.renyi(1e-6, 1.0, relation, np.array([100.0])) == pytest.approx(100.0 * (1.0 if relation == ADD else 4.0) / 2e-12)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.attack("A15")
def test_a_tiny_divergence_keeps_its_digits_and_a_large_order_is_the_unsampled_one(relation):
    """For small rates chi^2 grows as rate^2; above order 128, and for all units, it is that of no sampling."""
    shift = 1.0 if relation == ADD else 2.0
    for rate in (1e-6, 1e-9):
        found = float(poisson.renyi(1.0, rate, relation, np.array([2.0]))[0])
        chi = math.e - 1 if relation == ADD else 2 * (math.e - 1 / math.e)  # int (p1 - p0)^2 / p0, or of p1 - p-1, over rate^2
        assert found == pytest.approx(rate**2 * chi, rel=1e-4, abs=0)
    orders = np.array([128.5, 1000.0])
    assert poisson.renyi(3.0, 0.5, relation, orders) == pytest.approx(orders * shift**2 / 18)
    assert poisson.renyi(3.0, 1.0, relation, np.array([2.0])) == pytest.approx(2.0 * shift**2 / 18)
    at_128 = float(poisson.renyi(30.0, 0.01, relation, np.array([128.0]))[0])
    assert at_128 < 0.05 * 128 * shift**2 / 1800, "sampling is seen up to order 128"


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize(
    ("sigma", "gridded", "others"), [(0.25, [1.02, 16.0, 62.5], [62.51, 128.0]), (0.05, [1.02, 2.0], [16.0]), (1e-100, [], [1.02])]
)
@pytest.mark.attack("A15")
def test_where_a_grid_would_be_too_large_the_divergence_is_that_of_no_sampling(sigma, gridded, others, relation):
    """At order 62.5 the largest grid is asked for to the step: 2 * 62.5 + 12 / 4 = 128, in steps of 2^-10."""
    orders = np.array(gridded + others)
    found, unsampled = poisson.renyi(sigma, 0.01, relation, orders), orders * (1.0 if relation == ADD else 4.0) / (2 * sigma**2)
    assert (found < unsampled - 4).tolist() == [True] * len(gridded) + [False] * len(others)
    assert (found[len(gridded) :] == unsampled[len(gridded) :]).all()


@pytest.mark.parametrize("order", [1.01, 1.5, 2.0, 17.0, 128.0])
@pytest.mark.attack("A15")
def test_the_gain_keeps_its_digits_for_every_loss(order):
    """log(e^(a l) - 1 - a (e^l - 1)) in three forms: near nothing, between, and where exponentials overflow."""
    sizes = np.concatenate([10.0 ** np.linspace(-9, 2.7, 60), np.array([3e-3, 2.9e-3, 3.1e-3, 30.0, 29.9, 30.1]) / order])
    losses = np.concatenate([-sizes, sizes])
    found = poisson._log_gain(losses, order)
    with mpmath.workdps(80):
        a = mpmath.mpf(order)
        true = [float(mpmath.log(mpmath.exp(a * loss) - 1 - a * (mpmath.exp(loss) - 1))) for loss in map(mpmath.mpf, losses.tolist())]
    assert found == pytest.approx(np.array(true), rel=1e-9, abs=1e-7)


@pytest.mark.parametrize("order", [1.01, 1.5, 7.0, 128.0])
@pytest.mark.attack("A15")
def test_the_gain_is_nearest_to_its_limits_where_its_forms_meet(order):
    """Just below where the series ends, and just above where one exponential is all: to twelve digits, of which the last terms decide."""
    losses = np.array([-2.99e-3, -1e-3, 1e-3, 2.99e-3, 30.001, 31.0]) / order
    found = poisson._log_gain(losses, order)
    with mpmath.workdps(80):
        a = mpmath.mpf(order)
        true = [float(mpmath.log(mpmath.exp(a * loss) - 1 - a * (mpmath.exp(loss) - 1))) for loss in map(mpmath.mpf, losses.tolist())]
    assert found == pytest.approx(np.array(true), rel=0, abs=2e-12)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize(("sigma", "rate"), [(0.5, 0.1), (1.0, 1.0), (6.0, 0.7)])
def test_the_loss_is_that_of_the_densities_and_is_inverted(sigma, rate, relation):
    x = np.linspace(-7 * sigma, 7 * sigma, 41)

    def mixed(shift):
        return (1 - rate) * np.exp(-(x**2) / (2 * sigma**2)) + rate * np.exp(-((x - shift) ** 2) / (2 * sigma**2))

    below = np.exp(-(x**2) / (2 * sigma**2)) if relation == ADD else mixed(-1.0)
    losses = poisson.log_ratio(x, sigma, rate, relation)
    assert losses == pytest.approx(np.log(mixed(1.0) / below), rel=1e-9, abs=1e-12)
    assert poisson.output_of(losses, sigma, rate, relation) == pytest.approx(x, abs=1e-5)
    if relation == ADD and rate < 1.0:
        assert poisson.output_of(np.array([math.log1p(-rate) - 0.1]), sigma, rate, relation)[0] == -math.inf


def inverse(loss, sigma, rate, relation):
    """The output of this loss in as many digits as its terms have in common; -inf where there is none."""
    with mpmath.workdps(60 + int(1 / sigma**2 + abs(loss))):
        level, s, q = mpmath.mpf(loss), mpmath.mpf(sigma), mpmath.mpf(rate)
        if relation == ADD:
            grown = (mpmath.exp(level) - 1 + q) / q
            return mpmath.mpf(0.5) + s**2 * mpmath.log(grown) if grown > 0 else -mpmath.inf
        c, b, e = q * mpmath.exp(-1 / (2 * s**2)), (1 - q) * mpmath.expm1(level), mpmath.exp(level)
        root = mpmath.sqrt(b**2 + 4 * c**2 * e)  # q c u^2 - b u - e q c = 0, of u = e^(x/s^2)
        return s**2 * mpmath.log((b + root) / (2 * c))


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("sigma", [0.04, 0.3, 100.0])
@pytest.mark.parametrize("rate", [1e-9, 0.5, 1.0])
@pytest.mark.filterwarnings("error")
@pytest.mark.attack("A15")
def test_a_loss_is_inverted_however_large_it_is_on_either_side(sigma, rate, relation):
    sizes = [1e-6, 0.4, 0.6, 5.0, 39.0, 41.0, 354.0, 357.0, 600.0, 720.0]
    losses = np.array([-size for size in sizes] + [0.0] + sizes)
    found = poisson.output_of(losses, sigma, rate, relation)
    true = np.array([float(inverse(float(loss), sigma, rate, relation)) for loss in losses])
    off = 1e-9 if rate < 1e-6 else 1e-12  # near the least loss, log(1 - rate), outputs are far apart
    assert found == pytest.approx(true, rel=off, abs=off * sigma)


@pytest.mark.parametrize(
    ("sigma", "rate", "relation", "reverse", "delta"),
    [(0.04, 0.5, REPLACE, False, 1e-6), (0.15, 1.0, ADD, True, 1e-6), (0.08, 1.0, ADD, True, 1e-6), (0.3, 0.5, ADD, False, 1e-3)],
)
@pytest.mark.attack("A15")
def test_an_epsilon_of_hundreds_is_a_bound_that_is_reached(sigma, rate, relation, reverse, delta):
    """delta at epsilon, with P and Q the mass of all outputs on the far side of the one whose loss is epsilon."""
    epsilon = pld.epsilon({PoissonPair(sigma, rate, relation, reverse): 1}, delta)

    def exact(at):
        x = inverse(-at if reverse else at, sigma, rate, relation)
        with mpmath.workdps(400):
            s, q, sign = mpmath.mpf(sigma), mpmath.mpf(rate), 1 if reverse else -1
            plain, up, down = (mpmath.ncdf(sign * (x - shift) / s) for shift in (0, 1, -1))
            mixed, other = (1 - q) * plain + q * up, plain if relation == ADD else (1 - q) * plain + q * down
            return (other - mpmath.exp(at) * mixed) if reverse else (mixed - mpmath.exp(at) * other)

    assert exact(epsilon) <= delta < exact(epsilon * 0.99)


def test_a_sampled_gaussian_of_all_units_and_little_noise_composes_as_the_plain_one():
    sampled, plain = compose([PoissonGaussianEvent(0.08, rate=1.0, relation=ADD)], delta=1e-6), compose([GaussianEvent(0.08)], delta=1e-6)
    assert plain.gdp <= sampled.epsilon <= plain.gdp * 1.01
