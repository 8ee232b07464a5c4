"""One row's outcome: of what it is asked, what counts where it is no number, and that nothing is said of it but that."""

import math

import pytest
import torch

from dpbo import PrivacyUnit
from dpbo.curator.records import PrivateView
from dpbo.errors import InputError
from dpbo.queries import RowOutcome
from dpbo.queries.query import IntegerSum


class Sealed:
    """Records that can be counted and no more."""

    def __len__(self):
        return 3


def answered(outcome, records=(0.1, 0.2, 0.3), row=1):
    """What is released before noise, as a number."""
    question = RowOutcome(outcome, row=row, value_range=(-1.0, 3.0), worst=0.5)
    view = PrivateView.of(records if isinstance(records, Sealed) else list(records), PrivacyUnit("row"), units_are_public=True)
    answer = question._evaluate(view, None)
    assert isinstance(answer, IntegerSum)
    assert answer.quanta == question.quanta()
    (offset,), gain = question.affine(3)
    return offset + gain * int(answer.numerators[0]) * answer.quanta[0]


def raising(_records):
    raise ValueError


def test_the_outcome_is_that_of_its_row_in_whatever_shape_and_clipped():
    for shaped in (lambda r: r[0], lambda r: r, torch.tensor, lambda r: torch.tensor([r]), lambda r: iter([r])):
        assert [answered(shaped, row=row) for row in range(3)] == pytest.approx([0.1, 0.2, 0.3])
    assert (answered(lambda _: 1e9), answered(lambda _: -1e9)) == pytest.approx((3.0, -1.0))


@pytest.mark.parametrize("given", [lambda _: [1.0, 2.0], lambda _: [], lambda _: None, lambda _: math.nan, lambda _: "1.0", raising])
@pytest.mark.attack("A6")
def test_what_is_no_single_number_counts_as_was_said(given):
    assert answered(given) == pytest.approx(0.5)


def test_a_row_that_cannot_be_taken_out_is_refused():
    """Otherwise all such outcomes would be the worst one, at the price of true ones."""
    with pytest.raises(InputError, match="records"):
        answered(len, Sealed())
    with pytest.raises(InputError, match="row"):
        answered(len, row=3)
