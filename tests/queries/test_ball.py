"""The public ball: its own coordinates and back, its volume, what it refuses, how finely it may be cut."""

import math
from typing import Any

import pytest
import torch

from dpbo.errors import InputError
from dpbo.queries.ball import Ball, Resolution, chunk_rows, lattice_chunks, product

DOUBLE = torch.float64
CENTER = torch.tensor([1.0, -2.0], dtype=DOUBLE)
MATRIX = torch.tensor([[2.0, 1.0], [0.0, 0.5]], dtype=DOUBLE)


@pytest.mark.parametrize("center", [None, CENTER], ids=["zero", "center"])
@pytest.mark.parametrize("matrix", [None, MATRIX], ids=["identity", "matrix"])
def test_the_way_in_and_the_way_back(center, matrix):
    ball = Ball(4.0, center=center, matrix=matrix)
    X = torch.randn(20, 2, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    moved = X if center is None else X - center
    assert torch.allclose(ball.inward(X), (moved if matrix is None else moved @ matrix.T) / 4.0)
    assert torch.allclose(ball.outward(ball.inward(X)), X)
    own = torch.autograd.functional.jacobian(lambda x: ball.inward(x[None])[0], X[0]).det().abs().log()
    assert ball.log_volume(2) == pytest.approx(float(own))


def test_what_is_no_ball_is_refused():
    for radius in (0.0, 1e101, 1.5e-101, 1.5e-100 / 2, math.inf):
        with pytest.raises(InputError, match="radius"):
            Ball(radius)
    refused: list[dict[str, Any]] = [
        {"norm": "l1"}, {"center": MATRIX}, {"center": torch.tensor([1.0, math.nan], dtype=DOUBLE)},
        {"matrix": CENTER}, {"matrix": MATRIX[:1]}, {"matrix": MATRIX.float()},
    ]  # fmt: skip
    for settings in refused:
        with pytest.raises(InputError, match=next(iter(settings))):
            Ball(1.0, **settings)
    for ball in (Ball(1.0, center=CENTER), Ball(1.0, matrix=MATRIX)):
        ball.require_dimension(2)
        with pytest.raises(InputError, match="dimension 3"):
            ball.require_dimension(3)


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("center", [None, CENTER], ids=["zero", "center"])
@pytest.mark.parametrize("matrix", [None, MATRIX], ids=["identity", "matrix"])
@pytest.mark.attack("A4")
def test_a_record_counts_as_its_clipped_place_in_whole_steps(norm, center, matrix):
    ball, steps = Ball(2.0, center=center, matrix=matrix, norm=norm), 2.0**16
    X = 3 * torch.randn(700, 2, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
    X[3, 0], X[4, 1], X[5] = math.nan, -math.inf, 1e102
    dead = torch.zeros(700, dtype=torch.bool)
    dead[3:6] = True
    chunks = list(lattice_chunks([X[:300], X[300:]], ball, 16, 256))
    assert [(k.shape, alive.shape) for k, alive in chunks] == [((2, 256), (256,))] * 4
    parts = [(k[:, :count], alive[:count], alive[count:]) for (k, alive), count in zip(chunks, (256, 44, 256, 144), strict=True)]
    k, alive, padding = (torch.cat(part, -1) for part in zip(*parts, strict=True))
    assert torch.equal(alive, ~dead)
    assert not padding.any()
    Z = ball.inward(X)
    length = Z.norm(dim=1, keepdim=True).clamp(min=1.0)
    clipped = Z.clamp(-1.0, 1.0) if norm == "linf" else Z / length
    assert torch.equal(k, k.round())
    assert (k.T / steps - clipped)[~dead].abs().max() <= (0.5 if norm == "linf" else 3.5) / steps, (
        "rounded; then shortened where that made it too long"
    )
    assert not k[:, dead].any()
    assert k.abs().max() == steps if norm == "linf" else k.square().sum(0).max() <= steps**2


def test_a_record_on_the_sphere_keeps_its_length():
    ((k, alive),) = lattice_chunks([torch.tensor([[0.0, -3.0], [3.0, 0.0]], dtype=DOUBLE)], Ball(3.0), 12, 256)
    assert k[:, :2].tolist() == [[0.0, 4096.0], [-4096.0, 0.0]]
    assert alive[:3].tolist() == [True, True, False]


def test_the_balls_own_tensors_are_copies():
    center, matrix = CENTER.clone(), MATRIX.clone()
    ball = Ball(1.0, center=center, matrix=matrix)
    center += 1.0
    matrix += 1.0
    assert ball.center is not None
    assert ball.matrix is not None
    assert torch.equal(ball.center, CENTER)
    assert torch.equal(ball.matrix, MATRIX)


@pytest.mark.parametrize("units", [None, 1, 1000, 2**21, 2**32])
@pytest.mark.parametrize("components", [1, 2, 5, 200])
@pytest.mark.parametrize("degree", [1, 2])
def test_steps_are_the_finest_that_no_sum_overflows(degree, components, units):
    steps = Resolution.of(degree, components, units)
    most = 2**32 if units is None else units
    assert most * 2**steps.lattice_bits <= 2**62
    assert steps.weight_bits + degree * steps.bits <= min(41, steps.lattice_bits)
    assert (steps.weight_bits == 0) == (components == 1)
    assert 2**steps.weight_bits >= components**2
    assert steps.lattice_bits == 44 or 2 * most * 2**steps.lattice_bits > 2**62
    assert steps.bits == 20 or steps.weight_bits + degree * (steps.bits + 1) > min(41, steps.lattice_bits)


def test_chunks_hold_a_power_of_two_of_rows_that_stays_in_cache():
    assert [chunk_rows(width) for width in (1, 32, 33, 64, 512, 10**6)] == [4096, 4096, 2048, 2048, 256, 256]
    assert [chunk_rows(width, "cuda") for width in (1, 128, 129, 10**5)] == [1 << 20, 1 << 20, 1 << 19, 4096]


@pytest.mark.attack("A4")
@pytest.mark.parametrize("rows", [1, 4096, 3 * 4096])
def test_products_of_whole_numbers_are_exact_however_many_there_are(rows):
    """Each of 2^41 less a little: a float64 sum over more than one group would lose the last bits."""
    A, B = ((2.0**bits - torch.randint(1, 9, (part, rows), dtype=DOUBLE)) for bits, part in ((20, 3), (21, 4)))
    exact = A.long()[:, None] * B.long()[None]
    found = product(A, B)
    assert found.dtype == torch.int64
    assert found.tolist() == exact.sum(2).tolist()
