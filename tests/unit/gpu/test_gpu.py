"""The GPU kernel gives the CPU's sums: in Triton's interpreter everywhere, and on a GPU where there
is one.
"""

import math

import pytest
import torch

from dpbo.gibo import ClippedGradient
from dpbo.gibo import gradient_kernel as gradient
from dpbo.gibo.gradient_kernel import _ready
from dpbo.gibo.gradient_query import _ROWS, loss_column
from dpbo.papers.em.mixture_moments import MixtureMoments
from dpbo.papers.em.moment_features import width_of
from dpbo.queries.ball import Ball
from tests.attacks.marks import attack
from tests.contracts.bases import exact_sum
from tests.setups import DOUBLE
from tests.unit.gpu.fused_cases import (
    AIMS,
    SUMS,
    UNITS,
    both_sums,
    removals_apart,
    sign_kept_apart,
    vector_errors,
)
from tests.unit.gpu.interpreted import interpreted

pytestmark = pytest.mark.gpu
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def moments(dimension, **vectors):
    """A question about moments of three components in a ball around a centre of its own."""
    draw = torch.Generator().manual_seed(300)
    ball = Ball(1.5, center=0.1 * torch.randn(dimension, generator=draw).double())
    natural = 3.0 * torch.randn(3, width_of("full", dimension), generator=draw).double()
    return MixtureMoments(dimension, ball=ball, natural=natural, **vectors)


@attack("A4")
def test_interpreted_it_gives_the_cpus_integers():
    same, (error, of_center, of_levels), removed, of_vectors = interpreted(
        "tests.unit.gpu.fused_cases"
    )
    assert same == [True] * (len(SUMS) * len(AIMS) + len(UNITS) + 3)
    assert removed == [[]] * len(gradient.LAUNCHES), (
        "a unit adds the same at every row and in whole and ragged blocks"
    )
    assert error < 2e-5, "of three products of bfloat16"
    assert of_center < 1e-6
    assert of_levels < 1e-5, "of losses rounded to float32"
    assert 0.0 < max(of_vectors) < 1e-5, (
        "the interpreter cuts bfloat16 off where a GPU rounds, so four times as much",
        of_vectors,
    )


@pytest.mark.cuda
def test_on_a_gpu_a_vector_is_as_near_to_float64_as_two_bfloat16_numbers_hold():
    """Of each product what is beyond two parts is lost, 2^-18 for either factor and for both; and
    of three sums in blocks of 16 up to 2^-23 a block, where a tensor core cuts them off.
    """
    for columns, error in vector_errors("cuda").items():
        assert error < 3 * 2.0**-18 + 3 * columns / 16 * 2.0**-23, columns


def test_a_trial_launch_that_finds_no_memory_says_nothing_of_the_next(monkeypatch):
    def full(*arguments, **options):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(gradient, "one_pass_sum", full)
    with pytest.raises(torch.OutOfMemoryError):
        gradient._works(torch.device("cpu", 0), 16)


def test_a_kernel_that_does_not_run_is_warned_of_once_and_its_width_goes_another_way():
    host = torch.device("cpu")
    gradient._works.cache_clear()
    with pytest.warns(
        RuntimeWarning, match="up to 64 dimensions does not run on cpu .*Sums are right but slower"
    ):
        assert not gradient._works(host, 64), (
            "without Triton's interpreter there is no kernel for the CPU"
        )
    assert not gradient._works(host, 64)
    gradient._works.cache_clear()


def test_a_column_is_copied_where_the_kernel_could_not_read_it_and_only_there():
    memory = torch.arange(64.0)  # torch's own memory begins at a multiple of 64 bytes
    assert _ready(memory[4:]).data_ptr() == memory[4:].data_ptr()
    slab = memory[4:].view(5, 12)
    assert _ready(slab).data_ptr() == slab.data_ptr()
    rows = memory[4:58].view(6, 9)
    for losses in (
        memory[1:],
        memory[::2],
        memory.double(),
        sign_kept_apart(memory),
        rows,
        rows.double(),
        slab.T,
    ):
        ready = _ready(losses)
        assert ready.data_ptr() % 16 == 0
        assert ready.stride(1) == 1
        assert len(ready) == 1 or ready.stride(0) % 4 == 0
        assert not ready.is_neg()
        assert ready.tolist() == losses.reshape(-1, losses.shape[-1]).tolist()


@pytest.mark.cuda
@attack("A4")
def test_on_a_gpu_it_gives_the_cpus_integers():
    for case in (*SUMS, (100_003, 34, 33, 9.0)):
        for aim, unit in (*((aim, 1.0) for aim in AIMS), *((AIMS[0], unit) for unit in UNITS)):
            found, own = both_sums(case, aim, "cuda", unit=unit)
            assert found == own, (case, aim, unit)


@attack("A4")
@pytest.mark.parametrize("device", DEVICES)
def test_a_unit_adds_the_same_at_every_row_and_in_whole_and_ragged_blocks(device):
    """So a removed unit takes away what it adds alone, on which the sensitivity of
    ADD_OR_REMOVE_ONE rests.
    """
    widths = (
        {width: launch.rows for width, launch in gradient.LAUNCHES.items()}
        if device == "cuda"
        else dict.fromkeys((1, 33), _ROWS["cpu"])
    )
    for width, rows in widths.items():
        assert removals_apart(width, rows, device=device, one_pass=device == "cuda") == [], width


@attack("A4")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dimension", [2, 9])
def test_one_record_changes_no_others_bits(device, dimension):
    """Replaced by one that counts as nothing, a record takes away what it adds alone."""
    X = torch.randn(20_001, dimension, dtype=DOUBLE)
    question = moments(dimension)
    nothing = torch.full((1, dimension), math.nan, dtype=DOUBLE)
    whole = exact_sum(question, X.to(device)).numerators
    for row in (0, 5000, 20_000):
        without = exact_sum(
            question, torch.cat([X[:row], nothing, X[row + 1 :]]).to(device)
        ).numerators
        alone = exact_sum(
            question, torch.cat([X[row : row + 1], nothing.expand(20_000, -1)]).to(device)
        ).numerators
        assert (without + alone).tolist() == whole.tolist()


@attack("A4")
@pytest.mark.parametrize("device", DEVICES)
def test_a_record_that_the_loss_fails_on_changes_no_others_path(device):
    """Where the loss or `vectors` raises on a record, all come back from the CPU: the others must
    count to the same bits.
    """
    records = torch.randn(5000, 2, device=device)
    failing, absent = records.clone(), records.clone()
    failing[17], absent[17] = 1e3, math.nan

    def fragile(batch):
        if bool((batch[:, 0] > 100).any()):
            raise ValueError
        return batch

    points, W = torch.eye(2, dtype=DOUBLE), torch.randn(7, 2, dtype=DOUBLE)
    gradient = ClippedGradient(
        lambda x, batch: fragile(batch) @ x.to(batch), points, weights=W, clip=1.0, divisor=1.0
    )
    for query in (gradient, moments(2, vectors=fragile)):
        assert (
            exact_sum(query, failing).numerators.tolist()
            == exact_sum(query, absent).numerators.tolist()
        )


@pytest.mark.filterwarnings("ignore:the one-pass:RuntimeWarning")  # where there is no GPU
def test_the_path_is_chosen_by_public_things_alone():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    W = torch.ones(257, 3, dtype=DOUBLE)
    assert not gradient.can_sum_in_one_pass(cpu, W[:2], 1.0)
    assert gradient.can_sum_in_one_pass(gpu, W[:256], 1.0) == torch.cuda.is_available()
    assert not gradient.can_sum_in_one_pass(gpu, W, 1.0)


@pytest.mark.parametrize("unit", [1e-80, 1.0, 1e80])
def test_weights_far_from_the_clip_go_another_way(unit, monkeypatch):
    """There float32 could lose all or keep nothing of a loss that matters."""
    monkeypatch.setattr(gradient, "_works", lambda device, width: True)
    gpu, W = torch.device("cuda"), torch.tensor([[unit, 0.0]], dtype=DOUBLE)
    for ratio, fits in ((1e-20, False), (1e-18, True), (1.0, True), (1e18, True), (1e20, False)):
        assert gradient.can_sum_in_one_pass(gpu, W * ratio, unit) == fits
    assert gradient.can_sum_in_one_pass(gpu, 0 * W, unit)


@attack("A4")
def test_a_loss_has_the_same_bits_however_it_was_collected():
    """At once, in pieces, from a view of the records, or from the CPU in float64 because the loss
    failed on one record.
    """
    for dtype in (DOUBLE, torch.float32, torch.int64, torch.bfloat16):
        records = (1e6 + 1e17 * torch.rand(50, 1, dtype=DOUBLE)).to(dtype)
        for stored in (torch.float32, DOUBLE):
            for own in (frozenset({records.untyped_storage().data_ptr()}), frozenset[int]()):
                expected = loss_column(
                    [records.to(DOUBLE)], torch.device("cpu"), own, stored
                ).double()
                for pieces in ([records], records.split(7), records.split(25)):
                    assert torch.equal(
                        loss_column(pieces, torch.device("cpu"), own, stored).double(), expected
                    ), (dtype, stored)
    assert loss_column([], torch.device("cpu"), frozenset(), DOUBLE).tolist() == [], (
        "no records, and no loss of any"
    )
