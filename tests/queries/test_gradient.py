"""Clipped gradients under the query contract, their exact clipping, and what earlier answers leave with the curator."""

import concurrent.futures
import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbo import Adjacency, Budget, Curator, PrivacyUnit
from dpbo.errors import InputError, PrivateFailure
from dpbo.mechanisms import GaussianMechanism, NoNoise
from dpbo.queries import ClippedGradient, vectors
from dpbo.queries.vectors import clipped_sum, quantum_of
from dpbo.testing import SumContract

EXACT = NoNoise(allow_not_private=True)


def column(x, records):
    """The loss at a point is one column of the records."""
    return records[:, int(x[0])]


@pytest.mark.attack("A4")
@pytest.mark.attack("A5")
@pytest.mark.attack("A9")
class TestGradient(SumContract):
    covers = ClippedGradient
    metrics = 3

    def query(self, score):
        X = torch.arange(3, dtype=torch.float64).unsqueeze(1)
        W = torch.tensor([[1.0, 0.5, -0.2], [0.3, 1.0, 0.4]], dtype=torch.float64)
        return ClippedGradient(lambda x, r: column(x, score(None, r)), X, weights=W, clip=0.7, divisor=7.0, loss_range=(-6.0, 10.0))


@pytest.mark.attack("A4")
@pytest.mark.attack("A5")
@pytest.mark.attack("A9")
class TestSlope(SumContract):
    """One dimension, one point, a clip that is no power of two."""

    covers = ClippedGradient

    def query(self, score):
        X, W = torch.zeros(1, 1, dtype=torch.float64), torch.tensor([[3.0]], dtype=torch.float64)
        return ClippedGradient(lambda x, r: column(x, score(None, r)), X, weights=W, clip=1.3e-3, loss_range=(-1.0, 1.0))


def reference(Y, W, clip):
    """The mean that the paper writes, in floats."""
    g = Y @ W.T
    return (g * (clip / g.norm(dim=1, keepdim=True)).clamp(max=1.0)).mean(0)


def make(records, **settings):
    terms = {"unit": PrivacyUnit("user"), "adjacency": Adjacency.REPLACE_ONE, "budget": Budget.gdp(1.0), **settings}
    return Curator(records, **terms)


@pytest.mark.parametrize(("n", "N", "d"), [(1, 1, 1), (7, 4, 3), (3840, 11, 10), (3841, 34, 33), (10_000, 2, 200)])
def test_it_is_the_papers_mean_of_clipped_gradients(n, N, d):
    generator = torch.Generator().manual_seed(n)
    Y, W = (torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in ((n, N), (d, N)))
    for clip in (0.1 * math.sqrt(N * d), 100.0 * math.sqrt(N * d)):
        X = torch.arange(N, dtype=torch.float64).unsqueeze(1)
        release = make(Y).release(ClippedGradient(column, X, weights=W, clip=clip), EXACT)
        assert torch.allclose(release.value, reference(Y, W, clip), atol=2 * clip * 2.0**-24)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 300), st.integers(1, 70), st.floats(1e-6, 1e6), st.floats(-300, 300), st.integers(0, 2**32))
@pytest.mark.attack("A5")
def test_no_vector_is_ever_longer_than_the_clip(n, d, clip, magnitude, seed):
    """In exact integers, for numbers of any size, with some that are not finite."""
    rng = np.random.default_rng(seed)
    Y = torch.from_numpy(rng.normal(size=(3, n)) * 10.0**magnitude)
    Y[:, rng.integers(0, n)] = float(rng.choice([math.nan, math.inf, -math.inf, 1e308, 5e-324]))
    W, quantum = torch.from_numpy(rng.normal(size=(d, 3))), quantum_of(clip, d)
    for i in range(min(n, 5)):
        one = clipped_sum([y[i : i + 1] for y in Y], W, clip, quantum)
        assert sum(int(k) ** 2 for k in one.tolist()) <= (clip / quantum) ** 2
    whole = clipped_sum(list(Y), W, clip, quantum)
    parts = [clipped_sum([y[i : i + 1] for y in Y], W, clip, quantum) for i in range(n)]
    assert whole.tolist() == torch.stack(parts).sum(0).tolist()


@pytest.mark.parametrize(("N", "d"), [(1, 1), (11, 10), (34, 33), (257, 64)])
@pytest.mark.parametrize("threads", [1, 2])
def test_one_unit_changes_no_others_bits(N, d, threads):
    """Replacing, removing and moving a unit across a chunk's edge: everybody else's integers stay."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        n, clip = vectors._ROWS["cpu"] + 1, 1.0
        generator = torch.Generator().manual_seed(N)
        Y = torch.randn(N, n, dtype=torch.float64, generator=generator)
        W = torch.randn(d, N, dtype=torch.float64, generator=generator)
        quantum = quantum_of(clip, d)
        whole, last = (clipped_sum(list(part), W, clip, quantum) for part in (Y, Y[:, -1:].contiguous()))
        without = clipped_sum([y[:-1] for y in Y], W, clip, quantum)
        first_gone = clipped_sum([y[1:] for y in Y], W, clip, quantum)
        first = clipped_sum([y[:1] for y in Y], W, clip, quantum)
        order = torch.randperm(n, generator=generator)
        assert (without + last).tolist() == whole.tolist()
        assert (first_gone + first).tolist() == whole.tolist()
        assert clipped_sum(list(Y[:, order]), W, clip, quantum).tolist() == whole.tolist()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("wild", [math.nan, math.inf, 1e300, -1e308])
@pytest.mark.attack("A5")
def test_a_wild_unit_changes_no_others_bits(wild):
    """Whatever path one unit takes, its neighbours keep theirs: their numbers lie on the lattice, where one lost bit is one whole step."""
    generator = torch.Generator().manual_seed(11)
    W, clip = torch.eye(3, dtype=torch.float64), 1000.0
    quantum = quantum_of(clip, 3)
    Y = torch.randint(-(2**26), 2**26, (3, 1000), generator=generator).double() * quantum
    calm, loud = Y.clone(), Y.clone()
    calm[:, 17], loud[:, 17] = 0.0, wild
    alone = clipped_sum([y[17:18] for y in loud], W, clip, quantum)
    assert (clipped_sum(list(calm), W, clip, quantum) + alone).tolist() == clipped_sum(list(loud), W, clip, quantum).tolist()


@pytest.mark.attack("A8")
def test_a_removed_unit_leaves_every_other_ones_length_as_it_was():
    """A whole chunk less one against a whole chunk: clipped lengths are summed in one fixed shape, wherever the last unit stands."""
    rows = vectors._ROWS["cpu"]
    numbers = [10.760967930952122, -5.493870409268653, 4.796100944628616, -3.83102110441581, 0.9765046270726674]
    clip = 0.7499999980328573
    quantum, W = quantum_of(clip, 5), torch.eye(5, dtype=torch.float64)
    sums = [clipped_sum([torch.full((n,), x, dtype=torch.float64) for x in numbers], W, clip, quantum) for n in (rows - 1, rows)]
    one = clipped_sum([torch.tensor([x], dtype=torch.float64) for x in numbers], W, clip, quantum)
    assert (sums[1] - sums[0]).tolist() == one.tolist()
    for n in (1, 17, rows - 26, rows - 2):
        whole = clipped_sum([torch.full((n,), x, dtype=torch.float64) for x in numbers], W, clip, quantum)
        assert whole.tolist() == (n * one).tolist()


@pytest.mark.parametrize("raising", [False, True])
def test_a_loss_that_uses_its_buffer_again_speaks_for_each_record_alone(raising):
    buffer = torch.empty(5, dtype=torch.float64)

    def batched(x, records):
        if raising and bool((records > 50).any()):
            raise ValueError("too large")
        for start in range(0, len(records), 5):
            torch.mul(records[start : start + 5, 0], x[0], out=buffer)
            yield buffer

    def whole(x, records):
        return torch.mul(records[:, 0], x[0], out=torch.empty(0, dtype=torch.float64))

    data = torch.linspace(-1, 1, 400, dtype=torch.float64).unsqueeze(1)
    if raising:
        data[7] = 100.0
    X, W = torch.tensor([[1.0], [2.0]], dtype=torch.float64), torch.tensor([[0.5, 0.25]], dtype=torch.float64)
    expected = torch.where(data > 50, 0.0, data).clamp(-0.5, 0.5).mean()
    for loss in (batched,) if raising else (batched, whole):
        value = make(data).release(ClippedGradient(loss, X, weights=W, clip=0.5), EXACT).value.item()
        assert value == pytest.approx(float(expected), abs=1e-6)


def test_a_loss_that_writes_into_x_moves_nothing():
    def writing(x, records):
        losses = records[:, 0] * x[0]
        x.zero_()
        return losses

    X, W = torch.tensor([[1.0], [2.0]], dtype=torch.float64), torch.tensor([[0.5, 0.25]], dtype=torch.float64)
    data = torch.full((10, 1), 0.3, dtype=torch.float64)
    query = ClippedGradient(writing, X, weights=W, clip=1.0)
    X.zero_()
    assert make(data).release(query, EXACT).value.item() == pytest.approx(0.3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_no_unit_changes_anothers_bits():
    generator = torch.Generator().manual_seed(0)
    Y = torch.randn(34, 70_000, dtype=torch.float64, generator=generator).cuda()
    W = torch.randn(33, 34, dtype=torch.float64, generator=generator).cuda()
    quantum = quantum_of(1.0, 33)
    whole, last = (clipped_sum(list(part), W, 1.0, quantum) for part in (Y, Y[:, -1:].contiguous()))
    assert (clipped_sum([y[:-1] for y in Y], W, 1.0, quantum) + last).tolist() == whole.tolist()
    replaced = Y.clone()
    replaced[:, 5] = math.nan
    assert (clipped_sum(list(replaced), W, 1.0, quantum) + clipped_sum(list(Y[:, 5:6]), W, 1.0, quantum)).tolist() == whole.tolist()


@pytest.mark.attack("A5")
@pytest.mark.attack("A20")
def test_a_loss_that_is_not_finite_silences_its_whole_unit():
    Y = torch.ones(10, 3, dtype=torch.float64)
    Y[4, 1], Y[7, 2] = math.nan, math.inf
    X, W = torch.arange(3, dtype=torch.float64).unsqueeze(1), torch.ones(1, 3, dtype=torch.float64)
    assert make(Y).release(ClippedGradient(column, X, weights=W, clip=1.0), EXACT).value.item() == pytest.approx(0.8)
    labels = np.arange(10) // 2
    grouped = make(Y, unit=PrivacyUnit("patient", groups=labels))
    query = ClippedGradient(column, X, weights=W, clip=1.0, loss_range=(-2.0, 2.0))
    assert grouped.release(query, EXACT).value.item() == pytest.approx(0.6)
    with pytest.raises(InputError, match="loss_range"):
        grouped.release(ClippedGradient(column, X, weights=W, clip=1.0), EXACT)


def test_losses_are_clipped_to_their_range_and_averaged_over_a_unit():
    """A unit's loss lies on a lattice, which moves a mean by at most two steps."""
    Y = torch.tensor([[0.1], [0.9], [5.0], [-5.0]], dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    query = ClippedGradient(column, one - 1.0, weights=one, clip=10.0, loss_range=(0.0, 1.0))
    assert make(Y).release(query, EXACT).value.item() == pytest.approx(0.5, abs=1e-6)
    grouped = make(Y, unit=PrivacyUnit("patient", groups=[0, 1, 1, 1]))
    assert grouped.release(query, EXACT).value.item() == pytest.approx((0.1 + 1.9 / 3) / 2, abs=1e-6)


def test_losses_far_from_zero_keep_their_last_digits():
    """Before the centre is taken off: in float32 these are all the same."""
    Y = 1e9 + torch.tensor([[0.25], [0.5]], dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    query = ClippedGradient(column, one - 1.0, weights=one, clip=1.0, center=1e9)
    assert make(Y).release(query, EXACT).value.item() == 0.375


def test_sensitivity_and_variance():
    query = ClippedGradient(column, torch.zeros(1, 1).double(), weights=torch.ones(4, 1).double(), clip=0.5, divisor=50.0)
    assert query.sensitivity(Adjacency.REPLACE_ONE).l2 == 1.0
    assert query.sensitivity(Adjacency.ADD_OR_REMOVE_ONE).l2 == 0.5
    for adjacency, std in ((Adjacency.REPLACE_ONE, 8 / 50), (Adjacency.ADD_OR_REMOVE_ONE, 4 / 50)):
        curator = make(torch.zeros(50, 1).double(), adjacency=adjacency)
        assert curator.release(query, GaussianMechanism(8.0)).variance.sqrt().tolist() == pytest.approx([std] * 4)
    with pytest.raises(InputError, match="divisor"):
        make(torch.zeros(50, 1).double(), adjacency=Adjacency.ADD_OR_REMOVE_ONE).evaluate(dataclasses.replace(query, divisor=None))


def test_earlier_losses_stay_with_the_curator_and_are_used_again():
    Y = torch.randn(30, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    W = torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    X = torch.arange(5, dtype=torch.float64).unsqueeze(1)
    curator = make(Y)
    first = curator.evaluate(ClippedGradient(column, X[:3], weights=W[:, :3], clip=1.0, keep=True))
    second = ClippedGradient(column, X[3:], weights=W, clip=1.0, earlier=[first])
    assert torch.allclose(curator.release(second, EXACT).value, reference(Y, W, 1.0), atol=1e-6)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        again = curator.submit(second, pool).result()
    assert torch.equal(curator.release(again, EXACT).value, curator.release(curator.evaluate(second), EXACT).value)
    with pytest.raises(InputError, match="kept"):
        curator.evaluate(dataclasses.replace(second, earlier=[again]))
    with pytest.raises(InputError, match="this curator"):
        make(Y).evaluate(second)
    with pytest.raises(InputError, match="N = 5"):
        curator.evaluate(dataclasses.replace(second, weights=torch.ones(2, 4, dtype=torch.float64)))


def test_a_loss_that_fails_is_confined_or_refused():
    def fussy(x, records):
        if bool((records > 100).any()):
            raise ValueError("too large")
        return records[:, 0]

    data = torch.ones(20, 1, dtype=torch.float64)
    data[3] = 1000.0
    query = ClippedGradient(fussy, torch.zeros(1, 1).double(), weights=torch.ones(1, 1).double(), clip=1.0)
    assert make(data).release(query, EXACT).value.item() == pytest.approx(0.95)
    with pytest.raises(PrivateFailure):
        make(torch.full((20, 1), 1000.0).double()).evaluate(query)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("clip", {"clip": 0.0}),
        ("clip", {"clip": math.nan}),
        ("weights", {"weights": torch.ones(2, 1).double()}),
        ("weights", {"weights": torch.ones(2, 3)}),
        ("X", {"X": torch.ones(3).double()}),
        ("X", {"X": torch.full((3, 1), math.nan).double()}),
        ("divisor", {"divisor": 0.0}),
        ("loss_range", {"loss_range": (1.0, 0.0)}),
        ("loss", {"loss": None}),
    ],
)
def test_bad_input_is_named(name, change):
    query = ClippedGradient(column, torch.ones(3, 1).double(), weights=torch.ones(2, 3).double(), clip=1.0)
    with pytest.raises(InputError, match=name):
        dataclasses.replace(query, **change)


@pytest.mark.parametrize("d", [2, 3, 34])
def test_whole_numbers_are_never_too_long_whatever_the_floats_did(monkeypatch, d):
    """Long vectors end just inside floor(B / q); if floats overshot by a tenth, as no machine's do, they would count as nothing."""
    q = vectors.quantum_of(1.5, d)
    g = torch.randn(d, 500, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, 500).double()
    most = math.floor(1.5 / q)
    squares: list[int] = []
    wild: list[int] = []
    for found, shorter in ((squares, vectors._SHORTER), (wild, 1.1)):
        monkeypatch.setattr(vectors, "_SHORTER", shorter)
        found += [sum(int(number) ** 2 for number in column) for column in vectors._clipped(g, 1.5, q).T]
        assert max(found) <= most**2
    assert sum(square > (0.999999 * most) ** 2 for square in squares) > 100, "long vectors are clipped, not lost"
    assert [0 if square > (0.999999 * most) ** 2 else square for square in squares] == wild


@pytest.mark.parametrize("d", [1, 2, 7, 33, 1000, 1 << 14])
def test_rounding_moves_no_vector_beyond_the_ball(d):
    """Vectors whose coordinates all round up: sqrt(d) / 2 is left for it, and no more."""
    q = vectors.quantum_of(1.0, d)
    most = math.floor(1.0 / q)
    g = torch.full((d, 64), 3.0, dtype=torch.float64) + torch.linspace(0, 1e-3, 64, dtype=torch.float64)
    lengths = vectors._clipped(g, 1.0, q).double().norm(dim=0)
    assert (lengths <= most).all()
    assert (lengths >= most * (1 - 2.0**-39) - math.sqrt(d) - 1).all()
