"""The queries that models and acquisition functions make, and their releases: the same noise, one
charge.
"""

from typing import Any

import pytest
import torch
from botorch.models.transforms.input import Normalize

from dpbo import Adjacency, Budget, BudgetExceeded
from dpbo.accounting import GDPFilter, PureFilter
from dpbo.acquisition import GPUCB, SrinivasFinite
from dpbo.errors import InputError
from dpbo.gibo import GradientGP, GradientPosterior, suggest_gradient_points
from dpbo.mechanisms import ExponentialMechanism, GaussianMechanism, PermuteAndFlipMechanism
from dpbo.models import FiniteGP
from dpbo.models.fixed_kernels import squared_exponential
from dpbo.testing.entropy import SeededEntropy
from tests.setups import DOUBLE, owner

RECORDS = torch.linspace(-1.0, 1.0, 300, dtype=DOUBLE)
BOUNDS = torch.tensor([[1.0, 1.0], [5.0, 5.0]], dtype=DOUBLE)
THETA = torch.tensor([0.4, 0.7], dtype=DOUBLE)


def loss(x, records):
    return (x.sum() - records).abs()


def curator(budget, accounting, adjacency=Adjacency.REPLACE_ONE):
    return owner(
        RECORDS,
        adjacency=adjacency,
        budget=budget,
        accounting=accounting,
        allow_repeated=True,
        entropy=SeededEntropy(3),
    )


@pytest.fixture
def posterior():
    return GradientPosterior(squared_exponential(0.5), 0.0, mean=0.2)


@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ADD_OR_REMOVE_ONE])
def test_a_models_gradient_is_asked_for_and_released_in_one_call(adjacency):
    X = 1.0 + 4.0 * torch.rand(9, 2, dtype=DOUBLE)
    Y = torch.stack([loss(x, RECORDS).mean() for x in X]).unsqueeze(1)
    model = GradientGP(X, Y, input_transform=Normalize(2))
    theta = torch.tensor([2.0, 3.0], dtype=DOUBLE)
    terms: dict[str, Any] = {"clip": 1.5, "noise": 0.1, "divisor": 300.0}
    posterior = model.of_one_unit(0.1)
    at = suggest_gradient_points(posterior, theta, 3, bounds=BOUNDS)
    query = model.gradient_query(theta, at, loss, **terms)
    assert query.sensitivity(adjacency).l2 == (3.0 if adjacency is Adjacency.REPLACE_ONE else 1.5)
    assert torch.equal(query.weights, posterior.conditioned_on(at).weights(theta))
    assert query.center == posterior.mean
    mechanism = GaussianMechanism(5.0)
    by_query = curator(Budget.gdp(0.25), GDPFilter(), adjacency).release(query, mechanism)
    terms |= {"mechanism": mechanism, "bounds": BOUNDS}
    for given in (at, None):
        own = curator(Budget.gdp(0.25), GDPFilter(), adjacency)
        released = model.release_gradient(own, theta, given, loss, **terms)
        assert released.event == mechanism.event()
        assert torch.equal(released.value, by_query.value)
        with pytest.raises(BudgetExceeded):
            model.release_gradient(own, theta, given, loss, **terms)


def test_points_observed_before_need_their_answers(posterior):
    X = suggest_gradient_points(posterior, THETA, 3)
    with pytest.raises(InputError, match="earlier"):
        posterior.conditioned_on(X).gradient_query(THETA, X + 0.1, loss, clip=2.0)


@pytest.mark.parametrize("mechanism", [PermuteAndFlipMechanism, ExponentialMechanism])
def test_a_released_argmax_is_a_candidate_of_largest_bounds_and_is_charged_once(mechanism):
    candidates = torch.rand(90, 2, dtype=DOUBLE)
    model = FiniteGP(candidates, squared_exponential(0.4), 1e-2)
    for index in range(5):
        model.observe(index, candidates[index].sum())
    acquisition = GPUCB(model, SrinivasFinite(count=90, delta=0.1))
    best = acquisition(candidates.unsqueeze(-2)).argsort(descending=True)[:7]
    law = mechanism.of(20.0)
    own = curator(Budget(25.0, 0.0), PureFilter())
    asked: dict[str, Any] = {"score_range": (0.0, 2.0), "finalists": 7}
    index, release = acquisition.release_argmax(own, loss, candidates, mechanism=law, **asked)
    assert release.event == law.event()
    assert index == best[int(release.value)]
    means = torch.stack([loss(x, RECORDS).clamp(0, 2).mean() for x in candidates[best]])
    assert means[int(release.value)] >= means.max() - 0.05
    query = acquisition.argmax_query(loss, candidates, **asked)
    assert torch.equal(torch.stack([*query.candidates]), candidates[best])
    assert query.sensitivity(Adjacency.REPLACE_ONE).linf == 2.0
    again = curator(Budget(25.0, 0.0), PureFilter()).release(query, law)
    assert torch.equal(release.value, again.value), "the same noise"
    with pytest.raises(BudgetExceeded):
        acquisition.release_argmax(own, loss, candidates, mechanism=law, **asked)
