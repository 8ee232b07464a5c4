"""What happens to private scores on their way to a sum: whatever fails, nothing is raised."""

import decimal
import math

import numpy as np
import pytest
import torch

from dpbo import PrivacyUnit
from dpbo.queries.query import Failure
from dpbo.queries.score_evaluation import score_records, tensor_of
from dpbo.records.view import PrivateView
from tests.attacks.marks import attack
from tests.setups import DOUBLE


def fragile(_subject, batch):
    if bool((batch == 3).any()):
        raise ValueError
    return batch


def viewed(n):
    return PrivateView.of(torch.arange(float(n)), PrivacyUnit("record"), units_are_public=True)


@pytest.mark.parametrize(
    "score", [lambda _, batch: batch, fragile], ids=["sound", "failing on one record"]
)
@attack("A6")
def test_a_sum_that_fails_is_a_failure_whether_or_not_a_record_failed_before(score):
    """Also the second sum, over scores that were found one by one: otherwise one record would
    decide whether private frames are shown.
    """

    def reduce(pieces):
        for _ in pieces:
            raise MemoryError("of 13 bytes")

    found = score_records(score, None, viewed(10), 1, reduce)
    assert isinstance(found, Failure)
    assert found.kind == "sum", "the score is not at fault"


def scores_of(score, n):
    return score_records(
        score, None, viewed(n), 1, lambda pieces: torch.cat(list(pieces))[:, 0].tolist()
    )


class Fragile:
    """Fails on some records, for which `worst` is asked; of a 4 it makes NaN."""

    def __init__(self, broken, worst):
        self.broken = broken
        self.score_of_failed = worst
        self.calls = 0

    def __call__(self, _subject, batch):
        self.calls += 1
        if bool(torch.isin(batch, torch.tensor(self.broken)).any()) or self.calls == 1:
            raise ValueError
        return batch.where(batch != 4, torch.nan)


@pytest.mark.parametrize(
    ("broken", "wanted"), [([1.0], [0.0, 7.0, 2.0]), ([0.0, 2.0], [7.0, 1.0, 7.0])]
)
def test_what_counts_for_failed_records_is_asked_for_however_many_they_are(broken, wanted):
    assert scores_of(Fragile(broken, lambda _, batch: torch.full_like(batch, 7.0)), 3) == wanted


@attack("A6")
def test_what_is_scored_as_nan_stays_so_whether_or_not_another_record_fails():
    """Taken for failed, all such records would move by the width of the range when one other is
    replaced.
    """
    for broken, wanted in (([], [0.0, 1.0, 2.0, 3.0]), ([1.0], [0.0, 7.0, 2.0, 3.0])):
        *others, last = scores_of(Fragile(broken, lambda _, batch: torch.full_like(batch, 7.0)), 5)
        assert others == wanted
        assert math.isnan(last)


@pytest.mark.parametrize(("sound", "units", "calls"), [(0, 1000, 256), (3000, 6000, 4096)])
def test_failing_records_are_looked_for_in_so_many_calls_and_no_more(sound, units, calls):
    """Where nothing is scored, and where many are and too many are not: after them the whole
    evaluation has failed.
    """
    made = []

    def score(_subject, batch):
        made.append(len(batch))
        if bool((batch >= sound).any()):
            raise ValueError
        return batch

    assert isinstance(scores_of(score, units), Failure)
    # once all together
    assert made == [units] * (1 + calls)


def test_an_array_that_may_be_written_to_is_lent_and_any_other_copied():
    """A tensor of a read-only array would let a reduction write into what was lent."""
    array = np.arange(3.0)
    assert tensor_of(array).data_ptr() == array.ctypes.data
    array.flags.writeable = False
    assert tensor_of(array).data_ptr() != array.ctypes.data
    assert tensor_of(array).tolist() == [0.0, 1.0, 2.0]


KINDS = {
    "bool": True,
    "int": 1,
    "float": 0.1,
    "beyond int64": 2**63,
    "beyond uint64": 2**64,
    "none": None,
    "word": "1",
    "complex": 1 + 0j,
    **{kind.__name__: kind(1) for kind in (np.bool_, np.int8, np.int64, np.longdouble)},
    "uint8": np.uint8(200),
    "uint64": np.uint64(200),
    "float32": np.float32(0.1),
    "array": np.array(1, dtype=np.uint32),
    "decimal": decimal.Decimal(1),
    "tensor": torch.tensor(0.1),
    "bfloat16": torch.tensor(1.0).bfloat16(),
    "graph": torch.tensor(1.0, requires_grad=True),
    "date": np.datetime64("2020"),
}


def first_of(*batch):
    """What the first of these counts as; None for the worst."""
    found = score_records(
        lambda _, places: [batch[int(i)] for i in places],
        None,
        viewed(len(batch)),
        1,
        lambda pieces: torch.cat(list(pieces)),
    )
    return None if isinstance(found, Failure) or bool(found[0].isnan()) else float(found[0])


@attack("A6")
def test_what_a_kind_of_number_in_a_list_counts_as_does_not_depend_on_the_others():
    """Also where the other fails, or is the only kind that is taken for floats together with it."""
    for kind, number in KINDS.items():
        alone = first_of(number, number)
        for other in KINDS:
            assert first_of(number, KINDS[other]) == alone, (kind, other)


@attack("A6")
def test_no_number_is_rounded_for_the_kind_of_another_batch():
    batches = [[2**24 + 1], [np.float32(0.5)]]
    assert tensor_of(iter(batches)).tolist() == [2.0**24 + 1, 0.5]


@attack("A6")
def test_unsigned_numbers_are_numbers():
    results = [
        torch.tensor([1, 255]).to(kind) for kind in (torch.uint16, torch.uint32, torch.uint64)
    ]
    for kind in (np.uint16, np.uint32, np.uint64, np.ulonglong):
        most = int(np.iinfo(kind).max)
        for result in (np.array([1, most], dtype=kind), [kind(1), kind(most)], *results):
            found = tensor_of(result)
            expected = [1.0, 255.0 if isinstance(result, torch.Tensor) else float(most)]
            assert (found.tolist(), found.dtype) == (expected, DOUBLE)
