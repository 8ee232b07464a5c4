"""Proposals beside points in flight, in continuous and mixed spaces, and lengths that are fitted only now and then."""

import pytest
import scipy.stats
import torch
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.sampling import SobolQMCNormalSampler

from dpbo import Space
from dpbo.acquisition import Proposer, suggest
from dpbo.models.builders import default_gp, quiet

UNIT = scipy.stats.uniform(0, 1)
SPACES = {"continuous": Space(a=UNIT, b=UNIT), "mixed": Space(a=UNIT, n=[1, 2, 3, 4], k=["p", "q"])}


def observed(space, t, seed=0, sd=0.05):
    """Noisy values of a bowl around 0.6 in every coordinate."""
    X = space.sample(t, seed=seed)
    noise = torch.randn(t, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    Y = -(X - 0.6).square().sum(1, keepdim=True) + sd * noise
    return X, Y, torch.full_like(Y, sd**2)


def joint_gain(space, data):
    """What some points gain together, by BoTorch's plain joint samples, without its pending points."""
    sampler = SobolQMCNormalSampler(torch.Size([512]), seed=99)
    with quiet(), torch.no_grad():
        return qLogNoisyExpectedImprovement(default_gp(space, *data), data[0], sampler=sampler, incremental=False)


@pytest.mark.parametrize(("kind", "proposer"), [("continuous", "suggest"), ("mixed", "Proposer")])
def test_a_point_is_the_one_that_gains_most_beside_those_pending(kind, proposer):
    """With little known, so that there is something to gain everywhere: BoTorch's plain joint samples say how much."""
    space, data = SPACES[kind], observed(SPACES[kind], 6, sd=0.2)

    cheap, gain, (X, Y, Yvar) = Proposer(space), joint_gain(space, data), data

    def propose(pending):
        return cheap(X, Y, Yvar, pending, seed=1) if proposer == "Proposer" else suggest(space, *data, seed=1, pending=pending)

    alone = propose(data[0][:0])
    if proposer == "suggest":
        assert torch.equal(suggest(space, *data, seed=1), alone), "no points pending is none pending"
    else:
        assert torch.equal(propose(data[0][:0]), alone)
    pending = alone
    for _ in range(2):
        x = propose(pending)
        with quiet(), torch.no_grad():
            beside, again = (float(gain(torch.cat([pending, other]))) for other in (x, alone))
        assert beside > again + 0.02, "another point gains more than the first one once more"
        pending = torch.cat([pending, x])
    assert len(torch.unique(pending, dim=0)) == 3
    assert (pending >= space.bounds[0]).all()
    assert (pending <= space.bounds[1]).all()
    for i, grid in {**space.discrete_dims, **space.cat_dims}.items():
        assert all(min(abs(float(u) - g) for g in grid) < 1e-9 for u in pending[:, i])


def lengths(propose, data):
    kernel = propose._model(*data).covar_module
    return torch.cat([value.flatten() for name, value in kernel.named_parameters() if "lengthscale" in name]).tolist()


def test_lengths_are_fitted_when_the_values_have_grown_by_the_share_and_kept_in_between():
    space = SPACES["continuous"]
    X, Y, Yvar = observed(space, 30)
    propose = Proposer(space, growth=0.2)
    found = {t: lengths(propose, (X[:t], Y[:t], Yvar[:t])) for t in range(10, 31)}
    fits = [t for t in range(11, 31) if found[t] != found[t - 1]]
    assert fits == [12, 15, 18, 22, 27], "a fifth more than at the last fit"
    every = Proposer(space, growth=0)
    assert all(lengths(every, (X[:t], Y[:t], Yvar[:t])) != lengths(every, (X[: t + 1], Y[: t + 1], Yvar[: t + 1])) for t in range(10, 14))
    assert lengths(propose, (X[:8], Y[:8], Yvar[:8])) != found[30], "another, shorter history is fitted anew"


def test_between_fits_the_new_values_are_conditioned_on():
    space = SPACES["continuous"]
    X, Y, Yvar = observed(space, 11)
    propose = Proposer(space)
    propose._model(X[:10], Y[:10], Yvar[:10])
    high, low = (propose._model(X, torch.cat([Y[:10], Y.new_full((1, 1), y)]), Yvar).posterior(X[10:]).mean.item() for y in (1.0, -1.0))
    assert high > low + 0.3
