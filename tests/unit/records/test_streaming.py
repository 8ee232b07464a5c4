"""Records that come to a device block by block give the bits of records that lie there."""

import math

import pytest
import torch

from dpbo import Adjacency, Budget, PrivacyUnit
from dpbo.errors import InputError, PrivateFailure
from dpbo.gibo import ClippedGradient
from dpbo.papers.em.mixture_moments import MixtureMoments
from dpbo.papers.em.point_sums import ClusterSums, SecondMoment, VectorSum
from dpbo.queries import CellMeans, ClippedMean, QuantileUtilities
from dpbo.queries.ball import Ball
from dpbo.records import streaming
from tests.attacks.marks import attack
from tests.setups import DOUBLE, EXACT, owner

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
D, ROWS = 3, 64


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(streaming, "_ROWS", ROWS)


def records_of(n):
    X = torch.randn(n, D, generator=torch.Generator().manual_seed(n), dtype=DOUBLE)
    X[n // 3], X[n // 2, 0] = math.nan, math.inf
    return X.pin_memory() if torch.cuda.is_available() else X


def opened(records, **more):
    return owner(records, budget=Budget.gdp(1.0), **more)


def loss(x, users):
    return (users[:, 0] - x[0]).abs() + (users[:, 1] - x[1]) * (users[:, 2] - x[2])


def fragile(x, users):
    if bool((users == math.inf).any()):
        raise ValueError
    return loss(x, users)


def answers(curator):
    """Values of every kind of sum, some of them with losses that were kept from the question
    before.
    """
    ball, draw = Ball(2.0), torch.Generator().manual_seed(0)
    X, W = (torch.randn(shape, generator=draw, dtype=DOUBLE) for shape in ((5, D), (4, 11)))
    mean = ClippedMean(
        lambda _, r: torch.stack([r[:, 0], r[:, 1] * r[:, 2]], 1),
        score_range=[(-1.0, 1.0), (0.0, 3.0)],
        divisor=200.0,
    )
    kept = curator.evaluate(
        ClippedGradient(
            fragile, X, weights=W[:, :5], clip=0.7, divisor=200.0, center=0.3, keep=True
        )
    )
    more = curator.evaluate(
        ClippedGradient(
            lambda _, r: r[:, 1],
            X[1:],
            weights=W[:, :9],
            earlier=[kept],
            clip=0.7,
            divisor=200.0,
            center=0.1,
            keep=True,
        )
    )
    last = curator.evaluate(
        ClippedGradient(loss, X[:2], weights=W, earlier=[more, kept][::-1], clip=0.7, divisor=200.0)
    )
    queries = [
        mean,
        CellMeans(lambda _, r: (r[:, 0] > 0).long(), cells=2, divisor=200.0),
        ClusterSums(D, ball=ball, centers=X),
        SecondMoment(D, ball=ball),
        VectorSum(D, ball=ball, nonnegative=True, vectors=lambda r: r.abs()),
        MixtureMoments(D, ball=ball, natural=torch.randn(3, 10, generator=draw, dtype=DOUBLE)),
        MixtureMoments(
            D,
            ball=ball,
            natural=torch.ones(2, 5, dtype=DOUBLE),
            covariance="spherical",
            vectors=lambda r: r.abs(),
        ),
    ]
    handles = [kept, more, last, *map(curator.evaluate, queries)]
    return [curator.release(handle, EXACT).value.tolist() for handle in handles]


@attack("A4")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [2, ROWS, ROWS + 1, 4 * ROWS, 5 * ROWS - 7])
def test_blocks_give_the_bits_of_resident_records(device, n):
    records = records_of(n)
    streamed = opened(records, device=device)
    assert streamed.device.type == device
    assert answers(streamed) == answers(opened(records.to(device)))


@attack("A4")
def test_a_record_adds_the_same_at_every_row_and_in_whole_and_ragged_blocks():
    records = records_of(2 * ROWS + 1)
    settings = {"adjacency": Adjacency.ADD_OR_REMOVE_ONE, "device": "cpu"}
    query = ClippedGradient(
        loss,
        torch.eye(D).double(),
        weights=torch.randn(5, D, dtype=DOUBLE),
        clip=0.5,
        divisor=1.0,
    )

    def total(rows):
        return opened(rows, **settings).release(query, EXACT).value

    whole = total(records)
    for i in (0, ROWS - 1, ROWS, 2 * ROWS):
        assert torch.equal(
            whole, total(torch.cat([records[:i], records[i + 1 :]])) + total(records[i : i + 1])
        )
    assert total(records[:0]).tolist() == [0.0] * 5


def test_the_next_block_is_copied_beside_the_one_that_is_worked_on():
    parts = [{"x": part} for part in torch.arange(3.0 * ROWS + 5).split(ROWS)]
    places = list[int]()
    walk = streaming.on_device(parts, torch.device("cpu"))
    for part, there in zip(parts, walk, strict=True):
        assert torch.equal(there["x"], part["x"])
        places.append(there["x"].data_ptr())
        kept = streaming.to_host(there["x"])
        there["x"].zero_()
        assert torch.equal(kept, part["x"]), "it outlasts its buffer"
    assert len({*places}) == 2
    assert places[:2] == places[2:]


class MeanInBlocks(ClippedMean):
    per_unit = True

    def rows_at_once(self):
        return ROWS


class GradientInBlocks(ClippedGradient):
    per_unit = True

    def rows_at_once(self):
        return ROWS


@attack("A4")
@pytest.mark.parametrize("n", [ROWS, ROWS + 1, 5 * ROWS - 7])
def test_large_tensors_are_asked_in_blocks_and_answer_the_same(n):
    records = records_of(n).cpu()
    weights = torch.randn(4, D, dtype=DOUBLE)
    asked = []

    def of_mean(_, r):
        asked.append(len(r))
        return r[:, 0] * r[:, 1]

    def values(mean, gradient):
        curator = opened(records, example=torch.zeros(3, D, dtype=DOUBLE))
        asks = [
            mean(of_mean, score_range=(-1.0, 1.0)),
            gradient(fragile, torch.eye(D).double(), weights=weights, clip=0.5),
        ]
        asked.clear()
        return [curator.release(query, EXACT).value.tolist() for query in asks]

    whole = values(ClippedMean, ClippedGradient)
    assert n in asked
    assert values(MeanInBlocks, GradientInBlocks) == whole
    assert max(asked) == ROWS


@pytest.mark.parametrize(
    ("records", "unit"),
    [
        pytest.param(torch.ones(3 * ROWS).numpy(), "record", id="array"),
        pytest.param([1.0] * (3 * ROWS), "record", id="list"),
        pytest.param(
            torch.ones(3 * ROWS),
            PrivacyUnit("patient", groups=torch.arange(3 * ROWS) // 2),
            id="groups",
        ),
    ],
)
def test_what_has_no_views_for_blocks_is_asked_as_a_whole(records, unit):
    asked = []

    def score(_, r):
        asked.append(len(r))
        return torch.as_tensor(r)

    opened(records, unit=unit).evaluate(MeanInBlocks(score, score_range=(0.0, 1.0)))
    assert max(asked) == 3 * ROWS


def test_a_block_that_is_changed_in_place_is_refused():
    records = torch.ones(ROWS + 1)
    curator = opened(records, device="cpu", example=torch.zeros(3))
    with pytest.raises(PrivateFailure, match="in place"):
        curator.evaluate(
            ClippedMean(lambda _, r: r.mul_(2.0) if len(r) == ROWS else r, score_range=(0.0, 1.0))
        )


def test_what_cannot_be_divided_into_blocks_is_refused():
    ones = torch.ones(4)
    for records in (ones.numpy(), [1.0, 2.0], (ones, ones.numpy()), torch.eye(3).to_sparse()):
        with pytest.raises(InputError, match="a dense tensor, or a tuple or dict of these"):
            opened(records, device="cpu")
    for device in ("meta", "elsewhere", f"cuda:{torch.cuda.device_count()}"):
        with pytest.raises(InputError, match="a CUDA device that torch finds here"):
            opened(ones, device=device)
    with pytest.raises(InputError, match="Their rows may be in two blocks"):
        opened(ones, unit=PrivacyUnit("patient", groups=[0, 0, 1, 1]), device="cpu")
    with pytest.raises(InputError, match="without device="):
        opened(ones, device="cpu").evaluate(
            QuantileUtilities(lambda _, r: r, candidates=[0.1, 0.2], quantile=0.5)
        )
