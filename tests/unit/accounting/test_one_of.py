"""One release by one of several candidates costs the largest of their profiles: against
dp_accounting's distributions, and against the worst choice that earlier outputs can make.
"""

import dataclasses
import functools
import json
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as theirs
from scipy.stats import binom

from dpbo.accounting import GDPFilter, Planned, PureFilter, RDPFilter, ZCDPFilter, compose
from dpbo.accounting.calibration import convert_adjacency
from dpbo.accounting.planned import accounting_named
from dpbo.accounting.selection_pairs import profile_of
from dpbo.errors import InputError
from dpbo.events import (
    DeclassifiedEvent,
    GaussianEvent,
    L2LaplaceEvent,
    LaplaceEvent,
    OneOfEvent,
    PoissonGaussianEvent,
    SelectionEvent,
    event_from_json,
)
from dpbo.privacy import Adjacency
from dpbo.reporting.words import mechanism_in_words
from dpbo.run_counts import TruncatedNegativeBinomial
from tests.attacks.marks import attack

ADD = "add-or-remove-one"
# noise, sampling rate and steps: alike at epsilon 1, from where on the first has the largest
# profile, below it the last
SAMPLED = [(0.44, 0.02, 4), (0.81, 0.1, 5), (2.66, 1.0, 2)]
ONE = OneOfEvent(
    candidates=tuple(
        PoissonGaussianEvent(noise, steps, rate=rate, relation=ADD)
        for noise, rate, steps in SAMPLED
    )
)


@functools.cache
def of_theirs(noise, rate, steps, pessimistic):
    """dp_accounting's bound on a candidate's distribution, from above or from below."""
    return theirs.from_gaussian_mechanism(
        noise,
        sampling_prob=rate,
        pessimistic_estimate=pessimistic,
        value_discretization_interval=1e-3,
        use_connect_dots=pessimistic,
    ).self_compose(steps)


@attack("A15")
def test_no_candidate_and_no_mixture_passes_the_largest_profile():
    """In both directions, and hardly above the largest of them."""
    random = np.random.default_rng(0)
    epsilons = np.linspace(0.0, 3.0, 61)
    largest = set()
    for reverse, direction in ((False, "_pmf_remove"), (True, "_pmf_add")):
        found = profile_of(ONE, reverse)
        assert found is not None
        bound = found.delta(epsilons)
        below, above = (
            np.array(
                [
                    getattr(of_theirs(*each, pessimistic), direction).get_delta_for_epsilon(
                        list(epsilons)
                    )
                    for each in SAMPLED
                ]
            )
            for pessimistic in (False, True)
        )
        assert (below <= bound).all()
        for weights in random.dirichlet(np.ones(len(SAMPLED)), size=50):
            assert (weights @ below <= bound).all()
        assert (bound <= above.max(0) * 1.01 + 1e-12).all()
        largest |= set(below.argmax(0).tolist())
    assert len(largest) > 1, "one candidate alone would not do"


def responses(epsilon, count):
    """Losses and their probabilities of so many randomised responses together."""
    right = np.arange(count + 1)
    likely = math.exp(epsilon) / (1 + math.exp(epsilon))
    return epsilon * (2 * right - count), binom.pmf(right, count, likely)


@attack("A15")
def test_no_choice_by_an_earlier_output_passes_two_releases():
    """The second candidate is, for each output of the first, the one that tells more at this
    epsilon.
    """
    kinds = ((0.5, 1), (0.15, 6))
    laws = [responses(*kind) for kind in kinds]
    two = OneOfEvent(
        count=2, candidates=tuple(L2LaplaceEvent(1 / size, count) for size, count in kinds)
    )

    def deltas(law, epsilon):
        losses, masses = law
        return masses @ np.maximum(-np.expm1(epsilon - losses), 0.0)

    gained = 0.0
    for epsilon in np.linspace(0.0, 1.6, 17):
        best = []
        for losses, masses in laws:
            second = [max(deltas(law, epsilon - loss) for law in laws) for loss in losses]
            best.append(float(masses @ second))
        worst = max(best)
        alone = max(deltas(responses(size, 2 * count), epsilon) for size, count in kinds)
        gained = max(gained, worst / alone)
        found = compose([two], delta=worst * (1 - 1e-9)).pld
        assert epsilon <= found <= epsilon + 0.1, epsilon
    assert gained > 1.5, "or the choice would be worth nothing"


def test_whatever_adds_costs_the_largest_of_the_candidates():
    pure = (LaplaceEvent(2.0, 3), LaplaceEvent(0.8))
    event = OneOfEvent(0.5, 4, candidates=pure)
    assert PureFilter().cost(event) == PureFilter().cost(LaplaceEvent(1.0, 12))
    for accounting in (GDPFilter(), ZCDPFilter(), RDPFilter(3.0)):
        costs = [accounting.cost(one) for (one,) in event.alternatives()]
        assert accounting.cost(event) == max(costs, key=lambda cost: cost.parts)
    mixed = OneOfEvent(candidates=(LaplaceEvent(1.0), GaussianEvent(1.0)))
    assert PureFilter().cost_or_none(mixed) is None
    assert compose([mixed], delta=1e-6).epsilon < math.inf
    gaussians = OneOfEvent(count=9, candidates=(GaussianEvent(6.0), GaussianEvent(3.0)))
    exact = compose([GaussianEvent(1.0)], delta=1e-6).epsilon
    assert exact <= compose([gaussians], delta=1e-6).pld <= exact * 1.001


@attack("A15")
def test_a_selection_among_runs_of_several_kinds_costs_at_least_each_kind():
    run_count = TruncatedNegativeBinomial.of_mean(8.0)
    *each, together = (
        compose([SelectionEvent(base=(kind,), run_count=run_count)], delta=1e-5).epsilon
        for kind in (*ONE.candidates, ONE)
    )
    assert max(each) * (1 - 1e-5) <= together <= max(each) * 1.2


def test_it_is_kept_read_converted_and_told():
    for event in (ONE, OneOfEvent(0.7, 2, candidates=(ONE, GaussianEvent(1 / 3)))):
        assert event_from_json(json.loads(json.dumps(event.to_json()))) == event
    accounting = Planned([ONE.repeated(3)])
    assert accounting_named(accounting.name) == accounting
    mixed = OneOfEvent(candidates=(*ONE.candidates, GaussianEvent(4.0)))
    converted = convert_adjacency(mixed, Adjacency.ADD_OR_REMOVE_ONE, Adjacency.REPLACE_ONE)
    assert converted.relations() == {"replace-one"}
    assert converted.candidates[-1] == GaussianEvent(2.0)
    assert mechanism_in_words(mixed) == "Gaussian noise on random samples or Gaussian noise"
    for candidates in ((), (DeclassifiedEvent(),), (mixed, *converted.candidates)):
        with pytest.raises(InputError):
            dataclasses.replace(ONE, candidates=candidates)
