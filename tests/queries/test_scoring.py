"""What happens to private scores on their way to a sum: whatever fails, nothing is raised."""

import pytest
import torch

from dpbo import PrivacyUnit
from dpbo.curator.records import PrivateView
from dpbo.queries.query import Failure
from dpbo.queries.scoring import over_records

RECORDS = torch.arange(10.0)


def fragile(_subject, batch):
    """Fails where it meets a 3."""
    if bool((batch == 3).any()):
        raise ValueError
    return batch


@pytest.mark.parametrize("score", [lambda _, batch: batch, fragile], ids=["sound", "failing on one record"])
@pytest.mark.parametrize(("error", "kind"), [(MemoryError("of 13 bytes"), "exception"), (KeyboardInterrupt(), "interrupted")])
@pytest.mark.attack("A6")
def test_a_sum_that_fails_is_a_failure_whether_or_not_a_record_failed_before(score, error, kind):
    """Also the second sum, over scores that were found one by one: otherwise one record would decide whether private frames are shown."""

    def reduce(pieces):
        for _ in pieces:
            raise error

    view = PrivateView.of(RECORDS, PrivacyUnit("record"), units_are_public=True)
    found = over_records(score, None, view, 1, reduce)
    assert isinstance(found, Failure)
    assert found.kind == kind


def test_one_failing_record_counts_as_nothing_and_the_others_as_ever():
    view = PrivateView.of(RECORDS, PrivacyUnit("record"), units_are_public=True)
    found = over_records(fragile, None, view, 1, lambda pieces: torch.cat(list(pieces))[:, 0].tolist())
    assert isinstance(found, list)
    assert [value for value in found if value == value] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
