"""The card of the classes: what each is a subclass of, and what it does as its base does, for one
run and for a batch of runs.
"""

import pickle
import subprocess
import sys

import pytest
import torch
from botorch.acquisition import AcquisitionFunction, UpperConfidenceBound
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from gpytorch.kernels import MaternKernel, RBFKernel
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
from tests.setups import DOUBLE
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


def of_a_step(runs):
    """Launches, waits and uploads of a step of GP-UCB, of a gradient's weights and of a search for
    its points, for so many runs.
    """
    counts = []
    with Shadow() as device:
        kernel = device.put(RBFKernel().double())
        model = FiniteGP(device.put(GRID), kernel, 1e-2, batch_shape=[runs])
        theta = device.put(rand(1, D).expand(runs, D).clone())
        points = device.put(rand(1, T, D).expand(runs, T, D).clone())
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
