"""Clipped gradients under the query contract, their exact clipping, and what earlier answers leave
with the curator.
"""

import concurrent.futures
import dataclasses
import math

import numpy as np
import pytest
import torch

from dpbo import Budget, PrivacyUnit
from dpbo.errors import InputError, PrivateFailure
from dpbo.gibo import ClippedGradient
from dpbo.gibo import gradient_query as gradient
from dpbo.gibo.gradient_query import clipped_sum, quantum_of
from dpbo.testing.query_contract import SumContract
from tests.attacks.marks import attack
from tests.contracts.bases import tries
from tests.setups import DOUBLE, EXACT, owner, point

TWO, HALVES = (
    torch.tensor([[1.0], [2.0]], dtype=DOUBLE),
    point(0.5, 0.25),
)


def column(x, records):
    return records[:, int(x[0])]


@tries(50)
@attack("A4", "A5", "A9")
class TestGradient(SumContract):
    covers = ClippedGradient
    metrics = 3

    def query(self, score):
        X = torch.arange(3, dtype=DOUBLE).unsqueeze(1)
        W = torch.tensor([[1.0, 0.5, -0.2], [0.3, 1.0, 0.4]], dtype=DOUBLE)
        return ClippedGradient(
            lambda x, r: column(x, score(None, r)),
            X,
            weights=W,
            clip=0.7,
            divisor=7.0,
            loss_range=(-6.0, 10.0),
        )


@tries(30)
@attack("A4", "A5", "A9")
class TestSlope(SumContract):  # one dimension, one point, a clip that is no power of two
    covers = ClippedGradient

    def query(self, score):
        X, W = point(0.0), point(3.0)
        return ClippedGradient(
            lambda x, r: column(x, score(None, r)),
            X,
            weights=W,
            clip=1.3e-3,
            loss_range=(-1.0, 1.0),
        )


def reference(Y, W, clip):
    """The mean that the paper writes, in floats."""
    g = Y @ W.T
    return (g * (clip / g.norm(dim=1, keepdim=True)).clamp(max=1.0)).mean(0)


def numbers(*shape, seed):
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def make(records, **settings):
    return owner(records, **{"budget": Budget.gdp(1.0), **settings})


def test_it_is_the_papers_mean_of_clipped_gradients():
    for n, N, d in ((1, 1, 1), (7, 4, 3), (3840, 11, 10), (3841, 34, 33), (10_000, 2, 200)):
        Y, W = numbers(n, N, seed=n), numbers(d, N, seed=d)
        for clip in (0.1 * math.sqrt(N * d), 100.0 * math.sqrt(N * d)):
            X = torch.arange(N, dtype=DOUBLE).unsqueeze(1)
            release = make(Y).release(ClippedGradient(column, X, weights=W, clip=clip), EXACT)
            assert torch.allclose(release.value, reference(Y, W, clip), atol=2 * clip * 2.0**-24), (
                n,
                N,
                d,
            )


@pytest.mark.parametrize("threads", [1, 2])
def test_one_unit_changes_no_others_bits(threads):
    """Replacing, removing and moving a unit across a chunk's edge: everybody else's integers
    stay.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for N, d in ((1, 1), (11, 10), (34, 33), (257, 64)):
            n, quantum = gradient._ROWS["cpu"] + 1, quantum_of(1.0, d)
            Y, W = numbers(N, n, seed=N), numbers(d, N, seed=d)
            whole, last, first, without, first_gone, moved = (
                clipped_sum(list(part), W, 1.0, quantum)
                for part in (
                    Y,
                    Y[:, -1:].contiguous(),
                    Y[:, :1],
                    Y[:, :-1],
                    Y[:, 1:],
                    Y[:, torch.randperm(n)],
                )
            )
            assert (
                (without + last).tolist()
                == (first_gone + first).tolist()
                == moved.tolist()
                == whole.tolist()
            )
    finally:
        torch.set_num_threads(before)


@attack("A8")
def test_a_removed_unit_leaves_every_other_ones_length_as_it_was():
    """A whole chunk less one against a whole chunk: clipped lengths are summed in one fixed shape,
    wherever the last unit stands.
    """
    rows = gradient._ROWS["cpu"]
    numbers = [
        10.760967930952122,
        -5.493870409268653,
        4.796100944628616,
        -3.83102110441581,
        0.9765046270726674,
    ]
    clip = 0.7499999980328573
    quantum, W = quantum_of(clip, 5), torch.eye(5, dtype=DOUBLE)
    sums = [
        clipped_sum([torch.full((n,), x, dtype=DOUBLE) for x in numbers], W, clip, quantum)
        for n in (rows - 1, rows)
    ]
    one = clipped_sum([torch.tensor([x], dtype=DOUBLE) for x in numbers], W, clip, quantum)
    assert (sums[1] - sums[0]).tolist() == one.tolist()
    for n in (1, 17, rows - 26, rows - 2):
        whole = clipped_sum([torch.full((n,), x, dtype=DOUBLE) for x in numbers], W, clip, quantum)
        assert whole.tolist() == (n * one).tolist()


def test_a_loss_that_uses_its_buffer_again_speaks_for_each_record_alone():
    buffer = torch.empty(5, dtype=DOUBLE)

    def batched(x, records):
        if bool((records > 50).any()):
            raise ValueError("too large")
        for start in range(0, len(records), 5):
            torch.mul(records[start : start + 5, 0], x[0], out=buffer)
            yield buffer

    for largest in (1.0, 100.0):
        data = torch.linspace(-1, 1, 400, dtype=DOUBLE).unsqueeze(1)
        data[7] = largest
        expected = torch.where(data > 50, 0.0, data).clamp(-0.5, 0.5).mean()
        query = ClippedGradient(batched, TWO, weights=HALVES, clip=0.5)
        found = make(data).release(query, EXACT).value.item()
        assert found == pytest.approx(float(expected), abs=1e-6)


@attack("A5", "A20")
def test_a_loss_that_is_not_finite_silences_its_whole_unit():
    Y = torch.ones(10, 3, dtype=DOUBLE)
    Y[4, 1], Y[7, 2] = math.nan, math.inf
    X, W = torch.arange(3, dtype=DOUBLE).unsqueeze(1), torch.ones(1, 3, dtype=DOUBLE)
    assert make(Y).release(
        ClippedGradient(column, X, weights=W, clip=1.0), EXACT
    ).value.item() == pytest.approx(0.8)
    labels = np.arange(10) // 2
    grouped = make(Y, unit=PrivacyUnit("patient", groups=labels))
    query = ClippedGradient(column, X, weights=W, clip=1.0, loss_range=(-2.0, 2.0))
    assert grouped.release(query, EXACT).value.item() == pytest.approx(0.6)
    with pytest.raises(InputError, match="loss_range"):
        grouped.release(ClippedGradient(column, X, weights=W, clip=1.0), EXACT)
    with pytest.raises(PrivateFailure):  # of every record
        make(torch.full_like(Y, 200.0)).evaluate(
            ClippedGradient(
                lambda x, r: r[:, 0] if not (r > 100).any() else 1 / 0, X, weights=W, clip=1.0
            )
        )


def test_losses_are_clipped_averaged_over_a_unit_and_exact_far_from_zero():
    """A unit's loss lies on a lattice, which moves a mean by at most two steps."""
    one = point(1.0)

    def value(Y, unit="record", **terms):
        query = ClippedGradient(column, one - 1.0, weights=one, **terms)
        return make(torch.tensor(Y, dtype=DOUBLE), unit=unit).release(query, EXACT).value.item()

    Y = [[0.1], [0.9], [5.0], [-5.0]]
    terms = {"clip": 10.0, "loss_range": (0.0, 1.0)}
    assert value(Y, **terms) == pytest.approx(0.5, abs=1e-6)
    grouped = PrivacyUnit("patient", groups=[0, 1, 1, 1])
    assert value(Y, grouped, **terms) == pytest.approx((0.1 + 1.9 / 3) / 2, abs=1e-6)
    assert value([[1e9 + 0.25], [1e9 + 0.5]], clip=1.0, center=1e9) == 0.375


def test_earlier_losses_stay_with_the_curator_and_are_used_again():
    Y, W = numbers(30, 5, seed=1), numbers(2, 5, seed=2)
    X = torch.arange(5, dtype=DOUBLE).unsqueeze(1)
    curator = make(Y)
    first = curator.evaluate(ClippedGradient(column, X[:3], weights=W[:, :3], clip=1.0, keep=True))
    second = ClippedGradient(column, X[3:], weights=W, clip=1.0, earlier=[first])
    assert torch.allclose(curator.release(second, EXACT).value, reference(Y, W, 1.0), atol=1e-6)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        again = curator.submit(second, pool).result()
    assert torch.equal(
        curator.release(again, EXACT).value, curator.release(curator.evaluate(second), EXACT).value
    )
    with pytest.raises(InputError, match="kept"):
        curator.evaluate(dataclasses.replace(second, earlier=[again]))
    with pytest.raises(InputError, match="this curator"):
        make(Y).evaluate(second)
    with pytest.raises(InputError, match="N = 5"):
        curator.evaluate(dataclasses.replace(second, weights=torch.ones(2, 4, dtype=DOUBLE)))


def test_whole_numbers_are_never_too_long_whatever_the_floats_did(monkeypatch):
    """Long vectors end just inside floor(B / q); if floats overshot by a tenth, as no machine's do,
    they would count as nothing.
    """
    shortening = gradient._SHORTER
    for d in (2, 3, 34):
        q = gradient.quantum_of(1.5, d)
        g = numbers(d, 500, seed=0) * torch.logspace(-3, 3, 500).double()
        most, squares = math.floor(1.5 / q), list[list[int]]()
        whole = torch.empty(g.shape, dtype=torch.int64)
        for shorter in (shortening, 1.1):
            monkeypatch.setattr(gradient, "_SHORTER", shorter)
            squares.append(
                [
                    sum(int(number) ** 2 for number in column)
                    for column in gradient._clipped(g.clone(), 1.5, q, whole).T
                ]
            )
            assert max(squares[-1]) <= most**2, (d, shorter)
        found, wild = squares
        assert sum(square > (0.999999 * most) ** 2 for square in found) > 100, (
            "long vectors are clipped, not lost"
        )
        assert [0 if square > (0.999999 * most) ** 2 else square for square in found] == wild
