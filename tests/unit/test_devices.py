"""Everything runs where its inputs lie, with the numbers of the CPU, and seldom waits: on a GPU,
else on a device that is not there.
"""

import copy
import math

import pytest
import scipy.stats
import torch
from botorch.acquisition import qLogNoisyExpectedImprovement, qUpperConfidenceBound
from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import Normalize
from botorch.optim import optimize_acqf, optimize_acqf_discrete
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import MaternKernel, RBFKernel, RQKernel, ScaleKernel

from dpbo import DPGIBO, Adjacency, Budget, Curator, PrivacyUnit, PrivateObjective, Space
from dpbo.accounting import PureFilter
from dpbo.acquisition import (
    GPUCB,
    SrinivasFinite,
    prior_guided,
    suggest,
    suggest_in_trust_region,
    suggest_pareto,
)
from dpbo.acquisition.expected_improvement import best_point, pareto_front
from dpbo.algorithms import AsynchronousBO, search_then_choose
from dpbo.errors import InputError
from dpbo.gibo import (
    ClippedGradient,
    GIBOSettings,
    GradientGP,
    GradientInformation,
    GradientPosterior,
    choose_start,
    replicate,
    suggest_gradient_points,
)
from dpbo.gibo.gradient_points import fewest_gradient_points
from dpbo.mechanisms import ExponentialMechanism, PermuteAndFlipMechanism
from dpbo.models import FiniteGP, default_gp, noisy_inputs, sparse_gp
from dpbo.models.builders import unfitted_gp
from dpbo.models.kernels import kernel_derivatives
from dpbo.papers.em import DPFactorAnalysis, DPGaussianMixture, embedding
from dpbo.papers.em.mixture_moments import MixtureMoments
from dpbo.papers.em.point_sums import ClusterSums, VectorSum
from dpbo.papers.kusner import KusnerSearch
from dpbo.papers.po_gp_ucb import Modeler, RowTable
from dpbo.queries import CandidateScores, CellMeans, ClippedMean, QuantileUtilities
from dpbo.queries.ball import Ball
from dpbo.records import examples
from dpbo.testing import SeededEntropy
from tests.setups import DOUBLE, EXACT, box
from tests.shadow import Shadow
from tests.unit.algorithms.test_asynchronous import AtOnce

pytestmark = pytest.mark.gpu
CPU = torch.device("cpu")
LINE = Space(a=scipy.stats.uniform())
MIXED = Space(a=scipy.stats.uniform(), n=scipy.stats.randint(1, 4), kind=["x", "y"])


class Cpu:
    """Where the same case runs for comparison."""

    def put(self, part):
        return part


class Gpu:
    name = "cuda:0"

    def put(self, part):
        return copy.deepcopy(part).to(self.name)


def draw(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.rand(*shape, generator=generator, dtype=DOUBLE, device="cpu")


def made(build, *args):
    """GPyTorch's and BoTorch's modules, which they make on the default device, on the CPU."""
    with CPU:
        return build(*args).double()


THETA = torch.full((3,), 0.5, dtype=DOUBLE)
BOX = box(3)
X = draw(4, 3)
WEIGHTS = draw(3, 4) - 0.5
BALL = Ball(1.0)
OFF_BALL = {"center": THETA, "matrix": torch.eye(3, dtype=DOUBLE)}


def rbf():
    return made(RBFKernel)


def matern():
    return made(lambda: ScaleKernel(MaternKernel(nu=2.5)))


def score(x, records):
    return (records * x.to(records.device)).sum(1).clamp(0.0, 1.0)


def loss(x, records):
    return (records - x.to(records.device)).square().sum(1)


def cell(x, records):
    return (3 * records[:, 0]).long()


def curator(at, adjacency=Adjacency.REPLACE_ONE, **more):
    groups = {} if "groups" not in more else {"groups": more.pop("groups")}
    terms = {"budget": Budget.gdp(1.0), "allow_repeated": True, "entropy": SeededEntropy(0), **more}
    return Curator(
        at.put(draw(300, 3)), unit=PrivacyUnit("person", **groups), adjacency=adjacency, **terms
    )


def ask(at, query):
    return curator(at).release(query, EXACT).value


def choose(at, query):
    return curator(at).release(query, ExponentialMechanism(4.0)).value


def objective(at, points, owner=None, bounds=None, **more):
    query = ClippedMean(score, score_range=(0.0, 1.0), **more)
    return PrivateObjective(owner or curator(at), query, evaluations=6, bounds=bounds)(points)[0]


def gibo(at, bounds, **more):
    return (
        DPGIBO(
            curator(at),
            loss,
            bounds=bounds,
            budget=1.0,
            iterations=2,
            batch_size=4,
            clip=1.0,
            **more,
        )
        .run()
        .x
    )


def replicas(at, settings, runs=3):
    records = [at.put(draw(40, 3)) for _ in range(runs)]
    terms = {"batch_size": 4, "clip": 1.0, "settings": settings, "allow_not_private": True}
    found = replicate(records, loss, bounds=at.put(BOX), mechanism=EXACT, iterations=2, **terms)
    return torch.cat([found.iterates, found.gradients], 1)


def posterior(at, kernel=None):
    found = GradientPosterior(at.put(rbf() if kernel is None else kernel), 1e-4)
    found.append(at.put(draw(6, 3)))
    return found


def points(at, kernel=None, **more):
    return suggest_gradient_points(posterior(at, kernel), at.put(THETA), 3, **more)


def finite_gp(at, kernel, **settings):
    model = FiniteGP(at.put(draw(50, 3)), at.put(kernel), 1e-2, capacity=2, **settings)
    for _ in range(3):
        model.observe(model.argmax_upper(2.0), 0.1)
    return model


def finite(at, kernel, **settings):
    model = finite_gp(at, kernel, **settings)
    points = at.put(draw(5, 3)).requires_grad_()
    posterior = model.posterior(points)
    gradient = torch.autograd.grad(posterior.mean.sum() + posterior.variance.sum(), points)
    conditioned = model.condition_on_observations(model.observed[..., :1, :], at.put(draw(1, 1)))
    parts = (model.mean, model.variance, conditioned.mean, gradient[0], posterior.mean)
    return torch.cat([part.detach().flatten() for part in parts])


def improvement(at):
    model = finite_gp(at, matern())
    with model.candidates.device:
        sampler = SobolQMCNormalSampler(torch.Size([16]), seed=0)
        acquisition = qLogNoisyExpectedImprovement(
            model, model.observed[:2], sampler=sampler, prune_baseline=True, cache_root=False
        )
        bounds = qUpperConfidenceBound(model, 2.0, sampler=sampler)
    points = at.put(draw(4, 2, 3))
    return torch.cat([acquisition(points), bounds(points)]).detach()


def released(at, space=LINE, count=4):
    points = space.sample(count, seed=0)
    Y = torch.exp(-8.0 * (points[:, :1] - 0.3).square().sum(1, keepdim=True))
    return [at.put(part) for part in (points, Y, torch.full_like(Y, 4e-4))]


def model(at):
    return at.put(
        made(
            SingleTaskGP, draw(6, 3), draw(6, 1), torch.full((6, 1), 1e-3, dtype=DOUBLE, device=CPU)
        )
    )


def placed_gradient_gp(at):
    with CPU:
        normalize = Normalize(d=3)
    return at.put(made(lambda: GradientGP(draw(6, 3), draw(6, 1), input_transform=normalize)))


def asynchronous(at):
    asked = PrivateObjective(curator(at), score, score_range=(0.0, 1.0), evaluations=3)
    return AsynchronousBO(asked, Space(a=[0, 1], b=[0, 1], c=[0, 1]), workers=1).run(AtOnce()).Y


def kusner(at):
    terms = {
        "kernel": at.put(rbf()),
        "noise": 1e-3,
        "evaluations": 3,
        "kappa": 0.99,
        "delta": 0.01,
        "value_range": (-3.0, 3.0),
    }
    search = KusnerSearch(
        lambda x, records: float(score(x, records).mean()), at.put(draw(9, 3)), **terms
    )
    owner = curator(at, budget=Budget(1000.0, 0.0), accounting=PureFilter(), allow_conditional=True)
    return torch.cat(
        [
            owner.release(query, EXACT).value
            for query in (search.best(), search.last(amplitude=0.1, tau=1.0))
        ]
    )


def modeler(at):
    model = Modeler(
        at.put(draw(9, 3)), kernel=at.put(noisy_inputs(rbf(), 0.01, dimension=3)), noise=1e-3
    )
    for _ in range(3):
        model.tell(model.ask(), 0.1)
    return model.model.mean


def em(at, kind, **more):
    return kind(
        n_components=2, radius=2.0, dimension=3, random_state=0, mechanism=EXACT, **more
    ).fit(curator(at))


def mixture(at):
    return em(at, DPGaussianMixture, frame_iter=0, init_iter=1, max_iter=1)


def density(at):
    points = at.put(X.clone()).requires_grad_()
    mixture(Cpu()).log_density(points).sum().backward()
    return points.grad


def information(at):
    points = at.put(draw(5, 2, 3)).requires_grad_()
    GradientInformation(posterior(at), at.put(THETA)).forward(points).sum().backward()
    return points.grad


def guided(at):
    X, Y, Yvar = released(at)
    bounds = at.put(LINE.bounds)
    with bounds.device:
        improvement = LogExpectedImprovement(default_gp(LINE, X, Y, Yvar), Y.max())
    acquisition = prior_guided(improvement, lambda x: -x.square().sum(-1), t=2, bounds=bounds)
    with bounds.device:
        return optimize_acqf(acquisition, bounds, q=1, num_restarts=1, raw_samples=4)[0]


def proposed(at):
    X, Y, Yvar = released(at)
    return suggest(LINE, X, Y, Yvar, seed=0, pending=draw(1, 1))


def mixed(at):
    X, Y, Yvar = released(at, MIXED)
    return best_point(MIXED, unfitted_gp(MIXED, X, Y, Yvar).eval(), X, X[:0], seed=0)


def pareto(at):
    X, Y, Yvar = released(at, LINE)
    with torch.compiler.set_stance("force_eager"):
        return suggest_pareto(LINE, X, Y, Yvar, -X[:, :1], reference=(0.0, -1.0), seed=0)


def permute_and_flip(at):
    mechanism = PermuteAndFlipMechanism.of(1.0)
    utilities = at.put((torch.arange(5000, device=CPU) * 7919 % 5000) << 20)
    law = mechanism.distribution(
        ClippedMean(score, score_range=(0.0, 1.0)).sensitivity(Adjacency.REPLACE_ONE), [2.0**-20]
    )
    return torch.from_numpy(mechanism._sample(utilities, [2.0**-20], law, SeededEntropy(0)))


# Results lie where the inputs do.
THERE = {
    "objective": lambda at: objective(
        at, at.put(X), bounds=at.put(BOX), reference=at.put(THETA), largest_difference=0.5
    ),
    "objective of groups": lambda at: objective(
        at, at.put(X), curator(at, groups=at.put(torch.arange(300, device=CPU) % 50))
    ),
    "objective, add or remove": lambda at: objective(
        at, at.put(X), curator(at, Adjacency.ADD_OR_REMOVE_ONE), divisor=300.0
    ),
    "DPGIBO": lambda at: gibo(at, at.put(BOX), start=at.put(THETA)),
    "replicas": lambda at: replicas(at, GIBOSettings.recommended()),
    "DPGIBO with a tolerance": lambda at: gibo(
        at, at.put(BOX), settings=GIBOSettings(tolerance=2.1)
    ),
    "choose_start": lambda at: choose_start(
        curator(at), loss, at.put(X), loss_range=(0.0, 3.0), budget=0.1
    ),
    "gradient points": lambda at: points(at, bounds=at.put(BOX), start=at.put(X[:3])),
    "gradient points, turned": lambda at: points(
        at, matern(), generator=torch.Generator().manual_seed(0)
    ),
    "fewest gradient points": lambda at: fewest_gradient_points(
        posterior(at), at.put(THETA), 0.5, bounds=BOX
    ),
    "gradient information": information,
    "gradient posterior": (
        lambda at: placed_gradient_gp(at).gradient_posterior(at.put(draw(2, 3))).mean.detach()
    ),
    "finite, Matern": lambda at: finite(at, matern()),
    "finite, any kernel": lambda at: finite(at, made(RQKernel)),
    "finite, rows of their own": lambda at: finite(
        at, noisy_inputs(rbf(), 0.01, dimension=3), batch_shape=(2,)
    ),
    "finite, in BoTorch's acquisition functions": improvement,
    "modeler": modeler,
    "GPUCB": (
        lambda at: GPUCB(model(at), SrinivasFinite(count=9, delta=0.1)).best_of(
            at.put(draw(9, 3)), 3
        )
    ),
    "GPUCB of a FiniteGP": lambda at: optimize_acqf_discrete(
        GPUCB(finite_gp(at, matern()), SrinivasFinite(count=50, delta=0.1)),
        q=1,
        choices=at.put(draw(9, 3)),
    )[0],
    "suggest": lambda at: suggest(LINE, *released(at), seed=0, pending=at.put(draw(1, 1))),
    "suggest beside points on the CPU": proposed,
    "suggest, steps and categories": mixed,
    "trust region": lambda at: suggest_in_trust_region(LINE, *released(at), initial=2, seed=0),
    "Pareto": pareto,
    "Pareto front": lambda at: (lambda X, Y, Yvar: pareto_front(LINE, X, Y, Yvar, -X[:, :1]))(
        *released(at)
    ),
    "suggest by a sparse model": lambda at: suggest(LINE, *released(at), seed=0, model=sparse_gp),
    "guided by a prior": guided,
    "placed": lambda at: MIXED.placed(at.put(X)),
    "search_then_choose": lambda at: (
        search_then_choose(
            curator(at),
            score,
            at.put(draw(9, 3)),
            score_range=(0.0, 1.0),
            evaluations=3,
            initial=2,
            finalists=3,
        ).x
    ),
    "density of a private mixture": density,
    "embedding": lambda at: at.put(embedding(em(at, DPFactorAnalysis)))(at.put(X)),
}
# Released values, and results of public inputs on the CPU, lie on the CPU.
HERE = {
    "objective at points on the CPU": lambda at: objective(at, X),
    "DPGIBO in a box on the CPU": lambda at: gibo(at, BOX),
    "clipped gradient": lambda at: ask(
        at, ClippedGradient(loss, at.put(X), weights=at.put(WEIGHTS), clip=1.0)
    ),
    "a model's released gradient": lambda at: (
        placed_gradient_gp(at)
        .release_gradient(curator(at), at.put(THETA), at.put(X), loss, clip=1.0, mechanism=EXACT)
        .value
    ),
    "moments in a ball of its own": lambda at: ask(
        at,
        MixtureMoments(
            3,
            ball=Ball(1.0, **{name: at.put(part) for name, part in OFF_BALL.items()}),
            natural=at.put(draw(3, 10)),
        ),
    ),
    "cluster sums": lambda at: ask(at, ClusterSums(3, ball=BALL, centers=at.put(X))),
    "sum of vectors": lambda at: ask(at, VectorSum(3, ball=BALL, nonnegative=True)),
    "cells": lambda at: ask(at, CellMeans(cell, at.put(THETA), cells=3)),
    "a table's rows": lambda at: ask(at, RowTable([0.0] * 3, radius=1.0)),
    "candidates": lambda at: choose(
        at, CandidateScores(score, list(at.put(X)), score_range=(0.0, 1.0))
    ),
    "quantile": lambda at: choose(
        at,
        QuantileUtilities(
            lambda _, records: records[:, 0], candidates=[0.1, 0.5, 0.9], quantile=0.5
        ),
    ),
    "permute and flip": permute_and_flip,
    "asynchronous": asynchronous,
    "Kusner": kusner,
    "private mixture": lambda at: torch.from_numpy(mixture(at).means_),
}


# BoTorch compiles a kernel at its first use, which takes half a minute.
PARETO = pytest.param("Pareto", marks=pytest.mark.deep)


@pytest.fixture
def device():
    if torch.cuda.is_available():
        pytest.skip("one device a process: there is a GPU")
    with Shadow() as shadow:
        yield shadow


SLOW = {
    name: pytest.param(name, marks=pytest.mark.deep)
    for name in ("DPGIBO with a tolerance", "gradient points, turned")
}


EACH = pytest.mark.parametrize(
    "name", [{"Pareto": PARETO, **SLOW}.get(name, name) for name in (*THERE, *HERE)]
)


@pytest.fixture
def tried_once(name, monkeypatch):
    """The trial of a score is nearly all of a case's time: one case has it."""
    if name != "objective":
        monkeypatch.setattr(examples, "require_per_record", lambda *_, **__: None)


@EACH
@pytest.mark.usefixtures("tried_once")
def test_no_tensor_lies_on_the_callers_default_device(name):
    """The GPU, else `meta`: whatever is made there has no numbers, and fails."""
    with torch.device(Gpu.name if torch.cuda.is_available() else "meta"):
        found = (THERE | HERE)[name](Cpu())
    assert found.device == CPU
    assert found.isfinite().all()


def test_a_score_sees_the_callers_default_device():
    seen = set()

    def default(x, records):
        seen.add(torch.get_default_device().type)
        return score(x, records)

    with torch.device("meta"):
        ask(Cpu(), ClippedMean(default, THETA, score_range=(0.0, 1.0)))
    assert seen == {"meta"}


@EACH
@pytest.mark.usefixtures("tried_once")
def test_results_are_the_cpus_and_lie_where_the_inputs_do(name, request):
    there = Gpu() if torch.cuda.is_available() else request.getfixturevalue("device")
    found = (THERE | HERE)[name](there)
    expected = (THERE | HERE)[name](Cpu())
    assert (str(found.device), found.shape) == (
        there.name if name in THERE else "cpu",
        expected.shape,
    )
    # Whose last digits may lead a search elsewhere.
    if not isinstance(there, Gpu):
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-6, atol=1e-9)


def observed(model):
    model.observe(model.argmax_upper(2.0), 0.1)
    return model


# BoTorch's habit: one dict for every constructor and every `.to`.
MOVED = {
    "posterior": lambda t: posterior(Cpu()).to(**t).weights(THETA.to(**t)),
    "derivatives": lambda t: kernel_derivatives(matern()).to(**t).value(X.to(**t), X.to(**t)),
    "finite": lambda t: observed(observed(FiniteGP(X, rbf(), 1e-2)).to(**t)).mean,
    "sample": lambda t: MIXED.sample(4, seed=0, **t),
    "embedding": lambda t: embedding(em(Cpu(), DPFactorAnalysis)).to(**t)(X.to(**t)),
    "mixture": lambda t: torch.as_tensor(mixture(Cpu()).means_, **t),
    "density": lambda t: mixture(Cpu()).log_density(X.to(**t)),
}
# Arrays, and what is read on the CPU, may come from anywhere.
TAKEN = {
    "center of a ball": lambda t: Ball(1.0, center=THETA.to(**t)).center,
    "center of a mixture": lambda t: torch.from_numpy(
        em(Cpu(), DPGaussianMixture, center=THETA.to(**t), init_iter=1, max_iter=1).means_
    ),
    "rows of a mixture": lambda t: torch.from_numpy(
        DPGaussianMixture(2, radius=2.0, mechanism=EXACT, random_state=0, max_iter=1)
        .fit(draw(50, 3).to(**t))
        .score_samples(X.to(**t))
    ),
}


@pytest.mark.parametrize("name", [*MOVED, *TAKEN])
def test_what_holds_tensors_takes_a_dict_of_device_and_dtype(name, request):
    there = Gpu() if torch.cuda.is_available() else request.getfixturevalue("device")
    case = (MOVED | TAKEN)[name]
    found = case({"dtype": torch.double, "device": there.name})
    expected = case({"dtype": torch.double, "device": "cpu"})
    assert str(found.device) == (there.name if name in MOVED else "cpu")
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-6, atol=1e-9)


def test_an_evaluation_waits_for_a_device_four_times_at_most(device):
    """Of these once for the trial of each model on two public records."""
    asked = PrivateObjective(
        curator(device), score, score_range=(0.0, 1.0), evaluations=6, bounds=BOX
    )
    # Takes the records' fingerprints, once.
    asked(device.put(X[:1]))
    for X_there in (device.put(X[:1]), device.put(X[:3])):
        device.forget()
        asked(X_there)
        assert len(device.syncs) <= 2 + 2 * len(X_there), device.syncs
    device.forget()
    asked.evaluate(device.put(X[0]))
    assert len(device.syncs) <= 4, device.syncs


def test_a_search_for_gradient_points_waits_for_a_device_once_in_eight_steps(device):
    found = posterior(device)
    theta = device.put(THETA)
    for bounds in (None, device.put(BOX)):
        for steps in (1, 24):
            device.forget()
            suggest_gradient_points(found, theta, 4, bounds=bounds, steps=steps, close=1e-300)
            assert len(device.syncs) <= 5 + math.ceil(steps / 8), device.syncs
            assert len(device.uploads) <= 5, device.uploads


def test_what_does_not_fit_is_said(device):
    X, Y, Yvar = released(Cpu())
    with pytest.raises(
        InputError, match=r"^Y='cpu' .* the device of X, shadow:0. Give Y.to\(X.device\)"
    ):
        suggest(LINE, device.put(X), Y, Yvar, seed=0)
