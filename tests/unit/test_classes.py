"""The card of the classes: what each is a subclass of, and what it does as its base does, for one
run and for a batch of runs.
"""

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch
from botorch.acquisition import AcquisitionFunction, LogExpectedImprovement, UpperConfidenceBound
from botorch.exceptions.warnings import InputDataWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.optim import optimize_acqf, optimize_acqf_discrete
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.models import GP

from dpbo.acquisition import GPUCB, SrinivasFinite
from dpbo.acquisition.ucb import suggest_ucb
from dpbo.dpsgd import LedgerAccountant, PrivateEngine
from dpbo.dpsgd._opacus import load_opacus
from dpbo.errors import InputError
from dpbo.gibo import (
    GradientGP,
    GradientInformation,
    GradientPosterior,
    suggest_gradient_points,
)
from dpbo.models import FiniteGP
from tests.setups import DOUBLE, box
from tests.shadow import Shadow

D = 2
T = 8
CANDIDATES = 30
RUNS = 3
SCHEDULE = SrinivasFinite(count=CANDIDATES, delta=0.1)


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def rand(*shape):
    return torch.rand(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(sum(shape)))


X = rand(RUNS, T, D)
Y = torch.sin(4.0 * X).sum(-1, keepdim=True)
GRID = rand(CANDIDATES, D)
INDICES = torch.arange(RUNS * 4).view(RUNS, 4) % CANDIDATES


def gradient_gp(runs):
    """Of these runs' data: a batch of models, or one model for a number."""
    return GradientGP(X[runs], Y[runs], torch.full_like(Y[runs], 1e-2)).eval()


def finite_gp(runs):
    one = isinstance(runs, int)
    shape = [] if one else [len(X[runs])]
    model = FiniteGP(GRID, RBFKernel().double(), 1e-2, batch_shape=shape, capacity=2)
    for j in range(4):
        index = INDICES[runs, j]
        model.observe(index, GRID[index].sum(-1))
    return model


def gradient_posterior(runs):
    return GradientPosterior(RBFKernel().double(), 1e-3).conditioned_on(X[runs])


MODELS = {GradientGP: gradient_gp, FiniteGP: finite_gp}
ALL = slice(0, RUNS)


def test_each_is_a_subclass_of_what_the_card_says():
    model = gradient_gp(0)
    bases = {
        GradientGP: (SingleTaskGP, GP),
        FiniteGP: (Model,),
        GPUCB: (UpperConfidenceBound,),
        GradientInformation: (AcquisitionFunction,),
        LedgerAccountant: (load_opacus("opacus.accountants").IAccountant,),
        PrivateEngine: (load_opacus().PrivacyEngine,),
    }
    for kind, above in bases.items():
        assert all(issubclass(kind, base) for base in above), kind
    made = [
        model,
        finite_gp(0),
        GPUCB(model, SCHEDULE),
        GradientInformation(model, rand(D)),
    ]
    for thing, kind in zip(made, bases, strict=False):
        assert isinstance(thing, (kind, torch.nn.Module)), kind


@pytest.mark.parametrize("kind", MODELS)
def test_posteriors_have_botorchs_shapes_and_are_those_of_single_runs(kind):
    batch = MODELS[kind](ALL)
    single = MODELS[kind](1)
    assert batch.batch_shape == torch.Size([RUNS])
    assert single.batch_shape == torch.Size([])
    points = rand(5, RUNS, 3, D)
    found = batch.posterior(points)
    assert found.mean.shape == found.variance.shape == (5, RUNS, 3, 1)
    assert single.posterior(points).mean.shape == (5, RUNS, 3, 1)
    for run in range(RUNS):
        alone = MODELS[kind](run).posterior(points[:, run])
        close(found.mean[:, run], alone.mean)
        close(found.variance[:, run], alone.variance)


def test_gradients_are_finite_differences_for_t_batches_and_batches_of_models():
    h = 1e-5
    for runs, points in ((0, rand(4, 2, D)), (ALL, rand(4, RUNS, 2, D))):
        model = gradient_gp(runs)
        found = model.gradient_posterior(points).mean
        assert found.shape == points.shape
        for j in range(D):
            step = h * torch.eye(D, dtype=DOUBLE)[j]
            above, below = (model.posterior(points + sign * step).mean for sign in (1, -1))
            difference = (above - below).squeeze(-1) / (2.0 * h)
            torch.testing.assert_close(found[..., j], difference, rtol=1e-5, atol=1e-6)


def test_a_batch_of_runs_is_the_loop_over_them():
    theta = rand(RUNS, D)
    both = gradient_posterior(ALL)
    points = suggest_gradient_points(both, theta, D + 1, bounds=box(D))
    finite = finite_gp(ALL)
    chosen = finite.argmax_upper(2.0)
    ucb = GPUCB(finite, SCHEDULE)
    for run in range(RUNS):
        alone = gradient_posterior(run)
        for name in ("weights", "covariance"):
            ours, theirs = getattr(both, name)(theta)[run], getattr(alone, name)(theta[run])
            close(ours, theirs)
        own = suggest_gradient_points(alone, theta[run], D + 1, bounds=box(D))
        close(points[run], own)
        one = finite_gp(run)
        assert int(one.argmax_upper(2.0)) == int(chosen[run])
        values = GPUCB(one, SCHEDULE)(GRID.unsqueeze(1))
        close(ucb(GRID.view(-1, 1, 1, D))[:, run], values)
        information = GradientInformation(alone, theta[run])(points[run])
        close(GradientInformation(both, theta)(points)[run], information.squeeze())


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("runs", [0, ALL], ids=["one run", "a batch"])
def test_models_are_copied_saved_and_moved(kind, runs):
    model = MODELS[kind](runs)
    points = rand(3, D) if runs == 0 else rand(RUNS, 3, D)
    expected = model.posterior(points).mean
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = copy.deepcopy(model)
    if kind is FiniteGP:
        other.forget()
    other.load_state_dict(torch.load(file, weights_only=True))
    for twin in (pickle.loads(pickle.dumps(model)), other, copy.deepcopy(model).to("cpu")):
        assert torch.equal(twin.posterior(points).mean, expected)


def test_what_was_made_of_a_model_stays_when_that_is_fitted_or_goes_on():
    """By the kernel's default, hyperparameters have no transform and are the parameters."""
    model = SingleTaskGP(X[0], Y[0])
    theta, points = rand(D), rand(3, D)
    information = GradientInformation(model, theta)
    before = information(points)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert torch.equal(information(points), before)
    assert torch.equal(pickle.loads(pickle.dumps(information))(points), before)
    finite = finite_gp(0)
    state = finite.state_dict()
    mean = finite.mean.clone()
    finite.observe(7, -2.0)
    finite.load_state_dict(state)
    assert torch.equal(finite.mean, mean)
    other = FiniteGP(GRID, RBFKernel().double(), 3.0, mean=5.0)
    other.load_state_dict(state)
    assert (other.noise, other.prior_mean) == (1e-2, 0.0)
    torch.testing.assert_close(other.posterior(GRID.unsqueeze(1)).mean.flatten(), mean)
    with pytest.raises(InputError, match="state_dict"):
        FiniteGP(GRID, MaternKernel().double(), 1e-2).load_state_dict(state)
    ucb = GPUCB(finite, SCHEDULE)
    for _ in range(12):
        chosen = suggest_ucb(finite, SCHEDULE)
        assert int(ucb.best_of(GRID, 1)) == int(chosen)
        finite.observe(chosen, 0.1)


def test_botorch_optimises_over_them():
    model = gradient_gp(0)
    for acquisition in (LogExpectedImprovement(model, Y[0].max()), GPUCB(model, SCHEDULE)):
        x, _ = optimize_acqf(acquisition, box(D), q=1, num_restarts=1, raw_samples=8)
        assert x.shape == (1, D)
    finite = finite_gp(0)
    x, _ = optimize_acqf_discrete(GPUCB(finite, SCHEDULE), q=1, choices=GRID)
    assert torch.equal(x[0], GRID[suggest_ucb(finite, SCHEDULE)])
    theta = rand(D)
    x, _ = optimize_acqf(
        GradientInformation(model, theta), box(D), q=2, num_restarts=1, raw_samples=8
    )
    assert x.shape == (2, D)


def test_float32_is_refused_by_name():
    with pytest.warns(InputDataWarning):
        narrow = SingleTaskGP(X[0].float(), Y[0].float())
    kernel = ScaleKernel(MaternKernel(nu=2.5))
    refused = {
        "candidates": lambda: FiniteGP(GRID.float(), kernel.double(), 1e-2),
        "kernel": lambda: GradientPosterior(kernel.float(), 0.0),
        "X": lambda: gradient_gp(0).gradient_posterior(X[0].float()),
        "train_X": lambda: GradientInformation(narrow, rand(D)),
        "model": lambda: GPUCB(narrow, SCHEDULE),
    }
    for name, call in refused.items():
        with pytest.raises(InputError) as error:
            call()
        assert error.value.parameter == name
        assert "float64" in str(error.value)


def of_a_step(runs):
    """Launches and waits of a step of GP-UCB, and of a gradient's weights, for so many runs."""
    counts = []
    with Shadow() as device:
        model = FiniteGP(
            device.put(GRID), device.put(RBFKernel().double()), 1e-2, batch_shape=[runs]
        )
        theta = device.put(rand(1, D).expand(runs, D).clone())
        points = device.put(rand(1, T, D).expand(runs, T, D).clone())
        kernel = device.put(RBFKernel().double())
        value = device.put(torch.zeros(runs, dtype=DOUBLE))

        def gp_ucb():
            model.observe(suggest_ucb(model, SCHEDULE), value)

        def gradient():
            GradientPosterior(kernel, 1e-3).conditioned_on(points).weights(theta)

        def design():
            history = GradientPosterior(kernel, 1e-3).conditioned_on(points)
            suggest_gradient_points(history, theta, D + 1, steps=5, close=1e-12)

        for step in (gp_ucb, gradient, design):
            step()
            device.forget()
            step()
            counts.append((len(device.launches), len(device.syncs), len(device.uploads)))
    return counts


def test_fifty_runs_launch_and_wait_no_more_often_than_one():
    one = of_a_step(1)
    fifty = of_a_step(50)
    assert fifty == one
    assert one[0][1] == 0, "the host waits in a step of GP-UCB"


def test_opacus_knows_the_accountant_after_import_dpbo():
    code = (
        "import sys, warnings; warnings.simplefilter('ignore'); import dpbo;"
        " assert 'opacus' not in sys.modules; import opacus;"
        " print(type(opacus.PrivacyEngine(accountant='dpbo').accountant).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "LedgerAccountant", done.stderr[-2000:]
