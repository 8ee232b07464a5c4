"""The release steps of models and acquisition functions are `curator.release` of their queries: same noise, one charge, same refusals."""

import pytest
import torch
from botorch.models.transforms.outcome import Standardize
from gpytorch.kernels import ScaleKernel
from gpytorch.means import LinearMean

from dpbo import Adjacency, Budget, BudgetExceeded, Curator, PrivacyUnit
from dpbo.accounting import GDPFilter, PureFilter
from dpbo.acquisition import GPUCB, SrinivasFinite
from dpbo.errors import InputError
from dpbo.gibo import GradientGP, GradientInformation, GradientPosterior, suggest_gradient_points
from dpbo.mechanisms import GaussianMechanism, PermuteAndFlipMechanism
from dpbo.models import FiniteGP
from dpbo.models.datasets import squared_exponential
from dpbo.testing.entropy import SeededEntropy
from tests.unit.models.kernels import DOUBLE

RECORDS, THETA = torch.linspace(-1.0, 1.0, 300, dtype=DOUBLE), torch.tensor([0.4, 0.7], dtype=DOUBLE)


def loss(x, records):
    return (x.sum() - records).abs()


def released(step, query, mechanism, budget, accounting, adjacency=Adjacency.REPLACE_ONE):
    """`step(curator)` gives what `release` of the query gives, and is charged once: the budget suffices for one release."""
    terms = {"unit": PrivacyUnit("record"), "adjacency": adjacency, "budget": budget, "accounting": accounting, "allow_repeated": True}
    own, other = (Curator(RECORDS, **terms, entropy=SeededEntropy(3)) for _ in range(2))
    release, expected = step(own), other.release(query, mechanism)
    assert torch.equal(release.value, expected.value)
    assert torch.equal(release.variance, expected.variance)
    assert (release.event, own.ledger.head().total) == (mechanism.event(), other.ledger.head().total)
    with pytest.raises(BudgetExceeded):
        step(own)
    return release.value


@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ADD_OR_REMOVE_ONE])
def test_gradients(adjacency):
    mechanism, posterior = GaussianMechanism(5.0), GradientPosterior(squared_exponential(0.5), 0.0, mean=0.2)
    X = suggest_gradient_points(posterior, THETA, 3)
    for model in (posterior, GradientGP(X, X.sum(-1, keepdim=True))):
        query = model.gradient_query(THETA, X, loss, clip=2.0, divisor=300.0)
        assert query.sensitivity(adjacency).l2 == (4.0 if adjacency is Adjacency.REPLACE_ONE else 2.0)

        def step(own, model=model):
            return model.release_gradient(own, THETA, X, loss, mechanism=mechanism, clip=2.0, divisor=300.0)

        assert released(step, query, mechanism, Budget.gdp(0.25), GDPFilter(), adjacency).shape == (2,)


def test_the_query_of_a_posterior():
    posterior = GradientPosterior(squared_exponential(0.5), 0.0, mean=0.2)
    X = suggest_gradient_points(posterior, THETA, 3)
    query = posterior.gradient_query(THETA, X, loss, clip=2.0)
    assert (query.center, len(posterior)) == (0.2, 0), "the posterior is left as it is"
    assert torch.equal(query.weights, posterior.conditioned_on(X).weights(THETA))
    moved = posterior.gradient_query(THETA, X, loss, clip=2.0, loss_points=2.0 * X)
    for same in (moved, GradientInformation(posterior, THETA).gradient_query(X, loss, clip=2.0)):
        assert torch.equal(same.weights, query.weights)
    assert torch.equal(moved.X, 2.0 * X)
    with pytest.raises(InputError, match="earlier"):
        posterior.conditioned_on(X).gradient_query(THETA, X + 0.1, loss, clip=2.0)


def test_the_query_of_a_model_is_in_the_units_of_its_values():
    X, kernel = torch.rand(9, 2, dtype=DOUBLE), squared_exponential(0.5)
    Y = 5.0 + 3.0 * X.sum(-1, keepdim=True)
    gp, scaled = GradientGP(X, Y, covar_module=kernel, outcome_transform=Standardize(m=1)), ScaleKernel(kernel).double()
    gp.mean_module.constant, scaled.outputscale = torch.tensor(0.3, dtype=DOUBLE), float(Y.var())
    expected = GradientPosterior(scaled, 0.1, mean=float(Y.mean() + 0.3 * Y.std())).gradient_query(THETA, X[:3], loss, clip=1.0)
    query = gp.gradient_query(THETA, X[:3], loss, noise=0.1, clip=1.0)
    torch.testing.assert_close(query.weights, expected.weights, rtol=1e-6, atol=1e-6)
    assert query.center == pytest.approx(expected.center)
    with pytest.raises(InputError, match="mean_module"):
        GradientGP(X, Y, mean_module=LinearMean(2)).gradient_query(THETA, X, loss, clip=1.0)


def test_the_best_candidate():
    candidates, mechanism, options = torch.rand(90, 2, dtype=DOUBLE), PermuteAndFlipMechanism.of(20.0), {"score_range": (0.0, 2.0)}
    model, schedule = FiniteGP(candidates, squared_exponential(0.4), 1e-2), SrinivasFinite(count=90, delta=0.1)
    for index in range(5):
        model.observe(index, float(candidates[index].sum()))
    bounds, beta = GPUCB(model, schedule), schedule(6)
    best = bounds(candidates.unsqueeze(-2)).argsort(descending=True)[:7]
    queries = model.argmax_query(loss, beta=beta, **options, finalists=7), bounds.argmax_query(loss, candidates, **options, finalists=7)
    steps = (
        lambda own: model.release_argmax(own, loss, mechanism=mechanism, beta=beta, **options, finalists=7),
        lambda own: bounds.release_argmax(own, loss, candidates, mechanism=mechanism, **options, finalists=7),
    )
    means = torch.stack([loss(x, RECORDS).clamp(0, 2).mean() for x in candidates[best]])
    for step, query in zip(steps, queries, strict=True):
        assert torch.equal(torch.stack([*query.candidates]), candidates[best]), "the best bound first"
        assert query.sensitivity(Adjacency.REPLACE_ONE).linf == 2.0
        assert means[int(released(step, query, mechanism, Budget(25.0, 0.0), PureFilter()))] >= means.max() - 0.05
    with pytest.raises(InputError, match="finalists"):
        bounds.argmax_query(loss, candidates, **options, finalists=0)
    with pytest.raises(InputError, match="a CuratorLike"):
        model.release_argmax(RECORDS, loss, mechanism=mechanism, beta=beta, **options)  # type: ignore[arg-type]
