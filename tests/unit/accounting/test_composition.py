"""What a fixed list of events guarantees: against exact curves, dp_accounting, and each other."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event, pld
from dp_accounting.pld import privacy_loss_distribution as theirs
from dp_accounting.privacy_accountant import NeighboringRelation
from scipy.special import ndtri

from dpbo import Adjacency
from dpbo.accounting import compose
from dpbo.accounting.calibration import convert_adjacency
from dpbo.accounting.dominating_pairs import GaussianPair, LaplacePair, ResponsePair
from dpbo.accounting.pld import epsilon
from dpbo.errors import InputError
from dpbo.events import (
    ExponentialEvent,
    GaussianEvent,
    L2LaplaceEvent,
    LaplaceEvent,
    NotPrivateEvent,
    PermuteAndFlipEvent,
    PoissonGaussianEvent,
)
from tests.attacks.marks import attack

ADD = "add-or-remove-one"
REPLACE = "replace-one"


def test_pure_events_add_up_at_delta_zero_and_no_events_cost_nothing():
    bound = compose([LaplaceEvent(2.0), ExponentialEvent(4.0)], delta=0.0)
    assert bound.epsilon == 1.0
    assert (bound.gdp, bound.pld, bound.rdp) == (math.inf, math.inf, math.inf)
    assert compose([GaussianEvent(2.0)], delta=0.0).epsilon == math.inf
    assert compose([LaplaceEvent(1.0)], delta=1e-6).epsilon == pytest.approx(1.0, rel=1e-3)
    assert compose([], delta=1e-6).epsilon == compose([], delta=0.0).epsilon == 0.0
    assert compose([GaussianEvent(1.0), NotPrivateEvent()], delta=1e-5).epsilon == math.inf


def test_many_exponentials_cost_what_their_range_says():
    bound = compose([ExponentialEvent(20.0, 150)], delta=1e-5)
    assert bound.epsilon == bound.rdp <= 2.72
    assert epsilon({ResponsePair(0.1): 150}, 1e-5) == pytest.approx(5.477, abs=2e-3)
    assert bound.pure == 15.0


@attack("A15")
def test_each_pair_agrees_with_dp_accounting():
    step = {"value_discretization_interval": 1e-4}
    for pair, reference in (
        (LaplacePair(0.3), theirs.from_laplace_mechanism(1 / 0.3, **step)),
        (ResponsePair(0.3), theirs.from_randomized_response(2 / (1 + math.exp(0.3)), 2, **step)),
        (GaussianPair(0.3), theirs.from_gaussian_mechanism(1 / 0.3, **step)),
    ):
        for count, delta in ((1, 1e-2), (10, 1e-5), (100, 1e-8)):
            expected = reference.self_compose(count).get_epsilon_for_delta(delta)
            assert epsilon({pair: count}, delta, inflation=1e-7) == pytest.approx(
                expected, rel=2e-3, abs=2e-4 * count**0.5
            )


@pytest.mark.parametrize(("sigma", "rate", "steps"), [(1.1, 0.125, 16), (0.7, 0.01, 1000)])
@attack("A15", "A23")
def test_sampled_gaussians_agree_with_dp_accounting_under_both_relations(sigma, rate, steps):
    event = dp_event.SelfComposedDpEvent(
        dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma)), steps
    )
    for relation, name in (
        (NeighboringRelation.ADD_OR_REMOVE_ONE, ADD),
        (NeighboringRelation.REPLACE_ONE, REPLACE),
    ):
        accountant = pld.PLDAccountant(relation, value_discretization_interval=5e-4)
        accountant.compose(event)
        ours = compose(
            [PoissonGaussianEvent(sigma, steps, rate=rate, relation=name)], delta=1e-5, refine=True
        )
        assert ours.pld == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)
        assert ours.rdp >= ours.pld * (1 - 1e-3)


@attack("A10")
def test_exponentials_are_half_as_far_as_any_pure_mechanism():
    """mu of the exponential: over all two-point pairs with losses t and t - epsilon, none needs
    more.
    """
    for size in (0.1, 1.0, 5.0):
        t = np.linspace(1e-6, size - 1e-6, 2001)
        q = -np.expm1(t - size) / (np.exp(t) - np.exp(t - size))
        most = float((ndtri(q * np.exp(t)) - ndtri(q)).max())
        mu = compose([ExponentialEvent(2 / size)], delta=0.0).mu or 0.0
        assert most <= mu <= most * (1 + 1e-6)
        assert (compose([PermuteAndFlipEvent(2 / size)], delta=0.0).mu or 0.0) > 1.9 * mu * (
            1 if size < 2 else 0.8
        )


@attack("A9")
def test_relations_are_converted_one_way():
    add = Adjacency.ADD_OR_REMOVE_ONE
    replace = Adjacency.REPLACE_ONE
    assert convert_adjacency(GaussianEvent(4.0, 3), add, replace) == GaussianEvent(2.0, 3)
    assert compose([convert_adjacency(GaussianEvent(4.0), add, replace)], delta=0.0).mu == 0.5
    assert convert_adjacency(LaplaceEvent(4.0), add, replace) == LaplaceEvent(2.0)
    sampled = PoissonGaussianEvent(1.1, 5, rate=0.1, relation=ADD)
    assert convert_adjacency(sampled, add, replace) == PoissonGaussianEvent(
        1.1, 5, rate=0.1, relation=REPLACE
    )
    assert convert_adjacency(sampled, add, add) is sampled
    for given_, wanted in ((replace, add), (Adjacency.BOUNDED_ROW_CHANGE, replace)):
        with pytest.raises(InputError, match="wanted"):
            convert_adjacency(GaussianEvent(4.0), given_, wanted)
    with pytest.raises(InputError, match="relation"):
        compose([sampled, convert_adjacency(sampled, add, replace)], delta=1e-5)


@attack("A15")
def test_no_size_of_noise_is_too_small_or_too_large_for_a_bound():
    """Every bound is above what neighbours can reach: no float underflows to an epsilon of 0."""
    for kind in (
        GaussianEvent,
        LaplaceEvent,
        ExponentialEvent,
        L2LaplaceEvent,
        PermuteAndFlipEvent,
    ):
        scale = 2.0 if kind in (ExponentialEvent, PermuteAndFlipEvent) else 1.0
        for delta in (0.5, 1e-5, 1e-300):
            for size in np.logspace(-99, 99, 7):
                bound = compose([kind(scale / size)], delta=delta)
                assert min(bound.pure, bound.gdp, bound.pld, bound.rdp) >= _reached(
                    kind, size, delta
                ), (kind, delta, size)


def _reached(kind, size, delta):
    """The exact epsilon of randomised response; of the others an epsilon that some neighbours do
    reach.
    """
    if delta * (1 + math.exp(-size)) >= 1:
        return 0.0
    response = max(size + math.log1p(-delta * (1 + math.exp(-size))), 0.0)
    if kind is GaussianEvent:
        return 0.49 * size**2 if size > 100 else 0.0
    if kind is LaplaceEvent:
        return max(size + 2 * math.log((1 - delta) / 2), 0.0)
    return max(response / 2 - 1, 0.0) if kind is ExponentialEvent else response * (1 - 1e-9)


def test_mechanisms_that_share_a_dominating_pair_add_up():
    """l2-Laplace noise and permute-and-flip of one pure epsilon are dominated by one pair: two
    releases, not one.
    """
    both = compose([L2LaplaceEvent(8.0, 3), PermuteAndFlipEvent(16.0, 2)], delta=1e-6)
    assert both.pld == compose([L2LaplaceEvent(8.0, 5)], delta=1e-6).pld
    assert both.pld > 1.5 * compose([L2LaplaceEvent(8.0, 3)], delta=1e-6).pld
