"""GP-UCB: schedules against the papers, the acquisition against BoTorch's, the argmax against a
loop without FiniteGP.
"""

import math

import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf, optimize_acqf_discrete
from gpytorch.means import ZeroMean

from dpbo.acquisition.ucb import GPUCB, SrinivasCompact, SrinivasFinite, kusner_beta, suggest_ucb
from dpbo.errors import InputError
from dpbo.models import FiniteGP
from dpbo.models.fixed_kernels import matern52, squared_exponential
from tests.setups import DOUBLE, box

NOISE = 1e-2


def wave(X):
    return torch.sin(8.0 * X[..., 0]) * torch.cos(6.0 * X[..., 1])


def model_of(X, Y, kernel):
    Y = Y.unsqueeze(-1)
    return SingleTaskGP(
        X,
        Y,
        train_Yvar=torch.full_like(Y, NOISE),
        covar_module=kernel,
        mean_module=ZeroMean(),
        outcome_transform=None,
    )


def run(candidates, kernel, schedule, steps):
    """The indices that FiniteGP and its argmax choose."""
    model = FiniteGP(candidates, kernel, NOISE)
    indices = [torch.tensor(0)]
    for _ in range(steps - 1):
        model.observe(indices[-1], wave(candidates[indices[-1]]))
        indices.append(suggest_ucb(model, schedule))
    return [int(index) for index in indices]


def test_schedules_are_those_of_the_papers():
    schedule = SrinivasFinite(count=1000, delta=0.01)
    assert schedule(7) == pytest.approx(2.0 * math.log(1000 * 49 * math.pi**2 / 0.06))
    assert sum(1000 * math.exp(-schedule(t) / 2.0) for t in range(1, 10_000)) == pytest.approx(
        0.01, rel=1e-4
    ), "it spends delta"
    assert kusner_beta(1000, 0.01)(51) == pytest.approx(
        2.0 * math.log(2 * 1000 * 51**2 * math.pi**2 / (3 * 0.01))
    )
    compact = SrinivasCompact(dimension=2, side=1.5, a=1.0, b=3.0, delta=0.1)
    reach = 16 * 2 * 3.0 * 1.5 * math.sqrt(math.log(4 * 2 * 1.0 / 0.1))
    assert compact(4) == pytest.approx(
        2.0 * math.log(2 * 16 * math.pi**2 / 0.3) + 4.0 * math.log(reach)
    )
    narrow = SrinivasCompact(dimension=2, side=1e-9, a=1.0, b=3.0, delta=0.1)
    assert narrow(1) == pytest.approx(2.0 * math.log(2 * math.pi**2 / 0.3)), (
        "no less than for a single point"
    )


@pytest.mark.parametrize("kernel", [squared_exponential(0.2), matern52(0.3)], ids=["se", "matern"])
def test_identical_indices_to_a_loop_of_botorch(kernel):
    candidates = torch.rand(144, 2, dtype=DOUBLE)
    schedule = SrinivasFinite(count=144, delta=0.1)
    expected = [0]
    for _ in range(24):
        X = candidates[expected]
        acquisition = UpperConfidenceBound(
            model_of(X, wave(X), kernel), beta=schedule(len(expected) + 1)
        )
        with torch.no_grad():
            best, _ = optimize_acqf_discrete(acquisition, q=1, choices=candidates)
        expected.append(int((candidates == best).all(-1).nonzero()))
    assert run(candidates, kernel, schedule, 25) == expected
    assert len(set(expected)) > 12, "the loop explores"


def test_through_botorchs_optimisers():
    candidates = torch.rand(80, 2, dtype=DOUBLE)
    schedule = SrinivasFinite(count=80, delta=0.1)
    finite = FiniteGP(candidates, squared_exponential(0.4), NOISE)
    for index in range(5):
        finite.observe(index, wave(candidates[index]))
    ours = GPUCB(finite, schedule)
    theirs = GPUCB(
        model_of(candidates[:5], wave(candidates[:5]), squared_exponential(0.4)), schedule
    )
    X = torch.rand(7, 1, 2, dtype=DOUBLE, requires_grad=True)
    torch.testing.assert_close(ours(X), theirs(X), rtol=1e-8, atol=1e-8)
    assert torch.autograd.gradcheck(ours, X)
    x, value = optimize_acqf(ours, box(2), q=1, num_restarts=3, raw_samples=16, options={"seed": 1})
    assert bool(((x >= 0.0) & (x <= 1.0)).all())
    assert float(value) >= float(ours(candidates.unsqueeze(-2)).max()) - 1e-9


def test_batches_of_models():
    """One bound, and one order of candidates, a run; a private choice is of one run."""
    candidates = torch.rand(30, 2, dtype=DOUBLE)
    schedule = SrinivasFinite(count=30, delta=0.1)
    indices = torch.randint(0, 30, (4, 3))
    finite = FiniteGP(candidates, matern52(0.4), NOISE, batch_shape=(3,))
    for index in indices:
        finite.observe(index, wave(candidates[index]))
    X = candidates[indices.mT]
    batch = model_of(X, wave(X), matern52(0.4))
    for model in (finite, batch):
        acquisition = GPUCB(model, schedule)
        bounds = acquisition(candidates.view(30, 1, 1, 2))
        assert bounds.shape == (30, 3)
        order = acquisition.best_of(candidates, 4)
        assert torch.equal(order, bounds.argsort(0, descending=True)[:4].mT)
        for run in range(3):
            single = GPUCB(model_of(X[run], wave(X[run]), matern52(0.4)), schedule)
            torch.testing.assert_close(
                bounds[:, run], single(candidates.unsqueeze(1)), rtol=1e-8, atol=1e-8
            )
        with pytest.raises(InputError, match=r"^model=.* one model for a private choice"):
            acquisition.argmax_query(lambda x, rows: rows, candidates, score_range=(0.0, 1.0))
