"""The public ball: its own coordinates and back, its volume, what it refuses, how finely it may be
cut.
"""

import itertools
import math

import pytest
import torch

from dpbo.queries.ball import Ball, Resolution, chunk_rows, lattice_chunks, product
from tests.attacks.marks import attack
from tests.setups import DOUBLE

CENTER = torch.tensor([1.0, -2.0], dtype=DOUBLE)
MATRIX = torch.tensor([[2.0, 1.0], [0.0, 0.5]], dtype=DOUBLE)


def test_the_way_in_and_the_way_back():
    X = torch.randn(20, 2, dtype=DOUBLE)
    for center, matrix in itertools.product((None, CENTER), (None, MATRIX)):
        ball = Ball(4.0, center=center, matrix=matrix)
        moved = X if center is None else X - center
        assert torch.allclose(ball.inward(X), (moved if matrix is None else moved @ matrix.T) / 4.0)
        assert torch.allclose(ball.outward(ball.inward(X)), X)
        own = (
            torch.autograd.functional.jacobian(lambda x, ball=ball: ball.inward(x[None])[0], X[0])
            .det()
            .abs()
            .log()
        )
        assert ball.log_volume(2) == pytest.approx(float(own))


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("center", [None, CENTER], ids=["zero", "center"])
@pytest.mark.parametrize("matrix", [None, MATRIX], ids=["identity", "matrix"])
@attack("A4")
def test_a_record_counts_as_its_clipped_place_in_whole_steps(norm, center, matrix):
    ball = Ball(2.0, center=center, matrix=matrix, norm=norm)
    steps = 2.0**16
    X = 3 * torch.randn(700, 2, dtype=DOUBLE)
    X[3, 0] = math.nan
    X[4, 1] = -math.inf
    X[5] = 1e102
    dead = torch.zeros(700, dtype=torch.bool)
    dead[3:6] = True
    chunks = [
        (k.clone(), valid)
        for part in (X[:300], X[300:])
        for k, valid in lattice_chunks(part, ball, 16, 256)
    ]
    assert [(k.shape, valid.shape) for k, valid in chunks] == [((2, 256), (256,))] * 4
    parts = [
        (k[:, :count], valid[:count], valid[count:])
        for (k, valid), count in zip(chunks, (256, 44, 256, 144), strict=True)
    ]
    k, valid, padding = (torch.cat(part, -1) for part in zip(*parts, strict=True))
    assert torch.equal(valid, ~dead)
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


@attack("A4")
def test_a_record_counts_while_no_coordinate_is_beyond_1e100_radii():
    X = 1e100 * torch.tensor([[0.9, 0.9], [0.9, 0.0], [1.5, 0.0], [0.0, math.inf]], dtype=DOUBLE)
    for norm in ("l2", "linf"):
        ((k, valid),) = lattice_chunks(X, Ball(1.0, norm=norm), 16, 256)
        assert valid[:4].tolist() == [True, True, False, False]
        assert k[:, :4].any(0).tolist() == [True, True, False, False]


@attack("A4")
@pytest.mark.parametrize("d", [2, 16, 300])
def test_a_clipped_record_has_the_same_place_whoever_stands_beside_it(d):
    """Records from deep inside to far outside, alone and among others, in both orders of memory, in
    floats whose sums would round.
    """
    lengths = torch.logspace(-1.0, 60.0, 300, dtype=DOUBLE)[torch.randperm(300), None]
    X = lengths * torch.nn.functional.normalize(torch.randn(300, d, dtype=DOUBLE))
    ((together, _),) = lattice_chunks(X, Ball(1.0), 20, 480)
    ((by_record, _),) = lattice_chunks(X, Ball(1.0), 20, 480, by_record=True)
    alone = torch.cat(
        [next(lattice_chunks(x[None], Ball(1.0), 20, 48))[0][:, :1].clone() for x in X], 1
    )
    assert torch.equal(alone, together[:, :300])
    assert torch.equal(alone, by_record[:, :300])
    assert alone.square().sum(0).max() <= 2.0**40
    clipped = X / X.norm(dim=1, keepdim=True).clamp(min=1.0)
    assert (alone.T / 2.0**20 - clipped).abs().max() <= 4 / 2.0**20


def test_steps_are_the_finest_that_no_sum_overflows():
    for units, components, degree in itertools.product(
        (None, 1, 1000, 2**21, 2**32), (1, 2, 5, 200), (1, 2)
    ):
        steps = Resolution.of(degree, components, units)
        most = 2**32 if units is None else units
        assert most * 2**steps.lattice_bits <= 2**62
        assert steps.weight_bits + degree * steps.bits <= min(41, steps.lattice_bits)
        assert (steps.weight_bits == 0) == (components == 1)
        assert 2**steps.weight_bits >= components**2
        assert steps.lattice_bits == 44 or 2 * most * 2**steps.lattice_bits > 2**62
        assert steps.bits == 20 or steps.weight_bits + degree * (steps.bits + 1) > min(
            41, steps.lattice_bits
        )
    assert all(chunk_rows(1 << bits) % 48 == 0 for bits in range(14))
    assert [chunk_rows(width, "cuda") for width in (1, 128, 129, 10**5)] == [
        1 << 20,
        1 << 20,
        1 << 19,
        4096,
    ]


@attack("A4")
def test_products_of_whole_numbers_are_exact_however_many_there_are():
    """Each of 2^41 less a little: a float64 sum over more than one group would lose the last
    bits.
    """
    for rows in (1, 4096, 3 * 4096):
        A, B = (
            (2.0**bits - torch.randint(1, 9, (part, rows), dtype=DOUBLE))
            for bits, part in ((20, 3), (21, 4))
        )
        found = product(A, B)
        assert found.dtype == torch.int64
        assert found.tolist() == (A.long()[:, None] * B.long()[None]).sum(2).tolist()
