"""What a fixed list of events guarantees: against exact curves, dp_accounting, and each other."""

import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event, pld
from dp_accounting.pld import privacy_loss_distribution as theirs
from dp_accounting.privacy_accountant import NeighboringRelation
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbo import Adjacency
from dpbo.accounting import compose, composition, convert, gdp, poisson
from dpbo.accounting.pairs import GaussianPair, LaplacePair, PoissonPair, ResponsePair
from dpbo.accounting.pld import epsilon
from dpbo.accounting.poisson import log_ratio, output_of
from dpbo.errors import InputError
from dpbo.events import (
    ExponentialEvent,
    GaussianEvent,
    L2LaplaceEvent,
    LaplaceEvent,
    NotPrivateEvent,
    PermuteAndFlipEvent,
    PoissonGaussianEvent,
)  # fmt: skip

ADD, REPLACE = "add-or-remove-one", "replace-one"
KINDS = (GaussianEvent, LaplaceEvent, ExponentialEvent)


def test_two_halves_are_one_at_delta_zero():
    bound = compose([LaplaceEvent(2.0), ExponentialEvent(4.0)], delta=0.0)
    assert bound.epsilon == 1.0
    assert (bound.gdp, bound.pld, bound.rdp) == (math.inf, math.inf, math.inf)
    assert compose([GaussianEvent(2.0)], delta=0.0).epsilon == math.inf


def test_many_exponentials_cost_what_their_range_says():
    bound = compose([ExponentialEvent(20.0, 150)], delta=1e-5)
    assert bound.epsilon == bound.rdp <= 2.72
    assert epsilon({ResponsePair(0.1): 150}, 1e-5) == pytest.approx(5.477, abs=2e-3)
    assert bound.pure == 15.0


@pytest.mark.parametrize("mu", [0.05, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12, 1e-25])
def test_gaussians_one_by_one_come_to_their_exact_curve_from_above(mu, delta):
    exact = gdp.epsilon_at(mu, delta)
    for inflation, off in ((1e-4, 3e-4), (1e-6, 3e-5)):
        reached = epsilon({GaussianPair(mu / 5): 25}, delta, inflation=inflation)
        assert exact <= reached <= exact * (1 + off)


@pytest.mark.parametrize(
    ("pair", "make"),
    [
        (LaplacePair(0.3), lambda h: theirs.from_laplace_mechanism(1 / 0.3, value_discretization_interval=h)),
        (ResponsePair(0.3), lambda h: theirs.from_randomized_response(2 / (1 + math.exp(0.3)), 2, value_discretization_interval=h)),
        (GaussianPair(0.3), lambda h: theirs.from_gaussian_mechanism(1 / 0.3, value_discretization_interval=h)),
    ],
)  # fmt: skip
@pytest.mark.attack("A15")
def test_each_pair_agrees_with_dp_accounting(pair, make):
    for count, delta in ((1, 1e-2), (10, 1e-5), (200, 1e-8)):
        reference = make(1e-4).self_compose(count).get_epsilon_for_delta(delta)
        assert epsilon({pair: count}, delta, inflation=1e-7) == pytest.approx(reference, rel=2e-3, abs=2e-4 * count**0.5)


@pytest.mark.parametrize(("sigma", "rate", "steps"), [(1.1, 0.125, 16), (0.7, 0.01, 1000), (4.0, 0.5, 200), (1.0, 1.0, 3)])
@pytest.mark.attack("A15")
@pytest.mark.attack("A23")
def test_sampled_gaussians_agree_with_dp_accounting_under_both_relations(sigma, rate, steps):
    event = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma)), steps)
    for relation, name in ((NeighboringRelation.ADD_OR_REMOVE_ONE, ADD), (NeighboringRelation.REPLACE_ONE, REPLACE)):
        accountant = pld.PLDAccountant(relation, value_discretization_interval=1e-4)
        accountant.compose(event)
        ours = compose([PoissonGaussianEvent(sigma, steps, rate=rate, relation=name)], delta=1e-5, refine=True)
        assert ours.pld == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)
        assert ours.rdp >= ours.pld * (1 - 1e-3)


def test_a_replaced_unit_costs_less_than_twice_the_noise_would_say():
    """The rules' figure: 2.84 where doubling the sensitivity gives 13.4."""
    pair = PoissonGaussianEvent(1.0, 100, rate=0.02, relation=REPLACE)
    doubled = PoissonGaussianEvent(0.5, 100, rate=0.02, relation=ADD)
    assert compose([pair], delta=1e-5).epsilon < compose([doubled], delta=1e-5).epsilon / 2


@settings(deadline=None, max_examples=60)
@given(st.floats(0.3, 5.0), st.floats(1e-3, 1.0), st.sampled_from([ADD, REPLACE]))
def test_the_loss_of_a_sampled_gaussian_is_inverted(sigma, rate, relation):
    x = np.linspace(-6 * sigma, 6 * sigma + 1, 41)
    losses = log_ratio(x, sigma, rate, relation)
    assert (np.diff(losses) >= 0).all()
    back = log_ratio(output_of(losses, sigma, rate, relation), sigma, rate, relation)
    assert np.allclose(back, losses, atol=1e-7)


SAMPLED = [PoissonPair(0.8, 0.2, ADD, False), PoissonPair(0.8, 0.2, ADD, True), PoissonPair(0.8, 0.2, REPLACE, False)]


@pytest.mark.parametrize("pair", SAMPLED)
def test_masses_are_those_of_the_density(pair):
    """P- and Q-mass of each cell against quadrature, and Q-mass is P-mass times e^-loss."""
    low, high = pair.span(1e-6)
    edges = np.linspace(low, high, 30)
    p, q = pair.masses(edges)
    assert 1 - p.sum() < 1e-5
    assert np.all(q <= p * np.exp(-edges[:-1]) * (1 + 1e-9) + 1e-18)
    assert np.all(q >= p * np.exp(-edges[1:]) * (1 - 1e-9) - 1e-18)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.floats(0.02, 0.8), st.integers(1, 40)), min_size=1, max_size=5), st.floats(1e-9, 1e-3))
@pytest.mark.attack("A15")
def test_every_bound_is_above_the_best_known_and_finer_is_tighter(parts, delta):
    events = [kind(1 / size, slots) for kind, size, slots in parts]
    fast, fine = (compose(events, delta=delta, refine=refine) for refine in (False, True))
    assert fine.pld <= fast.pld
    more = compose([*events, LaplaceEvent(5.0)], delta=delta)
    assert more.epsilon >= fast.epsilon * (1 - 1e-3)
    assert compose([*events[1:], *events[:1]], delta=delta) == fast


def test_the_composition_dominates_each_part():
    alone = compose([LaplaceEvent(1.0)], delta=1e-6)
    assert alone.epsilon == pytest.approx(1.0, rel=1e-3)
    assert compose([], delta=1e-6).epsilon == 0.0
    assert compose([], delta=0.0).epsilon == 0.0


@pytest.mark.attack("A10")
def test_exponentials_are_half_as_far_as_any_pure_mechanism():
    """mu of the exponential: over all two-point pairs with losses t and t - epsilon, none needs more."""
    from scipy.special import ndtri

    for size in (0.1, 1.0, 5.0):
        t = np.linspace(1e-6, size - 1e-6, 2001)
        q = -np.expm1(t - size) / (np.exp(t) - np.exp(t - size))
        most = float((ndtri(q * np.exp(t)) - ndtri(q)).max())
        mu = compose([ExponentialEvent(2 / size)], delta=0.0).mu or 0.0
        assert most <= mu <= most * (1 + 1e-6)
        assert (compose([PermuteAndFlipEvent(2 / size)], delta=0.0).mu or 0.0) > 1.9 * mu * (1 if size < 2 else 0.8)


def test_a_thousand_releases_of_three_mechanisms_are_as_good_as_a_fine_pld():
    rng = np.random.default_rng(0)
    events = [KINDS[i % 2](float(1 / rng.uniform(0.02, 0.1)), 50) for i in range(20)]
    total: Any = None
    for event in events:
        make = theirs.from_gaussian_mechanism if isinstance(event, GaussianEvent) else theirs.from_laplace_mechanism
        part = make(event.noise_multiplier, value_discretization_interval=1e-4).self_compose(event.slots)
        total = part if total is None else total.compose(part)
    composition._composed.cache_clear()
    assert compose(events, delta=1e-5).pld == pytest.approx(total.get_epsilon_for_delta(1e-5), rel=0.02)


@pytest.mark.attack("A9")
def test_relations_are_converted_one_way():
    add, replace = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.REPLACE_ONE
    assert convert(GaussianEvent(4.0, 3), add, replace) == GaussianEvent(2.0, 3)
    assert compose([convert(GaussianEvent(4.0), add, replace)], delta=0.0).mu == 0.5
    assert convert(LaplaceEvent(4.0), add, replace) == LaplaceEvent(2.0)
    sampled = PoissonGaussianEvent(1.1, 5, rate=0.1, relation=ADD)
    assert convert(sampled, add, replace) == PoissonGaussianEvent(1.1, 5, rate=0.1, relation=REPLACE)
    assert convert(sampled, add, add) is sampled
    for given_, wanted in ((replace, add), (Adjacency.BOUNDED_ROW_CHANGE, replace)):
        with pytest.raises(InputError, match="wanted"):
            convert(GaussianEvent(4.0), given_, wanted)
    with pytest.raises(InputError, match="relation"):
        compose([sampled, convert(sampled, add, replace)], delta=1e-5)


@pytest.mark.parametrize("delta", [-1e-9, 1.0, float("nan"), "small"])
def test_a_delta_outside_its_range_is_refused(delta):
    with pytest.raises(InputError, match="delta"):
        compose([GaussianEvent(1.0)], delta=delta)


def test_exact_answers_are_bounded_by_nothing():
    for events in ([NotPrivateEvent()], [GaussianEvent(1.0), NotPrivateEvent()], [NotPrivateEvent(), LaplaceEvent(1.0)]):
        bound = compose(events, delta=1e-5)
        assert (bound.pure, bound.gdp, bound.pld, bound.rdp, bound.mu) == (math.inf, math.inf, math.inf, math.inf, None)
    assert compose([L2LaplaceEvent(2.0)], delta=1e-5).epsilon == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize(("size", "slots", "delta"), [(1.0, 20_000, 1e-3), (1.0, 20_000, 0.5), (2.0, 20_000, 1e-3), (0.5, 100_000, 0.3)])
def test_huge_losses_stay_above_the_exact_binomial(size, slots, delta):
    """k randomised responses: the loss is size times (2 successes - k), so delta(epsilon) is a sum of binomial tails."""
    from scipy.stats import binom

    def exact(at):
        successes = np.arange(max(0, math.floor((at / size + slots) / 2) + 1), slots + 1)
        losses = size * (2 * successes - slots)
        return float((binom(slots, 1 / (1 + math.exp(-size))).pmf(successes) * -np.expm1(np.minimum(at - losses, 0.0))).sum())

    bound = epsilon({ResponsePair(size): slots}, delta)
    assert exact(bound) <= delta * (1 + 1e-6)
    assert exact(bound * 0.995) > delta


def test_refined_bounds_are_never_looser_and_sampled_plans_of_any_shape_are_read():
    for sigma, slots, rate, delta in ((1.0, 20_000, 1e-3, 1e-6), (0.5, 50, 1e-3, 1e-8), (0.3, 10, 1e-4, 1e-5)):
        event = PoissonGaussianEvent(sigma, slots, rate=rate, relation=ADD)
        fast, fine = (compose([event], delta=delta, refine=refine) for refine in (False, True))
        assert fine.epsilon <= fast.epsilon <= fine.epsilon * 1.001
        assert fine.pld < fast.pld


def test_a_small_renyi_divergence_keeps_its_digits():
    """Against 50-digit quadrature: 1.09158e-14 at sigma 1/2, rate 1e-8, order 2, replace-one."""
    from dpbo.accounting.poisson import renyi

    assert renyi(0.5, 1e-8, REPLACE, np.array([2.0]))[0] == pytest.approx(1.09158e-14, rel=1e-4, abs=0)
    assert renyi(0.05, 0.1, ADD, np.array([64.0]))[0] <= 64 / (2 * 0.05**2)


def test_large_epsilons_need_no_large_grid():
    for event in (ExponentialEvent(2 / 100, 2), L2LaplaceEvent(1 / 100, 20)):
        bound = compose([event], delta=1e-6)
        assert bound.pld == pytest.approx(bound.pure, rel=1e-6)


def test_losses_out_of_reach_are_left_to_the_other_bounds():
    bound = compose([GaussianEvent(0.02)], delta=1e-5)
    assert bound.pld == math.inf
    assert bound.epsilon == gdp.epsilon_at(50.0, 1e-5)


@pytest.mark.parametrize("delta", [0.5, 1e-5, 1e-300])
@pytest.mark.parametrize("kind", [GaussianEvent, LaplaceEvent, ExponentialEvent, L2LaplaceEvent, PermuteAndFlipEvent])
@pytest.mark.attack("A15")
def test_no_size_of_noise_is_too_small_or_too_large_for_a_bound(kind, delta):
    """Every bound is above what neighbours of this kind can reach: no float underflows to a claim of nothing."""
    for size in np.logspace(-99, 99, 23):
        scale = 2.0 if kind in (ExponentialEvent, PermuteAndFlipEvent) else 1.0
        bound = compose([kind(scale / size)], delta=delta)
        assert min(bound.pure, bound.gdp, bound.pld, bound.rdp) >= _reached(kind, size, delta)


def _reached(kind, size, delta):
    """The exact epsilon of randomised response, or less: of Laplace noise and of a two-sided choice, of the Gaussian's mean loss."""
    if delta * (1 + math.exp(-size)) >= 1:
        return 0.0
    response = max(size + math.log1p(-delta * (1 + math.exp(-size))), 0.0)
    if kind is GaussianEvent:
        return 0.49 * size**2 if size > 100 else 0.0
    if kind is LaplaceEvent:
        return max(size + 2 * math.log((1 - delta) / 2), 0.0)
    return max(response / 2 - 1, 0.0) if kind is ExponentialEvent else response * (1 - 1e-9)


def test_mechanisms_that_share_a_dominating_pair_add_up():
    """l2-Laplace noise and permute-and-flip of one pure epsilon are dominated by one pair: two releases, not one."""
    both = compose([L2LaplaceEvent(8.0, 3), PermuteAndFlipEvent(16.0, 2)], delta=1e-6)
    assert both.pld == compose([L2LaplaceEvent(8.0, 5)], delta=1e-6).pld
    assert both.pld > 1.5 * compose([L2LaplaceEvent(8.0, 3)], delta=1e-6).pld


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_a_sample_of_nearly_all_costs_nearly_what_all_cost(relation):
    """Renyi divergences of both relations tend to the unsampled ones, a (1 or 2)^2 / (2 sigma^2), as the rate tends to 1."""
    orders = np.array([1.5, 2.0, 4.0])
    whole, nearly = (poisson.renyi(2.0, rate, relation, orders) for rate in (1.0, 0.9999))
    assert whole == pytest.approx(orders * (1 if relation == ADD else 4) / 8)
    assert (nearly <= whole).all()
    assert nearly == pytest.approx(whole, rel=0.01)
