"""A7: whatever an optimiser does between releases follows from released values alone: bit-identical
points when those are frozen.

Each honest loop uses one thing that could have looked at the records: hyper-parameters by
likelihood, stopping early, dpbo's own proposals. Replay with frozen values must find the same
points, models and number of calls on the neighbour. That replay refuses a loop that takes such a
thing from the records is in
tests/unit/testing/test_replaying.py.
"""

import warnings

import pytest
import scipy.stats
import torch
from botorch.acquisition import qLogNoisyExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood

from dpbo import Budget, PrivateObjective, Space
from dpbo.acquisition import suggest
from dpbo.testing import SeededEntropy, replay
from tests.attacks.marks import attack
from tests.attacks.setups import DOUBLE, TERMS
from tests.setups import box

pytestmark = [attack("A6", "A7"), pytest.mark.filterwarnings("ignore::RuntimeWarning")]
RECORDS = torch.linspace(0, 1, 300, dtype=DOUBLE)
NEIGHBOUR = torch.cat([torch.tensor([41.0], dtype=DOUBLE), RECORDS[1:]])
BOUNDS = box(1)
START = torch.tensor([[0.1], [0.5], [0.9]], dtype=DOUBLE)


def score(x, records):
    return 1 - (records.clamp(0, 1) - x[0]).abs()


def steps(curator, propose, stop=lambda Y: False):
    objective = PrivateObjective(curator, score, score_range=(0.0, 1.0), evaluations=6)
    X = START
    Y, Yvar = objective(X)
    while objective.remaining and not stop(Y):
        x = propose(X, Y, Yvar)
        y, yvar = objective(x)
        X = torch.cat([X, x])
        Y = torch.cat([Y, y])
        Yvar = torch.cat([Yvar, yvar])
    return X


def fitted(X, Y, Yvar):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SingleTaskGP(X, Y, train_Yvar=Yvar)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def proposed(model, X):
    torch.manual_seed(len(X))
    acquisition = qLogNoisyExpectedImprovement(model, X, prune_baseline=False)
    return optimize_acqf(
        acquisition, BOUNDS, q=1, num_restarts=2, raw_samples=16, options={"seed": 1}
    )[0]


def hyperparameters(curator, _records):
    return steps(curator, lambda X, Y, Yvar: proposed(fitted(X, Y, Yvar), X))


def stopped_early(curator, _records):
    return steps(
        curator,
        lambda X, Y, Yvar: (X[-1:] * 0.7 + 0.1).clamp(0, 1),
        stop=lambda Y: bool((Y > 0.74).any()),
    )


def dpbos_own(curator, _records):
    space = Space(x=scipy.stats.uniform(0, 1))
    return steps(curator, lambda X, Y, Yvar: suggest(space, X, Y, Yvar, seed=len(X)))


HONEST = [hyperparameters, stopped_early, dpbos_own]


@pytest.mark.parametrize("loop", HONEST, ids=lambda loop: loop.__name__)
def test_points_are_the_same_bits_when_releases_are(loop):
    asked = replay(
        loop, RECORDS, NEIGHBOUR, **{**TERMS, "budget": Budget(8.0, 1e-5)}, entropy=SeededEntropy(7)
    )
    assert 3 <= len(asked) <= 6
    if loop is stopped_early:
        assert len(asked) < 6, "it did stop"
