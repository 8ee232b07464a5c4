"""The discretisation: a sampled process with known slopes stays within the bounds, and their parts add up as written."""

import math
from typing import Any

import pytest
import torch

from dpbo.acquisition import SrinivasCompact
from dpbo.algorithms.kusner import bounds, infinite
from dpbo.errors import InputError
from dpbo.models import squared_exponential

DOUBLE, DELTA, KAPPA, LENGTH = torch.float64, 0.1, 0.9, 0.2
# the slope of SE is N(0, 1/l^2); on [0, 1] its supremum obeys P(sup > s) <= a exp(-s^2/b^2) with b^2 = 2/l^2 and a from Rice's formula
BOX: dict[str, Any] = {
    "dimension": 1,
    "side": 1.0,
    "a": 2.0 + 2.0 * math.sqrt(3.0) / (2.0 * math.pi * LENGTH),
    "b": math.sqrt(2.0) / LENGTH,
}


@pytest.fixture(scope="module")
def draws():
    X = torch.linspace(0.0, 1.0, 401, dtype=DOUBLE).unsqueeze(-1)
    values, vectors = torch.linalg.eigh(squared_exponential(LENGTH)(X).to_dense())
    root = vectors * values.clamp_min(0.0).sqrt()
    return torch.randn(2000, 401, generator=torch.Generator().manual_seed(0), dtype=DOUBLE) @ root.mT


def test_the_supremum_of_neighbours_differences_is_covered(draws):
    moved = math.sqrt(2.0 * (1.0 - KAPPA)) * draws.abs().amax(-1)
    bound = infinite.compact_gap(points=20, **BOX, kappa=KAPPA, delta=DELTA)
    assert float((moved <= bound).double().mean()) >= 1.0 - DELTA


def test_what_the_grid_misses_is_covered(draws):
    missed = draws.amax(-1) - draws[:, ::20].amax(-1)  # a grid of 20 intervals
    bound = infinite.grid_loss(points=20, **BOX, delta=DELTA)
    assert float((missed <= bound).double().mean()) >= 1.0 - DELTA / 2.0


def test_parts():
    assert infinite.grid_choice_sensitivity(points=10, dimension=3, kappa=KAPPA, delta=DELTA) == pytest.approx(
        2 * math.sqrt(2 * math.log(3000 / DELTA)) + 2 * math.sqrt(0.1 * math.log(3000 / DELTA))
    )
    gap = infinite.compact_gap(points=50, **BOX, kappa=KAPPA, delta=DELTA)
    slope = BOX["b"] * math.sqrt(math.log(BOX["a"] / (DELTA / 2)))
    assert gap == pytest.approx(math.sqrt(0.2) * (math.sqrt(2 * math.log(50 / (DELTA / 2))) + slope / 50))
    shared = {"points": 50, **BOX, "kappa": KAPPA}
    whole = infinite.compact_value_sensitivity(**shared, observations=30, noise=0.01, gamma=8.0, delta=DELTA)
    beta = SrinivasCompact(**BOX, delta=DELTA / 4)(30)
    found = bounds.mean_regret(observations=30, noise=0.01, gamma=8.0, beta=beta) + 2 / 30
    q = bounds.noise_gap(observations=30, noise=0.01, delta=DELTA)
    assert whole == pytest.approx(found + infinite.compact_gap(**shared, delta=DELTA / 4) + q)


def test_kappa_1_moves_nothing_and_finer_grids_miss_less():
    assert infinite.compact_gap(points=50, **BOX, kappa=1.0, delta=DELTA) == 0.0
    assert infinite.grid_loss(points=200, **BOX, delta=DELTA) == pytest.approx(infinite.grid_loss(points=20, **BOX, delta=DELTA) / 10)


def test_what_is_refused():
    for wrong in ({"points": 0}, {"side": 0.0}, {"a": 1e-3}, {"b": 0.0}, {"delta": 1.0}, {"dimension": 0}):
        with pytest.raises(InputError):
            infinite.grid_loss(**{"points": 20, **BOX, "delta": DELTA, **wrong})
