"""Tests whether a score scores each record on its own: the assumption `score-per-record`."""

from typing import Annotated, Any

from dpbo.privacy import Adjacency, PrivacyUnit
from dpbo.records.examples import require_per_record
from dpbo.records.form import Form
from dpbo.records.view import PrivateView
from dpbo.validation import Count, Seed, Within, checked

_Score = Annotated[
    Any,
    Within(
        "score(model, records), a function",
        callable,
        "Scores that DPSearch has names for treat each record by itself.",
    ),
]


@checked
def check_per_record(
    score: _Score,
    subject: Any,
    records: Any,
    *,
    adjacency: Adjacency | str = Adjacency.REPLACE_ONE,
    grouped: bool = False,
    trials: Count = 20,
    seed: Seed = 0,
) -> None:
    """Asserts that every other record's score keeps its bits when some records change.

    A score that normalises by the batch, ranks, or averages lets one record change the scores of
    others, and no clipping bounds that. Half of the records are replaced, by copies of another one
    and by hostile ones (huge numbers, missing values, new categories), in all columns and in some,
    also where a record that stays is missing or huge. Few records are repeated, so that a statistic
    of them can have an outlier. Whole numbers stay between those that are there. Tables and arrays
    of objects are cast to their own form first, as the curator casts private ones. torch's, numpy's
    and Python's generators are in the same state at each call. Run this on public records: on
    private ones its messages would be private.

    Args:
        score: `score(subject, records)`, as in `ClippedMean`.
        subject: what is scored.
        records: public records that can be sliced, at least two.
        adjacency: an Adjacency or its name. REPLACE_ONE replaces records. ADD_OR_REMOVE_ONE also
            leaves some out.
        grouped: whether units are groups of records. A replaced unit may then change the number of
            records, so records are left out too.
        trials: how many halves are replaced, besides the first and the last one.
        seed: of the choice of halves.

    Raises:
        AssertionError: says which change moved the score of a record that stayed, and by how much;
            or the score is not repeatable.
    """
    cast, _ = Form.of(records, "records").cast(records)
    view = PrivateView.of(cast, PrivacyUnit("record"), units_are_public=True)
    assert view.can_take, (
        "records must be tensors, arrays, DataFrames or lists, so that single records can be"
        " selected"
    )
    assert view.count >= 2, "records must hold at least two"
    parts = grouped or Adjacency.of(adjacency) is Adjacency.ADD_OR_REMOVE_ONE
    require_per_record(score, subject, view, trials=trials, seed=seed, parts=parts)
