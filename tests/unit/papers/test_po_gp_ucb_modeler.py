"""The modeler: Algorithm 2's choices, any BoTorch acquisition, rows under way, and continuing from what was told."""

import ast
import inspect
import math

import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.models import SingleTaskGP
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.means import ZeroMean

from dpbo.acquisition import SrinivasFinite
from dpbo.errors import InputError
from dpbo.models import FiniteGP, noisy_inputs
from dpbo.models.fixed_kernels import squared_exponential
from dpbo.papers.po_gp_ucb import Modeler, modeler
from tests.unit.models.conftest import _seed  # noqa: F401

DOUBLE = torch.float64
NOISE = 1e-4


def rows(n=60):
    return torch.rand(n, 2, dtype=DOUBLE)


def kernel(variance=0.01):
    return noisy_inputs(squared_exponential(0.4), variance, dimension=2)


def value(Z, index):
    return float(torch.sin(5.0 * Z[index, 0]) + torch.cos(4.0 * Z[index, 1]))


def played(asking, Z, steps):
    for _ in range(steps):
        index = asking.ask()
        asking.tell(index, value(Z, index))
    return [index for index, _ in asking.history]


def log_ei(model):
    return LogExpectedImprovement(model, model.posterior(model.observed).mean.max())


def log_nei(model):
    sampler = SobolQMCNormalSampler(torch.Size([64]), seed=0)
    return qLogNoisyExpectedImprovement(model, model.observed, sampler=sampler, prune_baseline=False)


def test_it_is_algorithm_2_written_with_botorch():
    Z = rows()
    played_rows = played(Modeler(Z, kernel=kernel(), noise=NOISE), Z, 12)
    schedule = SrinivasFinite(count=len(Z), delta=0.025)
    chosen = [0]
    for t in range(1, 12):
        Y = torch.tensor([[value(Z, index)] for index in chosen], dtype=DOUBLE)
        model = SingleTaskGP(
            Z[chosen], Y, train_Yvar=torch.full_like(Y, NOISE), covar_module=kernel(), mean_module=ZeroMean(), outcome_transform=None
        )
        with torch.no_grad():
            scores = UpperConfidenceBound(model.double().eval(), beta=schedule(t + 1))(Z.unsqueeze(-2))
        scores[chosen] = -math.inf
        chosen.append(int(scores.argmax()))
    assert played_rows == chosen


def test_a_row_is_asked_once_unless_repeats_are_wanted():
    Z = rows(8)
    asking = Modeler(Z, kernel=kernel(), noise=NOISE)
    assert sorted(played(asking, Z, 8)) == list(range(8))
    with pytest.raises(InputError, match="repeats"):
        asking.ask()
    again = played(Modeler(Z, kernel=squared_exponential(0.4), noise=1.0, repeats=True), Z, 30)
    assert len(set(again)) < 30


@pytest.mark.parametrize("acquisition", [None, log_ei, log_nei], ids=["ucb", "log-ei", "log-nei"])
def test_any_acquisition_finds_the_best_row(acquisition):
    Z = rows()
    found = []
    for chunk in (7, 4096):
        asking = Modeler(Z, kernel=kernel(1e-4), noise=NOISE, acquisition=acquisition, chunk=chunk, schedule=None)
        for index in (3, 17, 40):
            asking.tell(index, value(Z, index))
        found.append(played(asking, Z, 8))
        assert asking.best[1] == max(y for _, y in asking.history)
        assert max(value(Z, index) for index in range(len(Z))) - asking.best[1] < 0.05
    assert found[0] == found[1], "whatever the size of a chunk"


@pytest.mark.parametrize("acquisition", [log_ei, log_nei], ids=["log-ei", "log-nei"])
def test_an_acquisition_is_what_botorch_says_of_the_same_model(acquisition):
    Z = rows()
    asking = Modeler(Z, kernel=kernel(), noise=NOISE, acquisition=acquisition, chunk=10)
    model = FiniteGP(Z, kernel(), NOISE)
    for index in (3, 17, 40):
        asking.tell(index, value(Z, index))
        model.observe(index, value(Z, index))
    with torch.no_grad():
        scores = acquisition(model)(Z.unsqueeze(-2))
    scores[[3, 17, 40]] = -math.inf
    assert asking.ask() == int(scores.argmax())


def test_rows_under_way_count_as_seen_at_their_mean():
    Z = rows()
    asking = Modeler(Z, kernel=kernel(), noise=NOISE)
    played(asking, Z, 4)
    model = FiniteGP(Z, kernel(), NOISE)
    schedule = SrinivasFinite(count=len(Z), delta=0.025)
    expected = []
    asked = []
    for index, y in asking.history:
        model.observe(index, y)
        asked.append(index)
    before = asking.model.variance.clone()
    for _ in range(3):
        expected.append(int(model.argmax_upper(schedule(model.num_observations + 1), exclude=torch.tensor(asked))))
        asked.append(expected[-1])
        model.observe(expected[-1], float(model.mean[expected[-1]]))
    assert [asking.ask() for _ in range(3)] == expected == asking.pending
    assert torch.equal(asking.model.variance, before), "what is under way is not learned"
    for index in reversed(expected):
        asking.tell(index, value(Z, index))
    assert asking.pending == []
    asking.ask()
    asking.forget_pending()
    assert asking.pending == []


@pytest.mark.parametrize("acquisition", [None, log_ei], ids=["ucb", "log-ei"])
def test_it_continues_from_what_was_told(acquisition):
    Z = rows()
    first = Modeler(Z, kernel=kernel(), noise=NOISE, acquisition=acquisition)
    played(first, Z, 6)
    resumed = Modeler(Z, kernel=kernel(), noise=NOISE, acquisition=acquisition, history=first.history)
    assert resumed.history == first.history
    assert played(resumed, Z, 6) == played(first, Z, 6)


def test_what_is_refused():
    Z = rows(5)
    asking = Modeler(Z, kernel=kernel(), noise=NOISE)
    asking.tell(0, 1.0)
    for index, y, message in ((-1, 0.0, "index"), (5, 0.0, "index"), (1, math.nan, "y=nan"), (0, 1.0, "index=0")):
        with pytest.raises(InputError, match=message):
            asking.tell(index, y)
    assert asking.history == [(0, 1.0)]
    short = Modeler(Z, kernel=kernel(), noise=NOISE, acquisition=lambda model: lambda X: X.new_zeros(1), history=[(0, 1.0)])
    with pytest.raises(InputError, match="acquisition"):
        short.ask()


def test_the_modeler_sees_no_curator():
    imported = {node.module for node in ast.walk(ast.parse(inspect.getsource(modeler))) if isinstance(node, ast.ImportFrom)}
    assert imported
    assert not [name for name in imported if name and name.startswith(("dpbo.curator", "dpbo.queries", "dpbo.mechanisms"))]
