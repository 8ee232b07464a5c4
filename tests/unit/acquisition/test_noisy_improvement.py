"""Noisy expected improvement in closed form against BoTorch's samples, and the search for its
maximum against many restarts.
"""

import pytest
import scipy.stats
import torch
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.models import SingleTaskGP
from botorch.models.transforms import Log, Normalize
from botorch.sampling import SobolQMCNormalSampler

from dpbo import Space
from dpbo.acquisition.expected_improvement import best_point
from dpbo.acquisition.noisy_improvement import NoisyImprovement
from dpbo.models.builders import default_gp, mute_optimizer_warnings, sparse_gp
from tests.setups import DOUBLE

PAIR = Space(a=scipy.stats.uniform(), b=scipy.stats.loguniform(1e-3, 1.0))
STEPS = Space(a=scipy.stats.uniform(), n=scipy.stats.randint(2, 31))
MIXED = Space(a=scipy.stats.uniform(), n=scipy.stats.randint(1, 6), kind=["x", "y", "z"])


def observed(space, count=10):
    X = space.sample(count, seed=0)
    noise = 0.1 * torch.randn(count, 1, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    return X, noise - (X - 0.4).square().sum(1, keepdim=True), torch.full_like(noise, 0.01)


def by_samples(gp, X, pending, Z):
    """BoTorch's estimate of what a pending set and each of Z gain together."""
    sampler = SobolQMCNormalSampler(torch.Size([2048]), seed=1)
    with torch.no_grad():
        gain = qLogNoisyExpectedImprovement(
            gp, X, sampler=sampler, incremental=False, tau_relu=1e-9, tau_max=1e-6
        )
        return gain(torch.cat([pending.expand(len(Z), -1, -1), Z.unsqueeze(1)], dim=1)).exp()


@pytest.mark.parametrize("space", [PAIR, MIXED], ids=["continuous", "mixed"])
def test_the_closed_form_is_what_botorch_samples(space):
    X, Y, Yvar = observed(space)
    gp = default_gp(space, X, Y, Yvar)
    Z = space.sample(12, seed=5)
    pending = space.sample(2, seed=6)
    assert NoisyImprovement.takes(gp, X)
    # BoTorch's values are in the units of Y, the model's in its own
    scale = float(Y.std())
    for waiting in (X[:0], pending):
        theirs = by_samples(gp, X, waiting, Z)
        # together, less what those pending gain alone
        if len(waiting):
            theirs = theirs - by_samples(gp, X, waiting[:1], waiting[1:])
        with torch.no_grad():
            ours = (
                NoisyImprovement(gp, X, waiting, seed=0, samples=2048)(Z.unsqueeze(1)).exp() * scale
            )
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.03 * float(theirs.max()))


@pytest.mark.parametrize("space", [STEPS, MIXED], ids=["steps", "mixed"])
def test_the_search_finds_what_a_dense_grid_finds(space):
    X, Y, Yvar = observed(space)
    gp = default_gp(space, X, Y, Yvar)
    gain = NoisyImprovement(gp, X, None, seed=0)
    x = best_point(space, gp, X, X[:0], seed=0)
    dense = space.sample(2**11, seed=1)
    with torch.no_grad():
        assert float(gain(x)) >= float(gain(dense.unsqueeze(1)).max()) - 0.02


def test_models_of_other_kinds_keep_botorchs_acquisition():
    X, Y, Yvar = observed(PAIR)
    with mute_optimizer_warnings():
        sorted_rows = Y.argsort(0)[:, 0]
        logs = Log()
        for gp in (
            sparse_gp(PAIR, X, Y, Yvar),
            SingleTaskGP(X, Y, Yvar, input_transform=Normalize(2)),
            SingleTaskGP(X, Y.repeat(1, 2)),
            SingleTaskGP(X[sorted_rows], Y[sorted_rows]),
            SingleTaskGP(X[1:], Y[1:]),
            SingleTaskGP(X, Y.exp(), outcome_transform=logs),
        ):
            assert not NoisyImprovement.takes(gp, X)
