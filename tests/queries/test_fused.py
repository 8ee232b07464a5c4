"""The fused kernel gives the CPU's integers: in Triton's interpreter everywhere, and on a GPU where there is one."""

import pytest
import torch

from dpbo import PrivacyUnit
from dpbo.curator.records import PrivateView
from dpbo.queries import ClippedGradient, fused, fused_moments, vectors
from dpbo.queries.fused import _ready, can_fuse
from dpbo.queries.gradient import collected
from dpbo.queries.query import IntegerSum
from tests.queries.fused_cases import AIMS, CASES, both
from tests.queries.interpreting import interpreted

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.attack("A4")
def test_interpreted_it_gives_the_cpus_integers():
    assert interpreted("fused_cases") == [True] * (len(CASES) * len(AIMS) + 3)


@pytest.mark.parametrize("host", [fused, fused_moments])
def test_a_trial_launch_that_finds_no_memory_says_nothing_of_the_next(host, monkeypatch):
    def full(*arguments, **options):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(host, "fused_sum" if host is fused else "fused_moments", full)
    with pytest.raises(torch.OutOfMemoryError):
        host._works(torch.device("cpu", 0))


def test_a_column_is_copied_where_the_kernel_could_not_read_it_and_only_there():
    memory = torch.arange(64.0)  # torch's own memory begins at a multiple of 64 bytes
    assert _ready(memory[4:]).data_ptr() == memory[4:].data_ptr()
    for column in (memory[1:], memory[::2], memory.double()):
        assert _ready(column).data_ptr() % 16 == 0
        assert _ready(column).tolist() == column.tolist()


def test_a_view_with_a_sign_of_its_own_is_read_as_it_is_shown():
    column = torch.complex(torch.zeros(40), -torch.arange(40.0)).conj().imag
    assert column.is_neg()
    ready = _ready(column)
    assert not ready.is_neg()
    assert ready.tolist() == list(range(40))


@on_a_gpu
@pytest.mark.attack("A4")
@pytest.mark.parametrize("aim", AIMS)
@pytest.mark.parametrize("case", [*CASES, (100_003, 34, 33, 9.0)], ids=str)
def test_on_a_gpu_it_gives_the_cpus_integers(case, aim):
    fused, own = both(case, aim, "cuda")
    assert fused == own


@on_a_gpu
def test_on_a_gpu_one_unit_changes_no_others_bits():
    W = torch.randn(33, 256, dtype=torch.float64).cuda()
    Y = torch.randn(256, 70_001, device="cuda")
    quantum = vectors.quantum_of(2.0, 33)

    def summed(part):
        return vectors.clipped_sum(list(part), W, 2.0, quantum)

    whole, last, first = summed(Y), summed(Y[:, -1:]), summed(Y[:, :1])
    assert (summed(Y[:, :-1]) + last).tolist() == whole.tolist()
    assert (summed(Y[:, 1:]) + first).tolist() == whole.tolist()
    assert summed(Y[:, torch.randperm(70_001, device="cuda")]).tolist() == whole.tolist()


@pytest.mark.attack("A4")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_a_gpu)])
def test_a_record_that_the_loss_fails_on_changes_no_others_path(device):
    """Where the loss raises on a record, all losses come back as float64 from the CPU: the others must count to the same bits."""
    W = torch.randn(7, 2, dtype=torch.float64)
    records = torch.randn(5000, 2, device=device)

    def loss(x, batch):
        if bool((batch[:, 0] > 100).any()):
            raise ValueError
        return batch @ x.to(batch)

    def released(batch):
        query = ClippedGradient(loss, torch.eye(2, dtype=torch.float64), weights=W, clip=1.0, divisor=1.0)
        view = PrivateView.of(batch, PrivacyUnit("record"), units_are_public=True)
        answer = query._evaluate(view, query.prepare())
        assert isinstance(answer, IntegerSum)
        return answer.numerators

    failing = records.clone()
    failing[17] = 1e3
    alone = torch.full((1, 2), torch.nan, device=device)
    without = torch.cat([records[:17], alone, records[18:]])
    assert released(failing).tolist() == released(without).tolist()


def test_the_path_is_chosen_by_public_things_alone():
    assert not can_fuse(torch.device("cpu"), 2)
    assert can_fuse(torch.device("cuda"), 256) == torch.cuda.is_available()
    assert not can_fuse(torch.device("cuda"), 257)


@pytest.mark.attack("A4")
@pytest.mark.parametrize("stored", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.bfloat16])
@pytest.mark.parametrize("lent", [False, True])
def test_a_loss_has_the_same_bits_however_it_was_collected(stored, dtype, lent):
    """At once, in pieces, from a view of the records, or from the CPU in float64 because the loss failed on one record."""
    records = (1e6 + 1e17 * torch.rand(50, 1, dtype=torch.float64)).to(dtype)
    own = frozenset({records.untyped_storage().data_ptr()}) if lent else frozenset()
    alone = [records.to(torch.float64)]
    expected = collected(alone, torch.device("cpu"), own, stored).double()
    for pieces in ([records], records.split(7), records.split(25)):
        assert torch.equal(collected(pieces, torch.device("cpu"), own, stored).double(), expected)


def test_a_view_of_the_records_is_lent_and_whatever_else_a_loss_returns_is_copied():
    records, other = torch.ones(2, 5, 1, dtype=torch.float64)
    own = frozenset({records.untyped_storage().data_ptr()})
    for piece, lent in ((records, True), (other.clone(), False), (records.float(), False)):
        found = collected([piece], torch.device("cpu"), own, torch.float64)
        assert (found.data_ptr() == piece.data_ptr()) is lent
    assert collected([], torch.device("cpu"), own, torch.float64).tolist() == [], "no records, and no loss of any"
