"""Replicas are the runs that DPGIBO makes with the same noise, one by one, in one pass."""

import dataclasses

import pytest
import torch

from dpbo import DPGIBO, Adjacency, Budget, Curator
from dpbo.errors import InputError
from dpbo.gibo import GIBOSettings, replicate
from dpbo.testing import SeededEntropy
from tests.setups import DOUBLE, EXACT, of

RUNS = 3
BOUNDS = torch.tensor([[-3.0] * 3, [3.0] * 3], dtype=DOUBLE)
STEPS = of(bounds=BOUNDS, iterations=4, batch_size=4, clip=0.7)
RECOMMENDED = GIBOSettings.recommended()
SGD = dataclasses.replace(RECOMMENDED, optimizer=torch.optim.SGD)
CASES = {
    "recommended": of(settings=RECOMMENDED, seeds=range(RUNS)),
    "the paper's, turned": of(settings=GIBOSettings.paper(), seeds=range(RUNS)),
    "noisy, another optimizer": of(settings=SGD, seeds=range(RUNS), noise=1e-3, mean=2.0),
    "a public divisor": of(adjacency=Adjacency.ADD_OR_REMOVE_ONE, divisor=30.0),
    "no noise": of(mechanism=EXACT),
}


def loss(x, records):
    return (records - x).square().sum(-1) / 2.0


def of_run(run):
    return torch.randn(40, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(run))


def one_by_one(records, *, settings=RECOMMENDED, seeds=None, adjacency="replace-one", **terms):
    """Single runs with these records and the noise of their numbers: iterates and x."""
    found = []
    for run, own in enumerate(records):
        curator = Curator(
            own,
            unit="person",
            adjacency=adjacency,
            budget=Budget.gdp(2.0),
            entropy=SeededEntropy(run),
            allow_repeated=True,
        )
        seed = settings.seed if seeds is None else seeds[run]
        result = DPGIBO(
            curator, loss, settings=dataclasses.replace(settings, seed=seed), **STEPS, **terms
        ).run()
        found.append((result.iterates, result.x, result.gradients))
    return [torch.stack(part) for part in zip(*found, strict=True)]


def replicas(records, **terms):
    budget = None if "mechanism" in terms else Budget.gdp(2.0)
    given = of(budget=budget, entropies=[SeededEntropy(run) for run in range(len(records))])
    return replicate(records, loss, allow_not_private=True, **given, **STEPS, **terms)


@pytest.mark.filterwarnings("ignore::dpbo.objective.NoiseWarning")
@pytest.mark.parametrize("case", CASES)
def test_each_replica_is_the_single_run_with_its_noise(case):
    terms = CASES[case]
    sets = [of_run(run) for run in range(RUNS)]
    iterates, x, gradients = one_by_one(sets, **terms)
    for vectorize in (False, True):
        found = replicas(sets, vectorize=vectorize, **terms)
        torch.testing.assert_close(found.gradients, gradients, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found.iterates, iterates, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found.x, x, rtol=1e-9, atol=1e-9)
        assert torch.equal(found.last, found.iterates[:, -1])
    found = replicas(sets[:1] * RUNS, vectorize=True, **terms)
    torch.testing.assert_close(found.iterates[0], iterates[0], rtol=1e-9, atol=1e-9)
    spread = (found.iterates - found.iterates[:1]).abs().amax((1, 2))
    assert bool((spread[1:] > 1e-6).all()) == ("mechanism" not in terms), "each has its own noise"


def test_runs_with_losses_and_starts_of_their_own():
    sets = [of_run(run) for run in range(2)]
    start = torch.tensor([[1.0, 0.0, -1.0], [0.0, 2.0, 0.0]], dtype=DOUBLE)
    losses = [loss, lambda x, records: loss(x, records) + x[0]]
    both = replicate(sets, losses, mechanism=EXACT, start=start, allow_not_private=True, **STEPS)
    assert torch.equal(both.iterates[:, 0], start)
    for run in range(2):
        alone = replicate(
            sets[run : run + 1],
            losses[run],
            mechanism=EXACT,
            start=start[run],
            allow_not_private=True,
            **STEPS,
        )
        assert torch.equal(alone.iterates[0], both.iterates[run])


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("allow_not_private", of(allow_not_private=False)),
        ("budget", of(budget=None)),
        ("records", of(records=[])),
        ("records", of(records=[of_run(0), of_run(1)[:9]])),
        ("loss", of(loss=[loss])),
        ("seeds", of(seeds=[1, 2, 3])),
        ("entropies", of(entropies=[SeededEntropy(0)])),
        ("start", of(start=torch.zeros(3, 3, dtype=DOUBLE))),
        ("start", of(start=torch.full((3,), 9.0, dtype=DOUBLE))),
        ("loss", of(loss=lambda x, records: (records - x).square())),
        ("loss", of(loss=lambda x, records: loss(x, records).mean(), vectorize=True)),
        ("records", of(records=[of_run(0)[:0], of_run(1)[:0]])),
        ("vectorize", of(records=[of_run(0).numpy()] * 2, vectorize=True)),
        ("budget", of(mechanism=EXACT)),
        ("settings", of(settings=dataclasses.replace(RECOMMENDED, tolerance=0.1))),
        ("vectorize", of(loss=[loss, lambda x, records: loss(x, records)], vectorize=True)),
        ("divisor", of(adjacency="add-or-remove-one")),
        ("bounds", of(bounds=BOUNDS.float())),
    ],
)
def test_what_does_not_fit_is_named(name, wrong):
    good = of(records=[of_run(0), of_run(1)], loss=loss, budget=Budget.gdp(1.0), **STEPS)
    with pytest.raises(InputError) as refused:
        replicate(**{**good, "allow_not_private": True, **wrong})
    assert refused.value.parameter == name
