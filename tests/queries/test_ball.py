"""The public ball: its own coordinates and back, its volume, what it refuses, how finely it may be cut."""

import math
from typing import Any

import pytest
import torch

from dpbo.errors import InputError
from dpbo.queries import ball as balls
from dpbo.queries.ball import Ball, Resolution, _Placer, chunk_rows, lattice_chunks, product

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
    for radius in (0.0, 1.5e100, 1e101, 1.5e-101, 1.5e-100 / 2, math.inf):
        with pytest.raises(InputError, match="radius"):
            Ball(radius)
    for radius in (1e-100, 1e100):
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


@pytest.mark.attack("A4")
def test_a_record_counts_up_to_1e100_radii_in_the_balls_own_norm():
    """Both coordinates at 0.9e100 are inside for the cube, and 1.27e100 from the centre."""
    X = 1e100 * torch.tensor([[0.9, 0.9], [0.9, 0.0], [1.5, 0.0]], dtype=DOUBLE)
    for norm, counted in (("l2", [False, True, False]), ("linf", [True, True, False])):
        ((k, alive),) = lattice_chunks([X], Ball(1.0, norm=norm), 16, 256)
        assert alive[:3].tolist() == counted
        assert k[:, :3].any(0).tolist() == counted


@pytest.mark.attack("A4")
@pytest.mark.parametrize("d", [1, 3])
def test_a_whitened_record_has_the_same_place_whoever_stands_beside_it(d):
    generator = torch.Generator().manual_seed(d)
    X, matrix = (torch.randn(n, d, dtype=DOUBLE, generator=generator) for n in (300, d))
    ball = Ball(2.0, matrix=matrix)
    (k, alive), (rest, _) = lattice_chunks([X], ball, 16, 256)
    assert alive.all()
    alone = torch.cat([next(lattice_chunks([x[None]], ball, 16, 256))[0][:, :1] for x in X], 1)
    assert torch.equal(alone, torch.cat([k, rest[:, :44]], 1))
    clipped = ball.inward(X) / ball.inward(X).norm(dim=1, keepdim=True).clamp(min=1.0)
    assert (alone.T / 2.0**16 - clipped).abs().max() <= 4 / 2.0**16


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


@pytest.mark.parametrize(
    ("degree", "components", "units", "steps"),
    [
        (2, 5, 2**21, Resolution(11, 15, 41)), (1, 5, 1000, Resolution(11, 20, 44)), (2, 5, None, Resolution(10, 10, 30)),
        (2, 200, None, Resolution(16, 7, 30)), (2, 1, 1000, Resolution(0, 20, 44)),
    ],
)  # fmt: skip
def test_weights_and_coordinates_share_the_bits_as_it_is_said(degree, components, units, steps):
    """Eleven bits for weights, so that rounding moves a sum by n / 2^12; a third where there is less room, and what so many need."""
    assert Resolution.of(degree, components, units) == steps


@pytest.mark.attack("A4")
def test_the_widest_records_squares_are_summed_exactly():
    assert balls.MOST_DIMENSION * 4**balls._MOST_BITS == 2**53


def test_chunks_hold_whole_tiles_of_rows_that_stay_in_cache():
    assert [chunk_rows(width) for width in (1, 32, 33, 64, 512, 10**6)] == [3840, 3840, 1920, 1920, 240, 240]
    assert all(chunk_rows(1 << bits) % 48 == 0 for bits in range(14))
    assert [chunk_rows(width, "cuda") for width in (1, 128, 129, 10**5)] == [1 << 20, 1 << 20, 1 << 19, 4096]


@pytest.mark.parametrize("d", [1, 2, 5, 33, 200])
@pytest.mark.attack("A4")
def test_equal_records_get_equal_bits_wherever_they_stand(d):
    generator = torch.Generator().manual_seed(d)
    ball = Ball(0.7, center=torch.randn(d, generator=generator).double(), matrix=torch.randn(d, d, dtype=DOUBLE, generator=generator))
    X = torch.randn(d, 1, dtype=DOUBLE, generator=generator).expand(d, chunk_rows(d)).contiguous()
    found = _Placer(ball, d, X.device)(X)
    assert torch.equal(found, found[:, :1].expand_as(found))


@pytest.mark.attack("A4")
@pytest.mark.parametrize("rows", [1, 4096, 3 * 4096])
def test_products_of_whole_numbers_are_exact_however_many_there_are(rows):
    """Each of 2^41 less a little: a float64 sum over more than one group would lose the last bits."""
    A, B = ((2.0**bits - torch.randint(1, 9, (part, rows), dtype=DOUBLE)) for bits, part in ((20, 3), (21, 4)))
    exact = A.long()[:, None] * B.long()[None]
    found = product(A, B)
    assert found.dtype == torch.int64
    assert found.tolist() == exact.sum(2).tolist()
