"""The fused moments are those of the torch path: in Triton's interpreter everywhere, and on a GPU where there is one."""

import math

import pytest
import torch

from dpbo import PrivacyUnit
from dpbo.curator.records import PrivateView
from dpbo.queries import Ball, MixtureMoments
from dpbo.queries.fused_moments import can_fuse_moments
from dpbo.queries.query import IntegerSum
from tests.queries.interpreting import interpreted
from tests.queries.moments_cases import CASES, OTHERS, apart, case_of

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CLOSE = 1e-6  # share of the largest sum there could be; a step of a weight of one record in 300 is 1.6e-6


@pytest.mark.attack("A4")
def test_interpreted_they_are_those_of_the_torch_path():
    """Whatever moves from one component to another by a rounding, all components together hold the same whole numbers."""
    found = interpreted("moments_cases")
    assert len(found) == len(CASES) + len(OTHERS) + 2
    assert all(together == 0 and each < CLOSE for together, each in found)


@on_a_gpu
@pytest.mark.attack("A4")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", [*CASES, (300_001, 2, 5, "full", False)], ids=str)
def test_on_a_gpu_they_are_those_of_the_torch_path(case, dtype):
    together, each = apart(case, device="cuda", dtype=dtype)
    assert together == 0
    assert each < CLOSE


def summed(X, question, device):
    view = PrivateView.of(X.to(device), PrivacyUnit("record"), units_are_public=True)
    answer = question._evaluate(view, None)
    assert isinstance(answer, IntegerSum)
    return answer.numerators


@pytest.mark.attack("A4")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_a_gpu)])
@pytest.mark.parametrize("dimension", [2, 9])
def test_one_record_changes_no_others_bits(device, dimension):
    """Replaced by one that counts as nothing, a record takes away what it adds alone: on the fused path and on the other."""
    X = torch.randn(70_001, dimension, dtype=torch.float64)
    _, question = case_of(300, dimension, 3, "full", False)
    nothing = torch.full((1, dimension), math.nan, dtype=torch.float64)

    def without(row):
        return summed(torch.cat([X[:row], nothing, X[row + 1 :]]), question, device)

    whole = summed(X, question, device)
    for row in (0, 5000, 70_000):
        alone = summed(torch.cat([X[row : row + 1], nothing.expand(70_000, -1)]), question, device)
        assert (without(row) + alone).tolist() == whole.tolist()


@on_a_gpu
@pytest.mark.attack("A4")
def test_a_record_that_fails_changes_no_others_path():
    """Where `vectors` raises on a record, all come from the CPU: they are summed on the records' device all the same."""
    records, (_, question) = torch.randn(5000, 2, device="cuda"), case_of(300, 2, 3, "full", False)

    def fragile(batch):
        if bool((batch[:, 0] > 100).any()):
            raise ValueError
        return batch

    query = MixtureMoments(2, ball=question.ball, natural=question.natural, vectors=fragile)
    failing, absent = records.clone(), records.clone()
    failing[17], absent[17] = 1e3, math.nan
    assert summed(failing, query, "cuda").tolist() == summed(absent, query, "cuda").tolist()


def test_the_path_is_chosen_by_public_things_alone():
    assert not can_fuse_moments(torch.device("cpu"), 5, 2, "full")
    assert can_fuse_moments(torch.device("cuda"), 5, 2, "full") == torch.cuda.is_available()
    assert not can_fuse_moments(torch.device("cuda"), 65, 2, "full")


def test_a_ball_of_another_kind_takes_the_other_path_to_the_same_sums():
    """Spherical statistics of one component are the traces of the full ones."""
    X = torch.randn(500, 2, dtype=torch.float64)
    full, spherical = (MixtureMoments(2, ball=Ball(1.0), natural=torch.zeros(1, width).double(), covariance=kind)
                       for kind, width in (("full", 6), ("spherical", 4)))  # fmt: skip
    one, other = summed(X, full, "cpu"), summed(X, spherical, "cpu")
    assert other.tolist() == [*one[:3].tolist(), int(one[3] + one[5])]
