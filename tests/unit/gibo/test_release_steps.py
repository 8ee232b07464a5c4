"""The queries that models and acquisition functions make, and their releases: the same noise, one
charge.
"""

from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import Normalize
from botorch.models.transforms.outcome import Standardize
from gpytorch.kernels import ScaleKernel
from gpytorch.means import LinearMean

from dpbo import Adjacency, Budget, BudgetExceeded
from dpbo.accounting import GDPFilter, PureFilter
from dpbo.acquisition import GPUCB, SrinivasFinite
from dpbo.errors import InputError
from dpbo.gibo import GradientGP, GradientPosterior, posterior_of_one_unit, suggest_gradient_points
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
def test_a_gradients_query_has_its_sensitivity_and_is_charged_once(posterior, adjacency):
    X = suggest_gradient_points(posterior, THETA, 3)
    query = posterior.gradient_query(THETA, X, loss, clip=2.0, divisor=300.0)
    assert query.sensitivity(adjacency).l2 == (4.0 if adjacency is Adjacency.REPLACE_ONE else 2.0)
    mechanism = GaussianMechanism(5.0)
    own = curator(Budget.gdp(0.25), GDPFilter(), adjacency)
    assert own.release(query, mechanism).event == mechanism.event()
    with pytest.raises(BudgetExceeded):
        own.release(query, mechanism)


@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ADD_OR_REMOVE_ONE])
def test_a_models_gradient_is_asked_for_and_released_in_one_call(adjacency):
    X = 1.0 + 4.0 * torch.rand(9, 2, dtype=DOUBLE)
    Y = torch.stack([loss(x, RECORDS).mean() for x in X]).unsqueeze(1)
    model = GradientGP(X, Y, input_transform=Normalize(2))
    theta = torch.tensor([2.0, 3.0], dtype=DOUBLE)
    terms: dict[str, Any] = {"clip": 1.5, "noise": 0.1, "divisor": 300.0}
    at = suggest_gradient_points(model.of_one_unit(0.1), theta, 3, bounds=BOUNDS)
    query = model.gradient_query(theta, at, loss, **terms)
    assert query.sensitivity(adjacency).l2 == (3.0 if adjacency is Adjacency.REPLACE_ONE else 1.5)
    posterior = model.of_one_unit(0.1)
    assert torch.equal(query.weights, posterior.conditioned_on(at).weights(theta))
    assert query.center == posterior.mean
    mechanism = GaussianMechanism(5.0)
    by_query = curator(Budget.gdp(0.25), GDPFilter(), adjacency).release(query, mechanism)
    for given in (at, None):
        own = curator(Budget.gdp(0.25), GDPFilter(), adjacency)
        more: dict[str, Any] = {"mechanism": mechanism, "bounds": BOUNDS, **terms}
        released = model.release_gradient(own, theta, given, loss, **more)
        assert released.event == mechanism.event()
        assert torch.equal(released.value, by_query.value)
        with pytest.raises(BudgetExceeded):
            model.release_gradient(own, theta, given, loss, **more)


def test_the_query_of_a_posterior_leaves_it_as_it_is(posterior):
    X = suggest_gradient_points(posterior, THETA, 3)
    query = posterior.gradient_query(THETA, X, loss, clip=2.0)
    assert query.center == 0.2
    assert len(posterior) == 0
    assert torch.equal(query.weights, posterior.conditioned_on(X).weights(THETA))


def test_the_loss_may_have_coordinates_of_its_own(posterior):
    X = suggest_gradient_points(posterior, THETA, 3)
    moved = posterior.gradient_query(THETA, X, loss, clip=2.0, loss_points=2.0 * X)
    assert torch.equal(moved.weights, posterior.conditioned_on(X).weights(THETA))
    assert torch.equal(moved.X, 2.0 * X)


def test_points_observed_before_need_their_answers(posterior):
    X = suggest_gradient_points(posterior, THETA, 3)
    with pytest.raises(InputError, match="earlier"):
        posterior.conditioned_on(X).gradient_query(THETA, X + 0.1, loss, clip=2.0)


def test_the_posterior_of_a_model_is_in_the_units_of_its_values():
    X = torch.rand(9, 2, dtype=DOUBLE)
    Y = 5.0 + 3.0 * X.sum(-1, keepdim=True)
    kernel = squared_exponential(0.5)
    gp = SingleTaskGP(X, Y, covar_module=kernel, outcome_transform=Standardize(m=1))
    gp.mean_module.constant = torch.tensor(0.3, dtype=DOUBLE)
    scaled = ScaleKernel(kernel).double()
    scaled.outputscale = float(Y.var())
    expected = GradientPosterior(scaled, 0.1, mean=float(Y.mean() + 0.3 * Y.std())).conditioned_on(
        X[:3]
    )
    posterior = posterior_of_one_unit(gp, 0.1).conditioned_on(X[:3])
    torch.testing.assert_close(
        posterior.weights(THETA), expected.weights(THETA), rtol=1e-6, atol=1e-6
    )
    torch.testing.assert_close(
        posterior.covariance(THETA), expected.covariance(THETA), rtol=1e-6, atol=1e-6
    )
    assert posterior.mean == pytest.approx(expected.mean)


def test_a_model_whose_mean_is_not_constant_has_no_posterior_of_one_unit():
    X = torch.rand(9, 2, dtype=DOUBLE)
    with pytest.raises(InputError, match="mean_module"):
        posterior_of_one_unit(SingleTaskGP(X, X.sum(-1, keepdim=True), mean_module=LinearMean(2)))


@pytest.fixture(params=["GPyTorch", "FiniteGP"])
def bounds(request):
    candidates = torch.rand(90, 2, dtype=DOUBLE)
    X = candidates[:5]
    kernel = squared_exponential(0.4)
    if request.param == "GPyTorch":
        model = SingleTaskGP(X, X.sum(-1, keepdim=True), covar_module=kernel)
    else:
        model = FiniteGP(candidates, kernel, 1e-2)
        for index in range(5):
            model.observe(index, X[index].sum())
    return GPUCB(model, SrinivasFinite(count=90, delta=0.1)), candidates


def test_the_argmax_query_asks_about_the_candidates_of_largest_bounds(bounds):
    acquisition, candidates = bounds
    best = acquisition(candidates.unsqueeze(-2)).argsort(descending=True)[:7]
    query = acquisition.argmax_query(loss, candidates, score_range=(0.0, 2.0), finalists=7)
    assert torch.equal(torch.stack([*query.candidates]), candidates[best])
    assert query.sensitivity(Adjacency.REPLACE_ONE).linf == 2.0
    release = curator(Budget(25.0, 0.0), PureFilter()).release(
        query, PermuteAndFlipMechanism.of(20.0)
    )
    means = torch.stack([loss(x, RECORDS).clamp(0, 2).mean() for x in candidates[best]])
    assert means[int(release.value)] >= means.max() - 0.05


@pytest.mark.parametrize("mechanism", [PermuteAndFlipMechanism, ExponentialMechanism])
def test_a_released_argmax_is_a_candidate_and_is_charged_once(bounds, mechanism):
    acquisition, candidates = bounds
    law = mechanism.of(20.0)
    own = curator(Budget(25.0, 0.0), PureFilter())
    settings = {"score_range": (0.0, 2.0), "mechanism": law, "finalists": 7}
    index, release = acquisition.release_argmax(own, loss, candidates, **settings)
    assert release.event == law.event()
    assert index == acquisition.best_of(candidates, 7)[int(release.value)]
    query = acquisition.argmax_query(loss, candidates, score_range=(0.0, 2.0), finalists=7)
    again = curator(Budget(25.0, 0.0), PureFilter()).release(query, law)
    assert torch.equal(release.value, again.value), "the same noise"
    with pytest.raises(BudgetExceeded):
        acquisition.release_argmax(own, loss, candidates, **settings)


def test_no_finalists_are_refused(bounds):
    acquisition, candidates = bounds
    with pytest.raises(InputError, match="finalists"):
        acquisition.argmax_query(loss, candidates, score_range=(0.0, 2.0), finalists=0)
