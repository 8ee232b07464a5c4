"""Suggestions from released values: the trust region, sparse models, public objectives, points
beside others that are pending, and lengths that are fitted only now and then; all repeatable and
inside the space.
"""

import functools
from typing import Any

import pytest
import scipy.stats
import torch
from botorch.acquisition.multi_objective import logei
from botorch.exceptions.errors import InfeasibilityError

from dpbo import Space
from dpbo.acquisition import suggest, suggest_in_trust_region, suggest_pareto
from dpbo.acquisition.trust_region import region_after, region_bounds
from dpbo.errors import InputError
from dpbo.models.builders import default_gp, sparse_gp
from tests.setups import DOUBLE

CONTINUOUS = Space(a=scipy.stats.uniform(), b=scipy.stats.uniform(), c=scipy.stats.uniform())
PAIR = Space(a=scipy.stats.uniform(), b=scipy.stats.uniform())
MIXED = Space(a=scipy.stats.uniform(), n=scipy.stats.randint(1, 9), kind=["x", "y", "z"])
STD = 0.02


def _bump(X):
    return torch.exp(-8 * ((X[:, :2] - 0.3) ** 2).sum(1))


def _bowl(X):
    return -(X - 0.6).square().sum(1)


def _observed(space, count, seed=0, value=_bump, std=STD):
    X = space.sample(count, seed=seed)
    Y = value(X).unsqueeze(1) + std * torch.randn(
        count, 1, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed)
    )
    return X, Y, torch.full_like(Y, std**2)


def _allowed(space, x):
    inside = bool((x >= space.bounds[0]).all() and (x <= space.bounds[1]).all())
    near = [
        min(abs(float(x[i]) - v) for v in values)
        for i, values in (space.discrete_dims | space.cat_dims).items()
    ]
    return inside and max(near, default=0.0) < 1e-9


PROPOSERS: dict[str, Any] = {
    "qlognei": suggest,
    "trust region": suggest_in_trust_region,
    "sparse": functools.partial(suggest, model=sparse_gp),
    "pareto": lambda s, X, Y, V, **settings: suggest_pareto(
        s, X, Y, V, -X[:, :1], reference=(0.0, -1.0), **settings
    ),
}


# BoTorch compiles a kernel at its first use, which takes half a minute
PARETO = pytest.param("pareto", marks=pytest.mark.deep)


@pytest.mark.parametrize("name", [PARETO if name == "pareto" else name for name in PROPOSERS])
def test_a_proposal_is_in_the_space_and_follows_from_the_values_alone(name):
    for space in (CONTINUOUS, MIXED)[: 1 if name == "pareto" else 2]:
        if name == "sparse" and space is MIXED:
            with pytest.raises(InputError, match="categories"):
                PROPOSERS[name](space, *_observed(space, 10), seed=1)
            continue
        told = _observed(space, 10)
        x = PROPOSERS[name](space, *told, seed=1)
        # whatever else draws in between
        torch.rand(3)
        assert x.shape == (1, 3)
        assert _allowed(space, x[0])
        # as a caller may have it: the search turns gradients on by itself
        with torch.no_grad():
            assert torch.equal(x, PROPOSERS[name](space, *told, seed=1))


@pytest.mark.parametrize("propose", [suggest, suggest_in_trust_region])
def test_a_batch_is_chosen_one_after_another(propose):
    """As in BoTorch: the second point is the one that the first, pending, would have made."""
    told = _observed(CONTINUOUS, 10)
    batch = propose(CONTINUOUS, *told, seed=1, q=2)
    assert batch.shape == (2, 3)
    assert (batch[0] - batch[1]).norm() > 1e-3
    second = propose(CONTINUOUS, *told, seed=1, pending=batch[:1])
    torch.testing.assert_close(second, batch[1:], rtol=0.0, atol=1e-3)


class TestTrustRegion:
    def test_three_successes_double_it_and_failures_halve_it(self):
        design = [0.0] * 8
        assert region_after(design, dimension=3, initial=8).length == 0.8
        assert region_after([*design, 1.0, 2.0, 3.0], dimension=3, initial=8).length == 1.6
        # never more
        assert (
            region_after([*design, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0], dimension=3, initial=8).length
            == 1.6
        )
        assert region_after([*design, 1.0, *[0.5] * 4], dimension=3, initial=8).length == 0.4
        # six failures are asked for there
        assert region_after([*design, 1.0, *[0.5] * 4], dimension=6, initial=8).length == 0.8
        assert region_after([*design, 1.0, *[0.5] * 6], dimension=6, initial=8).length == 0.4
        ended = [*design, 1.0, 0.5, 0.5, 0.5, 2.0, 0.5, 0.5, 0.5]
        assert region_after(ended, dimension=2, initial=8).length == 0.8, (
            "a success ends a row of failures"
        )
        # equal but for their last bits: no success but the first, which is always one
        flat = [0.3, 0.3 + 1e-16, 0.3 - 1e-16] * 5
        assert region_after(flat, dimension=2, initial=2).length == 0.8 / 2**3

    def test_a_tiny_region_starts_afresh_with_a_design_of_its_own(self):
        means = [0.0] * 8 + [1.0] + [0.5] * 28
        region = region_after(means, dimension=2, initial=8)
        assert (region.start, region.length) == (len(means), 0.8)
        assert region_after([*means, *[0.0] * 8, 0.2], dimension=2, initial=8) == region_after(
            means, dimension=2, initial=8
        )

    def test_the_box_is_stretched_cut_to_the_space_and_whole_for_categories(self):
        centre = torch.tensor([0.9, 3 / 7, 1.0], dtype=DOUBLE)
        bounds = region_bounds(MIXED, centre, 0.1, torch.tensor([2.0, 1.0, 1.0], dtype=DOUBLE))
        assert bounds[:, 0].tolist() == pytest.approx([0.8, 1.0])
        # the neighbours, though the region is narrower
        assert bounds[:, 1].tolist() == pytest.approx([2 / 7, 4 / 7])
        assert bounds[:, 2].tolist() == [0.0, 2.0]


ALONE = [
    {"a": scipy.stats.uniform(), "n": [5], "kind": ["only"]},
    {"kind": ["only"], "n": [5]},
]


@pytest.mark.parametrize("axes", ALONE)
def test_a_list_of_one_value_is_a_coordinate_that_stays(axes):
    space = Space(**axes)
    X = space.sample(6, seed=0)
    Y = X.sum(1, keepdim=True)
    x = suggest(space, X, Y, torch.full_like(Y, 0.01), seed=0)
    assert x.shape == (1, len(space.names))
    assert _allowed(space, x[0]), space.names
    space.encode(space.decode(x[0]))


@pytest.mark.parametrize("space", [PAIR, Space({**PAIR.specs, "k": ["p", "q"]})])
def test_points_keep_public_constraints_and_improve_on_the_best_that_keeps_them(space):
    """The best of all lies beyond the constraint, where values are known: what improves on those
    alone lies far from them.
    """
    X = space.sample(12, seed=0)
    Y = -((X[:, :2] - 0.85) ** 2).sum(1, keepdim=True)
    at_most_one = (torch.tensor([0, 1]), torch.tensor([-1.0, -1.0]), -1.0)
    assert (X[:, :2].sum(1) > 1.0).any()
    points = suggest(
        space, X, Y, torch.full_like(Y, 1e-4), seed=1, q=2, inequality_constraints=[at_most_one]
    )
    assert (points[:, :2].sum(1) <= 1.0 + 1e-6).all()
    assert (points[0, :2] - 0.5).abs().max() < 0.15, "the best that keeps it lies at a half"


def test_several_objectives_need_no_compiler_and_wait_for_no_lock(tmp_path, monkeypatch):
    """As a killed process leaves it."""
    monkeypatch.setattr(logei, "_load_attempted", False, raising=False)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    lock = tmp_path / "logei_fused_ext" / "lock"
    lock.parent.mkdir()
    lock.touch()
    X, Y, Yvar = _observed(PAIR, 6)
    suggest_pareto(PAIR, X, Y, Yvar, -X[:, :1], reference=(0.0, -1.0), seed=0)
    assert [*tmp_path.rglob("*")] == [lock.parent, lock], "nothing was built"
    assert not logei._load_attempted, "a caller's own acquisition may still compile"


def test_constraints_that_no_point_keeps_are_refused():
    data = _observed(PAIR, 6, value=_bowl, std=0.2)
    beyond = (torch.tensor([0, 1]), torch.tensor([1.0, 1.0]), 5.0)
    with pytest.raises(InfeasibilityError):
        suggest(PAIR, *data, seed=1, inequality_constraints=[beyond])


def test_a_history_without_values_is_told_how_to_begin():
    space, none = Space(a=scipy.stats.uniform()), torch.empty(0, 1, dtype=DOUBLE)
    for propose in (suggest, suggest_in_trust_region):
        with pytest.raises(InputError, match=r"Begin with space.sample\(8, seed=0\)"):
            propose(space, none, none, none, seed=0)
    for fit in (default_gp, sparse_gp):
        with pytest.raises(InputError, match=r"Begin with space.sample\(8, seed=0\)"):
            fit(space, none, none, none)
