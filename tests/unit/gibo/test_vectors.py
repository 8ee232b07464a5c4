"""The recipe of gradient.py, step by step: products whose columns' bits do not depend on their
place, sizes, and the last quantum.
"""

import math
from fractions import Fraction

import pytest
import torch

from dpbo.gibo import gradient_query as gradient
from dpbo.queries.products import deterministic_matmul, elementwise_matmul
from tests.attacks.marks import attack
from tests.setups import DOUBLE

SHAPES = [
    (2, 1, 3840),
    (5, 21, 3840),
    (33, 300, 240),
    (100, 10, 960),
    (5, 7, 1),
    (3, 4, 97),
    (6, 21, 4096),
    (16, 66, 4095),
]


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def matrices(rows, depth, columns):
    generator = torch.Generator().manual_seed(rows + depth + columns)
    return (
        torch.randn(*shape, dtype=DOUBLE, generator=generator)
        for shape in ((rows, depth), (depth, columns))
    )


@attack("A4")
def test_a_column_has_the_same_bits_in_every_place(threads):
    """Also in numbers of columns that leave something over beside whole tiles, where a library may
    add up in another order.
    """
    for shape in SHAPES:
        A, X = matrices(*shape)
        places = torch.randperm(shape[2])
        for multiply in (deterministic_matmul, elementwise_matmul):
            found = multiply(A, X)
            assert torch.equal(multiply(A, X[:, places]), found[:, places]), (shape, multiply)
            torch.testing.assert_close(found, A @ X, rtol=1e-12, atol=1e-12)


@attack("A5")
def test_quanta_are_as_fine_as_the_sizes_allow():
    """(B/q)^2 d <= 2^62, so that squares fit int64, and B/q <= 2^28; half the quantum would pass
    one of them.
    """
    for d in (1, 2, 3, 64, 65, 127, 128, 129, 1000, 1 << 14):
        for clip in (1.0 - 2.0**-53, 1.0, 1.3e-3, 2.0**40 - 2.0**-13):
            quantum = gradient.quantum_of(clip, d)
            steps = Fraction(clip) / Fraction(quantum)
            assert math.frexp(quantum)[0] == 0.5
            assert steps <= 2**28
            assert steps**2 * d <= 2**62
        fine = 2 * Fraction(1.0 - 2.0**-53) / Fraction(gradient.quantum_of(1.0 - 2.0**-53, d))
        assert fine > 2**28 or (fine + 1) ** 2 * d > 2**62


def test_vectors_are_the_products():
    W = torch.tensor([[3.0, 0.0, -1.0], [1.0, 2.0, 0.0]], dtype=DOUBLE)
    columns = list(torch.tensor([[4.0, 1.0], [-2.0, 1.0], [5.0, 1.0]], dtype=DOUBLE))
    ((chunk, count),) = gradient._products(columns, W)
    assert chunk[:, :count].tolist() == [[7.0, 2.0], [0.0, 3.0]]
    assert gradient.clipped_sum(columns, W, 1000.0, 1.0).tolist() == [9, 3]
    assert gradient.lengths(columns, W).tolist() == [7.0, math.sqrt(13.0)]


def clipped(g, clip, quantum):
    return gradient._clipped(g.clone(), clip, quantum, torch.empty(g.shape, dtype=torch.int64))


@attack("A5")
def test_a_clip_between_two_quanta_is_rounded_down_and_the_longest_vector_stays():
    g = torch.tensor([[100.0, -100.0, 10.7, -10.7, 10.2, -3.0]], dtype=DOUBLE)
    assert clipped(g / 2, 10.7 / 2, 0.5).tolist() == [[9, -9, 9, -9, 10, -3]], (
        "eleven quanta would be longer than the clip"
    )
    on_the_ball = torch.tensor([[6.0, 10.0, 0.0, -8.0], [8.0, 0.0, -10.0, 6.0]], dtype=DOUBLE)
    beside = torch.tensor([[300.0, math.nan], [400.0, 1.0]], dtype=DOUBLE)
    for g in (
        on_the_ball,
        torch.cat([on_the_ball, beside[:, :1]], 1),
        torch.cat([on_the_ball, beside], 1),
    ):
        assert clipped(g, 10.0, 1.0)[:, :4].tolist() == on_the_ball.tolist()


@attack("A5")
def test_wild_vectors_are_shortened_or_count_as_nothing():
    wild = [-1e300, 1e300, -1e30, 1e30, 1e308, -1e308]
    broken = [math.nan, math.inf, -math.inf]
    columns = [(x, y) for x in wild for y in (0.0, *wild)] + [
        (x, y) for x in broken for y in (0.0, 1.0, *wild, *broken)
    ]
    calm = [(3.0, -4.0), (-5e-324, 0.0)]
    for g in (columns, columns + calm, *([one] for one in columns)):
        found = clipped(torch.tensor(g, dtype=DOUBLE).T.contiguous(), 1e6, 1.0).T.tolist()
        for (x, y), (a, b) in zip(g, found, strict=True):
            if not (math.isfinite(x) and math.isfinite(y)):
                assert (a, b) == (0, 0)
            elif (x, y) in calm:
                assert (a, b) == (round(x), round(y))
            else:
                assert (10**6 - 3) ** 2 <= a**2 + b**2 <= 10**12
                assert a * x >= 0
                assert b * y >= 0


def test_no_vector_is_lost_to_rounding():
    """From Pell's equation: d equal coordinates n are hardly longer than the ball, so what aims too
    far is rounded up to them, and lost.
    """
    for d, most, n in ((2, 54608393, 38613965), (7, 84319835, 31869902), (10, 243289797, 76934989)):
        assert 0 < d * n**2 - most**2 <= 3
        g = (most * torch.linspace(0.75, 3.0, 1000, dtype=DOUBLE)).expand(d, 1000).contiguous()
        assert (clipped(g, float(most), 1.0) == n - 1).all()


def test_a_fused_sum_is_given_the_length_that_this_one_aims_at(monkeypatch):
    monkeypatch.setattr(gradient, "can_sum_in_one_pass", lambda device, W, clip: len(W) == 4)
    monkeypatch.setattr(gradient, "one_pass_sum", lambda *given, aim: aim)
    W = torch.ones(4, 1, dtype=DOUBLE)
    assert gradient.clipped_sum([torch.ones(3)], W, 10.7, 0.5) == 21 * (1.0 - 2.0**-40) - 1.0
